"""What both outcome functions of prompts share: from subsets to ordered prompts, and from margins to outcomes.

The margin of a query is the logit of its right label word less the log of the sum of exponentials of the others'. It
says nearly all: the cross-entropy over label words is log(1 + exp(−margin)), and of two words the right one is the more
likely one where it is positive. Of open answers, it is the mean log-likelihood of the tokens of the right one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from whence.arrays import Floats
from whence.errors import InputError, counted, did_you_mean
from whence.estimators.subsets import as_seeds, as_subset, as_subsets
from whence.icl.language import LanguageModel
from whence.icl.prompts import Prompts
from whence.models.targets import LOWER_IS_BETTER, single

Order = Literal["listed", "random"]
Places = NDArray[np.intp]  # demonstrations of one prompt, in the order in which they stand
METRICS = ("loss", "accuracy", "margin")


def margins(logits: Floats, answers: NDArray[np.intp]) -> Floats:
    """Margins (…, Q) from logits (…, Q, C) of label words, and which of them is right.

    Examples
    --------
    >>> margins(np.array([[2.0, 0.5], [0.0, 3.0]]), np.array([0, 0]))
    array([ 1.5, -3. ])
    """
    queries = np.arange(len(answers))
    others = logits.copy()
    others[..., queries, answers] = -np.inf
    return np.asarray(logits[..., queries, answers] - logsumexp(others, axis=-1))


def open_values(likelihood: Floats) -> dict[str, Floats]:
    """Values (…, Q) of every metric of open answers, from the mean log-likelihood of their tokens.

    Examples
    --------
    >>> open_values(np.array([[-0.5]]))
    {'loss': array([[0.5]]), 'margin': array([[-0.5]])}
    """
    return {"loss": -likelihood, "margin": likelihood}


def values_of(margin: Floats, logits: Floats | None, answers: NDArray[np.intp]) -> dict[str, Floats]:
    """Values (…, Q) of every metric: from margins, and logits (…, Q, C) where there are more than two label words.

    Examples
    --------
    >>> logits = np.array([[[1.0, 0.9, 0.9]]])
    >>> found = values_of(margins(logits, np.array([0])), logits, np.array([0]))
    >>> {name: value.round(2).tolist() for name, value in found.items()}
    {'loss': [[1.03]], 'accuracy': [[1.0]], 'margin': [[-0.59]]}
    """
    right = margin > 0 if logits is None else logits.argmax(-1) == answers
    return {"loss": np.logaddexp(0, -margin), "accuracy": np.asarray(right, dtype=np.float64), "margin": margin}


class PromptOutcomes(ABC):
    """Outcome function of subsets of demonstrations; its parameters are those of `whence.icl.Prompted`."""

    batch_size = 8  # subsets; each is as many prompts as there are queries

    def __init__(
        self,
        model: LanguageModel,
        prompts: Prompts,
        *,
        metrics: str | Sequence[str] = "loss",
        per_query: bool = False,
        order: Order = "listed",
    ) -> None:
        self.model, self.prompts = model, prompts
        self.metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        for metric in self.metrics:
            if metric not in METRICS:
                raise InputError(f"There is no metric {metric!r}. {did_you_mean(metric, METRICS)}")
        if order not in ("listed", "random"):
            raise InputError(f"must be 'listed' or 'random'. Got {order!r} instead.", parameter="order")
        self.per_query, self.order = per_query, order
        self.task_names = prompts.names
        columns = [f"[{query}]" for query in range(len(prompts.queries))] if per_query else [""]
        up = [metric for metric in self.metrics if metric not in LOWER_IS_BETTER]
        self.maximize = tuple(f"{metric}{column}" for metric in up for column in columns)

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """What the values depend on, so that a run folder of other prompts or another model is refused."""
        return {
            "prompts": self.prompts.digest().hex(),
            "model": self.model.digest().hex(),
            "metrics": ", ".join(self.metrics) + (" per query" if self.per_query else ""),
        }

    @property
    @abstractmethod
    def provenance(self) -> dict[str, str]:
        """How the outcomes were made."""

    @abstractmethod
    def values(self, sequences: Sequence[ArrayLike]) -> dict[str, Floats]:
        """Values (m, Q) of each metric, of prompts given as demonstrations in the order in which they stand."""

    def margins(self, sequences: Sequence[ArrayLike]) -> Floats:
        """Margins (m, Q) of all queries after prompts given as demonstrations in the order in which they stand."""
        return self.values(sequences)["margin"]

    def __call__(self, subset: Any, seed: int = 0) -> dict[str, Any]:
        """Outcomes of one subset: 0/1 (K,), or the names of its demonstrations."""
        return single(self._outcomes(as_subset(subset, self.task_names), [seed]))

    def batch(self, subsets: ArrayLike, seeds: ArrayLike) -> dict[str, Floats]:
        """Outcomes of subsets (m, K)."""
        return self._outcomes(as_subsets(subsets, self.task_names), seeds)

    def _outcomes(self, rows: Floats, seeds: ArrayLike) -> dict[str, Floats]:
        return self.outcomes(self.sequences(rows, seeds))

    def sequences(self, subsets: ArrayLike, seeds: ArrayLike) -> list[Places]:
        """Demonstrations of each subset, in the order in which they stand in its prompt."""
        rows = as_subsets(subsets, self.task_names)
        if not np.isin(rows, (0.0, 1.0)).all():
            raise InputError("A demonstration is in a prompt or not: subsets must be 0 or 1. Got other weights.")
        found = [np.flatnonzero(row) for row in rows]
        if self.order == "listed":
            return found
        each = as_seeds(seeds, len(rows))
        return [np.random.default_rng(int(seed)).permutation(demos) for demos, seed in zip(found, each, strict=True)]

    def outcomes(self, sequences: Sequence[ArrayLike]) -> dict[str, Floats]:
        """Outcomes of prompts given as demonstrations in the order in which they stand: (m,), or (m, Q) per query."""
        values = self.values(sequences)
        return {name: values[name] if self.per_query else values[name].mean(1) for name in self.metrics}

    def _checked(self, sequence: ArrayLike) -> Places:
        """One prompt as places of demonstrations."""
        row = np.asarray(sequence)
        if row.size == 0:
            return np.zeros(0, dtype=np.intp)
        n_demos = len(self.task_names)
        if row.ndim != 1 or row.dtype.kind not in "iu" or row.min() < 0 or row.max() >= n_demos:
            raise InputError(
                f"A prompt is given by the places of its demonstrations, from 0 to {n_demos - 1} "
                f"({counted(n_demos, 'demonstration')}). Got {sequence!r}."
            )
        return cast(Places, row.astype(np.intp))
