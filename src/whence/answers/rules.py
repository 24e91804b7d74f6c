"""Rules of attribution: what the score of a task, or of a pair, is an average over.

:func:`whence.attribute` and :func:`whence.interactions` take any of :data:`RULES` by its name, or a :class:`Rule` of
your own. A rule says which subsets it asks about, in words and as draws of the other tasks (:class:`.mixture.Mixture`)
or as differences between given subsets (:class:`Contrasts`). Everything else, in terminal, notebook and page, follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import NDArray
from scipy.special import comb
from scipy.stats import chi2

from whence.errors import InputError
from whence.outcomes.table import distinct_rows
from whence.surrogates.coordinates import is_binary
from whence.surrogates.mixture import Array, Mixture

HELPS, HURTS = "helps", "hurts"
# What can be said of tasks that only take the place of each other.
BETTER, WORSE = "better than others", "worse than others"
Flags = NDArray[np.bool_]
MOST_NODES = 64
# How much of a mixture the rule "shift" hands over to one task.
SHIFT = 0.1
# At most this many subsets of the runs are averaged over.
MOST_SUBSETS = 2000
# The share of the subsets that must be as small, or as large, as those that a rule asks about: at the ends, where there
# are few, and at half of the tasks.
ENDS, MIDDLE = 0.05, 0.25
# Less likely than this, sizes or rates are not those of coin flips.
UNLIKELY = 0.005


class Contrasts(NamedTuple):
    """Differences between the outcomes of given subsets, a row of ``contrasts`` (K, n) for every task."""

    points: Array  # (n, K)
    contrasts: Array  # (K, n)
    overall: Array  # (n,) weights of the baseline
    sampled: bool  # whether the points are a sample of the design


@dataclass(frozen=True)
class Rule:
    """One way to average over the other tasks.

    Attributes
    ----------
    name, heading : str
        What users type, and what stands above a table.
    words, others : str
        What the score of a task is; and, after "what the two do beyond the sum of each", that of a pair.
    asks : function of subsets (n, K) and keep_prob
        Returns the draws or contrasts; the subsets are those of the runs, keep_prob is what the user gave, or None.
    reach : (float, float), optional
        The smallest and the largest share of the tasks that it asks about: without runs about as small, and others
        about as large, its answers are extrapolation.
    pairs : bool
        Whether it is for pairs too.
    mixtures : bool
        Whether it is for mixture weights too.
    asks_pairs : function of subsets (n, K), optional
        For rules of contrasts: for every task but the last, the contrasts of its pairs with each of those after it.
    verdicts : (str, str)
        What a task is said to do whose score is of the good, or of the bad, direction.

    Examples
    --------
    >>> import whence
    >>> words = "the change when the task joins a fifth of the others"
    >>> asks = lambda subsets, keep_prob: Mixture.over([0.2], [1.0])
    >>> few = Rule("few", "Few-task", words, "with a fifth of the others", asks)
    >>> surrogate = whence.AdditiveSurrogate.from_coefficients([1.0, -2.0])
    >>> whence.attribute(surrogate, few).scores.ravel().tolist()
    [1.0, -2.0]
    """

    name: str
    heading: str
    words: str
    others: str
    asks: Callable[[Array, float | None], Mixture | Contrasts]
    reach: tuple[float, float] | None = None
    pairs: bool = True
    mixtures: bool = False
    asks_pairs: Callable[[Array], list[Contrasts]] | None = None
    verdicts: tuple[str, str] = (HELPS, HURTS)

    def beyond(self, subsets: Array) -> bool:
        """Return whether hardly any of these subsets (n, K) are as small, or as large, as those it asks about."""
        if self.reach is None or not len(subsets):
            return False
        n_tasks, sizes = subsets.shape[1], subsets[distinct_rows(subsets)[0]].sum(1)
        every = np.arange(n_tasks + 1)
        existing = comb(n_tasks, every)

        def rare(end: float, sign: int) -> bool:
            # There are few subsets at the ends: a few of them, or of those next to them, will do. All of them are
            # enough, however few they are; one may be missing, as the empty one.
            outer = abs(2 * end - 1)
            bound, share = sign * end * n_tasks - outer * (0.1 * n_tasks + 0.9), MIDDLE + outer * (ENDS - MIDDLE)
            exist = existing[sign * every >= bound].sum() - 1
            return bool((sign * sizes >= bound).sum() < min(share * len(sizes), exist))

        return rare(self.reach[0], -1) or rare(self.reach[1], 1)


def find_rule(rule: str | Rule | None, subsets: Array, *, pairs: bool = False) -> Rule:
    """Return the rule of this name, or the rule itself, if it is for tasks, or for pairs.

    Where none is given: what ``subsets`` (n, K) can answer. That is "shift" for mixtures; else "shapley" where sizes
    reach from hardly any task to nearly all; else "banzhaf" where about half of the tasks are in, and for all pairs;
    else "inclusion".
    """
    if rule is None:
        rule = _default(subsets, pairs)
    fitting = {name: each for name, each in RULES.items() if each.pairs or not pairs}
    if isinstance(rule, Rule) and (rule.pairs or not pairs):
        return rule
    if rule not in fitting:
        owner, given = "interactions" if pairs else "attribute", rule.name if isinstance(rule, Rule) else rule
        names = ", ".join(map(repr, fitting))
        raise InputError(f"must be one of {names}. Got {given!r} instead.", parameter="rule", of=owner)
    return fitting[str(rule)]


def _default(subsets: Array, pairs: bool) -> str:
    """Return the name of the rule that these subsets can answer."""
    if not is_binary(subsets):
        return "shift"
    one_size = len(subsets) > 0 and np.ptp(subsets.sum(1)) == 0
    if pairs:
        return "banzhaf" if RULES["shapley"].beyond(subsets) else "shapley"
    # In runs of one size a task can only take the place of another: what one more task does is not known.
    answered = (name for name in ("shapley", "banzhaf") if not one_size and not RULES[name].beyond(subsets))
    return next(answered, "inclusion")


def _shapley(subsets: Array, keep_prob: float | None) -> Mixture:
    """All sizes alike: the integral over q, exact for the polynomial in q that an expectation over subsets is."""
    nodes, weights = leggauss(min((subsets.shape[1] + 2) // 2, MOST_NODES))
    return Mixture.over((nodes + 1) / 2, weights / 2)


def _inclusion(subsets: Array, keep_prob: float | None) -> Mixture | Contrasts:
    """Subsets of the design that have the task, compared with all of its subsets.

    The design is Bernoulli(keep_prob) if so given; else it is read off the runs: subsets of one size, coin flips of one
    rate, or, for any other, the runs' own subsets. Under coin flips it is (1 − q) times the effect at q.
    """
    n_tasks = subsets.shape[1]
    if keep_prob is None and len(subsets):
        sizes = subsets.sum(1)
        if np.ptp(sizes) == 0:
            return Mixture.of_size(n_tasks, int(sizes[0]))
        distinct = np.unique(subsets, axis=0)
        if not _like_coin_flips(subsets) and not _like_coin_flips(distinct):
            return _over_runs(distinct)
        keep_prob = float(subsets.mean())
    rate = 0.5 if keep_prob is None else keep_prob
    return Mixture.over([rate], [1 - rate], overall=[1.0])


def _like_coin_flips(subsets: Array) -> bool:
    """Whether tasks are in equally often, and sizes vary, as if each task of each subset were a coin flip."""
    m, n_tasks = subsets.shape
    variance = subsets.mean() * (1 - subsets.mean())
    rates = m * ((subsets.mean(0) - subsets.mean()) ** 2).sum() / variance
    sizes = m * subsets.sum(1).var() / (n_tasks * variance)
    alike = n_tasks == 1 or chi2.sf(rates, n_tasks - 1) > UNLIKELY
    return bool(alike and UNLIKELY < chi2.cdf(sizes, m - 1) < 1 - UNLIKELY)


def _over_runs(subsets: Array) -> Contrasts:
    """The mean over the runs' subsets that have the task, less the mean over all; unknown if none has it."""
    if len(subsets) > MOST_SUBSETS:
        subsets = subsets[np.sort(np.random.default_rng(0).choice(len(subsets), MOST_SUBSETS, replace=False))]
    count = subsets.sum(0)
    mean_inside = subsets.T / np.where(count > 0, count, np.nan)[:, None]
    overall = np.full(len(subsets), 1 / len(subsets))
    return Contrasts(subsets, mean_inside - overall, overall, sampled=True)


def _shift(subsets: Array, keep_prob: float | None) -> Contrasts:
    """The average mixture, and the same with a tenth of it handed over to one task, by all in proportion."""
    if not len(subsets):
        raise InputError("The rule 'shift' starts from the average of the runs. Give a model made by whence.fit.")
    average = subsets.mean(0)
    moved = (1 - SHIFT) * average + SHIFT * average.sum() * np.eye(len(average))
    contrasts = np.hstack([-np.ones((len(average), 1)), np.eye(len(average))])
    return Contrasts(np.vstack([average, moved]), contrasts, np.eye(len(average) + 1)[0], sampled=False)


def _shift_pairs(subsets: Array) -> list[Contrasts]:
    """The second differences: a tenth handed over to each of two tasks, less that of each alone."""
    average = subsets.mean(0)
    steps = SHIFT * (average.sum() * np.eye(len(average)) - average)
    found = []
    for k in range(len(average) - 1):
        later = steps[k + 1 :]
        points = np.vstack([average, average + steps[k], average + later, average + steps[k] + later])
        n = len(later)
        contrasts = np.hstack([np.ones((n, 1)), -np.ones((n, 1)), -np.eye(n), np.eye(n)])
        found.append(Contrasts(points, contrasts, np.eye(len(points))[0], sampled=False))
    return found


_ALL = (
    Rule(
        "shapley",
        "Shapley",
        "the change when the task joins, averaged over subsets of every size",
        "averaged over subsets of the others of every size",
        _shapley,
        reach=(0.0, 1.0),
    ),
    Rule(
        "banzhaf",
        "Banzhaf",
        "the change when the task joins, averaged over random halves of the others",
        "averaged over random halves of the others",
        lambda subsets, keep_prob: Mixture.over([0.5], [1.0]),
        reach=(0.5, 0.5),
    ),
    Rule(
        "loo",
        "Leave-one-out",
        "the change when the task joins all the others",
        "all the others being in",
        lambda subsets, keep_prob: Mixture.over([1.0], [1.0]),
        reach=(1.0, 1.0),
    ),
    Rule(
        "inclusion",
        "Inclusion",
        "the mean over subsets that include the task, less the mean over all",
        "",
        _inclusion,
        pairs=False,
    ),
    Rule(
        "shift",
        "Shift",
        "the change when the task takes over a tenth of the average mixture",
        "each taking over a tenth of the average mixture",
        _shift,
        mixtures=True,
        asks_pairs=_shift_pairs,
    ),
)
RULES = {rule.name: rule for rule in _ALL}
