"""The verb icl, on a tiny model: what it says, what it writes, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import whence
from language_models import examples, tiny_model, tiny_tokenizer
from whence.cli import app
from whence.icl import LanguageModel, Prompted, Prompts

pytestmark = pytest.mark.slow


def lines(made):
    return "".join(json.dumps({"text": each.text, "label": each.label}) + "\n" for each in made)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model, candidates and queries."""
    folder = tmp_path_factory.mktemp("icl")
    tiny_model(dtype=torch.float32).save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    (folder / "demos.jsonl").write_text(lines(examples(8)))
    (folder / "queries.jsonl").write_text(lines(examples(12, seed=1)))
    return folder


def run(place, *options, demos="demos.jsonl", queries="queries.jsonl", model="model", shots="2"):
    given = ["icl", place / model, "--demos", place / demos, "--queries", place / queries, "--shots", shots]
    return CliRunner().invoke(app, [*map(str, given), "--true", "8", "-n", "20", "--anchors", "2", *map(str, options)])


def test_the_document_holds_what_was_asked(place, tmp_path):
    result = run(place, "--json", "-o", tmp_path / "true", "--report", tmp_path / "page.html")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert sorted(row["name"] for row in found["demonstrations"]) == [f"d{k + 1}" for k in range(8)]
    scores = [row["score"] for row in found["demonstrations"]]
    assert scores == sorted(scores)
    assert all(row["low"] <= row["score"] <= row["high"] for row in found["demonstrations"])
    assert {"task_a", "task_b", "score", "low", "high", "verdict"} <= set(found["pairs"][0])
    assert len(found["chosen"]["demonstrations"]) == 2
    assert found["chosen"]["low"] < found["chosen"]["predicted_loss"] < found["chosen"]["high"]
    assert found["held_out_queries"] == found["queries"] == 6
    assert len(found["explained"]) == 6
    assert (tmp_path / "page.html").stat().st_size > 10_000
    assert whence.read_outcomes(tmp_path / "true").n_runs == found["prompts_run"] == 8


def test_the_chosen_prompt_is_judged_by_running_it(place, tmp_path):
    found = json.loads(run(place, "--json", "-o", tmp_path / "true").stdout)
    language = LanguageModel.load(place / "model", device="cpu")
    demos, queries = examples(8), examples(12, seed=1)
    prompts = Prompts.of(language.encode, demos, queries[1::2])
    sequence = [prompts.names.index(name) for name in found["chosen"]["demonstrations"]]
    assert found["chosen"]["prompt"] == prompts.text(sequence)
    values = Prompted(language, prompts).values([sequence])
    judged = {row["prompt"]: row for row in found["judged"]}
    assert judged["chosen"]["loss"] == pytest.approx(values["loss"].mean(), abs=1e-5)
    assert judged["chosen"]["accuracy"] == pytest.approx(values["accuracy"].mean())
    by_run = Prompted(language, prompts.asking(queries[::2])).values([sequence, sequence[::-1]])["loss"].mean(1)
    runs = whence.read_outcomes(tmp_path / "true")
    if found["chosen"]["order"] == "all 2 orders tried, by running them":
        assert by_run[0] <= by_run[1], "the better order, by the queries to choose by"
    else:
        assert found["chosen"]["order"] == "the best of 8 prompts that were run"
        assert sequence == np.flatnonzero(runs.subsets[runs.values[:, 0].argmin()]).tolist()
    assert by_run[0] <= runs.values.min() + 1e-5, "no worse than any that was run"
    assert {"top by attribution", "random (10 prompts)", "no demonstration"} < set(judged)


def test_the_page_shows_demonstrations_prompt_and_judgement(place):
    result = run(place)
    assert result.exit_code == 0, result.stderr
    for said in ("Demonstrations:", "Strongest pairs", "Chosen prompt", "Run on 6 queries", "For the query"):
        assert said in result.stdout
    assert examples(8)[0].text in result.stdout


def test_true_prompts_are_kept_and_gone_on_with(place, tmp_path):
    first = run(place, "-o", tmp_path / "true", "--json")
    journal = whence.read_outcomes(tmp_path / "true").values
    again = run(place, "-o", tmp_path / "true", "--json", "--true", "10")
    assert (first.exit_code, again.exit_code) == (0, 0), again.stderr
    kept = whence.read_outcomes(tmp_path / "true").values
    assert len(kept) == 10
    np.testing.assert_array_equal(kept[:8], journal)


def test_orders_of_many_are_not_all_run(place):
    result = run(place, "--json", "--template", "the {text} {label}", shots="5")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["chosen"]["order"] in (
        "as listed or as estimates say, whichever did better when run", "the best of 8 prompts that were run"
    )  # fmt: skip
    assert len(set(found["chosen"]["demonstrations"])) == 5


def test_estimates_alone(place):
    found = json.loads(run(place, "--true", "0", "--json").stdout)
    assert found["prompts_run"] == 0
    assert found["chosen"]["order"] == "as listed"
    assert found["chosen"]["demonstrations"] == sorted(found["chosen"]["demonstrations"])
    assert "fused" not in found["quality"]


def test_templates_words_and_held_out_queries(place, tmp_path):
    (tmp_path / "held.jsonl").write_text(lines(examples(5, seed=3)))
    result = run(
        place, "--template", r"{text} film {label}\n", "--words", "no=bad,yes=good", "--held-out",
        tmp_path / "held.jsonl", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["queries"], found["held_out_queries"]) == (12, 5)
    assert found["chosen"]["prompt"].count(" film ") >= 2
    assert set(found["chosen"]["prompt"].split()) & {"good", "bad"}


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"demos": "empty"}, [], "empty: the file is empty"),
        ({"queries": "empty"}, [], "empty: the file is empty"),
        ({"demos": "unlabelled"}, [], "unlabelled, line 2: there is no field 'label'"),
        ({"demos": "none"}, [], "none: cannot be read"),
        ({"queries": "few"}, [], "there must be at least 4 queries, to choose by some and to judge by others. Got 3"),
        ({"shots": "8"}, [], "to choose 8, there must be more to choose from. Got 8 demonstrations"),
        ({"model": "none"}, [], "there is no such folder"),
        ({"model": "."}, [], "there is no config.json in it"),
        ({"model": "mute"}, [], "there is no tokenizer that could be loaded"),
        ({"shots": "7"}, ["--template", "very very very very very very {text} {label}"], "reads at most 64"),
        ({}, ["--words", "no=bad"], "There is no label word for yes"),
        ({}, ["--words", "no"], "'no' must be a label and its word, such as 1=positive"),
        ({}, ["--words", "no=unheard,yes=unseen"], "'unheard' and 'unseen' are the same token"),
        ({}, ["--scorer", "nowhere.py:score"], "give --open too"),
        ({}, ["--open", "--scorer", "nowhere.py:score"], "nowhere.py: cannot be read"),
        ({}, ["--open", "--words", "no=good"], "leave 'words' out"),
        ({}, ["--chat"], "has no chat template"),
        ({}, ["--template", "{text} {label}"], "A query must have at least two tokens"),
        ({}, ["--template", "{text}"], "must have {text} and {label} in it"),
        ({}, ["--held-out", "odd"], "unknown labels: maybe"),
        ({}, ["--report", "no/such/folder/page.html"], "no/such/folder"),
    ],
)
def test_what_is_refused_is_refused_in_one_sentence(place, files, options, message):
    (place / "empty").write_text("\n")
    (place / "unlabelled").write_text('{"text": "good", "label": "yes"}\n{"text": "bad"}\n')
    (place / "few").write_text(lines(examples(3)))
    (place / "odd").write_text(lines(examples(2, labels=("maybe",))))
    if not (place / "mute").exists():
        tiny_model(dtype=torch.float32).save_pretrained(place / "mute")
    result = run(place, *(place / option if option == "odd" else option for option in options), **files)
    assert result.exit_code == 2, result.stdout
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""
