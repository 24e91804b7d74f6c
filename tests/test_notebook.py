"""What results show in a notebook: well-formed tables with the numbers of the result, and names as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import whence
from whence.evaluation import SizeOnly, learning_curve, noise_ceiling, repeated_splits

NASTY = "<img src=x onerror=alert(1)>"


class Reader(HTMLParser):
    """Rows of all tables as text, after checking that every tag is closed by its like."""

    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.tags = [], [], set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def runs():
    S = np.repeat(whence.Exhaustive().draw(4), 2, axis=0)
    rng = np.random.default_rng(0)
    Y = S[:, [0]] - S[:, [1]] * S[:, [2]] + 0.05 * rng.normal(size=(len(S), 2))
    return whence.Outcomes(S, Y, [NASTY, "b", "c", "d"], ["loss", "acc"], ["acc"])


@pytest.fixture(scope="module")
def model(runs):
    return whence.fit(runs)


@pytest.fixture(scope="module")
def results(runs, model):
    return {
        "outcomes": runs,
        "model": model,
        "attribution": whence.attribute(model),
        "interactions": whence.interactions(model),
        "selection": whence.select(model, target="loss"),
        "front": whence.pareto(model),
        "suggestions": whence.suggest(whence.fit(runs.rows(range(20)), surrogate=whence.AdditiveSurrogate()), 2),
        "score": whence.lds(model, runs),
        "ceiling": noise_ceiling(runs),
        "comparison": repeated_splits(runs, {"size": SizeOnly.fit, "none": SizeOnly.fit}, n_splits=2),
        "curve": learning_curve(runs, SizeOnly.fit, n_splits=2),
    }


ALL = [
    "outcomes", "model", "attribution", "interactions", "selection", "front", "suggestions", "score", "ceiling",
    "comparison", "curve",
]  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_every_result_is_a_well_formed_table_without_foreign_tags(results, name):
    text = results[name]._repr_html_()
    read = Reader(text)
    assert read.tags <= {"div", "table", "thead", "tbody", "tr", "th", "td", "span"}
    assert len(read.rows) >= 2
    assert len({len(row) for row in read.rows}) <= 2
    assert NASTY not in text


def test_attribution_shows_its_scores_and_verdicts(results):
    found = results["attribution"]
    rows = [row for row in Reader(found._repr_html_()).rows if row[0] != "task"]
    assert len(rows) == 8
    assert rows[0][0] in found.task_names
    shown = {row[0]: float(row[1]) for row in rows[:4]}
    assert shown[NASTY] == pytest.approx(found.scores[0, 0], abs=0.01)
    assert {row[-1] for row in rows} <= {"helps", "hurts", "unclear"}


def test_many_targets_become_one_table_that_says_where_the_rest_is(runs):
    wide = whence.Outcomes(runs.subsets, np.repeat(runs.values[:, :1], 7, axis=1) + np.arange(7))
    found = whence.attribute(whence.fit(wide, surrogate=whence.AdditiveSurrogate(), n_folds=None))
    text = found._repr_html_()
    assert "mean over 7 targets" in text
    assert "use .to_frame()" in text
    assert "--" not in text


def test_wide_and_long_tables_of_runs_are_cut_and_say_so():
    S = whence.Bernoulli(0.5).draw(30, 40, seed=0)
    text = whence.Outcomes(S, S[:, 0], target_names=["loss"])._repr_html_()
    read = Reader(text)
    assert len(read.rows) == 12
    assert read.rows[0][0] == "run"
    assert read.rows[0][-1] == "loss"
    assert len(read.rows[0]) == 13
    assert "19 more columns, use .to_frame()" in text


def test_selection_and_suggestions_name_their_tasks(results):
    selection, suggestions = results["selection"], results["suggestions"]
    assert selection.objective in selection._repr_html_()
    rows = Reader(suggestions._repr_html_()).rows[1:]
    inside = suggestions.subsets[0] > 0
    assert rows[0][1].split(", ") == [name for name, one in zip(suggestions.task_names, inside, strict=True) if one]
    assert re.search(r"\d ± \d", rows[0][2])


def test_a_ceiling_that_is_unknown_says_why():
    runs = whence.Outcomes([[1, 0], [0, 1], [1, 1]], [0.9, 0.8, 0.5])
    assert "No subset was measured more than once" in noise_ceiling(runs)._repr_html_()


@pytest.mark.parametrize("name", [name for name in ALL if name != "model"])
def test_every_result_has_a_frame(results, name):
    frame = results[name].to_frame()
    assert len(frame) > 0
    assert not frame.select_dtypes("number").isna().all(axis=None)


def test_frames_hold_the_numbers_of_their_results(results):
    selection, curve = results["selection"], results["curve"]
    frame = selection.to_frame().set_index("target")
    assert frame.loc["acc", "expected"] == selection.expected[1]
    assert frame.loc["loss", "high"] == selection.high[0]
    assert results["score"].to_frame()["score"].tolist() == results["score"].per_target.tolist()
    ceiling = results["ceiling"].to_frame()
    assert ceiling["target"].tolist() == ["loss", "acc"]
    assert ceiling[["low", "high"]].to_numpy().T.tolist() == [
        results["ceiling"].low.tolist(),
        results["ceiling"].high.tolist(),
    ]
    np.testing.assert_allclose(curve.to_frame()["lds"], curve.lds.mean(axis=1))
    assert curve.to_frame()["subsets"].tolist() == curve.sizes.tolist()
