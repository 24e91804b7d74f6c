"""The ladder: what each way to the outcomes of many subsets costs, when to trust it, and which one to take.

From gradients at the start to true runs, each rung is an outcome function. Prices are in forward-equivalents: one
example through the model once is 1, a backward pass is 2 more. They count what an estimator does to the model, not how
fast a machine is at it; small models run side by side, and then true runs are cheaper than they look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from whence.errors import InputError, counted, did_you_mean

if TYPE_CHECKING:
    from whence.models.recipe import Recipe

TRAINED_ONCE = 3  # a forward and a backward pass
SCALES, SCALE_EXAMPLES = 14, 2000  # lengths of a step that are tried, on at most so many examples
SOLVER_PASSES = 30  # iterations of GradEx's solver, and what each does to the features
POINTS = 3  # of a run, that GradEx is linearised at along it
SHORT = 100  # steps of a fine-tuning up to which one step was no worse than GradEx (benchmarks/estimators.py)
QUARTER = 0.25  # of the steps, after which runs of single tasks told as much, for less
MERGE_RUNS = 2  # subsets per task from which merging is worth its runs

METHODS = {
    "one-step": "the start of a training: tens of steps",
    "gradex": "a model linear in what is trained, or nearly so: heads, small changes",
    "gradex-along": "one run, then gradients along it: where linearising at the start tells little",
    "merge": "fine-tuning that stays near its start",
    "retrain": "always: true runs, up to the noise of a seed",
}
REQUIRED = ("model", "tasks", "targets")
SHARED = ("loss", "metrics", "per_query", "params", "device")


@dataclass(frozen=True)
class Workload:
    """What prices depend on.

    Attributes
    ----------
    n_tasks, n_examples, n_queries, n_outputs : int
        Tasks, their examples, those of the targets, and outputs of the model for each.
    n_params, n_trained : int
        Parameters of the model, and of these the ones that are trained.
    rank, along_rank : int
        Of GradEx at the start, and along a run.
    merge, early : str, float
        What of the runs of the tasks is merged, and the share of the steps that they take.
    run_examples : int or None
        Examples that pass through the model in one training; None without a recipe.
    steps : int or None
        Of a training.
    """

    n_tasks: int
    n_examples: int
    n_queries: int
    n_outputs: int
    n_params: int
    n_trained: int
    rank: int = 512
    along_rank: int = 512
    merge: str = "weights"
    early: float = 1.0
    run_examples: int | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Price:
    """What a method costs: once, and for each subset, in forward-equivalents; and bytes that it keeps."""

    method: str
    once: float
    each: float
    bytes: float = 0.0

    def total(self, n: int) -> float:
        """Return the price of n subsets."""
        return self.once + n * self.each


def checked_problem(given: Any) -> dict[str, Any]:
    """Return what a user's ``problem()`` has returned: a mapping with a model, its tasks and its targets.

    Examples
    --------
    >>> checked_problem({"model": 1, "tasks": {}})
    Traceback (most recent call last):
        ...
    whence.errors.InputError: The problem must have 'model', 'tasks' and 'targets'. There is no 'targets'.
    """
    if not isinstance(given, Mapping):
        raise InputError(
            "The function must return a mapping with 'model', 'tasks', 'targets' and, to train, a 'recipe'. "
            f"Got {type(given).__name__} instead."
        )
    if missing := [name for name in REQUIRED if name not in given]:
        raise InputError(f"The problem must have 'model', 'tasks' and 'targets'. There is no '{missing[0]}'.")
    known = [*REQUIRED, "recipe", *SHARED, *(method.replace("-", "_") for method in METHODS)]
    if odd := [name for name in given if name not in known]:
        raise InputError(f"A problem has no '{odd[0]}'. {did_you_mean(str(odd[0]), known)}")
    return dict(given)


def make_estimator(problem: Mapping[str, Any], method: str, **options: Any) -> Any:
    """Return the outcome function of a method for a problem; options of the problem itself go before those given."""
    import whence

    if method not in METHODS:
        raise InputError(f"There is no method '{method}'. {did_you_mean(method, METHODS)}")
    common = {name: problem[name] for name in (*REQUIRED, *SHARED) if name in problem}
    own = {**options, **problem.get(method.replace("-", "_"), {})}
    if method == "one-step":
        return whence.OneStep(**common, **own)
    if method == "gradex":
        return whence.GradEx(**common, **{"rank": workload(problem).rank, **own})
    if "recipe" not in problem:
        raise InputError(f"The method '{method}' trains: the problem must have a 'recipe', a whence.Recipe.")
    makers: dict[str, Any] = {
        "gradex-along": whence.GradEx.along,
        "merge": whence.TaskVectors,
        "retrain": whence.Retrain,
    }
    return makers[method](**common, recipe=problem["recipe"], **own)


def workload(problem: Mapping[str, Any]) -> Workload:
    """Return what the prices of a problem depend on; its model is run on two examples."""
    import torch

    from whence.models.examples import Examples
    from whence.models.functional import functional

    tasks, targets = Examples.of(problem["tasks"], "tasks"), Examples.of(problem["targets"], "target")
    output_fn, trained = functional(problem["model"], problem.get("params"))
    n_trained = sum(value.numel() for value in trained.values())
    device = next(iter(trained.values())).device
    with torch.no_grad():
        n_outputs = output_fn(trained, tasks.to(device).rows(slice(0, 2))[0]).shape[1]
    recipe: Recipe | None = problem.get("recipe")
    return Workload(
        n_tasks=len(tasks.names),
        n_examples=len(tasks),
        n_queries=len(targets),
        n_outputs=n_outputs,
        n_params=sum(value.numel() for value in problem["model"].parameters()),
        n_trained=n_trained,
        rank=problem.get("gradex", {}).get("rank", min(Workload.rank, n_trained)),
        along_rank=problem.get("gradex_along", {}).get("rank", min(Workload.along_rank, n_trained)),
        merge=problem.get("merge", {}).get("merge", Workload.merge),
        early=problem.get("merge", {}).get("early", Workload.early),
        run_examples=None if recipe is None else recipe.steps * (recipe.batch_size or len(tasks)),
        steps=None if recipe is None else recipe.steps,
    )


def prices(work: Workload) -> dict[str, Price]:
    """Return the price of every method that the problem allows, the cheapest rung first.

    One step takes one gradient per task and tries some lengths of the step; each subset then takes the sum of K vectors
    (as much work as K examples) and the queries. GradEx takes a gradient of every output of every example, or their
    products with every direction, and for each subset a solve on these features. Along a run it takes the run, a
    gradient of every example at as many points as make up its directions, and features at three of them, each the
    product with every direction. Merging takes K runs, and then what one step takes for each subset; where outputs and
    not weights are merged, it takes the queries once for each run, and their sums for each subset.

    Examples
    --------
    >>> work = Workload(10, 1000, 100, 5, n_params=10_000, n_trained=10_000, run_examples=3200, steps=100)
    >>> {name: round(price.total(500)) for name, price in prices(work).items()}
    {'one-step': 72000, 'gradex': 3846600, 'gradex-along': 14991100, 'merge': 151000, 'retrain': 4850000}
    """
    vectors = 4.0 * work.n_tasks * work.n_trained
    examples = work.n_examples + work.n_queries
    features = float(examples * (1 + min(work.n_outputs, 2 * work.rank)))
    solve = SOLVER_PASSES * work.n_examples * work.n_outputs * work.rank / max(work.n_params, 1)
    forward = float(work.n_queries + work.n_tasks)
    gradients, search = TRAINED_ONCE * work.n_examples, SCALES * min(work.n_examples, SCALE_EXAMPLES)
    found = [
        Price("one-step", float(gradients + search), forward, vectors),
        Price("gradex", features, solve, 4.0 * examples * work.n_outputs * work.rank),
    ]
    if work.run_examples is not None:
        run = float(TRAINED_ONCE * work.run_examples)
        found.append(_along(work, run))
        found.append(_merge(work, run, forward, vectors))
        found.append(Price("retrain", 0.0, run + work.n_queries))
    return {price.method: price for price in found}


def _merge(work: Workload, run: float, forward: float, vectors: float) -> Price:
    """Price of merging, by weights or by what the runs answer."""
    runs = work.n_tasks * work.early * run
    if work.merge == "weights":
        return Price("merge", runs, forward, vectors)
    answers = (work.n_tasks + 1) * work.n_queries
    each = answers * work.n_outputs / max(work.n_params, 1)
    return Price("merge", runs + answers, each, vectors + 4.0 * answers * work.n_outputs)


def _along(work: Workload, run: float) -> Price:
    """Price of GradEx along a run: its directions are gradients of K tasks, plain and as the optimizer scales them."""
    rank, examples = work.along_rank, work.n_examples + work.n_queries
    traced = 1 + max(1, min(work.steps or 1, rank // (2 * work.n_tasks)))
    loss_at_the_end = work.n_examples
    per_example = 1 + min(2 * rank, work.n_outputs * (TRAINED_ONCE + rank))
    once = run + TRAINED_ONCE * work.n_examples * traced + loss_at_the_end + POINTS * examples * per_example
    solve = SOLVER_PASSES * work.n_examples * work.n_outputs * rank / max(work.n_params, 1)
    return Price("gradex-along", float(once), POINTS * solve, 4.0 * POINTS * examples * work.n_outputs * rank)


def recommend(work: Workload, n: int, budget: float | None = None) -> tuple[str, str]:
    """Return the method to take for n subsets, and why, in words.

    Parameters
    ----------
    work : Workload
    n : int
    budget : float, optional
        What may be spent, in true runs.

    Examples
    --------
    >>> work = Workload(10, 1000, 100, 5, n_params=10_000, n_trained=10_000, run_examples=3200, steps=100)
    >>> recommend(work, 500)[0], recommend(work, 12)[0], recommend(work, 500, budget=2)[0]
    ('merge', 'retrain', 'one-step')
    """
    found = prices(work)
    if "retrain" not in found:
        return "one-step", "without a recipe nothing can be trained, and one step is the cheapest estimate."
    cost = {method: price.total(n) / found["retrain"].each for method, price in found.items()}
    if n <= MERGE_RUNS * work.n_tasks if budget is None else cost["retrain"] <= budget:
        beside = f"merging takes {work.n_tasks} runs too" if budget is None else "the budget covers them"
        return "retrain", f"{counted(n, 'true run')} are the truth itself, and {beside}."
    if budget is None or cost["merge"] <= budget:
        left = "A handful of" if budget is None else f"The remaining {budget - cost['merge']:.0f}"
        return "merge", (
            f"for what {cost['merge']:.0f} true runs cost, it estimates {n} subsets with trained weights. "
            f"{left} true runs tell how far to trust it: fuse both."
        )
    short_runs = replace(work, early=QUARTER, merge="outputs")
    quarter = prices(short_runs)["merge"].total(n) / found["retrain"].each
    if quarter <= budget:
        return "merge", (
            f"with a quarter of the steps and by outputs (in the problem: 'merge': {{'early': {QUARTER}, 'merge': "
            f"'outputs'}}) it costs {quarter:.0f} true runs, where whole runs merged cost {cost['merge']:.0f}. "
            f"The remaining {budget - quarter:.0f} true runs tell how far to trust it: fuse both."
        )
    affordable = [method for method in ("gradex-along", "gradex", "one-step") if cost[method] <= budget]
    if not affordable:
        return "one-step", f"it is the cheapest there is, though {cost['one-step']:.1f} true runs exceed the budget."
    short = work.steps is not None and work.steps <= SHORT
    method = affordable[-1] if short else affordable[0]
    return method, (
        f"it costs {cost[method]:.1f} true runs, where merging costs {cost['merge']:.0f}. "
        "Spend what is left on true runs, and fuse both."
    )
