"""Modular arithmetic in the paper's own setting, and fine-tuned: true outcomes, to be recorded sets.

    python experiments/paper/modular_sets.py --out DIR --device cuda     all eight; about 3 minutes on an H200
    python experiments/paper/runs.py DIR                                 keep them as recorded sets
    … --only addition_scratch      those whose name has this text
    … --quick                      a small model and few steps, on a processor

Addition and quadratic as in the paper, division and XOR of its introduction. *Scratch*: random weights, Bernoulli(0.9)
subsets of the 25 groups, as in the paper. *Tuned*: from weights that have learned three other operations, on subsets of
15 groups, in which size tells nothing. 100 subsets each, 30 of them with two more seeds; the outcome is the loss of
every held-out equation. Division by 0 gives 0; the XOR of two numbers is taken modulo 97.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from runs import keep

import whence
from modular import P, initial, pretrained, tasks_and_target

K, SIZE, SUBSETS, AGAIN = 25, 15, 100, 30
OTHERS = {  # operations of the paper's introduction: of the tokens a, op, b, =
    "division": lambda a, b: torch.tensor([pow(int(y), P - 2, P) * int(x) % P for x, y in zip(a, b, strict=True)]),
    "xor": lambda a, b: (a ^ b) % P,
}
SETS = [
    *(f"{operation}_scratch" for operation in ("addition", "quadratic")),
    *(f"{operation}_tuned" for operation in ("addition", "quadratic", "division", "xor")),
    *(f"{operation}_scratch" for operation in ("division", "xor")),
]


def examples(operation: str, quick: bool):
    """The 25 groups to train on, and the tenth of all equations to test on."""
    tasks, target = tasks_and_target("addition" if operation in OTHERS else operation)

    def relabelled(tokens, labels):
        tokens, labels = (tokens[:8], labels[:8]) if quick else (tokens, labels)
        return tokens, OTHERS[operation](tokens[:, 0], tokens[:, 2]) if operation in OTHERS else labels

    return {name: relabelled(*group) for name, group in tasks.items()}, relabelled(*target)


def measured(name: str, start: torch.nn.Module, args: argparse.Namespace) -> tuple[whence.Outcomes, str]:
    """The runs of a set, and what they are."""
    operation, kind = name.split("_")
    scratch, size = kind == "scratch", args.size
    design = whence.Bernoulli(0.9) if scratch else whence.FixedSize(SIZE)
    steps, lr = ((800, 1e-3) if scratch else (100, 3e-4)) if not args.quick else (5, 1e-3)
    subsets = design.draw(K, 8 if args.quick else SUBSETS, seed=0)
    again = subsets[: 2 if args.quick else AGAIN]
    problem = whence.Problem(start, *examples(operation, args.quick), per_query=True)
    recipe = whence.Recipe(steps=steps, lr=lr, batch_size=16 if args.quick else 256)
    fresh = (lambda seed: initial(seed + 1, args.device, **size)) if scratch else None
    run = whence.Retrain(problem, recipe, init=fresh, batched=True, batch_size=args.at_once)
    rows = np.concatenate([subsets, again, again])
    values = run.batch(rows, np.arange(len(rows)))["loss"]  # every run has a start and batches of its own
    names = [f"loss[{i}]" for i in range(values.shape[1])]
    where = "from scratch on Bernoulli(0.9) subsets" if scratch else "fine-tuned on subsets of 15"
    title = f"Modular {operation}, {where} of 25 groups, {steps} steps: losses of held-out equations."
    return whence.Outcomes(rows, values, task_names=problem.task_names, target_names=names), title


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="")
    parser.add_argument("--at-once", type=int, default=160, help="models side by side")
    parser.add_argument("--seconds", type=float, default=180.0, help="after which no further set is begun")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    args.size = {"width": 16, "layers": 1, "heads": 2} if args.quick else {}
    torch.set_float32_matmul_precision("high")
    begun = time.time()
    wanted = [name for name in SETS if args.only in name and not (args.out / f"modular_{name}.npz").exists()]
    tuned = None
    for name in wanted:
        if time.time() - begun > args.seconds:
            print(f"no time for {name}", flush=True)
            continue
        if name.endswith("tuned") and tuned is None:
            tuned = pretrained(args.device, 5 if args.quick else 3000, **args.size)
            print(f"pretrained after {time.time() - begun:.0f} s", flush=True)
        started = time.time()
        start = tuned if name.endswith("tuned") else initial(0, args.device, **args.size)
        runs, title = measured(name, start, args)
        keep(args.out, f"modular_{name}", runs, title, time.time() - started)
        spread = runs.values.mean(1)
        print(f"  mean loss {spread.mean():.3f}, from {spread.min():.3f} to {spread.max():.3f}", flush=True)


if __name__ == "__main__":
    main()
