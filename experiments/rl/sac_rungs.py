"""What estimated agents tell of true ones: the lines of the page of mt10_results.py about sac_estimates.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sac_results import OUTCOMES, SacTruth, table
from scoring import FEW_RUNS, both, correlations, of_played, with_runs

import whence

DEMO_STEPS = 10 * 20 * 200  # environment steps of all demonstrations
JUDGING_STEPS = 10 * 4 * 200  # … of the episodes that judge a policy
JOINT_STEPS = 286_000  # … of an agent of all tasks, and of ten agents of one task each
MEASURES = {"linear": -1, "imitation": -1, "value": 1}  # by which estimated agents are compared: the sign of better
TITLES = {
    "imitating": "GradEx at the end, imitating experts",
    "imitating_early": "GradEx after 5,000 steps in each task, imitating experts",
    "valued": "GradEx at the end, imitating the best actions of its replay",
    "improved": "GradEx at the end, imitating its own actions, improved by its critics",
    "one_step": "one step of SAC's own loss, at the end",
    "vectors": "task vectors of ten agents with one task",
}
FUSED = {"imitating": "linear", "improved": "value"}  # with true runs: the paper's way, and the way of critics


@dataclass(frozen=True)
class Rung:
    """Estimates of one kind.

    Attributes
    ----------
    subsets : ndarray (m, 10)
    measures : dict of str to ndarray (m, 10)
        By name as in `MEASURES`, more is better.
    returns, success : ndarray (n, 10)
        Of the first n estimated agents, by real episodes.
    """

    subsets: np.ndarray
    measures: dict[str, np.ndarray]
    returns: np.ndarray
    success: np.ndarray

    def rows(self, subsets: np.ndarray) -> np.ndarray:
        """Where these subsets are."""
        return (self.subsets == subsets[:, None]).all(2).argmax(1)


def read(folder: Path) -> dict[str, Rung]:
    """What sac_estimates.py wrote, by title."""
    found = {}
    for name, title in TITLES.items():
        with np.load(folder / f"sac_rung_{name}.npz") as file:
            measures = {key: sign * file[key].astype(float) for key, sign in MEASURES.items() if key in file}
            found[title] = Rung(file["subsets"], measures, file["returns"].mean(2), file["success"].mean(2))
    return found


def alone(rungs: dict[str, Rung], truth: SacTruth) -> Iterator[str]:
    """Lines of the page: rank correlations of estimates with the first seed's runs, without any of these."""
    shown = {"linear": "its linear loss", "imitation": "imitation", "value": "its critics"}
    names = [f"{outcome} by {words}" for outcome in OUTCOMES for words in shown.values()]
    yield "\n| | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 1)
    for title, rung in rungs.items():
        rows, cells = rung.rows(truth.subsets[truth.first]), []
        for outcome in OUTCOMES:
            measured = truth.runs(outcome, truth.first).values
            for key in shown:
                known = key in rung.measures
                cells.append(both(correlations(_with_mean(rung.measures[key][rows]), measured)) if known else "")
        yield f"| {title} | {' | '.join(cells)} |"


def fused(truth: SacTruth, rungs: dict[str, Rung], cloning: dict[str, whence.Outcomes], splits: int) -> Iterator[str]:
    """Lines of the page: estimates of SAC alone and with a few true runs.

    Prices count environment steps: of demonstrations and of the episodes that judge the clones, or of training the
    agent of all tasks.
    """
    run = truth.steps.max() + JUDGING_STEPS
    clones = (DEMO_STEPS + cloning["return"].n_runs * JUDGING_STEPS) / run
    yield "\n| | price in runs of SAC | no run of SAC | " + " | ".join(f"and {n}" for n in FEW_RUNS) + " |"
    yield "|" + "---|" * (3 + len(FEW_RUNS))
    for outcome in OUTCOMES:
        first = truth.runs(outcome, truth.first)
        estimates: dict[str, tuple[float, whence.Outcomes | None]] = {"SAC alone": (0, None)}
        for name, measure in FUSED.items():
            rung = rungs[TITLES[name]]
            estimates[TITLES[name]] = (
                JOINT_STEPS / run,
                table(rung.subsets, rung.measures[measure], truth.names, outcome),
            )
        estimates["one seed of cloning"] = clones, cloning[outcome]
        for title, (price, known) in estimates.items():
            cells = [both(value) for value in with_runs(first, known, splits)]
            told = f"{price:.1f} | {both(_alone(known, first))}" if known is not None else " | "
            yield f"| {outcome}: {title} | {told} | {' | '.join(cells)} |"


def played(rungs: dict[str, Rung], truth: SacTruth) -> Iterator[str]:
    """Lines of the page: estimated agents in real episodes, beside those that learned these subsets."""
    first = truth.of(truth.first[: len(next(iter(rungs.values())).returns)])
    reached = {title: (rung.returns, rung.success) for title, rung in rungs.items()}
    reached["training"] = first.outcomes["return"], first.outcomes["success"]
    yield from of_played(reached, first.subsets > 0, first.outcomes["return"])


def _alone(estimates: whence.Outcomes, first: whence.Outcomes) -> np.ndarray:
    rows = (estimates.subsets == first.subsets[:, None]).all(2).argmax(1)
    return correlations(estimates.values[rows], first.values)


def _with_mean(values: np.ndarray) -> np.ndarray:
    return np.hstack([values, values.mean(1, keepdims=True)])
