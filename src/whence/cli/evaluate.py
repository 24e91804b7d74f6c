"""The verb that says how far to trust a table of runs: against simpler methods, true effects, and noise."""

# Typer reads annotations as objects, so this module has no "from __future__ import annotations".
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

import whence
from whence.cli import arguments as args
from whence.cli.shell import Answer, warn
from whence.display.layout import Page, Row, both_ends, remark, table, title
from whence.display.numbers import decimals, number, share
from whence.display.pages import comparison_page
from whence.errors import DataWarning, InputError

if TYPE_CHECKING:
    from whence.evaluation import Ceiling, Comparison, RunsNeeded
    from whence.outcomes import Outcomes
    from whence.surrogates.kernels import Array
    from whence.surrogates.peers import Method


def evaluate(
    asked: args.Runs,
    *,
    estimates: args.Estimates = None,
    methods: args.Methods = None,
    scores: args.ScoresFiles = None,
    splits: args.Splits = 5,
    train_fraction: args.TrainFraction = 0.7,
    loo: args.LeaveOneOutRuns = None,
    effect: args.Effect = None,
    seed: args.Seed = 0,
) -> Answer:
    """Compare with simpler methods on held-out runs."""
    from whence.evaluation import noise_ceiling, repeated_splits, runs_needed, scored
    from whence.progress import track
    from whence.surrogates.peers import STANDARD, peers
    from whence.surrogates.rungs import learn_rungs

    runs = asked.runs.on_simplex()
    truth = None if loo is None else _leave_one_out(loo, runs)
    needed = None if effect is None else runs_needed(runs, effect)
    rivals = peers(args.names_of(methods) or STANDARD, seed)
    cheap = args.read_estimates(estimates, runs)
    # Learned once: splits are of the true runs, and estimates are the same for all of them.
    rungs = None if cheap is None else {rung.name: rung.model for rung in learn_rungs(cheap, runs, seed=seed)}
    rows: dict[str, Method] = {"whence": lambda train: whence.fit(train, estimates=rungs, seed=seed), **rivals}
    if rungs is not None:
        rows["estimates"] = lambda train: whence.fit(train.rows([]), estimates=rungs)
        rows["true runs"] = lambda train: whence.fit(train, seed=seed)
    given = args.read_scores(scores, runs)
    if taken := [name for name in given if name in rows]:
        raise InputError(
            f"The scores cannot be called '{taken[0]}', which is another row of the table: rename the file."
        )
    rows |= {name: scored(coef) for name, coef in given.items()}
    for sentence in runs.concerns():
        warn(sentence)
    steps = track(range(splits * len(rows) + 1), "Evaluating")
    next(steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # of parts of the runs, when all have been spoken of
        found = repeated_splits(
            runs,
            rows,
            n_splits=splits,
            train_fraction=train_fraction,
            seed=seed,
            progress=lambda done, total: next(steps),
        )
    next(steps, None)
    failed = [message for method, _, message in found.failures if method == "whence"]
    if len(failed) == splits:
        raise InputError(failed[0].removeprefix("InputError: "))
    ceiling = noise_ceiling(runs, seed=seed)
    page: Page = [Text(repr(runs)), *comparison_page(found, ceiling, runs.n_targets)]
    document = _document(found, ceiling)
    if truth is not None:
        rules = _rule_correlations(runs, truth, given, seed)
        document["leave_one_out"] = rules
        page += _rules_page(rules, runs.n_targets)
    if needed is not None:
        document["runs_needed"] = needed.to_frame().to_dict("records")
        page += _needed_page(needed)
    return Answer(document, page)


def _document(found: "Comparison", ceiling: "Ceiling") -> dict[str, object]:
    """Return scores, paired differences of the first method from the others, and the noise ceiling."""
    first, *others = found.methods
    scores = found.to_frame().reset_index().to_dict("records")
    gaps = {
        metric: {other: dict(zip(("mean", "low", "high"), found.difference(first, other, metric=metric), strict=True))
                 for other in others}
        for metric in ("lds", "residual_error")
    }  # fmt: skip
    return {
        "scores": scores,
        "differences": {"of": first, "level": 0.95, **gaps},
        "noise_ceiling": {
            "mean": ceiling.mean,
            "low": ceiling.mean_low,
            "high": ceiling.mean_high,
            "reason": ceiling.reason,
        },
        "splits": found.lds.shape[1],
        "subsets_to_learn_from": found.n_train,
        "subsets_to_judge_by": found.n_test,
        "targets_undefined_per_split": found.n_undefined,
    }


# ---- true leave-one-out effects --------------------------------------------------------------------------


def _leave_one_out(path: Path, runs: "Outcomes") -> "Outcomes":
    """Runs of the full set and of all that lack one task, with the tasks and targets of the table."""
    from whence.answers.attribution import refuse_mixtures
    from whence.evaluation import loo_correlation
    from whence.surrogates.model import Model

    refuse_mixtures(Model(runs, ()), "loo")
    truth = whence.read_outcomes(path, runs.target_names, tasks=runs.task_names)
    loo_correlation([[0.0] * runs.n_targets] * runs.n_tasks, truth)  # what it lacks, before the fits cost their time
    return truth


def _rule_correlations(
    runs: "Outcomes", truth: "Outcomes", given: "dict[str, Array]", seed: int
) -> list[dict[str, Any]]:
    """Correlation over tasks, and then the mean over targets, of every rule and of given scores with true changes."""
    from whence.answers.rules import RULES
    from whence.evaluation import loo_correlation

    model = whence.fit(runs, seed=seed)
    linear = whence.fit(runs, surrogate=whence.AdditiveSurrogate(), seed=seed)
    attributed = [whence.attribute(model, rule, seed=seed) for rule in RULES.values() if not rule.mixtures]
    scores = {found.rule.heading: found.scores for found in attributed}
    scores["tuned linear"] = whence.attribute(linear, "banzhaf").scores
    scores |= given
    kinds = ("pearson", "spearman")
    return [
        {"rule": name, **{kind: loo_correlation(found, truth, kind=kind).mean for kind in kinds}}
        for name, found in scores.items()
    ]


def _rules_page(rules: list[dict[str, Any]], n_targets: int) -> Page:
    rows: list[Row] = [[row["rule"], number(row["pearson"]), number(row["spearman"])] for row in rules]
    over = f", mean over {n_targets} targets" if n_targets > 1 else ""
    return [
        title(f"Attribution compared with true leave-one-out changes{over}"),
        table(["rule", "correlation", "rank correlation"], rows),
        remark("correlation: over tasks, of scores with the true change when the task is left out"),
    ]


# ---- noise -----------------------------------------------------------------------------------------------


def _needed_page(needed: "RunsNeeded") -> Page:
    rows: list[Row] = []
    for row in needed.to_frame().to_dict("records"):
        places = decimals(row["effect"]) + 1
        cells = [number(row[name], places) for name in ("effect", "noise_std", "visible")]
        counts = ["> 10 million" if math.isinf(row[name]) else number(row[name], 0) for name in ("seeds", "subsets")]
        rows.append([str(row["target"]), cells[0], cells[1], *counts, cells[2]])
    columns = ["target", "effect", "std of a run", "seeds", "subsets", "visible now"]
    page: Page = [
        title(
            f"Runs to see an effect: its {share(needed.level)} interval excludes 0 in {share(needed.power)} of cases"
        ),
        table(columns, both_ends(rows, how="--json")),
        remark("seeds: runs of each of two subsets, to show that they differ by the effect"),
        remark("subsets: like the measured ones, to show that a task has the effect on average, in an additive model"),
        remark("visible now: the smallest effect of a task that the subsets so far can show"),
    ]
    if all(math.isnan(value) for value in needed.noise_std):
        page.append(remark("The std of a run is unknown: no subset was measured more than once."))
    return page
