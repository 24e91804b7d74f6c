r"""First-order error of actors of SAC: how far they are, at the end, from their linear model at an earlier point.

    python experiments/rl/sac_linearity.py EARLIER LATER      folders that sac_subsets.py wrote, of the same agents

Medians over held-out states of the agent's tasks of the error of the most likely action before tanh, over the size of
that action and over what it changed; written to first_order.json in LATER, as the mean over agents.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from cloning import Cloning, recipe
from mt10 import ACTIONS

from whence.estimators.linearity import linearization_error

WIDTH = 256


def main() -> None:
    earlier, later = Path(sys.argv[1]), Path(sys.argv[2])
    with np.load(earlier / "demonstrations.npz") as demos:
        problem = Cloning(dict(demos), WIDTH, recipe(Namespace(steps=1, batch=1)), "cpu").problem
    with np.load(later / "sac_truth.npz") as truth:
        going = np.flatnonzero(truth["steps"] == truth["steps"].max())
        subsets = truth["subsets"]
    before, after = actors(earlier), actors(later)
    owner = problem.targets.owner.numpy()
    found: dict[str, list[float]] = {"outputs": [], "change": []}
    for agent in going:
        own = np.isin(owner, np.flatnonzero(subsets[agent]))
        at = problem.at(state(before, agent))
        for kind, values in found.items():
            errors = linearization_error(at, state(after, agent), relative_to=kind)
            values.append(float(np.median(errors[own])))
    facts = {"agents": len(going), **{f"error over {kind}": round(float(np.mean(v)), 3) for kind, v in found.items()}}
    print(facts)
    (later / "first_order.json").write_text(json.dumps(facts, indent=2))


def actors(folder: Path) -> list[np.ndarray]:
    """Weights and biases of all actors, the agent as the first axis."""
    parts = [dict(np.load(path)) for path in sorted(folder.glob("sac_networks_*.npz"))]
    return [np.concatenate([part[f"actor.{i}"] for part in parts]).astype(np.float32) for i in range(6)]


def state(layers: list[np.ndarray], agent: int) -> dict[str, torch.Tensor]:
    """Parameters of an agent's most likely action, as those of `cloning.network`."""
    found = {}
    for number, (weight, bias) in enumerate(zip(layers[::2], layers[1::2], strict=True)):
        width = ACTIONS if number == 2 else None  # the others are of the spread
        found[f"{2 * number}.weight"] = torch.from_numpy(weight[agent][:, :width].T.copy())
        found[f"{2 * number}.bias"] = torch.from_numpy(bias[agent][0, :width].copy())
    return found


if __name__ == "__main__":
    main()
