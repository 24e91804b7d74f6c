"""The cheap rung of a problem: estimates of many subsets, made before the first true run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whence.errors import InputError
from whence.outcomes import Outcomes
from whence.outcomes.writing import read_document, write_document

SUBSETS = 300
CHOSEN = ".rung.json"


@dataclass(frozen=True)
class Cheap:
    """What a search can learn from before its first run: estimates, by which method, at what price in true runs."""

    estimates: Outcomes
    method: str
    price: float
    why: str

    def __str__(self) -> str:
        return (
            f"{len(self.estimates)} estimates by '{self.method}', for the price of {self.price:.1f} true runs: {self.why}"
        )


def prepare(
    given: Any, folder: Path | None, budget: int, seed: int, progress: bool | None
) -> tuple[Any, Cheap | None]:
    """Return the outcome function of what `whence.search` is given, and the cheap rung of a problem.

    The ladder names the method whose estimates are worth their price (:mod:`whence.estimators.ladder`), from timing a
    little of each; in a run folder, its choice is kept. Any other outcome function has no cheaper rung.
    """
    if "torch" not in sys.modules:  # nobody has made a problem
        return given, None
    from whence.estimators.ladder import Setup, make_estimator, recommend, workload
    from whence.models.problem import Problem

    parts = given if isinstance(given, tuple | list) else (given,)
    if not isinstance(given, Setup) and not (parts and isinstance(parts[0], Problem)):
        return given, None
    setup = Setup.of(given)
    if setup.recipe is None:
        raise InputError("A search makes true runs: give a recipe beside the problem, (problem, recipe).")
    work = workload(setup)
    n = min(SUBSETS, (1 << min(work.n_tasks, 16)) - 1)
    place = None if folder is None else folder.with_name(f"{folder.name}-estimates")
    if place is not None and (place / CHOSEN).exists():
        chosen = read_document(place / CHOSEN)
    else:
        from whence.estimators.probes import probe

        prices = probe(setup, n)
        cheap = {name: price for name, price in prices.items() if name != "retrain"}
        method, why = recommend(prices, work, n, budget / 2)
        if method == "retrain":
            method = max(cheap, key=lambda name: (cheap[name].total(n) <= budget / 4 * prices["retrain"].each,
                                                  work.expected(name)))  # fmt: skip
        price = prices[method].total(n) / prices["retrain"].each
        chosen = {"method": method, "price": price, "why": why, "n": n}
        if price > budget / 2:
            chosen["method"] = "retrain"
        if place is not None:
            place.mkdir(parents=True, exist_ok=True)
            write_document(place / CHOSEN, chosen)
    truth = make_estimator(setup, "retrain")
    if chosen["method"] == "retrain":
        return truth, None
    return truth, _estimated(setup, chosen, place, seed, progress)


def _estimated(setup: Any, chosen: dict[str, Any], place: Path | None, seed: int, progress: bool | None) -> Cheap:
    from whence.designs import Bernoulli, Exhaustive
    from whence.estimators.ladder import make_estimator
    from whence.measuring import measure

    method = chosen["method"]
    options: dict[str, Any] = {"seed": seed}
    if method == "merge" and place is not None:
        options["path"] = place.with_name(f"{place.name}-vectors")
    estimator = make_estimator(setup, method, **options)
    n_tasks = len(setup.problem.task_names)
    every = chosen["n"] == (1 << min(n_tasks, 16)) - 1
    design = Exhaustive() if every else Bernoulli(0.5)
    found = measure(estimator, design, None if every else chosen["n"], path=place, seed=seed, progress=progress)
    return Cheap(found, method, chosen["price"], chosen["why"])
