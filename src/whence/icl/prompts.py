"""Prompts: a template, candidate demonstrations and labelled queries, as text and as tokens.

Where in-context learning begins. Every demonstration is tokenized once, on its own, and a prompt is a row of such
pieces: so a demonstration is the same tokens wherever it stands, in prompts that are run and in estimates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whence.errors import InputError, did_you_mean, some_of

Tokens = NDArray[np.int64]
Encode = Callable[[str], Sequence[int]]
TEMPLATE = "Text: {text}\nLabel: {label}\n\n"


@dataclass(frozen=True)
class Example:
    """A text with its label, and what it is called in tables."""

    text: str
    label: str
    name: str


@dataclass(frozen=True)
class Template:
    r"""How a demonstration and a query are written.

    Parameters
    ----------
    text : str
        One demonstration, with ``{text}`` and after it ``{label}``; it should end with a line break. A query is the
        same up to its label.
    instruction : str
        What comes before the first demonstration.

    Examples
    --------
    >>> template = Template("Review: {text}\nSentiment: {label}\n\n")
    >>> template.demonstration("fine", "good")
    'Review: fine\nSentiment: good\n\n'
    >>> template.query("dull")
    'Review: dull\nSentiment:'
    """

    text: str = TEMPLATE
    instruction: str = ""

    def __post_init__(self) -> None:
        if self.text.count("{text}") != 1 or self.text.count("{label}") != 1:
            raise InputError(f"The template must have {{text}} and {{label}} in it, once each. Got {self.text!r}.")
        if self.text.index("{text}") > self.text.index("{label}"):
            raise InputError(f"The template must have {{text}} before {{label}}. Got {self.text!r}.")

    @property
    def cue(self) -> str:
        """What stands between the text and the spaces before the label."""
        return self.text.partition("{label}")[0].partition("{text}")[2].rstrip(" ")

    @property
    def gap(self) -> str:
        """The spaces before the label, which belong to the token of the label word."""
        before = self.text.partition("{label}")[0]
        return before[len(before.rstrip(" ")) :]

    def demonstration(self, text: str, word: str) -> str:
        """Text of a demonstration with its label word."""
        before, _, after = self.text.partition("{label}")
        return before.replace("{text}", text) + word + after

    def query(self, text: str) -> str:
        """Text of a query, up to where its label word would follow."""
        return self.text.partition("{label}")[0].rstrip(" ").replace("{text}", text)


@dataclass(frozen=True, eq=False)
class Prompts:
    """Demonstrations and queries as tokens; make one with `Prompts.of`.

    Attributes
    ----------
    demos, queries : tuple of Example
    template : Template
    words : dict of str to str
        Label word of every label.
    head : ndarray
        Tokens before the first demonstration.
    demo_tokens, query_tokens : tuple of ndarray
    endings : tuple of ndarray
        Tokens of each label word, in the order of ``words``; of open answers, those of each query's answer.
    answers : ndarray of shape (Q,)
        Which of the endings is right for each query.
    encode : callable
        Tokens of a text, without special ones.
    open : bool
        Whether labels are answers in free text. The outcome is then the likelihood of the right answer.
    """

    demos: tuple[Example, ...]
    queries: tuple[Example, ...]
    template: Template
    words: dict[str, str]
    head: Tokens
    demo_tokens: tuple[Tokens, ...]
    query_tokens: tuple[Tokens, ...]
    endings: tuple[Tokens, ...]
    answers: NDArray[np.intp]
    encode: Encode
    open: bool = False

    @classmethod
    def of(
        cls,
        encode: Encode,
        demos: Sequence[Example],
        queries: Sequence[Example],
        *,
        template: Template | None = None,
        words: Mapping[str, str] | None = None,
        start: Sequence[int] = (),
        open: bool = False,
    ) -> Prompts:
        r"""Tokenize demonstrations and queries.

        Parameters
        ----------
        encode : callable
            Tokens of a text, without special ones.
        demos, queries : sequence of Example
        template : Template, optional
        words : mapping of label to word, optional
            Word that the model should say for each label; by default the label itself.
        start : sequence of int
            Special tokens that open every prompt.
        open : bool
            Whether labels are answers in free text instead of classes.

        Examples
        --------
        >>> def encode(text):
        ...     return [len(piece) for piece in text.split()]
        >>> demos = [Example("good film", "yes", "a"), Example("bad film", "no", "b")]
        >>> prompts = Prompts.of(encode, demos, [Example("a fine film", "yes", "q")])
        >>> [len(tokens) for tokens in prompts.demo_tokens], prompts.answers.tolist()
        ([5, 5], [1])
        >>> prompts.text([1])
        'Text: bad film\nLabel: no\n\n'
        """
        template = Template() if template is None else template
        for what, examples in (("demonstration", demos), ("query", queries)):
            if not examples:
                raise InputError(f"There must be at least one {what}. Got none.")
        if open and words is not None:
            raise InputError("Open answers stand for themselves: leave 'words' out.")
        named = {e.label: e.label for e in [*demos, *queries]} if open else _words([*demos, *queries], words)
        made = cls(
            demos=tuple(demos),
            queries=tuple(queries),
            template=template,
            words=named,
            head=_tokens([*start, *(encode(template.instruction) if template.instruction else ())]),
            demo_tokens=tuple(_tokens(encode(template.demonstration(e.text, named[e.label]))) for e in demos),
            query_tokens=(),
            endings=() if open else _endings(encode, template, named),
            answers=np.zeros(0, dtype=np.intp),
            encode=encode,
            open=open,
        )
        return made.asking(queries)

    @property
    def label_tokens(self) -> Tokens | None:
        """The only token of each label word, (C,); None where a word has several, or answers are open."""
        single = not self.open and all(len(tokens) == 1 for tokens in self.endings)
        return np.concatenate(self.endings) if single else None

    def asking(self, queries: Sequence[Example]) -> Prompts:
        """Return the same demonstrations with other queries, as for a check on ones that nothing was chosen by."""
        if not queries:
            raise InputError("There must be at least one query. Got none.")
        tokens = _query_tokens(self.encode, self.template, queries)
        if self.open:
            words = {e.label: e.label for e in [*self.demos, *queries]}
            endings = tuple(_ending(self.encode, self.template, e.label) for e in queries)
            places = np.arange(len(queries))
            return replace(
                self, queries=tuple(queries), query_tokens=tokens, endings=endings, answers=places, words=words
            )
        labels = list(self.words)
        if odd := sorted({example.label for example in queries} - set(labels)):
            raise InputError(f"The queries have unknown labels: {some_of(odd)}. Known: {labels}.")
        return replace(
            self,
            queries=tuple(queries),
            query_tokens=tokens,
            answers=np.array([labels.index(e.label) for e in queries]),
        )

    @property
    def width(self) -> int:
        """Number of endings that each query is asked for: the labels, or its answer."""
        return 1 if self.open else len(self.endings)

    def endings_of(self, query: int) -> tuple[Tokens, ...]:
        """Endings that a query is asked for."""
        return (self.endings[query],) if self.open else self.endings

    def cut(self, generated: str) -> str:
        """Text that a model generated, up to where the template goes on after an answer."""
        after = self.template.text.partition("{label}")[2].strip(" ")
        stop = after if after.strip() else "\n"
        return generated.lstrip("\n").partition(stop)[0].strip()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the demonstrations."""
        return tuple(example.name for example in self.demos)

    def digest(self) -> bytes:
        """What tells these prompts from others: all tokens, and which answers are right."""
        pieces = [self.head, *self.demo_tokens, *self.query_tokens, *self.endings, self.answers]
        return hashlib.sha256(b"|".join(piece.tobytes() for piece in pieces)).digest()

    def prefix(self, sequence: Iterable[int]) -> Tokens:
        """Tokens of a prompt up to its query: the head, and demonstrations in this order."""
        return np.concatenate([self.head, *(self.demo_tokens[k] for k in sequence)])

    def text(self, sequence: Iterable[int]) -> str:
        """Prompt up to its query, as text."""
        shown = (self.demos[k] for k in sequence)
        return self.template.instruction + "".join(
            self.template.demonstration(example.text, self.words[example.label]) for example in shown
        )

    def longest(self, shots: int) -> int:
        """Number of tokens of the longest prompt with this many demonstrations."""
        sizes = sorted((len(tokens) for tokens in self.demo_tokens), reverse=True)
        longest = max(len(tokens) for tokens in self.query_tokens) + max(len(tokens) for tokens in self.endings) - 1
        return len(self.head) + sum(sizes[:shots]) + longest


def _words(examples: Iterable[Example], given: Mapping[str, str] | None) -> dict[str, str]:
    """Word of every label, in the order of labels."""
    labels = sorted({example.label for example in examples})
    if given is not None and (odd := [label for label in labels if label not in given]):
        raise InputError(f"There is no label word for {some_of(odd)}. {did_you_mean(odd[0], given)}")
    words = dict(given) if given is not None else {label: label for label in labels}
    if len(words) < 2:
        raise InputError(f"There must be at least two labels. Got {some_of(words)}.")
    return words


def _query_tokens(encode: Encode, template: Template, queries: Sequence[Example]) -> tuple[Tokens, ...]:
    """Tokens of each query, at least two: the first opens it, and the label word follows the last."""
    found = tuple(_tokens(encode(template.query(example.text))) for example in queries)
    if short := [example.name for example, tokens in zip(queries, found, strict=True) if len(tokens) < 2]:
        raise InputError(
            f"A query must have at least two tokens: write more into the template. Too short: {some_of(short)}."
        )
    return found


def _endings(encode: Encode, template: Template, words: Mapping[str, str]) -> tuple[Tokens, ...]:
    """Tokens of each label word: one each, or all with what follows them, so that no word is the start of another."""
    found = {word: _ending(encode, template, word) for word in words.values()}
    if any(len(tokens) > 1 for tokens in found.values()):
        after = template.text.partition("{label}")[2]
        found = {word: _ending(encode, template, word, after)[: len(tokens) + 1] for word, tokens in found.items()}
    seen: dict[tuple[int, ...], str] = {}
    for word, tokens in found.items():
        same = tuple(tokens.tolist())
        if same in seen:
            raise InputError(f"The label words {seen[same]!r} and {word!r} are the same token. Choose others.")
        seen[same] = word
    return tuple(found.values())


def _ending(encode: Encode, template: Template, word: str, after: str = "") -> Tokens:
    """Tokens of a label word or an answer, as it follows the cue."""
    # A cue may be empty, or spaces only, which tokenizers join with what follows: a word shows where it ends.
    before = list(encode("x" + template.cue))
    whole = list(encode("x" + template.cue + template.gap + word + after))
    joined = whole[: len(before)] != before or len(whole) == len(before)
    found = _tokens(encode(template.gap + word + after) if joined else whole[len(before) :])
    if not len(found):
        raise InputError(f"The model has no token for the label word {word!r}. Choose another.")
    return found


def _tokens(given: Sequence[int]) -> Tokens:
    return np.asarray(given, dtype=np.int64)


MARKS = ("FIRSTTEXT", "FIRSTLABEL", "SECONDTEXT", "SECONDLABEL")


# ---- chats -----------------------------------------------------------------------------------------------


def chat_template(tokenizer: Any, text: str = "{text}", instruction: str = "") -> Template:
    """Template of prompts that are conversations, written as the tokenizer of a model writes them.

    A template of a chat is a program. What a prompt needs of it are pieces of text: what comes before the first turn, a
    turn of the user with its answer, and a turn up to where the answer begins. They are found by writing conversations
    with marks in the place of texts; a template that does not write turns one after the other is refused.

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
