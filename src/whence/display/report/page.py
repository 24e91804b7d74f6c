"""The page: template, styles, scripts and the document of numbers, assembled into one file that loads nothing.

Names from the data reach the page in only two ways: escaped, in the few lines of text that work without scripts, and in
the packed document, from which scripts insert them as text, never as markup. The content security policy of the page
allows no other script and no loading.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from whence.answers.rules import Rule
from whence.display.report.findings import collect
from whence.display.report.packing import Document, deflated, deflated_text
from whence.errors import InputError, counted, safe_text
from whence.outcomes.writing import whole_file
from whence.surrogates.model import Model

SCRIPTS = (
    "core.js",
    "surrogate.js",
    "search.js",
    "report.js",
    "charts.js",
    "explorer.js",
    "tasks.js",
    "profile.js",
    "targets.js",
    "pairs.js",
    "trust.js",
    "next.js",
    "page.js",
)


def report(
    model: Model,
    path: str | os.PathLike[str],
    *,
    rule: str | Rule | None = None,
    weights: Mapping[str, float] | None = None,
    seed: int = 0,
) -> None:
    """Write one self-contained HTML file with every answer of a model.

    Parameters
    ----------
    model : Model
        From `whence.fit`.
    path : path
        The file to write, usually ending in .html.
    rule : str or Rule, optional
        Of the attribution, as in `whence.attribute`; chosen by what the runs allow if not given.
    weights : mapping from target to weight, optional
        Of the mean of targets in the page's menu, as in `whence.select`; the plain mean if not given.
    seed : int
        Same seed, same page.

    Examples
    --------
    >>> import tempfile, whence
    >>> S = whence.Exhaustive().draw(3)
    >>> model = whence.fit(whence.Outcomes(S, S[:, 0] - S[:, 1], task_names=["a", "b", "c"], target_names=["loss"]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report(model, f"{folder}/report.html")
    ...     "What 3 tasks do to loss" in Path(f"{folder}/report.html").read_text(encoding="utf-8")
    True
    """
    check_place(path)
    write_page(collect(model, rule=rule, weights=weights, seed=seed), path)


def check_place(path: str | os.PathLike[str]) -> None:
    """Raise if a page cannot be written, before its numbers are computed."""
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder '{path.parent}'. Make it first, or write elsewhere.")
    if path.is_dir():
        raise InputError(f"{path}: this is a folder. Name the file to write, such as {path / 'report.html'}.")


class Insert(NamedTuple):
    """Additional content of a page as HTML: its title, links to its sections, and the sections."""

    title: str = ""
    links: str = ""
    sections: str = ""


def write_page(document: Document, path: str | os.PathLike[str], insert: Insert | None = None) -> None:
    """Write the page of a document; the file appears whole or not at all."""
    text = page(document, insert or Insert())
    with whole_file(path) as file:
        file.write(text.encode())


def page(document: Document, insert: Insert = Insert()) -> str:  # noqa: B008 - it cannot be changed
    """Return the HTML of a document of :mod:`whence.display.report.findings`."""
    document = _shown(document)
    runs, targets = document["runs"], document["targets"]
    n_measured = sum(target["measured"] for target in targets)
    whose = targets[0]["name"] if n_measured == 1 else counted(n_measured, "target")
    loader, scripts = _lean(_asset("load.js")), "".join(_lean(_asset(name)) for name in SCRIPTS)
    allowed = f"{_digest(loader)} {_digest(scripts)}"
    first = targets[0]["answer"]
    sentences = [first["subset"], first["tasks"]]
    sentences.insert(0 if first["weak"] else 2, [(first["trust"], "")])
    over = " · ".join(part for part in (runs["description"], runs["source"]) if part)
    return Template(_asset("page.html")).substitute(
        title=insert.title
        or escape(
            f"What {counted(len(runs['tasks']), 'task')} {'does' if len(runs['tasks']) == 1 else 'do'} to {whose}"
        ),
        links=insert.links,
        insert=insert.sections,
        version=escape(runs["version"]),
        over=escape(over),
        policy=f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:",
        style=style(),
        answer="".join(f"<p>{escape(''.join(text for text, _ in sentence))}</p>" for sentence in sentences),
        data=deflated(document),
        scripts=deflated_text(scripts),
        loader=loader,
    )


def style() -> str:
    """Return the styles of a page."""
    return _lean(_asset("page.css"))


def _shown(value: Any) -> Any:
    """Document in which nothing that a page would obey, such as turned text, is left in a name."""
    if isinstance(value, Mapping) and {"type", "shape", "data"} <= value.keys():
        return value  # numbers: their text is read, and never shown
    if isinstance(value, Mapping):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return safe_text(value) if isinstance(value, str) else value


def _asset(name: str) -> str:
    return (files("whence.display.report") / "assets" / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """By which a policy lets a script run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode('ascii')}'"


def _lean(text: str) -> str:
    """Code without its indentation and whole-line comments, which are a quarter of it."""
    lines = (line.strip() for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("//"))
