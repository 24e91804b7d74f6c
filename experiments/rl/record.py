"""Record the subsets of seven of cloning.py and of sac_subsets.py as data sets of whence: outcomes of each task.

python experiments/rl/record.py [DIR]      DIR: what they wrote, benchmarks/results/mt10 if not given
"""

from __future__ import annotations

import sys
from pathlib import Path

from mt10_results import MORE, RUNS, SAC, Truth
from sac_results import SacTruth

from whence.datasets.recorded import record

OUTCOMES = {
    "return": "mean return of 4 episodes of 200 steps",
    "success": "share of 4 episodes that succeed",
    "loss": "squared error of imitating held-out demonstrations",
}
MACHINE = "NVIDIA H200, 16 cores"
CLONING = (
    "All 120 subsets of seven of Meta-World's ten tasks MT10, {} seeds each, by behaviour cloning: {} in every task."
)
BY_SAC = (
    "40 subsets of seven of Meta-World's ten tasks MT10, by soft actor-critic with demonstrations, {:,} environment "
    "steps each: {} in every task. Two more runs of ten of them, of other seeds, were not interrupted and had fewer "
    "updates: they reach about a tenth less."
)
SAC_COMMAND = "python experiments/rl/sac_subsets.py --out run/rl --repeated 10"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    truth, sac = Truth(folder), SacTruth.read(folder / SAC, folder / MORE)
    for (outcome, meaning), values in zip(OUTCOMES.items(), (truth.return_, truth.success, truth.loss), strict=True):
        runs = truth.runs(values[: truth.seeds], outcome)
        title, command = CLONING.format(truth.seeds, meaning), "python experiments/rl/cloning.py --out run/rl --seeds 3"
        machine = f"{MACHINE}; the third seed x86_64, one core"
        save(f"mt10_cloning_{outcome}", runs, title, command, machine=machine, date="2026-11-18")
    for outcome in sac.outcomes:
        runs = sac.runs(outcome, sac.all)
        title, command = BY_SAC.format(sac.steps.max(), OUTCOMES[outcome]), SAC_COMMAND
        save(f"mt10_sac_{outcome}", runs, title, command, machine=MACHINE, date="2026-11-19")


def save(name, runs, title: str, command: str, **about: str) -> None:
    """Record runs without the mean over tasks, which is their last target."""
    runs = runs.targets(runs.target_names[:-1])
    record(name, runs, title, command, **about)
    print(runs)


if __name__ == "__main__":
    main()
