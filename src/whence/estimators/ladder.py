"""The ladder: what each way to the outcomes of many subsets costs, when to trust it, and which one to take.

From gradients at the start to true runs, each rung is an outcome function. Prices are in forward-equivalents: one
example through the model once is 1, a backward pass is 2 more. They count what an estimator does to the model, not how
fast a machine is at it; small models run side by side, and then true runs are cheaper than they look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from whence.errors import InputError, counted, did_you_mean

if TYPE_CHECKING:
    from whence.models.problem import Problem
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
RETURNS = "a whence.Problem, or (problem, recipe), or (problem, recipe, {method: options})"


@dataclass(frozen=True)
class Setup:
    """What a user's ``problem()`` gives: a problem, how its model is trained, and options of methods."""

    problem: Problem
    recipe: Recipe | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Any) -> Setup:
        """Return the setup of what a function has returned, checked.

        Examples
        --------
        >>> Setup.of({"model": 1, "tasks": {}})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        whence.errors.InputError: The function must return a whence.Problem, or (problem, recipe), or ...
        """
        from whence.models.problem import Problem
        from whence.models.recipe import Recipe

        if isinstance(given, Setup):
            return given
        parts = given if isinstance(given, (tuple, list)) else (given,)
        if not 1 <= len(parts) <= 3 or not isinstance(parts[0], Problem):
            found = ", ".join(type(part).__name__ for part in parts)
            raise InputError(f"The function must return {RETURNS}. Got {found or 'nothing'} instead.")
        made = cls(*parts)
        if not (made.recipe is None or isinstance(made.recipe, Recipe)):
            raise InputError(f"The recipe must be a whence.Recipe or None. Got {type(made.recipe).__name__} instead.")
        if not isinstance(made.options, Mapping):
            raise InputError(f"The options must be a mapping by method. Got {type(made.options).__name__} instead.")
        if odd := [name for name in made.options if name not in METHODS]:
            raise InputError(f"There is no method '{odd[0]}' to give options to. {did_you_mean(str(odd[0]), METHODS)}")
        return made


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


def make_estimator(setup: Setup, method: str, **options: Any) -> Any:
    """Return the outcome function of a method for a problem; options of the setup go before those given here."""
    import whence

    if method not in METHODS:
        raise InputError(f"There is no method '{method}'. {did_you_mean(method, METHODS)}")
    problem, recipe = setup.problem, setup.recipe
    own = {**options, **setup.options.get(method, {})}
    if method == "one-step":
        return whence.OneStep(problem, recipe, **own)
    if method == "gradex":
        usual = {} if recipe is None else {"weighting": recipe.weighting}
        return whence.GradEx(problem, **{"rank": workload(setup).rank, **usual, **own})
    if recipe is None:
        raise InputError(f"The method '{method}' trains: return a recipe beside the problem, (problem, recipe).")
    makers: dict[str, Any] = {
        "gradex-along": whence.GradEx.along,
        "merge": whence.TaskVectors,
        "retrain": whence.Retrain,
    }
    return makers[method](problem, recipe, **own)


def workload(setup: Setup) -> Workload:
    """Return what the prices of a problem depend on; its model is run on two examples."""
    import torch

    problem, recipe = setup.problem, setup.recipe
    with torch.no_grad():
        n_outputs = problem.output_fn(problem.start, problem.some_inputs(problem.tasks)).shape[1]
    gradex, along, merge = (setup.options.get(method, {}) for method in ("gradex", "gradex-along", "merge"))
    return Workload(
        n_tasks=len(problem.task_names),
        n_examples=len(problem.tasks),
        n_queries=len(problem.targets),
        n_outputs=n_outputs,
        n_params=problem.n_params,
        n_trained=problem.n_trained,
        rank=gradex.get("rank", min(Workload.rank, problem.n_trained)),
        along_rank=along.get("rank", min(Workload.along_rank, problem.n_trained)),
        merge=merge.get("merge", Workload.merge),
        early=merge.get("early", Workload.early),
        run_examples=None if recipe is None else recipe.steps * (recipe.batch_size or len(problem.tasks)),
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
            f"with a quarter of the steps and by outputs (options {{'merge': {{'early': {QUARTER}, 'merge': "
            f"'outputs'}}}}) it costs {quarter:.0f} true runs, where whole runs merged cost {cost['merge']:.0f}. "
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
