"""Doubtful labels: demonstrations whose own label the model would not give them.

Every candidate is asked as a query, after prompts of other candidates. Where the model, which has seen what the labels
mean there, clearly prefers another label, the one it has is in doubt. A model prefers some words whatever the text, so
that scores are first made comparable between labels (calibration); and where it gives labels no better than chance, it
knows nothing of them, and nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binomtest

from whence.arrays import Floats
from whence.errors import InputError
from whence.icl.outcomes import Prompted, margins

PROMPTS = 24  # that each candidate is asked after, about
CLEAR = 2.0  # standard errors, over prompts
CHANCE = 0.05  # probability that a model that knows nothing does as well


@dataclass(frozen=True, eq=False)
class Doubts:
    """What the model says of the labels of the candidates.

    Attributes
    ----------
    names, labels : tuple of str
        Of the candidates.
    margin, std_error : ndarray of shape (K,)
        Calibrated log-odds of the label that a candidate has, and its standard error over prompts.
    likelier : tuple of str
        The label that the model would give it.
    agreement : float
        Share of the candidates whose label it would give.
    knows : bool
        Whether it does so better than by chance: only then are there doubts.
    """

    names: tuple[str, ...]
    labels: tuple[str, ...]
    margin: Floats
    std_error: Floats
    likelier: tuple[str, ...]
    agreement: float
    knows: bool

    @property
    def doubtful(self) -> list[str]:
        """Names of the candidates whose label is in doubt, the most doubtful first."""
        clear = self.margin < -CLEAR * self.std_error
        return [self.names[k] for k in np.argsort(self.margin, kind="stable") if self.knows and clear[k]]

    def __str__(self) -> str:
        return self.to_frame().to_string(index=False)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per candidate, the most doubtful first."""
        frame = pd.DataFrame(
            {
                "name": self.names,
                "label": self.labels,
                "margin": self.margin,
                "std_error": self.std_error,
                "likelier": self.likelier,
                "doubtful": np.isin(self.names, self.doubtful),
            }
        )
        return frame.sort_values("margin", kind="stable", ignore_index=True)


def doubts(truth: Prompted, *, shots: int, n_prompts: int = PROMPTS, seed: int = 0) -> Doubts:
    """What the model says of the labels of the candidates, after prompts of others.

    Parameters
    ----------
    truth : Prompted
        With the candidates. Its queries are not used.
    shots : int
        Demonstrations in a prompt.
    n_prompts : int
        Random prompts; after each, all candidates that are not in it are asked.
    seed : int
    """
    prompts = truth.prompts.asking(truth.prompts.demos)
    if prompts.open:
        raise InputError("Open answers have no other label that a model could prefer.")
    n_demos = len(prompts.demos)
    if not 0 < shots < n_demos:
        raise InputError(f"must be from 1 to {n_demos - 1}, less than the candidates. Got {shots}.", parameter="shots")
    rng = np.random.default_rng(seed)
    drawn = [rng.choice(n_demos, shots, replace=False) for _ in range(n_prompts)]
    scores = Prompted(truth.model, prompts).logits(drawn)  # (m, K, C)
    outside = np.ones(scores.shape[:2], dtype=bool)
    for row, sequence in enumerate(drawn):
        outside[row, sequence] = False
    scores = np.asarray(scores - _bias(scores, outside, prompts.answers)[:, None], dtype=np.float64)
    each = np.where(outside, margins(scores, prompts.answers), np.nan)
    count = outside.sum(0)
    known = np.where(outside[..., None], scores, 0.0).sum(0)
    likelier = tuple(list(prompts.words)[place] for place in known.argmax(-1))
    margin = np.where(count > 0, np.nansum(each, axis=0) / np.maximum(count, 1), 0.0)
    spread = np.array([np.nanstd(column, ddof=1) if n > 1 else np.inf for column, n in zip(each.T, count, strict=True)])
    right = int((known.argmax(-1) == prompts.answers).sum())
    knows = binomtest(right, n_demos, 1 / prompts.width, alternative="greater").pvalue < CHANCE
    labels = tuple(demo.label for demo in prompts.demos)
    error = spread / np.sqrt(np.maximum(count, 1))
    return Doubts(prompts.names, labels, margin, error, likelier, right / n_demos, bool(knows))


def _bias(scores: Floats, outside: NDArray[np.bool_], answers: NDArray[np.intp]) -> Floats:
    """Mean score of each label in each prompt, (m, C), all labels of candidates counting alike."""
    found = []
    for label in np.unique(answers):
        mine = outside & (answers == label)
        total = np.where(mine[..., None], scores, 0.0).sum(1)
        found.append(total / np.maximum(mine.sum(1), 1)[:, None])
    return np.asarray(np.mean(found, axis=0))
