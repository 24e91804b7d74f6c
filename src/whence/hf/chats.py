"""Chats as text: what the chat template of a tokenizer writes, and which part of it is that of a turn.

A turn is found by writing the chat again with a mark in its place. So it does not matter what a template writes around
turns, whether it strips them, and which of them it drops or writes in another way once others follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whence.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Turns = list[dict[str, str]]
MARK = "\ue000\ue001\ue000"  # of private use, so that no chat has it and no template takes it for spaces


def written(turns: Turns, tokenizer: PreTrainedTokenizerBase, place: str) -> str:
    """The text of a chat."""
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            f"{place}: the tokenizer has no chat template to write turns with. Give 'prompt' and 'completion', or a "
            "model that was made for chats."
        )
    try:
        return _text(turns, tokenizer)
    except Exception as error:  # jinja2 raises what the template says
        raise InputError(f"{place}: the chat template of the model refuses these turns ({error}).") from error


def span_of(at: int, text: str, turns: Turns, tokenizer: PreTrainedTokenizerBase) -> tuple[int, int] | None:
    """Where a turn is in the text of a chat, from the prompt for it to its end; None if the template drops it."""
    marked: Turns = [*turns[:at], {**turns[at], "content": MARK}]
    before, mark, after = _tried([*marked, *turns[at + 1 :]], tokenizer).partition(MARK)
    if not mark:
        return None
    start, end = _shared(before, text), len(text) - _shared(after[::-1], text[::-1])
    asked = _tried(turns[:at], tokenizer, ask=True) if at else ""
    if asked and before.startswith(asked) and text.startswith(asked):
        start = len(asked)
    ending = _tried(marked, tokenizer).partition(MARK)[2]  # what ends the turn, and what comes next is not in it
    return start, max(start, end) + _shared(ending, text[max(start, end) :])


def _text(turns: Turns, tokenizer: PreTrainedTokenizerBase, *, ask: bool = False) -> str:
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=ask))


def _tried(turns: Turns, tokenizer: PreTrainedTokenizerBase, *, ask: bool = False) -> str:
    """The text of part of a chat; empty where the template refuses it."""
    try:
        return _text(turns, tokenizer, ask=ask)
    except Exception:  # as above
        return ""


def _shared(one: str, other: str) -> int:
    """Length of the common start of two texts.

    >>> _shared("abcd", "abx"), _shared("", "a")
    (2, 0)
    """
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
