"""The verb for fine-tuning: ``whence finetune MODEL_DIR --tasks data/*.jsonl --target val.jsonl -o run/``."""

# Typer reads annotations as objects, so this module has no "from __future__ import annotations".
import os
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from whence.cli import arguments as args
from whence.cli.shell import Answer, print_line
from whence.display.layout import Page, Row, remark, table, title
from whence.display.numbers import decimals, number, share, span
from whence.display.pages import attribution_page, model_page, selection_page
from whence.errors import InputError, counted

if TYPE_CHECKING:
    import pandas as pd

    from whence.display.report.page import Insert
    from whence.hf import Finetuned, Prepared
    from whence.hf.sources import Leak
    from whence.models.recipe import Recipe

training = partial(typer.Option, rich_help_panel="How runs are trained")
adapting = partial(typer.Option, rich_help_panel="The adapter")
writing = partial(typer.Option, rich_help_panel="How examples are written")
running = partial(typer.Option, rich_help_panel="Where it runs")
MOST_PAIRS = 5
SHORT = ("label", "completion")
FEWEST_STEPS, MOST_STEPS = 20, 300

ModelPlace = Annotated[
    Path,
    typer.Argument(metavar="MODEL_DIR", help="Folder of a causal language model or sequence classifier, or .gguf."),
]
Tasks = Annotated[list[Path], typer.Option("--tasks", "-t", metavar="FILE", help="Source, as JSONL. Repeatable.")]
Targets = Annotated[list[Path], typer.Option("--target", metavar="FILE", help="Target, as JSONL. Repeatable.")]
More = Annotated[list[Path] | None, typer.Argument(metavar="FILE", help="More sources, as a shell expands them.")]
RunBudget = Annotated[float, typer.Option(metavar="RUNS", help="Budget, in true runs, estimates included.", min=0)]
Tokens = Annotated[float | None, typer.Option(metavar="N", help="Choose sources of at most N tokens.", min=1)]
Weights = Annotated[bool, typer.Option("--weights", help="Choose a weight for each source.")]
Verify = Annotated[int, typer.Option(metavar="N", help="Train on what is chosen and on its rivals, N times.", min=0)]
Column = Annotated[
    str | None, typer.Option("--source-column", metavar="NAME", help="Field that names the source of an example.")
]
PerQuery = Annotated[bool, typer.Option("--per-query", help="Record the loss of every target example too.")]
STEPS = "Steps of a run (default: once over all sources, 20 to 300)."
Steps = Annotated[int | None, training(metavar="N", help=STEPS, min=1)]
Rate = Annotated[float, training("--lr", metavar="RATE", help="Learning rate.")]
BatchSize = Annotated[int, training(metavar="N", help="Examples in a batch.", min=1)]
Rank = Annotated[int, adapting(metavar="N", help="Rank.", min=1)]
Modules = Annotated[args.Names, adapting(metavar="NAME", help="Layers to adapt (default: all linear).")]
Layers = Annotated[int | None, adapting(metavar="N", help="Adapt the last N blocks only, which is faster.", min=1)]
Adapter = Annotated[Path | None, adapting(metavar="FOLDER", help="Adapter to continue.")]
TemplateText = Annotated[
    str | None, writing("--template", metavar="TEXT", help=r"Template with {text} and {label}; \n is a new line.")
]
MaxLength = Annotated[int | None, writing(metavar="N", help="Tokens of an example, at most (default: 1024).", min=2)]
CHECKPOINTING = "Use less memory and more time (default: where fewer than four examples fit)."
Checkpointing = Annotated[bool | None, running(help=CHECKPOINTING)]
Device = Annotated[str | None, running(metavar="NAME", help="Device, such as cuda or cpu.")]
PRECISION = "Precision of the frozen model (default: bfloat16 on a GPU, else float32)."
Dtype = Annotated[str | None, running(metavar="NAME", help=PRECISION)]
Jobs = Annotated[int, running("--jobs", "-j", metavar="N", help="Number of workers.")]
EngineName = Annotated[str | None, running("--engine", metavar="NAME", help="local, ray or inline.")]


def finetune(
    model: ModelPlace,
    tasks: Tasks,
    target: Targets,
    output: args.Folder,
    more_tasks: More = None,
    budget: RunBudget = 20,
    tokens: Tokens = None,
    weights: Weights = False,
    verify: Verify = 0,
    source_column: Column = None,
    per_query: PerQuery = False,
    steps: Steps = None,
    lr: Rate = 2e-4,
    batch_size: BatchSize = 16,
    rank: Rank = 8,
    modules: Modules = None,
    layers: Layers = None,
    adapter: Adapter = None,
    template: TemplateText = None,
    max_length: MaxLength = None,
    device: Device = None,
    dtype: Dtype = None,
    checkpointing: Checkpointing = None,
    jobs: Jobs = 1,
    engine: EngineName = None,
    top: args.Top = None,
    seed: args.Seed = 0,
) -> Answer:
    """Find the sources of text to fine-tune a language model on.

    A source is a JSONL file with an object per line: "messages", "prompt" and "completion", "text" and "label", or
    "text". Estimates of many subsets (GradEx along one run on all sources) are fused with true runs.
    The folder keeps everything: the same command resumes, and whence fit and report read FOLDER/true_runs.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # bars that transformers draws by itself
    import whence
    from whence import hf
    from whence.display.report import collect, write_page
    from whence.icl.language import import_transformers

    files = [*tasks, *(more_tasks or ())]
    if both := {file.resolve() for file in files} & {file.resolve() for file in target}:
        raise InputError(f"{min(both).name} is a source and a target: leave it out of one of them.")
    sources = hf.read_sources(files, column=source_column)
    targets = hf.read_sources(target)
    if len(sources) < 2:
        raise InputError("There must be at least two sources to choose from. Got one.")
    if tokens is not None and weights:
        raise InputError("Give {tokens} or {weights}, not both.", tokens=tokens, weights=True)
    if output.exists() and not output.is_dir():
        raise InputError(f"{output}: this is a file. Give a folder with -o, which is created if need be.")
    written = None if template is None else whence.icl.Template(template.replace("\\n", "\n"))
    recipe = _recipe(sum(map(len, sources)), steps, lr, batch_size)
    leaks = hf.find_leaks(sources, targets)
    hf.warn_of_leaks(leaks)
    talk = import_transformers().utils.logging
    talk.disable_progress_bar()
    talk.set_verbosity_error()  # of advice on packed GGUF weights, which these are not
    adapted = hf.load(
        model, device=device, dtype=dtype, rank=rank, modules=args.names_of(modules), layers=layers,
        adapter=adapter, checkpointing=checkpointing, seed=seed,
    )  # fmt: skip
    prepared = hf.prepare(adapted, sources, targets, template=written, max_length=max_length, per_query=per_query)
    short = all(each.format in SHORT for each in targets)  # answers that can be right or wrong
    how: dict[str, Any] = {"accuracy": short, "jobs": jobs, **({} if engine is None else {"engine": engine})}
    problem = prepared.problem()
    plan = hf.plan_of(problem, recipe, budget, weights=weights)
    print_line("note", f"This takes {hf.plan_in_words(plan)}.")
    print_line("note", f"A run has {recipe}. {prepared.adapted}.")
    found = hf.finetune(prepared, recipe, budget=budget, path=output, tokens=tokens, weights=weights, seed=seed, **how)
    page, document = _page(found, top), _document(found, prepared, leaks)
    tables = [_compared_page(found)]
    if verify:
        frame = hf.verify(found, prepared, recipe, seeds=verify, path=output / "verified", seed=seed, **how)
        tables.append(_verified_page(frame, verify))
        page += tables[-1]
        document["verified"] = frame.to_dict("records")
    place = output / "report.html"
    write_page(collect(found.model, seed=seed), place, _insert(found, tables, tokens))
    document["report"] = str(place)
    page.append(Text(f"Written to {place}: open it in a browser."))
    return Answer(document, page)


def _recipe(examples: int, steps: int | None, lr: float, batch_size: int) -> "Recipe":
    """By default one pass over all sources; the rate rises at first, then falls to 0."""
    import whence

    taken = steps or min(MOST_STEPS, max(FEWEST_STEPS, -(-examples // batch_size)))
    return whence.Recipe(
        steps=taken, lr=lr, batch_size=batch_size, schedule="linear", warmup=taken // 10, clip=1.0, weighting="sample"
    )


# ---- what is printed -------------------------------------------------------------------------------------


def _document(found: "Finetuned", prepared: "Prepared", leaks: "list[Leak]") -> dict[str, object]:
    chosen = found.chosen
    return {
        "plan": {**found.plan.prices, "true runs": found.plan.n_true},
        "sources": found.attribution.to_frame().to_dict("records"),
        "pairs": [] if found.pairs is None else found.pairs.to_frame(top=MOST_PAIRS).to_dict("records"),
        "tokens": prepared.tokens,
        "chosen": {
            "sources": dict(zip(chosen.tasks, chosen.subset[chosen.subset > 0].tolist(), strict=True)),
            "goal": found.goal,
            "tokens": sum(prepared.tokens[name] for name in chosen.tasks),
        },
        "before": found.before,
        "compared": found.compared().to_dict("records"),
        "leaks": [vars(leak) for leak in leaks],
        "cut": {rows.name: rows.n_cut for rows in (*prepared.tasks, *prepared.targets) if rows.n_cut},
        "quality": found.model.quality(),
        "trust": str(found.model).splitlines(),
    }


def _page(found: "Finetuned", top: int | None) -> Page:
    targets, chosen, model = found.model.target_names, found.chosen, found.model
    pairs = [] if found.pairs is None else attribution_page(found.pairs, [found.goal], top=MOST_PAIRS)
    return [
        *attribution_page(found.attribution, targets, top=top),
        *pairs,
        *selection_page(chosen, model.outcomes),
        *_compared_page(found),
        title("How far to trust it"),
        *model_page(model),
    ]


def _insert(found: "Finetuned", tables: list[Page], tokens: float | None) -> "Insert":
    """Sections of the report: what is chosen, and the tables of the terminal that it is compared in."""
    from whence.display.prompts import html_table, intro
    from whence.display.report.page import Insert

    limit = "" if tokens is None else f", of at most {tokens:,.0f} tokens"
    said = (
        f"For {found.goal}{limit}: {found.chosen.in_words} ({found.chosen.how}). "
        f"Before any training: {number(found.before, _places(found.compared()))}. "
        "The answer above is the best by its prediction, for a single target and without a limit of tokens."
    )
    parts = [(str(name).strip(), shown) for name, shown, *_ in tables if isinstance(shown, Table)]
    body = "".join(f"<h3>{escape(name)}</h3>{html_table(shown)}" for name, shown in parts)
    head = f'<section id="train" aria-labelledby="train-title"><h2 id="train-title">What to train on</h2>{intro(said)}'
    return Insert(links='<a href="#train">Train on</a>', sections=f"{head}{body}</section>")


def _compared_page(found: "Finetuned") -> Page:
    frame = found.compared()
    places = _places(frame)
    rows: list[Row] = [
        [row["way"], number(row["expected"], places), span(row["low"], row["high"], places),
         number(row["measured"], places), row["sources"]]
        for row in frame.to_dict("records")
    ]  # fmt: skip
    return [
        title(f"Compared with other ways to train: {found.goal} (lower is better)"),
        table(["train on", "expected", "90% interval", "measured", "sources"], rows, left=["sources"]),
        remark(f"before any training: {number(found.before, places)}"),
        remark("expected: of a new run; corrected for a subset that was picked as the best of many"),
    ]


def _places(frame: "pd.DataFrame") -> int:
    """Decimals for intervals of all widths: a single wide one must not reduce the digits of the others."""
    import numpy as np

    widths = (frame["high"] - frame["low"]).clip(lower=1e-12)
    return decimals(np.exp(np.log(widths).mean()) / 4)


def _verified_page(frame: "pd.DataFrame", seeds: int) -> Page:
    places = _places(frame)
    known = [name for name in frame.columns if name.endswith("accuracy")]
    rows: list[Row] = [
        [row["way"], number(row["expected"], places), span(row["low"], row["high"], places),
         number(row["true"], places), number(row["std"], places), *(share(row[name]) for name in known)]
        for row in frame.to_dict("records")
    ]  # fmt: skip
    columns = ["train on", "expected", "90% interval", "true", "std of runs", *known]
    return [title(f"Trained for real, {counted(seeds, 'run')} each"), table(columns, rows)]
