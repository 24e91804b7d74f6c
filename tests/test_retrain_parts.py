"""The parts of retraining: recipes, which examples are drawn, how many models fit."""

from __future__ import annotations

import gc
import weakref
from itertools import chain

import numpy as np
import pytest
import torch

from whence import InputError, Recipe
from whence.models import memory
from whence.models.memory import Chunks, bytes_for_backward
from whence.models.optimizers import SGD, AdamW
from whence.models.problem import Problem
from whence.models.sampling import draw_batches, example_shares, task_shares
from whence.models.training import bytes_per_model

SIZES = np.array([3, 5, 2])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"steps": 0}, "'steps' parameter of Recipe must be an integer of at least 1. Got 0"),
        ({"steps": 1.5}, "must be an integer of at least"),
        ({"steps": True}, "must be an integer of at least"),
        ({"steps": 3, "batch_size": 0}, "'batch_size' parameter of Recipe must be an integer of at least 1"),
        ({"steps": 3, "lr": 0.0}, "'lr' parameter of Recipe must be a finite number above 0"),
        ({"steps": 3, "lr": float("nan")}, "'lr' parameter of Recipe must be a finite number"),
        ({"steps": 3, "weight_decay": -1.0}, "'weight_decay' parameter of Recipe must be a finite number, 0 or more"),
        ({"steps": 3, "clip": 0.0}, "'clip' parameter of Recipe must be a finite number above 0"),
        ({"steps": 3, "warmup": 4}, "not be longer than the training, 3 steps. Got 4"),
        ({"steps": 3, "optimizer": "adam"}, "no optimizer 'adam' for a recipe. Did you mean 'adamw'"),
        ({"steps": 3, "schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"steps": 3, "weighting": "tasks"}, "Did you mean 'task'"),
        ({"steps": 3, "optimizer": torch.optim.SGD}, "There are: adamw, sgd"),
    ],
)
def test_recipes_that_make_no_sense_are_refused(settings, text):
    with pytest.raises(InputError, match=text):
        Recipe(**settings)


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        (AdamW, {"betas": (0.9, 1.0)}, "two numbers from 0 to below 1"),
        (AdamW, {"eps": -1.0}, "'eps' of AdamW must be a finite number, 0 or more"),
        (SGD, {"nesterov": True}, "needs momentum"),
        (SGD, {"momentum": float("nan")}, "'momentum' of SGD must be a finite number, 0 or more"),
    ],
)
def test_optimizers_that_make_no_sense_are_refused(kind, options, text):
    with pytest.raises(InputError, match=text):
        kind(**options)


def test_the_rate_rises_in_the_warm_up_and_falls_to_nothing():
    for schedule in ("linear", "cosine"):
        recipe = Recipe(steps=100, lr=2.0, warmup=10, schedule=schedule)
        rates = [recipe.rate(step) for step in range(100)]
        np.testing.assert_allclose(rates[:10], 2.0 * np.arange(1, 11) / 10)
        assert (np.diff(rates[10:]) < 0).all()
        assert 0 < rates[-1] < 0.03
        assert rates[55] == pytest.approx(1.0)
    assert Recipe(steps=3, lr=2.0, warmup=3).rate(2) == 2.0


@pytest.mark.parametrize("weighting", ["sample", "task"])
@pytest.mark.parametrize("subset", [[1.0, 0.0, 1.0], [2.0, 1.0, 0.5]])
def test_examples_are_drawn_as_often_as_they_should(weighting, subset):
    recipe = Recipe(steps=200, batch_size=100, weighting=weighting)
    drawn = np.concatenate([rows[0] for rows in draw_batches(np.array([subset]), np.array([1]), SIZES, recipe, 200)])
    mass = np.repeat(np.array(subset) / (1 if weighting == "sample" else SIZES), SIZES)
    expected = mass / mass.sum()
    n = len(drawn)
    counts = np.bincount(drawn, minlength=SIZES.sum())
    assert n == 20_000
    assert (np.abs(counts - n * expected) < 4.5 * np.sqrt(n * expected * (1 - expected)) + 1e-9).all()
    np.testing.assert_allclose(example_shares(np.array([subset]), SIZES, weighting)[0], expected)


def test_the_batches_of_a_run_are_its_own(monkeypatch):
    recipe = Recipe(steps=7, batch_size=4)
    subsets, seeds = np.array([[1.0, 0, 1], [0, 1, 1], [1, 1, 1]]), np.array([5, 6, 7])
    together = np.array(list(draw_batches(subsets, seeds, SIZES, recipe, 7)))
    assert together.shape == (7, 3, 4)
    monkeypatch.setattr("whence.models.sampling.DRAWS_AT_ONCE", 10)
    for row in range(3):
        alone = np.array(list(draw_batches(subsets[[row]], seeds[[row]], SIZES, recipe, 7)))
        np.testing.assert_array_equal(alone[:, 0], together[:, row])
    fewer = np.array(list(draw_batches(subsets, seeds, SIZES, recipe, 3)))
    np.testing.assert_array_equal(fewer, together[:3])


def test_shares_of_the_empty_subset_are_nothing():
    assert not task_shares(np.zeros((1, 3)), SIZES, "sample").any()


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError("CUDA"), RuntimeError("x: can't allocate memory: y")])
def test_when_memory_runs_out_half_as_many_are_tried(error):
    tried = []

    def work(rows):
        tried.append(rows.stop - rows.start)
        if rows.stop - rows.start > 3:
            raise error
        return list(range(rows.start, rows.stop))

    chunks = Chunks(8)
    assert list(chain(*chunks.run(10, work))) == list(range(10))
    assert chunks.size == 2
    assert tried == [8, 4, 2, 2, 2, 2, 2]
    assert list(chain(*chunks.run(4, work))) == list(range(4))


def test_what_fewer_models_do_not_help_is_raised():
    def full(rows):
        raise torch.cuda.OutOfMemoryError("too large")

    with pytest.raises(torch.cuda.OutOfMemoryError, match="too large"):
        Chunks(4).run(4, full)

    def wrong(rows):
        raise RuntimeError("shapes")

    with pytest.raises(RuntimeError, match="shapes"):
        Chunks(4).run(4, wrong)


def test_memory_for_the_backward_pass_grows_with_the_examples():
    layer = torch.nn.Linear(100, 100)
    few, many = (bytes_for_backward(lambda n=n: layer(torch.zeros(n, 100)).exp().sum()) for n in (10, 30))
    assert many - few == 20 * 2 * 100 * 4  # the inputs and the exponentials, in single precision


def test_counting_bytes_leaves_nothing_behind():
    made = []

    def forward():
        kept = torch.ones(3, requires_grad=True).exp()  # which keeps its own output for the backward pass
        made.append(weakref.ref(kept))
        return kept.sum()

    assert bytes_for_backward(forward) == 12
    gc.collect()
    assert made[0]() is None


def test_bytes_per_model_are_those_of_weights_and_examples():
    model = torch.nn.Sequential(torch.nn.Linear(50, 400), torch.nn.Tanh(), torch.nn.Linear(400, 2))
    group = (torch.zeros(20, 50), torch.zeros(20, dtype=torch.int64))
    problem = Problem(model, {"a": group}, group)
    weights = sum(value.nbytes for value in model.parameters())
    small = bytes_per_model(problem, Recipe(steps=1, batch_size=1))
    large = bytes_per_model(problem, Recipe(steps=1, batch_size=1001))
    assert 5 * weights < small < 8 * weights
    assert 1000 * 4 * (50 + 400) < large - small < 1000 * 4 * 3 * (50 + 400)
    assert bytes_per_model(problem, Recipe(steps=1, optimizer="sgd", batch_size=1)) == small - weights


def test_free_memory_is_known_without_proc(monkeypatch):
    def missing(*args, **kwargs):
        raise OSError

    monkeypatch.setattr("builtins.open", missing)
    assert memory.free_bytes(torch.device("cpu")) > 1e6
