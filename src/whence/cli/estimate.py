"""The verb that estimates many subsets: ``whence estimate exp.py:problem --method merge -n 500 -o cheap/``."""

# Typer reads annotations as objects, so this module has no "from __future__ import annotations".
import shlex
import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from whence.cli import arguments as args
from whence.cli.measure import design_of, ledger_document
from whence.cli.shell import Answer
from whence.display.layout import Page, Row, command, remark, table, title
from whence.errors import InputError
from whence.ladder.advice import default_mix, recommend, workload
from whence.ladder.methods import METHODS, Setup, make_estimators

if TYPE_CHECKING:
    from whence.ladder.advice import Workload
    from whence.ladder.probes import Price
    from whence.measuring.outcome_fn import Measurable, OutcomeFn
    from whence.outcomes.ledger import Ledger

MethodName = Enum("MethodName", {name.replace("-", "_"): name for name in METHODS})  # type: ignore[misc]
DESIGN, SUBSETS = "bernoulli:0.5", 500
BUDGETS = (5, 10, 20, 40)

ProblemFunction = Annotated[str, typer.Argument(metavar="FILE.py:NAME", help="Function that returns the problem.")]
Methods = Annotated[
    list[MethodName] | None,
    typer.Option("--method", "-m", help="Method (default: compare what each costs). Repeatable."),
]
DesignText = Annotated[
    str | None,
    typer.Option(
        "--design", "-d", metavar="DESIGN",
        help="bernoulli:P, fixed:SIZE, balanced:SIZE, loo, lto, all, or a file of subsets (default: bernoulli:0.5).",
    ),
]  # fmt: skip
Subsets = Annotated[
    int | None, typer.Option("-n", metavar="N", help=f"Number of subsets (default: {SUBSETS}, or all).", min=1)
]
TrueRuns = Annotated[
    Path | None, typer.Option("--truth", metavar="FILE", help="Tune and check the estimator with a few true runs.")
]
JointRun = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Keep the joint run of scores here, for other commands too (default: beside FOLDER)."
    ),
]
RunBudget = Annotated[
    float | None, typer.Option(metavar="RUNS", help="Show what to do with this budget, in true runs.", min=0)
]


def estimate(
    problem: ProblemFunction,
    method: Methods = None,
    design: DesignText = None,
    n: Subsets = None,
    output: args.FolderIfAny = None,
    joint_run: JointRun = None,
    truth: TrueRuns = None,
    budget: RunBudget = None,
    seed: args.Seed = 0,
    accept_change: args.AcceptChange = False,
) -> Answer:
    """Estimate many subsets of a PyTorch model without training on each.

    The function returns a whence.Problem(model, tasks, targets). For methods that train, it returns (problem, recipe)
    with a whence.Recipe; options of methods come third: (problem, recipe, {"gradex": {"rank": 1024}}).

    Costs below are in forward passes of one example (a backward pass counts as two), for N examples of K tasks, Q
    queries, C outputs and runs of R examples:

    one-step: 3 N and a search for the step length, then Q + K per subset. For short fine-tuning.

    gradex: (N + Q) (1 + C), then a small solve per subset. For models nearly linear in what is trained.

    gradex-along: one run (3 R), and 6 r (N + Q) for r directions at three points of it. For few tasks and long runs.

    influence: half of a run on all tasks (1.5 R), and 9 N + 3 Q; then sums. Like the next six it gives one score per
    task, to be fused with a few true runs. Try it first.

    influence-along: one run (3 R), and 9 N + 3 Q at four points of it. More accurate; for budgets of 8 runs or more.

    trak: 1.5 R, and 3 N + 3 Q; then sums. Needs less memory: for large models.

    trak-along: 3 R, and 3 N + 3 Q at four points.

    tracin: 3 R, and 12 (N + Q) at four points; then sums. For plain SGD.

    source: 3 R, and products with the curvature at two points. For SGD that is stopped early.

    bif: 3 R, and thousands of passes over all examples. For small models at a minimum.

    merge: K runs (3 R K), then Q + K per subset. For fine-tuning that stays near its start. For longer runs, options
    {"merge": {"merge": "outputs"}} merge answers instead of weights: Q K, then sums.

    retrain: 3 R + Q per subset. True runs, exact up to the noise of a seed.

    Without --method, each method is timed here for a few seconds, and one is recommended by its cost and its measured
    accuracy. --method can be repeated: scores then share one joint run, and each method has a folder in FOLDER. With a
    few true runs (--truth), the estimator is tuned and says whether to trust it. Then fuse both:
    whence fit true/ --estimates cheap/
    """
    given = _problem(problem)
    if not method:
        return _prices(problem, given, n, budget)
    wanted = list(dict.fromkeys(each.value for each in method))
    if output is None:
        raise InputError(f"Say where the estimates go, as in -o {_folder(wanted[0])}/.")
    folders = {name: output / name if len(wanted) > 1 else output for name in wanted}
    options = {name: _options(name, folder, seed) for name, folder in folders.items()}
    run = joint_run or output.with_name(f"{output.name}-run")
    makers = make_estimators(given, options, run=run)
    answers = {
        folders[name]: _estimates(name, maker, design or DESIGN, n, folders[name], truth, seed, accept_change)
        for name, maker in makers.items()
    }
    return _together(answers)


def _problem(text: str) -> Setup:
    """What the user's function returns."""
    from whence.errors import brief
    from whence.measuring.functions import load_function

    found = load_function(text)[0]
    function = getattr(found, "function", found)
    try:
        return Setup.of(function() if callable(function) else function)
    except InputError as error:
        raise error.at(text) from error
    except Exception as error:
        raise InputError(f"{text}: cannot be called ({brief(error)}).") from error


# ---- what each method costs ------------------------------------------------------------------------------


def _prices(text: str, given: Setup, n: int | None, budget: float | None) -> Answer:
    from whence.ladder.probes import price_of_runs, probe
    from whence.outcomes.sizes import size_in_words

    work = workload(given)
    n = _enough(work.n_tasks) if n is None else n
    found = probe(given, n)
    spent = found
    if "retrain" in found:  # a budget is of runs of which no more than that are made side by side
        spent = {**found, "retrain": price_of_runs(given, max(1, int(BUDGETS[-1] if budget is None else budget)))}
    method, why = recommend(found if budget is None else spent, work, n, budget)
    run = found["retrain"].each if "retrain" in found else None
    rows: list[Row] = []
    for name, price in found.items():
        total = price.total(n)
        in_runs = "" if run is None else f"{total / run:,.1f}"
        mark = Text("recommended" if name == method else "", style="green")
        cells = [
            _duration(price.once),
            _duration(price.each),
            _duration(total),
            in_runs,
            size_in_words(price.bytes) if price.bytes else "–",
        ]
        expected = "" if name == "retrain" else _evidence(work.evidence(name))
        rows.append([name, *cells, expected, METHODS[name].trust, mark])
    mixes = _mixes(spent, work, budget)
    document = {
        "n": n,
        "problem": vars(work),
        "prices": [
            {**vars(price), "total": price.total(n), "expected_lds": work.expected(name), "lds": work.evidence(name)}
            for name, price in found.items()
        ],
        "recommended": method,
        "why": why,
        "mixes": mixes,
    }
    linear = "The model is linear in them." if work.linear else "The model is not linear in them."
    about = (
        f"{work.n_tasks} tasks, {work.n_examples:,} examples; {work.n_queries:,} queries; "
        f"{work.n_trained:,} of {work.n_params:,} parameters are trained. {linear}"
    )
    columns = ["method", "once", "each", f"{n} subsets", "true runs", "keeps", "LDS", "trust it for", ""]
    page: Page = [
        Text(about),
        title(f"What {n} subsets cost on this machine"),
        table(columns, rows, left=["trust it for", ""]),
        remark("timed on a small part of each; true runs: the cost in trainings on one subset"),
        remark("LDS: rank correlation with true runs that was measured on models of this size; yours may differ"),
        Text(f"Recommended: {method}. {why[0].upper()}{why[1:]}"),
        *_next(text, method, n, budget, mixes),
        *_mixes_page(mixes),
    ]
    return Answer(document, page)


def _next(text: str, method: str, n: int, budget: float | None, mixes: list[dict[str, Any]]) -> Page:
    """The command that follows the recommendation; all of them where it is the mix for the budget."""
    estimate = f"  whence estimate {shlex.quote(text)}"
    mix = mixes[0] if budget is not None and mixes else {"estimates": {}}
    methods = list(mix["estimates"])
    if method not in methods:
        runs = n if budget is None or method != "retrain" else min(n, int(budget))
        return [command(f"{estimate} --method {method} -n {runs} -o {_folder(method)}/")]
    folders = [f"cheap/{name}" if len(methods) > 1 else "cheap/" for name in methods]
    return [
        command(f"{estimate}{''.join(f' --method {name}' for name in methods)} -n {n} -o cheap/"),
        command(f"{estimate} --method retrain -n {mix['true_runs']} -o true/"),
        command(f"  whence fit true/{''.join(f' --estimates {folder}' for folder in folders)}"),
    ]


def _mixes(found: "dict[str, Price]", work: "Workload", budget: float | None) -> list[dict[str, Any]]:
    """The default mix for some budgets, or for the one that was given."""
    rows = []
    for limit in (BUDGETS if budget is None else (budget,)) if "retrain" in found else ():
        estimates, runs = default_mix(found, work, limit)
        row = {"budget": f"{limit:g}", "estimates": estimates, "true_runs": runs}
        rows.append({**row, "lds": work.mixed(tuple(estimates), runs)})
    return rows


def _mixes_page(mixes: list[dict[str, Any]]) -> Page:
    if not mixes:
        return []
    rows: list[Row] = []
    for mix in mixes:
        estimates = ", ".join(f"{method} ({price:.1f})" for method, price in mix["estimates"].items())
        rows.append([mix["budget"], estimates or "none", str(mix["true_runs"]), _evidence(mix["lds"])])
    columns = ["budget", "estimates to fuse (cost)", "and true runs", "LDS"]
    return [
        title("What to do with a budget of true runs"),
        table(columns, rows, left=[columns[1]]),
        remark(
            "cost: with the runs of the budget side by side, and one joint run for all scores; LDS: measured on such "
            "models, see results/scores.md"
        ),
    ]


def _evidence(lds: "tuple[float, float, float] | None") -> str:
    """The mean of what was measured, and the lowest and highest of it."""
    return "–" if lds is None else f"{lds[0]:.2f} ({lds[1]:.2f}–{lds[2]:.2f})"


def _enough(n_tasks: int) -> int:
    """Default number of subsets to estimate, or all nonempty subsets if there are fewer."""
    return min(SUBSETS, (1 << min(n_tasks, 16)) - 1)


def _folder(method: str) -> str:
    return "true" if method == "retrain" else "cheap"


def _duration(seconds: float) -> str:
    """Seconds in a few characters.

    >>> [_duration(value) for value in (0, 0.0123, 12.3, 754, 9000)]
    ['0 s', '0.012 s', '12 s', '13 min', '2.5 h']
    """
    if seconds >= 3600:
        return f"{seconds / 3600:.2g} h"
    return f"{seconds / 60:.2g} min" if seconds >= 120 else f"{seconds:.2g} s"


# ---- estimates -------------------------------------------------------------------------------------------


def _options(method: str, output: Path, seed: int) -> dict[str, object]:
    """What a method is told here: its seed, and where to keep vectors, next to the run folder.

    True runs, which take the seed of each row, may need the vectors before the run begins.
    """
    vectors = {"path": output.with_name(f"{output.name}-vectors")} if method == "merge" else {}
    return {} if method == "retrain" else {"seed": seed, **vectors}


def _estimates(
    method: str,
    maker: "Measurable",
    design: str,
    n: int | None,
    output: Path,
    truth: Path | None,
    seed: int,
    accept_change: bool,
) -> Answer:
    from whence.measuring.engine import Workers
    from whence.measuring.loop import carry_out
    from whence.measuring.outcome_fn import as_outcome_fn
    from whence.measuring.plan import make_plan

    estimator, verdict = as_outcome_fn(maker), None
    if truth is not None:
        estimator, verdict = _against(estimator, truth)
    names = list(estimator.task_names or ())
    n = _enough(len(names)) if n is None and ":" in design else n
    plan = make_plan(estimator, design_of(design, n, names), n, tasks=names, seed=seed, seeds=1, maximize=())
    began = time.monotonic()
    ledger = carry_out(plan, estimator, output, Workers(engine="inline"), accept_change=accept_change, progress=True)
    return _told(ledger, output, method, verdict, time.monotonic() - began)


def _against(estimator: "OutcomeFn", truth: Path) -> tuple["OutcomeFn", str | None]:
    """The estimator tuned by true runs, and their verdict on it."""
    import whence
    from whence.measuring.outcome_fn import as_outcome_fn
    from whence.outcomes.cells import column_names, has_roles

    named = None if has_roles(truth) else set(column_names(truth)) - set(estimator.task_names or ())
    runs = whence.read_outcomes(truth, named)
    if runs.n_runs >= 3:
        estimator = as_outcome_fn(estimator.tuned(runs))
    verdict = estimator.check(runs)
    return estimator, None if verdict is None else str(verdict)


def _told(ledger: "Ledger", folder: Path, method: str, verdict: str | None, seconds: float) -> Answer:
    from whence.measuring.display import summary
    from whence.outcomes.ledger import unmeasured
    from whence.outcomes.runs import FAILURES

    document = ledger_document(ledger, folder)
    document |= {"method": method, "provenance": ledger.plan.provenance, "verdict": verdict}
    page: Page = [Text(summary(ledger, seconds))]
    page += [Text(f"Against the true runs: {verdict}")] if verdict else []
    if ledger.failed:
        page.append(Text(unmeasured(ledger, f"; see {folder / FAILURES}")))
    return Answer(document, page, failed=ledger.failed > 0)


def _together(answers: dict[Path, Answer]) -> Answer:
    """The answers of all methods, by folder, and what to do next with those that have estimates."""
    page: Page = []
    for answer in answers.values():
        page += [title(str(answer.document["method"])), *answer.page] if len(answers) > 1 else answer.page
    done = {folder: answer.document["method"] for folder, answer in answers.items() if answer.document["measured"]}
    true = next((shlex.quote(str(folder)) for folder, method in done.items() if method == "retrain"), None)
    cheap = [f" --estimates {shlex.quote(str(folder))}" for folder, method in done.items() if method != "retrain"]
    if cheap:
        first = "" if true else "make a few true runs (such as with --method retrain), and "
        page.append(remark(f"next: {first}fuse both"))
        page += [command(f"  whence {verb} {true or 'TRUE_RUNS'}{''.join(cheap)}") for verb in ("fit", "suggest")]
    elif true:
        page += [remark("next: fit a surrogate"), command(f"  whence fit {true}")]
    documents = [answer.document for answer in answers.values()]
    document = documents[0] if len(documents) == 1 else {"estimates": documents}
    return Answer(document, page, failed=any(answer.failed for answer in answers.values()))
