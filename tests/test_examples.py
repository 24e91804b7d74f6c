import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from whence.errors import InputError
from whence.models.examples import Examples
from whence.models.functional import as_outputs, functional

PAIR = (torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 1]))


def test_groups_are_stacked_in_order():
    other = (torch.ones(2, 2), torch.tensor([5, 6]))
    examples = Examples.of({"a": PAIR, "b": other})
    assert examples.names == ("a", "b")
    assert examples.sizes.tolist() == [3, 2]
    assert examples.owner.tolist() == [0, 0, 0, 1, 1]
    assert torch.equal(examples.inputs, torch.cat([PAIR[0], other[0]]))
    assert examples.labels.tolist() == [0, 1, 1, 5, 6]
    assert [(s.start, s.stop) for s in examples.blocks(2)] == [(0, 2), (2, 4), (4, 5)]
    assert Examples.of(examples) is examples


def test_inputs_may_be_tuples_or_dicts_and_groups_data_sets():
    both = Examples.of({"a": ({"x": PAIR[0], "y": PAIR[1]}, PAIR[1])})
    assert both.rows(slice(1, 2))[0]["x"].tolist() == [[2.0, 3.0]]
    assert torch.equal(Examples.of({"a": TensorDataset(*PAIR)}).inputs, PAIR[0])
    assert Examples.of(PAIR, "target").names == ("target",)


def test_a_sample_has_rows_of_every_group():
    examples = Examples.of({"a": PAIR, "b": (torch.ones(9, 2), torch.arange(9))})
    few = examples.sample(2, seed=1)
    assert few.sizes.tolist() == [2, 2]
    assert len(set(few.labels[2:].tolist())) == 2
    assert examples.sample(5).sizes.tolist() == [3, 5]
    assert torch.equal(few.labels, examples.sample(2, seed=1).labels)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "at least one group"),
        ({"a": PAIR[0]}, r"tasks\['a'\] must be a pair \(inputs, labels\)"),
        ({"a": (PAIR[0], PAIR[1][:2])}, r"as many labels as inputs. Got shapes \(3, 2\), \(2,\)"),
        ({"a": (PAIR[0][:0], PAIR[1][:0])}, "has no examples"),
        ({"a": (["x", "y"], PAIR[1])}, "must hold tensors"),
        ({"a": PAIR, "b": (torch.ones(2, 3), PAIR[1][:2])}, "of one shape and type"),
    ],
)
def test_groups_that_cannot_be_stacked_are_refused(given, text):
    with pytest.raises(InputError, match=text):
        Examples.of(given)


def test_a_model_is_a_function_of_its_parameters():
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.9), nn.Linear(4, 3))
    model(torch.randn(5, 2))
    output_fn, params = functional(model, "3.*")
    assert list(params) == ["3.weight", "3.bias"]
    expected = model.eval()(PAIR[0])
    torch.testing.assert_close(output_fn(params, PAIR[0]), expected)
    doubled = {name: 2 * value for name, value in params.items()}
    torch.testing.assert_close(output_fn(doubled, PAIR[0]), 2 * expected)
    assert next(output_fn.module.parameters()).device.type == "meta"


def test_only_what_requires_a_gradient_is_chosen():
    model = nn.Linear(2, 3)
    model.bias.requires_grad_(False)
    assert list(functional(model)[1]) == ["weight"]
    assert list(functional(model, lambda name: name == "bias")[1]) == ["bias"]
    with pytest.raises(InputError, match="There are: weight, bias"):
        functional(model, "wieght")
    with pytest.raises(InputError, match="for which the given test holds"):
        functional(model, lambda name: False)


def test_outputs_are_rows():
    assert as_outputs(torch.zeros(4)).shape == (4, 1)
    assert as_outputs(type("Output", (), {"logits": torch.zeros(4, 2)})()).shape == (4, 2)
    with pytest.raises(InputError, match=r"a tensor of shape \(n, C\) or \(n,\). Got \(2, 3, 4\)"):
        as_outputs(torch.zeros(2, 3, 4))
