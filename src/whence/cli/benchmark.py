"""The verb that scores methods on recorded runs."""

# Typer reads annotations as objects, so this module has no "from __future__ import annotations".
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

import whence
from whence.cli import arguments as args
from whence.cli.shell import Answer
from whence.display.layout import Page, Row, remark, table, title
from whence.display.numbers import number
from whence.display.pages import SCORES
from whence.errors import InputError, some_of

if TYPE_CHECKING:
    import pandas as pd

    from whence.arrays import Floats
    from whence.measuring.outcome_fn import OutcomeFn
    from whence.outcomes import Outcomes
    from whence.surrogates.peers import Method

MethodNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="METHOD",
        help="scikit-learn regressor, or outcome function for the data set of --data, as FILE.py:NAME; "
        "or one of: tuned linear, least squares, lasso, tuned kernel, paper kernel, size only.",
        show_default=False,
    ),
]
Data = Annotated[args.Names, typer.Option("--data", metavar="NAME", help="Use this data set only. Repeatable.")]
Sizes = Annotated[
    list[int] | None, typer.Option("--runs", metavar="N", help="Number of subsets to learn from. Repeatable.", min=3)
]
Targets = Annotated[
    int,
    typer.Option("--targets", metavar="N", help="Judge by at most N targets of a data set, drawn once.", min=1),
]


def benchmark(
    methods: MethodNames = None,
    data: Data = None,
    runs: Sizes = None,
    targets: Targets = 50,
    splits: args.Splits = 5,
    seed: args.Seed = 0,
) -> Answer:
    """Score a method on recorded runs, next to whence and simpler methods."""
    from whence.datasets import available, leaderboard
    from whence.datasets.leaderboard import SIZES
    from whence.surrogates.peers import STANDARD, peers

    rows: dict[str, Method] = {"whence": lambda train: whence.fit(train, seed=seed)}
    rows |= peers(STANDARD, seed) | {name: _method(name, seed) for name in methods or ()}
    found = leaderboard(
        rows, names=args.names_of(data) or None, sizes=runs or SIZES, most_targets=targets, n_splits=splits, seed=seed
    )
    sets = available().loc[list(dict.fromkeys(found.frame["data"]))]
    cut = [f"{name} (of {row['targets']:,})" for name, row in sets.iterrows() if row["targets"] > targets]
    page: Page = [title("Data sets")]
    page += [Text(f"{name}: {row['title']}") for name, row in sets.iterrows()]
    if cut:
        page.append(remark(f"Judged by {targets} targets, drawn once (--targets): {', '.join(cut)}."))
    for (name, size), part in found.frame.groupby(["data", "runs"], sort=False):
        cells: list[Row] = [
            [str(row["method"]), *(number(row[key]) for key in ("lds", "lds_of_mean", "residual_error", "coverage")),
             number(row["seconds"], 2)]
            for _, row in part.sort_values("lds", ascending=False).iterrows()
        ]  # fmt: skip
        page += [title(f"{name}, {size} runs to learn from"), table(["method", "rank corr.", "of the mean", "residual",
                                                                     "90% hold", "seconds"], cells)]  # fmt: skip
        page += [
            Text(f"{row['method']} failed on {row['failed']} of {splits} splits: {row['message']}", style="red")
            for _, row in part.iterrows()
            if row["failed"]
        ]
    summary = found.summary()
    page += [
        title("Mean rank correlation over data sets"),
        table(["method", *(f"{size} runs" for size in summary.columns)],
              [[str(method), *(number(value) for value in row)] for method, row in summary.iterrows()]),
        *(Text(sentence, style="red") for sentence in _failures(found.frame, splits)),
        *(remark(f"{name}: {words}") for name, words in SCORES.items()),
        remark("of the mean: the rank correlation where the mean over targets is the outcome"),
    ]  # fmt: skip
    failed = bool(found.frame["failed"].any())
    return Answer({"scores": found.frame.to_dict("records"), "data": sets.to_dict("index")}, page, failed=failed)


def _failures(frame: "pd.DataFrame", splits: int) -> list[str]:
    """Which methods have no mean, and why."""
    sentences = []
    for method, part in frame.groupby("method", sort=False):
        lost = part[part["failed"] == splits]
        where = list(dict.fromkeys(lost["data"]))
        if len(lost) == len(part):
            sentences.append(f"{method} failed everywhere: {lost['message'].iloc[0]}")
        elif where:
            sentences.append(f"{method} has no mean, since it failed on {some_of(where)}.")
    return sentences


def _method(text: str, seed: int) -> "Method":
    """The method that an argument names."""
    from whence.measuring.functions import load_function
    from whence.measuring.outcome_fn import as_outcome_fn, check_signature
    from whence.outcomes.subset import Subset
    from whence.surrogates.peers import fitting, peers

    if ":" not in text:
        return peers([text], seed)[text]
    found = load_function(text)[0]
    if callable(getattr(found, "fit", None)) and callable(getattr(found, "predict", None)):
        if not callable(getattr(found, "get_params", None)):
            raise InputError(
                f"{text} must be a regressor that scikit-learn can copy, for each split starts with a new one. Derive "
                f"{type(found).__name__} from sklearn.base.BaseEstimator."
            )
        return fitting(found, seed)
    if callable(found) or callable(getattr(found, "batch", None)):
        estimate = as_outcome_fn(found)
        check_signature(estimate, Subset([1.0], ["task"]))
        return partial(_Estimates, estimate)
    raise InputError(
        f"{text} must be a regressor with fit and predict, or an outcome function. Got {type(found).__name__} instead."
    )


class _Estimates:
    """A model that learns nothing from runs: what an outcome function says of each subset, target by target."""

    def __init__(self, outcome_fn: "OutcomeFn", train: "Outcomes") -> None:
        self.outcome_fn, self.task_names, self.target_names = outcome_fn, train.task_names, train.target_names

    def predict(self, subsets: "Floats") -> "Floats":
        from whence.datasets.leaderboard import averaged

        wanted = self.target_names
        found = whence.measure(
            self.outcome_fn, subsets, tasks=self.task_names, seeds=1, engine="inline", progress=False
        )
        if set(wanted) <= set(found.target_names):
            return found.targets(wanted).values
        if len(wanted) == 1:
            return averaged(found).values
        if found.n_targets == len(wanted):
            return found.values
        raise InputError(
            f"The outcome function must return a number for each of the {len(wanted)} targets of the data set "
            f"({', '.join(wanted[:3])}, …). Got {found.n_targets} ({', '.join(found.target_names[:3])})."
        )
