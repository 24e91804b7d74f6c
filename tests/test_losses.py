import pytest
import torch

from whence.errors import InputError
from whence.models.losses import LOSSES, accuracy, loss_named, margin, metrics_named

LABELS = {
    "cross_entropy": torch.tensor([0, 2, 1, 2]),
    "logistic": torch.tensor([0, 1, 1, 0]),
    "squared": torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
}
WIDTH = {"cross_entropy": 3, "logistic": 1, "squared": 3}


@pytest.fixture(params=sorted(LOSSES))
def case(request):
    name = request.param
    outputs = torch.randn(2, 4, WIDTH[name], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return LOSSES[name], outputs, LABELS[name]


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
        ("logistic", 2, torch.tensor([0, 1]), "needs one output"),
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
    with pytest.raises(InputError, match="no metric 'acc'"):
        metrics_named("acc", LOSSES["logistic"])
    with pytest.raises(InputError, match="for classes"):
        metrics_named("accuracy", LOSSES["squared"])
