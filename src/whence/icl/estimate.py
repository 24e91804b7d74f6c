"""Estimates of prompts in embedding space: one forward and backward pass per query, then a look-up per prompt.

The cheap outcome function (paper, appendix, "Gradient estimation for in-context learning"). At an anchor prompt S₀,

    f(φ(S, x)) ≈ f(φ(S₀, x)) + ⟨∇f(φ(S₀, x)), φ(S, x) − φ(S₀, x)⟩,

and with demonstrations aligned in slots (`align`) the inner product is a sum over slots of numbers that depend on
the query, the slot and the demonstration in it. These are computed once; any prompt is the sum of a few of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from whence.arrays import Floats
from whence.errors import InputError, check_choice, counted, whole_number
from whence.icl.language import LanguageModel, end_together
from whence.icl.outcomes import Order, PromptOutcomes, margins, open_values, values_of
from whence.icl.prompts import Prompts, Tokens
from whence.models.memory import Chunks, bytes_per_row, free_bytes
from whence.models.metrics import margin
from whence.progress import track

Outputs = Literal["margin", "logits"]
Anchors = int | str | Sequence[Sequence[int]]
MEAN = "mean"
BLOCK_BYTES = 1 << 26  # of sums that are looked up at once


@dataclass(frozen=True)
class Table:
    """What prompts of n demonstrations are summed from, averaged over anchors."""

    base: NDArray[np.float32]  # (Q, O): outputs at the anchor
    change: NDArray[np.float32]  # (n, K, Q, O): when a demonstration takes the place of the anchor's in a slot

    def outputs(self, sequences: NDArray[np.intp]) -> Floats:
        """Outputs (m, Q, O) of prompts (m, n)."""
        found = np.repeat(self.base[None], len(sequences), axis=0).astype(np.float64)
        for slot, demos in enumerate(sequences.T):
            found += self.change[slot, demos]
        return found


class AnchoredPrompts(PromptOutcomes):
    """Outcome function that estimates prompts from gradients at anchor prompts.

    Parameters
    ----------
    model, prompts, metrics, per_query, order
        As for `Prompted`.
    anchors : int, "mean", or sequence of prompts
        How many random prompts estimates are averaged over; or "mean": one prompt whose every slot holds the mean
        embedding of all demonstrations; or prompts, as places of demonstrations, all of one length.
    outputs : {"margin", "logits"}
        What is linearised in the embeddings: the margin of the right label word (one backward pass per query), or the
        logit of every label word (a pass each), which `logits` then returns.
    slot_tokens : int, optional
        Width of a slot; longer demonstrations lose the first tokens of their text. By default that of the longest.
    seed : int
        For random anchors.
    """

    batch_size = 4096

    def __init__(
        self,
        model: LanguageModel,
        prompts: Prompts,
        *,
        metrics: str | Sequence[str] = "loss",
        per_query: bool = False,
        order: Order = "listed",
        anchors: Anchors = 4,
        outputs: Outputs = "margin",
        slot_tokens: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, prompts, metrics=metrics, per_query=per_query, order=order)
        check_choice(outputs, get_args(Outputs), "outputs", of="AnchoredPrompts")
        if prompts.open and (outputs == "logits" or "accuracy" in self.metrics):
            raise InputError(
                "Only the loss of open answers can be estimated: give outputs='margin' and metrics='loss'."
            )
        if outputs == "margin" and "accuracy" in self.metrics and prompts.width > 2:
            raise InputError("The accuracy of more than two labels needs all logits: give {outputs}.", outputs="logits")
        self.kind, self.seed = outputs, seed
        self.anchors = self._anchors(anchors)
        self.tokens, self.has = align(prompts.demo_tokens, slot_tokens)
        self._tables: dict[int, Table] = {}

    def _anchors(self, given: Anchors) -> int | str | list[NDArray[np.intp]]:
        if isinstance(given, str):
            if given != MEAN:
                raise InputError(
                    f"must be a number, 'mean', or prompts. Got {given!r} instead.",
                    parameter="anchors",
                    of="AnchoredPrompts",
                )
            return given
        if isinstance(given, int):
            return whole_number(given, "anchors", of="AnchoredPrompts")
        rows = [self._checked(row) for row in given]
        if not rows or len({len(row) for row in rows}) > 1 or not len(rows[0]):
            raise InputError("Anchors given as prompts must be at least one, and all of the same length.")
        return rows

    @property
    def provenance(self) -> dict[str, str]:
        """How the outcomes were made."""
        if isinstance(self.anchors, list):
            anchors = f"given: {[row.tolist() for row in self.anchors]}"
        else:
            anchors = "the mean" if self.anchors == MEAN else f"{self.anchors} random, seed {self.seed}"
        slots = f"{self.tokens.shape[1]} tokens"
        return {
            "outcomes": "first order in embeddings", "anchors": anchors, "slots": slots, "order": self.order,
            "template": self.prompts.template.text,
        }  # fmt: skip

    def values(self, sequences: Sequence[ArrayLike]) -> dict[str, Floats]:
        """Values (m, Q) of each metric, of prompts given as demonstrations in the order in which they stand."""
        found, answers = self._outputs(sequences), self.prompts.answers
        if self.prompts.open:
            return open_values(found[..., 0])
        if self.kind == "margin":
            return values_of(found[..., 0], None, answers)
        return values_of(margins(found, answers), found, answers)

    def logits(self, sequences: Sequence[ArrayLike]) -> Floats:
        """Logits (m, Q, C) of the label words; needs ``outputs="logits"``."""
        if self.kind != "logits":
            raise InputError("Only margins were estimated. Make AnchoredPrompts with outputs='logits'.")
        return self._outputs(sequences)

    def table(self, shots: int) -> Table:
        """What prompts of this many demonstrations are summed from; computed when first asked for."""
        if shots not in self._tables:
            self._tables[shots] = self._linearized(shots)
        return self._tables[shots]

    def effects(self, shots: int) -> Floats:
        """What each demonstration does to each query, (K, Q), by the margin, in prompts of ``shots``.

        The change when it takes the place of an average one, averaged over slots; for ``outputs="margin"``.
        """
        if self.kind != "margin":
            raise InputError("Effects are those on margins. Make AnchoredPrompts with outputs='margin'.")
        change = self.table(shots).change[..., 0].mean(0).astype(np.float64)
        return np.asarray(change - change.mean(0))

    def _outputs(self, sequences: Sequence[ArrayLike]) -> Floats:
        rows = [self._checked(sequence) for sequence in sequences]
        n_outputs = 1 if self.kind == "margin" else self.prompts.width
        found = np.empty((len(rows), len(self.prompts.queries), n_outputs))
        sizes = np.array([len(row) for row in rows])
        for size in np.unique(sizes):
            table = self.table(int(size))
            where = np.flatnonzero(sizes == size)
            step = max(1, BLOCK_BYTES // (8 * table.base.size))
            for start in range(0, len(where), step):
                part = where[start : start + step]
                found[part] = table.outputs(np.array([rows[at] for at in part]).reshape(len(part), int(size)))
        return found

    # ---- at the anchors ----------------------------------------------------------------------------------

    def _linearized(self, shots: int) -> Table:
        self.model.check_length(self.prompts.longest(shots), shots)
        with torch.no_grad():
            # Where a demonstration has no token, its embedding is 0 and does not count.
            has = torch.as_tensor(self.has, device=self.model.device)
            demos = self.model.embed(self.tokens) * has[..., None]
        anchors = self._filled(shots, demos, has)
        parts = [self._at(*anchor, demos, has) for anchor in track(anchors, "Anchors")]
        base, change = (np.mean([part[at] for part in parts], axis=0) for at in (0, 1))
        return Table(base, np.ascontiguousarray(change))

    def _filled(self, shots: int, demos: Tensor, has: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Slots of every anchor: embeddings (n, w, d), and where they have a token (n, w)."""
        if isinstance(self.anchors, list):
            if len(self.anchors[0]) != shots:
                raise InputError(
                    f"The anchors have {counted(len(self.anchors[0]), 'demonstration')}, so there are no estimates of "
                    f"prompts with {shots}. Give a number of anchors, or 'mean'."
                )
            rows = self.anchors
        elif self.anchors == MEAN:
            count = has.sum(0)
            mean = demos.sum(0) / count.clamp_min(1)[:, None]
            # As long as the typical demonstration: what only the longest have is left out.
            kept = 2 * count >= len(has)
            return [(mean.expand(shots, -1, -1), kept.expand(shots, -1))]
        else:
            rng = np.random.default_rng([self.seed, shots])
            replace = shots > len(demos)
            rows = [rng.choice(len(demos), shots, replace=replace) for _ in range(int(self.anchors))]
            rows = rows if shots else rows[:1]
        places = [torch.as_tensor(row, device=demos.device, dtype=torch.long) for row in rows]
        return [(demos[row], has[row]) for row in places]

    def _at(self, anchor: Tensor, kept: Tensor, demos: Tensor, has: Tensor) -> tuple[Floats, Floats]:
        """Outputs (Q, O) at one anchor, and changes (n, K, Q, O)."""
        n_queries, shots = len(self.prompts.queries), len(anchor)
        flat, present = demos.float().flatten(1), has.float()

        def some(rows: slice) -> tuple[Tensor, Tensor]:
            slots = anchor.flatten(0, 1).expand(rows.stop - rows.start, -1, -1).clone().requires_grad_()
            outputs = self._run(slots, kept, range(rows.start, rows.stop))
            changes = []
            for at in range(outputs.shape[1]) if shots else ():
                more = at + 1 < outputs.shape[1]
                (gradient,) = torch.autograd.grad(outputs[:, at].sum(), slots, retain_graph=more)
                gradient = gradient.float().reshape(-1, *anchor.shape)
                own = (gradient * anchor.float()).sum(-1)  # (b, n, w)
                changes.append(gradient.flatten(2) @ flat.T - own @ present.T)  # (b, n, K)
            empty = outputs.new_zeros(len(outputs), 0, len(demos), outputs.shape[1])
            return outputs.detach(), torch.stack(changes, -1) if changes else empty

        parts = Chunks(self._rows_at_once(anchor, kept)).run(n_queries, some)
        outputs, changes = (torch.cat(tensors).cpu().numpy() for tensors in zip(*parts, strict=True))
        return outputs, np.moveaxis(changes, 0, 2)

    def _rows_at_once(self, anchor: Tensor, kept: Tensor) -> int:
        """How many queries fit into memory with their backward pass."""
        longest = int(np.argmax([len(tokens) for tokens in self.prompts.query_tokens]))

        def forward(n_rows: int) -> Tensor:
            slots = anchor.flatten(0, 1).expand(n_rows, -1, -1).clone().requires_grad_()
            return self._run(slots, kept, [longest] * n_rows)

        return int(np.clip(free_bytes(self.model.device) // bytes_per_row(forward), 1, self.model.batch_size))

    def _run(self, slots: Tensor, kept: Tensor, queries: Sequence[int]) -> Tensor:
        """Outputs (b, O) of queries after slots (b, n·w, d)."""
        prompts, words = self.prompts, self.prompts.label_tokens
        endings = [ending for query in queries for ending in prompts.endings_of(query)]
        rows = [prompts.query_tokens[query] for query in queries]
        if words is None:  # a row for each ending, read up to its last token
            each = [row for row in rows for _ in range(prompts.width)]
            rows = [np.concatenate([row, ending[:-1]]) for row, ending in zip(each, endings, strict=True)]
            slots = slots.repeat_interleave(prompts.width, 0)
        tokens, mask = end_together(rows)
        asked, head = self.model.embed(tokens), self.model.embed(self.prompts.head)
        ones = torch.ones(len(tokens), len(head), dtype=torch.long, device=slots.device)
        seen = kept.flatten().long().expand(len(tokens), -1)
        embeds = torch.cat([head.expand(len(tokens), -1, -1), slots, asked], dim=1)
        masks = torch.cat([ones, seen, torch.as_tensor(mask, device=slots.device)], dim=1)
        if words is None:
            logits = self.model.likelihoods_of(embeds, masks, endings).view(len(queries), -1)
        else:
            logits = self.model.logits(embeds, masks, words)
        if prompts.open:
            lengths = torch.tensor([[len(ending)] for ending in endings], device=logits.device)
            return logits / lengths
        answers = torch.as_tensor(prompts.answers[list(queries)], device=logits.device)
        return logits if self.kind == "logits" else margin(logits, answers)[:, None]


def align(demos: Sequence[Tokens], width: int | None = None) -> tuple[Tokens, NDArray[np.bool_]]:
    """Tokens (K, w) of demonstrations in a slot, and where they have one; 0 where they have none.

    A slot is as wide as the longest demonstration, or narrower where that is asked for. What all demonstrations begin
    with (at least the first token) stands at its start, and the rest at its end, so that label words meet label words.
    A short demonstration has padding between the two; a long one loses the first tokens of its text.

    >>> tokens, has = align([np.array([1, 5, 6, 9]), np.array([1, 7, 9])])
    >>> tokens.tolist(), has[1].tolist()
    ([[1, 5, 6, 9], [1, 0, 7, 9]], [True, False, True, True])
    >>> align([np.array([1, 5, 6, 9]), np.array([1, 7, 9])], width=2)[0].tolist()
    [[1, 9], [1, 9]]
    """
    shortest, longest = min(map(len, demos)), max(map(len, demos))
    if width is not None and width < 1:
        raise InputError(f"The slot must have a width of at least one token. Got {width}.")
    wide = longest if width is None else min(width, longest)
    # The last token is never part of what all begin with: where there is one demonstration, it would be all of it.
    begin = np.stack([row[: shortest - 1] for row in demos])
    same = (begin == begin[0]).all(0)
    shared = int(np.argmin(same)) if not same.all() else len(same)
    shared = min(max(shared, 1), shortest - 1, wide - 1)
    tokens, has = np.zeros((len(demos), wide), dtype=np.int64), np.zeros((len(demos), wide), dtype=bool)
    for k, row in enumerate(demos):
        rest = row[shared:][-(wide - shared) :]
        tokens[k, :shared], has[k, :shared] = row[:shared], True
        tokens[k, wide - len(rest) :], has[k, wide - len(rest) :] = rest, True
    return tokens, has
