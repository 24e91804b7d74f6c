"""Verbs that ask a table of runs: each is a function from runs and its options to an `Answer`."""

# Typer reads annotations as objects, so this module has no "from __future__ import annotations".
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

import whence
from whence.cli import arguments as args
from whence.cli.shell import Answer
from whence.display import pages
from whence.display.layout import Page, direction, remark, title
from whence.errors import InputError, counted

if TYPE_CHECKING:
    import pandas as pd

    from whence.outcomes import Outcomes
    from whence.surrogates.model import Model


MEAN = "mean"  # of all targets, where none has this name

# ---- what several verbs share ----------------------------------------------------------------------------


def _about(model: "Model") -> dict[str, Any]:
    """What every document says of the runs and of the model."""
    from whence.surrogates.trust import typical_slopes

    chosen = {model.target_names[t]: part.name for part in model.parts for t in part.targets}
    trust = {"slopes": typical_slopes(model)} if model.rungs else {}
    return {
        "runs": model.outcomes.n_runs,
        "tasks": model.task_names,
        "targets": {name: direction(up) for name, up in zip(model.target_names, model.maximize, strict=True)},
        "surrogates": {name: chosen[name] for name in model.target_names},
        "quality": model.quality(),
        **trust,
    }


def _answer(model: "Model", document: dict[str, Any], page: Page) -> Answer:
    return Answer(_about(model) | document, pages.model_page(model) + page)


def _targets(runs: "Outcomes", given: args.Names) -> tuple[str, ...]:
    """Targets asked for, or all."""
    wanted = args.names_of(given)
    return runs.targets(wanted).target_names if wanted else runs.target_names


def _records(frame: "pd.DataFrame", targets: tuple[str, ...]) -> list[dict[Any, Any]]:
    """Rows of some targets, for a document."""
    return frame[frame["target"].isin(targets)].drop(columns="name", errors="ignore").to_dict("records")


# ---- verbs -----------------------------------------------------------------------------------------------


def fit(
    asked: args.ToFit,
    *,
    save: args.Save = None,
    seed: args.Seed = 0,
) -> Answer:
    """Fit a surrogate, and show how good it is."""
    from whence.answers.quality import target_scores, trials

    model = asked.model(seed)
    if save is not None:
        model.save(save)
    tried, per_target = trials(model), target_scores(model)
    page = pages.trials_page(tried) + pages.target_scores_page(per_target)
    document = {"trials": tried.to_dict("records"), "per_target": per_target.to_dict("records")}
    if save is not None:
        page.append(Text(f"Saved to {save}: use it with --model {save}."))
    return _answer(model, document, page)


def attribute(
    asked: args.ToFit,
    *,
    rule: args.Rule = None,
    keep_prob: args.KeepProb = None,
    target: args.Target = None,
    top: args.Top = None,
    seed: args.Seed = 0,
) -> Answer:
    """Show which tasks help, which hurt, and which are unclear."""
    targets = _targets(asked.runs, target)
    args.check_rule(rule, asked.runs)
    model = asked.model(seed)
    found = whence.attribute(model, rule, keep_prob=keep_prob, seed=seed)
    document = {"rule": found.rule.name, "how": found.how, "scores": _records(found.to_frame(), targets)}
    return _answer(model, document, pages.attribution_page(found, targets, top=top))


def interactions(
    asked: args.ToFit,
    *,
    rule: args.PairRule = None,
    target: args.Target = None,
    top: args.TopPairs = 10,
    seed: args.Seed = 0,
) -> Answer:
    """List pairs that work together, or against each other."""
    targets = _targets(asked.runs, target)
    args.check_rule(rule, asked.runs, pairs=True)
    model = asked.model(seed)
    found = whence.interactions(model, rule, seed=seed)
    document = {"rule": found.rule.name, "how": found.how, "pairs": _records(found.to_frame(top=top), targets)}
    return _answer(model, document, pages.attribution_page(found, targets, top=top))


def predict(
    asked: args.ToFit,
    *,
    subset: args.Subset = None,
    subsets: args.Subsets = None,
    target: args.Target = None,
    seed: args.Seed = 0,
) -> Answer:
    """Predict the outcome of any subset, with 90% intervals."""
    import numpy as np

    from whence.outcomes.cells import read_subsets

    runs = asked.runs
    rows = [args.subset_of(text, runs) for text in subset or ()]
    rows += [] if subsets is None else list(read_subsets(subsets, runs.task_names).to_numpy())
    if not rows:
        raise InputError("There is nothing to predict. Give --subset a,c (repeatable) or --subsets FILE.")
    targets = _targets(runs, target)
    model = asked.model(seed)
    frame = whence.predictions(model, np.array(rows)).to_frame()
    page = pages.predictions_page(frame, runs, targets, column="subset")
    return _answer(model, {"predictions": _records(frame, targets)}, page)


def select(
    asked: args.ToFit,
    *,
    size: args.Size = None,
    max_size: args.MaxSize = None,
    include: args.Include = None,
    exclude: args.Exclude = None,
    cost: args.Cost = None,
    budget: args.Budget = None,
    bounds: args.Bounds = None,
    total: args.Total = None,
    available: args.Available = None,
    weights: args.Weights = None,
    worst: args.Worst = False,
    pareto: args.Pareto = False,
    risk: args.Risk = 0.0,
    by: args.By = args.SelectBy.prediction,
    extrapolate: args.Extrapolate = False,
    target: args.Goal = None,
    seed: args.Seed = 0,
) -> Answer:
    """Find the best subset of tasks under constraints."""
    from whence.answers.prediction import predicted_at

    runs, goal = asked.runs, args.numbers_of(weights)
    costs, limits, amounts = args.numbers_of(cost), args.bounds_of(bounds), args.numbers_of(available)
    tasks = {*args.names_of(include), *args.names_of(exclude), *costs, *limits, *amounts}
    runs.subset(dict.fromkeys(tasks, 1.0))  # unknown names, before the fit
    target = None if target == MEAN and MEAN not in runs.target_names else target
    _targets(runs, [target] if target else list(goal))
    model = asked.model(seed)
    options: dict[str, Any] = {
        "size": size,
        "max_size": max_size,
        "costs": costs or None,
        "budget": budget,
        "include": args.names_of(include),
        "exclude": args.names_of(exclude),
        "bounds": limits or None,
        "total": None if total is None else args.numbers_of([f"total={total}"])["total"],
        "available": amounts or None,
        "risk": risk,
        "extrapolate": extrapolate,
        "seed": seed,
    }
    if pareto:
        front = whence.pareto(model, targets=list(goal) or None, **options)
        return _answer(model, {"front": front.to_frame().to_dict("records"), "how": front.how}, pages.front_page(front))
    found = whence.select(model, target=target, weights=goal or None, worst=worst, by=by.value, **options)
    frame = predicted_at(model, found.subset[None], found.predicted[None], found.std[None]).to_frame()
    frame = frame.assign(expected=found.expected, low=found.low, high=found.high)
    document = {
        "selected": frame["subset"].iloc[0],
        "objective": found.objective,
        "value": found.value,
        "best_run": found.best_run,
        "how": found.how,
        "predictions": _records(frame.drop(columns="subset"), runs.target_names),
    }
    return _answer(model, document, pages.selection_page(found, model.outcomes, total=options["total"]))


def suggest(
    asked: args.ToFit,
    *,
    n: args.Count = 10,
    by: args.Aim = args.SuggestBy.variance,
    target: args.Goal = None,
    output: args.Output = None,
    seed: args.Seed = 0,
) -> Answer:
    """List the next subsets worth measuring."""
    import numpy as np

    from whence.answers.prediction import predicted_at

    runs = asked.runs
    target = None if target == MEAN and MEAN not in runs.target_names else target
    targets = _targets(runs, [target] if target else None)
    model = asked.model(seed)
    found = whence.suggest(model, n, by=by.value, target=target, seed=seed)
    frame = predicted_at(model, found.subsets, found.predicted, found.std).to_frame().drop(columns="measured")
    why = {"variance": "to learn most about all subsets", "improvement": "to beat the best run so far"}
    page: Page = [title(f"{counted(n, 'run')} to make next, {why[by.value]}")]
    page += pages.predictions_page(frame, runs, targets, column="run")
    if output is not None:
        empty = np.full((n, runs.n_targets), np.nan)
        unit = np.median(runs.subsets.sum(1)) if runs.is_mixture else 1.0  # shares become percent if the file has those
        replace(runs, subsets=(unit * found.subsets).round(6), values=empty).write(output)
        page.append(Text(f"Written to {output}; its outcome columns are empty, for you to fill in."))
    return _answer(model, {"by": found.by, "suggestions": _records(frame, targets)}, page)


def report(
    asked: args.ToFit,
    *,
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
    model = asked.model(seed)
    found = collect(model, rule=rule, weights=goal or None, seed=seed)
    write_page(found, output)
    size = output.stat().st_size
    answers = {
        target["name"]: ["".join(text for text, _ in target["answer"][kind]) for kind in ("subset", "tasks")]
        for target in found["targets"]
    }
    page: Page = [*pages.model_page(model), Text("")]
    page += [Text(sentence) for sentence in next(iter(answers.values()))]
    if len(answers) > 1:
        page.append(remark(f"and {counted(len(answers) - 1, 'more target')} in the page."))
    page += [Text(""), Text(f"Written to {output} ({size / 1000:.0f} kB): open it in a browser.")]
    return Answer({"report": str(output), "bytes": size, "answers": answers}, page)
