"""Recorded runs: unchanged, made by what they say, and a leaderboard that counts what a plain loop counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from sklearn.linear_model import RidgeCV
from typer.testing import CliRunner

import whence
from whence.cli import app
from whence.cli.benchmark import _Estimates
from whence.datasets import available, leaderboard, load, recorded
from whence.datasets.leaderboard import Leaderboard, averaged, some_targets
from whence.demo import digits_set_function
from whence.errors import InputError
from whence.surrogates.peers import fitting, peers

MOST_BYTES = 25e6


@pytest.mark.parametrize("name", recorded.index())
def test_every_set_can_be_loaded_and_says_how_it_was_made(name):
    runs, known = load(name), recorded.index()[name]
    assert (runs.n_runs, runs.n_tasks, runs.n_targets) == (known.runs, known.tasks, known.targets)
    assert runs.provenance["command"] == known.command
    assert known.command.startswith("python experiments/")
    assert not np.isnan(runs.values).any()


def test_all_of_them_are_small():
    assert sum(path.stat().st_size for path in recorded.FOLDER.iterdir()) < MOST_BYTES
    assert {path.stem for path in recorded.FOLDER.glob("*.npz")} == set(available().index)


def test_a_recorded_set_is_what_its_maker_makes():
    """Of three groups, by the set function itself."""
    names = ["evens", "odds", "mislabelled_1"]
    runs, again = load("digits"), digits_set_function(tasks=names)
    columns = [runs.task_names.index(name) for name in names]
    alone = runs.subsets.sum(1) == runs.subsets[:, columns].sum(1)
    for row, value in zip(again.subsets, again.values, strict=True):
        found = runs.values[alone & (runs.subsets[:, columns] == row).all(1)]
        np.testing.assert_allclose(found, [value], rtol=1e-6)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "FOLDER", tmp_path / "runs")
    recorded.record("tiny", whence.Outcomes(np.eye(3), [0.1, 0.2, 0.3]), "Three runs.", "python make.py")
    return tmp_path / "runs"


def test_what_is_recorded_is_read_back(folder):
    assert load("tiny").values.ravel().tolist() == np.array([0.1, 0.2, 0.3], np.float32).astype(float).tolist()
    recorded.record("other", whence.Outcomes(np.eye(3), [1.0, 2.0, 3.0]), "Three others.", "python make.py other")
    assert list(available().index) == ["other", "tiny"]


@pytest.mark.parametrize(
    ("name", "harm", "message"),
    [
        ("tin", None, "There is no data set 'tin'. Did you mean 'tiny'?"),
        ("tiny", "remove", "The data set 'tiny' is not installed. Make it with: python make.py"),
        ("tiny", "change", "does not match its checksum"),
    ],
)
def test_sets_that_are_not_there_or_not_whole_are_refused(folder, name, harm, message):
    file = folder / "tiny.npz"
    if harm == "remove":
        file.unlink()
    if harm == "change":
        raw = bytearray(file.read_bytes())
        raw[len(raw) // 2] ^= 1
        file.write_bytes(raw)
    with pytest.raises(InputError, match=message.replace("?", r"\?").replace(".", r"\.")):
        load(name)


def test_the_leaderboard_is_a_plain_loop():
    """Splits drawn as `repeated_splits` says, a ridge fitted by hand, and Spearman's correlation of scipy."""
    found = leaderboard({"ridge": fitting(RidgeCV())}, names=["digits_network"], sizes=[40], n_splits=2).frame.iloc[0]
    runs = load("digits_network")
    distinct = runs.distinct()[0]
    place = np.array([np.flatnonzero((distinct == row).all(1))[0] for row in runs.subsets])
    rng, per_query, of_mean = np.random.default_rng(0), [], []
    for _ in range(2):
        training = np.isin(place, rng.permutation(len(distinct))[:40])
        S, Y = runs.subsets, runs.values
        predicted = RidgeCV().fit(S[training], Y[training]).predict(S[~training])
        per_query.append(np.mean([spearmanr(p, y)[0] for p, y in zip(predicted.T, Y[~training].T, strict=True)]))
        mean = RidgeCV().fit(S[training], Y[training].mean(1)).predict(S[~training])
        of_mean.append(spearmanr(mean, Y[~training].mean(1))[0])
    np.testing.assert_allclose([found["lds"], found["lds_of_mean"]], [np.mean(per_query), np.mean(of_mean)], rtol=1e-9)


def test_targets_that_run_the_other_way_are_turned_round_in_the_mean():
    runs = whence.Outcomes(np.eye(2), [[1.0, 5.0], [2.0, 3.0]], target_names=["loss", "acc"], maximize=["acc"])
    mean = averaged(runs)
    assert mean.values.ravel().tolist() == [-2.0, -0.5]
    assert mean.maximize == (False,)


def test_the_leaderboard_takes_tables_of_ones_own():
    own = leaderboard(peers(["size only"]), names={"mine": load("digits")}, sizes=[10], n_splits=2).frame
    named = leaderboard(peers(["size only"]), names=["digits"], sizes=[10], n_splits=2).frame
    assert own["data"].tolist() == ["mine"]
    assert own["lds"].tolist() == named["lds"].tolist()


def test_fewer_targets_change_the_score_per_target_and_not_that_of_the_mean():
    runs = load("digits_network")
    few = some_targets(runs, 10)
    assert few.n_targets == 10
    assert [few.target_names.index(name) for name in runs.target_names if name in few.target_names] == list(range(10))
    asked = {"sizes": [20], "n_splits": 2}
    every, cut, own = (
        leaderboard(peers(["tuned linear"]), names={"it": table}, **asked, **more).frame.iloc[0]
        for table, more in ((runs, {}), (runs, {"most_targets": 10}), (few, {}))
    )
    assert cut["lds_of_mean"] == every["lds_of_mean"] != own["lds_of_mean"]
    assert cut["lds"] == own["lds"] != every["lds"]


def test_a_set_too_small_for_a_size_is_left_out():
    with pytest.raises(InputError, match="twice as many subsets"):
        leaderboard(peers(["size only"]), names=["digits"], sizes=[600])


@pytest.mark.slow
def test_the_verb_prints_a_method_of_ones_own_beside_whence(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from sklearn.linear_model import Ridge\nridge = Ridge()\nnothing = 3\n"
        "class Plain:\n    fit = predict = lambda self, *given: self\nplain = Plain()\n"
        "def late():\n    return Ridge()\n"
        "def evens(subset, seed):\n    return float('evens' in subset)\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = ["benchmark", "mine.py:ridge", "--data", "digits", "--runs", "20", "--splits", "2"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "digits, 20 runs to learn from" in shown.output
    assert "Judged by" not in shown.output
    cut = CliRunner().invoke(
        app, ["benchmark", "--data", "digits_network", "--runs", "10", "--splits", "2", "--targets", "3"]
    )
    assert "Judged by 3 targets, drawn once (--targets): digits_network (of 100)." in " ".join(cut.output.split())
    document = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    scores = {row["method"]: row["lds"] for row in document["scores"]}
    assert set(scores) == {"whence", "tuned linear", "paper kernel", "size only", "mine.py:ridge"}
    assert scores["whence"] > scores["size only"]
    estimated = [*arguments, "mine.py:evens", "--json"]
    scores = {row["method"]: row for row in json.loads(CliRunner().invoke(app, estimated).stdout)["scores"]}
    runs = load("digits")
    evens = runs.subsets[:, runs.task_names.index("evens")]
    assert scores["mine.py:evens"]["lds"] == pytest.approx(spearmanr(evens, runs.values[:, 0])[0], abs=0.05)
    for name, why in (
        ("nothing", "must be a regressor with fit and predict"),
        ("late", "It takes ()"),
        ("plain", "Derive Plain from sklearn.base.BaseEstimator."),
        ("rodge", "Did you mean 'ridge'?"),
        ("zzz", "There are: ridge, plain, late, evens."),
    ):
        refused = CliRunner().invoke(app, ["benchmark", f"mine.py:{name}"])
        assert refused.exit_code == 2
        assert why in " ".join(refused.stderr.split())


def test_a_method_that_fails_has_no_mean_and_the_exit_status_says_so(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from sklearn.linear_model import Ridge\nclass Few(Ridge):\n"
        "    def fit(self, X, y):\n"
        "        if X.shape[1] > 10: raise ValueError('too many tasks')\n        return super().fit(X, y)\n"
        "class Never(Ridge):\n    def fit(self, X, y): raise RuntimeError('no licence')\n"
        "few, never = Few(), Never()\n"
    )
    monkeypatch.chdir(tmp_path)
    asked = ["benchmark", "mine.py:few", "--runs", "10", "--splits", "2", "--targets", "2"]
    fine = CliRunner().invoke(app, [*asked, "--data", "digits"])
    assert fine.exit_code == 0, fine.output
    both = [*asked, "mine.py:never", "--data", "digits", "--data", "newsgroups"]
    shown = CliRunner().invoke(app, both)
    assert shown.exit_code == 1
    text = " ".join(shown.output.split())
    assert "mine.py:never failed everywhere: RuntimeError: no licence" in text
    assert "mine.py:few has no mean, since it failed on newsgroups." in text
    assert "mine.py:few –" in text
    document = CliRunner().invoke(app, [*both, "--json"])
    assert document.exit_code == 1
    failed = {(row["method"], row["data"]): row["failed"] for row in json.loads(document.stdout)["scores"]}
    assert failed["mine.py:few", "digits"] == 0 < failed["mine.py:few", "newsgroups"]
    assert failed["whence", "newsgroups"] == 0


def test_a_mean_over_data_sets_is_over_all_of_them():
    rows = [("a", "x", 10, 0.2), ("a", "y", 10, 0.4), ("b", "x", 10, 0.9), ("b", "y", 10, np.nan), ("a", "x", 20, 0.5)]
    frame = pd.DataFrame([(*row, 0) for row in rows], columns=["method", "data", "runs", "lds", "failed"])
    summary = Leaderboard(frame, 1).summary()
    assert summary.loc["a"].to_dict() == pytest.approx({10: 0.3, 20: 0.5})
    assert summary.loc["b"].isna().all()
    assert list(summary.index) == ["a", "b"]


def test_outcomes_of_a_function_are_matched_to_targets_by_name_and_averaged_for_the_mean():
    """Against the table itself, whose rows the function looks up and returns in another order."""
    runs = load("mt10_cloning_success")
    known = {row.tobytes(): values for row, values in zip(runs.subsets, runs.values, strict=True)}

    def looked_up(subset, seed):
        values = known[np.asarray(subset).tobytes()]
        return dict(reversed(list(zip(runs.target_names, values, strict=True))))

    looked_up.replicates = 2
    rows = runs.subsets[:5]
    expected = np.array([known[row.tobytes()] for row in rows])
    np.testing.assert_array_equal(_Estimates(looked_up, runs).predict(rows), expected)
    np.testing.assert_allclose(_Estimates(looked_up, averaged(runs)).predict(rows)[:, 0], expected.mean(1))
    with pytest.raises(InputError, match=r"each of the 10 targets .*success\[reach\].* Got 1 "):
        _Estimates(lambda subset, seed: 1.0, runs).predict(rows)


@pytest.mark.parametrize("name", recorded.index())
def test_the_recorder_of_a_set_is_there(name):
    command = recorded.index()[name].command.split()
    text = (Path(__file__).parent.parent / command[1]).read_text(encoding="utf-8")
    assert command[1] != "experiments/record.py" or f"def {command[2]}()" in text
