"""Runs of the table of attribution, in the paper's setting: true outcomes, and what every baseline says of them.

    python experiments/paper/attribution_runs.py --out DIR --device cuda     all four operations, modulo 97
    … --small           modulo 19, width 24, addition and quadratic; a quarter of an hour on one core
    … --only addition   operations whose name has this text
    … --first 3         begin with the fourth run; scores that DIR has are kept
    … --quick           a few steps, in seconds

An independent run is 50 Bernoulli(0.9) subsets of the 25 groups, 12 of them twice, every training from a random start
and with batches of its own, and one more training on all groups, of which influence functions, TracIn, TRAK, SOURCE
and BIF have the checkpoints. There are five. True outcomes are added to the recorded sets (``runs.py``);
OPERATION_scores.npz has the scores of the groups by each baseline, which attribution.py judges.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from flatness import K, smaller
from modular_sets import examples
from runs import command, keep, machine

import whence
from modular import P, initial
from whence.baselines import Langevin
from whence.baselines.joint import KINDS, QUARTERS
from whence.models.stack import Stack, unstacked
from whence.models.training import train

RUNS, SUBSETS, AGAIN = 5, 50, 12
EACH = SUBSETS + AGAIN  # trainings of a run
BASELINES = {  # as the paper calls them: the method of whence, and its options
    "Influence functions": ("influence", {}),
    "TracIn": ("tracin", {}),
    "TRAK": ("trak", {}),
    "SOURCE": ("source", {"rank": 8}),
    "BIF": ("bif", {"sampler": Langevin(chains=4, draws=25, thin=2, burn_in=25)}),
}
CURVED = {"source": 40, "bif": 40}  # examples of each group that these look at, where there are more


@dataclass(frozen=True)
class Size:
    """How large the models and the trainings are."""

    modulus: int = P
    width: int = 128
    heads: int = 4
    steps: int = 800
    lr: float = 1e-3
    batch: int = 256
    operations: tuple[str, ...] = ("addition", "quadratic", "xor", "division")

    @property
    def shape(self) -> dict[str, int]:
        return {"width": self.width, "layers": 2, "heads": self.heads}

    def __str__(self) -> str:
        return f"modulo {self.modulus}, a transformer of 2 layers and width {self.width}, {self.steps} steps of AdamW"


FULL = Size()
SMALL = Size(19, 24, 2, 150, 3e-3, 96, ("addition", "quadratic"))
QUICK = Size(19, 16, 2, 4, 3e-3, 32, ("addition", "quadratic"))


def problem_of(operation: str, size: Size, device: str) -> whence.Problem:
    """The groups, the held-out equations and a model."""
    data = examples(operation, False) if size.modulus == P else smaller(size.modulus, operation)
    return whence.Problem(initial(0, device, **size.shape), *data, per_query=True)


def subsets_of(first: int, runs: int) -> np.ndarray:
    """Subsets of each run, (runs · 62, K): 50, and then 12 of them again."""
    drawn = [whence.Bernoulli(0.9).draw(K, SUBSETS, seed=seed) for seed in range(first, first + runs)]
    return np.concatenate([part for some in drawn for part in (some, some[:AGAIN])])


def truth(operation: str, size: Size, args: argparse.Namespace) -> None:
    """Write the true outcomes of all runs, which are trained side by side."""
    begun, problem = time.time(), problem_of(operation, size, args.device)
    rows = subsets_of(args.first, args.runs)
    recipe = whence.Recipe(steps=size.steps, lr=size.lr, batch_size=size.batch)

    def start(seed: int) -> torch.nn.Module:
        return initial(10_000 + seed, args.device, **size.shape)

    run = whence.Retrain(problem, recipe, init=start, batched=True, batch_size=args.at_once)
    values = run.batch(rows, args.first * EACH + np.arange(len(rows)))["loss"]
    names = [f"loss[{query}]" for query in range(values.shape[1])]
    title = f"At the end {args.runs} independent sets of {SUBSETS} subsets, {AGAIN} of them twice."
    title = f"And {args.runs} more." if args.first else title
    table = whence.Outcomes(rows, values, task_names=problem.task_names, target_names=names)
    keep(args.out, f"modular_{operation}_scratch_more", table, title, time.time() - begun)
    print(f"  mean loss {values.mean():.3f}, from {values.mean(1).min():.3f} to {values.mean(1).max():.3f}", flush=True)


def checkpoints(problem: whence.Problem, size: Size, args: argparse.Namespace) -> dict[float, list]:
    """Weights of a training on all groups for each run, after shares of the steps."""
    recipe = whence.Recipe(steps=size.steps, lr=size.lr, batch_size=size.batch)
    stack, shares = Stack(problem, batched=True), {max(1, round(share * size.steps)): share for share in QUARTERS}
    state, found, seeds = stack.start(args.runs), {}, 20_000 + args.first + np.arange(args.runs)
    for place, seed in enumerate(seeds):
        for name, value in initial(int(seed), args.device, **size.shape).state_dict().items():
            state[name][place] = value

    def watch(step: int, now, _) -> None:
        if step in shares:
            found[shares[step]] = unstacked({name: value.detach().clone() for name, value in now.items()})

    train(stack, recipe, state, np.ones((args.runs, K)), seeds, watch=watch)
    return found


def scores(
    operation: str, size: Size, args: argparse.Namespace, until: float, names: Sequence[str] = tuple(BASELINES)
) -> None:
    """Write the scores of the groups by each baseline, by run; what there is no time for stays out."""
    problem, path = problem_of(operation, size, args.device), args.out / f"{operation}_scores.npz"
    recipe = whence.Recipe(steps=size.steps, lr=size.lr, batch_size=size.batch)
    found, seconds = {}, {name: [] for name in BASELINES}
    if path.is_file():
        with np.load(path) as before:
            found = dict(before)
        seconds = json.loads(str(found.pop("about")))["seconds"]
    points = checkpoints(problem, size, args)
    for name in names:  # the slowest last
        method, options = BASELINES[name]
        for place in range(args.runs):
            run = args.first + place
            if f"{name}|{run}" in found:
                continue
            if time.time() > until:
                print(f"no time for {operation}, run {run}, {name}", flush=True)
                continue
            at, begun = KINDS[method].at, time.time()
            states = [points[share][place] for share in at]
            few = None if size.modulus != P else CURVED.get(method)
            try:
                made = whence.JointScores(
                    problem, recipe, method, at=at, checkpoints=states, examples=few, seed=run, **options
                )
                found[f"{name}|{run}"] = made.scores.coef_.astype(np.float32)
            except Exception:
                traceback.print_exc()
                continue
            seconds[name].append(time.time() - begun)
            print(f"{operation}, run {run}, {name}: {seconds[name][-1]:.1f} s", flush=True)
        about = {"size": str(size), "seconds": seconds, "command": command(), "machine": machine()}
        about["date"] = time.strftime("%Y-%m-%d")
        np.savez_compressed(path, about=json.dumps(about), **found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--first", type=int, default=0, help="the first of the runs")
    parser.add_argument("--at-once", type=int, default=320, help="models side by side")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no further scores are begun")
    parser.add_argument("--part", choices=("truth", "scores"), help="only this")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    size = QUICK if args.quick else SMALL if args.small else FULL
    torch.set_float32_matmul_precision("high")
    args.out.mkdir(parents=True, exist_ok=True)
    until = time.time() + args.seconds
    for operation in (name for name in size.operations if args.only in name):
        if args.part != "scores":
            truth(operation, size, args)
        if args.part != "truth":
            scores(operation, size, args, until)


if __name__ == "__main__":
    main()
