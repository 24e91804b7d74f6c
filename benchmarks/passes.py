"""What each estimator does to a model, in passes: one example through it once is 1, a backward pass is 2 more.

Counts do not depend on the machine, so that pages of results give the cost of every method in them. What a problem
really costs where it is run is measured: `whence estimate`, by `whence.ladder.probes`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from whence.baselines.joint import CURVED, QUARTERS
from whence.ladder.methods import Setup
from whence.ladder.probes import Price  # here in passes of one example, not in seconds

TRAINED_ONCE = 3  # a forward and a backward pass
SCALES, SCALE_EXAMPLES = 14, 2000  # lengths of a step that are tried, on at most so many examples
SOLVER_PASSES = 30  # iterations of GradEx's solver, and what each does to the features
POINTS = 3  # of a run, that GradEx is linearised at along it


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


def prices(work: Workload, at: tuple[float, ...] = (0.5,)) -> dict[str, Price]:
    """Return the price of every method that the problem allows, the cheapest rung first.

    One step takes one gradient per task and tries some lengths of the step; each subset then takes the sum of K vectors
    (as much work as K examples) and the queries. GradEx takes a gradient of every output of every example, or their
    products with every direction, and for each subset a solve on these features. Along a run it takes the run, a
    gradient of every example at as many points as make up its directions, and features at three of them, each the
    product with every direction. Scores take a run up to the last of the points ``at`` that they are found at (of
    quarters, "-along" and for TracIn), and at each a gradient of every example and query; those of EK-FAC two more of
    about a thousand examples, for its factors.
    Merging is K runs, and then what one step takes for each subset; where outputs and not weights are merged, it takes
    the queries once for each run, and their sums for each subset.

    Examples
    --------
    >>> work = Workload(10, 1000, 100, 5, n_params=10_000, n_trained=10_000, run_examples=3200, steps=100)
    >>> {name: round(price.total(500)) for name, price in prices(work).items()}  # doctest: +NORMALIZE_WHITESPACE
    {'one-step': 72000, 'gradex': 3846600, 'gradex-along': 14991100, 'influence': 14100, 'trak': 8100,
     'influence-along': 46800, 'trak-along': 22800, 'tracin': 22800, 'merge': 151000, 'retrain': 4850000}
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
        gradients, factors = float(TRAINED_ONCE * examples), 2.0 * TRAINED_ONCE * min(work.n_examples, CURVED)
        for words, points in (("", at), ("-along", QUARTERS)):
            joint, each = max(points) * run, len(points)
            found.append(Price(f"influence{words}", joint + each * (gradients + factors), 0.0, vectors, joint))
            found.append(Price(f"trak{words}", joint + each * gradients, 0.0, run=joint))
        found.append(replace(found[-1], method="tracin"))
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
