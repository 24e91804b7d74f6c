"""Adapters in the last blocks: the blocks below run once per example, and nothing else changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import whence
from finetuning import texts, tiny_prepared, tiny_problem, tokenizer
from language_models import TINY, tiny_model, transformers
from whence.errors import InputError
from whence.hf import adapt, adapters, prepare, sources_of
from whence.hf.frozen import blocks_of

SUBSETS = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
RECIPE = whence.Recipe(steps=6, lr=0.02, batch_size=4)


def plain(problem):
    """The same problem without what the frozen blocks gave: all blocks run in every pass."""

    def bare(examples):
        return replace(examples, inputs={name: value for name, value in examples.inputs.items() if name != "states"})

    return problem.with_examples(bare(problem.tasks), bare(problem.targets))


def other_problem(model):
    """The problem of a model of another make."""
    rows = [{**row, "label": ("yes", "no")[k], "source": f"s{k}"} for k in range(2) for row in texts(6, k)]
    sources = sources_of(rows)
    return prepare(adapt(model.to(torch.float32), tokenizer(), layers=1), sources, sources[:1]).problem()


def gpt2():
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=TINY["vocab_size"],
            n_embd=16,
            n_layer=2,
            n_head=2,
            n_positions=64,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=1,
            eos_token_id=1,
        )
    )


METHODS = {
    "one at a time": lambda problem: whence.Retrain(problem, RECIPE, batched=False),
    "side by side": lambda problem: whence.Retrain(problem, RECIPE, batched=True),
    "trak": lambda problem: whence.JointScores(problem, RECIPE, "trak", rank=8),
    "influence": lambda problem: whence.JointScores(problem, RECIPE, "influence"),
    "gradex": lambda problem: whence.GradEx(problem, rank=8),
    "along": lambda problem: whence.GradEx.along(problem, RECIPE, rank=8),
    "merged": lambda problem: whence.TaskVectors(problem, RECIPE),
}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_what_it_finds_through_all_blocks(method):
    problem = tiny_problem(layers=1, dtype=torch.float64)
    assert "states" in problem.tasks.inputs
    kept, whole = (
        [METHODS[method](each)(subset, seed=1)["loss"] for subset in SUBSETS] for each in (problem, plain(problem))
    )
    np.testing.assert_allclose(kept, whole, rtol=1e-6)
    assert np.ptp(kept) > 1e-4


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("model", [lambda: tiny_model("qwen3"), gpt2], ids=["qwen3", "gpt2"])
def test_other_models_start_at_their_first_trained_block_too(model):
    problem = other_problem(model())
    assert "states" in problem.tasks.inputs
    kept, whole = (
        whence.Retrain(each, RECIPE, batched=False)([1, 0], seed=1)["loss"] for each in (problem, plain(problem))
    )
    assert kept == pytest.approx(whole, rel=1e-4)


def test_frozen_blocks_run_once():
    problem = tiny_problem(layers=1)
    lower, upper = blocks_of(problem.train_fn.module)
    retrain = whence.Retrain(problem, RECIPE, batched=False)
    calls = {"lower": 0, "upper": 0}
    for name, block in (("lower", lower), ("upper", upper)):
        block.self_attn.register_forward_hook(lambda *_, name=name: calls.update({name: calls[name] + 1}))
    retrain([1, 1], seed=0)
    assert calls == {"lower": 0, "upper": RECIPE.steps}


def test_checkpointed_blocks_are_left_as_they_were():
    found = []
    for checkpointing in (True, False):
        prepared = tiny_prepared(layers=1, checkpointing=checkpointing, dtype=torch.float64)
        found.append(whence.Retrain(prepared.problem(), RECIPE, batched=False)([1, 0], seed=0)["loss"])
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    assert all("forward" in block.__dict__ for block in blocks_of(tiny_prepared(checkpointing=True).adapted.model))


def test_all_blocks_run_if_all_are_trained_or_memory_is_short(monkeypatch):
    assert "states" not in tiny_problem().tasks.inputs
    assert "states" not in tiny_problem(layers=2).tasks.inputs
    monkeypatch.setattr(adapters, "free_bytes", lambda device: 1000)
    assert "states" not in tiny_problem(layers=1).tasks.inputs


def test_only_the_last_blocks_have_adapters():
    names = tiny_problem(layers=1).trained
    assert names
    assert all(".layers.1." in name for name in names)
    assert len(tiny_problem().trained) == 2 * len(names)
    assert all("q_proj" in name for name in tiny_problem(layers=1, modules=["q_proj"]).trained)


@pytest.mark.parametrize("layers", [0, 3, True, 1.5])
def test_a_number_of_blocks_that_the_model_does_not_have_is_refused(layers):
    with pytest.raises(InputError, match=r"The 'layers' parameter of hf\.load must be a whole number from 1 to 2"):
        tiny_problem(layers=layers)
