"""The verb that shows everything at once: ``whence report runs.csv --outcome loss -o report.html``."""

# Typer reads annotations as objects, so this module has no "from __future__ import annotations".
from pathlib import Path

from rich.text import Text

from whence.cli import arguments as args
from whence.cli.shell import Answer
from whence.display.layout import Page, remark
from whence.display.pages import model_page
from whence.errors import counted


def report(
    asked: args.Asked,
    *,
    estimates: args.Estimates = None,
    features: args.Features = None,
    output: args.PageFile = Path("report.html"),
    rule: args.Rule = None,
    weights: args.Weights = None,
    seed: args.Seed = 0,
) -> Answer:
    """Write one HTML page with every answer, to read and to share."""
    from whence.display.report import check_place, collect, write_page
    from whence.outcomes.checks import places

    runs = asked.runs
    check_place(output)
    args.check_rule(rule, runs)
    goal = args.numbers_of(weights)
    places(goal, runs.target_names, "target")  # unknown names, before the fit
    model = asked.model(estimates, seed, features)
    found = collect(model, rule=rule, weights=goal or None, seed=seed)
    write_page(found, output)
    size = output.stat().st_size
    answers = {
        target["name"]: ["".join(text for text, _ in target["answer"][kind]) for kind in ("subset", "tasks")]
        for target in found["targets"]
    }
    page: Page = [*model_page(model), Text("")]
    page += [Text(sentence) for sentence in next(iter(answers.values()))]
    if len(answers) > 1:
        page.append(remark(f"and {counted(len(answers) - 1, 'more target')} in the page."))
    page += [Text(""), Text(f"Written to {output} ({size / 1000:.0f} kB): open it in a browser.")]
    return Answer({"report": str(output), "bytes": size, "answers": answers}, page)
