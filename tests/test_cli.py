"""The command line: each verb says what the library says, and every mistake gets one sentence and exit status 2."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import whence
from terminal import on_a_terminal
from whence.cli import app
from whence.cli.shell import in_flags
from whence.errors import InputError
from whence.evaluation import repeated_splits
from whence.outcomes.values import as_column

TASKS = ["code", "math", "law", "news", "chat"]
TABLE_VERBS = ["fit", "evaluate", "attribute", "interactions", "predict", "select", "suggest"]
EXTRA = {"predict": ["--subset", "code,math"], "evaluate": ["--splits", "2"], "suggest": ["-n", "2"]}
GOAL = {"select": ["--target", "loss"], "suggest": ["--target", "loss"]}
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run(*arguments):
    """Result of ``whence ARGUMENTS`` in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="whence")


def run_outside(*arguments, **more):
    """Result of ``whence ARGUMENTS`` in a process of its own."""
    code = "from whence.cli import main; main()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **more)


def document_of(*arguments):
    """JSON document that a command prints, and nothing else."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output

    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    return json.loads(result.stdout, parse_constant=refuse)


def frame_of(runs):
    frame = pd.DataFrame(runs.subsets.astype(int), columns=list(runs.task_names))
    return frame.assign(**dict(zip(runs.target_names, runs.values.T, strict=True)))


@pytest.fixture(scope="module")
def measured():
    """code and math help and are redundant, law hurts, news and chat do nothing; acc is to be maximised."""
    S = whence.Exhaustive().draw(5, 27, seed=1)
    rng = np.random.default_rng(0)
    loss = 3 - S[:, 0] - 0.8 * S[:, 1] + 0.7 * S[:, 0] * S[:, 1] + 0.6 * S[:, 2]
    Y = np.column_stack([loss, 1 - loss / 4]) + 0.02 * rng.normal(size=(len(S), 2))
    return whence.Outcomes(S, Y, TASKS, ["loss", "acc"], ["acc"])


@pytest.fixture(scope="module")
def file(measured, tmp_path_factory):
    """The runs as a user has them: with a column of text that is neither task nor outcome."""
    path = tmp_path_factory.mktemp("cli") / "runs.csv"
    frame = frame_of(measured)
    frame.insert(0, "run_id", [f"run-{place}" for place in range(len(frame))])
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def mixtures(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "mix.csv"
    S = np.random.default_rng(0).dirichlet(np.ones(3), 30)
    pd.DataFrame(S, columns=["a", "b", "c"]).assign(loss=S @ [1.0, 2.0, 3.0] + S[:, 0] * S[:, 1]).to_csv(
        path, index=False
    )
    return path


@pytest.fixture
def columns():
    """Options that give each column of the file its role."""
    return ["--outcome", "loss,acc", "--maximize", "acc", "--ignore", "run_id"]


@pytest.fixture(scope="module")
def model(measured):
    return whence.fit(measured)


# ---- tables ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("verb", TABLE_VERBS)
def test_tables_say_the_direction_and_are_plain_text_in_a_pipe(verb, file, columns):
    result = run(verb, file, *columns, *EXTRA.get(verb, []), *GOAL.get(verb, []))
    assert result.exit_code == 0, result.output
    assert "loss (lower is better)" in result.stdout
    assert "acc (higher is better)" in result.stdout
    assert "\x1b" not in result.stdout
    assert result.stderr == ""


def test_attribute_says_in_words_what_each_task_does(file, columns):
    lines = run("attribute", file, *columns, "--target", "loss").stdout.splitlines()
    verdicts = {line.split()[0]: line.split()[-1] for line in lines if line and line.split()[0] in TASKS}
    assert verdicts["code"] == verdicts["math"] == "helps"
    assert verdicts["law"] == "hurts"
    assert verdicts["news"] == "unclear"
    assert "acc" not in {line.split()[-1] for line in lines if line}


def test_interactions_put_the_redundant_pair_first(file, columns):
    lines = run("interactions", file, *columns, "--target", "acc", "--top", 1).stdout.splitlines()
    (pair,) = [line for line in lines if " + " in line and "score" not in line]
    assert pair.startswith("code + math")
    assert pair.rstrip().endswith("work against each other")


def test_a_comma_separated_list_is_the_same_as_a_repeated_option(file):
    listed = document_of("fit", file, "-O", "loss, acc", "--maximize", "acc", "--ignore", "run_id")
    repeated = document_of("fit", file, "-O", "loss", "-O", "acc", "--maximize", "acc", "--ignore", "run_id")
    for document in (listed, repeated):
        for trial in document["trials"]:
            trial.pop("seconds")
    assert listed == repeated


def test_quotes_keep_a_comma_within_a_name(tmp_path):
    path = tmp_path / "runs.csv"
    S = whence.Exhaustive().draw(3)
    whence.Outcomes(S, S.sum(1), ["a,b", "c", "d"], ["loss"]).write(path)
    document = document_of("predict", path, "-O", "loss", "--subset", '"a,b",c')
    assert document["predictions"][0]["subset"] == ["a,b", "c"]


@pytest.mark.slow
def test_of_many_targets_the_mean_is_shown(tmp_path):
    path = tmp_path / "runs.npz"
    S = whence.Exhaustive().draw(4)
    runs = whence.Outcomes(S, (S @ np.arange(4.0))[:, None] * np.arange(1, 8))
    runs.write(path)
    scores = whence.attribute(whence.fit(runs)).scores
    result = run("attribute", path)
    assert "mean over 7 targets (lower is better)" in result.stdout
    assert "--target" in result.stdout
    (row,) = [line for line in result.stdout.splitlines() if line.startswith("task_3 ")]
    assert float(row.split()[1]) == pytest.approx(scores[3].mean(), abs=0.1)
    assert row.split()[2:] == ["0", "7", "0"]
    assert "mean over 7 targets" in run("interactions", path).stdout
    assert "over 7 targets" in run("predict", path, "--subset", "task_1").stdout
    assert "mean prediction over 7 targets" in run("select", path, "--size", 2).stdout
    assert "outcome_6 (lower is better)" in run("attribute", path, "--target", "outcome_6").stdout


def test_targets_of_opposite_directions_are_counted_and_not_averaged(tmp_path):
    path = tmp_path / "runs.npz"
    S = whence.Exhaustive().draw(4)
    names = [f"outcome_{t}" for t in range(6)]
    whence.Outcomes(S, np.repeat(S[:, :1] + 1e-3 * S[:, 1:2], 6, axis=1), target_names=names, maximize=names[:2]).write(
        path
    )
    (row,) = [line for line in run("attribute", path).stdout.splitlines() if line.startswith("task_0 ")]
    assert row.split()[1:] == ["–", "2", "4", "0"]


def test_what_to_expect_is_not_called_corrected_where_nothing_was_held_out(tmp_path, file, columns):
    few = tmp_path / "few.csv"
    few.write_text("a,b,c,loss\n1,0,0,2.1\n0,1,0,2.3\n0,0,1,2.2\n1,1,0,1.9\n")
    told = run("select", few, "--outcome", "loss", "--size", 1).output
    assert "expected: the prediction, as it is, because too few runs were held out to correct it" in told
    assert (
        "corrected by how predictions like it turned out"
        in run("select", file, *columns, "--size", 2, "--target", "loss").output
    )


def test_amounts_of_data_are_shown_as_such_and_shared_out_by_their_shares(tmp_path):
    """Of runs in tokens, with one budget: the tokens of a larger one keep the shares."""
    W = np.random.default_rng(0).dirichlet([3, 2, 1], 30)
    frame = pd.DataFrame((3e9 * W).round(), columns=["web", "code", "law"])
    frame.assign(loss=2 + ((W - [0.5, 0.3, 0.2]) ** 2).sum(1)).to_csv(tmp_path / "tokens.csv", index=False)
    asked = ["select", tmp_path / "tokens.csv", "--outcome", "loss", "--total", "10B"]
    chosen = document_of(*asked)
    share = {name: weight / sum(chosen["selected"].values()) for name, weight in chosen["selected"].items()}
    lines = {line.split()[0]: line.split()[1:] for line in run(*asked).output.splitlines() if line[:4].strip() in share}
    for name, (weight, tokens) in lines.items():
        assert as_column([weight, tokens]).values == pytest.approx(np.array([3e9, 10e9]) * share[name], rel=0.01)
    assert set(lines) == set(share)


def test_of_many_tasks_both_ends_are_shown(tmp_path):
    path = tmp_path / "runs.csv"
    S = whence.Bernoulli(0.5).draw(40, 60, seed=0)
    whence.Outcomes(S, S @ np.linspace(-1, 1, 40), target_names=["loss"]).write(path)
    result = run("attribute", path, "-O", "loss")
    assert "… 10 more, use --json or --top" in result.stdout
    assert len([line for line in result.stdout.splitlines() if line.startswith("task_")]) == 30
    result = run("attribute", path, "-O", "loss", "--top", 2)
    assert "… 36 more, use --json or --top" in result.stdout
    assert len(document_of("attribute", path, "-O", "loss")["scores"]) == 40


def test_names_are_never_cut_in_a_pipe(tmp_path):
    path = tmp_path / "runs.csv"
    S = whence.Exhaustive().draw(4)
    names = [f"[bold]{'very_long_name_' * 12}{place}" for place in range(4)]
    whence.Outcomes(S, S @ np.arange(4.0) + S[:, 0] * S[:, 1], names, ["loss"]).write(path)
    for verb in ("attribute", "interactions", "select"):
        assert names[0] in run(verb, path, "-O", "loss").stdout


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-13, 1e-3, 1.0, 1e6, 1e14])
def test_numbers_of_any_size_show_their_digits(tmp_path, measured, scale):
    path = tmp_path / "runs.csv"
    frame = frame_of(measured.targets("loss"))
    frame.assign(loss=scale * frame["loss"]).to_csv(path, index=False)
    lines = run("attribute", path, "-O", "loss").stdout.splitlines()
    scores = {line.split()[0]: float(line.split()[1]) for line in lines if line and line.split()[0] in TASKS}
    expected = whence.attribute(whence.fit(whence.read_outcomes(path, "loss")))
    assert scores["code"] == pytest.approx(expected.scores[0, 0], rel=0.03)


# ---- JSON ------------------------------------------------------------------------------------------------


def records(frame):
    """Rows of a frame as JSON gives them back."""
    return json.loads(frame.to_json(orient="records", double_precision=15))


def assert_same(found, expected):
    """Equal, with numbers to the digits that a file and JSON keep."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            same = pytest.approx(other[key], rel=1e-6, abs=1e-9) if isinstance(other[key], float) else other[key]
            assert one[key] == same, key


@pytest.mark.slow
@pytest.mark.parametrize("verb", TABLE_VERBS)
def test_json_is_one_document_and_names_what_it_is_about(verb, file, columns):
    document = document_of(verb, file, *columns, *EXTRA.get(verb, []), *GOAL.get(verb, []))
    if verb != "evaluate":
        assert document["runs"] == 27
        assert document["tasks"] == TASKS
        assert document["targets"] == {"loss": "lower is better", "acc": "higher is better"}


def test_fit_gives_the_numbers_of_the_library(file, columns, model):
    document = document_of("fit", file, *columns)
    quality = {name: None if np.isnan(value) else value for name, value in model.quality().items()}
    assert document["quality"] == pytest.approx(quality)
    assert document["surrogates"] == {"loss": model.parts[0].name, "acc": model.parts[0].name}
    (used,) = [trial for trial in document["trials"] if trial["name"] == model.parts[0].name]
    assert used["lds"] == pytest.approx(quality["lds"])
    weights = {trial["name"]: trial["weight"] for trial in document["trials"] if trial["weight"]}
    assert weights == pytest.approx({name: weight.mean() for name, weight in model.parts[0].weights.items()})
    assert np.mean([row["lds"] for row in document["per_target"]]) == pytest.approx(quality["lds"])


def test_evaluate_gives_the_numbers_of_the_library(file, columns, measured):
    document = document_of("evaluate", file, *columns, "--splits", 2, "--seed", 3)
    methods = {
        "whence": lambda train: whence.fit(train, seed=3),
        "tuned linear": lambda train: whence.fit(train, surrogate=whence.AdditiveSurrogate()),
    }
    expected = repeated_splits(measured, methods, n_splits=2, seed=3)
    scores = {row["method"]: row["lds"] for row in document["scores"]}
    assert list(scores) == ["whence", "tuned linear", "paper kernel", "size only"]
    assert scores["whence"] == pytest.approx(expected.lds[0].mean())
    assert scores["tuned linear"] == pytest.approx(expected.lds[1].mean())
    gap = document["differences"]["lds"]["tuned linear"]
    assert [gap["mean"], gap["low"], gap["high"]] == pytest.approx(expected.difference("whence", "tuned linear"))
    assert document["noise_ceiling"]["mean"] is None
    assert "measured more than once" in document["noise_ceiling"]["reason"]


@pytest.mark.parametrize("rule", ["shapley", "banzhaf", "inclusion"])
def test_attribute_gives_the_numbers_of_the_library(rule, file, columns, model):
    document = document_of("attribute", file, *columns, "--rule", rule)
    assert document["rule"] == rule
    assert_same(document["scores"], records(whence.attribute(model, rule).to_frame()))


def test_attribute_takes_the_probability_of_inclusion(file, columns, model):
    document = document_of("attribute", file, *columns, "--rule", "inclusion", "--keep-prob", 0.3)
    assert_same(document["scores"], records(whence.attribute(model, "inclusion", keep_prob=0.3).to_frame()))


def test_interactions_give_the_numbers_of_the_library(file, columns, model):
    document = document_of("interactions", file, *columns, "--rule", "banzhaf", "--top", 3)
    assert_same(document["pairs"], records(whence.interactions(model, "banzhaf").to_frame(top=3)))


def test_predict_gives_the_numbers_of_the_library(file, columns, model, measured):
    subsets = [["code", "law"], ["chat"], []]
    options = [part for subset in subsets for part in ("--subset", ",".join(subset))]
    document = document_of("predict", file, *columns, *options)
    mean, std = model.predict([measured.subset(subset) for subset in subsets], return_std=True)
    rows = document["predictions"]
    assert [row["subset"] for row in rows] == [subset for subset in subsets for _ in "12"]
    assert [row["predicted"] for row in rows] == pytest.approx(mean.ravel().tolist())
    assert [row["high"] - row["low"] for row in rows] == pytest.approx((2 * 1.6448536 * std).ravel().tolist())
    known = {
        tuple(measured.names_of(row)): values for row, values in zip(measured.subsets, measured.values, strict=True)
    }
    assert rows[0]["measured"] == pytest.approx(known["code", "law"][0])
    assert rows[-1]["measured"] is None


def test_predict_reads_subsets_from_a_file_with_other_columns(file, columns, tmp_path):
    path = tmp_path / "ask.csv"
    pd.DataFrame({"note": ["x"], "law": [1], **{name: [0] for name in TASKS if name != "law"}}).to_csv(
        path, index=False
    )
    from_file = document_of("predict", file, *columns, "--subsets", path)
    assert from_file["predictions"] == document_of("predict", file, *columns, "--subset", "law")["predictions"]


def test_select_gives_the_numbers_of_the_library(file, columns, model):
    options = ["--size", 2, "--include", "law", "--exclude", "news", "--target", "acc", "--risk", 1]
    document = document_of("select", file, *columns, *options)
    expected = whence.select(model, size=2, include=["law"], exclude=["news"], target="acc", risk=1)
    assert document["selected"] == list(expected.tasks)
    assert document["value"] == pytest.approx(expected.value)
    assert document["best_run"] == pytest.approx(expected.best_run)
    assert [row["predicted"] for row in document["predictions"]] == pytest.approx(expected.predicted.tolist())


def test_select_says_what_to_expect_of_the_best_of_many(file, columns, model):
    expected = whence.select(model, target="loss")
    rows = document_of("select", file, *columns, "--target", "loss")["predictions"]
    for name in ("predicted", "expected", "low", "high"):
        np.testing.assert_allclose([row[name] for row in rows], getattr(expected, name), rtol=1e-9)
    assert "expected" in run("select", file, *columns, "--target", "loss").stdout


def test_questions_outside_the_range_of_the_runs_are_named(tmp_path):
    path = tmp_path / "runs.csv"
    rng = np.random.default_rng(0)
    rows = [",".join([*"abcdefghij", "loss"])]
    for _ in range(20):
        subset = np.isin(np.arange(10), rng.permutation(10)[:3]).astype(int)
        rows.append(",".join(map(str, [*subset, 3 - subset.sum() - 0.1 * subset[0]])))
    path.write_text("\n".join(rows))
    asked = run("predict", path, "-O", "loss", "--subset", "a,b,c", "--subset", "a,b,c,d,e,f,g,h")
    assert "1 of 2 subsets are outside the range of the runs (row 1: it has 8 tasks, and the runs 3)" in asked.stderr
    assert len(document_of("select", path, "-O", "loss")["selected"]) == 3
    wide = run("select", path, "-O", "loss", "--size", 8)
    assert "it has 8 tasks, and the runs 3" in wide.stderr
    assert "extrapolation" not in run("select", path, "-O", "loss").stderr


def test_select_keeps_to_a_budget_and_selects_by_attribution(file, columns, model):
    options = ["--target", "loss", "--cost", "code=2,math=3", "--cost", "law=1", "--budget", 2]
    costs = {"code": 2, "math": 3, "law": 1}
    expected = whence.select(model, target="loss", costs=costs, budget=2)
    assert document_of("select", file, *columns, *options)["selected"] == list(expected.tasks)
    document = document_of("select", file, *columns, "--target", "loss", "--size", 2, "--by", "attribution")
    assert document["selected"] == list(whence.select(model, target="loss", size=2, by="attribution").tasks)


@pytest.fixture(scope="module")
def half(tmp_path_factory, measured):
    """Half of the runs, so that some are left to suggest; acc first."""
    path = tmp_path_factory.mktemp("cli") / "half.npz"
    measured.rows(np.arange(0, 27, 2)).targets(["acc", "loss"]).write(path)
    return path


@pytest.mark.parametrize("by", ["variance", "improvement"])
def test_suggest_gives_the_subsets_of_the_library(by, half):
    document = document_of("suggest", half, "-n", 3, "--by", by, "--target", "acc")
    runs = whence.read_outcomes(half)
    expected = whence.suggest(whence.fit(runs), 3, by=by, target="acc")
    suggested = [row["subset"] for row in document["suggestions"] if row["target"] == "acc"]
    assert suggested == [runs.names_of(subset) for subset in expected.subsets]


def test_suggestions_are_written_as_runs_to_fill_in(half, tmp_path):
    path = tmp_path / "next.csv"
    result = run("suggest", half, "-n", 2, "-o", path)
    assert result.exit_code == 0, result.output
    assert "next.csv" in result.stdout
    written = whence.read_outcomes(path, ["acc", "loss"])
    assert written.task_names == tuple(TASKS)
    assert np.isnan(written.values).all()
    assert document_of("predict", half, "--subsets", path)["predictions"][0]["subset"] == written.names_of(
        written.subsets[0]
    )


# ---- notes -----------------------------------------------------------------------------------------------


def test_an_outcome_that_sounds_like_a_score_gets_a_hint(file):
    result = run("fit", file, "-O", "acc", "--ignore", "run_id,loss", "--json")
    assert "note: Lower acc is assumed to be better. If higher is, add --maximize acc.\n" in result.stderr
    assert json.loads(result.stdout)["targets"] == {"acc": "lower is better"}
    assert "--maximize" not in run("fit", file, "-O", "loss", "--ignore", "run_id,acc").stderr


def test_each_warning_is_one_note_on_stderr(tmp_path, measured):
    path = tmp_path / "runs.csv"
    frame_of(measured.targets("loss")).assign(always=1).to_csv(path, index=False)
    for verb in ("attribute", "evaluate"):
        result = run(verb, path, "-O", "loss", *EXTRA.get(verb, []))
        assert result.exit_code == 0, result.output
        assert result.stderr.splitlines() == [
            "note: Tasks with the same weight in every run, so that their effect cannot be seen: always."
        ]


FLAGS = {
    "rule": ["--rule"],
    "target": ["--target"],
    "ignore": ["--ignore"],
    "outcome": ["--outcome", "-O"],
    "n": ["-n"],
}


@pytest.mark.parametrize(
    ("message", "in_python", "on_the_command_line"),
    [
        (
            InputError("Prefer {rule}, or", rule="inclusion"),
            "Prefer rule='inclusion', or",
            "Prefer --rule inclusion, or",
        ),
        (InputError("with {target}.", target=None), "with 'target'.", "with --target."),
        (InputError("drop {ignore}.", ignore=["a b"]), "drop ignore=['a b'].", "drop --ignore 'a b'."),
        (InputError("name {outcomes}.", outcomes=["NAME"]), "name outcomes=['NAME'].", "name --outcome NAME."),
        (InputError("must be 1.", parameter="n", of="f"), "The 'n' parameter of f must be 1.", "-n must be 1."),
        (InputError("use {rank}.", rank=4).at("a.csv"), "a.csv: use rank=4.", "a.csv: use rank=4."),
        (InputError("the task '{0}' of {rule}"), "the task '{0}' of {rule}", "the task '{0}' of {rule}"),
    ],
)
def test_messages_name_keywords_in_python_and_flags_on_the_command_line(message, in_python, on_the_command_line):
    assert str(message) == in_python
    assert in_flags(message, FLAGS) == on_the_command_line


# ---- tables that are small or odd ------------------------------------------------------------------------


def test_one_task_is_enough(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("a,loss\n1,2.0\n0,3.0\n1,2.1\n0,3.1\n")
    for verb in ("fit", "attribute", "interactions", "predict", "select"):
        result = run(verb, path, "-O", "loss", *(["--subset", "a"] if verb == "predict" else []))
        assert result.exit_code == 0, result.output
        assert document_of(verb, path, "-O", "loss", *(["--subset", "a"] if verb == "predict" else []))["tasks"] == [
            "a"
        ]


def test_a_constant_target_is_said_to_be_one(tmp_path, measured):
    path = tmp_path / "runs.csv"
    frame_of(measured.targets("loss")).assign(loss=1.0).to_csv(path, index=False)
    for verb in TABLE_VERBS[:-1]:
        result = run(verb, path, "-O", "loss", *EXTRA.get(verb, []), "--json")
        assert result.exit_code == 0, result.output
        assert "NaN" not in result.stdout
        assert "note: Targets with the same value in every run, so that no effect can be seen: loss." in result.stderr


@pytest.mark.slow
def test_mixtures_can_be_predicted_selected_and_suggested(mixtures, tmp_path):
    document = document_of("predict", mixtures, "-O", "loss", "--subset", "a=0.5,c=0.5")
    assert document["predictions"][0]["subset"] == {"a": 0.5, "c": 0.5}
    assert document["predictions"][0]["predicted"] == pytest.approx(2.0, abs=0.2)
    assert max(document_of("select", mixtures, "-O", "loss")["selected"].items(), key=lambda item: item[1])[0] == "a"
    assert document_of("attribute", mixtures, "-O", "loss", "--rule", "shift")["scores"][0]["task"] == "a"
    path = tmp_path / "next.csv"
    assert run("suggest", mixtures, "-O", "loss", "-n", 2, "-o", path).exit_code == 0
    assert run("predict", mixtures, "-O", "loss", "--subsets", path).exit_code == 0


# ---- mistakes --------------------------------------------------------------------------------------------

GOOD = "a,b,loss\n" + "".join(f"{k % 2},{k // 2 % 2},{k}.5\n" for k in range(8))
MISTAKES = {
    "empty file": ("", ["fit", "-O", "loss"], "the file is empty"),
    "unknown outcome": (GOOD, ["fit", "-O", "los"], "Did you mean 'loss'?"),
    "no outcome": (GOOD, ["fit"], "--outcome NAME"),
    "unknown direction": (GOOD, ["fit", "-O", "loss", "--maximize", "acc"], "There is no target 'acc'"),
    "unknown column to ignore": (GOOD, ["fit", "-O", "loss", "--ignore", "c"], "does not exist"),
    "text": (GOOD + "0,1,high\n", ["fit", "-O", "loss"], "'high' is not a number"),
    "text among numbers": ("c," + GOOD.replace("\n", "\n0,", 8) + "\nx,1,1,2\n", ["fit", "-O", "loss"], "--ignore c"),
    "infinite": (GOOD + "0,1,inf\n", ["attribute", "-O", "loss"], "an outcome must be finite"),
    "negative weight": (GOOD + "-1,1,2\n", ["fit", "-O", "loss"], "a weight must be at least 0"),
    "one subset": ("a,b,loss\n" + "1,0,1\n" * 5, ["fit", "-O", "loss"], "All runs have the same subset"),
    "one subset, evaluated": ("a,b,loss\n" + "1,0,1\n" * 5, ["evaluate", "-O", "loss"], "distinct subset"),
    "two runs": ("a,b,loss\n1,0,1\n0,1,2\n", ["fit", "-O", "loss"], "At least 3 measured runs"),
    "nothing measured": (re.sub(r"\d\.5", "", GOOD), ["fit", "-O", "loss"], "No run has a measured value of loss"),
    "unknown target": (GOOD, ["attribute", "-O", "loss", "--target", "acc"], "There is no target 'acc'"),
    "odd probability": (
        GOOD, ["attribute", "-O", "loss", "--rule", "inclusion", "--keep-prob", "2"], "--keep-prob must",
    ),
    "nothing to predict": (GOOD, ["predict", "-O", "loss"], "--subset"),
    "unknown task to predict": (GOOD, ["predict", "-O", "loss", "--subset", "a,z"], "There is no task 'z'"),
    "no file of subsets": (GOOD, ["predict", "-O", "loss", "--subsets", "none.csv"], "none.csv: there is no such file"),
    "unknown task to include": (GOOD, ["select", "-O", "loss", "--include", "z"], "There is no task 'z'"),
    "unknown task to pay for": (GOOD, ["select", "-O", "loss", "--cost", "z=1", "--budget", "1"], "no task 'z'"),
    "cost that is no number": (GOOD, ["select", "-O", "loss", "--cost", "a", "--budget", "1"], "such as a=2"),
    "cost without budget": (GOOD, ["select", "-O", "loss", "--cost", "a=1"], "go together"),
    "impossible size": (GOOD, ["select", "-O", "loss", "--size", "3"], "--size must be from 1 to 2"),
    "impossible constraints": (
        GOOD, ["select", "-O", "loss", "--include", "a,b", "--max-size", "1"], "No subset meets the constraints",
    ),
    "in and out": (GOOD, ["select", "-O", "loss", "--include", "a", "--exclude", "a"], "both included and excluded"),
    "negative risk": (GOOD, ["select", "-O", "loss", "--risk", "-1"], "--risk must be zero or more"),
    "too many suggestions": (GOOD, ["suggest", "-O", "loss", "-n", "99"], "has been measured"),
    "too few runs to split": ("a,loss\n1,1\n0,2\n1,3\n", ["evaluate", "-O", "loss"], "A split needs"),
    "odd fraction": (GOOD, ["evaluate", "-O", "loss", "--train-fraction", "2"], "--train-fraction must"),
}  # fmt: skip


def assert_refused(result, sentence):
    """Exit status 2, one line on stderr besides notes and a command to try, nothing on stdout, no traceback."""
    assert result.exit_code == 2, result.output
    told = [line for line in result.stderr.splitlines() if not line.startswith(("note: ", "Try: whence "))]
    assert len(told) == 1
    assert told[0].startswith("error: ")
    assert sentence in told[0]
    assert result.stdout == ""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_sentence(mistake, tmp_path, monkeypatch):
    text, (verb, *options), sentence = MISTAKES[mistake]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs.csv").write_text(text)
    assert_refused(run(verb, "runs.csv", *options), sentence)
    assert [path.name for path in tmp_path.iterdir()] == ["runs.csv"]


@pytest.mark.parametrize("verb", TABLE_VERBS)
def test_a_file_that_is_not_there_is_a_mistake(verb, tmp_path):
    assert_refused(run(verb, tmp_path / "none.csv", "-O", "loss"), "there is no such file")
    assert_refused(run(verb, tmp_path, "-O", "loss"), "this is a folder")


@pytest.mark.parametrize(
    ("verb", "options", "sentence"),
    [
        ("attribute", ["--rule", "shapley"], "--rule shift"),
        ("interactions", ["--rule", "banzhaf"], "mixture weights"),
        ("predict", ["--subset", "a"], "--subset a=0.7"),
        ("select", ["--by", "attribution", "--size", "2"], "not for mixtures"),
    ],
)
def test_what_mixtures_have_no_answer_to_is_refused(verb, options, sentence, mixtures):
    assert_refused(run(verb, mixtures, "-O", "loss", *options), sentence)


@pytest.mark.parametrize(("name", "sentence"), [("next.doc", "must end in"), ("none/next.csv", "cannot be written")])
def test_nothing_is_left_of_a_file_that_cannot_be_written(half, tmp_path, name, sentence):
    assert_refused(run("suggest", half, "-n", 1, "-o", tmp_path / name), sentence)
    assert list(tmp_path.iterdir()) == []


def test_suggestions_never_replace_the_runs(tmp_path, measured):
    path = tmp_path / "runs.csv"
    frame_of(measured.rows(np.arange(0, 27, 2))).to_csv(path, index=False)
    before = path.read_text()
    other = tmp_path / "x" / ".." / "runs.csv"
    (tmp_path / "x").mkdir()
    for output in (path, other):
        assert_refused(
            run("suggest", path, "-O", "loss,acc", "--maximize", "acc", "--target", "acc", "-o", output), "itself"
        )
    assert path.read_text() == before


@pytest.mark.parametrize(
    "arguments",
    [["attribute", "--rule", "best"], ["suggest", "-n", "0"], ["fit", "--seed", "-1"], ["fly"], ["fit", "--wrong"]],
)
def test_wrong_usage_is_status_2(arguments, file, columns):
    verb, *options = arguments
    result = run(verb, file, *columns, *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_a_defect_keeps_its_traceback(file, columns, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(whence, "fit", broken)
    assert isinstance(run("fit", file, *columns).exception, ZeroDivisionError)


# ---- processes -------------------------------------------------------------------------------------------


def test_help_reads_as_the_flow_and_every_verb_has_help():
    text = run("--help").stdout
    verbs = ["demo", *TABLE_VERBS]
    assert sorted(verbs, key=lambda verb: text.rindex(f" {verb} ")) == verbs
    assert "whence attribute runs.csv --outcome loss" in text
    for verb in verbs:
        assert run(verb, "--help").exit_code == 0
    assert run("--version").stdout == f"whence {whence.__version__}\n"


def test_help_needs_nothing_heavy():
    code = "import sys, whence.cli; print({'numpy', 'pandas', 'scipy', 'sklearn'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"


@pytest.mark.slow
def test_a_process_of_its_own_says_the_same(file, columns):
    outside = run_outside("attribute", file, *columns, "--json")
    assert outside.returncode == 0, outside.stderr
    assert json.loads(outside.stdout) == document_of("attribute", file, *columns)
    refused = run_outside("fit", file, "-O", "los")
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 2  # what is wrong, and the command that is right


@pytest.mark.slow
def test_characters_that_an_encoding_lacks_are_no_error(file, columns):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert run_outside("fit", file, *columns, env=environment).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120])
def test_on_a_terminal_verdicts_are_coloured_and_lines_fit(file, columns, width):
    program = "from whence import cli, progress; progress.PATIENCE_SECONDS = 0; cli.main()"  # with every bar shown
    status, text = on_a_terminal([sys.executable, "-c", program, "attribute", str(file), *columns], width)
    assert status == 0
    lines = text.splitlines()  # also where a bar returns to the beginning of its line
    assert any("\x1b[32mhelps" in line for line in lines)
    assert any("\x1b[31mhurts" in line for line in lines)
    assert max(len(ANSI.sub("", line)) for line in lines) <= width


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(file, columns):
    command = [sys.executable, "-c", "from whence.cli import main; main()", "attribute", str(file), *columns]
    for options in ([], ["--json"]):
        with subprocess.Popen(command + options, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            process.stdout.close()
            told = process.stderr.read()
        assert process.returncode == 0, told
        assert told == ""


@pytest.mark.slow
def test_ctrl_c_is_quiet():
    program = """
import time
from whence import cli, demo
demo.digits_set_function = lambda seed: (print("asleep", flush=True), time.sleep(600))
cli.main()
"""
    command = [sys.executable, "-c", program, "demo"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

    def heed_ctrl_c():  # which shells switch off for what they run in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(command, preexec_fn=heed_ctrl_c, **pipes) as process:
        assert "asleep\n" in iter(process.stdout.readline, "")
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
    assert process.returncode == 130, told
    assert "Traceback" not in told
