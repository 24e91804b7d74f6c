"""Plots for papers and notebooks: the pictures of the report as matplotlib axes.

Every function takes a result of the library, draws on ``ax`` (by default a new figure) and returns it; the caller can
then change titles, limits and sizes. Colours mean good and bad, not up and down: for a loss, a task that lowers it is
shown as helpful. Needs the extra ``whence[plots]``.

>>> import whence
>>> S = whence.Exhaustive().draw(4)
>>> model = whence.fit(whence.Outcomes(S, S[:, 0] - S[:, 1], target_names=["loss"]))
>>> attribution(whence.attribute(model)).get_xlabel()
'change of loss (Shapley), lower is better'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from whence.answers.attribution import UNCLEAR, Attribution
from whence.display.layout import direction
from whence.errors import InputError, did_you_mean, needed
from whence.evaluation import LearningCurve
from whence.outcomes import Outcomes
from whence.surrogates.kernels import Array
from whence.surrogates.model import Model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

GOOD, BAD, DIM, INK = "#0a746f", "#b3441f", "#8b919c", "#1b1e25"
MOST_EDGES = 40


def attribution(
    found: Attribution, target: str | None = None, *, top: int | None = None, ax: Axes | None = None
) -> Axes:
    """Return bars with 90% intervals, the most helpful task on top.

    Parameters
    ----------
    found : Attribution
        From `whence.attribute`.
    target : str, optional
        Which one; the first if not given.
    top : int, optional
        Draw only this many tasks at either end.
    ax : matplotlib axes, optional
        Where to draw.
    """
    ax, t = _axes(ax), _place(found, target)
    goodness = found.scores[:, t] * (1 if found.maximize[t] else -1)
    order = np.argsort(goodness, kind="stable")
    if top is not None and len(order) > 2 * top:
        order = np.concatenate([order[:top], order[-top:]])
    low, high = (end[order, t] for end in found.interval())
    scores, words, at = found.scores[order, t], found.verdicts()[order, t], np.arange(len(order))
    colours = dict(zip((*found.words, UNCLEAR), (GOOD, BAD, DIM), strict=True))
    ax.barh(at, scores, color=[colours[str(word)] for word in words], alpha=0.85, height=0.62)
    if np.isfinite(low).all():
        ax.hlines(at, low, high, color=INK, lw=1.2)
    ax.axvline(0, color=DIM, lw=0.8)
    ax.set_yticks(at, [found.task_names[k] for k in order])
    ax.set_xlabel(f"change of {found.target_names[t]} ({found.rule.heading}), {direction(found.maximize[t])}")
    return _open(ax)


def interaction_matrix(found: Attribution, target: str | None = None, *, ax: Axes | None = None) -> Axes:
    """Return the matrix of all pairs, tasks with similar partners side by side; dots mark clear ones.

    Parameters are those of `attribution`.
    """
    ax, t = _axes(ax), _place(found, target)
    order = found.clustered(t)
    goodness = found.scores[np.ix_(order, order)][:, :, t] * (1 if found.maximize[t] else -1)
    names = [found.task_names[k] for k in order]
    _cells(ax, goodness, names, names)
    sure = found.verdicts()[np.ix_(order, order)][:, :, t] != UNCLEAR
    np.fill_diagonal(sure, False)
    _dots(ax, sure)
    return ax


def interaction_network(
    found: Attribution, target: str | None = None, *, top: int = MOST_EDGES, ax: Axes | None = None
) -> Axes:
    """Return the strongest pairs whose intervals exclude zero, as lines between tasks on a circle.

    Parameters are those of `attribution`; ``top`` limits the number of lines, whose width is the strength.
    """
    ax, t = _axes(ax), _place(found, target)
    scores, sign = found.scores[:, :, t], 1 if found.maximize[t] else -1
    first, second = np.triu_indices(len(scores), 1)
    sure = found.verdicts()[first, second, t] != UNCLEAR
    first, second = first[sure], second[sure]
    strongest = np.argsort(-np.abs(scores[first, second]), kind="stable")[:top]
    pairs = list(zip(first[strongest].tolist(), second[strongest].tolist(), strict=True))
    ax.set_axis_off()
    ax.set_aspect("equal")
    ax.set_xlim(-1.6, 1.6)
    ax.set_ylim(-1.6, 1.6)
    if not pairs:
        ax.text(0, 0, "No pair is distinguishable from zero", ha="center", color=DIM)
        return ax
    members = {task for pair in pairs for task in pair}
    nodes = [int(k) for k in found.clustered(t) if int(k) in members]
    angles = np.pi / 2 - 2 * np.pi * np.arange(len(nodes)) / len(nodes)
    at = {k: np.array([np.cos(angle), np.sin(angle)]) for k, angle in zip(nodes, angles, strict=True)}
    limit = abs(scores[pairs[0]])
    share = np.linspace(0, 1, 40)[:, None]
    for a, b in reversed(pairs):
        middle = 0.35 * (at[a] + at[b]) / 2
        curve = (1 - share) ** 2 * at[a] + 2 * share * (1 - share) * middle + share**2 * at[b]
        colour = GOOD if sign * scores[a, b] > 0 else BAD
        ax.plot(*curve.T, color=colour, lw=0.8 + 4 * abs(scores[a, b]) / limit, alpha=0.8, solid_capstyle="round")
    for k, angle in zip(nodes, np.degrees(angles), strict=True):
        left = at[k][0] < -1e-9
        ax.plot(*at[k], "o", ms=5, color=INK)
        x, y = 1.07 * at[k]
        side, turn = ("right", angle + 180) if left else ("left", angle)
        ax.text(
            x, y, found.task_names[k], ha=side, va="center", rotation=turn, rotation_mode="anchor", fontsize="small"
        )
    return ax


def predicted_vs_measured(
    model: Model,
    target: str | None = None,
    *,
    unseen: Outcomes | None = None,
    color: str = GOOD,
    label: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Return measured against predicted outcomes, of runs the model has not seen.

    Parameters
    ----------
    model : Model
        From `whence.fit`.
    target : str, optional
        Which one; the first if not given.
    unseen : Outcomes, optional
        Runs that were not in the fit; without them, each run as cross-validation predicted it.
    color, label : str
        Of the dots, for several models on the same axes.
    ax : matplotlib axes, optional
        Where to draw.
    """
    ax, t = _axes(ax), _place(model, target)
    measured = (model.outcomes if unseen is None else unseen).values[:, t]
    predicted = (model.held_out()[0] if unseen is None else model.predict(unseen.subsets))[:, t]
    known = np.isfinite(predicted) & np.isfinite(measured)
    if not known.any():
        raise InputError("No run was held out from this model. Fit it with cross-validation, or give unseen= runs.")
    ax.plot(predicted[known], measured[known], ".", color=color, alpha=0.6, label=label)
    ax.axline((measured[known].mean(),) * 2, slope=1, color=DIM, lw=0.8, zorder=0)
    ax.set_xlabel(f"predicted {model.target_names[t]}")
    ax.set_ylabel(f"measured {model.target_names[t]}")
    return _open(ax)


def learning_curve(found: LearningCurve, *, ceiling: float | None = None, ax: Axes | None = None) -> Axes:
    """Return rank correlation by number of runs, its range over splits, and the noise ceiling if given.

    Parameters
    ----------
    found : LearningCurve
        From `whence.evaluation.learning_curve`.
    ceiling : float, optional
        As from `whence.evaluation.noise_ceiling`.
    ax : matplotlib axes, optional
        Where to draw.
    """
    ax = _axes(ax)
    ax.fill_between(found.sizes, found.lds.min(1), found.lds.max(1), color=GOOD, alpha=0.18, lw=0)
    ax.plot(found.sizes, found.mean, "o-", color=GOOD)
    if ceiling is not None and np.isfinite(ceiling):
        ax.axhline(ceiling, color=DIM, ls="--", lw=1, label="noise ceiling")
        ax.legend(frameon=False)
    ax.set_xlim(left=0)
    ax.set_xlabel("distinct subsets learned from")
    ax.set_ylabel("rank correlation on held-out runs")
    return _open(ax)


def heat_map(found: Attribution, *, spread: Array | None = None, ax: Axes | None = None) -> Axes:
    """Return tasks × targets, coloured by what each task does to each target; dots mark clear scores.

    Parameters
    ----------
    found : Attribution
        From `whence.attribute`, with several targets.
    spread : (T,), optional
        What to divide the scores of each target by, such as the std of its outcome; their largest if not given.
    ax : matplotlib axes, optional
        Where to draw.
    """
    ax = _axes(ax)
    unit = np.abs(found.scores).max(0) if spread is None else np.asarray(spread)
    goodness = found.scores * np.where(found.maximize, 1, -1) / np.where(unit > 0, unit, 1.0)
    order = np.argsort(-goodness.mean(1), kind="stable")
    _cells(ax, goodness[order], [found.task_names[k] for k in order], found.target_names)
    _dots(ax, found.verdicts()[order] != UNCLEAR)
    return ax


# ---- what several pictures share -------------------------------------------------------------------------


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    pyplot = needed("matplotlib.pyplot", "Plots need matplotlib", "plots")
    new: Axes = pyplot.subplots(layout="constrained")[1]
    return new


def _place(found: Attribution | Model, target: str | None) -> int:
    if target is None:
        return 0
    if target not in found.target_names:
        raise InputError(f"There is no target '{target}'. {did_you_mean(target, found.target_names)}")
    return int(found.target_names.index(target))


def _open(ax: Axes) -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _cells(ax: Axes, goodness: Array, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Coloured cells with names, from bad over white to good."""
    from matplotlib.colors import LinearSegmentedColormap

    limit = float(np.abs(goodness).max()) or 1.0
    colours = LinearSegmentedColormap.from_list("bad to good", [BAD, "white", GOOD])
    ax.imshow(goodness, cmap=colours, vmin=-limit, vmax=limit, aspect="auto" if len(rows) != len(columns) else "equal")
    ax.set_xticks(range(len(columns)), columns, rotation=50, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(rows)), rows)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def _dots(ax: Axes, sure: NDArray[np.bool_]) -> None:
    at = np.argwhere(sure)
    ax.plot(at[:, 1], at[:, 0], "o", ms=3, color=INK, ls="none")
