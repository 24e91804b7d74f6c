"""Interactions: which pairs of tasks do more together, or less, than the sum of what each does.

The score of a pair is the second difference g(k, l) − g(k) − g(l) + g(neither), averaged over the other tasks by the
same rules as in attribution, one order up.
"""

from __future__ import annotations

from typing import Any

from whence.answers.attribution import Attribution, refuse_mixtures, warn_of_extrapolation
from whence.answers.effects import as_model, effects, pair_contrast_effects
from whence.answers.rules import Contrasts, Rule, find_rule
from whence.errors import InputError

MOST_TASKS = 2000


def interactions(model: Any, rule: str | Rule | None = None, *, seed: int = 0) -> Attribution:
    """Return the interaction of every pair of tasks, scores and std (K, K, T).

    Parameters
    ----------
    model : Model or fitted scikit-learn regressor
    rule : {"shapley", "banzhaf", "loo", "shift"} or Rule, optional
        Averaged over the other tasks as in Shapley's or Banzhaf's index, or the second difference at the full set (the
        entries of the paper's H_s); "shift" is for mixtures. Where not given, "shapley", or "shift" for mixtures.
    seed : int
        For surrogates whose effects have to be sampled.

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
    rule = find_rule(rule, model.outcomes.subsets, pairs=True)
    n_tasks = model.outcomes.n_tasks
    if n_tasks > MOST_TASKS:
        raise InputError(
            f"Interactions of {n_tasks} tasks would be {n_tasks**2:.0e} numbers; at most {MOST_TASKS} tasks."
        )
    if rule.asks_pairs is not None:
        return Attribution.of(model, rule, pair_contrast_effects(model, rule.asks_pairs(model.subsets)))
    refuse_mixtures(model, f"{rule.name} interactions")
    warn_of_extrapolation(model, rule)
    asked = rule.asks(model.subsets, None)
    if isinstance(asked, Contrasts):
        raise InputError(f"The rule {rule.name!r} compares given subsets, and is for single tasks only.")
    # The index of a pair is the integral over q of its second difference, a polynomial of degree K − 2.
    return Attribution.of(model, rule, effects(model, 2, asked, seed=seed))
