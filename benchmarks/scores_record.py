"""Scores at points of joint runs, one by one, with true runs beside them: what scores.py makes every mix of.

    python benchmarks/scores_record.py                    the problems of a processor, one after the other
    python benchmarks/scores_record.py --device cuda      modular arithmetic of the paper's size
    … --cifar DIR           CIFAR-10 too: images as scores_images.py packs them
    … --only "digits"       problems whose name has this text
    … --wheels DIR          newsgroups too: where the wheels of newsgroups.py are unpacked
    … --out DIR             where to; by default benchmarks/results/scores
    … --quick               little of everything, nothing written beside --out

For every problem a file (scores_file.py): the subsets, the losses of each query after true training, and of every kind
of estimates one number per task and query, or its values where it is no sum over tasks. Influence functions and TRAK
are found at every quarter of a joint run, and halfway along two more.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments"))

import whence
from passes import workload
from scores_file import Given, Record
from scores_problems import PROBLEMS
from whence import JointScores
from whence.baselines import EKFAC
from whence.baselines.joint import QUARTERS
from whence.ladder.methods import Setup
from whence.models.stack import Stack
from whence.models.training import train

HERE = Path(__file__).resolve().parent
MORE = {  # halfway: words: method, options
    "influence, damped by 0.1": ("influence", {"solver": EKFAC(relative_damping=0.1)}),
    "influence, damped by 1": ("influence", {"solver": EKFAC(relative_damping=1.0)}),
    "influence, damping 0.01": ("influence", {"solver": EKFAC(), "damping": 0.01}),
    "influence, 16 examples a task": ("influence", {"examples": 16}),
    "trak, 16 examples a task": ("trak", {"examples": 16}),
    "trak, l2 of 0.1": ("trak", {"l2": 0.1}),
    "trak, l2 of 10": ("trak", {"l2": 10.0}),
}
MERGES = {
    "merge, a quarter": {"early": 0.25, "merge": "outputs"},
    "background": {"background": 0.75, "merge": "outputs"},
}


def joint_run(given: Given, seed: int):
    """The trained parameters at every quarter of a run on all tasks."""
    if given.points is not None:
        return given.points(seed)
    problem, recipe = given.problem, given.recipe
    wanted, found = [max(1, round(share * recipe.steps)) for share in QUARTERS], {}

    def watch(step, state, _) -> None:
        if step in wanted:
            found[step] = {name: value.detach().clone() for name, value in state.items()}

    stack, everything = Stack(problem, batched=False), np.ones((1, len(problem.task_names)))
    train(stack, recipe, stack.start(1), everything, np.array([seed]), max(wanted), watch=watch)
    return [(problem, found[step]) for step in wanted]


def recorded(name: str, args) -> Record:
    given = PROBLEMS[name](args)
    problem, recipe = given.problem, given.recipe
    found = Record(name, given.subsets, asdict(workload(Setup(problem, recipe))))
    if given.values is None:
        run, runs = whence.Retrain(problem, recipe), np.ones(len(given.subsets), dtype=int)
        given.values = np.array([run.batch(given.subsets, seed * runs)["loss"] for seed in range(given.seeds)])
    found.truth, found.again = given.values, given.again
    for seed in range(1 if args.quick else 3):
        for share, (at, state) in zip(QUARTERS, joint_run(given, seed), strict=True):
            kinds = {"influence": ("influence", {}), "trak": ("trak", {}), "tracin": ("tracin", {})}
            if seed and share != 0.5:
                continue
            if not seed and share == 0.5:
                kinds |= MORE
            for words, (method, options) in kinds.items():
                if seed and method == "tracin":
                    continue
                began = time.time()
                made = JointScores(at, recipe, method, at=share, checkpoints=[state], seed=seed, **options)
                found.add_scores(f"{words}/{share}/{seed}", made.scores)
                print(f"  {words} after {share}, run {seed}: {time.time() - began:.2f} s", flush=True)
    if given.points is None:
        known = found.known
        for words, options in MERGES.items():
            began = time.time()
            found.add_values(words, whence.TaskVectors(problem, recipe, **options).batch(known)["loss"])
            print(f"  {words}: {time.time() - began:.2f} s", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "scores")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    args.truth, args.model = None, None
    args.out.mkdir(parents=True, exist_ok=True)
    for name in PROBLEMS:
        large = name == "CIFAR-10" or (name.endswith("steps") and name.startswith(("addition", "quadratic")))
        needs = {"CIFAR-10": args.cifar, "newsgroups": args.wheels}.get(name, args)
        if large != (args.device == "cuda") or args.only not in name or needs is None:
            continue
        began = time.time()
        print(name, flush=True)
        recorded(name, args).write(args.out)
        print(f"  {time.time() - began:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
