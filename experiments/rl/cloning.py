r"""Behaviour cloning on subsets of the ten tasks of Meta-World's MT10: what every policy reaches in real episodes.

Scripted experts show each task once for all. A policy (two hidden layers; sees the one-hot of all ten tasks) imitates
the demonstrations of the tasks of its subset, from its seed's own random start. Policies are trained side by side, as
many as ``--together`` says, and then played by processes. Subsets: all 120 of seven tasks, judged in all ten; and all
210 of four, the ten single tasks and all tasks together, judged in their own tasks, so that "this target with those
three" can be looked up.

    python experiments/rl/cloning.py --out run/rl --workers 16          a few minutes on an H200 and 16 cores
    python experiments/rl/cloning.py --out run/rl --rows 0:120          only the subsets of seven
    python experiments/rl/cloning.py --out run/rl --quick               a few policies, half a minute on two cores

Written under ``--out``, and resumed: demonstrations.npz, truth_seed0.npz … (returns and successes of every episode
(subset, task, episode), NaN where not played; imitation losses (subset, task)) and cloning.json. Until a seed is
complete, its policies are in seed0_from0.npz …, a file for those trained together.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from mt10 import ACTIONS, SEEN, TASKS, Rollouts, folded
from torch import nn

import whence
from whence.models.problem import Problem, State
from whence.models.stack import Stack
from whence.models.training import train

SIZES = {  # by default, and with --quick
    "seeds": (3, 1), "demos": (20, 3), "episodes": (4, 1), "horizon": (200, 100), "width": (256, 32),
    "steps": (3000, 100), "batch": (128, 32), "workers": (len(os.sched_getaffinity(0)), 2),
}  # fmt: skip
NOISE = 0.2  # of demonstrations
HELD_OUT = 0.2  # share of the demonstrations that imitation is judged on


def main() -> None:
    given = arguments({"rows": ("0:341", "0:3"), "together": (120, 2)})
    given.out.mkdir(parents=True, exist_ok=True)
    began, seconds, steps = time.time(), {}, 0
    subsets, wanted = (quick_design if given.quick else design)()
    rows = numbers(given.rows)
    sizes = {"episodes": given.episodes, "horizon": given.horizon, "width": given.width}
    with Rollouts(given.workers, **sizes) as rollouts:
        demos = demonstrations(given, rollouts)
        seconds["demonstrations"] = time.time() - began
        cloned = Cloning(demos, given.width, recipe(given), given.device)
        for seed in range(given.seeds):
            path = given.out / f"truth_seed{seed}.npz"
            if path.exists():
                say(began, f"seed {seed} is there already")
                continue
            for some in missing(given.out, seed, rows, given.together):
                since, what = time.time(), f"{len(some)} policies from {some[0]} of seed {seed}"
                states = cloned.train(subsets[some], seed, some)
                seconds[f"training {what}"] = (trained := time.time()) - since
                policies = cloned.policies(states), wanted[some], given.out / "policies.npy"
                returns, success = rollouts.start(*policies, seed)()
                seconds[f"playing {what}"] = time.time() - trained
                part = {"rows": some, "returns": returns, "success": success, "losses": cloned.losses(states)}
                save(given.out / f"seed{seed}_from{some[0]}.npz", **part)
                steps += int(wanted[some].sum()) * given.episodes * given.horizon
                say(began, f"{what}: {trained - since:.0f} s to train, {time.time() - trained:.0f} s to play")
            found = together(given.out, seed, rows)
            save(path, subsets=subsets[rows], seed=seed, task_names=TASKS, **found)
            for part in parts(given.out, seed):
                part.unlink()
            seven = subsets[rows].sum(1) == 7
            reached = [np.nanmean(found[key][seven]) for key in ("returns", "success")]
            say(began, f"seed {seed}: mean return {reached[0]:.0f}, success {reached[1]:.2f} of subsets of 7")
    write_settings(given, seconds | {"all": time.time() - began}, {"steps played": steps, "recipe": str(cloned.recipe)})
    say(began, f"{steps:,} steps played, {steps / (time.time() - began):,.0f} a second with all the rest")


def parts(out: Path, seed: int) -> list[Path]:
    """Files of the policies of a seed that is not complete."""
    return list(out.glob(f"seed{seed}_from*[0-9].npz"))


def together(out: Path, seed: int, rows: np.ndarray) -> dict[str, np.ndarray]:
    """What those files hold of rows of the design, in the order of the rows."""
    files = [dict(np.load(path)) for path in parts(out, seed)]
    own = np.concatenate([file.pop("rows") for file in files])
    order = [int(np.flatnonzero(own == row)[0]) for row in rows]
    return {key: np.concatenate([file[key] for file in files])[order] for key in files[0]}


def missing(out: Path, seed: int, rows: np.ndarray, n: int) -> list[np.ndarray]:
    """Rows of the design that no file of a seed has, at most ``n`` at a time."""
    known = [np.load(path)["rows"] for path in parts(out, seed)]
    left = np.setdiff1d(rows, np.concatenate([[], *known])).astype(int)
    return [left[first : first + n] for first in range(0, len(left), n)]


class Cloning:
    """Policies that imitate demonstrations, as a `whence.Problem`.

    Attributes
    ----------
    problem : Problem
        The policy, the demonstrations of each task, and those held out as targets.
    recipe : whence.Recipe
    shown, held_out : dict of str to (inputs, actions)
        Demonstrations of each task to imitate, and to judge imitation by.
    mean, scale : ndarray
        What observations are standardised by: those of all demonstrations, whatever the subset.
    """

    def __init__(self, demos: dict[str, np.ndarray], width: int, recipe: whence.Recipe, device: str) -> None:
        self.width, self.recipe = width, recipe
        self.mean, self.scale = standard(demos)
        n = demos["seen"].shape[1]
        kept = n - max(1, round(HELD_OUT * n))
        self.shown, self.held_out = (self._examples(demos, part) for part in (slice(kept), slice(kept, n)))
        self.problem = Problem(network(width, 0), self.shown, self.held_out, loss="squared", device=device)
        self.stack = Stack(self.problem, batched=True)

    def train(self, subsets: np.ndarray, seed: int, rows: np.ndarray | None = None) -> State:
        """Policies of subsets (m, 10), stacked: each from the start of the seed, with the draws of its row (m,)."""
        start = {name: value.to(self.problem.device) for name, value in network(self.width, seed).state_dict().items()}
        state = {name: value.repeat(len(subsets), *[1] * value.ndim) for name, value in start.items()}
        seeds = seed * 100_000 + (np.arange(len(subsets)) if rows is None else rows)
        return train(self.stack, self.recipe, state, subsets, seeds)

    def losses(self, states: State) -> np.ndarray:
        """Imitation loss of stacked policies on held-out demonstrations of each task, (m, 10)."""
        return np.stack(list(self.stack.outcomes(states).values()), axis=1)

    def policies(self, states: State) -> np.ndarray:
        """Stacked policies as vectors (m, P) that take raw observations, for `mt10.act`."""
        names = self.problem.start
        parts = [states[name].transpose(1, 2) if states[name].ndim == 3 else states[name] for name in names]
        flat = torch.cat([part.detach().flatten(1) for part in parts], dim=1).cpu().numpy()
        return folded(flat, self.width, self.mean, self.scale)

    def _examples(self, demos: dict[str, np.ndarray], part: slice) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        found = {}
        for k, name in enumerate(TASKS):
            seen = demos["seen"][k, part, :-1].reshape(-1, SEEN)
            inputs = np.hstack([seen, np.tile(np.eye(len(TASKS))[k], (len(seen), 1))])
            wanted = demos["expert"][k, part].reshape(-1, ACTIONS)
            inputs = ((inputs - self.mean) / self.scale).astype(np.float32)
            found[name] = torch.from_numpy(inputs), torch.from_numpy(wanted)
        return found


def network(width: int, seed: int) -> nn.Module:
    """Policy with the random weights of a seed."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(SEEN + len(TASKS), width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, ACTIONS),
        )


def standard(demos: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and spread of what demonstrations show, 0 and 1 for the one-hot and for what never changes."""
    seen = demos["seen"].reshape(-1, SEEN).astype(np.float64)
    spread = seen.std(0)
    mean, scale = np.zeros(SEEN + len(TASKS)), np.ones(SEEN + len(TASKS))
    mean[:SEEN], scale[:SEEN] = seen.mean(0), np.where(spread > 1e-4, spread, 1.0)
    return mean.astype(np.float32), scale.astype(np.float32)


def design() -> tuple[np.ndarray, np.ndarray]:
    """Subsets (341, 10), and the tasks that each is judged in: all ten for those of seven, its own for the others."""
    sevens = rows_of(itertools.combinations(range(10), 7))
    others = np.vstack([rows_of(itertools.combinations(range(10), 4)), np.eye(10), np.ones((1, 10))])
    return np.vstack([sevens, others]), np.vstack([np.ones_like(sevens), others])


def quick_design() -> tuple[np.ndarray, np.ndarray]:
    """Three subsets, each judged in two tasks."""
    subsets = design()[0][[0, 60, 340]]
    wanted = np.zeros_like(subsets)
    wanted[:, [0, 8]] = 1
    return subsets, wanted


def rows_of(chosen: itertools.combinations) -> np.ndarray:
    return np.array([np.isin(np.arange(10), some) for some in chosen], float)


def numbers(text: str) -> np.ndarray:
    """Numbers such as 0, 1, 2 and 7 of "0:3,7"."""
    found: list[int] = []
    for part in text.split(","):
        first, _, end = part.partition(":")
        found += range(int(first), int(end) if end else int(first) + 1)
    return np.array(found)


def recipe(given: argparse.Namespace) -> whence.Recipe:
    return whence.Recipe(steps=given.steps, lr=1e-3, batch_size=given.batch, schedule="cosine", weighting="task")


def demonstrations(given: argparse.Namespace, rollouts: Rollouts) -> dict[str, np.ndarray]:
    """Demonstrations of all tasks, made once and kept."""
    path = given.out / "demonstrations.npz"
    if not path.exists():
        save(path, **rollouts.demonstrations(given.demos, NOISE, seed=0))
    with np.load(path) as found:
        return dict(found)


def save(path: Path, **arrays: object) -> None:
    """Write arrays at once: there is either all of a part or nothing."""
    single = {
        name: np.float32(value) if np.asarray(value).dtype == np.float64 else value for name, value in arrays.items()
    }
    beside = path.with_suffix(".part.npz")
    np.savez_compressed(beside, **single)
    beside.rename(path)


def write_settings(given: argparse.Namespace, seconds: dict[str, float], more: dict[str, object]) -> None:
    """Write the command, the settings and the timings as JSON, under the name of the script."""
    device = torch.cuda.get_device_name() if str(given.device).startswith("cuda") else "processor"
    found = {
        "command": " ".join(["python", *sys.argv]), "settings": {k: str(v) for k, v in vars(given).items()},
        "noise": NOISE, "device": device, "cores": len(os.sched_getaffinity(0)), "torch": torch.__version__,
        "seconds": {name: round(value, 1) for name, value in seconds.items()}, **more,
    }  # fmt: skip
    (given.out / f"{Path(sys.argv[0]).stem}.json").write_text(json.dumps(found, indent=2))


def say(began: float, words: str) -> None:
    print(f"{time.time() - began:6.1f} s  {words}", flush=True)


def arguments(more: dict[str, tuple] | None = None, **extra: tuple) -> argparse.Namespace:
    """Arguments of the command line, with the sizes of ``--quick`` where they are not given."""
    sizes = SIZES | (more or {})
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, (usual, _) in sizes.items():
        parser.add_argument(f"--{name}", type=type(usual), help=f"{usual} by default")
    found = parser.parse_args()
    for name, (usual, quick) in sizes.items():
        if getattr(found, name) is None:
            setattr(found, name, quick if found.quick else usual)
    return found


if __name__ == "__main__":
    main()
