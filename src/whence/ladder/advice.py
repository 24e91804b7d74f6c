"""How close each method came to true runs in our measurements, and how to spend a budget of true runs.

What methods cost is measured (probes.py). How close they come to true runs is known if the model is linear in what is
trained; otherwise it is the mean over the problems it was measured on, with the lowest and highest of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from whence.errors import counted
from whence.ladder.methods import Setup

if TYPE_CHECKING:
    from whence.ladder.probes import Price

SMALL = 50_000  # trained parameters, up to which what was measured on small models is expected
# Rank correlation with true runs for each query (LDS), as measured: mean, lowest and highest of some problems. Small
# models from a random start: six problems of benchmarks/results/scores.md, and for GradEx, BIF and merging two networks
# on digits (ladder.md). Larger ones, fine-tuned: scores on seven problems of scores.md (along a run on five of them);
# the others on modular arithmetic and newsgroups (estimators_modular.md, estimators_newsgroups.md, baselines_modular.md
# and, GradEx along a run, of all outputs: gradex_fidelity.md) and LoRA adapters (finetune_smollm.md).
EXACT = 0.97
Evidence = tuple[float, float, float]
EXPECTED: dict[str, tuple[Evidence, Evidence]] = {
    "one-step": ((0.45, 0.22, 0.61), (0.31, 0.15, 0.56)),
    "gradex": ((0.67, 0.66, 0.67), (0.14, -0.03, 0.42)),
    "gradex-along": ((0.74, 0.63, 0.85), (0.50, 0.26, 0.66)),
    "influence": ((0.67, 0.49, 0.86), (0.53, 0.29, 0.80)),
    "influence-along": ((0.71, 0.50, 0.88), (0.63, 0.53, 0.81)),
    "trak": ((0.65, 0.53, 0.79), (0.42, 0.15, 0.74)),
    "trak-along": ((0.70, 0.55, 0.80), (0.40, 0.26, 0.75)),
    "tracin": ((0.56, 0.43, 0.68), (0.34, 0.21, 0.66)),
    "source": ((0.48, 0.34, 0.68), (0.26, 0.11, 0.41)),
    "bif": ((0.64, 0.64, 0.64), (0.01, 0.01, 0.01)),
    "merge": ((0.54, 0.53, 0.55), (0.41, 0.20, 0.62)),
    "retrain": ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0)),
}
ALIKE = 0.05  # difference of these below which the cheaper one is taken
QUARTER = 0.25  # of the steps, after which runs of single tasks predicted nearly as well
# Scores to fuse by default, the best first, and of a budget what they may cost.
MIXES = (
    ("influence-along", "trak-along"),
    ("influence", "trak-along"),
    ("influence", "trak"),
    ("trak-along",),
    ("influence",),
    ("trak",),
)
SCORES = 1 / 2
# Of true runs fused with estimates, or alone, by their number: problems of scores.md that nothing was chosen on, four
# small ones, and larger models fine-tuned (scores along a run were not measured on the two of LoRA).
MEASURED: dict[tuple[str, ...], dict[int, tuple[Evidence, Evidence]]] = {
    (): {
        3: ((0.19, 0.15, 0.24), (0.18, 0.10, 0.34)),
        5: ((0.32, 0.25, 0.36), (0.26, 0.17, 0.41)),
        10: ((0.43, 0.30, 0.50), (0.37, 0.22, 0.53)),
        20: ((0.56, 0.42, 0.62), (0.48, 0.32, 0.61)),
        40: ((0.66, 0.51, 0.74), (0.59, 0.45, 0.72)),
    },
    ("influence-along", "trak-along"): {
        3: ((0.75, 0.55, 0.87), (0.61, 0.50, 0.81)),
        5: ((0.75, 0.56, 0.87), (0.63, 0.54, 0.82)),
        10: ((0.76, 0.57, 0.87), (0.65, 0.57, 0.82)),
        20: ((0.76, 0.59, 0.87), (0.67, 0.62, 0.83)),
        40: ((0.77, 0.61, 0.86), (0.70, 0.63, 0.83)),
    },
    ("influence", "trak-along"): {
        3: ((0.74, 0.55, 0.86), (0.57, 0.40, 0.81)),
        5: ((0.74, 0.56, 0.86), (0.59, 0.46, 0.81)),
        10: ((0.75, 0.57, 0.86), (0.62, 0.50, 0.82)),
        20: ((0.76, 0.59, 0.86), (0.65, 0.57, 0.83)),
        40: ((0.77, 0.61, 0.86), (0.69, 0.63, 0.83)),
    },
    ("influence", "trak"): {
        3: ((0.72, 0.54, 0.85), (0.56, 0.37, 0.81)),
        5: ((0.73, 0.55, 0.86), (0.59, 0.44, 0.81)),
        10: ((0.74, 0.56, 0.86), (0.62, 0.50, 0.82)),
        20: ((0.75, 0.59, 0.86), (0.66, 0.57, 0.82)),
        40: ((0.77, 0.61, 0.86), (0.69, 0.62, 0.83)),
    },
    ("trak-along",): {
        3: ((0.73, 0.55, 0.80), (0.40, 0.26, 0.75)),
        5: ((0.73, 0.56, 0.81), (0.44, 0.32, 0.76)),
        10: ((0.74, 0.57, 0.82), (0.49, 0.41, 0.77)),
        20: ((0.75, 0.59, 0.82), (0.56, 0.47, 0.79)),
        40: ((0.76, 0.61, 0.83), (0.64, 0.53, 0.81)),
    },
    ("influence",): {
        3: ((0.70, 0.49, 0.86), (0.53, 0.29, 0.80)),
        5: ((0.71, 0.51, 0.86), (0.55, 0.33, 0.80)),
        10: ((0.72, 0.52, 0.86), (0.59, 0.41, 0.81)),
        20: ((0.74, 0.56, 0.86), (0.64, 0.52, 0.82)),
        40: ((0.76, 0.59, 0.86), (0.68, 0.59, 0.83)),
    },
    ("trak",): {
        3: ((0.70, 0.53, 0.79), (0.42, 0.15, 0.74)),
        5: ((0.71, 0.55, 0.79), (0.46, 0.26, 0.74)),
        10: ((0.72, 0.56, 0.81), (0.51, 0.36, 0.76)),
        20: ((0.74, 0.59, 0.81), (0.59, 0.47, 0.79)),
        40: ((0.76, 0.61, 0.83), (0.66, 0.53, 0.81)),
    },
}  # fmt: skip
QUICK = 10.0  # seconds in which true runs of all subsets are made rather than estimated
FEWEST = 3  # true runs that a surrogate can be fitted to
PER_TASK = 2  # true runs for each task, of which a surrogate learns about as much as the estimates tell


@dataclass(frozen=True)
class Workload:
    """Size and kind of a problem."""

    n_tasks: int
    n_examples: int
    n_queries: int
    n_params: int
    n_trained: int
    linear: bool = False  # in the trained parameters
    exact: bool = False  # linear, and GradEx uses all parameters
    early: float = 1.0  # share of the steps in runs to be merged

    def expected(self, method: str) -> float:
        """Rank correlation with true runs to expect of a method."""
        return self.evidence(method)[0]

    def mixed(self, estimates: Sequence[str], runs: int) -> Evidence | None:
        """Rank correlation of so many true runs, fused with estimates or alone, with others; None if not known."""
        known = MEASURED.get(tuple(estimates), {})
        few = [m for m in known if m <= runs]
        return known[max(few)][self.n_trained > SMALL] if few else None

    def evidence(self, method: str) -> Evidence:
        """Rank correlation with true runs that was measured on models of this size: mean, lowest and highest."""
        if method == "gradex" and self.exact:
            return EXACT, EXACT, EXACT
        return EXPECTED[method][self.n_trained > SMALL]


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

    True runs, if there are few subsets, runs take a few seconds, or the budget covers them. Else the first of the
    estimates that the budget is best spent on (`default_mix`), or true runs where scores cost too much of it. Without
    a budget, or where nothing is known of scores, the method that is expected to be closest to true runs, or the
    cheaper of two similar ones; it may cost two true runs per task, from which a surrogate learns about as much as from
    estimates, and half of n. The budget is in true runs.
    """
    if "retrain" not in prices:
        best = max(prices, key=work.expected)
        return best, f"without a recipe nothing can be trained. {_evidence(work, best)}"
    run = prices["retrain"].each
    cost = {method: price.total(n) / run for method, price in prices.items()}
    if work.exact and cost["gradex"] < min(n, n if budget is None else budget):
        return "gradex", f"it costs {cost['gradex']:.1f} true runs. {_evidence(work, 'gradex')}"
    if budget is None and n * run <= QUICK:
        return "retrain", f"{counted(n, 'true run')} are the truth itself, and take {n * run:.1g} s."
    if n <= PER_TASK * work.n_tasks if budget is None else n <= budget:
        reason = "a surrogate needs about as many anyway" if budget is None else "the budget covers them"
        return "retrain", f"{counted(n, 'true run')} are the truth itself, and {reason}."
    if budget is not None and any(method in prices for mix in MIXES for method in mix):
        return _first_of_mix(prices, work, cost, budget)
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


def _first_of_mix(
    prices: Mapping[str, Price], work: Workload, cost: Mapping[str, float], budget: float
) -> tuple[str, str]:
    """Return the first estimate of the default mix, or true runs alone, and why."""
    spent, runs = default_mix(prices, work, budget)
    if not spent:
        if budget < FEWEST:
            return _beyond(prices, work, cost, budget)
        return "retrain", f"estimates would cost too much of the budget: spend it on {counted(runs, 'true run')}."
    (first, price), *others = spent.items()
    also = "".join(f" Add {other}, with other errors, for {more:.1f}." for other, more in others)
    return first, (
        f"it costs {price:.1f} true runs. {_evidence(work, first)}{also} "
        f"The remaining {counted(runs, 'true run')} tell how far to trust {'them' if others else 'it'}: fuse all."
    )


def default_mix(
    prices: Mapping[str, Price], work: Workload, budget: float, *, share: float = SCORES
) -> tuple[dict[str, float], int]:
    """Return how to spend a budget of true runs: estimates to fuse, with the price of each, and how many true runs.

    GradEx if it is exact; else scores of one joint run, of two kinds with different errors and at several points, as
    long as they cost at most a share of the budget and leave enough true runs to fuse with (`MEASURED` has what that
    gave). The rest goes to true runs.
    """
    for mix in (("gradex",),) if work.exact else MIXES:
        spent = added_prices(prices, mix)
        if sum(spent.values()) <= min(share * budget, budget - FEWEST):
            return spent, int(budget - sum(spent.values()))
    return {}, int(budget)


def added_prices(prices: Mapping[str, Price], mix: Sequence[str]) -> dict[str, float]:
    """Return what each method of a mix adds to its price, in true runs; infinite if it has no price.

    The joint run of scores is made once: each pays for what of it goes beyond those before it.
    """
    spent, ran = dict.fromkeys(mix, math.inf), 0.0
    for price in (prices[method] for method in mix if method in prices):
        spent[price.method] = (price.once - min(price.run, ran)) / prices["retrain"].each
        ran = max(ran, price.run)
    return spent


def _evidence(work: Workload, method: str) -> str:
    """What is known of how near a method comes to true runs, in a sentence."""
    if method == "gradex" and work.exact:
        return (
            "The model is linear in what is trained, so GradEx gives what training to the end gives, up to its "
            "penalty (a few true runs, by --truth, choose it)."
        )
    kind = "small models" if work.n_trained <= SMALL else "larger models, fine-tuned,"
    mean, low, high = work.evidence(method)
    return f"On {kind} it had a rank correlation of {mean:.2f} ({low:.2f} to {high:.2f}) with true runs."


def _beyond(
    prices: Mapping[str, Price], work: Workload, cost: Mapping[str, float], budget: float | None
) -> tuple[str, str]:
    """Return what to use if no method is within the budget."""
    if budget is None:
        enough = counted(PER_TASK * work.n_tasks, "true run")
        return "retrain", f"no estimate is worth its price here: a surrogate of {enough} is about as good."
    short = prices["merge"].once * min(1.0, QUARTER / work.early) + (work.n_tasks + 1) * prices["merge"].each
    if (short_runs := short / prices["retrain"].each) <= budget:
        return "merge", (
            f"with a quarter of the steps and by outputs (options {{'merge': {{'early': {QUARTER}, 'merge': "
            f"'outputs'}}}}) it costs {short_runs:.1f} true runs instead of {cost['merge']:.0f}. "
            f"The remaining {budget - short_runs:.0f} true runs tell how far to trust it: fuse both."
        )
    if budget >= FEWEST:
        return "retrain", f"no estimate fits the budget: spend it on {counted(int(budget), 'true run')}."
    cheapest = min(cost, key=lambda method: cost[method])
    return cheapest, f"it is the cheapest there is, though {cost[cheapest]:.1f} true runs exceed the budget."
