"""The run on all tasks that scores are found along: made once for every kind of them, and kept in a folder.

A run goes as far as any of the scores that share it needs, and its points are saved as it passes them. In a folder that
has the points already, nothing is trained; one of another model, recipe or examples is refused.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from whence.errors import DataWarning, InputError
from whence.estimators.deltas import DeltaFolder, is_finite
from whence.estimators.digests import group_digests, loss_digest, start_digest
from whence.estimators.trajectory import passed
from whence.models.points import Checkpoint, state_of
from whence.models.problem import Problem, State
from whence.models.recipe import Recipe
from whence.models.stack import Stack

QUARTERS = (0.25, 0.5, 0.75, 1.0)
LEARNED = 0.995  # of the loss at the start, above which a run has learned nothing
JUDGED = 1024  # examples of all tasks that tell whether it has


@dataclass(frozen=True, eq=False)
class Point:
    """A place along a joint run: after how many steps, the weights there, and the mean loss on the tasks."""

    step: int
    state: State
    loss: float


class JointRun:
    """Runs on all tasks of a problem, one for each seed, and points along them.

    Parameters
    ----------
    problem : Problem
    recipe : Recipe
    path : path, optional
        Folder that keeps the points; created, or read if it exists.
    """

    def __init__(self, problem: Problem, recipe: Recipe, path: str | os.PathLike[str] | None = None) -> None:
        self.problem, self.recipe, self.path = problem, recipe, path
        self._needed: set[int] = set()
        self._made: dict[int, dict[int, Point]] = {}  # points by the number of steps, of the run of each seed

    def is_of(self, problem: Problem, recipe: Recipe) -> bool:
        """Whether the runs are those of a problem and a recipe."""
        same = self.problem.start is problem.start and self.problem.tasks is problem.tasks
        return same and self.recipe == recipe

    def need(self, shares: Iterable[float]) -> None:
        """Have the run go as far as these shares of its steps when it is made, and keep its points there."""
        self._needed.update(map(self._step, shares))

    def points(self, shares: Sequence[float], seed: int) -> list[Point]:
        """Points after shares of the steps; where the run has diverged or learned nothing there, its best one."""
        steps, wanted, start = self.recipe.steps, [self._step(share) for share in shares], self._start_loss
        passed = self._passed([*shares, *(share for share in QUARTERS if share < max(shares))], seed)
        sound = [point for point in passed if point.loss < LEARNED * start]
        if not sound and max(shares) < 1:
            passed = self._passed([*shares, *QUARTERS], seed)
            sound = [point for point in passed if point.loss < LEARNED * start]
        kept = [point for point in sound if point.step in wanted]
        if len(kept) == len(set(wanted)):
            return kept
        bad = next(point for point in passed if point.step in wanted and point not in kept)
        learned = "has learned nothing" if np.isfinite(bad.loss) and bad.loss < 2 * start else "has diverged"
        what = (
            f"The run on all tasks {learned} after {bad.step} of {steps} steps (loss {bad.loss:.3g} on the tasks, "
            f"{start:.3g} before it)"
        )
        if not sound:
            self._forget(seed)
            raise InputError(
                f"{what}, and at every other quarter: it has no scores to give. Change the learning rate, or take more "
                "steps."
            )
        kept = kept or [min(sound, key=lambda point: point.loss)]
        where = ", ".join(str(point.step) for point in kept)
        warnings.warn(f"{what}: scores are those after {where} steps instead.", DataWarning, stacklevel=2)
        return kept

    def given(self, checkpoints: Sequence[Checkpoint], shares: Sequence[float]) -> list[Point]:
        """Points of a run that was made elsewhere."""
        fixed, start = {**self.problem.output_fn.fixed, **self.problem.start}, self._start_loss
        states = [state_of(checkpoint, fixed, self.problem.trained) for checkpoint in checkpoints]
        found = [
            Point(self._step(share), state, self._loss(state)) for share, state in zip(shares, states, strict=True)
        ]
        if odd := [point.step for point in found if not np.isfinite(point.loss)]:
            raise InputError(f"The checkpoint after {odd[0]} steps has no finite loss on the tasks. Give another.")
        for point in (point for point in found if point.loss > start / LEARNED):
            warnings.warn(
                f"The checkpoint after {point.step} steps is worse on the tasks than the model itself (loss "
                f"{point.loss:.3g} and {start:.3g}): is it from a run of this model on these tasks?",
                DataWarning,
                stacklevel=2,
            )
        return found

    def _passed(self, shares: Sequence[float], seed: int) -> list[Point]:
        """Points of the run of a seed, which is made if they are not there."""
        wanted, made = {self._step(share) for share in shares}, self._made.setdefault(seed, {})
        missing = wanted - made.keys()
        for step in missing if self.folder else ():
            assert self.folder is not None
            if (delta := self.folder.load(_name(step, seed), self.problem.start)) is not None:
                state = {name: delta[name].to(value) for name, value in self.problem.start.items()}
                made[step] = Point(step, state, self._loss(state))
        if not wanted <= made.keys():
            self._train(wanted | self._needed, seed)
        return [made[step] for step in sorted(wanted)]

    def _train(self, wanted: set[int], seed: int) -> None:
        """Make the run of a seed as far as the last of some steps, and keep its points there."""

        def keep(step: int, state: State) -> None:
            if self.folder and is_finite(state):
                self.folder.save(_name(step, seed), state)

        states = passed(self.problem, self.recipe, wanted, seed=seed, keep=keep)
        self._made[seed] |= {step: Point(step, state, self._loss(state)) for step, state in states.items()}

    def _forget(self, seed: int) -> None:
        """Delete the points of a run that has learned nothing: with another recipe, the folder can be used again."""
        if self.folder:
            self.folder.delete(_name(step, seed) for step in self._made[seed])
            del self.folder

    @cached_property
    def folder(self) -> DeltaFolder | None:
        """Where points are kept; refused if they are of something else."""
        problem = self.problem
        if self.path is None:
            return None
        about = {
            "start": start_digest(problem),
            "trained": sorted(problem.trained),
            "recipe": self.recipe.settings,
            "loss": loss_digest(problem),
        }
        return DeltaFolder(self.path, about, group_digests(problem.tasks), together=True, noun="joint-run point")

    @cached_property
    def _start_loss(self) -> float:
        return self._loss(self.problem.start)

    def _loss(self, state: State) -> float:
        """Mean loss on some examples of the tasks."""
        each = -(-JUDGED // len(self.problem.task_names))
        stack, some = Stack(self.problem, batched=False), self.problem.tasks.sample(each)
        one = {name: state[name][None] for name in self.problem.start}
        return float(stack.evaluate(one, some, {"loss": self.problem.loss})["loss"].double().mean())

    def _step(self, share: float) -> int:
        return max(1, round(share * self.recipe.steps))


def _name(step: int, seed: int) -> str:
    return f"run {seed} after {step} steps"
