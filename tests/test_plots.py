"""Plots draw the numbers of the results they are given, on the axes they are given."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.colors import to_hex

import whence
from whence import plots
from whence.answers.rules import HELPS, HURTS
from whence.evaluation import LearningCurve

plt = pytest.importorskip("matplotlib.pyplot")
plt.switch_backend("agg")

TASKS = ["code", "math", "law", "news", "chat"]


@pytest.fixture(scope="module")
def model():
    S = whence.Exhaustive().draw(5, 28, seed=1)
    rng = np.random.default_rng(0)
    loss = 3 - S[:, 0] - 0.8 * S[:, 1] + 0.7 * S[:, 0] * S[:, 1] + 0.6 * S[:, 2]
    Y = np.column_stack([loss, 1 - loss / 4]) + 0.02 * rng.normal(size=(len(S), 2))
    return whence.fit(whence.Outcomes(S, Y, TASKS, ["loss", "acc"], ["acc"]))


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def labels(axis):
    return [tick.get_text() for tick in axis.get_ticklabels()]


@pytest.mark.parametrize("target", ["loss", "acc"])
def test_bars_are_scores_in_the_colour_of_their_verdict(model, target):
    found = whence.attribute(model)
    t = found.target_names.index(target)
    ax = plots.attribution(found, target)
    frame = found.to_frame()
    frame = frame[frame["target"] == target].iloc[::-1]  # the most helpful is on top
    assert labels(ax.yaxis) == frame["task"].tolist()
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], frame["score"])
    colours = {HELPS: plots.GOOD, HURTS: plots.BAD}
    for bar, verdict in zip(ax.patches, frame["verdict"], strict=True):
        assert to_hex(bar.get_facecolor()) == colours.get(verdict, plots.DIM)
    ends = np.array([segment[:, 0] for segment in ax.collections[0].get_segments()])
    np.testing.assert_allclose(ends, frame[["low", "high"]])
    assert ("higher" if found.maximize[t] else "lower") in ax.get_xlabel()


def test_bars_of_runs_of_one_size_have_colours_too():
    S = whence.FixedSize(3).draw(6, 18, seed=0)
    runs = whence.Outcomes(S, S @ np.arange(6.0))
    found = whence.attribute(whence.fit(runs, surrogate=whence.AdditiveSurrogate("ols"), n_folds=None))
    colours = {to_hex(bar.get_facecolor()) for bar in plots.attribution(found).patches}
    assert {plots.GOOD, plots.BAD} <= colours


def test_the_ends_of_many_bars(model):
    found = whence.attribute(model)
    names = found.to_frame()["task"].tolist()[:5]
    assert labels(plots.attribution(found, top=1).yaxis) == [names[-1], names[0]]


def test_the_matrix_is_good_where_pairs_work_together(model):
    found = whence.interactions(model)
    ax = plots.interaction_matrix(found, "loss")
    image = ax.images[0].get_array()
    order = [TASKS.index(name) for name in labels(ax.yaxis)]
    assert labels(ax.xaxis) == labels(ax.yaxis)
    np.testing.assert_allclose(image, -found.scores[np.ix_(order, order)][:, :, 0])
    dots = {(int(x), int(y)) for x, y in zip(*ax.lines[0].get_data(), strict=True)}
    words = found.verdicts()[np.ix_(order, order)][:, :, 0]
    sure = {(j, i) for i in range(5) for j in range(5) if i != j and words[i, j].startswith("work")}
    assert dots == sure


def test_the_network_joins_pairs_that_can_be_told_from_zero(model):
    found = whence.interactions(model)
    ax = plots.interaction_network(found, "loss")
    sure = np.triu(np.char.startswith(found.verdicts()[:, :, 0], "work"), 1).sum()
    curves = [line for line in ax.lines if len(line.get_xdata()) > 1]
    assert len(curves) == sure > 0
    widest = max(curves, key=lambda line: line.get_linewidth())
    assert to_hex(widest.get_color()) == plots.BAD  # code and math are redundant
    assert {"code", "math"} <= {text.get_text() for text in ax.texts}
    assert len([line for line in plots.interaction_network(found, top=1).lines if len(line.get_xdata()) > 1]) == 1


def test_a_network_without_pairs_says_so(model):
    additive = whence.fit(model.outcomes, surrogate=whence.AdditiveSurrogate(), n_folds=None)
    ax = plots.interaction_network(whence.interactions(additive))
    assert [text.get_text() for text in ax.texts] == ["No pair is distinguishable from zero"]


def test_dots_are_held_out_or_unseen_runs(model):
    ax = plots.predicted_vs_measured(model, "acc")
    x, y = ax.lines[0].get_data()
    np.testing.assert_allclose(x, model.held_out()[0][:, 1])
    np.testing.assert_allclose(y, model.outcomes.values[:, 1])
    few = model.outcomes.rows(range(4))
    assert plots.predicted_vs_measured(model, "acc", unseen=few, label="few", ax=ax) is ax
    np.testing.assert_allclose(ax.lines[2].get_xdata(), model.predict(few.subsets)[:, 1])
    unchecked = whence.fit(model.outcomes, surrogate=whence.AdditiveSurrogate(), n_folds=None)
    with pytest.raises(whence.InputError, match="No run was held out from this model"):
        plots.predicted_vs_measured(unchecked)


def test_the_learning_curve_and_its_ceiling():
    curve = LearningCurve(np.array([10, 20, 40]), np.array([[0.2, 0.4], [0.5, 0.5], [0.6, 0.8]]))
    ax = plots.learning_curve(curve, ceiling=0.9)
    np.testing.assert_allclose(ax.lines[0].get_data(), [[10, 20, 40], [0.3, 0.5, 0.7]])
    np.testing.assert_allclose(ax.lines[1].get_ydata(), 0.9)
    assert len(plots.learning_curve(curve, ceiling=np.nan).lines) == 1


def test_the_heat_map_compares_targets_on_their_own_scale(model):
    found = whence.attribute(model)
    spread = model.outcomes.values.std(0)
    ax = plots.heat_map(found, spread=spread)
    order = [TASKS.index(name) for name in labels(ax.yaxis)]
    np.testing.assert_allclose(ax.images[0].get_array(), (found.scores * [-1, 1] / spread)[order])
    assert labels(ax.xaxis) == ["loss", "acc"]
    assert np.abs(plots.heat_map(found).images[0].get_array()).max() == 1


def test_unknown_targets_are_named(model):
    with pytest.raises(whence.InputError, match=r"There is no target 'los'. Did you mean 'loss'\?"):
        plots.attribution(whence.attribute(model), "los")


def test_plots_load_when_asked_for():
    code = (
        "import sys, whence; whence.plots; print(*(n in sys.modules for n in ('matplotlib', 'whence.display.plots')))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "True"]


def test_without_matplotlib_one_sentence_says_what_to_install(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(whence.InputError, match=r'Plots need matplotlib: pip install "whence\[plots\]"'):
        plots.attribution(whence.attribute(model))
