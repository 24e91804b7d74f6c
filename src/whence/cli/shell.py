"""What surrounds every verb: its answer, printed as tables or as JSON, and what the user can fix, in one line.

Notes and errors go to stderr. Messages of the library carry their parameters, which are shown here as the flags of the
running verb.
"""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import typer
from rich.text import Text
from typer.core import TyperCommand

from whence.display.layout import Page, Terminal
from whence.display.numbers import to_json
from whence.errors import DataWarning, InputError, Message, safe_text

EXTRAS = {"torch": "torch", "safetensors": "torch", "transformers": "hf", "ray": "ray", "pyarrow": "parquet"}


class Answer(NamedTuple):
    """What a verb found: a document for programs and a page for people."""

    document: Mapping[str, object]
    page: Page
    failed: bool = False  # whether some of it was not done, which the exit status says

    def print(self, *, as_json: bool) -> None:
        """Print the document or the page."""
        if as_json:
            print(to_json(self.document), flush=True)
        else:
            Terminal().show(self.page)


def warn(text: str, **named: Any) -> None:
    """Warn of something in the data; it is printed as a note."""
    warnings.warn(DataWarning(text, **named), stacklevel=2)


# ---- notes and errors ------------------------------------------------------------------------------------


class Verb(TyperCommand):
    """Command that prints what the user can fix in one line; to be given to ``app.command(cls=Verb)``."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        flags = {str(option.name): list(option.opts) for option in self.params}
        with errors_in_one_line(flags, [str(self.name), *self.typed]):
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what was typed, and keep it for the line that would put an error right."""
        self.typed = list(args)
        takes_more = any(str(option.name).startswith("more_") for option in self.params)
        lists = [flag for option in self.params if getattr(option, "multiple", False) for flag in option.opts]
        return super().parse_args(ctx, repeated(args, lists) if takes_more else args)


def repeated(words: Sequence[str], lists: Sequence[str]) -> list[str]:
    """Return the words of a command, with an option before each of the files after it that a shell made of a ``*``.

    Without an argument in front, there is none that the first such file could be taken for.

    >>> repeated(["model", "--tasks", "a", "b", "-o", "c"], ["--tasks"])
    ['model', '--tasks', 'a', '--tasks', 'b', '-o', 'c']
    >>> repeated(["--tasks", "a", "model"], ["--tasks"])
    ['--tasks', 'a', 'model']
    """
    if not words or words[0].startswith("-"):
        return list(words)
    found: list[str] = []
    flag, given = "", False  # the option that files belong to, and whether it has one
    for word in words:
        if word.startswith("-"):
            name, equals, _ = word.partition("=")
            flag, given = name if name in lists else "", bool(equals)
        elif flag and given:
            found.append(flag)
        else:
            given = True
        found.append(word)
    return found


@contextmanager
def errors_in_one_line(flags: Mapping[str, Sequence[str]], typed: Sequence[str] = ()) -> Iterator[None]:
    """Print what the user can fix in one line and exit with 2; defects of the library keep their traceback.

    A `DataWarning` becomes a note. Ctrl-C exits with 130, and a closed pipe with 0.
    """
    seen: set[str] = set()
    default = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not isinstance(message, DataWarning):
            default(message, category, *where, **more)
        elif (line := in_flags(message, flags)) not in seen:
            seen.add(line)
            print_line("note", line)

    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        warnings.showwarning = show
        try:
            yield
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except Exception as error:
            _exit(error, flags, typed)


def _exit(error: Exception, flags: Mapping[str, Sequence[str]], typed: Sequence[str]) -> NoReturn:
    """Exit with one sentence if the error is about what the user gave, else raise it again."""
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        print_line("error", f"{where}{error.strerror or error}.")
    elif isinstance(error, InputError):
        print_line("error", in_flags(error, flags))
        if error.fix and typed:  # on a line of its own that is not wrapped, to be copied
            Terminal(stderr=True).print(f"Try: {mended(typed, error.fix, flags)}", soft_wrap=True)
    elif type(error).__module__.startswith("sklearn."):
        print_line("error", str(error))
    elif isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        print_line("error", f'This needs {error.name}: pip install "whence[{EXTRAS[error.name]}]".')
    elif isinstance(error, MemoryError):
        said = safe_text(str(error), 200)
        print_line("error", f"There is not enough memory for this ({said}): give fewer runs or targets.")
    else:
        raise error
    raise typer.Exit(2) from None


def print_line(kind: str, sentence: str) -> None:
    """Print a note or an error on stderr: one line, or one for each problem where there are several."""
    style = {"note": "yellow", "stopped": "yellow", "error": "bold red"}[kind]
    lines = [" ".join(line.split()) for line in sentence.split("\n  (")]
    Terminal(stderr=True).print(Text.assemble((f"{kind}: ", style), "\n  (".join(lines)))


def mended(typed: Sequence[str], fix: Mapping[str, Any], flags: Mapping[str, Sequence[str]]) -> str:
    """Return the command line that was typed, with what puts it right, quoted for the shell.

    >>> fix = {"instead": {"los": "loss"}, "ignore": ["a b"]}
    >>> mended(["fit", "my runs.csv", "-O", "los"], fix, {"ignore": ["--ignore"]})
    "whence fit 'my runs.csv' -O loss --ignore 'a b'"
    """
    instead = fix.get("instead", {})
    words = [",".join(instead.get(part, part) for part in word.split(",")) for word in typed]
    added = [_spelled(name, value, flags) for name, value in fix.items() if name != "instead"]
    return " ".join(["whence", *map(shlex.quote, words), *added])


def in_flags(message: Message, flags: Mapping[str, Sequence[str]]) -> str:
    """Return a message of the library with its parameters as flags of the command line.

    >>> in_flags(InputError("Leave it out with {ignore}.", ignore=["note"]), {"ignore": ["--ignore"]})
    'Leave it out with --ignore note.'
    """
    return message.spelled(lambda name, value: _spelled(name, value, flags))


def _spelled(name: str, value: object, flags: Mapping[str, Sequence[str]]) -> str:
    # Where Python takes a list of outcomes, the option --outcome is repeated.
    found = flags.get(name) or flags.get(name.removesuffix("s"))
    if not found:
        return f"'{name}'" if value is None else f"{name}={value!r}"
    flag = next((each for each in found if each.startswith("--")), found[0])
    if value is None or value is True:
        return flag
    values = map(str, value if isinstance(value, list | tuple) else [value])
    listed = ",".join(f'"{name}"' if "," in name else name for name in values)
    return f"{flag} {shlex.quote(listed)}"
