"""The cheap rung of a problem: estimates of many subsets, made before the first true run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
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
CHOSEN = ".rung.json"


class Chosen(TypedDict):
    """The method of the rung, how many subsets it is to estimate (0 for none), and why, in words."""

    method: str
    n: int
    words: str


@dataclass(frozen=True)
class Cheap:
    """Estimates that a search starts with (None if they cost too much), and why."""

    estimates: Outcomes | None
    words: str


def prepare(given: object, folder: Path | None, budget: int, seed: int, progress: bool | None) -> tuple[object, Cheap]:
    """Return the outcome function of what `whence.search` is given, and the cheap rung of a problem.

    All methods of the ladder (:mod:`whence.ladder`) are timed. Among those that can estimate enough subsets for a
    quarter of the budget, the one expected to be closest to true runs is used. The choice is kept in the run folder.
    Other outcome functions have no cheaper rung.
    """
    if "torch" not in sys.modules:  # nobody has made a problem
        return given, Cheap(None, "")
    from whence.ladder.methods import Setup, make_estimator
    from whence.models.problem import Problem

    parts = given if isinstance(given, tuple | list) else (given,)
    if not isinstance(given, Setup) and not (parts and isinstance(parts[0], Problem)):
        return given, Cheap(None, "")
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
    found = _estimated(setup, chosen, place, seed, progress) if chosen["n"] else None
    return make_estimator(setup, "retrain"), Cheap(found, chosen["words"])


def _chosen(setup: Setup, budget: int) -> Chosen:
    from whence.ladder.advice import ALIKE, workload
    from whence.ladder.probes import probe

    work = workload(setup)
    most = min(SUBSETS, (1 << min(work.n_tasks, 16)) - 1)
    prices = probe(setup, most)
    run = prices.pop("retrain").each
    numbers = {
        name: int(min(most, (budget * SHARE * run - price.once) / max(price.each, 1e-12)))
        for name, price in prices.items()
    }
    enough = {name: n for name, n in numbers.items() if n >= min(most, PER_TASK * work.n_tasks)}
    if not enough:
        name = min(prices, key=lambda each: prices[each].total(most))
        cost = prices[name].total(most) / run
        words = f"No cheaper rung: {most} estimates by '{name}' cost as much as {cost:.0f} true runs."
        return {"method": name, "n": 0, "words": words}
    nearest = max(map(work.expected, enough))
    alike = [name for name in enough if work.expected(name) >= nearest - ALIKE]
    name = min(alike, key=lambda each: prices[each].total(enough[each]))
    cost = prices[name].total(enough[name]) / run
    words = f"Cheap rung: {enough[name]} estimates by '{name}', for the price of {cost:.1f} true runs."
    return {"method": name, "n": enough[name], "words": words}


def _estimated(setup: Setup, chosen: Chosen, place: Path | None, seed: int, progress: bool | None) -> Outcomes:
    from whence.designs import Bernoulli
    from whence.ladder.methods import make_estimator
    from whence.measuring import measure

    options: dict[str, object] = {"seed": seed}
    if chosen["method"] == "merge" and place is not None:
        options["path"] = place.with_name(f"{place.name}-vectors")
    estimator = make_estimator(setup, chosen["method"], **options)
    return measure(estimator, Bernoulli(0.5), chosen["n"], path=place, seed=seed, progress=progress)
