"""What the best of many is worth: the outcome to expect of a subset that was chosen for its prediction.

The prediction of a subset chosen as the best is partly chance, and it lies where runs are few. How predictions that
high turned out is known from the runs that were held out in cross-validation: their errors, as a curve over the height
of the prediction, correct the prediction and say how wide its interval has to be. Where outcomes have a long tail on
one side, the interval reaches further on that side. Where the highest predictions were too low, it reaches further on
the better side: what grows ever faster is best where no run is. Neither end is out of proportion to the range of the
outcomes. Where the subset itself was run, its own outcomes count for as much as their noise allows, and not for more;
where replicates tell that noise, what other predictions came to counts less, and nothing where runs have none.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri, stdtrit

from whence.outcomes.table import distinct_rows
from whence.surrogates.kernels import Array
from whence.surrogates.model import Model
from whence.surrogates.posterior import LEVEL

# Std of the prior of the coefficients of the mean error, in standard deviations of a new run, and of the slope of the
# logarithm of its variance. Set on simulated tables (benchmarks/calibration.py), where they make the expected outcome
# right on average and its intervals hold.
MEAN_PRIOR, VARIANCE_PRIOR = 0.1, 0.2
# The same prior for how far the better end may lie beyond what is expected.
BETTER_PRIOR = 0.5
# The std at the chosen subset is at least this share of the typical one of held-out runs predicted about as high.
LEAST_STD = 0.7
# Heights are cut at this many standard deviations of held-out predictions, beyond which the parabola is not reliable.
HIGHEST = 4
FEWEST_HELD_OUT = 4
FEWEST_FREEDOM = 3
# The tails of outcomes are compared beyond these quantiles; as many runs as the guess that they are alike is worth;
# and an end never reaches further than so many times.
TAIL, ALIKE_RUNS, FURTHEST = 0.05, 10, 4.0
NORMAL_TAIL = float(ndtri(TAIL) / ndtri(0.25))
# The worse end is at most this share of the range of outcomes worse than every run and than what is expected, and the
# better end so many times that range better than what is expected. Beyond, an interval would say nothing more.
WORSE_THAN_RUNS, BETTER_THAN_EXPECTED = 0.25, 3.0
# As many runs as the guess that half of the variance of a held-out run is noise is worth beside replicates.
GUESSED_RUNS = 4
# Where a smaller share of the pairs of different subsets came out alike, a repeat that did has no noise.
BY_CHANCE = 0.05


def expected_of_chosen(model: Model, subset: Array) -> tuple[Array, Array, Array]:
    """Return the outcome to expect of new runs of a chosen subset, and the ends of its 90% interval, all (T,)."""
    predicted, std = (moment[0] for moment in model.predict_quietly(subset[None], return_std=True))
    expected, half_width, tails = predicted.copy(), np.empty(len(predicted)), np.ones((len(predicted), 2))
    beyond, up = np.zeros(len(predicted)), np.array(model.maximize)
    held_out, held_out_std = model.held_out()
    own = (model.outcomes.subsets == subset).all(1)
    for t in range(len(predicted)):
        known = ~np.isnan(held_out[:, t]) & (held_out_std[:, t] > 0)
        values, mean, spread = (column[known, t] for column in (model.outcomes.values, held_out, held_out_std))
        if len(values) < FEWEST_HELD_OUT:
            half_width[t] = std[t] * _student(model.n_subsets - 2)
            continue
        alike = np.argsort(np.abs(mean - predicted[t]), kind="stable")[: max(FEWEST_HELD_OUT, len(mean) // 4)]
        width, others = max(std[t], LEAST_STD * np.median(spread[alike])), 1.0
        if own[known].any() and _exact(model.outcomes.subsets[known], values):
            expected[t], half_width[t] = values[own[known]][0], 0.0
            continue
        if own[known].any():
            noise = _noise(model.outcomes.subsets[known], values)
            expected[t], own_width, others = _measured(
                values[own[known]], mean[own[known]][0], spread[own[known]][0], noise
            )
            width = own_width * max(width / own_width, 1.0) ** others
        # Where held-out predictions hardly differ, none of them is high.
        center, scale = mean.mean(), max(mean.std(), 0.5 * np.median(spread))
        heights = (np.append(mean, predicted[t]) - center) / scale
        tails[t] = _tails(values)
        shares = _shares(model.outcomes.subsets[known])
        errors, heights = (values - mean) / spread, np.clip(heights, -HIGHEST, HIGHEST)
        shift, stretch, freedom = _curve(errors, heights, shares)
        sign = 1 if up[t] else -1
        # What the better end may lie beyond is as uncertain as it is large.
        beyond[t] = 2 * width * others * max(sign * (_curve(errors, heights, shares, BETTER_PRIOR)[0] - shift), 0.0)
        expected[t] += width * shift * others
        half_width[t] = width * stretch**others * _student(freedom)
        tails[t] **= others
    low = expected - half_width * tails[:, 0] - np.where(up, 0.0, beyond)
    high = expected + half_width * tails[:, 1] + np.where(up, beyond, 0.0)
    low, high = _in_proportion(expected, low, high, model.outcomes.values, up)
    within = model.outcomes.within_bounds
    return within(expected), within(low), within(high)


def _in_proportion(expected: Array, low: Array, high: Array, values: Array, up: Array) -> tuple[Array, Array]:
    """Return the ends (T,) no further out than the range of the outcomes (n, T) allows; ``up``: higher is better."""
    known = ~np.isnan(values)
    least, most = values.min(0, initial=np.inf, where=known), values.max(0, initial=-np.inf, where=known)
    apart = np.where(known.any(0), most - least, np.inf)
    worse, better = WORSE_THAN_RUNS * apart, BETTER_THAN_EXPECTED * apart
    lowest = np.where(up, np.minimum(least, expected) - worse, expected - better)
    highest = np.where(up, expected + better, np.maximum(most, expected) + worse)
    return np.maximum(low, lowest), np.minimum(high, highest)


def _curve(errors: Array, heights: Array, shares: Array, mean_prior: float = MEAN_PRIOR) -> tuple[float, float, float]:
    """Return mean, std and degrees of freedom of the error at the last of the heights.

    Errors (n,) are those at the other heights, in standard deviations of a new run, and count for as much as their
    ``shares`` (n,). Their mean is a parabola over the height and the logarithm of their variance a line, both close to
    zero a priori, the mean by ``mean_prior``; both are fitted in turn. The mean is counted as uncertain by as much as
    it is large.
    """
    basis = np.stack([np.ones_like(heights), heights, (heights**2 - 1) / 2], axis=1)
    X, x, U, u = basis[:-1], basis[-1], basis[:-1, :2], basis[-1, :2]
    precision, prior = np.eye(3) / mean_prior**2, np.diag([1.0, 1 / VARIANCE_PRIOR**2])
    information = (U.T * shares) @ U / 2 + prior
    log_variance = np.zeros(2)
    for _ in range(50):
        weight = shares * np.exp(-U @ log_variance)
        covariance = np.linalg.inv((X.T * weight) @ X + precision)
        mean = covariance @ (X.T @ (weight * errors))
        square = (errors - X @ mean) ** 2 + np.einsum("ij,jk,ik->i", X, covariance, X)
        step = np.linalg.solve(information, U.T @ (weight * square - shares) / 2 - prior @ log_variance)
        log_variance += np.clip(step, -1, 1)
        if np.abs(step).max() < 1e-6:
            break
    shift = float(x @ mean)
    variance = np.exp(u @ log_variance) + x @ covariance @ x + shift**2
    return shift, float(np.sqrt(variance)), 2 / float(u @ np.linalg.solve(information, u))


def _measured(values: Array, held_out: float, std: float, noise: tuple[float, int]) -> tuple[float, float, float]:
    """Return the expected outcome of a subset that was run, the std of a new run, and what other runs have to say.

    What the other runs say of it (``held_out`` ± ``std``) is combined with its own ``values`` by their noise, which is
    estimated from all replicates and a guess. They have all the say, 1, where there are no replicates, and the less the
    better replicates tell the noise and the more of them there are of this subset.
    """
    squares, freedom = noise
    known = max(squares / max(freedom, 1), 1e-6 * std**2)
    # Of logarithms, since a guess may be wrong by orders of magnitude.
    logs = freedom * np.log(known) + GUESSED_RUNS * np.log(std**2 / 2)
    variance = min(float(np.exp(logs / (freedom + GUESSED_RUNS))), 0.95 * std**2)
    others = 1 / (std**2 - variance)
    precision = others + len(values) / variance
    own = len(values) / variance / precision * freedom / (freedom + GUESSED_RUNS)
    expected = (others * held_out + values.sum() / variance) / precision
    return expected, float(np.sqrt(1 / precision + variance)), 1 - own


def _tails(values: Array) -> tuple[float, float]:
    """Return how much further the lower and the upper end of an interval reach, 1 or more.

    A tail counts as long beside the other one, and beside what it would be if outcomes were normal.
    """
    lower, low, middle, high, upper = np.quantile(values, [TAIL, 0.25, 0.5, 0.75, 1 - TAIL])
    if not lower < low < middle < high < upper:
        return 1.0, 1.0
    lengths = np.array([middle - lower, upper - middle])
    normal = NORMAL_TAIL * np.array([middle - low, high - middle])
    longer = np.maximum(lengths / lengths[::-1], lengths / normal) ** (len(values) / (len(values) + ALIKE_RUNS))
    below, above = np.clip(longer, 1.0, FURTHEST)
    return float(below), float(above)


def _shares(subsets: Array) -> Array:
    """Return what each run counts for, (n,): the runs of one subset, whose predictions err alike, 1 together."""
    which, counts = np.unique(subsets, axis=0, return_inverse=True, return_counts=True)[1:]
    return np.asarray(1 / counts[which.ravel()])


def _noise(subsets: Array, values: Array) -> tuple[float, int]:
    """Return the sum of squares of replicates about their means, and its degrees of freedom."""
    which, counts = np.unique(subsets, axis=0, return_inverse=True, return_counts=True)[1:]
    means = np.bincount(which.ravel(), values) / counts
    return float(((values - means[which.ravel()]) ** 2).sum()), len(values) - len(counts)


def _exact(subsets: Array, values: Array) -> bool:
    """Return whether runs have no noise: all repeated ones came out the same, and others hardly ever do by chance."""
    squares, freedom = _noise(subsets, values)
    first = distinct_rows(subsets)[0]
    counts = np.unique(values[first], return_counts=True)[1]
    pairs = len(first) * (len(first) - 1)
    return freedom > 0 and squares == 0 and float((counts * (counts - 1)).sum()) < BY_CHANCE * pairs


def _student(freedom: float) -> float:
    """Half the width of an interval in standard deviations."""
    return float(stdtrit(max(FEWEST_FREEDOM, freedom), (1 + LEVEL) / 2))
