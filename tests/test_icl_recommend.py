"""The recommended prompt: what the library returns, against prompts that are run one by one."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import whence
from language_models import examples, tiny_model, tiny_tokenizer
from whence.cli import app
from whence.icl import LanguageModel, Prompted, Prompts, recommend

pytestmark = pytest.mark.slow

DEMOS, QUERIES, HELD_OUT = examples(8), examples(12, seed=1)[::2], examples(12, seed=1)[1::2]
SETTINGS = {"shots": 2, "n_true": 8, "n_estimates": 20, "anchors": 2}


@pytest.fixture(scope="module")
def language():
    return LanguageModel(tiny_model(dtype=torch.float32), tiny_tokenizer(), batch_size=32)


@pytest.fixture(scope="module")
def prompts(language):
    return Prompts.of(language.encode, DEMOS, QUERIES, start=language.start)


@pytest.fixture(scope="module")
def found(language, prompts):
    return recommend(language, prompts, HELD_OUT, **SETTINGS)


def test_the_prompt_is_no_worse_than_its_other_orders_and_than_any_that_was_run(found, language, prompts):
    truth = Prompted(language, prompts)
    orders = [list(order) for order in itertools.permutations(found.sequence)]
    losses = truth.values([found.sequence, *orders])["loss"].mean(1)
    runs = found.model.outcomes
    assert losses[0] <= min(losses.min(), runs.values.min()) + 1e-5 or "prompts that were run" in found.how
    assert losses[0] <= runs.values.min() + 1e-5
    assert found.n_run == runs.n_runs == 8


def test_what_is_said_of_the_prompt_is_what_the_surrogate_predicts(found):
    subset = np.isin(np.arange(8), found.sequence).astype(float)[None]
    mean, std = found.model.predict(subset, return_std=True)
    assert found.loss == pytest.approx(mean[0, 0])
    assert (found.high - found.low) / 2 == pytest.approx(1.6448536 * std[0, 0])


def test_printed_it_is_a_line_and_what_it_was_judged_by(found):
    first, *table = repr(found).splitlines()
    assert first.startswith(f"Prompt: {', '.join(found.names)}; expected loss {found.loss:.4g} (90% interval ")
    assert len(table) == 1 + len(found.judged.to_frame())


def test_demonstrations_carry_their_text_label_and_score(found, prompts):
    frame = found.to_frame()
    scores = whence.attribute(found.model, "inclusion")
    for _, row in frame.iterrows():
        k = prompts.names.index(row["name"])
        assert (row["text"], row["label"]) == (DEMOS[k].text, DEMOS[k].label)
        assert row["score"] == pytest.approx(scores.scores[k, 0])
    assert found.text == prompts.text(found.sequence)
    assert found.names == [prompts.names[k] for k in found.sequence]


def test_pairs_are_second_differences_averaged_over_prompts_of_the_size_at_hand(found):
    """Every other demonstration is in with probability shots / candidates: a sum over all 2^6 subsets of the others."""
    keep, (i, j) = 2 / 8, (0, 3)
    others = [k for k in range(8) if k not in (i, j)]
    total = 0.0
    for inside in itertools.product([0.0, 1.0], repeat=6):
        row = np.zeros((4, 8))
        row[:, others] = inside
        row[[1, 3], i], row[[2, 3], j] = 1, 1
        none, first, second, both = found.model.predict_quietly(row)[:, 0]
        total += np.prod([keep if one else 1 - keep for one in inside]) * (both - first - second + none)
    assert found.pairs.scores[i, j, 0] == pytest.approx(total, abs=3 * found.pairs.sampling_error[i, j, 0] + 1e-8)


def test_it_is_judged_on_other_queries(found, language, prompts):
    values = Prompted(language, prompts.asking(HELD_OUT)).values([found.sequence])
    np.testing.assert_allclose(found.judged.loss["chosen"], values["loss"][0], atol=1e-5)


def test_as_many_shots_as_candidates_leave_no_choice(language, prompts):
    with pytest.raises(whence.InputError, match="The 'shots' parameter must be less than the number of candidates"):
        recommend(language, prompts, HELD_OUT, shots=8)


def test_the_verb_prints_what_the_library_returns(found, language, tmp_path):
    language.model.save_pretrained(tmp_path / "model")
    language.tokenizer.save_pretrained(tmp_path / "model")
    for name, made in (("demos", DEMOS), ("queries", QUERIES), ("held", HELD_OUT)):
        lines = [json.dumps({"text": each.text, "label": each.label}) for each in made]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    files = ["--demos", tmp_path / "demos.jsonl", "--queries", tmp_path / "queries.jsonl"]
    files += ["--held-out", tmp_path / "held.jsonl", "--device", "cpu", "--json"]
    numbers = ["--shots", 2, "--true", 8, "-n", 20, "--anchors", 2]
    result = CliRunner().invoke(app, list(map(str, ["icl", tmp_path / "model", *files, *numbers])))
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["chosen"]["demonstrations"] == found.names
    assert document["chosen"]["order"] == found.how
    assert document["chosen"]["predicted_loss"] == pytest.approx(found.loss, abs=1e-4)
    scores = {row["name"]: row["score"] for row in document["demonstrations"]}
    expected = dict(zip(found.attribution.task_names, found.attribution.scores[:, 0], strict=True))
    assert scores == pytest.approx(expected, abs=1e-4)
