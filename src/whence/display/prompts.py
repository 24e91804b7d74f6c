"""The page of prompts: the chosen prompt in full, its demonstrations with their texts, and the evidence, as HTML.

``whence icl --report`` puts it before the sections that all reports have. It is plain text in tables, which can be
read, copied and printed without scripts; everything that comes from the data is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from whence.display.layout import word
from whence.display.numbers import decimals, number, share, span
from whence.display.pages import NO_PAIRS
from whence.display.report.packing import Document
from whence.display.report.page import Insert
from whence.errors import counted, safe_text

MOST_QUERIES = 200  # explained in the page


def prompt_insert(document: Document) -> Insert:
    """Additional sections of the page of a recommended prompt, from the document that ``whence icl --json`` prints."""
    sections = {
        "prompt": ("Prompt", "The prompt to use", _chosen(document)),
        "held-out": ("Held out", "On queries that it was not chosen by", _held_out(document)),
        "demonstrations": ("Demonstrations", "Every demonstration", _demonstrations(document)),
        "clashes": ("Clashes", "Which clash, and which work together", _pairs(document)),
        "queries": ("Queries", "What helps each query", _queries(document)),
    }
    html = "".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{heading}</h2>{body}</section>'
        for name, (_, heading, body) in sections.items()
    )
    links = "".join(f'<a href="#{name}">{link}</a>' for name, (link, _, _) in sections.items())
    n = len(document["demonstrations"])
    return Insert(f"Which of {counted(n, 'demonstration')} to show", links, html)


def _chosen(document: Document) -> str:
    chosen = document["chosen"]
    names = ", ".join(chosen["demonstrations"])
    said = f"{names} ({chosen['order']})."
    return f'<p class="intro">{_text(said)}</p><pre class="prompt">{_text(chosen["prompt"])}</pre>'


def _held_out(document: Document) -> str:
    rows = [
        [row["prompt"], number(row["loss"], 3), share(row["accuracy"]), number(row["more_loss"], 3, signed=True),
         span(row["low"], row["high"], 3, signed=True)]
        for row in document["judged"]
    ]  # fmt: skip
    table = _table(["prompt", "loss", document["score_name"], "more loss than chosen", "95% interval"], rows, text=1)
    each = [
        [row["text"], row["label"], number(row["loss"], 3), number(row["accuracy"], 2)] for row in document["held_out"]
    ]
    summary = f"The chosen prompt on every one of these {len(each)} queries"
    inside = _table(["query", "label", "loss", document["score_name"]], each, text=2)
    return f"{table}<details><summary>{_text(summary)}</summary>{inside}</details>"


def _demonstrations(document: Document) -> str:
    ranked = document["demonstrations"]
    chosen, doubts = set(document["chosen"]["demonstrations"]), {row["name"]: row for row in document["doubts"]}
    places = decimals([row["std"] or row["score"] for row in ranked])
    rows = [
        [("● " if row["name"] in chosen else "") + row["name"], row["text"], _label(row, doubts),
         number(row["score"], places, signed=True), span(row["low"], row["high"], places, signed=True),
         str(word(row["verdict"]))]
        for row in ranked
    ]  # fmt: skip
    intro = "The loss of prompts with it, less that of all: below 0 it helps. ● is in the chosen prompt."
    texts = {row["name"]: row["text"] for row in ranked}
    told = "".join(
        f'<p class="warning">{_text(row["name"])} may be mislabelled: it says {_text(row["label"])}, the model '
        f"{_text(row['likelier'])}: “{_text(texts[row['name']])}”</p>"
        for row in document["doubts"]
        if row["doubtful"]
    )
    table = _table(["demonstration", "text", "label", "score", "90% interval", "verdict"], rows, text=3)
    return f'<p class="intro">{intro} {_text(document["doubts_said"])}</p>{told}{table}'


def _label(row: Document, doubts: dict[str, Document]) -> str:
    found = doubts.get(row["name"])
    return f"{row['label']} (or {found['likelier']}?)" if found and found["doubtful"] else row["label"]


def _pairs(document: Document) -> str:
    pairs = [row for row in document["pairs"] if row["score"]]
    if not pairs:
        return f'<p class="intro">{_text(NO_PAIRS)}</p>'
    texts = {row["name"]: row["text"] for row in document["demonstrations"]}
    places = decimals([row["std"] or row["score"] for row in pairs])
    rows = [
        [f"{row['task_a']}: {texts[row['task_a']]}", f"{row['task_b']}: {texts[row['task_b']]}",
         number(row["score"], places, signed=True), span(row["low"], row["high"], places, signed=True),
         str(word(row["verdict"]))]
        for row in pairs
    ]  # fmt: skip
    intro = "What two do to the loss beyond the sum of each: above 0 they clash, below 0 they work together."
    return f'<p class="intro">{intro}</p>' + _table(["one", "other", "score", "90% interval", "verdict"], rows, text=2)


def _queries(document: Document) -> str:
    parts = []
    for query in document["explained"][:MOST_QUERIES]:
        rows = [
            [demo["demo"], demo["text"], demo["label"], number(demo["score"], 2, signed=True)]
            for demo in query["demonstrations"]
        ]
        inside = _table(["demonstration", "text", "label", "score"], rows, text=3)
        summary = f"{_text(query['query'])} <b>{_text(query['label'])}</b>"
        parts.append(f"<details><summary>{summary}</summary>{inside}</details>")
    more = len(document["explained"]) - MOST_QUERIES
    rest = f"<p>… and {more} more; --json has all of them.</p>" if more > 0 else ""
    return f'<p class="intro">{_text(document["explained_said"])}</p>{"".join(parts)}{rest}'


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, text: int) -> str:
    """A table whose first columns are text, and whose others are numbers."""

    def cells(kind: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{kind}{' class=said' if at < text else ''}>{_text(cell)}</{kind}>" for at, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', columns)}</tr></thead>"
    return f'<div class="scroll"><table class="plain">{head}<tbody>{body}</tbody></table></div>'


def _text(given: str) -> str:
    return escape(safe_text(str(given)))
