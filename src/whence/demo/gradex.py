"""The demo's question answered without training: `whence.GradEx` compared with the trained models."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

import whence
from whence.arrays import Floats
from whence.display.layout import Page, Row, remark, table, title
from whence.display.numbers import number

Examples = tuple[Floats, NDArray[np.bool_]]
L2 = 1 / 150  # the penalty of the trained models, for a subset of usual size


@dataclass(frozen=True)
class Estimated:
    """Estimates of every subset, how well they rank them, and what they and the trainings cost."""

    lds: float
    seconds: float
    seconds_trained: float
    n_subsets: int


def estimate(
    groups: dict[str, Examples], test: Examples, truth: whence.Outcomes, seconds_trained: float
) -> Estimated | None:
    """Estimate the accuracy of every subset from gradients, or return None if torch is not installed."""
    if find_spec("torch") is None:
        return None
    import torch

    def tensors(examples: Examples) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.as_tensor(examples[0], dtype=torch.float32), torch.as_tensor(examples[1].astype(np.int64))

    model = torch.nn.Linear(64, 1)
    for value in model.parameters():
        torch.nn.init.zeros_(value)
    began = time.perf_counter()
    tasks = {name: tensors(groups[name]) for name in truth.task_names}
    problem = whence.Problem(model, tasks, tensors(test), loss="logistic", metrics="accuracy")
    gradex = whence.GradEx(problem, rank=65, l2=L2, projection="gaussian")
    found = gradex.batch(truth.subsets)["accuracy"]
    seconds = time.perf_counter() - began
    return Estimated(float(whence.lds(found, truth).mean), seconds, seconds_trained, truth.n_runs)


def page(found: Estimated | None) -> Page:
    """The page of the story."""
    heading = title("7. The same without training: whence.GradEx")
    if found is None:
        return [heading, remark('This part needs PyTorch: pip install "whence[torch]"')]
    n = found.n_subsets - 1
    rows: list[Row] = [
        [f"{n} trained models", f"{found.seconds_trained:.2f} s", "the truth"],
        [f"one pass of gradients, {n} small problems", f"{found.seconds:.2f} s", number(found.lds)],
    ]
    return [
        heading,
        table(["from", "time", "rank correlation with the truth"], rows),
        Text(
            "GradEx linearises the model where it starts, and solves a small convex problem for each subset, all "
            "together. This model is linear, so little is lost; where a model learns features, "
            "whence.GradEx.along follows one true run."
        ),
    ]
