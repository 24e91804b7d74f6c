"""The ladder: ways to the outcomes of many subsets, when to trust each, and which one to take.

From gradients at the start to true runs, each rung is an outcome function. What they cost is measured (probes.py); how
near they come is known where the model is linear in what is trained, and elsewhere from where it was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from whence.errors import InputError, counted, did_you_mean

if TYPE_CHECKING:
    from whence.estimators.probes import Price
    from whence.models.problem import Problem
    from whence.models.recipe import Recipe

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


SMALL = 50_000  # trained parameters, up to which what was measured on small models is expected
# Rank correlation with true runs for each query (LDS), as measured. Small models from a random start: digits, mean of
# two networks, and of GradEx for a linear one (benchmarks/results/ladder.md). Larger ones, fine-tuned: mean of six
# settings of modular arithmetic and of newsgroups (estimators_modular.md, estimators_newsgroups.md; along a run, of all
# outputs: gradex_fidelity.md).
EXACT = 0.97
EXPECTED = {
    "one-step": (0.57, 0.31),
    "gradex": (0.67, 0.15),
    "gradex-along": (0.74, 0.52),
    "merge": (0.54, 0.46),
    "retrain": (1.0, 1.0),
}
ALIKE = 0.05  # difference of these below which the cheaper one is taken
QUARTER = 0.25  # of the steps, after which runs of single tasks told nearly as much
PER_TASK = 2  # true runs for each task, of which a surrogate learns about as much as the estimates tell


@dataclass(frozen=True)
class Workload:
    """What a problem consists of.

    Attributes
    ----------
    n_tasks, n_examples, n_queries : int
        Tasks, their examples, and those of the targets.
    n_params, n_trained : int
        Parameters of the model, and of these the ones that are trained.
    linear, exact : bool
        Whether the model is linear in what is trained, and whether GradEx then takes all of it.
    early : float
        Share of the steps that runs to be merged take.
    """

    n_tasks: int
    n_examples: int
    n_queries: int
    n_params: int
    n_trained: int
    linear: bool = False
    exact: bool = False
    early: float = 1.0

    def expected(self, method: str) -> float:
        """Rank correlation with true runs to expect of a method."""
        if method == "gradex" and self.exact:
            return EXACT
        return EXPECTED[method][self.n_trained > SMALL]


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
        return whence.GradEx(problem, **{**usual, **own})
    if recipe is None:
        raise InputError(f"The method '{method}' trains: return a recipe beside the problem, (problem, recipe).")
    makers: dict[str, Any] = {
        "gradex-along": whence.GradEx.along,
        "merge": whence.TaskVectors,
        "retrain": whence.Retrain,
    }
    return makers[method](problem, recipe, **own)


def workload(setup: Setup) -> Workload:
    """Return what a problem consists of; its model is run on a few examples."""
    from whence.estimators.linearity import is_linear
    from whence.gradients.routes import EXACT_UP_TO

    problem = setup.problem
    linear = is_linear(problem)
    gradex = {"rank": 512, "projection": "auto", **setup.options.get("gradex", {})}
    return Workload(
        n_tasks=len(problem.task_names),
        n_examples=len(problem.tasks),
        n_queries=len(problem.targets),
        n_params=problem.n_params,
        n_trained=problem.n_trained,
        linear=linear,
        exact=linear and gradex["projection"] == "auto" and problem.n_trained <= EXACT_UP_TO * gradex["rank"],
        early=setup.options.get("merge", {}).get("early", Workload.early),
    )


def recommend(prices: Mapping[str, Price], work: Workload, n: int, budget: float | None = None) -> tuple[str, str]:
    """Return the method to take for n subsets, and why, in words.

    True runs, where there are to be few or the budget covers them. Else, of the methods within the budget, the one that
    is expected to come nearest to them; of two that are alike, the cheaper.

    Parameters
    ----------
    prices : dict of str to Price
        From `whence.estimators.probes.probe`.
    work : Workload
    n : int
    budget : float, optional
        What may be spent, in true runs. Where not given, two for each task, from which a surrogate learns about as much
        as estimates tell, and at most half of n.
    """
    if "retrain" not in prices:
        best = max(prices, key=work.expected)
        return best, f"without a recipe nothing can be trained. {_evidence(work, best)}"
    run = prices["retrain"].each
    cost = {method: price.total(n) / run for method, price in prices.items()}
    if work.exact and cost["gradex"] < min(n, n if budget is None else budget):
        return "gradex", f"it costs {cost['gradex']:.1f} true runs. {_evidence(work, 'gradex')}"
    if n <= PER_TASK * work.n_tasks if budget is None else n <= budget:
        reason = "a surrogate needs about as many anyway" if budget is None else "the budget covers them"
        return "retrain", f"{counted(n, 'true run')} are the truth itself, and {reason}."
    limit = min(n / 2, PER_TASK * work.n_tasks) if budget is None else budget
    within = [method for method in prices if method != "retrain" and cost[method] <= limit]
    if not within:
        return _beyond(prices, work, cost, budget)
    nearest = max(map(work.expected, within))
    best = min((method for method in within if work.expected(method) >= nearest - ALIKE), key=lambda m: cost[m])
    left = "A handful of" if budget is None else f"The remaining {budget - cost[best]:.0f}"
    return best, (
        f"it costs {cost[best]:.1f} true runs. {_evidence(work, best)} "
        f"{left} true runs tell how far to trust it: fuse both."
    )


def _evidence(work: Workload, method: str) -> str:
    """What is known of how near a method comes to true runs, in a sentence."""
    if method == "gradex" and work.exact:
        return (
            "The model is linear in what is trained, so that GradEx gives what training to the end gives, up to its "
            "penalty (a few true runs, by --truth, choose it)."
        )
    kind = "small models" if work.n_trained <= SMALL else "larger models, fine-tuned,"
    return f"On {kind} it had a rank correlation of {work.expected(method):.2f} with true runs."


def _beyond(
    prices: Mapping[str, Price], work: Workload, cost: Mapping[str, float], budget: float | None
) -> tuple[str, str]:
    """Return what to take where no method is within the budget."""
    if budget is None:
        enough = counted(PER_TASK * work.n_tasks, "true run")
        return "retrain", f"no estimate is worth its price here: a surrogate of {enough} tells about as much."
    short = prices["merge"].once * min(1.0, QUARTER / work.early) + (work.n_tasks + 1) * prices["merge"].each
    if (short_runs := short / prices["retrain"].each) <= budget:
        return "merge", (
            f"with a quarter of the steps and by outputs (options {{'merge': {{'early': {QUARTER}, 'merge': "
            f"'outputs'}}}}) it costs {short_runs:.1f} true runs, where as it is it costs {cost['merge']:.0f}. "
            f"The remaining {budget - short_runs:.0f} true runs tell how far to trust it: fuse both."
        )
    cheapest = min(cost, key=lambda method: cost[method])
    return cheapest, f"it is the cheapest there is, though {cost[cheapest]:.1f} true runs exceed the budget."
