"""The verb for prompts: ``whence icl MODEL_DIR --demos demos.jsonl --queries val.jsonl --shots 4``."""

# Typer reads annotations as objects, so this module has no "from __future__ import annotations".
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from whence.cli import arguments as args
from whence.cli.shell import Answer
from whence.errors import InputError, counted

if TYPE_CHECKING:
    from whence.icl import Example

writing = partial(typer.Option, rich_help_panel="How prompts are written")
price = partial(typer.Option, rich_help_panel="How much is run")
FEWEST_QUERIES = 4

ModelPlace = Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="Folder of a causal language model, or .gguf.")]
Demos = Annotated[
    Path, typer.Option(metavar="FILE", help='Candidates with "text" and "label": JSON Lines, JSON or CSV.')
]
Queries = Annotated[Path, typer.Option(metavar="FILE", help="Labelled queries, in the same format.")]
HeldOut = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Queries to judge by (default: every second of --queries).")
]
Shots = Annotated[int, typer.Option(metavar="N", help="Number of demonstrations in a prompt.", min=1)]
TemplateText = Annotated[
    str | None, writing("--template", metavar="TEXT", help=r"Template with {text} and {label}; \n is a new line.")
]
Instruction = Annotated[str, writing(metavar="TEXT", help="Text before the first demonstration.")]
Chat = Annotated[bool, writing("--chat", help="Write prompts as conversations, by the model's chat template.")]
Open = Annotated[bool, writing("--open", help="Labels are answers in free text, not classes.")]
SCORER = "Function of (generated, answer) that scores open answers (default: exact match)."
ScorerName = Annotated[str | None, writing("--scorer", metavar="FILE.py:NAME", help=SCORER)]
Words = Annotated[args.Names, writing(metavar="LABEL=WORD", help="Word that stands for a label.")]
TEXT_FIELD = "Field that holds the text (default: text, question, input, …)."
TextField = Annotated[str | None, writing(metavar="NAME", help=TEXT_FIELD)]
LABEL_FIELD = "Field that holds the label (default: label, answer, output, …)."
LabelField = Annotated[str | None, writing(metavar="NAME", help=LABEL_FIELD)]
TruePrompts = Annotated[
    int, price("--true", metavar="N", help="Number of prompts to run; 0 for estimates only.", min=0)
]
Estimates = Annotated[int, price("-n", metavar="N", help="Number of prompts to estimate.", min=10)]
ANCHORS = "Number of anchor prompts, each a forward and a backward pass per query."
AnchorCount = Annotated[int, price("--anchors", metavar="N", help=ANCHORS, min=1)]
Device = Annotated[str | None, price(metavar="NAME", help="Device, such as cuda or cpu.")]
BatchSize = Annotated[int, price(metavar="N", help="Number of prompts in a batch.", min=1)]
ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write an HTML page with every answer.")
]


def icl(
    model: ModelPlace,
    demos: Demos,
    queries: Queries,
    held_out: HeldOut = None,
    shots: Shots = 4,
    template: TemplateText = None,
    instruction: Instruction = "",
    words: Words = None,
    chat: Chat = False,
    open_answers: Open = False,
    scorer: ScorerName = None,
    text_field: TextField = None,
    label_field: LabelField = None,
    true_prompts: TruePrompts = 30,
    n: Estimates = 500,
    anchors: AnchorCount = 8,
    device: Device = None,
    batch_size: BatchSize = 32,
    output: args.FolderIfAny = None,
    report: ReportFile = None,
    top: args.Top = None,
    seed: args.Seed = 0,
) -> Answer:
    """Find the demonstrations that help a prompted model.

    Estimates of many prompts (a forward and a backward pass per query and anchor) are fused with a few prompts that are
    run. The chosen prompt is compared with random ones on queries that it was not chosen by.
    """
    import whence

    icl = whence.icl  # first, since it says what to install if PyTorch is missing
    from whence.display.prompts import prompt_document, prompt_insert, prompt_page
    from whence.display.report import check_place, collect, write_page
    from whence.icl.prompts import TEMPLATE
    from whence.measuring.functions import load_function

    if report is not None:
        check_place(report)
    read = partial(icl.read_examples, text=text_field, label=label_field)
    candidates, (asked, judges) = read(demos, prefix="d"), _queries(read, queries, held_out)
    if len(candidates) <= shots:
        given = counted(len(candidates), "demonstration")
        raise InputError(f"{demos}: to choose {shots}, there must be more to choose from. Got {given}.")
    if scorer is not None and not open_answers:
        raise InputError("A scorer judges open answers: give --open too.")
    judge_by: Any = None if scorer is None else load_function(scorer)[0]
    _refuse_answers_as_labels([*candidates, *asked], words, open_answers=open_answers)
    icl.import_transformers().utils.logging.disable_progress_bar()
    language = icl.LanguageModel.load(model, device=device, batch_size=batch_size)
    if chat:
        written = icl.chat_template(language.tokenizer, _lines(template or "{text}"), _lines(instruction))
    else:
        written = icl.Template(TEMPLATE if template is None else _lines(template), _lines(instruction))
    opened = written.instruction.startswith(language.tokenizer.bos_token or "\0")
    prompts = icl.Prompts.of(
        language.encode, candidates, asked, template=written,
        words=args.pairs_of(words, "a label and its word, such as 1=positive") or None,
        start=[] if opened else language.start, open=open_answers,
    )  # fmt: skip
    found = icl.recommend(
        language,
        prompts,
        judges,
        shots=shots,
        n_true=true_prompts,
        n_estimates=n,
        anchors=anchors,
        path=output,
        scorer=judge_by,
        seed=seed,
    )
    document = prompt_document(found)
    page = prompt_page(found, document, top)
    if report is not None:
        write_page(collect(found.model, rule="inclusion", seed=seed), report, prompt_insert(document))
        document["report"] = str(report)
        page.append(Text(f"Written to {report}: open it in a browser."))
    return Answer(document, page)


def _queries(
    read: "Callable[..., list[Example]]", queries: Path, held_out: Path | None
) -> "tuple[list[Example], list[Example]]":
    """Queries to choose by, and others to judge by."""
    found = read(queries, prefix="q")
    if held_out is not None:
        return found, read(held_out, prefix="h")
    if len(found) < FEWEST_QUERIES:
        raise InputError(
            f"{queries}: there must be at least {FEWEST_QUERIES} queries, to choose by some and to judge by others. "
            f"Got {len(found)}; or give others with --held-out."
        )
    return found[::2], found[1::2]


def _lines(text: str) -> str:
    """Text with line breaks, as the command line has them."""
    return text.replace("\\n", "\n")


def _refuse_answers_as_labels(examples: "list[Example]", words: args.Names, *, open_answers: bool) -> None:
    """Refuse labels that are not classes: nearly every example has its own."""
    labels = {example.label for example in examples}
    if not open_answers and words is None and len(examples) > 8 and len(labels) > len(examples) / 2:
        raise InputError(
            f"There are {len(labels)} different labels in {len(examples)} examples. If they are answers in free text, "
            "give --open; if they are classes, there must be more examples of each."
        )
