"""Attribution: what each task does to each target, as a pure function of a fitted surrogate.

Scores are changes of the metric as measured; words say whether that is good. Every rule (:mod:`.rules`) averages one
kind of effect (:mod:`.effects`), in closed form where the surrogate has one, with the posterior std. Pairs are
attributed in the same way, one order up (:mod:`.interactions`), and come back in the same type.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from whence.answers.effects import Effects, as_model, contrast_effects, effects
from whence.answers.rules import BETTER, ENDS, WORSE, Contrasts, Rule, find_rule
from whence.errors import DataWarning, InputError
from whence.shown import Shown
from whence.surrogates.mixture import Array, Mixture
from whence.surrogates.model import Model
from whence.surrogates.range import from_to

if TYPE_CHECKING:
    import pandas as pd

Words = np.ndarray[Any, np.dtype[np.str_]]
UNCLEAR = "not distinguishable from zero"
# Std of what a rule says beyond the sizes of the runs, as a multiple of how much that is (benchmarks/calibration.py).
UNSEEN_STD = 2.0
TOGETHER, AGAINST = "work together", "work against each other"


@dataclass(frozen=True)
class Attribution(Shown):
    """The score of every task, or of every pair of tasks, for every target, with its uncertainty.

    Attributes
    ----------
    scores, std : (K, T) or (K, K, T)
        Change of the outcome, and its posterior std (NaN where the surrogate has none). Pairs are symmetric, with a
        zero diagonal.
    sampling_error : of the same shape
        Standard error from sampling subsets; zero where scores are exact.
    baseline : (T,)
        Expected outcome over the subsets the rule averages over (for "inclusion": add it to the scores to get the
        paper's mean prediction over subsets that include the task).
    rule : Rule
        What the scores are an average over, by name and in words.
    how : str
        Whether they are exact.
    """

    scores: Array
    std: Array
    sampling_error: Array
    baseline: Array
    task_names: tuple[str, ...]
    target_names: tuple[str, ...]
    maximize: tuple[bool, ...]
    rule: Rule
    how: str

    @classmethod
    def of(cls, model: Model, rule: Rule, found: Effects) -> Attribution:
        """Return effects with the names and directions of a model."""
        names = {name: getattr(model, name) for name in ("task_names", "target_names", "maximize")}
        return cls(**found._asdict(), **names, rule=rule)

    @property
    def order(self) -> int:
        """Of how many tasks at once the scores are: 1, or 2 for pairs."""
        return self.scores.ndim - 1

    @property
    def words(self) -> tuple[str, str]:
        """What a score of the good and of the bad direction is called."""
        return self.rule.verdicts if self.order == 1 else (TOGETHER, AGAINST)

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """Return the lower and upper ends of the credible intervals, both of the shape of the scores."""
        width = ndtri((1 + level) / 2) * np.hypot(self.std, self.sampling_error)
        return self.scores - width, self.scores + width

    def verdicts(self, level: float = 0.9) -> Words:
        """Return each score in ``words``, or as not distinguishable from zero at this level."""
        low, high = self.interval(level)
        good, bad = self.words
        up, down = np.where(self.maximize, good, bad), np.where(self.maximize, bad, good)
        return np.asarray(np.where(low > 0, up, np.where(high < 0, down, UNCLEAR)))

    def to_frame(self, level: float = 0.9, top: int | None = None) -> pd.DataFrame:
        """Return one row per task and target, the most helpful first; or per pair and target, the strongest first.

        ``top`` limits the rows of each target.
        """
        import pandas as pd

        low, high = self.interval(level)
        words = self.verdicts(level)
        at = np.nonzero(np.triu(np.ones((len(self.task_names),) * 2), 1)) if self.order == 2 else None
        members = np.column_stack(at if at else [np.arange(len(self.task_names))])
        columns = ["task"] if self.order == 1 else [f"task_{letter}" for letter in "abc"[: self.order]]
        rows = []
        for t, target in enumerate(self.target_names):
            scores = self.scores[(*members.T, t)]
            best = np.abs(scores) if self.order > 1 else np.where(self.maximize[t], scores, -scores)
            for place, tasks in enumerate(members[np.argsort(-best, kind="stable")][:top], start=1):
                index = (*tasks, t)
                named = dict(zip(columns, (self.task_names[k] for k in tasks), strict=True))
                rank = {"rank": place} if self.order == 1 else {}
                values = {"score": self.scores[index], "std": self.std[index], "low": low[index], "high": high[index]}
                rows.append({"target": target, **rank, **named, **values, "verdict": str(words[index])})
        first = ["target", "rank"] if self.order == 1 else ["target"]
        return pd.DataFrame(rows, columns=[*first, *columns, "score", "std", "low", "high", "verdict"])

    def clustered(self, target: int = 0) -> NDArray[np.intp]:
        """Return the order of tasks (K,) in which those with like partners are next to each other, for pairs."""
        from scipy.cluster.hierarchy import leaves_list, linkage
        from scipy.spatial.distance import pdist

        scores = self.scores[..., target]
        if len(scores) < 3 or not np.abs(scores).max() > 0:
            return np.arange(len(scores))
        return np.asarray(
            leaves_list(linkage(pdist(scores), "average", optimal_ordering=len(scores) <= 200)), dtype=np.intp
        )

    def __str__(self) -> str:
        what, top = ("attribution", None) if self.order == 1 else ("interactions", 10)
        return f"{self.rule.name} {what} ({self.how})\n{self.to_frame(top=top).to_string(index=False)}"


def attribute(
    model: Any, rule: str | Rule | None = None, *, keep_prob: float | None = None, seed: int = 0
) -> Attribution:
    """Return the attribution of every task to every target.

    Parameters
    ----------
    model : Model or fitted scikit-learn regressor
    rule : {"shapley", "banzhaf", "loo", "inclusion", "shift"} or Rule, optional
        The change when a task is added to some of the others: averaged over all sizes equally ("shapley"), over all
        subsets equally ("banzhaf"), or added to all of them (the paper's leave-one-out, "loo"). "inclusion": the mean
        over subsets of the design that include the task minus the mean over all of them (the paper's random-ensemble
        score minus its average). "shift", for mixtures: the change when a task takes over a tenth of the average
        mixture. Default: what the sizes of the runs can answer, that is "shapley" where they reach from hardly any
        task to nearly all, else "banzhaf" where about half of the tasks are in, else "inclusion"; "shift" for mixtures.
    keep_prob : float, optional
        For "inclusion": the probability that a task is in, independently of the others. Default: the design of the
        runs, that is subsets of one size, coin flips at their rate, or the runs' own subsets, with a sampling error.
    seed : int
        For surrogates whose effects must be sampled.

    Examples
    --------
    >>> import whence
    >>> S = whence.Exhaustive().draw(4)
    >>> runs = whence.Outcomes(subsets=S, values=2 * S[:, 0] - S[:, 1], task_names=list("abcd"), maximize=True)
    >>> result = attribute(whence.fit(runs, surrogate=whence.AdditiveSurrogate("ols")))
    >>> (result.scores.round(3).ravel() + 0).tolist()
    [2.0, -1.0, 0.0, 0.0]
    """
    model = as_model(model)
    rule = find_rule(rule, model.subsets)
    if keep_prob is not None and not 0 < keep_prob < 1:
        raise InputError(f"must lie between 0 and 1. Got {keep_prob} instead.", parameter="keep_prob", of="attribute")
    if not rule.mixtures:
        refuse_mixtures(model, rule.name)
    warn_of_extrapolation(model, rule)
    asked = rule.asks(model.subsets, keep_prob)
    if isinstance(asked, Contrasts):
        return Attribution.of(model, rule, contrast_effects(model, asked))
    if asked.size is not None:
        rule = replace(rule, verdicts=(BETTER, WORSE))
    return Attribution.of(model, rule, rule_effects(model, rule, 1, asked, seed=seed))


def rule_effects(model: Model, rule: Rule, order: int, asked: Mixture, *, seed: int) -> Effects:
    """Return the effects that a rule asks for, the less certain the more of them lies beyond the sizes of the runs.

    What averaging over more sizes changes was not seen in any run, and in outcomes that saturate it is several times
    what a surrogate makes of it.
    """
    found = effects(model, order, asked, seed=seed)
    if rule.reach is None or rule.reach[0] == rule.reach[1] or not rule.beyond(model.subsets):
        return found
    near = effects(model, order, Mixture.over([model.subsets.mean()], [1.0]), seed=seed)
    return found._replace(std=np.hypot(found.std, UNSEEN_STD * (found.scores - near.scores)))


def refuse_mixtures(model: Model, rule: str) -> None:
    """Raise for tables of mixture weights, on which a task is not simply in or out."""
    if not model.outcomes.is_binary:
        raise InputError(
            f"The rule {rule!r} needs tasks that are in or out, but this table has mixture weights. "
            "Use {rule}, or code the tasks as 0/1.",
            rule="shift",
        )


def warn_of_extrapolation(model: Model, rule: Rule, *, pairs: bool = False) -> None:
    """Warn when a rule asks about sizes that the runs hardly have, and name the rule that stays among the runs."""
    sizes, n_tasks = np.sort(model.subsets.sum(1)), model.outcomes.n_tasks
    one_size = not pairs and rule.reach is not None and len(sizes) > 0 and n_tasks > 1 and sizes[0] == sizes[-1]
    if rule.reach is None or not (one_size or rule.beyond(model.subsets)):
        return
    least, most = (round(share * n_tasks) for share in rule.reach)
    few = int(ENDS * len(sizes))
    low, high = sizes[few], sizes[len(sizes) - 1 - few]
    which = "the runs" if (low, high) == (sizes[0], sizes[-1]) else "nearly all runs"
    instead = find_rule(None, model.subsets, pairs=pairs)
    staying = "" if instead.name == rule.name else ", or use {rule}, which stays among the runs"
    warning = DataWarning(
        f"The rule {rule.name!r} asks about subsets of {from_to(least, most)} tasks, and {which} have "
        f"{from_to(low, high)} of {n_tasks}: this is extrapolation. Measure such subsets{staying}.",
        rule=instead.name,
    )
    warnings.warn(warning, stacklevel=3)
