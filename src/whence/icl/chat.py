"""Chat templates: demonstrations as turns of a conversation, written as the tokenizer of a model writes them.

A template of a chat is a program. What a prompt needs of it are pieces of text: what comes before the first turn, a
turn of the user with its answer, and a turn up to where the answer begins. They are found by writing conversations
with marks in the place of texts; a template that does not write turns one after the other is refused.
"""

from __future__ import annotations

from typing import Any

from whence.errors import InputError
from whence.icl.prompts import Template

MARKS = ("FIRSTTEXT", "FIRSTLABEL", "SECONDTEXT", "SECONDLABEL")


def chat_template(tokenizer: Any, text: str = "{text}", instruction: str = "") -> Template:
    """Template of prompts that are conversations.

    Parameters
    ----------
    tokenizer : transformers tokenizer
        With a chat template.
    text : str
        What the user says, with ``{text}``; the label is the answer. Of a template of prompts, what comes before
        ``{label}``.
    instruction : str
        What the system says first.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise InputError("The tokenizer of this model has no chat template: leave the chat out, or use a chat model.")
    said = text.partition("{label}")[0].strip()
    if said.count("{text}") != 1:
        raise InputError(f"What the user says must have {{text}} in it, once. Got {text!r}.")

    def written(*turns: tuple[str, str], ask: bool = False) -> str:
        messages = [{"role": "system", "content": instruction}] if instruction else []
        messages += [{"role": role, "content": content} for role, content in turns]
        try:
            return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask))
        except Exception as error:  # a template can raise whatever it likes
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InputError(f"The chat template of this model cannot write these turns ({reason}).") from error

    pairs = [
        (("user", said.replace("{text}", MARKS[at])), ("assistant", MARKS[at + 1]))
        for at in (0, 2)
    ]  # fmt: skip
    one, two = written(*pairs[0]), written(*pairs[0], *pairs[1])
    asked = written(*pairs[0], pairs[1][0], ask=True)
    piece = two[len(one) :]
    first = piece.replace(MARKS[2], MARKS[0]).replace(MARKS[3], MARKS[1])
    before = piece.partition(MARKS[3])[0]
    in_a_row = two.startswith(one) and one.endswith(first) and asked.rstrip(" ") == (one + before).rstrip(" ")
    if not in_a_row or piece.count(MARKS[2]) != 1 or piece.count(MARKS[3]) != 1:
        raise InputError(
            "The chat template of this model does not write each turn by itself, after the others: write the prompt "
            "with a plain template instead."
        )
    return Template(piece.replace(MARKS[2], "{text}").replace(MARKS[3], "{label}"), one[: len(one) - len(first)])
