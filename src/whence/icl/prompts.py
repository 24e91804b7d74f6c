"""Prompts: a template, candidate demonstrations and labelled queries, as text and as tokens.

Where in-context learning begins. Every demonstration is tokenized once, on its own, and a prompt is a row of such
pieces: so a demonstration is the same tokens wherever it stands, in prompts that are run and in estimates.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
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
        Whether labels are answers in free text, of which the model is asked for the likelihood of the right one.
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
            What the model is to say for each label; the label itself where not given.
        start : sequence of int
            Special tokens that open every prompt.
        open : bool
            Whether labels are answers in free text, and not classes.

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
        """Number of tokens of the longest prompt with so many demonstrations."""
        sizes = sorted((len(tokens) for tokens in self.demo_tokens), reverse=True)
        longest = max(len(tokens) for tokens in self.query_tokens) + max(len(tokens) for tokens in self.endings) - 1
        return len(self.head) + sum(sizes[:shots]) + longest


def read_examples(
    path: str | os.PathLike[str], *, text: str = "text", label: str = "label", prefix: str = "d"
) -> list[Example]:
    """Examples of a file with one JSON object per line.

    Parameters
    ----------
    path : path
    text, label : str
        Fields of the objects. A field ``id``, where there is one, is the name of the example.
    prefix : str
        Names are this and a number where there is no ``id``.
    """
    where = Path(path)
    found: list[Example] = []
    for place, record in read_records(where):
        content, answer = (_field(record, name, place) for name in (text, label))
        found.append(Example(content, answer, str(record.get("id", f"{prefix}{len(found) + 1}"))))
    if not found:
        raise InputError(f"{where}: the file is empty. Give one JSON object per line, with {text!r} and {label!r}.")
    times = Counter(example.name for example in found)
    if twice := sorted(name for name, number in times.items() if number > 1):
        raise InputError(f"{where}: the ids must differ. Given more than once: {some_of(twice)}.")
    return found


def read_records(path: str | os.PathLike[str]) -> list[tuple[str, dict[str, Any]]]:
    """Objects of a file with one JSON object per line, each with its place: "reviews.jsonl, line 3"."""
    where = Path(path)
    try:
        lines = where.read_text(encoding="utf-8").split("\n")  # splitlines would break text at other signs too
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({error.strerror or error}).") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: this is not text in UTF-8. Give a file with one JSON object per line.") from error
    places = ((f"{where}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip())
    return [(place, _record(line, place)) for place, line in places]


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and objects that deep
        reason = getattr(error, "msg", None) or type(error).__name__
        raise InputError(f"{where}: this is not JSON ({reason}). Give one object per line.") from error
    if not isinstance(record, dict):
        raise InputError(f"{where}: there must be an object with its fields. Got {type(record).__name__}.")
    return record


def _field(record: Mapping[str, Any], name: str, where: str) -> str:
    value = record.get(name)
    if value is None or (isinstance(value, str) and not value.strip()):
        if name in record:
            raise InputError(f"{where}: the field {name!r} is empty. Fill it in, or leave the line out.")
        raise InputError(f"{where}: there is no field {name!r}. {did_you_mean(name, record)}")
    if isinstance(value, dict | list):
        raise InputError(f"{where}: the field {name!r} must be text or a number. Got {type(value).__name__}.")
    return str(value)


def _words(examples: Iterable[Example], given: Mapping[str, str] | None) -> dict[str, str]:
    """Word of every label, in the order of labels."""
    labels = sorted({example.label for example in examples})
    if given is not None and (odd := [label for label in labels if label not in given]):
        raise InputError(f"There is no label word for {some_of(odd)}. {did_you_mean(odd[0], given)}")
    words = dict(given) if given is not None else {label: label for label in labels}
    if len(words) < 2:
        raise InputError(f"There must be at least two labels to tell apart. Got {some_of(words)}.")
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
