"""From text to rows of tokens; only the tokens of answers are trained, not those of prompts.

Chats use the chat template of the tokenizer; prompts and completions, texts, and texts with labels are tokenized
directly. Rows that are longer than the context of the model are cut, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.errors import InputError, counted
from whence.hf.chats import Turns, span_of, written
from whence.hf.sources import ASSISTANT, Record, Source
from whence.icl.language import start_of
from whence.icl.prompts import Template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Row:
    """Tokens of an example, and the places of the trained ones."""

    ids: list[int]
    places: list[int]


@dataclass(frozen=True)
class Rows:
    """The examples of a source as tokens."""

    name: str
    rows: list[Row]
    n_cut: int  # how many were longer than the limit

    @property
    def n_tokens(self) -> int:
        """Tokens of all examples."""
        return sum(len(row.ids) for row in self.rows)

    def longest_first(self) -> Rows:
        """The same examples, longest first: batches then have examples of similar length."""
        return Rows(self.name, sorted(self.rows, key=lambda row: -len(row.ids)), self.n_cut)


def tokenize(
    source: Source, tokenizer: PreTrainedTokenizerBase, *, limit: int, template: Template | None = None
) -> Rows:
    """Tokens of every example of a source; the template is for texts with labels.

    Examples with more tokens than the limit lose the start of their prompt, then the end of the text or answer.
    """
    writers: dict[str, Callable[[Record], Row]] = {
        "messages": lambda record: _chat(record.fields["messages"], tokenizer, record.place),
        "completion": lambda record: _completion(record, tokenizer),
        "label": lambda record: _labelled(record, tokenizer, template or Template()),
        "text": lambda record: _plain("", record.fields["text"], tokenizer, end=True),
    }
    rows = []
    n_cut = 0
    for record in source.records:
        row = writers[source.format](record)
        n_cut += len(row.ids) > limit
        row = _cut(row, limit)
        if not row.places:
            raise InputError(f"{record.place}: no token of it can be learned. Leave the line out.")
        rows.append(row)
    return Rows(source.name, rows, n_cut)


def cut_in_words(found: Sequence[Rows], limit: int) -> str:
    """A sentence on what was cut; empty if nothing was."""
    cut = [rows for rows in found if rows.n_cut]
    if not cut:
        return ""
    each = ", ".join(f"{rows.n_cut} of {len(rows.rows)} in {rows.name}" for rows in cut)
    total = sum(rows.n_cut for rows in cut)
    return (
        f"{counted(total, 'example')} had more than {limit} tokens and {'was' if total == 1 else 'were'} cut: {each}."
    )


def padded(found: Sequence[Rows]) -> dict[str, tuple[dict[str, Tensor], Tensor]]:
    """Examples as a Problem takes them: tokens and places of all sources in tensors of one width."""
    every = [row for rows in found for row in rows.rows]
    length, width = max(len(row.ids) for row in every), max(len(row.places) for row in every)
    return {
        rows.name: (
            {
                "input_ids": torch.tensor([row.ids + [0] * (length - len(row.ids)) for row in rows.rows]),
                "places": torch.tensor([row.places + [-1] * (width - len(row.places)) for row in rows.rows]),
            },
            torch.ones(len(rows.rows)),
        )
        for rows in found
    }


def _chat(turns: Turns, tokenizer: PreTrainedTokenizerBase, place: str, *, since: int = 0) -> Row:
    """Tokens of a chat; those of the assistant's turns are trained, from one of them on."""
    text = written(turns, tokenizer, place)
    ids = _encode(text, tokenizer)

    def until(end: int) -> int:
        """How many tokens are before a place in the text; one that reaches beyond it is not."""
        part = _encode(text[:end], tokenizer)
        return next((at for at, (a, b) in enumerate(zip(part, ids, strict=False)) if a != b), min(len(part), len(ids)))

    places: list[int] = []
    for at in range(since, len(turns)):
        if turns[at]["role"] == ASSISTANT and (found := span_of(at, text, turns, tokenizer)):
            start, end = map(until, found)
            places += range(max(1, start), end)
    return Row(ids, places)


def _completion(record: Record, tokenizer: PreTrainedTokenizerBase) -> Row:
    prompt, completion = record.fields["prompt"], record.fields["completion"]
    if isinstance(prompt, list):
        return _chat([*prompt, *completion], tokenizer, record.place, since=len(prompt))
    return _plain(prompt, completion, tokenizer, end=True)


def _labelled(record: Record, tokenizer: PreTrainedTokenizerBase, template: Template) -> Row:
    query = template.query(record.fields["text"])
    return _plain(query, template.gap + str(record.fields["label"]), tokenizer, end=False)


def _plain(prompt: str, answer: str, tokenizer: PreTrainedTokenizerBase, *, end: bool) -> Row:
    before = start_of(tokenizer) + _encode(prompt, tokenizer)
    last = getattr(tokenizer, "eos_token_id", None)
    after = _encode(answer, tokenizer) + ([last] if end and last is not None else [])
    return Row(before + after, list(range(max(1, len(before)), len(before) + len(after))))


def _encode(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False).input_ids) if text else []


def _cut(row: Row, limit: int) -> Row:
    """The row cut to this many tokens: the start of its prompt first, then the end of what is learned."""
    first = min(max(0, len(row.ids) - limit), max(0, row.places[0] - 1) if row.places else 0)
    ids = row.ids[first : first + limit]
    return Row(ids, [place - first for place in row.places if place - first < len(ids)])
