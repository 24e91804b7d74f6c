"""Errors and warnings about what the library was given.

Every module raises `InputError` for input that the user can fix, and warns with `DataWarning` where the answer is
right but the data deserve a look. Any other exception is a bug of the library.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from numbers import Integral
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

# What a terminal or a page would act on rather than show: control characters (but tab and newline), half surrogates,
# line separators, and the marks that turn the direction of text around.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


LONGEST_REASON = 300  # characters of an error of others


class Message(Exception):  # noqa: N818 - of errors and of warnings
    """A message that knows which parameters it names, so that the command line can show its flags instead.

    The text says what was wrong, where, and what to do; with a ``parameter`` ``of`` a function or class, which starts
    the sentence, it is the rest: "must be …". It holds other parameters as ``{name}``, to be ``named`` with the value
    to give them, or None; what follows a colon tells values of one apart: ``{ignore:1}`` and ``{ignore:2}``. A ``fix``
    has parameters and values to add, which fix everything; "instead" maps what was given to what should have been.

    >>> print(InputError("must be at least 1. Got 0 instead.", parameter="size", of="select"))
    The 'size' parameter of select must be at least 1. Got 0 instead.
    >>> error = InputError("'x' is not a number. Leave the column out with {ignore}.", ignore="note")
    >>> print(error)
    'x' is not a number. Leave the column out with ignore='note'.
    >>> error.spelled(lambda name, value: f"--{name} {value}")
    "'x' is not a number. Leave the column out with --ignore note."
    """

    def __init__(
        self, text: str, *, parameter: str = "", of: str = "", fix: Mapping[str, Any] | None = None, **named: object
    ) -> None:
        self.text, self.parameter, self.of, self.named = text, parameter, of, named
        self.fix = {name: value for name, value in (fix or {}).items() if value}
        self.place = ""
        super().__init__(text)

    def spelled(self, spell: Callable[[str, object], str]) -> str:
        """Return the message with its parameters as ``spell(name, value)`` writes them; the value may be None."""
        return self._written(spell(self.parameter, None) if self.parameter else "", spell)

    def at(self, place: object) -> Self:
        """Return the same message, which now begins with the file or folder that it is about."""
        found = copy.copy(self)
        found.place = f"{place}: {self.place}"
        return found

    def __str__(self) -> str:
        owner = f" of {self.of}" if self.of else ""
        subject = f"The '{self.parameter}' parameter{owner}" if self.parameter else ""
        return self._written(subject, lambda name, value: f"'{name}'" if value is None else f"{name}={value!r}")

    def _written(self, subject: str, spell: Callable[[str, object], str]) -> str:
        text = f"{subject} {self.text}" if subject else self.text
        for name, value in self.named.items():
            text = text.replace(f"{{{name}}}", spell(name.partition(":")[0], value))
        return f"{self.place}{text}"


class InputError(Message, ValueError):
    """Input that the user can fix; the message says what was wrong, where, and what to do.

    The command line turns it into one line on stderr and exit status 2.

    >>> import whence
    >>> try:
    ...     whence.Outcomes([[0, 2], [1, -1]], [0.5, 0.6])
    ... except whence.InputError as error:
    ...     print(error)
    row 1 (counted from 0), column 'task_1': a weight must be at least 0. Got -1.0 instead.
    """


class DataWarning(Message, UserWarning):
    """The answer is right but the data deserve a look.

    >>> import warnings, whence
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     model = whence.fit(whence.Outcomes([[1, 0], [1, 1], [1, 0]], [0.5, 0.6, 0.4]))
    >>> print(caught[0].message)
    Tasks with the same weight in every run, so that their effect cannot be seen: task_0.
    """


def needed(module: str, why: str, extra: str) -> Any:
    """Import an optional dependency; if it is missing, the error says ``why`` it is needed and how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f'{why}: pip install "whence[{extra}]".') from error


def whole_number(value: object, parameter: str, least: int = 1, *, of: str = "") -> int:
    """The value, if it is an integer of at least ``least``; anything else is refused."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise InputError(f"must be an integer of at least {least}. Got {value!r} instead.", parameter=parameter, of=of)
    return int(value)


def check_choice(value: object, known: Sequence[str], parameter: str, *, of: str = "") -> None:
    """Refuse a value that is not one of those known."""
    if value not in known:
        *others, last = map(repr, known)
        raise InputError(f"must be {', '.join(others)} or {last}. Got {value!r} instead.", parameter=parameter, of=of)


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant; None where none is close."""
    # A transposed or mis-cased name is the usual slip, so capitals do not count against a match.
    by_lower = {other.lower(): other for other in reversed(list(known))}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Sentence that names the closest known name, or the known names where none is close.

    >>> did_you_mean("los", ["loss", "acc"])
    "Did you mean 'loss'?"
    >>> did_you_mean("speed", ["loss", "acc"])
    'There are: loss, acc.'
    """
    names = list(known)
    meant = closest(name, names)
    return f"There are: {some_of(names)}." if meant is None else f"Did you mean '{meant}'?"


def some_of(names: Iterable[str], limit: int = 8) -> str:
    """Names joined by commas, the first few of many.

    >>> some_of(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    listed = list(names)
    text = ", ".join(listed[:limit]) or "none"
    return text if len(listed) <= limit else f"{text} and {len(listed) - limit} more"


def counted(number: int, noun: str) -> str:
    """Text of a number with its noun, in the plural unless there is exactly one.

    >>> counted(1, "run"), counted(3, "run")
    ('1 run', '3 runs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def amount(value: float) -> str:
    """Return a number of tokens or examples with three digits, in thousands, millions, billions or trillions.

    >>> amount(4.669e9), amount(1.71e7), amount(250), amount(1e12)
    ('4.67B', '17.1M', '250', '1T')
    """
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if float(f"{value:.3g}") >= scale:
            return f"{float(f'{value:.3g}') / scale:.4g}{letter}"
    return f"{value:.3g}"


def safe_text(text: str, most: int | None = None) -> str:
    r"""Foreign text made safe to show: escape sequences and marks that turn text around are spelled out.

    Of a text with more than ``most`` characters, the middle is left out.

    >>> safe_text("\x1b[31mred"), safe_text("abcdefgh", most=4)
    ('\\x1b[31mred', 'ab … 4 characters … gh')
    """
    if most is not None and len(text) > most:
        half = most // 2
        text = f"{text[:half]} … {len(text) - 2 * half} characters … {text[-half:]}"
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def brief(error: BaseException) -> str:
    r"""Kind and message of an error in one line, safe to show anywhere.

    >>> brief(ValueError("no\n  good"))
    'ValueError: no good'
    """
    try:
        text = str(error)
    except Exception:
        text = "its message cannot be shown"
    text = " ".join(text[: 100 * LONGEST_REASON].split())[:LONGEST_REASON]
    kind = "" if isinstance(error, InputError) else type(error).__name__[:LONGEST_REASON]
    return safe_text(": ".join(part for part in (kind, text) if part))
