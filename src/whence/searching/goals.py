"""The rules by which the next run is chosen, one for each goal.

best
    Augmented expected improvement (Huang et al. 2006): how much better than the best known row a row is expected to be,
    times 1 − noise std / std of a new run, so a row is repeated only where noise hides what it is worth; the
    mean of it on the scale of the outcomes and on that of their ranks, each as a share of its greatest value. Once a
    repeated run came out the same, runs have no noise: the best outcome is the one to beat, and what the process takes
    for noise is a part of what a new row may give.
effects
    The run that most reduces the variance of those effects of tasks and pairs whose sign is not settled at 90%.
prediction
    The run that most reduces the mean variance of predictions over the allowed rows.

All are multiplied by the chance that the run succeeds. Each is a function of what is known when it is asked, and of a
seed: the same runs lead to the same decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from whence.errors import counted
from whence.outcomes.table import distinct_rows
from whence.searching.belief import FEWEST, TUNED, Belief, Known
from whence.searching.space import DRAWN, Space
from whence.surrogates.kernels import Array

GOALS = {
    "best": "the best subset or mixture",
    "effects": "who helps and who hurts",
    "prediction": "what any allowed subset gives",
}
JOINT = 400  # rows that are looked at together
ROUNDS = 8  # of looking around the most promising rows
STARTS = 3
MOST_PAIRS = 100
LEVEL = 0.9
HALF_WIDTH = float(ndtri((1 + LEVEL) / 2))


@dataclass(frozen=True)
class Choice:
    """The row to run next (K,), and why, in words."""

    row: Array
    why: str


def next_row(
    goal: str, space: Space, belief: Belief, rng: np.random.Generator, show: Callable[[float], str] = "{:.4g}".format
) -> Choice | None:
    """Return the next row to run; None if no other run would be informative.

    ``show`` writes a goodness as the value that was measured.
    """
    if len(belief.known.rows) < FEWEST:
        return _unseen(space, belief.known, rng, "too few runs to learn from: a row unlike the others")
    if np.ptp(belief.goodness, axis=0).max() == 0:
        return _unseen(space, belief.known, rng, "all runs came out alike: a row unlike the others")
    if goal == "best":
        return _improving(belief, space, rng, show)
    return _teaching(belief, space, rng, effects=goal == "effects")


def _unseen(space: Space, known: Known, rng: np.random.Generator, why: str) -> Choice | None:
    """Return an allowed row that is far from those that were tried."""
    pool = space.draw(DRAWN, rng)
    tried = np.vstack([known.rows, known.failed, known.running])
    distance = abs(pool[:, None] - tried[None]).sum(2).min(1) if len(tried) else np.ones(len(pool))
    worth = np.where(distance > 0, known.weighed(distance, pool), -np.inf)
    return Choice(pool[worth.argmax()], why) if worth.max() > -np.inf else None


def _improving(belief: Belief, space: Space, rng: np.random.Generator, show: Callable[[float], str]) -> Choice | None:
    known = belief.known
    measured = known.rows[distinct_rows(known.rows)[0]]
    exact = known.deterministic
    incumbents = [float((scale.goodness if exact else scale.moments(measured)[0]).max()) for scale in belief.scales]
    closed = np.vstack([known.running, known.failed, measured if exact else measured[:0]])

    def improvements(rows: Array) -> Array:
        found = []
        for scale, incumbent in zip(belief.scales, incumbents, strict=True):
            mean, std = (part.reshape(-1) for part in scale.moments(rows))
            of_run = np.sqrt(scale.noise + std**2)
            gain = _expected_improvement(mean - incumbent, of_run if exact else std)
            found.append(gain if exact else gain * (1 - np.sqrt(scale.noise) / of_run))
        return np.array(found)  # (scales, n)

    pool = np.vstack([space.draw(DRAWN, rng), measured])
    greatest = np.maximum(improvements(pool).max(1, keepdims=True), 1e-300)

    def worth(rows: Array) -> Array:
        shares = known.weighed((improvements(rows) / greatest).mean(0), rows)
        return np.where(among(rows, closed), -np.inf, shares)

    row, best = climb(worth, pool, space, rng)
    if not best > -np.inf:
        return None
    mean, std = (part.reshape(-1)[0] for part in belief.moments(row[None]))
    again = int((known.rows == row).all(1).sum())
    predicted = f"predicted {show(float(mean))} ± {std:.2g}"
    if again:
        runs = counted(again, "run")
        return Choice(row, f"repeat: {runs} of it cannot tell it from the best yet, {predicted}")
    chance = float(known.chance(row[None])[0])
    doubt = f"; {1 - chance:.0%} chance to fail" if chance < 0.9 else ""
    incumbent = show(incumbents[0])
    return Choice(row, f"may beat the best, {incumbent}: {predicted}{doubt}")


def _expected_improvement(ahead: Array, std: Array) -> Array:
    z = ahead / np.maximum(std, 1e-300)
    relative = z * ndtr(z) + np.exp(-np.minimum(z**2, 1400) / 2) / np.sqrt(2 * np.pi)
    return np.asarray(std * np.maximum(relative, 0))


def climb(worth: Callable[[Array], Array], pool: Array, space: Space, rng: np.random.Generator) -> tuple[Array, float]:
    """Return the row of greatest worth among a pool and what lies near its best rows, and its worth."""
    pool = pool[distinct_rows(pool)[0]]
    seen, values = {row.tobytes() for row in pool}, worth(pool)
    row, best = pool[values.argmax()], float(values.max())
    for _ in range(ROUNDS):
        tops = pool[np.argsort(-values, kind="stable")[:STARTS]]
        near = np.vstack([space.near(top, rng) for top in tops]) + 0.0
        fresh = np.array([each.tobytes() not in seen for each in near], dtype=bool)
        if not fresh.any():
            break
        pool = near[fresh][distinct_rows(near[fresh])[0]]
        seen |= {each.tobytes() for each in pool}
        values = worth(pool)
        if not values.max() > best:
            break
        row, best = pool[values.argmax()], float(values.max())
    return row, best


def among(rows: Array, others: Array) -> Array:
    """Return which rows are among others, (n,) bool."""
    known = {row.tobytes() for row in np.add(others, 0.0, order="C")}
    return np.array([row.tobytes() in known for row in np.add(rows, 0.0, order="C")], dtype=bool)


def some_rows(space: Space, rng: np.random.Generator) -> Array:
    """Return rows that stand for the space."""
    pool = space.draw(DRAWN, rng)
    return np.asarray(pool[rng.permutation(len(pool))[:JOINT]])


def _teaching(belief: Belief, space: Space, rng: np.random.Generator, *, effects: bool) -> Choice | None:
    known, pool = belief.known, some_rows(space, rng)
    mean, covariance, noise = belief.joint(pool)
    unit = belief.unit(pool, covariance, noise)
    if effects:
        contrasts, _ = contrasts_of(pool)
        settled = _settled(contrasts, mean, covariance, known.stretch(TUNED) * unit)
        if settled.all():
            settled[:] = False
        about = contrasts[~settled] @ covariance
        n_tasks = pool.shape[1]
        open_tasks, open_pairs = int((~settled[:n_tasks]).sum()), int((~settled[n_tasks:]).sum())
        counts = ((open_tasks, "task"), (open_pairs, "pair"))
        open_ones = " and ".join(counted(count, what) for count, what in counts if count)
        why = f"most informative about {open_ones} whose effect is still unclear"
    else:
        about = covariance
        typical = float(np.sqrt(np.maximum(np.diag(covariance), 0)).mean() * unit.mean())
        why = f"most reduces the error of predictions, now ± {typical:.2g}"
    gain = known.weighed((about**2).sum(0) / (np.maximum(np.diag(covariance), 0) + noise), pool)
    closed = np.vstack([known.running, known.failed, known.rows if known.deterministic else known.rows[:0]])
    gain[among(pool, closed)] = -np.inf
    return Choice(pool[gain.argmax()], why) if gain.max() > -np.inf else None


def contrasts_of(pool: Array) -> tuple[Array, list[tuple[int, int]]]:
    """Return which combinations of the outcomes of a pool are the effects of tasks and of pairs, (E, n), and the pairs.

    They are the coefficients of a least-squares fit to the outcomes of the pool: the average change by a task, and by
    two together beyond what each does. Pairs are left out where there are many.
    """
    n_tasks = pool.shape[1]
    pairs = list(combinations(range(n_tasks), 2))
    if len(pairs) > MOST_PAIRS or len(pool) < 2 * (len(pairs) + n_tasks) or not np.isin(pool, (0.0, 1.0)).all():
        pairs = []
    centred = pool - pool.mean(0)
    products = [centred[:, a] * centred[:, b] for a, b in pairs]
    features = np.column_stack([np.ones(len(pool)), centred, *products])
    return np.linalg.pinv(features)[1:], pairs


def _settled(contrasts: Array, mean: Array, covariance: Array, unit: Array) -> NDArray[np.bool_]:
    """Return which effects have a sign at 90%, or are known to be small, for every target, (E,) bool."""
    effect = contrasts @ mean
    std = np.sqrt(np.maximum(np.einsum("ei,ij,ej->e", contrasts, covariance, contrasts), 0))[:, None] * unit
    half_width = HALF_WIDTH * std
    small = 0.1 * mean.std(0)
    return np.asarray(((abs(effect) > half_width) | (abs(effect) + half_width < small)).all(1))
