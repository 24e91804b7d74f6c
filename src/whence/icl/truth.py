"""True outcomes of prompts: every one is read by the model.

The slow outcome function, which estimates are held against; `whence.measure` makes the loop over subsets durable. The
demonstrations of a subset are read once, and all queries follow them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whence.arrays import Floats
from whence.errors import InputError
from whence.icl.language import LanguageModel
from whence.icl.outcomes import Order, PromptOutcomes, margins, open_values, values_of
from whence.icl.prompts import Prompts, Tokens
from whence.progress import track

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
        Of "loss" (cross-entropy over label words), "accuracy", "margin".
    per_query : bool
        Whether every query is a separate outcome, instead of their mean.
    order : {"listed", "random"}
        In which order the demonstrations of a subset stand: as in the list of candidates, or drawn by the row's seed.
        As listed, what a demonstration does includes what its place does: the first candidates always come first.
    scorer : callable, optional
        ``scorer(generated, answer)`` judges the text that the model generates where answers are open: a number, higher
        being better. By default 1 where the two are the same, apart from space around them, else 0.

    Attributes
    ----------
    task_names, maximize, provenance
        As `whence.measure` reads them.
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
            return open_values(scores[..., 0] / self._lengths)
        return values_of(margins(scores, self.prompts.answers), scores, self.prompts.answers)

    @property
    def _lengths(self) -> Floats:
        return np.array([len(tokens) for tokens in self.prompts.endings], dtype=np.float64)

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
