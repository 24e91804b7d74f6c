"""Interactions: which pairs of tasks do more together, or less, than the sum of what each does.

The score of a pair is the second difference g(k, l) − g(k) − g(l) + g(neither), averaged over the other tasks by the
same rules as in attribution, one order up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.answers.attribution import Attribution, refuse_mixtures, rule_effects, warn_of_extrapolation
from whence.answers.effects import Effects, as_model, pair_contrast_effects
from whence.answers.rules import Contrasts, Rule, find_rule
from whence.errors import InputError, some_of
from whence.outcomes.sizes import LONGEST, refuse_too_large, refuse_too_long
from whence.surrogates.model import Model

COPIES = 12  # arrays of all pairs that are held at the same time
PAIRS_PER_SECOND = 1.5e10  # times the squared runs of a process
NOTHING = 1e-6  # of the spread of an outcome: pairs that are never larger, for certain, are not there


def interactions(model: Any, rule: str | Rule | None = None, *, seed: int = 0) -> Attribution:
    """Return the interaction of every pair of tasks, scores and std (K, K, T).

    Parameters
    ----------
    model : Model or fitted scikit-learn regressor
    rule : {"shapley", "banzhaf", "loo", "shift"} or Rule, optional
        Average over the other tasks as in Shapley's or Banzhaf's index, or take the second difference at the full set
        ("loo", the entries of the paper's H_s). "shift" is for mixtures. Default: "shapley" where the sizes of the runs
        reach from hardly any task to nearly all, else "banzhaf"; "shift" for mixtures.
    seed : int
        For surrogates whose effects must be sampled.

    Examples
    --------
    >>> import whence
    >>> S = whence.Exhaustive().draw(4)
    >>> runs = whence.Outcomes(subsets=S, values=S[:, 0] * S[:, 1], task_names=list("abcd"))
    >>> surrogate = whence.KernelSurrogate(alpha=1e-8, gamma=0.5)
    >>> interactions(whence.fit(runs, surrogate=surrogate), rule="loo").scores[0, 1].round(3).tolist()
    [1.0]
    """
    model = as_model(model)
    rule = find_rule(rule, model.subsets, pairs=True)
    _refuse_too_many(model)
    if rule.asks_pairs is not None:
        found = pair_contrast_effects(model, rule.asks_pairs(model.subsets))
        return Attribution.of(model, rule, found._replace(how=_how(model, found)))
    refuse_mixtures(model, f"{rule.name} interactions")
    warn_of_extrapolation(model, rule, pairs=True)
    asked = rule.asks(model.subsets, None)
    if isinstance(asked, Contrasts):
        raise InputError(f"The rule {rule.name!r} compares given subsets, and is for single tasks only.")
    # The index of a pair is the integral over q of its second difference, a polynomial of degree K − 2.
    found = rule_effects(model, rule, 2, asked, seed=seed)
    return Attribution.of(model, rule, found._replace(how=_how(model, found)))


def _how(model: Model, found: Effects) -> str:
    """How scores were computed; of surrogates that have no pairs for some targets, that they cannot see them."""
    runs = model.outcomes
    if runs.n_tasks < 2 or not runs.n_runs:
        return found.how
    sizes = np.maximum(np.abs(found.scores), found.std).max((0, 1))
    blind = sizes < NOTHING * np.nanstd(runs.values, axis=0)
    whose = "" if blind.all() else f" of {some_of([runs.target_names[t] for t in np.flatnonzero(blind)])}"
    return f"the surrogate{whose} adds up tasks, so that it cannot see pairs" if blind.any() else found.how


def pair_work(model: Model) -> float:
    """Return the multiplications that one pair of tasks costs: the squared runs of all processes of the model."""
    return sum(_squared_runs(part.surrogate) for part in model.parts)


def _squared_runs(surrogate: Any) -> float:
    own = sum(float(len(group.posterior.X)) ** 2 for group in getattr(surrogate, "groups_", ()))
    within = list(getattr(surrogate, "members_", {}).values())
    within += [part.surrogate for rung in getattr(surrogate, "rungs", ()) for part in rung.model.parts]
    return own + sum(_squared_runs(each) for each in within)


def _refuse_too_many(model: Model) -> None:
    """Raise where all pairs would not fit in memory, or would take an hour."""
    n_tasks, n_targets = model.outcomes.n_tasks, model.outcomes.n_targets
    remedy = "Ask for fewer targets, or group tasks."
    refuse_too_large("The interactions", n_tasks, "tasks", lambda n: 8.0 * COPIES * n * n * n_targets, remedy=remedy)
    each = pair_work(model) / 2 / PAIRS_PER_SECOND
    fewer = int(np.sqrt(LONGEST / each)) if each else n_tasks
    words = f"At most {fewer:,} tasks would do. {remedy}"
    refuse_too_long(f"The interactions of {n_tasks:,} tasks", each * n_tasks**2, words)
