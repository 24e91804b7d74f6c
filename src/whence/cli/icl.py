"""The verb for prompts: ``whence icl MODEL_DIR --demos demos.jsonl --queries val.jsonl --shots 4``."""

# Typer reads annotations as objects, so this module has no "from __future__ import annotations".
import math
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from whence.cli import arguments as args
from whence.cli import tables
from whence.cli.console import (
    Page,
    Row,
    Terminal,
    both_ends,
    decimals,
    number,
    politely,
    remark,
    share,
    span,
    table,
    title,
    to_json,
    word,
)
from whence.errors import InputError, counted

if TYPE_CHECKING:
    import pandas as pd

    from whence.icl import AnchoredPrompts, Example, LanguageModel, Prompts, Template
    from whence.surrogates.choose import Model

HOW = "How prompts are written"
PRICE = "How much is run"
MOST_PAIRS, MOST_LETTERS, EXPLAINED = 5, 60, 2
FEWEST_QUERIES = 4
MOST_ORDERS = 24  # that are all run

ModelPlace = Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="Folder of a causal language model, or .gguf.")]
Demos = Annotated[Path, typer.Option(metavar="FILE", help='Candidates, a line each: {"text": …, "label": …}.')]
Queries = Annotated[Path, typer.Option(metavar="FILE", help="Labelled queries, written alike.")]
HeldOut = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Queries to judge by (else: every other of --queries).")
]
Shots = Annotated[int, typer.Option(metavar="N", help="Demonstrations in a prompt.", min=1)]
TemplateText = Annotated[
    str | None,
    typer.Option("--template", metavar="TEXT", help=r"With {text} and {label}; \n is a line.", rich_help_panel=HOW),
]
Instruction = Annotated[str, typer.Option(metavar="TEXT", help="Before the first.", rich_help_panel=HOW)]
Words = Annotated[args.Names, typer.Option(metavar="LABEL=WORD", help="What to say for a label.", rich_help_panel=HOW)]
TextField = Annotated[str, typer.Option(metavar="NAME", help="Field of the text.", rich_help_panel=HOW)]
LabelField = Annotated[str, typer.Option(metavar="NAME", help="Field of the label.", rich_help_panel=HOW)]
TruePrompts = Annotated[
    int, typer.Option("--true", metavar="N", help="Prompts to run; 0: estimates only.", min=0, rich_help_panel=PRICE)
]
Estimates = Annotated[int, typer.Option("-n", metavar="N", help="Prompts to estimate.", min=10, rich_help_panel=PRICE)]
AnchorCount = Annotated[
    int, typer.Option("--anchors", metavar="N", help="Passes per query that estimates are made of.", min=1,
                      rich_help_panel=PRICE)
]  # fmt: skip
Device = Annotated[str | None, typer.Option(metavar="NAME", help="Such as cuda or cpu.", rich_help_panel=PRICE)]
BatchSize = Annotated[int, typer.Option(metavar="N", help="Prompts at once.", min=1, rich_help_panel=PRICE)]
Folder = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Keep true prompts here, to go on with.")
]
ReportFile = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write all of it as a page.")]


@dataclass(frozen=True)
class Asked:
    """A language model, prompts with queries to choose by, and the same with queries to judge by."""

    language: "LanguageModel"
    prompts: "Prompts"
    judging: "Prompts"
    shots: int


def icl(
    model: ModelPlace,
    demos: Demos,
    queries: Queries,
    held_out: HeldOut = None,
    shots: Shots = 4,
    template: TemplateText = None,
    instruction: Instruction = "",
    words: Words = None,
    text_field: TextField = "text",
    label_field: LabelField = "label",
    true_prompts: TruePrompts = 30,
    n: Estimates = 500,
    anchors: AnchorCount = 8,
    device: Device = None,
    batch_size: BatchSize = 32,
    output: Folder = None,
    report: ReportFile = None,
    top: args.Top = None,
    seed: args.Seed = 0,
    as_json: args.Json = False,
) -> None:
    """Find the demonstrations that help a prompted model.

    Estimates of many prompts (a forward and a backward pass per query and anchor) are fused with a few prompts that are
    run. The prompt that is chosen is judged, beside random ones, on queries that it was not chosen by.
    """
    with politely():
        from whence.icl import Prompts

        with redirect_stdout(sys.stderr):
            if report is not None:
                from whence.display.report import check_place

                check_place(report)
            read = partial(_read, text=text_field, label=label_field)
            candidates, (asked_of, judges) = read(demos, "d"), _queries(read, queries, held_out)
            if len(candidates) <= shots:
                found = counted(len(candidates), "demonstration")
                raise InputError(f"{demos}: to choose {shots}, there must be more to choose from. Got {found}.")
            written = _template(template, instruction)
            language = _load(model, device, batch_size)
            prompts = Prompts.of(
                language.encode, candidates, asked_of, template=written, words=_words(words), start=language.start
            )  # fmt: skip
            asked = Asked(language, prompts, prompts.asking(judges), shots)
            # Before anything is run: to `measure`, a prompt that is too long is one failed row among others.
            language.check_length(max(prompts.longest(shots), asked.judging.longest(shots)), shots)
            fitted, estimate = _fitted(asked, n, true_prompts, anchors, output, seed)
            document, page = _answer(asked, fitted, estimate, top, seed)
            if report is not None:
                fitted.report(report, rule="inclusion", seed=seed)
                document["report"] = str(report)
                page.append(Text(f"Written to {report}: open it in a browser."))
        if as_json:
            print(to_json(document), flush=True)
        else:
            Terminal().show(page)


def _read(path: Path, prefix: str, *, text: str, label: str) -> "list[Example]":
    from whence.icl import read_examples

    return read_examples(path, text=text, label=label, prefix=prefix)


def _queries(
    read: "Callable[[Path, str], list[Example]]", queries: Path, held_out: Path | None
) -> "tuple[list[Example], list[Example]]":
    """Queries to choose by, and others to judge by."""
    found = read(queries, "q")
    if held_out is not None:
        return found, read(held_out, "h")
    if len(found) < FEWEST_QUERIES:
        raise InputError(
            f"{queries}: there must be at least {FEWEST_QUERIES} queries, to choose by some and to judge by others. "
            f"Got {len(found)}; or give others with --held-out."
        )
    return found[::2], found[1::2]


def _template(text: str | None, instruction: str) -> "Template":
    from whence.icl import Template
    from whence.icl.prompts import TEMPLATE

    return Template(TEMPLATE if text is None else text.replace("\\n", "\n"), instruction.replace("\\n", "\n"))


def _load(place: Path, device: str | None, batch_size: int) -> "LanguageModel":
    from whence.icl import LanguageModel
    from whence.icl.language import import_transformers

    import_transformers().utils.logging.disable_progress_bar()
    return LanguageModel.load(place, device=device, batch_size=batch_size)


def _words(given: args.Names) -> dict[str, str] | None:
    """Words of labels, as in ``0=negative,1=positive``."""
    words = {}
    for item in args.names_of(given):
        label, equals, spoken = item.partition("=")
        if not (label and equals and spoken):
            raise InputError(f"'{item}' must be a label and its word, such as 1=positive.")
        words[label.strip()] = spoken.strip()
    return words or None


def _fitted(
    asked: Asked, n: int, true_prompts: int, anchors: int, output: Path | None, seed: int
) -> "tuple[Model, AnchoredPrompts]":
    """A surrogate of estimates and true prompts, and what estimates."""
    import whence
    from whence.icl import AnchoredPrompts, Prompted

    n_demos = len(asked.prompts.demos)
    design, total = whence.FixedSize(asked.shots), math.comb(n_demos, asked.shots)
    estimate = AnchoredPrompts(asked.language, asked.prompts, anchors=anchors, seed=seed)
    cheap = whence.measure(estimate, design, min(n, total), seed=seed, progress=False)
    if not true_prompts:
        return whence.fit(cheap, seed=seed), estimate
    truth = Prompted(asked.language, asked.prompts)
    runs = whence.measure(truth, design, min(true_prompts, total), path=output, seed=seed + 1, progress=True)
    return whence.fit(runs, estimates=cheap, seed=seed), estimate


# ---- what is said ----------------------------------------------------------------------------------------


def _answer(
    asked: Asked, fitted: "Model", estimate: "AnchoredPrompts", top: int | None, seed: int
) -> tuple[dict[str, Any], Page]:
    import numpy as np

    import whence
    from whence.icl import Prompted, explain, judge

    prompts, shots = asked.prompts, asked.shots
    sequence, how = _chosen(asked, fitted, estimate, seed)
    top_ones = np.flatnonzero(whence.select(fitted, size=shots, by="attribution", seed=seed).subset)
    ways = {"chosen": sequence, "top by attribution": top_ones}
    judged = judge(Prompted(asked.language, asked.judging), ways, shots=shots, seed=seed).to_frame()
    ranked = whence.attribute(fitted, "inclusion", seed=seed).to_frame()
    pairs = _pairs(fitted, shots, seed)
    explained = [
        {"query": query.text, "label": query.label, "demonstrations": explain(estimate, shots, at)}
        for at, query in enumerate(prompts.queries)
    ]
    predicted, low, high = _predicted(fitted, sequence)
    document = {
        "demonstrations": [_named(row, prompts) for row in ranked.to_dict("records")],
        "pairs": pairs.to_dict("records"),
        "chosen": {
            "demonstrations": [prompts.names[k] for k in sequence],
            "order": how,
            "prompt": prompts.text(sequence),
            "predicted_loss": predicted,
            "low": low,
            "high": high,
        },
        "judged": judged.to_dict("records"),
        "held_out_queries": len(asked.judging.queries),
        "explained": explained,
        "queries": len(prompts.queries),
        "prompts_run": fitted.outcomes.n_runs if fitted.rungs else 0,
        "quality": fitted.quality(),
    }
    page = tables.model_page(fitted) + _ranked_page(ranked, prompts, top) + _pairs_page(pairs)
    page += [title(f"Chosen prompt ({how})"), Text(prompts.text(sequence).rstrip(), style="green")]
    page += [Text(""), *_judged_page(judged, len(asked.judging.queries)), *_explained_page(explained[:EXPLAINED])]
    return document, page


def _chosen(asked: Asked, fitted: "Model", estimate: "AnchoredPrompts", seed: int) -> tuple[Any, str]:
    """The prompt to use, and how it was found.

    All orders of a few demonstrations are run, since estimates of order are rough; and where a prompt that was run did
    better than the best of these, it is taken: the best prediction of many is often too good to be true.
    """
    import numpy as np

    import whence
    from whence.icl import Prompted, best_order

    def loss_of(outcome: Any) -> Any:
        return lambda sequences: outcome.values(sequences)["loss"].mean(1)

    listed = np.flatnonzero(whence.select(fitted, size=asked.shots, seed=seed).subset)
    if not fitted.rungs:
        return listed, "as listed"
    true_loss = loss_of(Prompted(asked.language, asked.prompts))
    if math.factorial(len(listed)) <= MOST_ORDERS:
        sequence, loss, how = best_order(true_loss, listed, seed=seed)
        how += ", by running them"
    else:
        pair = [listed, best_order(loss_of(estimate), listed, seed=seed)[0]]
        losses = true_loss(pair)
        sequence, loss = pair[int(losses.argmin())], float(losses.min())
        how = "as listed or as estimates say, whichever did better when run"
    runs = fitted.outcomes
    best = int(np.nanargmin(runs.values[:, 0]))
    if runs.values[best, 0] < loss:
        return np.flatnonzero(runs.subsets[best]), f"the best of {counted(runs.n_runs, 'prompt')} that were run"
    return sequence, how


def _named(row: dict[Any, Any], prompts: "Prompts") -> dict[str, Any]:
    demo = prompts.demos[prompts.names.index(row.pop("task"))]
    del row["target"]
    return {"name": demo.name, "text": demo.text, "label": demo.label, **row}


def _predicted(fitted: "Model", sequence: Any) -> tuple[float, float, float]:
    """Loss that the surrogate expects of a prompt, and a 90% interval."""
    import numpy as np
    from scipy.special import ndtri

    subset = np.zeros((1, len(fitted.task_names)))
    subset[0, sequence] = 1
    mean, std = (float(value.ravel()[0]) for value in fitted.predict(subset, return_std=True))
    return mean, mean - float(ndtri(0.95)) * std, mean + float(ndtri(0.95)) * std


def _pairs(fitted: "Model", shots: int, seed: int) -> "pd.DataFrame":
    """Pairs by what they do beyond the sum of each, in prompts of the size at hand."""
    from whence.answers.interactions import interactions
    from whence.answers.rules import Rule
    from whence.surrogates.mixture import Mixture

    mixture = Mixture.over([shots / fitted.outcomes.n_tasks], [1.0])
    prompts = Rule("prompts", "Prompts", "", "in prompts of this size", lambda subsets, keep_prob: mixture)
    return interactions(fitted, prompts, seed=seed).to_frame(top=MOST_PAIRS)


def _ranked_page(ranked: "pd.DataFrame", prompts: "Prompts", top: int | None) -> Page:
    places = decimals(ranked["std"] if ranked["std"].notna().any() else ranked["score"])
    rows: list[Row] = []
    for row in ranked.to_dict("records"):
        demo = prompts.demos[prompts.names.index(row["task"])]
        numbers = [number(row["score"], places, signed=True), span(row["low"], row["high"], places, signed=True)]
        rows.append([demo.name, *numbers, word(row["verdict"]), demo.label, _short(demo.text)])
    columns = ["demonstration", "score", "90% interval", "verdict", "label", "text"]
    return [
        title("Demonstrations: the loss of prompts with it, less that of all (lower is better)"),
        table(columns, both_ends(rows, top, how=tables.HOW), left=["verdict", "label", "text"]),
    ]


def _pairs_page(pairs: "pd.DataFrame") -> Page:
    heading = title("Strongest pairs")
    if not pairs["score"].any():
        return [heading, remark(tables.NO_PAIRS)]
    places = decimals(pairs["std"] if pairs["std"].notna().any() else pairs["score"])
    rows: list[Row] = [
        [f"{row['task_a']} + {row['task_b']}", number(row["score"], places, signed=True),
         span(row["low"], row["high"], places, signed=True), word(row["verdict"])]
        for row in pairs.to_dict("records")
    ]  # fmt: skip
    return [heading, table(["pair", "score", "90% interval", "verdict"], rows, left=["verdict"])]


def _judged_page(judged: "pd.DataFrame", n_queries: int) -> Page:
    rows: list[Row] = [
        [row["prompt"], number(row["loss"], 3), share(row["accuracy"]), number(row["more_loss"], 3, signed=True),
         span(row["low"], row["high"], 3, signed=True)]
        for row in judged.to_dict("records")
    ]  # fmt: skip
    return [
        title(f"Run on {n_queries} queries that nothing was chosen by"),
        table(["prompt", "loss", "accuracy", "more loss", "95% interval"], rows),
        remark("more loss: than the chosen prompt; the interval is over queries"),
    ]


def _explained_page(explained: list[dict[str, Any]]) -> Page:
    page: Page = []
    for each in explained:
        rows: list[Row] = [
            [demo["demo"], number(demo["score"], 2, signed=True), demo["label"], _short(demo["text"])]
            for demo in each["demonstrations"]
        ]
        page.append(title(f"For the query “{_short(each['query'])}” ({each['label']})"))
        page.append(table(["demonstration", "score", "label", "text"], rows, left=["label", "text"]))
    said = "score: change of the log-odds of the right label, in the place of an average demonstration (estimated)"
    return [*page, remark(said)]


def _short(text: str) -> str:
    """A text in one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_LETTERS else f"{line[: MOST_LETTERS - 1]}…"
