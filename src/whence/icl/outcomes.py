"""Outcomes of prompts: what both outcome functions share, and `Prompted`, for which the model reads every prompt.

The margin of a query is the logit of its right label word less the log of the sum of exponentials of the others'. It
says nearly all: the cross-entropy over label words is log(1 + exp(−margin)), and of two words the right one is the more
likely one where it is positive. Of open answers, it is the mean log-likelihood of the tokens of the right one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from whence.arrays import Floats
from whence.errors import InputError, check_choice, counted, did_you_mean
from whence.estimators.subsets import as_seeds, as_subset, as_subsets
from whence.icl.language import LanguageModel
from whence.icl.prompts import Prompts, Tokens
from whence.models.targets import single
from whence.progress import track

Order = Literal["listed", "random"]
Places = NDArray[np.intp]  # demonstrations of one prompt, in the order in which they stand
METRICS = ("loss", "accuracy", "margin")


def margins(logits: Floats, answers: NDArray[np.intp]) -> Floats:
    """Margins (…, Q) from logits (…, Q, C) of label words, and which of them is right.

    >>> margins(np.array([[2.0, 0.5], [0.0, 3.0]]), np.array([0, 0]))
    array([ 1.5, -3. ])
    """
    queries = np.arange(len(answers))
    others = logits.copy()
    others[..., queries, answers] = -np.inf
    return np.asarray(logits[..., queries, answers] - logsumexp(others, axis=-1))


def open_values(likelihood: Floats) -> dict[str, Floats]:
    """Values (…, Q) of every metric of open answers, from the mean log-likelihood of their tokens.

    >>> open_values(np.array([[-0.5]]))
    {'loss': array([[0.5]]), 'margin': array([[-0.5]])}
    """
    return {"loss": -likelihood, "margin": likelihood}


def values_of(margin: Floats, logits: Floats | None, answers: NDArray[np.intp]) -> dict[str, Floats]:
    """Values (…, Q) of every metric: from margins, and logits (…, Q, C) where there are more than two label words.

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
        check_choice(order, get_args(Order), "order")
        self.per_query, self.order = per_query, order
        self.task_names = prompts.names
        columns = [f"[{query}]" for query in range(len(prompts.queries))] if per_query else [""]
        up = [metric for metric in self.metrics if metric != "loss"]
        self.maximize = tuple(f"{metric}{column}" for metric in up for column in columns)

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """What the values depend on, so that a run folder of other prompts or another model is refused."""
        return {
            "prompts": self.prompts.digest().hex(),
            "model": self.model.digest(),
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


Scorer = Callable[[str, str], float]  # generated text and answer → how good it is


def exact_match(generated: str, answer: str) -> float:
    """1 where both are the same, apart from space around them, else 0.

    >>> exact_match(" Paris ", "Paris")
    1.0
    """
    return float(generated.strip() == answer.strip())


class Prompted(PromptOutcomes):
    """Outcome function that runs the model on each prompt.

    Parameters
    ----------
    model : LanguageModel
    prompts : Prompts
    metrics : str or sequence of str
        "loss" (cross-entropy over label words), "accuracy" or "margin", or several of these.
    per_query : bool
        Whether every query is a separate outcome, instead of their mean.
    order : {"listed", "random"}
        Order of the demonstrations in a prompt: as in the list of candidates, or drawn by the row's seed. As listed,
        the effect of a demonstration includes that of its place, since the first candidates always come first.
    scorer : callable, optional
        ``scorer(generated, answer)`` scores the text that the model generates, if answers are open: a number, higher
        being better. By default 1 if the two are the same, apart from space around them, else 0.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompts: Prompts,
        *,
        metrics: str | Sequence[str] = "loss",
        per_query: bool = False,
        order: Order = "listed",
        scorer: Scorer | None = None,
    ) -> None:
        super().__init__(model, prompts, metrics=metrics, per_query=per_query, order=order)
        self.scorer = exact_match if scorer is None else scorer

    @property
    def provenance(self) -> dict[str, str]:
        """How the outcomes were made."""
        return {"outcomes": "prompts", "order": self.order, "template": self.prompts.template.text}

    def values(self, sequences: Sequence[ArrayLike]) -> dict[str, Floats]:
        """Values (m, Q) of each metric, of prompts given as demonstrations in the order in which they stand."""
        rows = [self._checked(sequence) for sequence in sequences]
        every = list(range(len(self.prompts.queries)))
        scores = self.logits(sequences)
        found = self._values(scores)
        if self.prompts.open and "accuracy" in self.metrics:
            found["accuracy"] = np.array([self._scored(self._prefix(row), every) for row in rows])
        return found

    def _values(self, scores: Floats) -> dict[str, Floats]:
        """Values (…, Q) of each metric from scores (…, Q, C)."""
        if self.prompts.open:
            return open_values(scores[..., 0] / np.array([len(tokens) for tokens in self.prompts.endings]))
        return values_of(margins(scores, self.prompts.answers), scores, self.prompts.answers)

    def logits(self, sequences: Sequence[ArrayLike]) -> Floats:
        """Logits (m, Q, C) of the label words, after each prompt and query.

        Of words of several tokens, their log-likelihoods; of open answers, that of the right one, (m, Q, 1).
        """
        rows = [self._checked(sequence) for sequence in sequences]
        every = list(range(len(self.prompts.queries)))
        prefixes = [self._prefix(row) for row in rows]
        found = [self._asked(prefix, every) for prefix in track(prefixes, "Reading prompts")]
        return np.stack(found) if found else np.zeros((0, len(every), self.prompts.width))

    def _asked(self, prefix: Tokens, queries: Sequence[int]) -> Floats:
        """Scores (q, C) of some queries after a prompt."""
        prompts = self.prompts
        if (words := prompts.label_tokens) is not None:
            scores = self.model.after(prefix, [prompts.query_tokens[q] for q in queries], words)
        else:
            pairs = [(prompts.query_tokens[q], ending) for q in queries for ending in prompts.endings_of(q)]
            tokens, endings = (list(side) for side in zip(*pairs, strict=True))
            scores = self.model.likelihoods(prefix, tokens, endings).view(len(queries), -1)
        return np.asarray(scores.double().cpu().numpy())

    def _scored(self, prefix: Tokens, queries: Sequence[int]) -> Floats:
        """What the scorer says of the generated answers to some queries, (q,)."""
        prompts = self.prompts
        most = 2 * max(len(tokens) for tokens in prompts.endings) + 8
        texts = self.model.generate(prefix, [prompts.query_tokens[q] for q in queries], most)
        answers = [prompts.queries[q].label for q in queries]
        return np.array([float(self.scorer(prompts.cut(t), answer)) for t, answer in zip(texts, answers, strict=True)])

    def each(self, sequences: Sequence[ArrayLike]) -> dict[str, Floats]:
        """Values (Q,) of each metric where every query has a prompt of its own, such as its nearest demonstrations."""
        if len(sequences) != len(self.prompts.queries):
            raise InputError(f"There must be one prompt for each of {len(self.prompts.queries)} queries.")
        rows = [tuple(self._checked(sequence).tolist()) for sequence in sequences]
        found = np.empty((len(rows), self.prompts.width))
        accuracy = np.empty(len(rows))
        for row in track(list(dict.fromkeys(rows)), "Reading prompts"):
            mine: NDArray[np.intp] = np.flatnonzero([other == row for other in rows])
            found[mine] = self._asked(self._prefix(row), mine.tolist())
            if self.prompts.open and "accuracy" in self.metrics:
                accuracy[mine] = self._scored(self._prefix(row), mine.tolist())
        values = self._values(found)
        return {"accuracy": accuracy, **values} if self.prompts.open and "accuracy" in self.metrics else values

    def _prefix(self, row: Iterable[int]) -> Tokens:
        """Tokens of a prompt up to its query, which fit into the context."""
        prefix = self.prompts.prefix(row := list(row))
        self.model.check_length(len(prefix) + self.prompts.longest(0) - len(self.prompts.head), len(row))
        return prefix
