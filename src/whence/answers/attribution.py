"""Attribution: what each task does to each target, as a pure function of a fitted surrogate.

Scores are changes of the metric as measured; words say whether that is good. All rules are mixtures of one kind of
effect (:mod:`whence.answers.effects`), exact for product-kernel and additive surrogates, with the posterior std.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.answers.effects import EXACT, Effects, as_model, main_effects, rule_mixture
from whence.errors import DataWarning, InputError
from whence.shown import Shown
from whence.surrogates.choose import Model
from whence.surrogates.kernels import Array

if TYPE_CHECKING:
    import pandas as pd

Words = np.ndarray[Any, np.dtype[np.str_]]
# How much of a mixture the rule "shift" hands over to one task.
SHIFT = 0.1
HELPS, HURTS, UNCLEAR = "helps", "hurts", "not distinguishable from zero"


@dataclass(frozen=True)
class Attribution(Effects, Shown):
    """The score of every task for every target, with its uncertainty.

    Attributes
    ----------
    scores, std : (K, T)
        Change of the outcome, and its posterior std (NaN where the surrogate has none).
    sampling_error : (K, T)
        Standard error from sampling subsets; zero where scores are exact.
    baseline : (T,)
        Expected outcome over the subsets the rule averages over (for "inclusion": add it to the scores to get the
        paper's mean prediction over subsets that include the task).
    """

    baseline: Array
    task_names: tuple[str, ...]
    target_names: tuple[str, ...]
    maximize: tuple[bool, ...]
    rule: str

    def verdicts(self, level: float = 0.9) -> Words:
        """Return in words, (K, T): helps, hurts, or not distinguishable from zero at this level."""
        return verdicts(*self.interval(level), self.maximize, good=HELPS, bad=HURTS)

    def to_frame(self, level: float = 0.9) -> pd.DataFrame:
        """Return one row per task and target, the most helpful first."""
        import pandas as pd

        low, high = self.interval(level)
        goodness = self.scores * np.where(self.maximize, 1, -1)
        order = np.argsort(-goodness, axis=0, kind="stable")
        words = self.verdicts(level)
        return pd.DataFrame(
            [
                {
                    "target": target,
                    "rank": place + 1,
                    "task": self.task_names[k],
                    "score": self.scores[k, t],
                    "std": self.std[k, t],
                    "low": low[k, t],
                    "high": high[k, t],
                    "verdict": str(words[k, t]),
                }
                for t, target in enumerate(self.target_names)
                for place, k in enumerate(order[:, t])
            ]
        )

    def __str__(self) -> str:
        return f"{self.rule} attribution ({self.how})\n{self.to_frame().to_string(index=False)}"


def attribute(model: Any, rule: str = "shapley", *, keep_prob: float | None = None, seed: int = 0) -> Attribution:
    """Return the attribution of every task to every target.

    Parameters
    ----------
    model : Model or fitted scikit-learn regressor
    rule : {"shapley", "banzhaf", "loo", "inclusion", "shift"}
        The change when a task is added, averaged over the other tasks: over all sizes alike ("shapley"), over coin
        flips ("banzhaf"), to all others (the paper's leave-one-out, "loo"); or the mean over subsets of the design
        that include it minus the mean over all ("inclusion", the paper's random-ensemble score less its average).
        For mixture weights, "shift": the change when a task takes over a tenth of the average mixture.
    keep_prob : float, optional
        For "inclusion": how often a task is in; as in the runs if not given.
    seed : int
        For surrogates whose effects have to be sampled.

    Examples
    --------
    >>> import whence
    >>> S = whence.Exhaustive().draw(4)
    >>> runs = whence.Outcomes(subsets=S, values=2 * S[:, 0] - S[:, 1], task_names=list("abcd"), maximize=True)
    >>> result = attribute(whence.fit(runs, surrogate=whence.AdditiveSurrogate("ols")))
    >>> result.scores.round(3).ravel().tolist()
    [2.0, -1.0, 0.0, 0.0]
    """
    model = as_model(model)
    if rule == "shift":
        return _shift(model)
    keep = _keep_prob(model, keep_prob)
    nodes, weights = rule_mixture(rule, model.outcomes.n_tasks, keep)
    refuse_mixtures(model, rule)
    warn_of_extrapolation(model, rule)
    effects = main_effects(model, nodes, weights, seed=seed)
    return Attribution(
        scores=effects.scores,
        std=effects.std,
        sampling_error=effects.sampling_error,
        baseline=_baseline(model, nodes, weights, rule),
        task_names=model.task_names,
        target_names=model.target_names,
        maximize=model.maximize,
        rule=rule,
        how=effects.how,
    )


def verdicts(low: Array, high: Array, maximize: tuple[bool, ...], *, good: str, bad: str) -> Words:
    """Return ``good``, ``bad`` or "not distinguishable from zero" for intervals whose last axis is the target."""
    up = np.where(maximize, good, bad)
    down = np.where(maximize, bad, good)
    return np.asarray(np.where(low > 0, up, np.where(high < 0, down, UNCLEAR)))


def refuse_mixtures(model: Model, rule: str) -> None:
    """Raise for tables of mixture weights, on which a task is not simply in or out."""
    if not model.outcomes.is_binary:
        raise InputError(
            f"The rule {rule!r} is about tasks that are in or out, and this table has mixture weights. "
            "Attribute with {rule}, or code the tasks as 0/1.",
            rule="shift",
        )


def warn_of_extrapolation(model: Model, rule: str) -> None:
    """Warn when a rule asks about subsets far larger or smaller than any run."""
    sizes, n_tasks = model.subsets.sum(1), model.outcomes.n_tasks
    if not len(sizes) or rule == "inclusion":
        return
    reach = {"loo": (1.0, 1.0), "full": (1.0, 1.0), "banzhaf": (0.5, 0.5), "shapley": (0.25, 0.75)}[rule]
    slack = 0.1 * n_tasks + 1
    smallest, largest = sizes.min(), sizes.max()
    if largest + slack < reach[1] * n_tasks or smallest - slack > reach[0] * n_tasks:
        warning = DataWarning(
            f"The rule {rule!r} asks about subsets of {reach[0] * n_tasks:.0f} to {reach[1] * n_tasks:.0f} tasks, "
            f"and the runs have {smallest:.0f} to {largest:.0f} of {n_tasks}: this is extrapolation. "
            "Measure such subsets, or attribute with {rule}, which stays among the runs.",
            rule="inclusion",
        )
        warnings.warn(warning, stacklevel=3)


def _shift(model: Model) -> Attribution:
    """The change of the outcome when a task takes over a tenth of the average mixture from all in proportion."""
    runs = model.subsets
    if not len(runs):
        raise InputError("The rule 'shift' starts from the average of the runs. Give a model made by whence.fit.")
    average = runs.mean(0)
    points = np.vstack([average, (1 - SHIFT) * average + SHIFT * average.sum() * np.eye(len(average))])
    contrasts = np.hstack([-np.ones((len(average), 1)), np.eye(len(average))])
    predicted = model.predict(points)
    std = np.full((len(average), model.outcomes.n_targets), np.nan)
    for part in model.parts:
        if hasattr(part.surrogate, "contrast_std"):
            std[:, part.targets] = part.surrogate.contrast_std(points, contrasts) * part.factor
    return Attribution(
        scores=contrasts @ predicted,
        std=std,
        sampling_error=np.zeros_like(std),
        baseline=predicted[0],
        task_names=model.task_names,
        target_names=model.target_names,
        maximize=model.maximize,
        rule="shift",
        how=EXACT,
    )


def _keep_prob(model: Model, given: float | None) -> float:
    if given is None:
        observed = model.subsets
        return float(np.clip(observed.mean(), 0.0, 1.0)) if observed.size else 0.5
    if not 0 < given < 1:
        raise InputError(f"must lie between 0 and 1. Got {given} instead.", parameter="keep_prob", of="attribute")
    return given


def _baseline(model: Model, nodes: Array, weights: Array, rule: str) -> Array:
    """E[g] over the subsets of the rule, product-kernel part (T,)."""
    shares = np.ones(1) if rule == "inclusion" else weights
    baseline = np.full(model.outcomes.n_targets, np.nan)
    for part in model.parts:
        if hasattr(part.surrogate, "mean_outcome"):
            means = [part.surrogate.mean_outcome(float(q)) for q in nodes]
            baseline[part.targets] = sum(share * mean for share, mean in zip(shares, means, strict=True))
    return baseline
