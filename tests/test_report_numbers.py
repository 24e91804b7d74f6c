"""Every number of a page read back, from its document and from the browser's window, beside what Python returns."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sklearn.base import clone

import whence
from browser import at_rest, inflated, launched, opened
from test_report import unpacked
from whence.display.numbers import number, span
from whence.display.report import collect, write_page
from whence.display.report.export import exported
from whence.evaluation import learning_curve, noise_ceiling
from whence.outcomes.subset import weight_text
from whence.surrogates.averaged import AveragedSurrogate
from whence.surrogates.fit import CANDIDATES

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")]

HALF_WIDTH = 1.6448536269514722
VERDICTS = {"helps": 0, "hurts": 1, "work together": 0, "work against each other": 1}


def outcomes(S, n_targets, seed, names=None):
    """Main effects, a pair and noise; every third target is to be maximised."""
    rng = np.random.default_rng(seed)
    effects = rng.normal(size=(S.shape[1], n_targets)) * (rng.random((S.shape[1], n_targets)) < 0.4)
    Y = S @ effects + S[:, [0]] * S[:, [1]] + 0.2 * rng.normal(size=(len(S), n_targets))
    targets = [f"benchmark {t}" for t in range(n_targets)]
    return whence.Outcomes(S, Y, names, targets, targets[::3])


def many_targets():
    S = (np.random.default_rng(0).random((200, 50)) < 0.5).astype(float)
    return outcomes(S, 20, 1, [f"source-{k:02d}/filtered" for k in range(50)])


def replicates():
    S = whence.Exhaustive().draw(6, 24, seed=0)
    return outcomes(np.vstack([S, S[:10]]), 3, 2)


def missing_values():
    S = (np.random.default_rng(3).random((60, 7)) < 0.5).astype(float)
    runs = outcomes(S, 3, 3)
    values = runs.values.copy()
    values[np.random.default_rng(4).random(values.shape) < 0.15] = np.nan
    values[np.nanargmin(values[:, 1]), 2] = np.nan
    return whence.Outcomes(S, values, runs.task_names, runs.target_names, ["benchmark 0"])


def percents():
    S = (100 * np.random.default_rng(5).dirichlet(np.ones(5), 50)).round(1)
    runs = outcomes(S / 100, 2, 5)
    return whence.Outcomes(S, runs.values, list("abcde"), runs.target_names, ["benchmark 0"])


TABLES = {
    "many targets": many_targets,
    "replicates": replicates,
    "missing values": missing_values,
    "percents": percents,
}


@pytest.fixture(scope="module", params=TABLES)
def case(request, tmp_path_factory):
    """A model, the document that its page holds, and the page."""
    model = whence.fit(TABLES[request.param]())
    path = tmp_path_factory.mktemp("numbers") / "page.html"
    write_page(collect(model), path)
    (data,) = re.findall(r'<script type="text/plain" id="data">(.*?)</script>', path.read_text(encoding="utf-8"))
    return model, inflated(data), path


def attributed(model):
    return whence.attribute(model)


def intervals(found):
    """Middle, low and high of packed intervals."""
    middle, below, skew = (unpacked(found[name]) for name in ("middle", "below", "skew"))
    return middle, middle - below, middle + below + skew


# ---- the document ----------------------------------------------------------------------------------------


def test_the_answer_to_every_target_is_that_of_select(case):
    model, document, _ = case
    values = model.outcomes.values
    best = np.where(model.maximize, np.nanmax(values, axis=0), np.nanmin(values, axis=0))
    assert [target["name"] for target in document["targets"]] == list(model.target_names)
    for t, target in enumerate(document["targets"]):
        said, found = target["answer"], whence.select(model, target=target["name"])
        np.testing.assert_array_equal(said["selected"], found.subset)
        assert said["predicted"] == pytest.approx(model.predict(found.subset[None])[0, t])
        assert said["expected"] == {"mean": found.expected[t], "low": found.low[t], "high": found.high[t]}
        assert said["best_run"] == best[t]
        assert said["runs"] == np.isfinite(values[:, t]).sum()
        if not model.outcomes.is_binary:
            assert said["everything"]["value"] is None
        elif said["everything"]["measured"]:
            full = (model.outcomes.subsets == 1).all(1)
            assert said["everything"]["value"] == pytest.approx(np.nanmean(values[full, t]))
        else:
            full = np.ones((1, model.outcomes.n_tasks))
            assert said["everything"]["value"] == pytest.approx(model.predict(full)[0, t])


def test_scores_and_pairs_are_those_of_attribution(case):
    model, document, _ = case
    scores, own = attributed(model), document["attribution"]
    for name, expected in zip(("score", "low", "high"), (scores.scores, *scores.interval()), strict=True):
        np.testing.assert_allclose(unpacked(own[name]), expected.T, rtol=1e-6, atol=1e-12)
    codes = np.vectorize(lambda word: VERDICTS.get(word, 2))
    np.testing.assert_array_equal(unpacked(own["verdict"]), codes(scores.verdicts()).T)
    pairs = whence.interactions(model)
    low, high = pairs.interval()
    first, second = np.triu_indices(len(model.task_names), 1)
    for t, found in enumerate(document["pairs"]["targets"]):
        at, shown = (first, second, t), found["places"]
        for sent, expected in zip(intervals(found), (pairs.scores, low, high), strict=True):
            np.testing.assert_allclose(sent, expected[at].round(shown), atol=1e-9)
        np.testing.assert_array_equal(unpacked(found["verdict"]), codes(pairs.verdicts())[at])


def test_how_far_to_trust_it_is_what_was_held_out(case):
    model, document, _ = case
    trust = document["trust"]
    predicted, std = model.held_out()
    for t, found in enumerate(trust["held_out"]):
        runs, places = np.flatnonzero(np.isfinite(predicted[:, t])), document["targets"][t]["answer"]["places"]
        mean, half = predicted[runs, t], HALF_WIDTH * std[runs, t]
        np.testing.assert_array_equal(unpacked(found["runs"]), runs)
        bounds = model.outcomes.bounds[t]
        assert document["targets"][t]["bounds"] == [end if np.isfinite(end) else None for end in bounds]
        ends = np.clip([mean - half, mean + half], *bounds)
        for sent, expected in zip(intervals(found), (mean, *ends), strict=True):
            np.testing.assert_allclose(sent, expected.round(places), atol=1e-9)
        off = np.abs(model.outcomes.values[runs, t] - mean)
        np.testing.assert_array_equal(unpacked(found["off"]), (off / std[runs, t]).round(1))
        np.testing.assert_array_equal(unpacked(found["outside"]), off > half)
        assert found["widest"] == std[runs, t].max()
    ceiling = noise_ceiling(model.outcomes)
    for name, expected in (("value", ceiling.per_target), ("low", ceiling.low), ("high", ceiling.high)):
        np.testing.assert_array_equal(np.array(trust["ceiling"][name], dtype=float), expected)
    quality = model.quality()
    rows = {row["name"]: row for row in trust["methods"]}
    assert np.mean(rows["tuned linear"]["lds"]) == pytest.approx(quality["lds_tuned_linear"])
    assert np.mean(rows["subset size alone"]["lds"]) == pytest.approx(quality["lds_size_only"], nan_ok=True)
    used = [target["answer"]["correlation"] for target in document["targets"]]
    assert np.mean(used) == pytest.approx(quality["lds"])


def test_the_learning_curve_and_the_next_runs_are_those_of_python(case):
    model, document, _ = case
    surrogate = max(model.parts, key=lambda part: len(part.targets)).surrogate
    curve = learning_curve(
        model.outcomes, lambda train: whence.fit(train, surrogate=clone(surrogate), n_folds=None), n_splits=3
    )
    found = document["trust"]["curve"]
    assert found["sizes"] == curve.sizes.tolist()
    np.testing.assert_allclose(found["mean"], curve.mean)
    np.testing.assert_allclose(found["low"], curve.lds.min(axis=1))
    np.testing.assert_allclose(found["high"], curve.lds.max(axis=1))
    suggested = whence.suggest(model, 10)
    np.testing.assert_array_equal(unpacked(document["next"]["subsets"]), suggested.subsets)
    np.testing.assert_allclose(unpacked(document["next"]["predicted"]), suggested.predicted.T, rtol=1e-6)
    np.testing.assert_allclose(unpacked(document["next"]["std"]), suggested.std.T, rtol=1e-6)


def test_runs_arrive_bit_by_bit(case):
    model, document, _ = case
    np.testing.assert_array_equal(unpacked(document["runs"]["subsets"]), model.outcomes.subsets)
    np.testing.assert_array_equal(unpacked(document["runs"]["values"]), model.outcomes.values.T)


# ---- the window ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    with launched() as one:
        yield one


def cells(page, table):
    """The text of every row of a table, cell by cell."""
    return page.evaluate(
        """(table) => [...document.querySelectorAll(`${table} tbody tr`)].map((row) =>
          [...row.cells].map((cell) => cell.textContent.replaceAll("−", "-")))""",
        table,
    )


def test_what_is_shown_of_every_target(browser, case):
    model, document, path = case
    with opened(browser, path) as page:
        for t, row in enumerate(cells(page, "#summary-table")):
            found, places = whence.select(model, target=row[0]), document["targets"][t]["answer"]["places"]
            assert row[2] == number(found.expected[t], places)
            assert row[3] == span(found.low[t], found.high[t], places)
            assert row[4] == number(found.best_run, places)
            assert row[5] == number(document["targets"][t]["answer"]["correlation"])
        assert len(cells(page, "#summary-table")) == len(model.target_names)


def test_what_is_shown_of_one_target(browser, case):
    model, document, path = case
    t = len(model.target_names) - 1
    name, scores = model.target_names[t], attributed(model)
    low, high = scores.interval()
    places = document["targets"][t]["answer"]["places"]
    with opened(browser, path) as page:
        page.select_option("#target", label=name)
        at_rest(page)
        tiles = page.evaluate("[...document.querySelectorAll('.tile .big')].map((one) => one.textContent)")
        found = whence.select(model, target=name)
        assert tiles[0].replace("−", "-") == number(found.expected[t], places)
        assert tiles[1].replace("−", "-") == number(found.best_run, places)
        digits = document["attribution"]["places"][t]
        for row in cells(page, "#task-table"):
            if len(row) > 1:  # and not "… 10 between"
                k = model.task_names.index(row[0])
                assert row[2] == number(scores.scores[k, t], digits, signed=True)
                assert row[3] == span(low[k, t], high[k, t], digits, signed=True)
        suggested = whence.suggest(model, 10)
        for i, row in enumerate(cells(page, "#next-table")):
            mean, std = suggested.predicted[i, t], suggested.std[i, t]
            assert row[3] == number(mean, places)
            ends = np.clip([mean - HALF_WIDTH * std, mean + HALF_WIDTH * std], *model.outcomes.bounds[t])
            assert row[4] == span(*ends, places)
        predicted, std = model.held_out()
        for run, measured, said, off, _ in cells(page, "#worst table"):
            at = (int(run) - 1, t)
            assert measured == number(model.outcomes.values[at], places)
            assert said == number(predicted[at], places)
            assert off == number(abs(model.outcomes.values[at] - predicted[at]) / std[at], 1)
        if model.outcomes.is_binary:
            frame = whence.interactions(model).to_frame().set_index(["target", "task_a", "task_b"])
            digits = document["pairs"]["targets"][t]["places"]
            for pair, score, interval, _ in cells(page, "#pair-table"):
                expected = frame.loc[(name, *pair.split(" + "))]
                assert score == number(expected["score"], digits, signed=True)
                assert interval == span(expected["low"], expected["high"], digits, signed=True)


def test_the_browser_predicts_every_target_as_python_does(browser, case):
    model, _, path = case
    rows = model.outcomes.subsets[::9]
    mean, std = model.predict(rows, return_std=True)
    with opened(browser, path) as page:
        found = page.evaluate(
            """async (subsets) => {
              const all = [];
              for (let t = 0; t < page.report.T; t++) {
                const surrogate = page.explorer.surrogate(t);
                await surrogate.prepare();
                const at = subsets.map((subset) => surrogate.at(Float64Array.from(subset)));
                all.push(at.map((one) => [surrogate.mean(one), surrogate.std(one)]));
              }
              return all;
            }""",
            rows.tolist(),
        )
    np.testing.assert_allclose(np.array(found)[:, :, 0].T, mean, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(np.array(found)[:, :, 1].T, std, rtol=1e-8, atol=1e-9)


def test_a_page_of_many_targets_is_small(case, tmp_path):
    model, document, path = case
    if len(model.target_names) != 20:
        return
    assert path.stat().st_size <= 250_000
    weights = np.full((len(CANDIDATES), 20), 1 / len(CANDIDATES))
    average = whence.fit(model.outcomes, surrogate=AveragedSurrogate(CANDIDATES, weights), n_folds=None)
    write_page(document | {"surrogates": exported(average)}, tmp_path / "average.html")
    assert (tmp_path / "average.html").stat().st_size <= 300_000  # every member with hyperparameters of every target


def test_amounts_of_data_and_ends_at_zero_read_as_in_the_terminal(browser, tmp_path):
    rng = np.random.default_rng(6)
    W = rng.dirichlet(np.ones(4), 40)
    tokens = W * rng.uniform(1e9, 6e9, 40)[:, None]
    runs = whence.Outcomes(tokens, W[:, 0] - W[:, 2] ** 2 + 0.01 * rng.normal(size=40), list("abcd"), ["loss"])
    model = whence.fit(runs)
    write_page(collect(model), tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        words = page.locator("#next tbody tr").first.inner_text()
        wide = page.evaluate("weightText(2.553e9) + ' ' + weightText(0.00565) + ' ' + weightText(1234.5)")
        ends = page.evaluate("span(-0.1, -0.001, 2, true)")
    assert runs.describe(whence.suggest(model, 10).subsets[0]) in words
    assert wide == " ".join(map(weight_text, (2.553e9, 0.00565, 1234.5)))
    assert ends.replace("−", "-") == span(-0.1, -0.001, signed=True) == "-0.10 to -0.00"
