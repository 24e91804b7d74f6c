"""The cheap rung of a problem: estimates of many subsets, made before the first true run."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from whence.errors import InputError
from whence.outcomes import Outcomes
from whence.outcomes.writing import read_document, write_document

if TYPE_CHECKING:
    from whence.ladder.methods import Setup

SUBSETS = 300
SHARE = 0.25  # of the budget that estimates may cost
PER_TASK = 5  # estimates that are few enough to be of use
CHOSEN = ".rungs.json"


class Chosen(TypedDict):
    """The methods of the rung, how many subsets each is to estimate, and why, in words."""

    methods: list[str]
    n: int
    words: str


@dataclass(frozen=True)
class Cheap:
    """Estimates that a search starts with (none if they cost too much), and why."""

    words: str = ""
    estimates: dict[str, Outcomes] = field(default_factory=dict)


def prepare(given: object, folder: Path | None, budget: int, seed: int, progress: bool | None) -> tuple[object, Cheap]:
    """Return the outcome function of what `whence.search` is given, and the cheap rung of a problem.

    All methods of the ladder (:mod:`whence.ladder`) are timed. For up to a quarter of the budget there are scores of
    one joint run, of two kinds if these fit in, or another method for problems without them. The choice is kept in the
    run folder. Other outcome functions have no cheaper rung.
    """
    if "torch" not in sys.modules:  # nobody has made a problem
        return given, Cheap()
    from whence.ladder.methods import Setup, make_estimator
    from whence.models.problem import Problem

    parts = given if isinstance(given, tuple | list) else (given,)
    if not isinstance(given, Setup) and not (parts and isinstance(parts[0], Problem)):
        return given, Cheap()
    setup = Setup.of(given)
    if setup.recipe is None:
        raise InputError("A search makes true runs and needs a recipe for them: give (problem, recipe).")
    place = None if folder is None else folder.with_name(f"{folder.name}-estimates")
    if place is not None and (place / CHOSEN).exists():
        chosen = cast("Chosen", read_document(place / CHOSEN))
    else:
        chosen = _chosen(setup, budget)
        if place is not None:
            place.mkdir(parents=True, exist_ok=True)
            write_document(place / CHOSEN, chosen)
    return make_estimator(setup, "retrain"), Cheap(chosen["words"], _estimated(setup, chosen, place, seed, progress))


def _chosen(setup: Setup, budget: int) -> Chosen:
    """Scores as a budget is best spent on them; else the method nearest to the truth that estimates enough subsets."""
    from whence.ladder.advice import ALIKE, default_mix, workload
    from whence.ladder.methods import METHODS
    from whence.ladder.probes import price_of_runs, probe

    work = workload(setup)
    most = min(SUBSETS, (1 << min(work.n_tasks, 16)) - 1)
    prices = {**probe(setup, most), "retrain": price_of_runs(setup, 1)}  # a search makes its runs one by one
    run = prices["retrain"].each
    of_loss = set(setup.problem.metrics) == {"loss"}  # scores are of nothing else
    spent, _ = default_mix(prices, work, budget, share=SHARE) if of_loss and not work.exact else ({}, budget)
    if spent:
        kinds = " and ".join(f"'{name}'" for name in spent)
        words = f"Estimates: {most} by {kinds}, for the price of {sum(spent.values()):.1f} true runs."
        return {"methods": list(spent), "n": most, "words": words}
    prices = {name: price for name, price in prices.items() if METHODS[name].kind == "estimates"}
    numbers = {
        name: int(min(most, (budget * SHARE * run - price.once) / max(price.each, 1e-12)))
        for name, price in prices.items()
    }
    enough = {name: n for name, n in numbers.items() if n >= min(most, PER_TASK * work.n_tasks)}
    if not enough:
        name = min(prices, key=lambda each: prices[each].total(most))
        cost = prices[name].total(most) / run
        words = f"No estimates: {most} by '{name}' would cost as much as {cost:.0f} true runs."
        return {"methods": [], "n": 0, "words": words}
    nearest = max(map(work.expected, enough))
    alike = [name for name in enough if work.expected(name) >= nearest - ALIKE]
    name = min(alike, key=lambda each: prices[each].total(enough[each]))
    cost = prices[name].total(enough[name]) / run
    words = f"Estimates: {enough[name]} by '{name}', for the price of {cost:.1f} true runs."
    return {"methods": [name], "n": enough[name], "words": words}


def _estimated(
    setup: Setup, chosen: Chosen, place: Path | None, seed: int, progress: bool | None
) -> dict[str, Outcomes]:
    """The estimates of every method that was chosen, by its name."""
    from whence.designs import Bernoulli
    from whence.ladder.methods import make_estimators
    from whence.measuring import measure

    options: dict[str, dict[str, object]] = {name: {"seed": seed} for name in chosen["methods"]}
    if "merge" in options and place is not None:
        options["merge"]["path"] = place / "vectors"
    made = make_estimators(setup, options, run=None if place is None else place / "joint-run")
    return {
        name: measure(estimator, Bernoulli(0.5), chosen["n"], path=None if place is None else place / name, seed=seed,
                      progress=progress)
        for name, estimator in made.items()
    }  # fmt: skip
