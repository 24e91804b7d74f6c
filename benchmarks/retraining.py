"""Retraining many small models side by side, beside one after the other.

    python benchmarks/retraining.py                  on a processor, into benchmarks/results/retraining_cpu.md
    python benchmarks/retraining.py --device cuda    on a graphics card, into benchmarks/results/retraining_cuda.md
    python benchmarks/retraining.py --quick          fewer steps and sizes, nothing written

Fifty subsets of ten tasks, a model trained on each, all with the same steps and the same batches. "Plain loop" is what
one would write without whence: the module, ``torch.optim`` with its fused kernels, one model after the other; it is
timed on a few models. "At once" is `whence.Retrain` with so many models side by side, on all fifty. Ratios are to the
plain loop in the same run, medians of repetitions that take turns; the largest difference of a loss between both is
shown. On a processor, seconds are those that it spent on one thread, whoever else is using the machine; with a graphics
card, those of the clock. It needs torch, numpy, scipy, scikit-learn, pandas and joblib, and whence on the path.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor, nn

import whence
from whence.models.sampling import draw_batches

N_MODELS, N_TASKS, TASK_ROWS, N_QUERIES, CLASSES = 50, 10, 200, 256, 10
BATCH = 64
SIZES = (1, 5, 10, 25, 50)
N_ALONE = 3  # models that the plain loop is timed on


class Attention(nn.Module):
    """Two layers of attention over eight tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(50, width), nn.Parameter(0.02 * torch.randn(8, width))
        settings = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 4 * width, **settings) for _ in range(2))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens) + self.place
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden[:, -1])


def images(n: int) -> Tensor:
    return torch.randn(n, 1, 8, 8)


def tokens(n: int) -> Tensor:
    return torch.randint(50, (n, 8))


def perceptron(width: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, CLASSES))


def convolution() -> nn.Module:
    first, second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
    return nn.Sequential(
        first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, CLASSES)
    )


# Model, inputs, and steps that a processor takes.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor], int]] = {
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES)), images, 100),
    "two-layer perceptron, width 128": (lambda: perceptron(128), images, 100),
    "convolutions, 16 and 32 channels": (convolution, images, 20),
    "transformer, 2 layers, width 32": (lambda: Attention(32), tokens, 20),
    "transformer, 2 layers, width 128": (lambda: Attention(128), tokens, 5),
}


def plain_loop(model: nn.Module, tasks, target, recipe, subset, seed, device: str) -> float:
    """Train one model as one would without whence, and return its loss."""
    model = copy.deepcopy(model).to(device).train()
    inputs, labels = (torch.cat(parts).to(device) for parts in zip(*tasks.values(), strict=True))
    optimizer = recipe.update.make(recipe, list(model.parameters()))
    sizes = np.full(N_TASKS, TASK_ROWS)
    for rows in draw_batches(subset[None], np.array([seed]), sizes, recipe, recipe.steps):
        index = torch.from_numpy(rows[0]).to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[index]), labels[index]).backward()
        optimizer.step()
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model.eval()(target[0].to(device)), target[1].to(device)))


def seconds_of(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Return the seconds and the result, which is on the processor, so that nothing is left to wait for."""
    clock = time.perf_counter if device.startswith("cuda") else time.process_time
    began = clock()
    found = work()
    return clock() - began, found


def compare(name: str, device: str, *, sizes: tuple[int, ...], repetitions: int, steps: int | None) -> list[str]:
    """Return a row of the table."""
    torch.manual_seed(0)
    make, draw, cpu_steps = MODELS[name]
    model = make()
    tasks = {f"task {k}": (draw(TASK_ROWS), torch.randint(CLASSES, (TASK_ROWS,))) for k in range(N_TASKS)}
    target = draw(N_QUERIES), torch.randint(CLASSES, (N_QUERIES,))
    subsets, seeds = whence.FixedSize(5).draw(N_TASKS, N_MODELS, seed=1), np.arange(N_MODELS)
    recipe = whence.Recipe(steps=steps or cpu_steps, batch_size=BATCH)

    def alone(recipe: whence.Recipe = recipe) -> np.ndarray:
        rows = range(N_ALONE)
        return np.array([plain_loop(model, tasks, target, recipe, subsets[row], row, device) for row in rows])

    def together(size: int, recipe: whence.Recipe = recipe) -> np.ndarray:
        n = N_ALONE if size == 1 else N_MODELS
        problem = whence.Problem(model, tasks, target, device=device)
        stack = whence.Retrain(problem, recipe, batched=True, batch_size=size)
        if size == 1:  # not offered as a batch
            return np.array([stack(subsets[row], row)["loss"] for row in range(n)])
        return stack.batch(subsets[:n], seeds[:n])["loss"]

    brief = whence.Recipe(steps=2, batch_size=BATCH)
    alone(brief)  # the first call of every shape pays for the choice of kernels
    base: list[float] = []
    own: dict[int, list[float]] = {size: [] for size in sizes}
    apart = 0.0
    for size in sizes:
        together(size, brief)
    for _ in range(repetitions):
        took, losses = seconds_of(alone, device)
        base.append(took / N_ALONE)
        for size in sizes:
            took, found = seconds_of(partial(together, size), device)
            own[size].append(took / len(found))
            apart = max(apart, float(np.abs(found[:N_ALONE] - losses).max()))
    loop = statistics.median(base)
    ratios = [f"{loop / statistics.median(own[size]):.1f} ×" for size in sizes]
    n_parameters = sum(value.numel() for value in model.parameters())
    row = [name, f"{n_parameters:,}", f"{1e3 * loop / recipe.steps:.2f} ms", *ratios, f"{apart:.0e}"]
    print(" | ".join(row), file=sys.stderr, flush=True)
    return row


def report(device: str, *, quick: bool = False) -> str:
    """Return the table, in Markdown."""
    sizes = (1, N_MODELS) if quick else SIZES
    steps = 5 if quick else 40 if device.startswith("cuda") else None
    heads = ["model", "parameters", "plain loop, per step", *(f"{size} at once" for size in sizes), "loss differs by"]
    rows = [heads, ["---"] * len(heads)]
    rows += [compare(name, device, sizes=sizes, repetitions=1 if quick else 3, steps=steps) for name in MODELS]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    lengths = f"{steps} steps" if steps else "5 to 100 steps"
    return (
        f"{table}\n\n{N_MODELS} models, AdamW, batches of {BATCH}, {lengths}. A ratio is how many models are trained "
        "side by side in the time in which the plain loop trains one."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    card = arguments.device.startswith("cuda")
    before = os.getloadavg()[0]
    body = report(arguments.device, quick=arguments.quick)
    where = torch.cuda.get_device_name() if card else f"{platform.platform()}, {torch.get_num_threads()} thread"
    command = f"python benchmarks/retraining.py{' --device ' + arguments.device if card else ''}"
    text = (
        f"# Retraining side by side on a {'graphics card' if card else 'processor'}\n\n"
        f"`{command}`, {datetime.date.today():%d %B %Y}, on {where}; Python "
        f"{platform.python_version()}, torch {torch.__version__}. Load of the machine before and after: {before:.1f} "
        f"and {os.getloadavg()[0]:.1f}.\n\n{body}\n"
    )
    print(text)
    if not arguments.quick:
        results = Path(__file__).parent / "results" / f"retraining_{'cuda' if card else 'cpu'}.md"
        results.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
