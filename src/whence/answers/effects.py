"""Effects of tasks and pairs on any fitted surrogate: what attribution and interactions are both made of.

An *effect* is the expected change of the outcome when a task is added (or the second difference when two are), the
other tasks being in with probability q. Every rule is a mixture over q, given as ``nodes`` and ``weights``
(:func:`rule_mixture`). Product-kernel and additive surrogates have effects in closed form. Whatever else a surrogate
predicts, its *remainder* over that part, is summed over all subsets, or sampled where these are too many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy.special import logsumexp, ndtri, xlog1py, xlogy

from whence.designs import Exhaustive
from whence.errors import InputError
from whence.surrogates.choose import Model, Part
from whence.surrogates.kernels import Array

MOST_NODES = 64
ENUMERATED_TASKS = 14
SAMPLES = 8192

EXACT = "exact"
ENUMERATED = "exact, summed over all subsets"
SAMPLED = "exact for the product-kernel part, the remainder sampled"


@dataclass(frozen=True)
class Effects:
    """Effects of all targets: scores and std (K, T) or (K, K, T), the standard error of sampling, and how."""

    scores: Array
    std: Array
    sampling_error: Array
    how: str

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """Return the lower and upper ends of the credible intervals, both of the shape of the scores."""
        width = ndtri((1 + level) / 2) * np.hypot(self.std, self.sampling_error)
        return self.scores - width, self.scores + width


def rule_mixture(rule: str, n_tasks: int, keep_prob: float) -> tuple[Array, Array]:
    """Return the nodes q and weights of a rule.

    ``loo`` adds the task to all others (q = 1), ``banzhaf`` to a coin-flip half of them, ``shapley`` integrates over q
    (Gauss–Legendre, exact for the polynomial in q that an expectation over subsets is), and ``inclusion`` compares
    subsets that have the task with all subsets of the design: (1 − keep_prob) times the effect at q = keep_prob.
    """
    if rule == "loo":
        return np.ones(1), np.ones(1)
    if rule == "banzhaf":
        return np.full(1, 0.5), np.ones(1)
    if rule == "inclusion":
        return np.full(1, keep_prob), np.full(1, 1 - keep_prob)
    if rule == "shapley":
        nodes, weights = leggauss(min((n_tasks + 2) // 2, MOST_NODES))
        return (nodes + 1) / 2, weights / 2
    raise InputError(
        f"The 'rule' must be one of 'shapley', 'banzhaf', 'loo', 'inclusion', 'shift'. Got {rule!r} instead."
    )


def main_effects(model: Model, nodes: Array, weights: Array, *, seed: int = 0) -> Effects:
    """Return the effect of every task on every target, (K, T)."""
    return _collect(model, nodes, weights, order=1, seed=seed)


def pair_effects(model: Model, nodes: Array, weights: Array, *, seed: int = 0) -> Effects:
    """Return the second difference of every pair of tasks on every target, (K, K, T)."""
    return _collect(model, nodes, weights, order=2, seed=seed)


def _collect(model: Model, nodes: Array, weights: Array, *, order: int, seed: int) -> Effects:
    n_tasks, n_targets = model.outcomes.n_tasks, model.outcomes.n_targets
    shape = (n_tasks,) * order + (n_targets,)
    scores, std, error = np.zeros(shape), np.full(shape, np.nan), np.zeros(shape)
    how = {EXACT}
    for part in model.parts:
        surrogate, at = part.surrogate, (..., part.targets)
        if hasattr(surrogate, "main_effects"):
            closed = surrogate.main_effects if order == 1 else surrogate.pair_effects
            scores[at], std[at] = closed(nodes, weights)
            std[at] *= part.factor
        if not getattr(surrogate, "exact_effects", False) and n_tasks >= order:
            rest, error[at], method = _remainder(part, n_tasks, nodes, weights, order, seed)
            scores[at] += rest
            how.add(method)
    words = next(method for method in (SAMPLED, ENUMERATED, EXACT) if method in how)
    return Effects(scores, std, error, words)


def _remainder(
    part: Part, n_tasks: int, nodes: Array, weights: Array, order: int, seed: int
) -> tuple[Array, Array, str]:
    """Effects of what the surrogate predicts beyond its product-kernel part.

    The weight of a subset s in the effect of task k is ±p(number of other tasks in s), which depends on its size only;
    a sampled subset counts with the inverse of its density.
    """
    if n_tasks <= ENUMERATED_TASKS or (nodes == 1).all():
        points = (
            Exhaustive(allow_empty=True).draw(n_tasks) if n_tasks <= ENUMERATED_TASKS else _near_full(n_tasks, order)
        )
        log_density = np.zeros(len(points))
        method = ENUMERATED
    else:
        points, log_density = _sampled_subsets(n_tasks, nodes, weights, seed)
        method = SAMPLED
    values = np.asarray(part.surrogate.predict(points)).reshape(len(points), -1)
    if hasattr(part.surrogate, "product_part"):
        values = values - part.surrogate.product_part(points)
    if method == SAMPLED:
        # A constant has no effect, but its samples would scatter.
        values = values - values.mean(0)
    scores = _contrast(points, values, log_density, nodes, weights, order, power=1)
    if method == ENUMERATED:
        return scores, np.zeros_like(scores), method
    second_moment = _contrast(points, values**2, log_density, nodes, weights, order, power=2)
    return scores, np.sqrt(np.maximum(second_moment - scores**2 / len(points), 0.0)), method


def _contrast(
    points: Array, values: Array, log_density: Array, nodes: Array, weights: Array, order: int, power: int
) -> Array:
    """Σ_s (±p(others in s) / density)^power · value(s), for every task or pair: matrix products over the points."""
    n_tasks = points.shape[1]
    sizes = points.sum(1).astype(int)
    others = np.arange(n_tasks - order + 1)
    # In logarithms: a single subset of a thousand tasks has a probability below the smallest float.
    log_chance = _log_mixture(nodes, weights, others, n_tasks - order)
    sign = -1.0 if power == 1 else 1.0

    def weighted(absent_minus: int) -> Array:
        """Value · (p(|s| − absent_minus) / density)^power, zero where that size cannot occur."""
        n = sizes - absent_minus
        possible = (n >= 0) & (n < len(log_chance))
        ratio = np.exp(log_chance[np.clip(n, 0, len(log_chance) - 1)] - log_density)
        factor = np.where(possible, ratio, 0.0) ** power
        return np.asarray(factor[:, None] * values)

    present, absent = points, 1 - points
    if order == 1:
        return np.asarray(present.T @ weighted(1) + sign * absent.T @ weighted(0))
    both, one, none = weighted(2), weighted(1), weighted(0)
    out = np.empty((n_tasks, n_tasks, values.shape[1]))
    for t in range(values.shape[1]):
        mixed = present.T @ (one[:, [t]] * absent)
        out[:, :, t] = present.T @ (both[:, [t]] * present) + absent.T @ (none[:, [t]] * absent)
        out[:, :, t] += sign * (mixed + mixed.T)
        np.fill_diagonal(out[:, :, t], 0.0)
    return out


def _near_full(n_tasks: int, order: int) -> Array:
    """The full set and all subsets with one (order 1) or up to two (order 2) tasks left out."""
    single = 1 - np.eye(n_tasks)
    if order == 1:
        return np.vstack([np.ones(n_tasks), single])
    first, second = np.triu_indices(n_tasks, 1)
    return np.vstack([np.ones(n_tasks), single, single[first] * single[second]])


def _sampled_subsets(n_tasks: int, nodes: Array, weights: Array, seed: int) -> tuple[Array, Array]:
    """Subsets drawn from the mixture over q, and log(number · density) of each."""
    rng = np.random.default_rng(seed)
    share = np.abs(weights) / np.abs(weights).sum()
    q = rng.choice(nodes, SAMPLES, p=share)
    points = (rng.random((SAMPLES, n_tasks)) < q[:, None]).astype(np.float64)
    return points, np.log(SAMPLES) + _log_mixture(nodes, share, points.sum(1), n_tasks)


def _log_mixture(nodes: Array, weights: Array, sizes: Array, n_tasks: int) -> Array:
    """Log Σ_q w_q q^size (1 − q)^(n_tasks − size) for every size."""
    logs = xlogy(sizes, nodes[:, None]) + xlog1py(n_tasks - sizes, -nodes[:, None])
    return np.asarray(logsumexp(logs, axis=0, b=weights[:, None]))


def as_model(model: Any) -> Model:
    """Return the model itself, or a fitted scikit-learn regressor as one, with default names if it has none."""
    if isinstance(model, Model):
        return model
    from whence.outcomes import Outcomes

    if not hasattr(model, "n_features_in_") or not hasattr(model, "predict"):
        raise InputError(
            "The 'model' must be what whence.fit returns, or a fitted scikit-learn regressor. "
            f"Got {type(model).__name__} instead."
        )
    n_tasks = int(model.n_features_in_)
    n_targets = np.asarray(model.predict(np.ones((1, n_tasks)))).size
    names = {key: getattr(model, key) for key in ("task_names", "target_names") if hasattr(model, key)}
    empty = Outcomes(subsets=np.empty((0, n_tasks)), values=np.empty((0, n_targets)), **names)
    return Model(empty, (Part(np.arange(n_targets), model, type(model).__name__, ()),))
