"""Interactions: which pairs of tasks do more together, or less, than the sum of what each does.

The score of a pair is the second difference g(k, l) − g(k) − g(l) + g(neither), averaged over the other tasks: the same
effects as in attribution, one order up (:mod:`whence.answers.effects`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whence.answers.attribution import Words, refuse_mixtures, verdicts, warn_of_extrapolation
from whence.answers.effects import Effects, as_model, pair_effects, rule_mixture
from whence.errors import InputError
from whence.shown import Shown

if TYPE_CHECKING:
    import pandas as pd

TOGETHER, AGAINST = "work together", "work against each other"
MOST_TASKS = 2000


@dataclass(frozen=True)
class Interactions(Effects, Shown):
    """The interaction of every pair of tasks for every target: scores and std (K, K, T), symmetric, zero diagonal."""

    task_names: tuple[str, ...]
    target_names: tuple[str, ...]
    maximize: tuple[bool, ...]
    kind: str

    def verdicts(self, level: float = 0.9) -> Words:
        """Return in words, (K, K, T): work together, against each other, or not distinguishable from zero."""
        return verdicts(*self.interval(level), self.maximize, good=TOGETHER, bad=AGAINST)

    def to_frame(self, level: float = 0.9, top: int | None = None) -> pd.DataFrame:
        """Return one row per pair and target, the strongest first; ``top`` keeps so many pairs of each target."""
        import pandas as pd

        low, high = self.interval(level)
        words = self.verdicts(level)
        first, second = np.triu_indices(len(self.task_names), 1)
        rows = []
        for t, target in enumerate(self.target_names):
            for pair in np.argsort(-np.abs(self.scores[first, second, t]), kind="stable")[:top]:
                k, l = first[pair], second[pair]  # noqa: E741
                rows.append(
                    {
                        "target": target,
                        "task_a": self.task_names[k],
                        "task_b": self.task_names[l],
                        "score": self.scores[k, l, t],
                        "std": self.std[k, l, t],
                        "low": low[k, l, t],
                        "high": high[k, l, t],
                        "verdict": str(words[k, l, t]),
                    }
                )
        columns = ["target", "task_a", "task_b", "score", "std", "low", "high", "verdict"]
        return pd.DataFrame(rows, columns=columns)

    def clustered(self, target: int = 0) -> NDArray[np.intp]:
        """Return the order of tasks (K,) in which those with like partners stand together, for a matrix to read."""
        from scipy.cluster.hierarchy import leaves_list, linkage
        from scipy.spatial.distance import pdist

        scores = self.scores[:, :, target]
        if len(scores) < 3 or not np.abs(scores).max() > 0:
            return np.arange(len(scores))
        return np.asarray(
            leaves_list(linkage(pdist(scores), "average", optimal_ordering=len(scores) <= 200)), dtype=np.intp
        )

    def __str__(self) -> str:
        return f"{self.kind} interactions ({self.how})\n{self.to_frame(top=10).to_string(index=False)}"


def interactions(model: Any, kind: str = "shapley", *, seed: int = 0) -> Interactions:
    """Return the interaction of every pair of tasks.

    Parameters
    ----------
    model : Model or fitted scikit-learn regressor
    kind : {"shapley", "banzhaf", "full"}
        Averaged over the other tasks as in Shapley's or Banzhaf's index, or the second difference at the full set (the
        entries of the paper's H_s).
    seed : int
        For surrogates whose effects have to be sampled.

    Examples
    --------
    >>> import whence
    >>> S = whence.Exhaustive().draw(4)
    >>> runs = whence.Outcomes(subsets=S, values=S[:, 0] * S[:, 1], task_names=list("abcd"))
    >>> surrogate = whence.KernelSurrogate(alpha=1e-8, gamma=0.5)
    >>> interactions(whence.fit(runs, surrogate=surrogate), kind="full").scores[0, 1].round(3).tolist()
    [1.0]
    """
    if kind not in ("shapley", "banzhaf", "full"):
        raise InputError(f"The 'kind' must be one of 'shapley', 'banzhaf', 'full'. Got {kind!r} instead.")
    model = as_model(model)
    n_tasks = model.outcomes.n_tasks
    if n_tasks > MOST_TASKS:
        raise InputError(
            f"Interactions of {n_tasks} tasks would be {n_tasks**2:.0e} numbers; at most {MOST_TASKS} tasks."
        )
    refuse_mixtures(model, f"{kind} interactions")
    warn_of_extrapolation(model, kind)
    # The index of a pair is the integral over q of its second difference, a polynomial of degree K − 2.
    nodes, weights = rule_mixture("loo" if kind == "full" else kind, n_tasks, 0.5)
    effects = pair_effects(model, nodes, weights, seed=seed)
    return Interactions(
        scores=effects.scores,
        std=effects.std,
        sampling_error=effects.sampling_error,
        task_names=model.task_names,
        target_names=model.target_names,
        maximize=model.maximize,
        kind=kind,
        how=effects.how,
    )
