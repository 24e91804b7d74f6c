"""True runs and estimates of a problem as one small file, in half precision, and read again.

Estimates that are sums over tasks are kept as one number per task and query, by "kind/share of the run/seed of the
run"; others as their values at the subsets of the true runs and at 100 more.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import whence
from passes import Workload
from whence.baselines import Scores

ESTIMATED = 100  # subsets beyond those of the true runs


class Record:
    """What is known of one problem."""

    def __init__(self, name: str, subsets, work: dict) -> None:
        self.name, self.subsets, self.work = name, np.asarray(subsets, dtype=float), work
        self.truth = self.again = None
        self.scores: dict[str, np.ndarray] = {}  # (K + 1, q): what each task adds, and the level
        self.values: dict[str, np.ndarray] = {}  # (n, q) at `known`

    @property
    def known(self) -> np.ndarray:
        """The subsets that estimates are made for."""
        size = int(self.subsets[0].sum())
        return np.concatenate([self.subsets, whence.FixedSize(size).draw(self.subsets.shape[1], ESTIMATED, seed=1)])

    def add_scores(self, key: str, found: Scores) -> None:
        self.scores[key] = np.concatenate([found.coef_, np.atleast_2d(found.intercept_)])

    def add_values(self, key: str, values) -> None:
        self.values[key] = np.asarray(values)

    def made(self, *keys: str) -> Scores:
        """Scores as they were found, averaged if these are several points or runs, as `whence.JointScores` does."""
        from whence.baselines.joint import mean_scores

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
    def workload(self) -> Workload:
        return Workload(**self.work)


def file_name(problem: str) -> str:
    return problem.lower().replace(", ", "_").replace(" ", "_").replace("-", "_")
