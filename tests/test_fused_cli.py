"""Estimates beside true runs on the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import whence
from whence.cli import app
from whence.surrogates.trust import typical_slopes

pytestmark = pytest.mark.slow

TASKS = ["code", "math", "law", "news", "chat"]
EFFECTS = np.array([1.0, -0.8, 0.5, 0.0, -0.3])


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="whence")


def document_of(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def tables(folder):
    S = whence.Exhaustive().draw(5)
    truth = S @ EFFECTS + 0.8 * S[:, 0] * S[:, 1]
    picked = np.random.default_rng(0).permutation(len(S))[:10]
    true_runs = whence.Outcomes(S[picked], truth[picked], TASKS, ["loss"])
    cheap = whence.Outcomes(S, 0.5 * truth + 0.2 * S[:, 3], TASKS, ["loss"])
    true_runs.write(folder / "true.csv")
    cheap.write(folder / "cheap.csv")
    cheap.write(folder / "other.npz")
    return true_runs, cheap


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tables(tmp_path)


@pytest.mark.parametrize(
    "verb",
    [
        ["fit"],
        ["attribute"],
        ["interactions"],
        ["predict", "--subset", "code,law"],
        ["select", "--size", "2"],
        ["suggest", "-n", "3"],
        ["report", "-o", "page.html"],
    ],
    ids=lambda verb: verb[0],
)
def test_every_verb_that_fits_takes_estimates_and_says_how_far_they_are_trusted(verb, files):
    result = run(verb[0], "true.csv", "--outcome", "loss", "--estimates", "cheap.csv", *verb[1:])
    assert result.exit_code == 0, result.output
    assert "Trust in the estimates: where they move by 1" in " ".join(result.stdout.split())


def test_what_it_says_is_what_the_library_says(files):
    true_runs, cheap = files
    model = whence.fit(true_runs, estimates=cheap)
    found = document_of("predict", "true.csv", "--outcome", "loss", "--estimates", "cheap.csv", "--subset", "code,law")
    expected = model.predict([["code", "law"]])[0, 0]
    assert found["predictions"][0]["predicted"] == pytest.approx(expected)
    assert found["quality"]["lds_fused"] == pytest.approx(model.quality()["lds_fused"])
    assert found["slopes"] == {"cheap": pytest.approx(typical_slopes(model)["estimates"])}


def test_several_kinds_of_estimates_are_called_by_their_files(files):
    found = document_of("fit", "true.csv", "--outcome", "loss", "-e", "cheap.csv", "-e", "other.npz")
    assert list(found["slopes"]) == ["cheap", "other"]


def test_estimates_are_read_from_a_run_folder(files, tmp_path):
    _, cheap = files
    values = {row.tobytes(): value for row, value in zip(cheap.subsets, cheap.values[:, 0], strict=True)}

    def estimate(subset, seed):
        return {"loss": values[np.asarray(subset).tobytes()]}

    whence.measure(estimate, cheap, path=tmp_path / "cheap", engine="inline", progress=False)
    from_folder = document_of("fit", "true.csv", "--outcome", "loss", "--estimates", "cheap")
    from_file = document_of("fit", "true.csv", "--outcome", "loss", "--estimates", "cheap.csv")
    assert from_folder["slopes"] == pytest.approx(from_file["slopes"])


def test_true_runs_yet_to_be_filled_in_are_no_obstacle(files, tmp_path):
    result = run("suggest", "true.csv", "--outcome", "loss", "-e", "cheap.csv", "-n", "3", "-o", "next.csv")
    assert result.exit_code == 0, result.output
    found = run("fit", "next.csv", "--outcome", "loss", "--estimates", "cheap.csv")
    assert found.exit_code == 0, found.output
    assert "Surrogate: estimates" in found.stdout


def test_evaluation_shows_the_estimates_and_the_true_runs_alone(files):
    found = document_of("evaluate", "true.csv", "--outcome", "loss", "--estimates", "cheap.csv", "--splits", "2")
    names = [row["method"] for row in found["scores"]]
    assert names == ["whence", "tuned linear", "paper kernel", "size only", "estimates", "true runs"]
    scores = {row["method"]: row for row in found["scores"]}
    assert scores["whence"]["residual_error"] < scores["estimates"]["residual_error"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--estimates", "none.csv"], "none.csv: there is no such file"),
        (["--estimates", "short.csv"], "short.csv: "),
        (["--estimates", "fewer.npz"], "The fewer and the true runs must have the same tasks. They differ in: chat."),
    ],
)
def test_estimates_that_do_not_fit_are_one_sentence(arguments, sentence, files, tmp_path):
    _, cheap = files
    (tmp_path / "short.csv").write_text("code,math,loss\n1,0,0.5\n")
    whence.Outcomes(cheap.subsets[:, :4], cheap.values, TASKS[:4], ["loss"]).write(tmp_path / "fewer.npz")
    result = run("fit", "true.csv", "--outcome", "loss", *arguments)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_columns_that_the_runs_do_not_have_are_said_to_be_left_out(files, tmp_path):
    _, cheap = files
    frame = cheap.to_frame()
    frame.insert(0, "run", [f"r{i}" for i in range(len(frame))])
    frame.to_csv(tmp_path / "more.csv", index=False)
    result = run("fit", "true.csv", "--outcome", "loss", "--estimates", "more.csv")
    assert result.exit_code == 0, result.output
    assert "more.csv: columns that the runs do not have are left out: run." in " ".join(result.stderr.split())
