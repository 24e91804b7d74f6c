"""The verb finetune, on a tiny model: what it says, what it keeps, what it refuses, and what survives being killed."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

import whence
from finetuning import save_model, texts, write_jsonl, write_sources
from whence.cli import app
from whence.hf import load, prepare, read_sources, spending

pytestmark = pytest.mark.slow
HOW = ["--budget", "20", "--steps", "20", "--lr", "0.02", "--batch-size", "8", "--rank", "4", "--device", "cpu"]


FEW = {"FEWEST_SUBSETS": 40, "SUBSETS_PER_TASK": 1, "FEWEST_MERGED": 30}  # estimates, to save time


@pytest.fixture(scope="module", autouse=True)
def few_estimates():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in FEW.items():
            patch.setattr(spending, name, value)
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model, sources that help and that hurt, and a target."""
    folder = tmp_path_factory.mktemp("finetune")
    save_model(folder / "model", chat=True)
    write_sources(folder / "data")
    return folder


def arguments(place, output, *options, target="val.jsonl"):
    files = sorted(str(file) for file in (place / "data").glob("[bg]*.jsonl"))
    given = ["finetune", place / "model", "--tasks", *files, "--target", place / "data" / target, "-o", output]
    return [*map(str, given), *HOW, *map(str, options)]


def run(*given, **named):
    return CliRunner().invoke(app, arguments(*given, **named))


@pytest.fixture(scope="module")
def done(place, tmp_path_factory):
    """A whole run, and its document."""
    output = tmp_path_factory.mktemp("runs") / "run"
    result = run(place, output, "--json", "--verify", 2)
    assert result.exit_code == 0, result.stderr
    return output, json.loads(result.stdout)


def test_sources_that_help_and_hurt_are_told_apart(done):
    _, found = done
    rows = {row["task"]: row for row in found["sources"]}
    good, bad = ([rows[name] for name in rows if name.startswith(kind)] for kind in ("good", "bad"))
    assert max(row["score"] for row in good) < 0 < min(row["score"] for row in bad)
    assert "hurts" in {row["verdict"] for row in bad}
    assert "hurts" not in {row["verdict"] for row in good}
    assert all(name.startswith("good") for name in found["chosen"]["sources"])
    ways = {name: row for row in found["compared"] for name in row["way"].split(", ")}
    assert set(ways) == {"chosen", "all sources", "best run", "best single source"}
    assert len({row["sources"] for row in found["compared"]}) == len(found["compared"])  # none is trained twice
    assert ways["chosen"]["expected"] < ways["all sources"]["expected"]
    assert all(row["low"] <= row["expected"] <= row["high"] for row in found["compared"])


def test_what_is_chosen_is_trained_for_real(done, place):
    output, found = done
    runs = whence.read_outcomes(output / "verified")
    for at, row in enumerate(found["verified"]):
        both = runs.targets(["loss"]).values[[at, at + len(found["verified"])], 0]
        assert row["true"] == pytest.approx(both.mean())
    verified = {name: row for row in found["verified"] for name in row["way"].split(", ")}
    assert verified["chosen"]["true"] < verified["all sources"]["true"]
    assert verified["chosen"]["accuracy"] >= verified["all sources"]["accuracy"]
    sources = read_sources(sorted((place / "data").glob("[bg]*.jsonl")))
    prepared = prepare(load(place / "model", rank=4, device="cpu"), sources, read_sources([place / "data/val.jsonl"]))
    recipe = whence.Recipe(steps=20, lr=0.02, batch_size=8, schedule="linear", warmup=2, clip=1.0)
    seed = int(np.random.SeedSequence([1, 0]).generate_state(4)[0] >> 1)
    again = whence.Retrain(prepared.problem(), recipe, batched=False)(list(found["chosen"]["sources"]), seed)
    assert again["loss"] == pytest.approx(runs.values[0, runs.target_names.index("loss")], rel=1e-4)


def test_the_folder_is_read_by_the_other_verbs(done):
    output, found = done
    runs = whence.read_outcomes(output / "true_runs")
    assert runs.n_runs == found["plan"]["true runs"]
    assert set(runs.target_names) == {"loss", "accuracy"}
    estimates = [output / "gradex"]
    assert all(whence.read_outcomes(folder).n_runs > runs.n_runs for folder in estimates)
    options = [part for folder in estimates for part in ("--estimates", str(folder))]
    result = CliRunner().invoke(
        app, ["fit", str(output / "true_runs"), "--outcome", "loss", "--ignore", "accuracy", *options]
    )
    assert result.exit_code == 0, result.stderr
    assert (output / "report.html").stat().st_size > 10_000


def test_estimates_are_those_of_gradex_along_one_run(done, place):
    """The table that is kept is what GradEx gives by itself, from a joint run of its own."""
    sources = read_sources(sorted((place / "data").glob("[bg]*.jsonl")))
    prepared = prepare(load(place / "model", rank=4, device="cpu"), sources, read_sources([place / "data/val.jsonl"]))
    recipe = whence.Recipe(steps=20, lr=0.02, batch_size=8, schedule="linear", warmup=2, clip=1.0)
    gradex = whence.GradEx.along(prepared.problem(), recipe, projection="auto")
    kept = whence.read_outcomes(done[0] / "gradex")
    assert kept.values[:, 0] == pytest.approx(gradex.batch(kept.subsets)["loss"], rel=1e-3, abs=1e-4)
    assert len(list((done[0] / "joint_run").glob("*.safetensors"))) == 3


def test_a_joint_run_that_is_kept_is_not_made_again(done, place, tmp_path, monkeypatch):
    shutil.copytree(done[0] / "joint_run", tmp_path / "run" / "joint_run")
    monkeypatch.setattr("whence.baselines.run.passed", None)  # what makes it
    result = run(place, tmp_path / "run", "--json")
    assert result.exit_code == 0, result.stderr
    kept, again = (whence.read_outcomes(folder / "gradex") for folder in (done[0], tmp_path / "run"))
    assert again.values == pytest.approx(kept.values, rel=1e-6)


KILLED = """
import os, signal, sys
import whence.estimators.retrain as retrain
from whence.cli import main
from whence.hf import spending
for name, value in FEW.items():
    setattr(spending, name, value)
train, calls = retrain.train, []
def counted(*given, **named):
    calls.append(1)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return train(*given, **named)
retrain.train = counted
sys.argv[0] = "whence"
main()
"""


def test_a_run_that_is_killed_goes_on_where_it_was(done, place, tmp_path):
    given = arguments(place, tmp_path / "run", "--json")
    process = subprocess.run(
        [sys.executable, "-c", f"FEW = {FEW}{KILLED}", *given], capture_output=True, text=True, timeout=900
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    kept = whence.read_outcomes(tmp_path / "run" / "true_runs")
    measured = int((~np.isnan(kept.values[:, 0])).sum())
    assert 0 < measured < kept.n_runs
    result = run(place, tmp_path / "run", "--json")
    assert result.exit_code == 0, result.stderr
    assert f"Measuring {kept.n_runs - measured} rows" in result.stderr
    again, whole = json.loads(result.stdout), done[1]
    assert again["chosen"] == whole["chosen"]
    for one, other in zip(again["sources"], whole["sources"], strict=True):
        assert one["task"] == other["task"]
        assert one["score"] == pytest.approx(other["score"], rel=1e-3, abs=1e-3)


def test_tables_are_printed_and_tokens_are_limited(done, place):
    output, _ = done
    sources = read_sources(sorted((place / "data").glob("[bg]*.jsonl")))
    prepared = prepare(load(place / "model", rank=4, device="cpu"), sources, sources[:1])
    limit = 1.5 * max(prepared.tokens.values())
    result = run(place, output, "--tokens", limit)
    assert result.exit_code == 0, result.stderr
    headings = [
        "Shapley attribution: loss",
        "Shapley interactions",
        "Use 1 of 5 tasks",
        "Compared with other ways to train",
    ]
    for heading in [*headings, "How far to trust it"]:
        assert heading in result.stdout
    assert "runs' worth in all" in result.stderr
    report = (output / "report.html").read_text(encoding="utf-8")
    chosen = re.search(r"Use 1 of 5 tasks\n(\w+)", result.stdout)[1]
    assert f"For loss, of at most {limit:,.0f} tokens: {chosen} (" in report
    compared = result.stdout.partition("Compared with")[2].partition("expected: of")[0].splitlines()[3:]
    for row in filter(str.strip, compared):
        cells = [cell for cell in re.split(r"\s{2,}", row.strip()) if cell]
        assert "</td><td>".join(cells[1:4]) in report  # expected, interval, measured


def test_verified_runs_are_kept_whatever_is_asked_later(done, place, tmp_path):
    """Fewer runs of each, and other sources to compare: what was trained before is not trained again."""
    shutil.copytree(done[0], tmp_path / "run")
    result = run(place, tmp_path / "run", "--json", "--verify", 1)
    assert result.exit_code == 0, result.stderr
    assert "Measuring" not in result.stderr
    runs, found = whence.read_outcomes(tmp_path / "run" / "verified"), json.loads(result.stdout)
    losses = runs.targets(["loss"]).values[:, 0]
    first = {tuple(subset): loss for subset, loss in zip(runs.subsets[::-1], losses[::-1], strict=True)}
    names = runs.task_names

    def subset_of(row):
        return tuple(float(row["sources"] == "all tasks" or name in row["sources"].split(", ")) for name in names)

    for row in found["verified"]:
        assert row["true"] == pytest.approx(first[subset_of(row)])
    limit = 1.5 * max(found["tokens"].values())
    result = run(place, tmp_path / "run", "--json", "--verify", 2, "--tokens", limit)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    rows = whence.read_outcomes(tmp_path / "run" / "verified").targets(["loss"])
    for row in found["verified"]:
        both = rows.values[(rows.subsets == np.array(subset_of(row))).all(1), 0]
        assert row["true"] == pytest.approx(both.mean())
        assert len(both) == 2


def test_the_model_before_any_training_is_compared_with(done, place, tmp_path):
    sources = read_sources(sorted((place / "data").glob("[bg]*.jsonl")))
    prepared = prepare(load(place / "model", rank=4, device="cpu"), sources, read_sources([place / "data/val.jsonl"]))
    losses = []
    for row in prepared.targets[0].rows:
        logits = prepared.adapted.model(input_ids=torch.tensor([row.ids])).logits[0].detach()
        losses.append(float(cross_entropy(logits[[at - 1 for at in row.places]], torch.tensor(row.ids)[row.places])))
    assert done[1]["before"] == pytest.approx(np.mean(losses), rel=1e-4)
    bad = sorted((place / "data").glob("b*.jsonl"))  # training on these makes the target worse
    given = ["finetune", place / "model", "--tasks", *bad, "--target", place / "data" / "val.jsonl", *HOW]
    result = CliRunner().invoke(app, [*map(str, given), "--budget", "3", "-o", str(tmp_path / "run")])
    assert result.exit_code == 0, result.stderr
    assert f"is no better than the model before any training ({np.mean(losses):.4g})" in " ".join(result.stderr.split())
    shown = re.search(r"before any training: (\S+)", result.stdout)[1]
    assert shown == f"{np.mean(losses):.{len(shown.partition('.')[2])}f}"
    assert f"Before any training: {shown}. " in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_files_after_an_option_are_all_of_that_option(place, tmp_path):
    """A second target is not taken for a source."""
    data, other = place / "data", write_jsonl(tmp_path / "other.jsonl", [{**row, "label": "no"} for row in texts(6, 7)])
    bad = sorted(data.glob("b*.jsonl"))
    given = ["finetune", place / "model", "--target", data / "val.jsonl", other, "--tasks", *bad, "--budget", 3,
             "--steps", 2, "--device", "cpu", "-o", tmp_path / "run", "--json"]  # fmt: skip
    result = CliRunner().invoke(app, list(map(str, given)))
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert {row["target"] for row in found["sources"]} == {"val/loss", "other/loss", "mean/loss"}
    assert set(found["tokens"]) == {"bad0", "bad1"}


def test_a_target_that_a_pattern_matches_as_a_source_too_is_refused(place, tmp_path):
    given = ["finetune", place / "model", "--tasks", *(place / "data").glob("*.jsonl"),
             "--target", place / "data" / "val.jsonl", "-o", tmp_path / "run"]  # fmt: skip
    result = CliRunner().invoke(app, list(map(str, given)))
    assert result.exit_code == 2
    assert "val.jsonl is a source and a target: leave it out of one of them." in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", 3], "was begun with 17 true runs, and this budget is for 3. Give a larger budget, or another"),
        (["--seed", 1], "this run was begun with the seed 0, and now it is 1"),
        (["--lr", 0.01], "this run was begun with something else: recipe"),
    ],
)
def test_a_folder_of_other_true_runs_is_refused_before_anything_is_estimated(done, place, tmp_path, options, message):
    shutil.copytree(done[0] / "true_runs", tmp_path / "run" / "true_runs")
    result = run(place, tmp_path / "run", *options)
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert message in said
    assert "accept" not in said, "it has no such option"
    assert [each.name for each in (tmp_path / "run").iterdir()] == ["true_runs"]


def test_weights_several_targets_and_queries(place, tmp_path):
    other = write_jsonl(tmp_path / "other.jsonl", [{**row, "label": "no"} for row in texts(6, 7)])
    result = run(place, tmp_path / "run", "--weights", "--per-query", "--target", other, "--json", "--budget", 6)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["chosen"]["goal"] == "mean/loss"
    assert {row["target"] for row in found["sources"]} == {"val/loss", "other/loss", "mean/loss"}
    assert sum(found["chosen"]["sources"].values()) == pytest.approx(1.0)
    assert found["pairs"] == []
    runs = whence.read_outcomes(tmp_path / "run" / "true_runs")
    assert len(runs.target_names) == 2 * (20 + 6)
    assert not runs.is_binary


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", "1"], "--budget must be at least 3, in true runs. Got 1 instead."),
        (["--budget", "inf"], "--budget must be at least 3, in true runs. Got inf instead."),
        (["--modules", "queries"], "No layer of the model is named queries. There are: q_proj"),
        (["--layers", "9"], "--layers must be a whole number from 1 to 2, the blocks of the model. Got 9 instead."),
        (["--dtype", "int8"], "--dtype must be one of float32, bfloat16, float16, auto. Got 'int8' instead."),
        (["--weights", "--tokens", "100"], "not both"),
        (["--tokens", "5"], "--tokens must be at least"),
        (["--lr", "1e-9"], "The run on all tasks has learned nothing after 5 of 20 steps"),
        (["--adapter", "nowhere"], "there is no adapter_config.json"),
        (["--device", "cuda:7"], "cannot be used here" if not torch.cuda.is_available() else ""),
    ],
)
def test_what_cannot_be_is_one_sentence(place, tmp_path, options, message):
    result = run(place, tmp_path / "run", *options)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert not list((tmp_path / "run").glob("*"))


def test_leaks_are_said_before_any_model_is_loaded(place, tmp_path):
    leaky = write_jsonl(tmp_path / "leaky.jsonl", [{**row, "label": "yes"} for row in texts(20, 99)])
    given = ["finetune", tmp_path / "no model", "--tasks", leaky, "--tasks", place / "data" / "good0.jsonl",
             "--target", place / "data" / "val.jsonl", "-o", tmp_path / "run"]  # fmt: skip
    result = CliRunner().invoke(app, list(map(str, given)))
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "The source 'leaky' holds 20 examples of the targets" in said
    assert said.index("leaky") < said.index("there is no such folder")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lr", "-1"], "--lr must be a finite number above 0. Got -1.0 instead."),
        (["--template", "no fields"], "The template must have {text} and {label} in it"),
        (["-o", "FILE"], "this is a file. Give a folder with -o"),
    ],
)
def test_what_needs_no_model_is_said_before_one_is_loaded(place, tmp_path, options, message):
    (tmp_path / "file").write_text("mine")
    options = [str(tmp_path / "file") if option == "FILE" else option for option in options]
    files = [place / "data" / f"{name}.jsonl" for name in ("good0", "bad0")]
    given = ["finetune", tmp_path / "no model", "--tasks", *files, "--target", place / "data" / "val.jsonl"]
    result = CliRunner().invoke(app, [*map(str, given), "-o", str(tmp_path / "run"), *options])
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "no such folder" not in result.stderr
    assert (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "run").exists()


def test_one_source_is_nothing_to_choose_from(place, tmp_path):
    given = ["finetune", place / "model", "--tasks", place / "data" / "good0.jsonl",
             "--target", place / "data" / "val.jsonl", "-o", tmp_path / "run"]  # fmt: skip
    result = CliRunner().invoke(app, list(map(str, given)))
    assert result.exit_code == 2
    assert "at least two sources" in result.stderr
