"""Record the subsets of seven of cloning.py as data sets of whence: return, success and imitation loss of each task.

python experiments/rl/record.py [DIR]      DIR: what cloning.py wrote, benchmarks/results/mt10 if not given
"""

from __future__ import annotations

import sys
from pathlib import Path

from mt10_results import RUNS, Truth

from whence.datasets.recorded import record

OUTCOMES = {
    "return": "mean return of 4 episodes of 200 steps",
    "success": "share of 4 episodes that succeed",
    "loss": "squared error of imitating held-out demonstrations",
}
MACHINE = "NVIDIA H200, 16 cores; the third seed x86_64, one core"
TITLE = (
    "All 120 subsets of seven of Meta-World's ten tasks MT10, {} seeds each, by behaviour cloning: {} in every task."
)


def main() -> None:
    truth = Truth(Path(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
    for (outcome, meaning), values in zip(OUTCOMES.items(), (truth.return_, truth.success, truth.loss), strict=True):
        runs = truth.runs(values[: truth.seeds], outcome)
        runs = runs.targets(runs.target_names[:-1])
        title, command = TITLE.format(truth.seeds, meaning), "python experiments/rl/cloning.py --out run/rl --seeds 3"
        record(f"mt10_cloning_{outcome}", runs, title, command, machine=MACHINE, date="2026-11-18")
        print(runs)


if __name__ == "__main__":
    main()
