"""Scores of a joint run as an outcome function: its truths, its points, what it refuses, and the memory it takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import whence
from torch_models import Attention, perceptron
from whence import DataWarning, InputError, JointScores, Problem, Recipe, Retrain
from whence.baselines import Exact, influence_scores, joint
from whence.baselines.joint import KINDS
from whence.baselines.scores import Scores
from whence.estimators import trajectory
from whence.models.examples import Examples
from whence.models.training import train

RECIPE = Recipe(steps=20, lr=0.02, batch_size=8)
every_kind = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bif"])


def classes(n=12, K=4, seed=0, **settings):
    generator = torch.Generator().manual_seed(seed)

    def group(k):
        inputs = torch.randn(n, 4, generator=generator) + 0.5 * k
        return inputs, (inputs[:, 0] > 0.5 * k).long() + (inputs[:, 1] > 1).long()

    torch.manual_seed(seed)
    settings = {"per_query": True, **settings}
    return Problem(perceptron(), {f"t{k}": group(k) for k in range(K)}, {"x": group(0), "y": group(1)}, **settings)


# ---- truths --------------------------------------------------------------------------------------------------


def test_scores_lead_to_the_minimum_of_every_subset_where_tasks_share_their_inputs():
    """Least squares on the same inputs, one task twice as large: the way to W(s) is exact, and F is linearised."""
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(10, 3)), rng.normal(size=(3, 10))
    sizes = (1, 2, 1)
    own = {f"t{k}": (np.tile(X, (n, 1)), np.tile(labels[k], n)) for k, n in enumerate(sizes)}
    goal, value = rng.normal(size=(4, 3)), rng.normal(size=4)

    def solved(row):
        kept = [pair for pair, keep in zip(own.values(), row, strict=True) if keep]
        inputs, values = (np.concatenate(part) for part in zip(*kept, strict=True))
        return np.linalg.lstsq(inputs, values, rcond=None)[0]

    start = solved([1, 1, 1])
    rows = [row for row in np.ndindex(2, 2, 2) if any(row)]
    slope = (goal @ start - value) @ goal / len(goal)
    expected = [np.mean((goal @ start - value) ** 2) / 2 + slope @ (solved(row) - start) for row in rows]

    model = nn.Linear(3, 1, bias=False).double()
    model.weight.data = torch.tensor(start[None])
    given = {name: (torch.tensor(x), torch.tensor(y)) for name, (x, y) in own.items()}
    problem = Problem(model, given, (torch.tensor(goal), torch.tensor(value)), loss="squared")
    found = JointScores(problem, RECIPE, at=1.0, checkpoints=[model], solver=Exact(), damping=0.0)
    np.testing.assert_allclose(found.batch(rows)["loss"], expected, rtol=1e-9)
    assert found(["t0", "t2"])["loss"] == pytest.approx(expected[rows.index((1, 0, 1))])


def test_scores_are_those_of_the_baseline_at_the_point_of_the_run():
    problem = classes()
    solver = {"solver": Exact(), "curvature": "gauss_newton", "damping": 0.1}
    found = JointScores(problem, RECIPE, at=0.5, seed=3, **solver)
    model = perceptron()
    model.load_state_dict({name: value[0] for name, value in halfway(problem, 10, 3).items()})
    there = Problem(model, problem.tasks, problem.targets, per_query=True)
    expected = influence_scores(there, **solver)
    np.testing.assert_allclose(found.scores.coef_, expected.coef_, rtol=1e-4, atol=1e-6)


def halfway(problem, steps, seed):
    from whence.models.stack import Stack

    stack = Stack(problem, batched=False)
    return train(stack, RECIPE, stack.start(1), np.ones((1, len(problem.task_names))), np.array([seed]), steps)


@every_kind
def test_fused_with_few_true_runs_it_is_no_worse_than_either(kind):
    problem = classes(n=30, K=6)
    recipe = Recipe(steps=30, lr=0.02, batch_size=None)
    rows = whence.FixedSize(3).draw(6, 20, seed=0)
    values = Retrain(problem, recipe).batch(rows, np.zeros(20, int))
    names = [f"{name}[{q}]" for name, part in values.items() for q in range(part.shape[1])]
    table = whence.Outcomes(rows, np.concatenate(list(values.values()), axis=1), problem.task_names, names)
    scores = JointScores(problem, recipe, kind)
    few, others = table.rows(np.arange(20) < 5), table.rows(np.arange(20) >= 5)
    fused = whence.lds(whence.fit(few, estimates={kind: scores}), others).mean
    alone = whence.lds(np.concatenate(list(scores.batch(others.subsets).values()), axis=1), others).mean
    assert alone > 0.4
    assert fused > alone - 0.03
    assert "correlate" in str(scores.check(table))


# ---- points, runs, examples ------------------------------------------------------------------------------------


def test_a_joint_run_shows_how_far_it_is_to_who_waits(monkeypatch):
    shown = []

    def track(items, what):
        for item in items:
            yield shown.append((what, item, len(items)))

    monkeypatch.setattr(trajectory, "track", track)
    trajectory.passed(classes(), RECIPE, [5, 10])
    trajectory.trace(classes(), RECIPE, n_points=2)
    runs = [(item, n) for what, item, n in shown if what == "Training on all tasks"]
    assert runs == [(step, 11) for step in range(11)] + [(step, 21) for step in range(21)]


def test_two_kinds_of_scores_take_one_run(monkeypatch):
    problem, runs = classes(), []
    monkeypatch.setattr(trajectory, "train", lambda *given, **named: runs.append(1) or train(*given, **named))
    first = JointScores(problem, RECIPE, damping=0.1, seed=3)
    both = [first, first.by("trak", l2=2.0)]
    found = [scores.scores.coef_ for scores in both]
    assert len(runs) == 1
    np.testing.assert_array_equal(found[1], JointScores(problem, RECIPE, "trak", l2=2.0, seed=3).scores.coef_)
    assert not np.allclose(found[0], found[1])


def counted_runs(monkeypatch):
    """The number of steps of every joint run from now on."""
    steps = []
    monkeypatch.setattr(trajectory, "train", lambda *given, **named: steps.append(given[5]) or train(*given, **named))
    return steps


def test_scores_at_other_points_share_a_run_that_goes_as_far_as_any_needs(monkeypatch):
    problem, steps, four = classes(), counted_runs(monkeypatch), (0.25, 0.5, 0.75, 1.0)
    first = JointScores(problem, RECIPE, damping=0.1, seed=3)
    second = first.by("trak", at=four, l2=2.0)
    third = JointScores(problem, RECIPE, "tracin", run=first.run, seed=3)
    found = [scores.scores.coef_ for scores in (first, second, third)]
    assert steps == [20]
    alone = [
        JointScores(problem, RECIPE, damping=0.1, seed=3),
        JointScores(problem, RECIPE, "trak", at=four, l2=2.0, seed=3),
        JointScores(problem, RECIPE, "tracin", seed=3),
    ]
    for shared, own in zip(found, alone, strict=True):
        np.testing.assert_array_equal(shared, own.scores.coef_)
    assert steps == [20, 10, 20, 20]
    with pytest.raises(InputError, match="joint run is of another problem or recipe"):
        JointScores(classes(seed=1), RECIPE, run=first.run)
    with pytest.raises(InputError, match="joint run is of another problem or recipe"):
        JointScores(problem, Recipe(steps=20, lr=0.1, batch_size=8), run=first.run)


def test_a_folder_keeps_the_joint_run(monkeypatch, tmp_path):
    problem, steps = classes(), counted_runs(monkeypatch)
    expected = JointScores(problem, RECIPE, damping=0.1).scores.coef_
    found = [
        JointScores(classes(metrics=["loss", "accuracy"]), RECIPE, damping=0.1, run=tmp_path / "run").scores.coef_
        for _ in range(2)
    ]
    assert steps == [10, 10]  # of the first of these the second takes over
    for coef in found:
        np.testing.assert_array_equal(coef, expected)
    _ = JointScores(problem, RECIPE, "trak", at=0.25, run=tmp_path / "run").scores  # a point that it passed
    assert len(steps) == 2
    _ = JointScores(problem, RECIPE, "trak", at=1.0, run=tmp_path / "run").scores  # farther than it went
    _ = JointScores(problem, RECIPE, damping=0.1, run=tmp_path / "run", seed=1).scores  # and of another seed
    assert steps[2:] == [20, 10]
    _ = JointScores(problem, RECIPE, "tracin", at=(0.25, 0.5, 1.0), run=tmp_path / "run").scores
    assert len(steps) == 4


def test_points_that_a_run_passed_before_it_was_stopped_are_kept(monkeypatch, tmp_path):
    problem = classes()

    def stopped(*given, watch, **named):
        def until(step, *state):
            watch(step, *state)
            if step == 12:
                raise KeyboardInterrupt

        return train(*given, watch=until, **named)

    with monkeypatch.context() as patch:
        patch.setattr(trajectory, "train", stopped)
        with pytest.raises(KeyboardInterrupt):
            _ = JointScores(problem, RECIPE, "trak", at=(0.25, 0.5, 1.0), run=tmp_path).scores
    steps = counted_runs(monkeypatch)
    halfway_ = JointScores(problem, RECIPE, "trak", run=tmp_path).scores.coef_
    assert steps == []
    np.testing.assert_array_equal(halfway_, JointScores(problem, RECIPE, "trak").scores.coef_)


def fewer_tasks(problem):
    """All tasks but the last."""
    kept = problem.tasks.owner < len(problem.task_names) - 1
    return Examples(*problem.tasks.rows(kept), problem.tasks.owner[kept], problem.task_names[:-1])


def test_a_joint_run_of_something_else_is_refused(tmp_path):
    problem = classes()
    _ = JointScores(problem, RECIPE, run=tmp_path / "run").scores
    other = classes(seed=1)
    for given, recipe, what in (
        (other, RECIPE, "examples of t0"),
        (Problem(perceptron(), problem.tasks, problem.targets), RECIPE, "start"),
        (problem, Recipe(steps=20, lr=0.1, batch_size=8), "recipe"),
        (problem.with_examples(fewer_tasks(problem), problem.targets), RECIPE, "trained with all tasks.* t3"),
    ):
        with pytest.raises(InputError, match=rf"joint-run points in .*{what}"):
            _ = JointScores(given, recipe, run=tmp_path / "run").scores
    file = next((tmp_path / "run").glob("*after_10*"))
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(InputError, match=r"joint-run point in .* was altered: .* delete it"):
        _ = JointScores(problem, RECIPE, run=tmp_path / "run").scores


def test_the_curvature_is_that_of_some_examples_and_gradients_are_of_all(monkeypatch):
    problem = classes()
    solver = {"solver": Exact(), "curvature": "gauss_newton", "damping": 0.1}
    monkeypatch.setattr(joint, "CURVED", 20)
    found = JointScores(problem, RECIPE, at=1.0, checkpoints=[problem.start], **solver).scores.coef_
    expected = [influence_scores(problem, examples=few, **solver).coef_ for few in (5, None)]
    np.testing.assert_allclose(found, expected[0], rtol=1e-6)
    assert not np.allclose(found, expected[1])


def averaged(each):
    """Scores in units of their own size, weighted by the first singular vector, at the geometric mean of the sizes."""
    flat = np.stack([(scores - scores.mean(0)).ravel() for scores in each])
    sizes = np.sqrt((flat**2).mean(1))
    weights = np.abs(np.linalg.svd(flat / sizes[:, None], full_matrices=False)[0][:, 0])
    return sum(w * scores / size for w, scores, size in zip(weights, each, sizes, strict=True)) * (
        np.prod(sizes) ** (1 / len(each)) / weights.sum()
    )


def test_points_and_runs_are_averaged():
    problem, four = classes(), (0.25, 0.5, 0.75, 1.0)
    along = JointScores(problem, RECIPE, at=four, damping=0.1)
    each = [JointScores(problem, RECIPE, at=at, damping=0.1) for at in four]
    np.testing.assert_allclose(along.scores.coef_, averaged([one.scores.coef_ for one in each]), rtol=1e-4, atol=1e-6)
    everything = np.ones((1, len(problem.task_names)))
    level = np.mean([one.batch(everything)["x/loss"] for one in each], axis=0)
    np.testing.assert_allclose(along.batch(everything)["x/loss"], level, rtol=1e-6)
    both = JointScores(problem, RECIPE, runs=2, seed=4, damping=0.1).scores.coef_
    each = [JointScores(problem, RECIPE, seed=seed, damping=0.1).scores.coef_ for seed in (4, 5)]
    np.testing.assert_allclose(both, averaged(each), rtol=1e-4, atol=1e-6)


def test_points_that_tell_nothing_do_not_spoil_the_mean():
    rng = np.random.default_rng(0)
    good, noise, names = rng.normal(size=(6, 8)), 100 * rng.normal(size=(6, 8)), tuple("abcdef")

    def scores(coef):
        made = Scores.from_coefficients(coef, np.zeros(8))
        made.task_names = names
        return made

    nothing = np.broadcast_to(rng.normal(size=8), (6, 8))
    found = joint.mean_scores([scores(coef) for coef in (good, 5 * good, good / 5, noise, nothing)]).coef_
    assert np.corrcoef(found.ravel(), good.ravel())[0, 1] > 0.98
    assert np.corrcoef(np.mean([good, 5 * good, good / 5, noise], axis=0).ravel(), good.ravel())[0, 1] < 0.3
    np.testing.assert_array_equal(joint.mean_scores([scores(nothing), scores(nothing)]).coef_, nothing)


@every_kind
def test_a_sample_of_the_examples_will_do(kind):
    problem = classes()
    whole, all_, some = (JointScores(problem, RECIPE, kind, examples=n).scores.coef_ for n in (None, 12, 6))
    np.testing.assert_allclose(all_, whole, rtol=2e-3, atol=1e-3 * np.abs(whole).max())
    assert np.abs(some - whole).max() > 1e-3 * np.abs(whole).max()
    assert np.corrcoef(some.ravel(), whole.ravel())[0, 1] > 0.3


def test_a_target_whose_loss_is_flat_leaves_the_others_alone():
    problem = classes(per_query=False)

    class Saturated(nn.Module):
        def __init__(self):
            super().__init__()
            self.own = perceptron()

        def forward(self, x):
            flat = x[:, :1] > 90
            return torch.where(flat, torch.tensor([40.0, 0.0, 0.0]), self.own(x))

    torch.manual_seed(0)
    groups = {name: problem.tasks.rows(problem.tasks.owner == k) for k, name in enumerate(problem.task_names)}
    targets = {"x": groups["t0"], "flat": (torch.full((3, 4), 99.0), torch.zeros(3, dtype=torch.long))}
    scores = JointScores(Problem(Saturated(), groups, targets), RECIPE)
    rows = whence.FixedSize(2).draw(4, 6, seed=0)
    found = scores.batch(rows)
    assert np.ptp(found["flat/loss"]) == 0
    runs = whence.Outcomes(rows, np.column_stack([found["x/loss"], found["flat/loss"]]), list(groups), list(found))
    with pytest.warns(DataWarning, match="the same for all subsets, so that they say nothing of: flat/loss"):
        model = whence.fit(runs, estimates=scores)
    assert np.isfinite(model.predict(rows)).all()


# ---- what is refused ---------------------------------------------------------------------------------------------


def test_a_run_that_diverges_is_told_and_an_earlier_point_taken():
    with pytest.warns(DataWarning, match="has diverged after 40 of 40 steps"):
        found = JointScores(classes(), Falling(steps=40, lr=0.02, batch_size=8), at=1.0).scores
    assert np.isfinite(found.coef_).all()


class Falling(Recipe):
    """A rate that explodes after three quarters of the run."""

    def rate(self, step):
        return self.lr if step < 0.8 * self.steps else 1e30


def test_a_run_that_learns_nothing_has_no_scores():
    with pytest.raises(InputError, match="has learned nothing after 10 of 20 steps"):
        _ = JointScores(classes(), Recipe(steps=20, lr=1e-9)).scores


def test_the_folder_of_a_run_that_learned_nothing_is_free_for_another_recipe(tmp_path):
    with pytest.raises(InputError, match="has learned nothing"):
        _ = JointScores(classes(), Recipe(steps=20, lr=1e-9), run=tmp_path / "run").scores
    assert not (tmp_path / "run").exists()
    recipe = Recipe(steps=20, lr=0.05, batch_size=8)
    found = JointScores(classes(), recipe, run=tmp_path / "run").scores
    np.testing.assert_allclose(found.coef_, JointScores(classes(), recipe).scores.coef_, rtol=1e-5)


def test_a_run_without_scores_is_not_made_again_for_every_subset(monkeypatch):
    scores, runs = JointScores(classes(), Recipe(steps=20, lr=1e-9)), []
    monkeypatch.setattr(trajectory, "train", lambda *args, **options: runs.append(1) or train(*args, **options))
    with pytest.warns(DataWarning, match="6 of 6"):
        whence.measure(scores, whence.FixedSize(2), n=6, progress=False, keep_going=True)
    assert len(runs) == 2  # to the halfway point, and on to look for a better one


def test_a_checkpoint_of_another_run_is_doubted():
    """It has learned the opposite of these tasks."""
    problem = classes()
    flipped = Examples(problem.tasks.inputs, 2 - problem.tasks.labels, problem.tasks.owner, problem.tasks.names)
    other = problem.with_examples(flipped, problem.targets)
    state = {name: value[0] for name, value in halfway(other, 20, 0).items()}
    with pytest.warns(DataWarning, match="after 20 steps is worse on the tasks than the model itself"):
        _ = JointScores(problem, RECIPE, at=1.0, checkpoints=[state]).scores


def test_scores_of_another_model_or_of_other_tasks_are_refused():
    problem = classes()
    with pytest.raises(InputError, match="of the checkpoint must have shape"):
        _ = JointScores(problem, RECIPE, checkpoints=[perceptron(width=5)]).scores
    with pytest.raises(InputError, match="a checkpoint for each share of the run, 2 in all"):
        JointScores(problem, RECIPE, at=(0.5, 1.0), checkpoints=[perceptron()])
    rows = whence.FixedSize(2).draw(4, 5, seed=0)
    other = whence.Outcomes(rows, np.zeros((5, 2)), ["t3", "t1", "t2", "law"], ["x/loss", "y/loss"])
    with pytest.raises(InputError, match=r"must have the same tasks\. They differ in: law, t0"):
        whence.fit(other, estimates=JointScores(classes(per_query=False), RECIPE))


@pytest.mark.parametrize("kept", [True, False])
def test_estimates_of_another_model_or_of_other_examples_are_told_where_they_are_fused(kept, tmp_path):
    problem, other = classes(), classes(seed=1)
    folder = {"path": tmp_path / "run"} if kept else {}
    runs = whence.measure(Retrain(problem, RECIPE), whence.FixedSize(2), n=4, progress=False, **folder)
    whence.fit(runs, estimates=JointScores(problem, RECIPE))
    with pytest.warns(DataWarning, match=r"not of what the runs were trained with\. These differ: examples, targets"):
        whence.fit(runs, estimates=JointScores(problem.with_examples(other.tasks, other.targets), RECIPE))
    if kept:
        runs = whence.read_outcomes(tmp_path / "run")
    torch.manual_seed(1)
    model = Problem(perceptron(), problem.tasks, problem.targets, per_query=True)
    with pytest.warns(DataWarning, match="These differ: model"):
        whence.fit(runs, estimates={"halfway": JointScores(model, RECIPE)})


def test_tasks_in_another_order_are_told_apart_by_their_names():
    rows = whence.FixedSize(2).draw(4, 5, seed=0)
    scores = JointScores(classes(per_query=False), RECIPE, damping=0.1)
    values = np.column_stack(list(scores.batch(rows).values()))
    order = [3, 1, 2, 0]
    names = [scores.task_names[k] for k in order]
    runs = whence.Outcomes(rows[:, order], values, names, list(scores.batch(rows)))
    others = whence.FixedSize(2).draw(4, 6, seed=1)
    expected = np.column_stack(list(scores.batch(others).values()))
    predicted = whence.fit(runs, estimates=scores).predict(others[:, order])
    assert np.corrcoef(predicted[:, 0], expected[:, 0])[0, 1] > 0.95


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"method": "influenze"}, "There are no scores 'influenze'. Did you mean 'influence'?"),
        ({"at": 0.0}, "must be above 0 and at most 1. Got 0.0 instead"),
        ({"at": "half"}, "must be above 0 and at most 1. Got 'half' instead"),
        ({"runs": 0}, "must be 1 or more. Got 0 instead"),
        ({"examples": 0}, "must be 1 or more. Got 0 instead"),
    ],
)
def test_bad_settings_are_one_sentence(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        JointScores(classes(), RECIPE, **settings)
    with pytest.raises(InputError, match="Scores are of the loss"):
        JointScores(classes(metrics="accuracy"), RECIPE)


# ---- memory ------------------------------------------------------------------------------------------------------


def attention(precision=torch.float32, tokens=40):
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = Attention(tokens=7, width=8, outputs=tokens).to(precision)
    groups = {
        f"t{k}": (torch.randint(1, 7, (16, 5), generator=generator), torch.randint(tokens, (16,), generator=generator))
        for k in range(3)
    }
    return Problem(model, groups, groups["t0"], per_query=True)


@pytest.mark.parametrize("kind", ["influence", "tracin", "source"])
def test_passes_are_as_large_as_memory_allows_and_give_the_same(kind, monkeypatch):
    problem = attention()
    options = {"checkpoints": [problem.start], "at": 1.0, "seed": 1}
    whole = JointScores(problem, RECIPE, kind, **options).scores.coef_
    largest = 0
    forward = Attention.forward

    def noted(self, x):
        nonlocal largest
        largest = max(largest, len(x))
        return forward(self, x)

    few = 4 * problem.bytes_per_row
    for module in ("gradients.groups", "baselines.curvature", "models.stack"):
        monkeypatch.setattr(f"whence.{module}.free_bytes", lambda device: 5 * few)
    monkeypatch.setattr(Attention, "forward", noted)
    found = JointScores(problem, RECIPE, kind, **options).scores.coef_
    assert largest <= 20
    np.testing.assert_allclose(found, whole, rtol=0.05, atol=0.02 * np.abs(whole).max())


@pytest.mark.parametrize("kind", ["influence", "trak", "tracin"])
def test_half_precision_gives_nearly_the_same(kind):
    single = JointScores(attention(), RECIPE, kind).scores.coef_
    half = JointScores(attention(torch.bfloat16), RECIPE, kind).scores.coef_
    assert np.isfinite(half).all()
    assert np.corrcoef(half.ravel(), single.ravel())[0, 1] > 0.8
