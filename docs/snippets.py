"""Run the snippets of a page of the documentation, and hold what it shows against what they print.

A page is read from top to bottom, in a folder and a namespace of its own:

- A ``python`` block is executed. One whose first line is a comment that names a file, as in ``# exp.py``, is written to
  that file instead.
- Every command of a ``sh`` block that starts with ``whence`` is run, in this process. ``pip``, ``make`` and ``mkdocs``
  are for the reader; of ``python FILE``, the file must exist in the repository.
- A ``text`` block is what the snippet above it prints, errors and warnings included, with a last line such as
  ``[exit status 2]`` where a command fails. A snippet without one may print what it likes, but neither warn nor fail.

Shown and printed words must be the same, whatever the space between them; ``...`` stands for any number of words.
Numbers may differ by two units of the last digit shown or by 3%, since machines round differently.

    python docs/snippets.py docs/cli.md              check a page
    python docs/snippets.py docs/cli.md --write      and put what is printed into the blocks that differ
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small models on many threads crawl
os.environ.setdefault("MPLBACKEND", "agg")

from typer.testing import CliRunner

from whence.cli import app

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED_FILE = re.compile(r"# ([\w/]+\.\w+)$")
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
PROGRESS = re.compile(r"^measured \d+ of \d+ · .*\n", re.MULTILINE)  # now and then: on a busy machine only
FOR_THE_READER = ("pip", "make", "mkdocs")
WIDTH = 96
NEAR = 0.03


@dataclass(frozen=True)
class Snippet:
    """A block that runs, with the line it is on and the place of the block that shows its output, if there is one."""

    language: str
    code: str
    line: int
    shown: str | None
    span: tuple[int, int]


@dataclass(frozen=True)
class Ran:
    """A snippet and what it printed."""

    snippet: Snippet
    printed: str
    seconds: float

    @property
    def complaint(self) -> str:
        """What is wrong; empty where nothing is."""
        shown = self.snippet.shown
        if shown is None:
            trouble = [line for line in self.printed.splitlines() if re.match(r"\w*Warning: |\[exit status", line)]
            return f"It shows no output, and this should be shown:\n{self.printed}" if trouble else ""
        if same_words(shown, self.printed):
            return ""
        return f"The page shows\n\n{shown}\nand what is printed is\n\n{self.printed}"


def snippets(text: str) -> list[Snippet]:
    """Return the snippets of a page, in order."""
    found: list[Snippet] = []
    for block in FENCE.finditer(text):
        language, code = block[1], block[2]
        if language in ("python", "sh"):
            line = text.count("\n", 0, block.start()) + 2
            found.append(Snippet(language, code, line, None, (0, 0)))
        elif language == "text" and found and found[-1].shown is None:
            last = found[-1]
            found[-1] = Snippet(last.language, last.code, last.line, code, block.span(2))
    return found


def run_page(text: str, name: str) -> Iterator[Ran]:
    """Run the snippets of a page in the current folder, one after the other."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for snippet in snippets(text):
        began = time.perf_counter()
        printed = run_python(snippet, name, names) if snippet.language == "python" else run_commands(snippet.code)
        yield Ran(snippet, printed, time.perf_counter() - began)


def run_python(snippet: Snippet, name: str, names: dict[str, Any]) -> str:
    """Execute a block, or write the file that it is; return what it printed, and its warnings."""
    first, _, _ = snippet.code.partition("\n")
    if named := NAMED_FILE.match(first):
        Path(named[1]).write_text(snippet.code, encoding="utf-8")
        sys.modules.pop(Path(named[1]).stem, None)  # one of that name may have been imported from elsewhere
        return ""
    tree = ast.increment_lineno(ast.parse(snippet.code, name), snippet.line - 1)
    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed):
        warnings.simplefilter("default")
        warnings.filterwarnings("ignore", ".torch.jit.script. is deprecated", DeprecationWarning)  # torch's own
        exec(compile(tree, name, "exec"), names)
    told = [f"{warning.category.__name__}: {warning.message}\n" for warning in caught]
    return printed.getvalue() + "".join(told)


def run_commands(code: str) -> str:
    """Run the commands of a block; return what they printed."""
    printed = []
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words or words[0] in FOR_THE_READER:
            continue
        if words[0] == "python":
            if not (ROOT / words[1]).is_file():
                raise FileNotFoundError(f"{words[1]}: there is no such file in the repository")
        elif words[0] == "whence":
            printed.append(run_whence(words[1:]))
        else:
            raise ValueError(f"This command cannot be run: {line}")
    return "".join(printed)


def run_whence(arguments: list[str]) -> str:
    """Run the command line in this process; return what it printed on either stream but progress, and how it ended."""
    result = CliRunner().invoke(app, arguments, prog_name="whence")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return PROGRESS.sub("", result.output) + (f"[exit status {result.exit_code}]\n" if result.exit_code else "")


def same_words(shown: str, printed: str) -> bool:
    """Whether the words are the same, up to numbers that are close and what ``...`` stands for.

    >>> same_words("loss 0.51 of ... runs", "loss 0.509 of 12 or so runs"), same_words("loss 0.6", "loss 0.9")
    (True, False)
    """
    parts: list[list[str]] = [[]]
    for word in shown.split():
        parts.append([]) if word == "..." else parts[-1].append(word)
    rest = printed.split()
    if len(parts) == 1:
        return len(rest) == len(parts[0]) and all(map(same_word, parts[0], rest))
    first, *middle, last = parts
    if len(rest) < len(first) + len(last):
        return False
    if not all(map(same_word, first, rest)) or not all(map(same_word, reversed(last), reversed(rest))):
        return False
    rest = rest[len(first) : len(rest) - len(last)]
    for part in middle:
        places = (at for at in range(len(rest) - len(part) + 1) if all(map(same_word, part, rest[at:])))
        at = next(places, None)
        if at is None:
            return False
        rest = rest[at + len(part) :]
    return True


def same_word(shown: str, printed: str) -> bool:
    """Whether two words are the same but for numbers that are close."""
    if shown == printed:
        return True
    if NUMBER.sub("0", shown) != NUMBER.sub("0", printed):
        return False
    return all(map(close, NUMBER.findall(shown), NUMBER.findall(printed)))


def close(shown: str, printed: str) -> bool:
    """Whether a number is that shown, up to two units of its last digit or 3%.

    >>> close("0.51", "0.53"), close("0.51", "0.54"), close("1,023", "1,000")
    (True, False, True)
    """
    a, b = (float(number.replace(",", "")) for number in (shown, printed))
    mantissa, _, exponent = shown.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    exact = unit == 1 and a < 10  # a count of few
    return abs(a - b) <= (0 if exact else max(2 * unit, NEAR * abs(a)) + 1e-12)


def wrapped(printed: str) -> str:
    """What was printed, with long sentences in several lines; rows of tables stay as they are."""
    lines = []
    for line in printed.rstrip().splitlines():
        row = "  " in line.strip() or "──" in line
        lines += [line.rstrip()] if row or len(line) <= WIDTH else textwrap.wrap(line, WIDTH, break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def renewed(shown: str, printed: str) -> str:
    r"""What was printed, without what ``...`` left out; all of it where more than numbers has changed.

    >>> renewed("a 0.5\n...\nc 2 in ... s\n", "a 0.6\nb\nc 3 in 4.1 s\n")
    'a 0.6\n...\nc 3 in ... s\n'
    >>> renewed("", "a 0.6\n")
    'a 0.6\n'
    """
    if not shown.strip():
        return printed
    found, rest = [], printed.splitlines()
    for line in shown.splitlines():
        if line.strip() in ("", "..."):
            found.append(line)
            continue
        parts = [" *".join(map(same_but_numbers, part.split())) for part in line.split("...")]
        alike = re.compile(r"\s*" + r"\s*(.*?)\s*".join(parts) + r"\s*$")
        at = next((at for at, other in enumerate(rest) if alike.match(other)), None)
        if at is None:
            return printed
        found.append(without(rest[at], alike.match(rest[at])))
        rest = rest[at + 1 :]
    return "\n".join(found) + "\n"


def same_but_numbers(word: str) -> str:
    """Return a pattern of words that differ in numbers and signs only."""
    return r"[-+]?[\d.,e]+".join(re.escape(part) for part in re.split(rf"[-+]?{NUMBER.pattern}", word))


def without(line: str, match: re.Match[str] | None) -> str:
    """Return a line with ``...`` in the place of every group of a match."""
    spans = [] if match is None else [match.span(group) for group in range(1, match.re.groups + 1)]
    for start, end in reversed(spans):
        line = line[:start] + "..." + line[end:]
    return line.rstrip()


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A new folder to be in and to import from; modules that pages write there are forgotten at the end."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)
            sys.path.remove(folder)
            for module in list(sys.modules):
                if str(getattr(sys.modules[module], "__file__", None) or "").startswith(folder):
                    del sys.modules[module]


def main() -> None:
    """Check pages, or write what their snippets print into them."""
    parser = argparse.ArgumentParser(description="Check the snippets of pages.")
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="put what is printed into the blocks that differ")
    asked = parser.parse_args()
    wrong = 0
    for page in (path.resolve() for path in asked.pages):
        text, changed = page.read_text(encoding="utf-8"), []
        with own_folder():
            for ran in run_page(text, page.name):
                state = "differs" if ran.complaint else "ok"
                print(f"{page.name}:{ran.snippet.line}: {state}, {ran.seconds:.1f} s", flush=True)
                if ran.complaint and asked.write and ran.snippet.shown is not None:
                    changed.append((ran.snippet.span, renewed(ran.snippet.shown, wrapped(ran.printed))))
                elif ran.complaint:
                    print(textwrap.indent(ran.complaint, "    "))
                    wrong += 1
        for (start, end), printed in reversed(changed):
            text = text[:start] + printed + text[end:]
        page.write_text(text, encoding="utf-8")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
