r"""Agents that learn side by side: which tasks each has, its seed, and whether demonstrations are in its replay.

    python experiments/rl/crew.py > run/rl2/crew.csv             agents of a call of sac_subsets.py after the first one
    python experiments/rl/crew.py run/rl2 > run/rl3/crew.csv     … without those that made all their steps in run/rl2

These are, the most wanted ones first, for what time may not be left: three agents with all ten tasks; two more seeds of
ten of the subsets of seven that benchmarks/results/mt10/sac has runs of; three with each single task; for the four
targets that runs of SAC do not nearly always succeed in, three with the three companions that a surrogate of those runs
finds and three with companions drawn at random; ten of the subsets of seven without demonstrations; and three of each
of the four targets with the companions whose gradients are most alike.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from cloning import design, rows_of
from mt10 import TASKS

import whence
from whence.errors import InputError

SEEDS = 3
TARGETS = ("reach", "push", "pick-place", "peg-insert-side")  # of which companions are tried


@dataclass(frozen=True)
class Crew:
    """Agents, one per row.

    Attributes
    ----------
    kind : list of str
        What each is for.
    subsets : ndarray (m, 10)
    seeds, starts : ndarray of int (m,)
        Agents with the same start begin with the same random networks.
    shown : ndarray of bool (m,)
        Whether half of its batches are demonstrations.
    """

    kind: list[str]
    subsets: np.ndarray
    seeds: np.ndarray
    starts: np.ndarray
    shown: np.ndarray

    @property
    def tasks(self) -> list[np.ndarray]:
        """Numbers of the tasks of each agent."""
        return [np.flatnonzero(row) for row in self.subsets]

    @classmethod
    def sevens(cls, n: int, repeated: int) -> Crew:
        """Subsets of seven in a random order, then two more seeds of the first of them; each has its own start."""
        sevens = np.random.default_rng(0).permutation(design()[0][:120])[:n]
        subsets, seeds = np.vstack([sevens, *[sevens[:repeated]] * 2]), np.repeat([0, 1, 2], [n, repeated, repeated])
        every = np.ones(len(seeds), bool)
        return cls(["sevens"] * len(seeds), subsets, seeds, 1000 * seeds + np.arange(len(seeds)), every)

    @classmethod
    def read(cls, path: Path) -> Crew:
        """Agents of a file as `lines` writes it."""
        table = pd.read_csv(path)
        subsets = np.array([np.isin(TASKS, row.split("+")) for row in table["tasks"]], float)
        if (counts := table["tasks"].str.count(r"\+") + 1 != subsets.sum(1)).any():
            raise InputError(f"{path}: '{table['tasks'][counts.argmax()]}' are not tasks of MT10: {', '.join(TASKS)}.")
        seeds, starts = (table[name].to_numpy() for name in ("seed", "start"))
        return cls(table["kind"].tolist(), subsets, seeds, starts, table["demonstrations"].to_numpy(bool))

    def lines(self) -> Iterator[str]:
        """Lines of a CSV file."""
        yield "kind,tasks,seed,start,demonstrations"
        for kind, own, *rest in zip(self.kind, self.tasks, self.seeds, self.starts, 1 * self.shown, strict=True):
            yield f"{kind},{'+'.join(TASKS[k] for k in own)},{','.join(str(number) for number in rest)}"


def second(found: whence.Outcomes, cosines: np.ndarray) -> Crew:
    """Agents of the second call, given the returns of the first one and the cosines of the tasks' gradients."""
    rows: list[tuple[str, np.ndarray, int, bool]] = [("all", np.ones(10), seed, True) for seed in range(SEEDS)]
    sevens = Crew.sevens(10, 10)
    rows += [("sevens", sevens.subsets[i], int(sevens.seeds[i]), True) for i in range(10, 30)]
    rows += [(f"{TASKS[k]} alone", np.eye(10)[k], seed, True) for seed in range(SEEDS) for k in range(10)]
    model, rng = whence.fit(found), np.random.default_rng(0)
    numbers = [TASKS.index(name) for name in TARGETS]
    fours = rows_of(itertools.combinations(range(10), 4))
    predicted = model.predict(fours)
    best = {k: fours[np.where(fours[:, k] > 0, predicted[:, k], -np.inf).argmax()] for k in numbers}
    alike = np.argsort(-cosines - 2 * np.eye(10), axis=1)[:, :4]  # itself first
    for seed in range(SEEDS):
        for k in numbers:
            drawn = [k, *rng.permutation(np.delete(np.arange(10), k))[:3]]
            rows.append((f"{TASKS[k]} with top", best[k], seed, True))
            rows.append((f"{TASKS[k]} with random", 1.0 * np.isin(np.arange(10), drawn), seed, True))
    rows += [("plain", sevens.subsets[i], 0, False) for i in range(10)]
    rows += [
        (f"{TASKS[k]} with near", 1.0 * np.isin(np.arange(10), alike[k]), seed, True)
        for seed in range(SEEDS)
        for k in numbers
    ]
    kinds, subsets, seeds, shown = zip(*rows, strict=True)
    # Sevens have starts of their own; the others of a seed share one, so that what they learned can be merged.
    starts = [1000 * seed + (i if kind in ("sevens", "plain") else 900) for i, (kind, _, seed, _) in enumerate(rows)]
    return Crew(list(kinds), np.array(subsets), np.array(seeds), np.array(starts), np.array(shown))


def without(crew: Crew, folders: list[Path]) -> Crew:
    """The agents that none of these folders has with all their steps."""
    done = set()
    for folder in folders:
        with np.load(folder / "sac_truth.npz") as found:
            each = found["steps"] / found["subsets"].sum(1)
            for row in np.flatnonzero(each == each.max()):
                done.add((found["kinds"][row], int(found["seeds"][row]), *found["subsets"][row].tolist()))
    own = zip(crew.kind, crew.seeds.tolist(), crew.subsets.tolist(), strict=True)
    left = [row for row, (kind, seed, subset) in enumerate(own) if (kind, seed, *subset) not in done]
    arrays = (part[left] for part in (crew.subsets, crew.seeds, crew.starts, crew.shown))
    return Crew([crew.kind[row] for row in left], *arrays)


def main() -> None:
    from mt10_results import RUNS
    from sac_results import SacTruth

    warnings.simplefilter("ignore", whence.DataWarning)  # subsets of four are predicted from those of seven
    truth = SacTruth.read(RUNS / "sac")
    crew = second(truth.runs("return", truth.all), np.load(RUNS / "joint.npz")["cosines"])
    left = without(crew, [Path(folder) for folder in sys.argv[1:]])
    sys.stdout.write("\n".join(left.lines()) + "\n")


if __name__ == "__main__":
    main()
