"""True runs and estimates of a problem as one small file, in half precision, and read again.

Estimates that are sums over tasks are kept as one number per task and query, by "kind/share of the run/seed of the
run"; others as their values at the subsets of the true runs and at 100 more.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import whence
from passes import Workload, prices
from whence import datasets
from whence.baselines import Scores
from whence.baselines.joint import mean_scores
from whence.ladder.probes import Price  # here in true runs

HERE = Path(__file__).resolve().parent
ESTIMATED = 100  # subsets beyond those of the true runs
LORA = HERE / "results" / "finetune_smollm"
LORA_KINDS = {"influence": "influence", "trak": "trak", "merge, a quarter": "merged_outputs"}


@dataclass(eq=False)
class Given:
    """A problem, how it is trained, and its subsets.

    ``values`` are those of recorded true runs, (seeds, subsets, queries), and ``again`` of other runs of some of the
    subsets where these have one seed; ``points`` gives the places of a joint run that is not trained by the recipe.
    """

    problem: whence.Problem
    recipe: whence.Recipe
    subsets: np.ndarray
    values: np.ndarray | None = None
    seeds: int = 2
    again: np.ndarray | None = None
    points: Callable[[int], list[tuple[whence.Problem, dict]]] | None = None


class Record:
    """What is known of one problem; ``paid`` are prices in true runs where these are not those of passes.py."""

    def __init__(self, name: str, subsets, work: dict, paid: dict[str, Price] | None = None) -> None:
        self.name, self.subsets, self.work, self.paid = name, np.asarray(subsets, dtype=float), work, paid
        self.truth = self.again = None
        size = int(self.subsets[0].sum())
        self.others = whence.FixedSize(size).draw(self.subsets.shape[1], ESTIMATED, seed=1)
        self.scores: dict[str, np.ndarray] = {}  # (K + 1, q): what each task adds, and the level
        self.values: dict[str, np.ndarray] = {}  # (n, q) at `known`

    @property
    def known(self) -> np.ndarray:
        """The subsets that estimates are made for."""
        return np.concatenate([self.subsets, self.others])

    def add_scores(self, key: str, found: Scores) -> None:
        self.scores[key] = np.concatenate([found.coef_, np.atleast_2d(found.intercept_)])

    def add_values(self, key: str, values) -> None:
        self.values[key] = np.asarray(values)

    def made(self, *keys: str) -> Scores:
        """Scores as they were found, averaged if these are several points or runs, as `whence.JointScores` does."""
        return mean_scores([Scores.from_coefficients(self.scores[key][:-1], self.scores[key][-1]) for key in keys])

    def write(self, folder: Path) -> None:
        arrays, scales = {"subsets": self.subsets.astype(np.int8)}, {}
        parts = {"truth": self.truth, "again": self.again}
        parts |= {f"scores/{key}": found for key, found in self.scores.items()}
        parts |= {f"values/{key}": found for key, found in self.values.items()}
        for key, found in parts.items():
            if found is not None:
                scales[key] = float(np.abs(found).max()) or 1.0  # half precision has few exponents
                arrays[key] = (found / scales[key]).astype(np.float16)
        about = json.dumps({"name": self.name, "work": self.work, "scales": scales})
        np.savez_compressed(folder / f"{file_name(self.name)}.npz", about=about, **arrays)

    @classmethod
    def read(cls, file: Path) -> Record:
        with np.load(file) as found:
            about = json.loads(str(found["about"]))
            made = cls(about["name"], found["subsets"], about["work"])
            for key, scale in about["scales"].items():
                kind, _, rest = key.partition("/")
                value = found[key].astype(float) * scale
                if rest:
                    getattr(made, kind)[rest] = value
                else:
                    setattr(made, kind, value)
        return made

    @property
    def steps(self) -> int:
        return int(self.work["steps"])

    def price(self, words: str) -> float:
        """What estimates cost that are no scores."""
        changed = {"early": 0.25, "merge": "outputs"} if words == "merge, a quarter" else {"merge": "outputs"}
        method = words if words in self.prices() else "merge"
        return self.prices(**({} if self.paid is not None else changed))[method].once

    def prices(self, at: tuple[float, ...] = (0.5,), **changed) -> dict[str, Price]:
        """Prices of every method, in units in which a true run is 1."""
        if self.paid is not None:
            return self.paid | {"retrain": Price("retrain", 0.0, 1.0)}
        found = prices(Workload(**(self.work | changed)), at=at)
        run, n = found["retrain"].each, len(self.known)
        whole = {name: Price(name, price.total(n) / run, 0.0, run=price.run / run) for name, price in found.items()}
        return whole | {"retrain": Price("retrain", 0.0, 1.0)}


def lora(family: str) -> Record:
    """A study of LoRA adapters (finetune_smollm.md) as such a record: scores halfway along a run, merged outputs."""
    runs = datasets.load(f"smollm_{family}")
    again: dict[tuple[float, ...], list[int]] = {}
    for row, subset in enumerate(runs.subsets):
        again.setdefault(tuple(subset), []).append(row)
    first = [rows[0] for rows in again.values()]
    twice = np.array([rows for rows in again.values() if len(rows) > 1])
    told = json.loads((LORA / f"{family}_scores.json").read_text(encoding="utf-8"))
    joint = json.loads((LORA / f"{family}.json").read_text(encoding="utf-8"))["prices"]["joint run"][0]
    runs_of = {"influence": joint, "trak": joint}
    paid = {
        name: Price(name, told[key]["price"][0], 0.0, run=runs_of.get(name, 0.0)) for name, key in LORA_KINDS.items()
    }
    found = Record(f"LoRA, {family}", runs.subsets[first], {"steps": {"reviews": 60, "arithmetic": 300}[family]}, paid)
    found.truth, found.again = runs.values[first][None], None
    if len(twice) == len(first):
        found.truth = runs.values[twice.T]
    else:
        found.again = runs.values[twice.T]
    with np.load(LORA / f"{family}.npz") as kept:
        place = {tuple(subset): row for row, subset in enumerate(kept["subsets"].astype(float))}
        mine = [place[tuple(subset)] for subset in found.subsets]
        rows = [*mine, *sorted(set(place.values()) - set(mine))]
        found.others = kept["subsets"].astype(float)[rows[len(mine) :]]
        for name, key in LORA_KINDS.items():
            found.values[name] = kept[f"rung_{key}"].astype(float)[rows]
    return found


def file_name(problem: str) -> str:
    return problem.lower().replace(", ", "_").replace(" ", "_").replace("-", "_")
