"""A recommended prompt: its document for programs, and from that its pages for the terminal and the report.

``whence icl --report`` puts the sections for the report before those that all reports have. They are plain text in
tables, which can be read, copied and printed without scripts; everything that comes from the data is escaped here.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from whence.display.layout import Page, Row, both_ends, remark, table, title, word
from whence.display.numbers import decimals, number, share, span
from whence.display.pages import HOW, NO_PAIRS, model_page
from whence.display.report.packing import Document
from whence.display.report.page import Insert
from whence.errors import counted, safe_text

if TYPE_CHECKING:
    from whence.icl import Recommendation

MOST_PAIRS, MOST_LETTERS = 5, 60
EXPLAINED, MOST_QUERIES = 2, 200  # queries that are explained on the terminal and in the report


def prompt_document(found: Recommendation) -> dict[str, object]:
    """Everything that was found, as ``whence icl --json`` prints it."""
    queries = found.prompts.queries
    return {
        "demonstrations": found.to_frame().to_dict("records"),
        "pairs": found.pairs.to_frame(top=MOST_PAIRS).to_dict("records"),
        "chosen": {
            "demonstrations": found.names,
            "order": found.how,
            "prompt": found.text,
            "predicted_loss": found.loss,
            "low": found.low,
            "high": found.high,
        },
        "judged": found.judged.to_frame().to_dict("records"),
        "score_name": "score" if found.prompts.open else "accuracy",
        "held_out": [
            {"text": query.text, "label": query.label, "loss": float(loss), "accuracy": float(right)}
            for query, loss, right in zip(found.held_out, found.answers["loss"], found.answers["accuracy"], strict=True)
        ],
        "doubts": [] if found.doubts is None else found.doubts.to_frame().to_dict("records"),
        "doubts_said": _doubts_said(found),
        "explained_said": _explained_said(found),
        "held_out_queries": len(found.held_out),
        "explained": [
            {"query": query.text, "label": query.label, "demonstrations": found.explain(at)}
            for at, query in enumerate(queries)
        ],
        "queries": len(queries),
        "prompts_run": found.n_run,
        "quality": found.model.quality(),
    }


def _doubts_said(found: Recommendation) -> str:
    """A sentence on labels that the model doubts."""
    if found.doubts is None:
        return ""
    agrees = f"asked after prompts of others, the model gives {share(found.doubts.agreement)} of them their own label"
    if not found.doubts.knows:
        return f"Labels could not be checked: {agrees}, which is no better than chance."
    doubtful = found.doubts.doubtful
    return f"Labels in doubt: {', '.join(doubtful)} ({agrees})." if doubtful else f"No label is in doubt: {agrees}."


def _explained_said(found: Recommendation) -> str:
    what = "likelihood per token of the answer, in logs" if found.prompts.open else "log-odds of the right label"
    return f"score: change of the {what}, in the place of an average demonstration (estimated)"


# ---- tables of both --------------------------------------------------------------------------------------


def _demonstrations(rows: list[Document], top: int | None, short: Callable[[str], str]) -> Table:
    cells: list[Row] = [
        [row["name"], *_effect(row, rows), word(row["verdict"]), row["label"], short(row["text"])] for row in rows
    ]
    columns = ["demonstration", "score", "90% interval", "verdict", "label", "text"]
    return table(columns, cells if short is str else both_ends(cells, top, how=HOW), left=["verdict", "label", "text"])


def _pairs(rows: list[Document], named: Callable[[str], str]) -> Table:
    cells: list[Row] = [
        [f"{named(row['task_a'])} + {named(row['task_b'])}", *_effect(row, rows), word(row["verdict"])] for row in rows
    ]
    return table(["pair", "score", "90% interval", "verdict"], cells, left=["verdict"])


def _effect(row: Document, rows: list[Document]) -> list[str]:
    """Score and interval of a row, with the decimals of all."""
    known = [each["std"] for each in rows if each["std"] == each["std"]]
    places = decimals(known or [each["score"] for each in rows])
    return [number(row["score"], places, signed=True), span(row["low"], row["high"], places, signed=True)]


def _judged(document: Document) -> Table:
    cells: list[Row] = [
        [row["prompt"], number(row["loss"], 3), share(row["accuracy"]), number(row["more_loss"], 3, signed=True),
         span(row["low"], row["high"], 3, signed=True)]
        for row in document["judged"]
    ]  # fmt: skip
    return table(["prompt", "loss", document["score_name"], "more loss", "95% interval"], cells)


def _explained(query: Document, short: Callable[[str], str]) -> Table:
    cells: list[Row] = [
        [demo["demo"], number(demo["score"], 2, signed=True), demo["label"], short(demo["text"])]
        for demo in query["demonstrations"]
    ]
    return table(["demonstration", "score", "label", "text"], cells, left=["label", "text"])


# ---- the terminal ----------------------------------------------------------------------------------------


def prompt_page(found: Recommendation, document: Document, top: int | None) -> Page:
    """The prompt and the evidence for it, for the terminal."""
    pairs = document["pairs"]
    page: Page = [
        *model_page(found.model),
        title("Demonstrations: the loss of prompts with it, less that of all (lower is better)"),
        _demonstrations(document["demonstrations"], top, _short),
        *_doubts_page(document),
        title("Strongest pairs"),
        _pairs(pairs, str) if any(row["score"] for row in pairs) else remark(NO_PAIRS),
        title(f"Chosen prompt ({found.how})"),
        Text(found.text.rstrip(), style="green"),
        Text(""),
        title(f"Run on {document['held_out_queries']} queries that were not used to choose"),
        _judged(document),
        remark("more loss: than the chosen prompt; the interval is over queries"),
    ]
    for query in document["explained"][:EXPLAINED]:
        page.append(title(f"For the query “{_short(query['query'])}” ({query['label']})"))
        page.append(_explained(query, _short))
    return [*page, remark(document["explained_said"])]


def _doubts_page(document: Document) -> Page:
    texts = {row["name"]: row["text"] for row in document["demonstrations"]}
    rows: list[Row] = [
        [row["name"], row["label"], row["likelier"], number(row["margin"], 2, signed=True), _short(texts[row["name"]])]
        for row in document["doubts"]
        if row["doubtful"]
    ]
    columns = ["demonstration", "label", "rather", "log-odds of label", "text"]
    found: Page = [title("Labels in doubt"), table(columns, rows, left=["label", "rather", "text"])] if rows else []
    return [*found, remark(document["doubts_said"])] if document["doubts"] else []


def _short(text: str) -> str:
    """A text in one line, shortened."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_LETTERS else f"{line[: MOST_LETTERS - 1]}…"


# ---- the report ------------------------------------------------------------------------------------------


def prompt_insert(document: Document) -> Insert:
    """Additional sections of the report of a recommended prompt."""
    sections = {
        "prompt": ("Prompt", "The prompt to use", _chosen_section(document)),
        "held-out": ("Held out", "On queries that it was not chosen by", _held_out_section(document)),
        "demonstrations": ("Demonstrations", "Every demonstration", _demonstrations_section(document)),
        "clashes": ("Clashes", "Which clash, and which work together", _pairs_section(document)),
        "queries": ("Queries", "What helps each query", _queries_section(document)),
    }
    html = "".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{heading}</h2>{body}</section>'
        for name, (_, heading, body) in sections.items()
    )
    links = "".join(f'<a href="#{name}">{link}</a>' for name, (link, _, _) in sections.items())
    n = len(document["demonstrations"])
    return Insert(f"Which of {counted(n, 'demonstration')} to show", links, html)


def _chosen_section(document: Document) -> str:
    chosen = document["chosen"]
    said = f"{', '.join(chosen['demonstrations'])} ({chosen['order']})."
    return f'{intro(said)}<pre class="prompt">{_text(chosen["prompt"])}</pre>'


def _held_out_section(document: Document) -> str:
    each: list[Row] = [
        [row["text"], row["label"], number(row["loss"], 3), number(row["accuracy"], 2)] for row in document["held_out"]
    ]
    inside = table(["query", "label", "loss", document["score_name"]], each, left=["label"])
    summary = f"The chosen prompt on every one of these {len(each)} queries"
    return f"{html_table(_judged(document))}{_details(_text(summary), inside)}"


def _demonstrations_section(document: Document) -> str:
    chosen = set(document["chosen"]["demonstrations"])
    doubts = {row["name"]: row for row in document["doubts"] if row["doubtful"]}
    told, rows = "", []
    for row in document["demonstrations"]:
        other = doubts[row["name"]]["likelier"] if row["name"] in doubts else ""
        label = f"{row['label']} (or {other}?)" if other else row["label"]
        rows.append(row | {"name": ("● " if row["name"] in chosen else "") + row["name"], "label": label})
        said = f"{row['name']} may be mislabelled: it says {row['label']}, the model {other}: “{row['text']}”"
        told += f'<p class="warning">{_text(said)}</p>' if other else ""
    first = "The loss of prompts with it, less that of all: below 0 it helps. ● is in the chosen prompt."
    return intro(f"{first} {document['doubts_said']}") + told + html_table(_demonstrations(rows, None, str))


def _pairs_section(document: Document) -> str:
    pairs = [row for row in document["pairs"] if row["score"]]
    if not pairs:
        return intro(NO_PAIRS)
    texts = {row["name"]: row["text"] for row in document["demonstrations"]}
    first = "What two do to the loss beyond the sum of each: above 0 they clash, below 0 they work together."
    return intro(first) + html_table(_pairs(pairs, lambda name: f"{name}: {texts[name]}"))


def _queries_section(document: Document) -> str:
    shown = [
        _details(f"{_text(query['query'])} <b>{_text(query['label'])}</b>", _explained(query, str))
        for query in document["explained"][:MOST_QUERIES]
    ]
    more = len(document["explained"]) - MOST_QUERIES
    rest = f"<p>… and {more} more; --json has all of them.</p>" if more > 0 else ""
    return f"{intro(document['explained_said'])}{''.join(shown)}{rest}"


def intro(text: str) -> str:
    """A paragraph at the head of a section of the report."""
    return f'<p class="intro">{_text(text)}</p>'


def _details(summary: str, inside: Table) -> str:
    return f"<details><summary>{summary}</summary>{html_table(inside)}</details>"


def html_table(part: Table) -> str:
    """A table of the terminal; columns to the left hold text."""
    said = [" class=said" if column.justify == "left" else "" for column in part.columns]

    def line(kind: str, row: Any) -> str:
        cells = (f"<{kind}{how}>{_text(str(cell))}</{kind}>" for cell, how in zip(row, said, strict=True))
        return f"<tr>{''.join(cells)}</tr>"

    head = line("th", [column.header for column in part.columns])
    body = "".join(line("td", row) for row in zip(*(column.cells for column in part.columns), strict=True))
    return f'<div class="scroll"><table class="plain"><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _text(given: str) -> str:
    return escape(safe_text(given))
