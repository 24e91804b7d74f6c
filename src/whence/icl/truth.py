"""True outcomes of prompts: every one is read by the model.

The slow outcome function, which estimates are held against; `whence.measure` makes the loop over subsets durable. The
demonstrations of a subset are read once, and all queries follow them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whence.arrays import Floats
from whence.errors import InputError
from whence.icl.language import LanguageModel
from whence.icl.outcomes import Order, PromptOutcomes, margins, values_of
from whence.icl.prompts import Prompts, Tokens
from whence.progress import track


class Prompted(PromptOutcomes):
    """Outcome function that runs the model on each prompt.

    Parameters
    ----------
    model : LanguageModel
    prompts : Prompts
    metrics : str or sequence of str
        Of "loss" (cross-entropy over label words), "accuracy", "margin".
    per_query : bool
        Whether every query is an outcome of its own, instead of their mean.
    order : {"listed", "random"}
        In which order the demonstrations of a subset stand: as in the list of candidates, or drawn by the row's seed.
        As listed, what a demonstration does includes what its place does: the first candidates always come first.

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
    ) -> None:
        super().__init__(model, prompts, metrics=metrics, per_query=per_query, order=order)
        self._sign()

    @property
    def provenance(self) -> dict[str, str]:
        """How the outcomes were made."""
        return {"outcomes": "prompts", "order": self.order, "template": self.prompts.template.text}

    def values(self, sequences: Sequence[ArrayLike]) -> dict[str, Floats]:
        """Values (m, Q) of each metric, of prompts given as demonstrations in the order in which they stand."""
        logits = self.logits(sequences)
        return values_of(margins(logits, self.prompts.answers), logits, self.prompts.answers)

    def logits(self, sequences: Sequence[ArrayLike]) -> Floats:
        """Logits (m, Q, C) of the label words, after each prompt and query."""
        rows = [self._checked(sequence) for sequence in sequences]
        queries, labels = self.prompts.query_tokens, self.prompts.label_tokens
        prefixes = [self._prefix(row) for row in rows]
        found = [
            self.model.after(prefix, queries, labels).double().cpu().numpy()
            for prefix in track(prefixes, "Reading prompts")
        ]
        return np.stack(found) if found else np.zeros((0, len(queries), len(labels)))

    def each(self, sequences: Sequence[ArrayLike]) -> dict[str, Floats]:
        """Values (Q,) of each metric where every query has a prompt of its own, such as its nearest demonstrations."""
        if len(sequences) != len(self.prompts.queries):
            raise InputError(f"There must be one prompt for each of {len(self.prompts.queries)} queries.")
        rows = [tuple(self._checked(sequence).tolist()) for sequence in sequences]
        found = np.empty((len(rows), len(self.prompts.label_tokens)))
        for row in track(list(dict.fromkeys(rows)), "Reading prompts"):
            mine: NDArray[np.intp] = np.flatnonzero([other == row for other in rows])
            tokens = [self.prompts.query_tokens[query] for query in mine]
            logits = self.model.after(self._prefix(row), tokens, self.prompts.label_tokens)
            found[mine] = logits.double().cpu().numpy()
        return values_of(margins(found, self.prompts.answers), found, self.prompts.answers)

    def _prefix(self, row: Iterable[int]) -> Tokens:
        """Tokens of a prompt up to its query, which fit into the context."""
        prefix = self.prompts.prefix(row := list(row))
        longest = max(len(tokens) for tokens in self.prompts.query_tokens)
        self.model.check_length(len(prefix) + longest, len(row))
        return prefix
