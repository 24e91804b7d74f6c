"""How the command line talks: where its output goes, how numbers and words look, and what it says of trouble.

Beside the flow. :mod:`whence.cli.tables` makes pages of these lines and tables, :mod:`whence.cli` prints them. Colour
never stands without its word, numbers show the digits that their uncertainty leaves, and where nobody watches
(a pipe, a file) tables are plain text as wide as they need to be, so that no name is cut.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import typer
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from whence.errors import DataWarning, InputError, safe_text

if TYPE_CHECKING:
    from whence.outcomes import Outcomes

Page = list[RenderableType]
Row = list[str | Text]

MOST_ROWS = 30
PIPE_WIDTH = 100_000
MISSING = "–"
UNCLEAR = "unclear"
EXTRAS = {"torch": "torch", "safetensors": "torch", "transformers": "hf", "ray": "ray", "pyarrow": "parquet"}
HIGHER = {"acc", "accuracy", "auc", "auroc", "f1", "reward", "rewards", "return", "returns", "score", "scores"}
LOWER = {"err", "error", "loss", "perplexity", "regret"}
COLOURS = {
    "helps": "green",
    "work together": "green",
    "better": "green",
    "hurts": "red",
    "work against each other": "red",
    "worse": "red",
    "inside": "green",
    "outside": "red",
    "PASS": "bold green",
    "FAIL": "bold red",
    UNCLEAR: "dim",
}


class Terminal(Console):
    """Console that takes names as they are, cuts nothing in a pipe, and lets its caller see a closed one."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        watched = (sys.stderr if stderr else sys.stdout).isatty()
        width = None if watched else PIPE_WIDTH
        super().__init__(stderr=stderr, quiet=quiet, width=width, markup=False, emoji=False, highlight=False)

    def show(self, page: Iterable[RenderableType]) -> None:
        """Print a page, line by line and table by table."""
        for part in page:
            self.print(part, soft_wrap=isinstance(part, Text) and part.no_wrap is True)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments of what is printed, with what a terminal would obey spelled out."""
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else safe_text(segment.text)
            yield segment if shown == segment.text else Segment(shown, segment.style)

    def on_broken_pipe(self) -> None:
        """Let the closed pipe be seen, where rich would end the program."""
        raise BrokenPipeError


# ---- numbers, words, tables ------------------------------------------------------------------------------


def decimals(step: Any) -> int:
    """Return how many decimals show one or two digits of a typical step, such as the std of what is shown.

    Two where the step starts with 1, 2 or 3, and one where that is precise enough.

    >>> decimals([0.012, 0.034]), decimals(0.007), decimals(250.0)
    (3, 3, 0)
    """
    import numpy as np

    sizes = np.abs(np.asarray(step, dtype=np.float64)).ravel()
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    return int(np.clip(-np.floor(np.log10(np.median(sizes) / 3.55)), 0, 99)) if len(sizes) else 3


def number(value: float, places: int = 2, *, signed: bool = False) -> str:
    """Return a number with so many decimals; a dash for NaN, a power of ten where digits would run on.

    >>> number(0.12345, 3, signed=True), number(-0.001), number(float("nan")), number(2.5e-12, 14)
    ('+0.123', '0.00', '–', '2.50e-12')
    """
    if not math.isfinite(value):
        return MISSING
    value = value if round(value, places) else 0.0  # and not -0.00
    sign = "+" if signed else ""
    long = abs(value) >= 1e10 or places > 7
    return f"{value:{sign}.2e}" if long else f"{value:{sign}.{places}f}"


def span(low: float, high: float, places: int = 2, *, signed: bool = False) -> str:
    """Return an interval.

    >>> span(0.1, 0.25)
    '0.10 to 0.25'
    """
    ends = [number(end, places, signed=signed) for end in (low, high)]
    return MISSING if MISSING in ends else " to ".join(ends)


def share(value: float) -> str:
    """Return a share in percent; a dash for NaN.

    >>> share(0.913)
    '91%'
    """
    return f"{value:.0%}" if math.isfinite(value) else MISSING


def word(verdict: str) -> Text:
    """Return a verdict in its colour; what cannot be told from zero is "unclear"."""
    shown = verdict if verdict in COLOURS else UNCLEAR
    return Text(shown, style=COLOURS[shown])


def direction(up: bool) -> str:
    """Return in words which way is good."""
    return "higher is better" if up else "lower is better"


def title(text: str) -> Text:
    """Return the line above a table, and a blank one before it."""
    return Text(f"\n{text}", style="bold")


def remark(text: str) -> Text:
    """Return a line that explains."""
    return Text(text, style="dim")


def command(text: str) -> Text:
    """Return a line to copy, which is not broken where the terminal ends."""
    return Text(text, no_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Row], *, left: Sequence[str] = ()) -> Table:
    """Return a table: numbers to the right; the first column and those in ``left`` to the left."""
    found = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="")
    for place, name in enumerate(columns):
        is_text = place == 0 or name in left
        # Numbers stay on one line; names and sentences may go on in the next one, and are never cut.
        found.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    for row in rows:
        found.add_row(*map(_safe, row))
    return found


def _safe(cell: str | Text) -> str | Text:
    """Cell in which nothing is obeyed; before its width is measured."""
    if isinstance(cell, str):
        return safe_text(cell)
    shown = safe_text(cell.plain)
    return cell if shown == cell.plain else Text(shown, cell.style)


def both_ends(rows: list[Row], top: int | None = None, *, how: str) -> list[Row]:
    """Return all rows, or the first and last of many and a row that says how many are left out."""
    end = MOST_ROWS // 2 if top is None else top
    if len(rows) <= (MOST_ROWS if top is None else 2 * top):
        return rows
    more = remark(f"… {len(rows) - 2 * end} more, use {how}")
    return [*rows[:end], [more, *[""] * (len(rows[0]) - 1)], *rows[-end:]]


def to_json(document: Mapping[str, Any]) -> str:
    """Return one JSON document, with null for what is NaN or infinite.

    >>> print(to_json({"lds": float("nan")}))
    {
      "lds": null
    }
    """
    return json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Return a value as JSON knows it: arrays as lists, what is NaN or infinite as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # arrays and numbers of numpy
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- what several verbs print ----------------------------------------------------------------------------


class Answer(NamedTuple):
    """What a verb found: a document for programs and a page for people."""

    document: dict[str, Any]
    page: Page


def note(sentence: str) -> None:
    """Say what deserves a look."""
    warnings.warn(sentence, DataWarning, stacklevel=2)


def hint_at_directions(runs: Outcomes) -> None:
    """Note targets that are minimised although they sound as if more of them was better."""
    for name, up in zip(runs.target_names, runs.maximize, strict=True):
        words = set(re.split(r"[^a-z0-9]+", name.lower()))
        if not up and words & HIGHER and not words & LOWER:
            note(f"Lower {name} is taken to be better; if higher is, add --maximize {name}.")


# ---- trouble ---------------------------------------------------------------------------------------------


@contextmanager
def politely() -> Iterator[None]:
    """Say what the user can put right in one line and exit with 2; defects keep their traceback.

    What a `DataWarning` says becomes a note. Ctrl-C exits with 130, and a reader that has read enough with 0.
    """
    told: set[str] = set()
    pythons_own = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, DataWarning):
            pythons_own(message, category, *where, **more)
        elif str(message) not in told:
            told.add(str(message))
            tell("note", str(message))

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
            _refuse(error)


def _refuse(error: Exception) -> NoReturn:
    """Exit with one sentence if the error is about what the user gave, else raise it again."""
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        tell("error", f"{where}{error.strerror or error}.")
    elif isinstance(error, InputError) or type(error).__module__.startswith("sklearn."):
        tell("error", str(error))
    elif isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        tell("error", f'This needs {error.name}: pip install "whence[{EXTRAS[error.name]}]".')
    elif isinstance(error, MemoryError):
        tell(
            "error", f"There is not enough memory for this ({safe_text(str(error), 200)}): give fewer runs or targets."
        )
    else:
        raise error
    raise typer.Exit(2) from None


def tell(kind: str, sentence: str) -> None:
    """Print a note or an error as one line on stderr, in the words of the command line."""
    style = {"note": "yellow", "error": "bold red"}[kind]
    line = Text.assemble((f"{kind}: ", style), in_options(" ".join(sentence.split())))
    Terminal(stderr=True).print(line)


def in_options(sentence: str) -> str:
    """Return a sentence of the library with its parameters as the options they are on the command line.

    >>> in_options("leave it out with ignore=['note'].")
    'leave it out with --ignore note.'
    >>> in_options("with outcomes=[...] (or --outcome NAME on the command line).")
    'with --outcome NAME on the command line.'
    >>> in_options("The 'max_size' must be from 1 to 4.")
    '--max-size must be from 1 to 4.'
    """
    known = r"\b(ignore|rule|kind|by|size|target|exclude|include|costs?|budget|risk|engine|tasks|n)"
    sentence = re.sub(
        r"The '(size|max_size|keep_prob|train_fraction|risk|effect|jobs|timeout)'( parameter)?( of \w+)? must",
        lambda found: f"--{found[1].replace('_', '-')} must",
        sentence,
    )
    sentence = sentence.replace("accept_change=True", "--accept-change")
    sentence = re.sub(r"\w+=\[[^\]]*\] \(or (--[^)]*)\)", r"\1", sentence)
    sentence = re.sub(known + r"=\[?'([^']*)'\]?", r"--\1 \2", sentence)
    return re.sub(known + r"=(?=[.,;: ])", r"--\1", sentence)
