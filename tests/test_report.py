"""The report without a browser: what is exported, what is said, and what the file is."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
from typer.testing import CliRunner

import whence
from browser import inflated, inflated_text
from whence.answers.attribution import Attribution
from whence.answers.rules import RULES
from whence.answers.suggestion import ALL_MEASURED
from whence.cli import app
from whence.display.report import collect, write_page
from whence.display.report.answer import (
    answer,
    facts_of,
    next_in_words,
    subset_in_words,
    tasks_in_words,
    trust_in_words,
)
from whence.display.report.export import exported
from whence.display.report.findings import _pairs, _total
from whence.display.report.packing import deflated, pack, pack_shown
from whence.evaluation import LearningCurve, noise_ceiling
from whence.surrogates.averaged import AveragedSurrogate
from whence.surrogates.fused import FusedSurrogate

TASKS = ["code", "math", "law", "news", "chat"]


def unpacked(packed):
    if packed["type"] == "shown":
        return shown(**packed)
    raw = base64.b64decode(packed["data"])
    size = int(np.prod(packed["shape"]))
    kinds = {"f64": "<f8", "f32": "<f4", "u32": "<u4", "u8": "u1"}
    if packed["type"] == "bits":
        values = np.array([(raw[i // 8] >> (7 - i % 8)) & 1 for i in range(size)], dtype=float)
    else:
        values = np.frombuffer(raw, kinds[packed["type"]]).astype(float)
    return values.reshape(packed["shape"])


def shown(type, shape, data, places, least):
    allowed = [chr(code) for code in range(0x23, 0x110000) if code != 0x5C and not 0xD800 <= code < 0xE000]
    place = {character: n for n, character in enumerate(allowed[: max(map(ord, data), default=0)])}
    signed = [0 if n == 0 else -(n + 1) // 2 if n % 2 else n // 2 for n in range(len(place))]
    steps = [np.nan if c == " " else signed[place[c]] if least is None else least + place[c] for c in data]
    return np.reshape(np.array(steps, dtype=float) / 10.0**places, shape)


@pytest.fixture(scope="module")
def runs():
    """code and math help and are redundant, law hurts, news and chat do nothing."""
    S = whence.Exhaustive().draw(5, 29, seed=1)
    rng = np.random.default_rng(0)
    loss = 3 - S[:, 0] - 0.8 * S[:, 1] + 0.7 * S[:, 0] * S[:, 1] + 0.6 * S[:, 2]
    Y = np.column_stack([loss, 1 - loss / 4]) + 0.02 * rng.normal(size=(len(S), 2))
    return whence.Outcomes(S, Y, TASKS, ["loss", "acc"], ["acc"], {"source": "runs.csv"})


@pytest.fixture(scope="module")
def model(runs):
    return whence.fit(runs)


@pytest.fixture(scope="module")
def document(model):
    return collect(model)


def text_of(phrases):
    return "".join(text for text, _ in phrases)


# ---- arrays ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["f64", "f32", "u32", "u8", "bits"])
def test_packed_arrays_come_back(kind):
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2, (3, 7)) if kind == "bits" else rng.integers(0, 200, (3, 7))
    np.testing.assert_array_equal(unpacked(pack(values, kind)), values)


def test_numbers_come_back_as_they_are_shown():
    values = np.array([0.12345, -2.5, np.nan, 1234.5678])
    np.testing.assert_array_equal(unpacked(pack_shown(values, 2)), [0.12, -2.5, np.nan, 1234.57])
    np.testing.assert_array_equal(unpacked(pack_shown(values[2:], 2)), [np.nan, 1234.57])
    every = np.arange(-40_000, 40_000) / 100  # past the backslash and the codes that are halves of others
    np.testing.assert_array_equal(unpacked(pack_shown(every, 2)), every)
    assert unpacked(pack_shown(np.empty((0, 3)), 2)).shape == (0, 3)
    np.testing.assert_allclose(unpacked(pack_shown([1.2345e-12], 14)), [1.2345e-12], rtol=1e-6)
    np.testing.assert_array_equal(unpacked(pack_shown([1.5e300, np.nan], 1)), [1.5e300, np.nan])


def test_floats_come_back_bit_by_bit():
    values = np.array([np.pi, -0.0, 5e-324, np.inf, 1e300])
    assert unpacked(pack(values)).tobytes() == values.tobytes()
    assert np.isnan(unpacked(pack([np.nan]))).all()


# ---- what the library says for the page ------------------------------------------------------------------


@pytest.mark.parametrize("penalty", ["ridge", "ols", "lasso"])
def test_run_variance_is_the_square_of_the_predicted_std(penalty):
    rng = np.random.default_rng(0)
    S, asked = rng.integers(0, 2, (2, 12, 9)).astype(float)
    surrogate = whence.AdditiveSurrogate(penalty).fit(S[:9], rng.normal(size=(9, 2)))
    _, std = surrogate.predict(asked, return_std=True)
    found = surrogate.run_variance(np.arange(2))
    for t in range(2):
        Q = np.zeros((9, 9))
        if "quadratic" in found:
            Q[np.tril_indices(9)] = found["quadratic"][t]
            Q += np.tril(Q, -1).T
        else:
            B, spectrum, penalties = found["basis"], found["spectrum"][:, None], found["penalties"]
            Q += (B * (found["spread"][t] / (spectrum + penalties)).sum(1)) @ B.T
            Q += found["rest"][t] * (np.eye(9) - B @ B.T)
            moves = B @ (found["gradient"][t][:, None] / (spectrum + penalties)) - surrogate.coef_[:, [t]]
            Q += (moves * found["shares"][t]) @ moves.T
        apart = asked - found["center"]
        variance = np.einsum("nk,kl,nl->n", apart, Q, apart) + found["constant"][t]
        np.testing.assert_allclose(np.sqrt(variance), std[:, t], rtol=1e-9)


def test_held_out_predictions_are_those_that_were_scored(model, runs):
    predicted, std = model.held_out()
    for part in model.parts:
        for place, t in enumerate(part.targets):
            error = ((predicted[:, t] - runs.values[:, t]) ** 2).sum()
            spread = ((runs.values[:, t] - runs.values[:, t].mean()) ** 2).sum()
            assert error / spread == pytest.approx(part.chosen.residual_error[place])
    inside = np.abs(predicted - runs.values) <= 1.6448536 * std
    assert 0.7 <= inside.mean() <= 1.0
    assert np.isfinite(predicted).all()


def test_runs_that_took_no_part_in_cross_validation_have_no_held_out_prediction(runs):
    values = runs.values.copy()
    values[3, 1] = np.nan
    gaps = whence.Outcomes(runs.subsets, values, TASKS, ["loss", "acc"])
    with pytest.warns(whence.DataWarning, match="acc"):
        predicted, _ = whence.fit(gaps, surrogate=whence.AdditiveSurrogate()).held_out()
    assert np.isnan(predicted[3, 1])
    assert np.isfinite(np.delete(predicted[:, 1], 3)).all()
    assert np.isfinite(predicted[:, 0]).all()
    unchecked = whence.fit(runs, surrogate=whence.AdditiveSurrogate(), n_folds=None)
    assert np.isnan(unchecked.held_out()).all()


def test_surrogates_of_other_libraries_are_left_out(runs):
    from sklearn.ensemble import RandomForestRegressor

    forest = whence.fit(runs, surrogate=RandomForestRegressor(5, random_state=0), n_folds=2)
    assert exported(forest) == []


def test_targets_beyond_the_limit_of_a_page_are_left_out(model, monkeypatch):
    assert [t for part in exported(model) for t in part["targets"]] == [0, 1]
    (whole,) = exported(model)
    monkeypatch.setattr("whence.display.report.export.EXPORT_BYTES", len(json.dumps(whole)) - 1)
    assert [t for part in exported(model) for t in part["targets"]] == [0]
    monkeypatch.setattr("whence.display.report.export.EXPORT_BYTES", 1000)
    assert exported(model) == []


@pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")
def test_estimates_travel_once_and_those_that_were_fused_themselves_not_at_all(runs):
    few = runs.rows(np.arange(runs.n_runs) < 12)
    once = whence.fit(few, estimates=runs)
    member = FusedSurrogate(once.rungs)
    averaged = AveragedSurrogate({"a": member, "b": member}, np.full((2, 2), 0.5)).fit(few.subsets, few.values)
    (found,) = exported(replace(once, parts=(replace(once.parts[0], surrogate=averaged),)))
    assert [[rung["model"] for rung in member["rungs"]] for member in found["members"]] == [[0], [0]]
    assert len(found["models"]) == 1
    twice = replace(once.rungs[0], model=once)
    fused = FusedSurrogate((twice,)).fit(few.subsets, few.values)
    assert exported(replace(once, parts=(replace(once.parts[0], surrogate=fused),))) == []


# ---- the answer ------------------------------------------------------------------------------------------


def known(model, target=0):
    found = whence.select(model, target=model.target_names[target])
    return facts_of(model, target, found, ceiling=noise_ceiling(model.outcomes))


def test_tasks_of_runs_of_one_size_are_better_or_worse_than_others():
    S = whence.FixedSize(3).draw(6, 18, seed=0)
    values, nothing = S @ [-3.0, 0, 0, 0, 0, 3.0], np.random.default_rng(4).normal(size=18)
    for outcomes in (values, nothing):
        runs = whence.Outcomes(S, outcomes, ["code", *"abcd", "law"], ["loss"])
        model = whence.fit(runs, surrogate=whence.AdditiveSurrogate("ols"), n_folds=None)
        said = text_of(tasks_in_words(whence.attribute(model), 0))
        if outcomes is values:
            assert re.search("code.* (is|are) better than others; law.* (is|are) worse than others", said)
        else:
            assert "no task can be said to be better or worse than others" in said


def test_the_answer_names_what_attribution_and_selection_say(model):
    scores = whence.attribute(model)
    facts = known(model)
    assert facts.selection.tasks == whence.select(model, target="loss").tasks
    said = answer(facts, model.outcomes, scores)
    tasks, subset = text_of(said["tasks"]), text_of(said["subset"])
    assert tasks.startswith("For loss (lower is better), ")
    assert re.search(r"code and math help; law hurts", tasks)
    assert "the other 2 are unclear" in tasks
    assert subset.startswith("Use ")
    assert "expected loss" in subset
    assert "90% interval" in subset
    assert "of 29 runs" in subset
    assert said["trust"] == "Predictions can be relied on within the range of the runs."
    assert said["level"] == "good"


def test_the_recommended_subset_stays_among_subsets_like_the_runs():
    S = whence.FixedSize(3).draw(6, 18, seed=0)
    S[:, 5] = 1
    S[:, 4] = 0
    runs = whence.Outcomes(S, S @ np.array([1.0, 1.0, 1.0, 1.0, 9.0, -5.0]), maximize=True)
    with pytest.warns(whence.DataWarning):
        model = whence.fit(runs, surrogate=whence.AdditiveSurrogate(), n_folds=None)
    sizes = S.sum(1)
    found = known(model).selection
    assert sizes.min() <= found.subset.sum() <= sizes.max()
    assert found.subset[5] == 1
    assert found.subset[4] == 0


def test_a_mixture_stays_within_the_runs():
    S = np.random.default_rng(0).dirichlet(np.full(3, 20.0), 30)
    runs = whence.Outcomes(S, S[:, 0], ["a", "b", "c"], ["reward"], True)
    model = whence.fit(runs, surrogate=whence.AdditiveSurrogate(), n_folds=None)
    found = known(model).selection.subset
    assert (found <= 1.02 * S.max(0)).all()
    assert (found >= 0.98 * S.min(0)).all()


def test_nothing_is_claimed_of_runs_that_tell_nothing():
    rng = np.random.default_rng(1)
    S = rng.integers(0, 2, (20, 5)).astype(float)
    runs = whence.Outcomes(S, rng.normal(size=20), target_names=["loss"])
    model = whence.fit(runs, surrogate=whence.AdditiveSurrogate(), n_folds=None)
    scores = whence.attribute(model)
    unclear = (scores.verdicts() == "not distinguishable from zero").all()
    assert ("no task can be said to help or hurt" in text_of(tasks_in_words(scores, 0))) == unclear
    facts = known(model)
    assert trust_in_words(facts) == "Not checked on held-out runs: treat every number as a guess."
    assert "better by" not in text_of(subset_in_words(facts, runs))


# ---- words and numbers -----------------------------------------------------------------------------------

LEVELLED = LearningCurve(np.array([10, 20, 40]), np.array([[0.40], [0.40], [0.40]]))
RISING = LearningCurve(np.array([10, 20, 40]), np.array([[0.2], [0.4], [0.6]]))
HELPFUL, LITTLE = "More runs would help", "would add little"
WORDS = {
    # correlation, every subset measured, ceiling, curve: the level, what is said, and what must not be
    "good, rising": (0.95, False, np.nan, RISING, "good", ["relied on", HELPFUL], [LITTLE, "measure more"]),
    "good, levelled": (0.95, False, 0.97, LEVELLED, "good", ["relied on", LITTLE], [HELPFUL, "measure more"]),
    "fair": (0.6, False, np.nan, RISING, "fair", ["ranking", HELPFUL], ["relied on", LITTLE]),
    "weak, levelled": (0.3, False, np.nan, LEVELLED, "weak", ["Weak", LITTLE], [HELPFUL, "measure more", "relied on"]),
    "weak, rising": (0.3, False, np.nan, RISING, "weak", ["Weak", HELPFUL], [LITTLE]),
    "noise": (-0.2, False, np.nan, LEVELLED, "too weak", ["Too weak to act on", LITTLE], [HELPFUL, "relied on"]),
    "all measured": (-0.5, True, np.nan, None, "all measured", ["no answer is extrapolated"], ["weak", "Weak", LITTLE]),
    "all measured, repeated": (0.1, True, 0.83, RISING, "all measured", ["at most 0.83"], ["weak", HELPFUL]),
    "unchecked": (np.nan, False, np.nan, None, "unchecked", ["a guess", "Too few runs"], ["relied on", "Weak"]),
}


@pytest.mark.parametrize("name", WORDS)
def test_no_two_sentences_of_a_page_disagree(model, name):
    correlation, complete, ceiling, curve, level, wanted, unwanted = WORDS[name]
    facts = replace(known(model), correlation=correlation, complete=complete, ceiling=ceiling, curve=curve)
    said = answer(facts, model.outcomes, whence.attribute(model))
    page = " ".join([said["trust"], said["more"]] + ([] if complete else [next_in_words(facts, 10)]))
    assert said["level"] == level
    assert said["weak"] == (level in ("too weak", "unchecked"))
    for words in wanted:
        assert words in page
    for words in unwanted:
        assert words not in page
    assert page.count("add little") in (0, 2)  # of the curve and of the next runs alike


def test_a_table_of_all_subsets_is_not_called_weak(tmp_path):
    S = whence.Exhaustive(allow_empty=True).draw(3)
    runs = whence.Outcomes(S, 2.0 * S[:, 0] - S[:, 1] + S[:, 0] * S[:, 2], ["a", "b", "c"], ["reward"], True)
    document = collect(whence.fit(runs))
    said = document["targets"][0]["answer"]
    assert said["level"] == "all measured"
    assert said["trust"].startswith("Every subset like these was measured")
    assert said["best_run"] == 3.0
    assert document["next"]["reason"] == ALL_MEASURED
    assert "would help" not in said["more"]
    assert whence.select(whence.fit(runs)).tasks == ("a", "c")


@pytest.mark.parametrize(
    ("mean", "words"), [(1.0, "about as good as"), (0.5, "better by 0.6 than"), (1.6, "worse than")]
)
def test_a_gain_is_that_of_the_numbers_beside_it(model, mean, words):
    facts = replace(known(model), expected=mean, low=mean - 0.3, high=mean + 0.3, best_run=1.1, places=1)
    assert f"{words} the best of 29 runs (1.1)" in text_of(subset_in_words(facts, model.outcomes))


@pytest.mark.parametrize(
    ("weights", "total"),
    [
        ([[99.8, 0.0], [50.0, 50.1]], 99.95),
        ([[0.5, 0.5], [0.2, 0.799], [0.3, 0.701]], 1.0),
        ([[0.5, 0.5], [0.9, 0.9]], None),
        ([[1.0, 0.0], [1.0, 1.0]], None),
    ],
)
def test_rounded_mixtures_have_one_total(weights, total):
    runs = whence.Outcomes(np.array(weights), np.arange(len(weights)))
    assert _total(runs) == (None if total is None else pytest.approx(total))


# ---- the document ----------------------------------------------------------------------------------------


def test_the_document_holds_what_the_library_says(document, model, runs):
    scores, pairs = whence.attribute(model), whence.interactions(model)
    low, high = scores.interval()
    np.testing.assert_allclose(unpacked(document["attribution"]["score"]), scores.scores.T, rtol=1e-6)
    np.testing.assert_allclose(unpacked(document["attribution"]["low"]), low.T, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(unpacked(document["attribution"]["high"]), high.T, rtol=1e-5, atol=1e-7)
    words = np.array(["helps", "hurts", "not distinguishable from zero"])
    np.testing.assert_array_equal(words[unpacked(document["attribution"]["verdict"]).astype(int)], scores.verdicts().T)
    own = document["pairs"]["targets"][1]
    a, b = np.triu_indices(5, 1)
    np.testing.assert_array_equal(unpacked(own["middle"]), pairs.scores[a, b, 1].round(own["places"]))
    assert sorted(own["order"]) == list(range(5))
    np.testing.assert_array_equal(unpacked(document["runs"]["subsets"]), runs.subsets)
    np.testing.assert_array_equal(unpacked(document["runs"]["values"]), runs.values.T)
    methods = {row["name"]: row for row in document["trust"]["methods"]}
    assert {"tuned linear", "subset size alone", "kernel"} <= set(methods)
    assert methods["tuned linear"]["lds"].mean() == pytest.approx(model.quality()["lds_tuned_linear"])
    weights = sum(np.nan_to_num(row["weight"]) for row in methods.values())
    np.testing.assert_allclose(weights, 1.0)
    for part in model.parts:
        for name, weight in part.weights.items():
            shown = "tuned linear" if name == "additive" else name
            np.testing.assert_array_equal(methods[shown]["weight"][part.targets], weight)
    assert np.isnan(methods["subset size alone"]["weight"]).all()
    assert document["trust"]["ceiling"]["reason"].startswith("No subset was measured more than once")
    assert document["next"]["csv"].splitlines()[0] == "code,math,law,news,chat,loss,acc"


def test_the_rule_is_one_that_the_runs_allow(document):
    assert document["attribution"]["heading"] == "Shapley"
    S = whence.Bernoulli(0.1).draw(30, 60, seed=0)
    runs = whence.Outcomes(S, S @ np.arange(30.0), target_names=["loss"])
    model = whence.fit(runs, surrogate=whence.AdditiveSurrogate(), n_folds=None)
    assert collect(model)["attribution"]["heading"] == "Inclusion"
    found = collect(model, rule="banzhaf")
    assert found["attribution"]["heading"] == "Banzhaf"
    assert any("this is extrapolation" in sentence for sentence in found["concerns"])


def test_pairs_of_many_tasks_are_the_strongest_and_everyones_partners(monkeypatch):
    monkeypatch.setattr("whence.display.report.findings.MATRIX_TASKS", 4)
    S = whence.Exhaustive().draw(7)
    runs = whence.Outcomes(S, S[:, 0] * S[:, 1] + 0.5 * S[:, 2] * S[:, 3] + 0.1 * S[:, 4] * S[:, 5])
    model = whence.fit(runs, surrogate=whence.KernelSurrogate(alpha=1e-3, gamma=0.1), n_folds=None)
    own = collect(model)["pairs"]["targets"][0]
    assert sorted(own["order"]) == [0, 1, 2, 3]
    listed = set(zip(unpacked(own["a"]).astype(int).tolist(), unpacked(own["b"]).astype(int).tolist(), strict=True))
    assert {(0, 1), (2, 3), (4, 5)} <= listed
    assert all(sum(k in pair for pair in listed) >= 3 for k in range(7))


def test_like_partners_stand_together():
    group = np.array([0, 1, 0, 1, 0, 1])
    scores = np.where(group[:, None] == group[None, :], 1.0, -1.0)[:, :, None]
    zero = np.zeros_like(scores)
    names = tuple("abcdef")
    pairs = Attribution(scores, zero, zero, np.zeros(1), names, ("loss",), (False,), RULES["shapley"], "exact")
    assert np.abs(np.diff(group[pairs.clustered()])).sum() == 1
    assert sorted(pairs.clustered()) == list(range(6))


def test_mixtures_have_pairs_and_tables_without_further_runs_say_so():
    rng = np.random.default_rng(0)
    mixture = whence.Outcomes(rng.dirichlet(np.ones(3), 20), rng.normal(size=20))
    found = collect(whence.fit(mixture, surrogate=whence.AdditiveSurrogate(), n_folds=2))
    assert found["pairs"]["heading"] == found["attribution"]["heading"] == "Shift"
    S = whence.Exhaustive(allow_empty=True).draw(3)
    whole = collect(whence.fit(whence.Outcomes(S, S[:, 0]), surrogate=whence.AdditiveSurrogate(), n_folds=2))
    assert whole["next"]["reason"] == ALL_MEASURED


def test_a_model_without_runs_is_refused():
    from whence.answers.effects import as_model

    bare = as_model(whence.AdditiveSurrogate.from_coefficients([1.0, 2.0]))
    with pytest.raises(whence.InputError, match="A report needs the runs that the model was fitted to"):
        collect(bare)


def test_pairs_that_would_take_long_are_counted_in_every_member(model, runs, monkeypatch):
    few = runs.rows(np.arange(runs.n_runs) < 12)
    rung = whence.fit(few, estimates=model).rungs[0]
    average = AveragedSurrogate(
        {"fused": FusedSurrogate((rung,)), "kernel": whence.CombinedSurrogate()}, np.full((2, 2), 0.5)
    ).fit(few.subsets, few.values)
    one = replace(model, outcomes=few, parts=(replace(model.parts[0], surrogate=average),))
    kernels = [each for each in model.parts[0].members.values() if hasattr(each, "groups_")]
    squares = 2 * 12**2 + 2 * len(kernels) * runs.n_runs**2
    monkeypatch.setattr("whence.display.report.findings.PAIR_WORK", runs.n_tasks**2 * squares)
    assert "targets" in _pairs(one, 0)
    monkeypatch.setattr("whence.display.report.findings.PAIR_WORK", runs.n_tasks**2 * squares - 1)
    assert _pairs(one, 0)["reason"].startswith("All pairs of this many tasks would take long")


# ---- the file --------------------------------------------------------------------------------------------


def test_the_page_is_whole_and_loads_nothing(document, tmp_path):
    path = tmp_path / "report.html"
    write_page(document, path)
    text = path.read_text(encoding="utf-8")
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]
    (data,) = re.findall(r'<script type="text/plain" id="data">(.*?)</script>', text, re.DOTALL)
    assert inflated(data)["runs"]["tasks"] == TASKS
    (loader,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    (packed,) = re.findall(r'<script type="text/plain" id="scripts">(.*?)</script>', text, re.DOTALL)
    assert "<" not in data + packed
    scripts = [loader, inflated_text(packed)]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    assert f"default-src 'none'; script-src {allowed}; style-src" in text
    for words in (text, *scripts):
        assert not re.search(r"(src|href)=[\"']?(https?:)?//", words)
        assert "innerHTML" not in words
        assert "eval(" not in words
    assert len(text) < 150_000


def test_the_same_seed_gives_the_same_page(model, document, tmp_path):
    write_page(document, tmp_path / "a.html")
    whence.report(model, tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_assets_travel_with_the_package():
    names = {one.name for one in (files("whence.display.report") / "assets").iterdir()}
    assert {"page.html", "page.css", "page.js", "surrogate.js"} <= names


@pytest.mark.parametrize(("place", "words"), [("no/report.html", "there is no folder"), (".", "this is a folder")])
def test_places_that_cannot_be_written_are_refused(model, tmp_path, place, words):
    with pytest.raises(whence.InputError, match=words):
        whence.report(model, tmp_path / place)


# ---- the command line ------------------------------------------------------------------------------------


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="whence")


@pytest.fixture(scope="module")
def file(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "runs.csv"
    runs.write(path)
    return path


def test_report_writes_the_page_and_says_where(file, tmp_path):
    output = tmp_path / "page.html"
    result = invoke("report", file, "--outcome", "loss,acc", "--maximize", "acc", "-o", output)
    assert result.exit_code == 0, result.output
    assert "Use " in result.stdout
    assert "and 1 more target in the page." in result.stdout
    assert f"Written to {output} (" in result.stdout
    assert "What 5 tasks do to 2 targets" in output.read_text(encoding="utf-8")


def test_report_as_json(file, tmp_path):
    output = tmp_path / "page.html"
    result = invoke("report", file, "--outcome", "loss", "--ignore", "acc", "-o", output, "--json")
    found = json.loads(result.stdout)
    assert found["report"] == str(output)
    assert found["bytes"] == output.stat().st_size
    assert "expected loss" in found["answers"]["loss"][0]


def test_report_never_overwrites_the_runs(file):
    before = file.read_bytes()
    result = invoke("report", file, "--outcome", "loss,acc", "-o", file)
    assert result.exit_code == 2
    assert "this is the file of runs itself" in result.stderr
    assert file.read_bytes() == before


def test_report_refuses_rules_that_mixtures_have_no_answer_to(tmp_path):
    S = np.random.default_rng(0).dirichlet(np.ones(3), 20)
    whence.Outcomes(S, S[:, 0], ["a", "b", "c"], ["loss"]).write(tmp_path / "mix.csv")
    result = invoke("report", tmp_path / "mix.csv", "--outcome", "loss", "--rule", "shapley", "-o", tmp_path / "x.html")
    assert result.exit_code == 2
    assert "Use --rule shift" in result.stderr
    assert not (tmp_path / "x.html").exists()


def test_a_deflated_document_is_read_back_with_null_for_nan():
    assert inflated(deflated({"lds": [0.5, float("nan")]})) == {"lds": [0.5, None]}
