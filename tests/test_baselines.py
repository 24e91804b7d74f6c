"""Every baseline through the same properties, and TracIn, TRAK, SOURCE and BIF against their own truths."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import whence
from test_influence import linear, loss_at, regression, ridge, shares
from torch_models import Attention, perceptron
from whence import DataWarning, Features, InputError, Problem
from whence.baselines import Langevin, bif_scores, influence_scores, source_scores, tracin_scores, trak_scores
from whence.baselines import source as source_module
from whence.baselines.mixing import effective_draws, r_hat
from whence.gradients import groups as groups_module


def tracin(model, tasks, targets, *, per_query=False, params=None, **settings):
    problem = Problem(model, tasks, targets, per_query=per_query, params=params)
    return tracin_scores(problem, learning_rates=[0.1], **settings)


def source(model, tasks, targets, *, per_query=False, params=None, **settings):
    problem = Problem(model, tasks, targets, per_query=per_query, params=params)
    return source_scores(problem, segments=[[model]], learning_rates=[0.1], steps=[20], **settings)


def bif(model, tasks, targets, *, per_query=False, params=None, batch_size=None, **settings):
    # The longest steps that are stable make few of them do.
    step_size = 0.08 / sum(len(labels) for _, labels in tasks.values())
    sampler = Langevin(damping=5.0, chains=60, draws=12, thin=6, step_size=step_size, batch_size=batch_size)
    problem = Problem(model, tasks, targets, per_query=per_query, params=params)
    return bif_scores(problem, sampler=sampler, **settings)


def influence(model, tasks, targets, *, per_query=False, params=None, **settings):
    problem = Problem(model, tasks, targets, per_query=per_query, params=params)
    return influence_scores(problem, curvature="gauss_newton", damping=0.1, **settings)


def trak(model, tasks, targets, *, per_query=False, params=None, **settings):
    problem = Problem(model, tasks, targets, per_query=per_query, params=params)
    return trak_scores(problem, rank=8, projection="gaussian", l2=0.1, **settings)


METHODS = {"influence": influence, "tracin": tracin, "trak": trak, "source": source, "bif": bif}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def classes(K=3, n=8, seed=0):
    torch.manual_seed(seed)
    tasks = {f"t{k}": (torch.randn(n + k, 4) + k, torch.randint(3, (n + k,))) for k in range(K)}
    targets = {"x": (torch.randn(5, 4), torch.randint(3, (5,))), "y": (torch.randn(3, 4), torch.randint(3, (3,)))}
    return perceptron(), tasks, targets


# ---- what all have in common -------------------------------------------------------------------------------


@every_method
def test_the_prediction_for_all_tasks_is_the_loss_of_the_model(method):
    model, tasks, targets = classes()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = method(model, tasks, targets)
    losses = [float(nn.functional.cross_entropy(model(x), y).detach()) for x, y in targets.values()]
    np.testing.assert_allclose(found.predict(np.ones((1, 3)))[0], losses, rtol=1e-5)
    assert found.task_names == ("t0", "t1", "t2")
    assert found.target_names == ("x/loss", "y/loss")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@every_method
def test_the_order_of_tasks_and_targets_does_not_matter(method):
    model, tasks, targets = classes()
    found = method(model, tasks, targets).to_frame()
    order = ["t2", "t0", "t1"]
    other = method(model, {name: tasks[name] for name in order}, dict(reversed(targets.items()))).to_frame()
    scale = np.abs(found).to_numpy().max()
    np.testing.assert_allclose(other.loc[found.index, found.columns], found, rtol=2e-3, atol=1e-3 * scale)


@every_method
def test_the_score_for_a_target_is_the_mean_of_those_for_its_queries(method):
    model, tasks, targets = classes()
    whole = method(model, tasks, targets).coef_
    each = method(model, tasks, targets, per_query=True)
    assert each.target_names == (*(f"x/loss[{i}]" for i in range(5)), *(f"y/loss[{i}]" for i in range(3)))
    means = np.stack([each.coef_[:, :5].mean(1), each.coef_[:, 5:].mean(1)], axis=1)
    np.testing.assert_allclose(means, whole, rtol=1e-3, atol=1e-4 * np.abs(whole).max())


@every_method
def test_same_seed_same_scores(method):
    model, tasks, targets = classes()
    first, again = (method(model, tasks, targets, seed=3).coef_ for _ in range(2))
    np.testing.assert_array_equal(first, again)


@every_method
def test_a_task_like_the_target_helps_and_its_contradiction_hurts(method):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    x = torch.randn(20, 3)
    y = (x[:, 0] > 0).long()
    tasks = {"same": (x[:10], y[:10]), "opposite": (x[:10], 1 - y[:10])}
    found = method(model, tasks, (x[10:], y[10:]))
    assert found.coef_[0, 0] < 0 < found.coef_[1, 0]
    best = whence.select(found, size=1)
    assert best.tasks == ("same",)
    frame = whence.attribute(found).to_frame()
    assert frame["task"].tolist() == ["same", "opposite"]
    held_out = whence.Outcomes([[1, 0], [0, 1], [1, 1]], [0.1, 1.2, 0.7], target_names=["loss"])
    assert whence.lds(found, held_out).mean == 1


@every_method
def test_only_the_chosen_parameters_count(method):
    """With the head alone, the model is linear: what the rest of it has learned is data."""
    model, tasks, targets = classes()
    head = model[2]
    with torch.no_grad():
        inner = {
            part: {name: (model[:2](x), y) for name, (x, y) in given.items()}
            for part, given in (("tasks", tasks), ("targets", targets))
        }
    found = method(model, tasks, targets, params="2.*").coef_
    other = method(head, inner["tasks"], inner["targets"]).coef_
    np.testing.assert_allclose(found, other, rtol=1e-3, atol=1e-5 * np.abs(other).max())
    with pytest.raises(InputError, match=r"no parameter named 'head\.\*'"):
        method(model, tasks, targets, params="head.*")


@every_method
def test_attention_and_embeddings(method):
    torch.manual_seed(0)
    tokens = torch.randint(1, 6, (8, 5))
    tasks = {"a": (tokens[:4], torch.tensor([0, 1, 2, 0])), "b": (tokens[4:], torch.tensor([2, 1, 1, 0]))}
    assert np.isfinite(method(Attention(), tasks, tasks["a"]).coef_).all()


@every_method
def test_weights_that_are_no_numbers_are_refused(method):
    model, tasks, targets = classes()
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with pytest.raises(InputError, match=r"not finite|diverged"):
        method(model, tasks, targets)


@pytest.fixture(scope="module")
def runs():
    model, tasks, targets = classes()
    retrain = whence.Retrain(Problem(model, tasks, targets), whence.Recipe(steps=2, batch_size=None))
    return whence.measure(retrain, whence.LeaveOneOut(), tasks=list(tasks))


@every_method
def test_outcomes_have_the_names_that_measuring_gives_them(method, runs):
    found = method(*classes())
    assert found.target_names == runs.target_names
    assert whence.lds(found, runs).target_names == runs.target_names


@pytest.mark.parametrize("method", [tracin_scores, trak_scores, source_scores])
def test_checkpoints_that_do_not_fit_are_refused(method):
    model, tasks, targets = classes()
    wrong = perceptron(width=5)
    settings = {
        tracin_scores: {"checkpoints": [wrong], "learning_rates": [0.1]},
        trak_scores: {"checkpoints": [wrong], "rank": 4},
        source_scores: {"segments": [[wrong]], "learning_rates": [0.1], "steps": [1]},
    }
    with pytest.raises(InputError, match=r"'0.weight' of the checkpoint must have shape \(6, 4\), .* Got \(5, 4\)"):
        method(Problem(model, tasks, targets), **settings[method])


def test_the_module_is_within_reach():
    assert whence.baselines.influence_scores is influence_scores
    assert sorted(whence.baselines.__all__) == whence.baselines.__all__


# ---- TracIn -----------------------------------------------------------------------------------------------


def test_tracin_is_what_a_small_step_of_training_does():
    model, tasks, targets = classes()
    model = model.double()
    tasks = {name: (x.double(), y) for name, (x, y) in tasks.items()}
    x, y = targets["x"][0].double(), targets["x"][1]
    eta, step = 1e-5, 1e-3

    def loss_after(s):
        weights = s / s.sum()
        total = sum(
            w * nn.functional.cross_entropy(model(xs), ys) for w, (xs, ys) in zip(weights, tasks.values(), strict=True)
        )
        slopes = torch.autograd.grad(total, list(model.parameters()))
        moved = {n: p - eta * g for (n, p), g in zip(model.named_parameters(), slopes, strict=True)}
        return float(nn.functional.cross_entropy(torch.func.functional_call(model, moved, (x,)), y).detach())

    ones = np.ones(3)
    true = [(loss_after(ones + step * e) - loss_after(ones - step * e)) / (2 * step) for e in np.eye(3)]
    found = tracin_scores(Problem(model, tasks, (x, y)), learning_rates=[eta], normalized=True, weighting="task")
    np.testing.assert_allclose(found.coef_[:, 0], true, rtol=1e-3)


def test_tracin_adds_up_over_checkpoints_and_gradients_by_hand():
    model, tasks, targets = classes()
    others = [perceptron(), perceptron()]
    rates = [0.1, 0.03]
    expected = np.zeros((3, 2))
    for other, rate in zip(others, rates, strict=True):
        of = {
            part: [
                torch.autograd.grad(nn.functional.cross_entropy(other(x), y), [*other.parameters()])
                for x, y in given.values()
            ]
            for part, given in (("tasks", tasks), ("targets", targets))
        }
        expected -= (
            rate
            / 3
            * np.array(
                [
                    [sum(float((p * q).sum()) for p, q in zip(a, b, strict=True)) for b in of["targets"]]
                    for a in of["tasks"]
                ]
            )
        )
    found = tracin_scores(
        Problem(model, tasks, targets),
        checkpoints=[o.state_dict() for o in others],
        learning_rates=rates,
        weighting="task",
    )
    np.testing.assert_allclose(found.coef_, expected, rtol=1e-4)


@pytest.mark.parametrize("rank", [None, 20])
@pytest.mark.parametrize("per_query", [False, True])
def test_portions_of_gradients_do_not_matter(rank, per_query, monkeypatch):
    """A few groups and a few of their examples at a time; queries are never held, nor are sketched gradients."""
    model, tasks, targets = classes()
    whole = tracin(model, tasks, targets, rank=rank, per_query=per_query).coef_
    monkeypatch.setattr(groups_module, "NUMBERS", 100)
    monkeypatch.setattr(groups_module, "ROWS", 3)
    np.testing.assert_allclose(tracin(model, tasks, targets, rank=rank, per_query=per_query).coef_, whole, rtol=1e-4)


def test_tracin_with_sketched_gradients_is_right_on_average():
    model, tasks, targets = classes()
    whole = tracin(model, tasks, targets).coef_
    sketched = np.array([tracin(model, tasks, targets, rank=20, seed=seed).coef_ for seed in range(20)])
    assert (np.abs(sketched.mean(0) - whole) < 4 * sketched.std(0) / math.sqrt(20)).all()
    assert (sketched.std(0) > 0).all()
    with pytest.raises(InputError, match="The rank must be from 1 to the number of parameters"):
        tracin(model, tasks, targets, rank=1000)


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        (None, r"learning rate for each checkpoint, 1 in all: give learning_rates\. Got 0 rates\."),
        ([0.1, 0.2], r"learning rate for each checkpoint, 1 in all: give learning_rates\. Got 2 rates\."),
        ([float("nan")], r"Learning rates must be finite numbers above 0\. Got \[nan\]\."),
        ([0.0], r"Learning rates must be finite numbers above 0"),
    ],
)
def test_tracin_without_its_rates(rates, message):
    with pytest.raises(InputError, match=message):
        tracin_scores(Problem(*classes()), learning_rates=rates)


# ---- TRAK -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["task", "sample"])
def test_trak_is_the_influence_function_where_the_model_is_linear_and_nothing_is_lost(weighting):
    """As many directions as parameters, and a squared loss, whose curvature by the outputs is one."""
    tasks, target = regression()
    model = linear(ridge(tasks, np.ones(4), 0.0, weighting, True))
    exact = influence_scores(Problem(model, tasks, target, loss="squared"), damping=0.0, weighting=weighting)
    found = trak_scores(
        Problem(model, tasks, target, loss="squared"), rank=4, projection="gaussian", weighting=weighting
    )
    np.testing.assert_allclose(found.coef_, exact.coef_, rtol=1e-3)


def naive_trak(model, tasks, queries, P, kernel):
    """φ_qᵀ (ΦᵀWΦ)⁺ φ_k by explicit gradients of log p/(1 − p), and slopes −(1 − p) of its logistic loss."""

    def of(x, y):
        rows, slopes = [], []
        for i in range(len(y)):
            p = model(x[i : i + 1]).softmax(-1)[0, y[i]]
            slopes.append(-float(1 - p.detach()))
            gradient = torch.autograd.grad((p / (1 - p)).log(), [*model.parameters()])
            rows.append(P @ torch.cat([g.flatten() for g in gradient]).numpy())
        return np.array(rows), np.array(slopes)

    parts = [of(x, y) for x, y in tasks.values()]
    means = np.array([rows.mean(0) for rows, _ in parts])
    K = len(parts)
    if kernel == "tasks":
        gram = means.T @ means / K
        pulls = np.array([rows.mean(0) * slopes.mean() for rows, slopes in parts])
    else:
        gram = sum(rows.T @ rows / len(rows) for rows, _ in parts) / K
        pulls = np.array([(rows * slopes[:, None]).mean(0) for rows, slopes in parts])
    rows, slopes = of(*queries)
    return -pulls @ np.linalg.pinv(gram, rcond=1e-6) @ (rows * slopes[:, None]).T / K


@pytest.mark.parametrize("kernel", ["samples", "tasks"])
def test_trak_of_margins_against_explicit_gradients(kernel):
    model, tasks, targets = classes()
    projection = whence.GradEx(Problem(model, tasks, targets), rank=6, projection="gaussian").projection(0)
    like = {name: value.detach() for name, value in model.named_parameters()}
    P = projection.rows(like, 0, 6).double().numpy()
    found = trak_scores(
        Problem(model, tasks, targets["x"], per_query=True),
        rank=6,
        projection="gaussian",
        kernel=kernel,
        weighting="task",
    )
    expected = naive_trak(model, tasks, targets["x"], P, kernel)
    np.testing.assert_allclose(found.coef_, expected, rtol=5e-3, atol=1e-3 * np.abs(expected).max())


def test_trak_averages_over_checkpoints_and_projections():
    model, tasks, targets = classes()
    others = [perceptron(), perceptron()]
    settings = {"rank": 6, "projection": "gaussian", "l2": 0.1}
    together = trak_scores(Problem(model, tasks, targets), checkpoints=others, n_projections=2, **settings)
    single = [
        trak_scores(Problem(model, tasks, targets), checkpoints=[other], seed=seed, **settings).coef_
        for other in others
        for seed in (0, 1)
    ]
    np.testing.assert_allclose(together.coef_, np.mean(single, axis=0), rtol=1e-4)
    assert together.diagnostics == {"members": 4, "rank": 6}


def test_trak_takes_up_the_features_that_gradex_has_stored(tmp_path):
    model, tasks, targets = classes()
    settings = {"rank": 6, "projection": "gaussian", "features": Features(store=tmp_path)}
    whence.GradEx(Problem(model, tasks, targets), of="margin", **settings).batch(np.ones((1, 3)))
    files = sorted(tmp_path.rglob("blocks.jsonl"))
    lines = [file.read_text() for file in files]
    assert len(lines) == 2
    found = trak_scores(Problem(model, tasks, targets), **settings)
    assert sorted(tmp_path.rglob("blocks.jsonl")) == files
    assert [file.read_text() for file in files] == lines
    fresh = trak_scores(Problem(model, tasks, targets), rank=6, projection="gaussian")
    np.testing.assert_allclose(found.coef_, fresh.coef_, rtol=1e-5)


def test_trak_of_a_trained_model_does_not_complain_that_it_has_learned():
    x = torch.tensor([[1.0], [-1.0]])
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[5.0], [-5.0]]))
    tasks = {"a": (x, torch.tensor([0, 1]))}
    assert np.isfinite(trak_scores(Problem(model, tasks, tasks["a"]), rank=2).coef_).all()


def test_trak_has_two_kernels():
    with pytest.raises(InputError, match=r"The 'kernel' of TRAK must be 'samples' or 'tasks'\. Got 'rbf'\."):
        trak_scores(Problem(*classes()), kernel="rbf")


# ---- SOURCE -----------------------------------------------------------------------------------------------


def shared_inputs(seed=0, K=3, n=10, d=4):
    """Tasks with the same inputs and other labels: their gradients differ by a constant all along the training."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.geomspace(1.5, 0.2, d)
    tasks = {f"t{k}": (X, X @ rng.normal(size=d)) for k in range(K)}
    return tasks, (rng.normal(size=(5, d)), rng.normal(size=5))


def descended(tasks, s, plan, start, l2=0.0):
    """Weights after each segment of plain gradient descent on the weighted loss."""
    weights, w, ends = s * shares(tasks, "task"), start, []
    weights = weights / weights.sum()
    for rate, steps in plan:
        for _ in range(steps):
            g = sum(p * X.T @ (X @ w - y) / len(y) for p, (X, y) in zip(weights, tasks.values(), strict=True))
            w = w - rate * (g + l2 * w)
        ends.append(w)
    return ends


@pytest.mark.parametrize("krylov", [False, True])
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_source_is_the_derivative_of_the_unrolled_training_of_a_quadratic(krylov, l2, monkeypatch):
    if krylov:
        monkeypatch.setattr(source_module, "EXACT", 0)
    tasks, target = shared_inputs()
    step, ones, start = 1e-4, np.ones(3), np.zeros(4)
    errors = []
    for rate in (0.02, 0.002):
        plan = [(rate, round(1.0 / rate)), (rate / 2, round(4.0 / rate))]
        ends = descended(tasks, ones, plan, start, l2)
        true = [
            (
                loss_at(descended(tasks, ones + step * e, plan, start, l2)[-1], target)
                - loss_at(descended(tasks, ones - step * e, plan, start, l2)[-1], target)
            )
            / (2 * step)
            for e in np.eye(3)
        ]
        found = source_scores(
            Problem(linear(ends[-1]), tasks, target, loss="squared"),
            l2=l2,
            segments=[[linear(start), linear(ends[0])], [linear(ends[1])]],
            learning_rates=[rate for rate, _ in plan],
            steps=[steps for _, steps in plan],
            weighting="task",
        )
        errors.append(np.abs(found.coef_[:, 0] - true).max() / np.abs(true).max())
    # exp(−ηNH) stands for (1 − ηH)^N: right to first order in the learning rate.
    assert errors[1] < 2e-3
    assert errors[1] < errors[0] / 5


def test_source_lies_between_tracin_and_the_influence_function():
    tasks, target = shared_inputs()
    model = linear(ridge(tasks, np.ones(3), 0.0, "task", True))
    problem, settings = Problem(model, tasks, target, loss="squared"), {"segments": [[model]], "weighting": "task"}
    long = source_scores(problem, steps=[10**7], learning_rates=[0.1], **settings)
    newton = influence_scores(problem, damping=0.0, weighting="task")
    np.testing.assert_allclose(long.coef_, newton.coef_, rtol=1e-6)
    short = source_scores(problem, steps=[1], learning_rates=[1e-8], **settings)
    traced = tracin_scores(problem, learning_rates=[1e-8], normalized=True, weighting="task")
    np.testing.assert_allclose(short.coef_, traced.coef_, rtol=1e-6)


def test_source_averages_gradients_and_curvature_over_a_segment():
    model, tasks, targets = classes()
    settings = {"learning_rates": [0.1], "steps": [10]}
    once = source_scores(Problem(model, tasks, targets), segments=[[model]], **settings)
    twice = source_scores(Problem(model, tasks, targets), segments=[[model, model.state_dict()]], **settings)
    np.testing.assert_allclose(twice.coef_, once.coef_, rtol=1e-5)


def test_source_with_the_curvature_of_some_examples():
    model, tasks, targets = classes()
    alike = {name: (x[:1].expand(5, -1), y[:1].expand(5)) for name, (x, y) in tasks.items()}
    settings = {"segments": [[model]], "learning_rates": [0.1], "steps": [20]}
    whole, found = (source_scores(Problem(model, alike, targets), examples=n, **settings).coef_ for n in (None, 2))
    np.testing.assert_allclose(found, whole, rtol=1e-4, atol=1e-7)
    few = source_scores(Problem(model, tasks, targets), examples=2, **settings).coef_
    assert not np.allclose(few, source_scores(Problem(model, tasks, targets), **settings).coef_, rtol=1e-3)


def test_source_is_the_same_forwards_and_backwards():
    """Many queries are carried as few tasks, forwards; a query at a time goes backwards."""
    model, tasks, targets = classes()
    settings = {"segments": [[perceptron()], [model]], "learning_rates": [0.1, 0.05], "steps": [10, 20]}
    together = source_scores(Problem(model, tasks, targets, per_query=True), **settings).coef_
    assert together.shape[1] > 2 * len(tasks)
    x, y = targets["x"]
    single = [
        source_scores(Problem(model, tasks, (x[i : i + 1], y[i : i + 1])), **settings).coef_[:, 0] for i in range(5)
    ]
    np.testing.assert_allclose(together[:, :5], np.transpose(single), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"segments": []}, "The 'segments' of SOURCE must be lists of checkpoints, none of them empty"),
        ({"segments": [[]]}, "The 'segments' of SOURCE must be lists of checkpoints, none of them empty"),
        ({"learning_rates": None}, r"learning rate for each segment, 1 in all: give learning_rates\. Got 0 rates"),
        ({"steps": [1, 2]}, r"The 'steps' of SOURCE must be a whole number above 0 for each segment\. Got \[1, 2\]"),
        ({"steps": [0]}, "The 'steps' of SOURCE must be a whole number above 0"),
        ({"steps": [1.5]}, "The 'steps' of SOURCE must be a whole number above 0"),
    ],
)
def test_source_without_what_it_needs(setting, message):
    model, tasks, targets = classes()
    given = {"segments": [[model]], "learning_rates": [0.1], "steps": [5], **setting}
    with pytest.raises(InputError, match=message):
        source_scores(Problem(model, tasks, targets), **given)


def test_source_along_negative_curvature_is_stopped():
    model, tasks, targets = classes()
    with pytest.raises(InputError, match=r"SOURCE diverged .* use curvature='gauss_newton'"):
        source_scores(
            Problem(model, tasks, targets),
            segments=[[model]],
            learning_rates=[1e4],
            steps=[10**6],
            curvature="hessian",
        )


# ---- BIF --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_bif_is_the_covariance_of_losses_under_a_gaussian_posterior(normalized, seed):
    tasks, target = regression(d=3)
    w = ridge(tasks, np.ones(4), 0.0, "task", True)
    beta, damping, epsilon = 24.0, 0.2, 0.02  # a step long enough for plain SGLD to be off by several std
    pieces = [(X.T @ X / len(y), X.T @ (X @ w - y) / len(y)) for X, y in (*tasks.values(), target)]
    H = sum(hessian for hessian, _ in pieces[:-1]) / 4
    A = beta * (H + damping * np.eye(3))
    S = np.linalg.inv(A)

    def covariance(a, b):
        return a[1] @ S @ b[1] + 0.5 * np.trace(a[0] @ S @ b[0] @ S)

    each = np.array([covariance(pieces[-1], piece) for piece in pieces[:-1]])
    expected = -beta / 4 * (each - each.mean() if normalized else each)
    sampler = Langevin(beta=beta, damping=damping, chains=300, draws=60, thin=5, step_size=epsilon)
    problem = Problem(linear(w), tasks, target, loss="squared")
    found = bif_scores(problem, sampler=sampler, normalized=normalized, weighting="task", seed=seed)
    assert (np.abs(found.coef_[:, 0] - expected) < 3 * found.coef_std_[:, 0]).all()
    assert (found.coef_std_[:, 0] < 0.1 * np.abs(expected).max()).all()
    assert found.diagnostics["r_hat"] < 1.05
    assert 300 < found.diagnostics["effective_draws"] <= 300 * 60 * 5


def test_bif_of_a_cold_posterior_is_the_damped_influence_function():
    tasks, target = regression(d=3)
    model = linear(ridge(tasks, np.ones(4), 0.0, "task", True))
    problem = Problem(model, tasks, target, loss="squared")
    newton = influence_scores(problem, damping=0.2, weighting="task")
    found = bif_scores(problem, sampler=Langevin(beta=1e6, damping=0.2, chains=300, draws=60), weighting="task")
    assert (np.abs(found.coef_ - newton.coef_) < 4 * found.coef_std_ + 0.05 * np.abs(newton.coef_)).all()


def test_bif_with_batches():
    model, tasks, targets = classes()
    whole = bif(model, tasks, targets).coef_
    found = bif(model, tasks, targets, batch_size=8).coef_
    assert not np.array_equal(found, whole)
    assert np.corrcoef(found.ravel(), whole.ravel())[0, 1] > 0.8
    np.testing.assert_array_equal(bif(model, tasks, targets, batch_size=1000).coef_, whole)


@pytest.mark.slow
def test_chains_one_after_the_other_are_those_side_by_side():
    together, alone = (bif(*classes(), batched=batched).coef_ for batched in (True, False))
    np.testing.assert_allclose(alone, together, rtol=1e-3, atol=1e-5)


def test_sgld_that_diverges_is_named_with_what_to_change():
    tasks, target = regression(d=3)
    model = linear(np.zeros(3))
    for step_size in (1.0, 1e6):
        with pytest.raises(InputError, match=r"SGLD diverged at step \d+: lower step_size \(.*\), or raise damping"):
            bif_scores(Problem(model, tasks, target, loss="squared"), sampler=Langevin(step_size=step_size, draws=40))


def test_chains_that_have_not_mixed_are_warned_of():
    model, tasks, targets = classes()
    with pytest.warns(
        DataWarning, match=r"have not mixed \(R-hat .* effective draws .* raise draws \(10\) or thin \(1\)"
    ):
        bif_scores(Problem(model, tasks, targets), sampler=Langevin(draws=10, thin=1, burn_in=0, damping=1e-4))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"chains": 1}, "The 'chains' of BIF must be 2 or more. Got 1."),
        ({"draws": 3}, "The 'draws' of BIF must be 4 or more. Got 3."),
        ({"thin": 0}, "The 'thin' of BIF must be 1 or more. Got 0."),
        ({"damping": 0.0}, "The 'damping' of BIF must be a finite number above 0. Got 0.0."),
        ({"step_size": float("inf")}, "The 'step_size' of BIF must be a finite number above 0. Got inf."),
    ],
)
def test_bad_settings_of_bif(setting, message):
    with pytest.raises(InputError, match=message):
        Langevin(**setting)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_effective_draws_of_autoregressive_chains(rho):
    rng = np.random.default_rng(0)
    chains = np.zeros((8, 4000, 2))
    noise = rng.normal(size=chains.shape)
    chains[:, 0] = noise[:, 0] / math.sqrt(1 - rho**2)
    for t in range(1, chains.shape[1]):
        chains[:, t] = rho * chains[:, t - 1] + noise[:, t]
    expected = 8 * 4000 * (1 - rho) / (1 + rho)
    np.testing.assert_allclose(effective_draws(chains), expected, rtol=0.15)
    np.testing.assert_allclose(r_hat(chains), 1.0, atol=0.02)


def test_chains_that_drift_or_disagree():
    rng = np.random.default_rng(0)
    drifting = rng.normal(size=(4, 500, 1)) + np.linspace(0, 5, 500)[None, :, None]
    apart = rng.normal(size=(4, 500, 1)) + np.arange(4)[:, None, None]
    assert r_hat(drifting)[0] > 1.4
    assert r_hat(apart)[0] > 1.3
    assert effective_draws(apart)[0] < 20
    assert r_hat(np.ones((4, 10, 1)))[0] == 1
    assert effective_draws(np.ones((4, 10, 1)))[0] == 40
