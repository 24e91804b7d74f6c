import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import whence
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
        ([PAIR, PAIR, PAIR], r"To give several groups, name them: .'name': \(inputs, labels\), …."),
        ({"a": (PAIR[0], PAIR[1][:2])}, r"as many labels as inputs. Got shapes \(3, 2\), \(2,\)"),
        ({"a": (PAIR[0][:0], PAIR[1][:0])}, "has no examples"),
        ({"a": (["x", "y"], PAIR[1])}, "must hold tensors"),
        ({"a": PAIR, "b": (torch.ones(2, 3), PAIR[1][:2])}, "of one shape and type"),
    ],
)
def test_groups_that_cannot_be_stacked_are_refused(given, text):
    with pytest.raises(InputError, match=text):
        Examples.of(given)


def test_inputs_of_another_type_than_the_parameters_are_named():
    pair = (torch.zeros(3, 2, dtype=torch.float64), torch.tensor([0, 1, 0]))
    with pytest.raises(InputError, match=r"inputs are torch.float64 and the parameters torch.float32: convert them"):
        whence.Problem(nn.Linear(2, 2), {"a": pair}, pair)


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


@pytest.mark.parametrize(
    ("layers", "shape"), [([nn.Flatten(0)], (3, 1)), ([], (3, 1)), ([nn.Unflatten(1, (1, 1))], (3, 1))]
)
def test_outputs_are_rows(layers, shape):
    output_fn, params = functional(nn.Sequential(nn.Linear(2, 1), *layers))
    assert output_fn(params, torch.zeros(3, 2)).shape == shape


def test_outputs_may_be_called_logits():
    logits = torch.zeros(4, 2)
    assert as_outputs(type("Output", (), {"logits": logits})()) is logits
    assert as_outputs({"logits": logits}) is logits
    for wrong in (torch.zeros(()), None, {"loss": logits}):
        with pytest.raises(InputError, match=r"one row of outputs per example, a tensor of shape \(n, ...\)"):
            as_outputs(wrong)


class Items(torch.utils.data.Dataset):
    """A dataset as tokenizers make them: dicts of lists, of different lengths."""

    def __init__(self, lengths, label="labels"):
        self.rows = [{"input_ids": list(range(1, n + 1)), label: n % 2} for n in lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def padded(rows):
    """A collator, as in Hugging Face."""
    width = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows])
    return {"input_ids": ids, "labels": torch.tensor([row["labels"] for row in rows])}


def test_datasets_of_dicts_are_collated_together():
    found = Examples.of({"a": Items([2, 3]), "b": Items([5, 1, 4])}, collate=padded)
    assert found.inputs["input_ids"].shape == (5, 5)
    assert found.labels.tolist() == [0, 1, 1, 1, 0]
    assert found.sizes.tolist() == [2, 3]
    for form in (list(Items([2, 3])), padded(list(Items([2, 3])))):
        torch.testing.assert_close(
            Examples.of(form, "target", padded).inputs["input_ids"], torch.tensor([[1, 2, 0], [1, 2, 3]])
        )
    loader = torch.utils.data.DataLoader(Items([2, 3]), collate_fn=padded, shuffle=True)
    assert Examples.of({"a": loader}).labels.tolist() == [0, 1]
    with pytest.raises(InputError, match="Give a 'collate' function that pads them"):
        Examples.of({"a": Items([2, 3])})
    with pytest.raises(InputError, match=r"must have 'labels'\. It has input_ids, y"):
        Examples.of({"a": Items([2, 2], label="y")}, collate=lambda rows: {k: torch.zeros(2) for k in rows[0]})
    with pytest.raises(InputError, match="row for each of 2 examples"):
        Examples.of({"a": Items([2, 2])}, collate=lambda rows: {"x": torch.zeros(1), "labels": torch.zeros(1)})
    with pytest.raises(InputError, match=r"cannot be made into a batch \(bad\).$"):
        Examples.of({"a": Items([2, 2])}, collate=lambda rows: (_ for _ in ()).throw(ValueError("bad")))


def test_a_hugging_face_model_is_trained_on_dicts():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 2)

        def forward(self, input_ids):
            mask = (input_ids > 0).float()[..., None]
            return {"logits": self.head((self.embed(input_ids) * mask).sum(1) / mask.sum(1))}

    torch.manual_seed(0)
    model, tasks, target = Classifier(), {"a": Items([2, 3]), "b": Items([5, 1])}, Items([4, 2, 1])
    problem = whence.Problem(model, tasks, target, collate=padded)
    batch = padded(target.rows)
    expected = nn.functional.cross_entropy(model(batch["input_ids"])["logits"], batch["labels"])
    retrain = whence.Retrain(problem, whence.Recipe(steps=3))
    assert retrain([0, 0], 0)["loss"] == pytest.approx(float(expected.detach()), rel=1e-5)
    assert retrain([1, 1], 0)["loss"] != retrain([0, 0], 0)["loss"]
    with pytest.raises(InputError, match=r"cannot take the inputs of the tasks .*token_type_ids"):
        whence.Problem(
            model, tasks, target, collate=lambda rows: {**padded(rows), "token_type_ids": torch.zeros(len(rows))}
        )
