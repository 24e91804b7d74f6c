"""The two problems of benchmarks/baselines.py: a model, its tasks and queries, its training, and true runs of it.

*digits*: a network of 64 → 128 → 10 learns handwritten digits from 20 tasks: 40 images of each digit with the right
labels, and 40 with two in five labels drawn at random; plain gradient descent. *modular*: benchmarks/modular.py's
transformer, which knows three other operations, is fine-tuned to another on 25 groups of equations, 100 steps of AdamW.
Truth: true runs on subsets of equal size (so that size says nothing), and leave-one-out runs; the loss of each query.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from sklearn.datasets import load_digits

import whence
from baselines_worker import network
from truth import K, Setting, load_pretrained
from whence.models.stack import Stack
from whence.models.training import train


@dataclass
class Case:
    """A problem with its truth, and the weights that one training on all tasks came through."""

    kind: str
    about: str
    model: torch.nn.Module
    tasks: dict
    queries: tuple
    recipe: whence.Recipe
    subsets: whence.Outcomes
    alone: whence.Outcomes
    way: list | None = None

    def write(self, path: Path, *, rank: int, n_examples: int | None = None, n_queries: int | None = None) -> Path:
        """Write what a worker needs, with the first examples of each task and the first queries only, if so asked."""
        self.way = self.way or way(self.model, self.tasks, self.queries, self.recipe)
        tasks = {name: (x[:n_examples], y[:n_examples]) for name, (x, y) in self.tasks.items()}
        parts = {f"{c}:{name}": value.numpy() for c, state in enumerate(self.way) for name, value in state.items()}
        inputs, labels = (torch.cat(part).numpy() for part in zip(*tasks.values(), strict=True))
        np.savez(
            path, **parts, kind=self.kind, X=inputs, y=labels, queries=self.queries[0][:n_queries].numpy(),
            labels=self.queries[1][:n_queries].numpy(),
            owner=np.repeat(range(len(tasks)), [len(part) for _, part in tasks.values()]),
            lr=self.recipe.lr, steps=self.recipe.steps, weighting=self.recipe.weighting, rank=rank,
        )  # fmt: skip
        return path


def way(model, tasks, queries, recipe, n: int = 4) -> list[dict[str, torch.Tensor]]:
    """Weights in the middle of each of n parts of one training on all tasks, and at its end."""
    stack = Stack(whence.Problem(model, tasks, queries), batched=False)
    wanted = [round((2 * i + 1) * recipe.steps / (2 * n)) for i in range(n)] + [recipe.steps]
    points = []

    def watch(step, state, optimizer) -> None:
        if step in wanted:
            points.append({name: value.detach().clone() for name, value in state.items()})

    train(stack, recipe, stack.start(1), np.ones((1, len(tasks))), np.array([0]), watch=watch)
    return points


def digits(n_subsets: int, n_seeds: int) -> Case:
    """Digits, with true runs made on the spot."""
    X, y = load_digits(return_X_y=True)
    X, y = torch.as_tensor(X / 16, dtype=torch.float32), torch.as_tensor(y)
    rng = np.random.default_rng(0)
    order = torch.as_tensor(rng.permutation(len(y)))
    X, y = X[order], y[order]
    used, tasks = torch.zeros(len(y), dtype=torch.bool), {}
    for noisy in (False, True):
        for digit in range(10):
            rows = ((y == digit) & ~used).nonzero()[:40, 0]
            used[rows] = True
            labels = y[rows].clone()
            if noisy:
                wrong = torch.as_tensor(rng.random(40) < 0.4)
                labels[wrong] = torch.as_tensor(rng.integers(0, 10, int(wrong.sum())))
            tasks[f"t{len(tasks):02d}"] = (X[rows], labels)
    rest = (~used).nonzero()[:100, 0]
    torch.manual_seed(0)
    model, queries = network("digits"), (X[rest], y[rest])
    recipe = whence.Recipe(steps=400, lr=0.3, optimizer="sgd", batch_size=64, weighting="task")
    retrain = whence.Retrain(whence.Problem(model, tasks, queries, per_query=True), recipe)
    began, tables = time.perf_counter(), []
    for rows in (whence.FixedSize(10).draw(20, n_subsets, seed=0), whence.LeaveOneOut().draw(20)):
        subsets, seeds = np.repeat(rows, n_seeds, axis=0), np.tile(np.arange(n_seeds), len(rows))
        tables.append(whence.Outcomes(subsets, retrain.batch(subsets, seeds)["loss"], task_names=list(tasks)))
    about = (
        f"Digits: 20 tasks of 40 images, {sum(p.numel() for p in model.parameters()):,} parameters, 100 queries; "
        f"{n_subsets} subsets of 10 tasks and 21 leave-one-out subsets × {n_seeds} seeds, trained in "
        f"{time.perf_counter() - began:.0f} s."
    )
    return Case("digits", about, model, tasks, queries, recipe, *tables)


def modular(truth: Path | None, operation: str = "addition") -> Case:
    """Fine-tuning to an operation, with the true runs of benchmarks/gradex_fidelity.py, and leave-one-out runs."""
    args = SimpleNamespace(truth=truth, quick=False, subsets=100, size={}, device="cpu", estimates=0)
    args.pretrained = load_pretrained(args)
    setting = Setting("fine-tuning", operation, 100, 3e-4, "fixed", args)
    names = list(setting.tasks)
    subsets = whence.Outcomes(np.tile(setting.subsets, (3, 1)), np.concatenate(setting.values), task_names=names)
    rows = whence.LeaveOneOut().draw(K)
    file = truth / f"leave-one-out_fine-tuning_{operation}_100_steps.npz" if truth else None
    if file and file.exists():
        values = np.load(file)["values"].astype(float)
    else:
        problem = whence.Problem(setting.model, setting.tasks, setting.target, per_query=True)
        run = whence.Retrain(problem, setting.recipe)
        values = np.array([[run(row, seed)["loss"] for row in rows] for seed in range(3)])
        if file:
            np.savez_compressed(file, values=values.astype(np.float32))
    alone = whence.Outcomes(np.tile(rows, (3, 1)), np.concatenate(values), task_names=names)
    n = sum(len(y) for _, y in setting.tasks.values())
    about = (
        f"Fine-tuning a transformer to modular {operation}: {K} groups, {n:,} examples, "
        f"{sum(p.numel() for p in setting.model.parameters()):,} parameters, {len(setting.target[1])} queries; 100 "
        "subsets of 15 groups and 26 leave-one-out subsets × 3 seeds, 100 steps of AdamW from a model that knows three "
        "other operations."
    )
    return Case("modular", about, setting.model, setting.tasks, setting.target, setting.recipe, subsets, alone)
