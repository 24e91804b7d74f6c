import warnings

import numpy as np
import pytest
import torch
from torch import nn

import whence
from whence.errors import DataWarning, InputError
from whence.models.callables import OwnMetric, as_loss
from whence.models.losses import LOSSES, loss_named
from whence.models.metrics import accuracy, margin, metrics_named


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


IGNORE = torch.tensor([[0, 2, -100], [1, 1, 0], [-100, 2, -100], [2, 0, 1]])
LABELS = {
    "cross_entropy": torch.tensor([0, 2, 1, 2]),
    "logistic": torch.tensor([0, 1, 1, 0]),
    "squared": normal(4, 3),
}
MANY = torch.tensor([[0, 1, 1], [1, 0, 0], [1, 1, 1], [0, 0, 0]])
WEIGHTS = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)


def cubic(outputs, labels):
    """A loss of one's own, of single examples or of a batch."""
    return (outputs - labels).abs().pow(3).mean()


CASES = {  # loss, shape of an output, labels
    "cross_entropy": ("cross_entropy", (3,), LABELS["cross_entropy"]),
    "logistic": ("logistic", (1,), LABELS["logistic"]),
    "squared": ("squared", (3,), LABELS["squared"]),
    "several labels": ("logistic", (3,), MANY),
    "sequences": ("cross_entropy", (3, 4), IGNORE),
    "next tokens": ("next_token", (3, 4), IGNORE),
    "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.2), (3,), LABELS["cross_entropy"]),
    "smoothed sequences": (nn.CrossEntropyLoss(label_smoothing=0.2, ignore_index=0), (3, 4), IGNORE.clamp_min(0)),
    "weighted classes": (nn.CrossEntropyLoss(weight=WEIGHTS), (3,), LABELS["cross_entropy"]),
    "weighted sequences": (nn.CrossEntropyLoss(weight=WEIGHTS), (3, 3), IGNORE),
    "probabilities": (nn.CrossEntropyLoss(), (3,), normal(4, 3).softmax(-1)),
    "classes second": (nn.CrossEntropyLoss(), (3, 2, 2), torch.tensor([[[0, 1], [2, -100]]] * 4)),
    "mse": (nn.MSELoss(), (3,), LABELS["squared"]),
    "mse, a number each": (nn.MSELoss(), (), normal(4)),
    "mse, a column": (nn.MSELoss(), (1,), normal(4)),
    "bce": (nn.BCEWithLogitsLoss(), (3,), MANY),
    "weighted bce": (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), (3,), MANY.double()),
    "huber, summed": (nn.HuberLoss(reduction="sum"), (3,), LABELS["squared"]),
    "functional": (nn.functional.mse_loss, (2, 2), normal(4, 2, 2)),
    "own": (cubic, (3,), LABELS["squared"]),
}


@pytest.fixture(params=CASES)
def case(request):
    given, shape, labels = CASES[request.param]
    outputs = normal(2, 4, int(np.prod(shape)), seed=1)
    loss = as_loss(given, shape, labels)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The loss CrossEntropyLoss of a batch")  # of weighted classes; see below
        loss.check(outputs[0].reshape(4, *shape) if shape else outputs[0], labels, "tasks")
    return loss, outputs, labels


def by_torch(given, outputs, labels):
    """Loss of one example, (1, ...), by torch itself."""
    if isinstance(given, str):
        if given == "next_token":
            outputs, labels = outputs[:, :-1], labels[:, 1:]
        if given == "logistic":
            return nn.functional.binary_cross_entropy_with_logits(outputs, labels.to(outputs).reshape(outputs.shape))
        if given == "squared":
            return (outputs - labels).square().sum() / 2
        given = nn.CrossEntropyLoss()
    if isinstance(given, nn.CrossEntropyLoss):
        outputs = outputs.mT if outputs.ndim == 3 else outputs  # classes last, but for images
        if given.weight is not None:
            counts = labels != given.ignore_index
            weights = torch.where(counts, given.weight[labels.clamp_min(0)], 0.0)
            plain = nn.functional.cross_entropy(outputs, labels, reduction="none", ignore_index=given.ignore_index)
            return (weights * plain).sum() / counts.sum()
        return given(outputs, labels)
    return given(outputs, labels.to(outputs).reshape(outputs.shape))


@pytest.mark.parametrize("name", CASES)
def test_each_example_has_the_loss_that_torch_gives_it_alone(name):
    given, shape, labels = CASES[name]
    outputs = normal(2, 4, int(np.prod(shape)), seed=1)
    found = as_loss(given, shape, labels)(outputs, labels)
    formed = outputs.reshape(2, 4, *shape)
    expected = [[by_torch(given, row[i : i + 1], labels[i : i + 1]) for i in range(4)] for row in formed]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_values_are_those_of_torch():
    outputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
    labels = LABELS["cross_entropy"]
    expected = torch.nn.functional.cross_entropy(outputs, labels, reduction="none")
    torch.testing.assert_close(LOSSES["cross_entropy"](outputs, labels), expected)
    labels = LABELS["logistic"]
    expected = torch.nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], labels.float(), reduction="none")
    torch.testing.assert_close(LOSSES["logistic"](outputs[:, :1], labels), expected)
    expected = torch.nn.functional.mse_loss(outputs[:, 0], outputs[:, 1], reduction="none") / 2
    torch.testing.assert_close(LOSSES["squared"](outputs[:, :1], outputs[:, 1]), expected)


def test_slope_is_the_derivative(case):
    loss, outputs, labels = case
    outputs = outputs.requires_grad_()
    (expected,) = torch.autograd.grad(loss(outputs, labels).sum(), outputs)
    losses, slope = loss.with_slope(outputs.detach(), labels)
    torch.testing.assert_close(slope, expected)
    torch.testing.assert_close(losses, loss(outputs.detach(), labels))


def test_root_squares_to_the_hessian(case):
    loss, outputs, labels = case
    root = loss.root(outputs, labels)
    for b in range(outputs.shape[0]):
        for i in range(outputs.shape[1]):
            expected = torch.autograd.functional.hessian(
                lambda row, i=i: loss(row[None], labels[i : i + 1]).sum(), outputs[b, i]
            )
            torch.testing.assert_close(root[b, i] @ root[b, i].T, expected)


def test_metrics_by_their_definition():
    outputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(3))
    labels = LABELS["cross_entropy"]
    p = outputs.softmax(-1)[torch.arange(4), labels]
    torch.testing.assert_close(margin(outputs, labels), (p / (1 - p)).log())
    assert accuracy(outputs, labels).tolist() == [float(o.argmax() == y) for o, y in zip(outputs, labels, strict=True)]
    two = torch.tensor([[1.0], [-1.0]])
    assert margin(two, torch.tensor([0, 0])).tolist() == [-1.0, 1.0]
    assert accuracy(two, torch.tensor([0, 0])).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("name", "width", "labels", "text"),
    [
        ("cross_entropy", 3, torch.tensor([0, 3]), "must be from 0 to 2, one per output. Got 3"),
        ("cross_entropy", 3, torch.tensor([-1, 1]), "Got -1"),
        ("cross_entropy", 1, torch.tensor([0, 0]), "two or more outputs"),
        ("cross_entropy", 3, torch.tensor([0.0, 1.0]), "one integer per example"),
        ("logistic", 2, torch.tensor([0, 1]), "needs one output per label"),
        ("logistic", 1, torch.tensor([-1, 1]), "must be 0 or 1"),
        ("squared", 2, torch.tensor([0.0, 1.0]), "2 outputs and 1 labels"),
        ("squared", 1, torch.tensor([0.0, float("nan")]), "must be finite"),
    ],
)
def test_labels_that_do_not_fit_are_refused(name, width, labels, text):
    with pytest.raises(InputError, match=text):
        LOSSES[name].check(torch.zeros(2, width), labels, "tasks")


def test_names_that_do_not_exist_are_refused():
    with pytest.raises(InputError, match="Did you mean 'squared'"):
        loss_named("square")
    with pytest.raises(InputError, match=r"no loss 'MSE'. Did you mean 'squared'\?"):
        loss_named("MSE")
    with pytest.raises(InputError, match=r"no loss 'bce'. Did you mean nn.BCEWithLogitsLoss\(\)\?"):
        loss_named("bce")
    with pytest.raises(InputError, match="no metric 'acc'"):
        metrics_named("acc", LOSSES["logistic"])
    with pytest.raises(InputError, match="for classes"):
        metrics_named("accuracy", LOSSES["squared"])


# ---- losses and metrics of one's own, in problems ---------------------------------------------------------


def problem_with(loss, *, shape=(2,), labels=None, seed=0, **options):
    """A linear model with outputs of a shape, two tasks of 6 examples and a target of 5."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, int(np.prod(shape))), nn.Unflatten(1, shape) if shape else nn.Flatten(0))
    draw = labels or (lambda n, s: normal(n, *shape, seed=s).float())
    groups = [(normal(n, 3, seed=s).float(), draw(n, s)) for n, s in ((6, 1), (6, 2), (5, 3))]
    return whence.Problem(model, {"a": groups[0], "b": groups[1]}, groups[2], loss=loss, **options)


def classes(n, seed):
    return torch.randint(2, (n,), generator=torch.Generator().manual_seed(seed))


def tokens(n, seed):
    found = torch.randint(4, (n, 3), generator=torch.Generator().manual_seed(seed))
    found[::2, 0] = -100
    return found


def several(n, seed):
    return torch.randint(2, (n, 3), generator=torch.Generator().manual_seed(seed)).float()


def untrackable(outputs, labels):
    """What vmap cannot run: a number is looked at."""
    return ((outputs - labels) ** 2).mean() if float(outputs.detach().sum()) < 1e9 else outputs.mean()


KINDS = {
    "mse": (nn.MSELoss(), (2,), None),
    "a number each": (nn.MSELoss(), (), None),
    "bce": (nn.BCEWithLogitsLoss(), (3,), several),
    "several labels": ("logistic", (3,), several),
    "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), (2,), classes),
    "sequences": ("cross_entropy", (3, 4), tokens),
    "sequences of torch": (nn.CrossEntropyLoss(), (3, 4), tokens),
    "next tokens": ("next_token", (3, 4), tokens),
    "own": (cubic, (2,), None),
}


def penalised(problem, l2):
    """Mean loss where it is least with a penalty on the change of the parameters, by torch's own minimiser."""
    change = {name: torch.zeros_like(value, requires_grad=True) for name, value in problem.start.items()}
    optimizer = torch.optim.LBFGS(change.values(), max_iter=300, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss():
        state = {name: value + change[name] for name, value in problem.start.items()}
        return problem.losses(state, problem.tasks.inputs, problem.tasks.labels).mean()

    def closure():
        optimizer.zero_grad()
        value = loss() + l2 / 2 * sum(part.square().sum() for part in change.values())
        value.backward()
        return value

    optimizer.step(closure)
    return float(loss().detach())


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_takes_the_loss(kind):
    from whence.baselines import influence_scores, trak_scores

    loss, shape, labels = KINDS[kind]
    problem = problem_with(loss, shape=shape, labels=labels)
    recipe = whence.Recipe(steps=20, lr=0.02, batch_size=None)
    retrain = whence.Retrain(problem, recipe)
    everything, none = retrain.batch([[1, 1], [0, 0]], [0, 0])["loss"]
    alone = whence.Retrain(problem, recipe, batched=False)([1, 1], 0)["loss"]
    assert everything == pytest.approx(alone, rel=1e-4)
    # The model is linear in its parameters: GradEx is exact.
    own = problem.with_examples(problem.tasks, problem.tasks)
    gradex = whence.GradEx(own, l2=0.05, tol=1e-10).batch([[1, 1], [0, 0]])
    found = (gradex["a/loss"] + gradex["b/loss"]) / 2
    before = problem.losses(problem.start, problem.tasks.inputs, problem.tasks.labels).mean()
    assert found == pytest.approx([penalised(problem, 0.05), float(before)], rel=1e-3)
    assert whence.TaskVectors(problem, recipe).batch([[0, 0]])["loss"][0] == pytest.approx(none, rel=1e-4)
    for scores in (influence_scores, trak_scores):
        assert np.isfinite(scores(problem).coef_).all()


def test_a_loss_that_looks_at_numbers_is_run_one_at_a_time():
    with pytest.warns(DataWarning, match="one at a time"):
        retrain = whence.Retrain(problem_with(untrackable), whence.Recipe(steps=5, lr=0.02))
    found = retrain([1, 1], seed=0)["loss"]
    assert found == pytest.approx(
        whence.Retrain(problem_with(nn.MSELoss()), whence.Recipe(steps=5, lr=0.02))([1, 1], seed=0)["loss"], rel=1e-5
    )
    with pytest.raises(InputError, match="curvature of the loss untrackable cannot be derived"):
        whence.GradEx(problem_with(untrackable)).batch([[1, 1]])


@pytest.mark.parametrize(
    ("loss", "options", "text"),
    [
        (nn.TripletMarginLoss(), {}, r"loss TripletMarginLoss cannot be computed for the tasks .*missing 1 required"),
        (nn.CrossEntropyLoss(), {}, r"Labels of the tasks must be class numbers.* loss=nn.BCEWithLogitsLoss"),
        (nn.MSELoss, {}, r"Got a class: give MSELoss\(\)"),
        (nn.MSELoss(), {"labels": lambda n, s: normal(n, seed=s).float()}, r"outputs of shape \(1, 2\) and a label of"),
        (3, {}, r"must be the name of a loss or a function of \(outputs, labels\). Got 3"),
        (lambda o, y: (o.argmax(-1) == 0).float().mean(), {}, "does not depend on the outputs"),
        (lambda o, y: 1.0, {}, "returned float where a tensor"),
        ("next_token", {}, r"logits of shape \(n, L, V\)"),
        ("squared", {"metrics": "accuracy"}, "for classes"),
        ("squared", {"metrics": lambda o, y: o.mean()}, "needs one: give metrics="),
        ("squared", {"metrics": {"bad": lambda o, y: o.nope}}, "metric 'bad' cannot be computed .*nope"),
        ("squared", {"metrics": {"wide": lambda o, y: torch.zeros(7)}}, "number for each of 5 examples, or one"),
        ("squared", {"metrics": {"r": cubic}, "per_query": True}, "'r' is one number for many queries"),
        ("squared", {"metrics": {"r": cubic}, "maximize": ["s"]}, "no metric 's' to maximize"),
    ],
)
def test_what_cannot_be_a_loss_or_metric_is_refused_in_a_sentence(loss, options, text):
    with pytest.raises(InputError, match=text):
        problem_with(loss, **options)


def test_a_loss_of_whole_batches_is_warned_of():
    with pytest.warns(DataWarning, match="not the mean over its examples"):
        problem_with(lambda outputs, labels: (outputs - labels).square().mean().sqrt())


def test_weighted_classes_train_with_another_loss_than_torch_which_is_warned_of():
    labels = torch.tensor([0, 1, 0, 0, 0, 1])
    group, weight = (normal(6, 4).float(), labels), torch.tensor([1.0, 5.0])
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    with pytest.warns(DataWarning, match="divide the weights by their mean over your examples"):
        whence.Problem(model, {"a": group}, group, loss=nn.CrossEntropyLoss(weight=weight))
    balanced = nn.CrossEntropyLoss(weight=weight / weight[labels].mean())
    with pytest.warns(DataWarning, match="not the mean over its examples"):  # of the few that it is tried on
        problem = whence.Problem(model, {"a": group}, group, loss=balanced)
    outputs = model(group[0]).detach()
    torch.testing.assert_close(problem.loss(outputs, labels).mean(), balanced(outputs, labels))


def test_labels_that_are_the_tokens_themselves_are_refused():
    ids = torch.randint(4, (6, 3), generator=torch.Generator().manual_seed(0))
    model = nn.Embedding(4, 4)
    with pytest.raises(InputError, match="loss='next_token'"):
        whence.Problem(model, {"a": (ids, ids)}, (ids, ids))
    found = whence.Problem(model, {"a": (ids, ids)}, (ids, ids), loss="next_token", metrics=["loss", "accuracy"])
    logits = model.weight[ids][:, :-1].detach()
    expected = nn.functional.cross_entropy(logits.mT, ids[:, 1:])
    outcome = whence.Retrain(found, whence.Recipe(steps=1))([0], 0)
    assert outcome["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert outcome["accuracy"] == pytest.approx(float((logits.argmax(-1) == ids[:, 1:]).float().mean()))


def rmse(outputs, labels):
    return (outputs - labels).square().mean().sqrt()


def absolute(outputs, labels):
    return (outputs - labels).abs()  # (n, C)


def test_metrics_of_ones_own_are_of_each_query_or_of_all_together():
    problem = problem_with("squared", metrics=["loss", rmse, absolute], maximize=["absolute"])
    outputs = problem.output_fn(problem.start, problem.targets.inputs)
    for method in (
        whence.Retrain(problem, whence.Recipe(steps=1)),
        whence.TaskVectors(problem, whence.Recipe(steps=1)),
        whence.TaskVectors(problem, whence.Recipe(steps=1), merge="outputs"),
        whence.GradEx(problem),
    ):
        found = method([0, 0], 0)
        assert found["rmse"] == pytest.approx(float(rmse(outputs, problem.targets.labels)), rel=1e-5)
        assert found["absolute"] == pytest.approx(float(absolute(outputs, problem.targets.labels).mean()), rel=1e-5)
        assert tuple(method.maximize) == ("absolute",)
    with pytest.raises(InputError, match="'rmse' is one number for many queries, and cannot be merged"):
        whence.TaskVectors(problem, whence.Recipe(steps=1), merge="outcomes")
    each = problem_with("squared", metrics=absolute, per_query=True)
    assert whence.Retrain(each, whence.Recipe(steps=1))([0, 0], 0)["absolute"] == pytest.approx(
        absolute(outputs, problem.targets.labels).mean(1).tolist(), rel=1e-5
    )
    assert OwnMetric(lambda o, y: 0.5, "half", (2,))  # a plain number will do
    halves = problem_with("squared", metrics={"half": lambda o, y: 0.5})
    assert whence.Retrain(halves, whence.Recipe(steps=1))([0, 0], 0)["half"] == 0.5


def test_accuracy_of_several_labels_and_of_sequences():
    problem = problem_with("logistic", shape=(3,), labels=several, metrics="accuracy")
    outputs = problem.output_fn(problem.start, problem.targets.inputs)
    expected = ((outputs > 0) == (problem.targets.labels > 0)).float().mean()
    assert whence.Retrain(problem, whence.Recipe(steps=1))([0, 0], 0)["accuracy"] == pytest.approx(float(expected))
    problem = problem_with("cross_entropy", shape=(3, 4), labels=tokens, metrics="accuracy")
    guess = problem.output_fn(problem.start, problem.targets.inputs).view(5, 3, 4).argmax(-1)
    rows = [
        np.mean([g == y for g, y in zip(*pair, strict=True) if y != -100])
        for pair in zip(guess.tolist(), problem.targets.labels.tolist(), strict=True)
    ]
    assert whence.Retrain(problem, whence.Recipe(steps=1))([0, 0], 0)["accuracy"] == pytest.approx(np.mean(rows))
    with pytest.raises(InputError, match="one label per example"):
        problem_with("cross_entropy", shape=(3, 4), labels=tokens, metrics="margin")


def outcome(problem):
    (value,) = whence.Retrain(problem, whence.Recipe(steps=1))([0, 0], 0).values()
    return value


def column_problem(labels, loss, metric, outputs=1, last=None):
    """A problem with so many outputs and one label each, and the outputs for its targets."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, outputs), *([last] if last else []))
    group = normal(6, 4).float(), labels
    problem = whence.Problem(model, {"a": group, "b": group}, group, loss=loss, metrics=metric)
    return problem, model(group[0]).detach()


@pytest.mark.parametrize("metric", [nn.L1Loss(), nn.functional.l1_loss, {"x": nn.L1Loss(reduction="none")}])
def test_losses_of_torch_as_metrics_compare_each_output_with_its_label(metric):
    labels = normal(6, seed=3).float()
    problem, outputs = column_problem(labels, "squared", metric)
    assert outcome(problem) == pytest.approx(float((outputs[:, 0] - labels).abs().mean()), rel=1e-5)


@pytest.mark.parametrize("function", [lambda o, y: (o - y).abs(), lambda o, y: (o - y).abs().mean()])
def test_metrics_that_compare_all_pairs_are_refused(function):
    labels = normal(6, seed=3).float()
    with pytest.raises(InputError, match=r"compares each output with the labels of all examples.*outputs\[:, 0\]"):
        column_problem(labels, "squared", {"error": function})


@pytest.mark.parametrize(
    "function",
    [
        lambda o, y: (o[:, 0] - y).abs(),
        lambda o, y: (o[..., 0] - y).abs().mean(),
        lambda o, y: (o.squeeze(-1) - y).abs().mean(),
        lambda o, y: (o.sum(-1) - y).abs().mean(),
        lambda o, y: (o.flatten() - y.flatten()).abs().mean().item(),
        lambda o, y: (o - y[:, None]).abs(),
    ],
)
def test_metrics_that_pair_outputs_and_labels_are_taken(function):
    labels = normal(6, seed=3).float()
    problem, outputs = column_problem(labels, "squared", {"error": function})
    assert outcome(problem) == pytest.approx(float((outputs[:, 0] - labels).abs().mean()), rel=1e-5)


def test_accuracy_and_margin_of_probabilities():
    labels = torch.tensor([0.0, 1, 1, 0, 1, 0])
    for loss in (nn.BCELoss(), nn.functional.binary_cross_entropy):
        problem, shares = column_problem(labels, loss, "accuracy", last=nn.Sigmoid())
        right = float(((shares[:, 0] > 0.5) == (labels > 0)).float().mean())
        assert outcome(problem) == pytest.approx(right) != float(labels.mean())
        problem, _ = column_problem(labels, loss, "margin", last=nn.Sigmoid())
        assert outcome(problem) == pytest.approx(float((shares.logit()[:, 0] * (2 * labels - 1)).mean()), rel=1e-4)
    problem, shares = column_problem(MANY[[0, 1, 2, 3, 0, 1]].float(), nn.BCELoss(), "accuracy", 3, nn.Sigmoid())
    assert outcome(problem) == pytest.approx(float(((shares > 0.5) == MANY[[0, 1, 2, 3, 0, 1]]).float().mean()))


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        (nn.MSELoss(), torch.tensor([0, 3, 5, 1, 2, 2])),
        (nn.MSELoss(), torch.tensor([0, 1, 1, 0, 1, 0])),
        (nn.functional.huber_loss, torch.tensor([0.0, 1, 1, 0, 1, 0])),
        (lambda o, y: (1 - o[:, 0] * y).clamp_min(0).mean(), torch.tensor([-1, 1, 1, -1, 1, -1])),
    ],
)
def test_accuracy_of_labels_that_are_no_classes_is_refused(loss, labels):
    for metric in ("accuracy", "margin"):
        with pytest.raises(InputError, match="is for classes, counted from 0"):
            column_problem(labels, loss, metric)


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(weight=torch.ones(4), ignore_index=0), nn.NLLLoss(ignore_index=0)]
)
@pytest.mark.filterwarnings("ignore:The loss CrossEntropyLoss of a batch")
def test_accuracy_of_sequences_leaves_out_what_the_loss_ignores(loss):
    problem = problem_with(loss, shape=(3, 4), labels=lambda n, s: tokens(n, s).clamp_min(0), metrics="accuracy")
    guess = problem.output_fn(problem.start, problem.targets.inputs).view(5, 3, 4).argmax(-1)
    rows = [
        np.mean([g == y for g, y in zip(*pair, strict=True) if y != 0])
        for pair in zip(guess.tolist(), problem.targets.labels.tolist(), strict=True)
    ]
    assert outcome(problem) == pytest.approx(np.mean(rows))


def test_a_metric_may_need_more_than_a_few_queries():
    labels = torch.tensor([0, 0, 0, 0, 1, 1])

    def spread(outputs, labels):
        if len(labels.unique()) < 2:
            raise ValueError("only one class")
        return outputs[labels == 1, 0].mean() - outputs[labels == 0, 0].mean()

    problem, outputs = column_problem(labels, "logistic", spread)
    assert outcome(problem) == pytest.approx(float(spread(outputs, labels)), rel=1e-5)
    with pytest.raises(InputError, match=r"'spread' cannot be computed .*only one class"):
        column_problem(torch.zeros(6), "logistic", spread)


def test_a_number_for_each_class_is_not_one_for_each_query():
    with pytest.raises(InputError, match=r"must return a number for each of 6 examples.*shape \(4,\)"):
        column_problem(torch.tensor([0, 1, 2, 3, 0, 1]), "cross_entropy", {"f1": lambda o, y: torch.zeros(4)}, 4)


def test_a_folder_of_one_loss_is_refused_by_another(tmp_path):
    recipe = whence.Recipe(steps=2)
    losses = [nn.HuberLoss(), nn.HuberLoss(delta=0.1), nn.MSELoss(), cubic, "squared"]
    found = [whence.Retrain(problem_with(loss), recipe).fingerprint["loss"] for loss in losses]
    assert len(set(found)) == len(losses)
    assert found == [whence.Retrain(problem_with(loss), recipe).fingerprint["loss"] for loss in losses]
    weighted = [nn.BCEWithLogitsLoss(pos_weight=torch.full((3,), w)) for w in (1.0, 2.0)]
    first, second = (
        whence.TaskVectors(problem_with(loss, shape=(3,), labels=several), recipe, path=tmp_path) for loss in weighted
    )
    first.batch([[1, 1]])
    with pytest.raises(InputError, match="loss"):
        second.batch([[1, 1]])
