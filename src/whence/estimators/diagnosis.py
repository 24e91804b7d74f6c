"""Signs that a merge is unreliable, from the vectors and the tasks' own examples, without a true run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from whence.errors import counted, some_of

if TYPE_CHECKING:
    from whence.estimators.deltas import Vectors
    from whence.estimators.merged import Merged, Scale

LEARNED = 0.02  # of the loss of the untrained model, below which runs on all tasks have nothing left to tell apart
APART = 1.2  # times the loss of single runs on all tasks, from which their merge has left the place where they are
WORSE = 1.02  # times the loss of the untrained model, from which a task counts as worse off
SHORTER = "Stop them earlier, or train each on its own task alone (background=0)."
FEW = 0.25  # share of the tasks that moves a row, below which averaging dilutes it


def concerns(merged: Merged) -> list[str]:
    """Sentences about possible problems with the merge of all tasks."""
    found: list[str] = []
    names = merged.task_names
    before, after, half = (merged.losses_on_tasks(scale) for scale in (0.0, merged.scale, _halved(merged.scale)))
    was, now, less = (float(losses.double().mean()) for losses in (before, after, half))
    owner = merged.some_examples.owner
    worse = [name for k, name in enumerate(names) if after[owner == k].mean() > WORSE * before[owner == k].mean()]
    if not now <= was:
        found.append(useless(now, was))
    elif worse:
        found.append(
            f"On {len(worse)} of {counted(len(names), 'task')} ({some_of(worse)}), the merge of all is worse than the "
            "untrained model: their vectors interfere."
        )
    if less < min(now, was):
        found.append(
            "Half of the scale does better on the tasks' own examples: runs may be too long to merge. Stop them "
            "earlier, or tune the scale by a few true runs."
        )
    if reached := merged.loss_of_runs():
        if now > APART * reached:
            found.append(
                f"The merge of runs that saw all tasks has a loss of {now:.3g} on them, the runs themselves have "
                f"{reached:.3g}: they have drifted apart. {SHORTER}"
            )
        elif now < LEARNED * was:
            found.append(
                f"The runs have learned all tasks (loss {now:.2g}, {was:.2g} untrained), which leaves little to tell "
                f"them apart by. {SHORTER}"
            )
    if merged.merge == "weights" and (lone := _moved_by_few(merged.vectors, merged.problem.trained)):
        found.append(
            f"Most rows of {some_of(lone, 4)} are moved by a few of the tasks only, as heads and embeddings are where "
            "tasks have their own classes or tokens: averaging over all tasks shrinks what these have learned. Give "
            f"these parameters a scale of their own, such as scale={{{lone[0]!r}: {min(len(names), 4)}.0}}."
        )
    return found


def useless(now: float, was: float) -> str:
    """The sentence for a merge that is worse than no training at all, by the losses with and without it."""
    return (
        "The merge of all tasks is worse than the untrained model on the tasks' own examples "
        f"(loss {now:.3g} and {was:.3g}): do not trust these estimates. Train more gently, or lower the scale."
    )


def _halved(scale: Scale) -> Scale:
    if isinstance(scale, Mapping):
        return {**{name: value / 2 for name, value in scale.items()}, **({} if "*" in scale else {"*": 0.5})}
    return scale / 2


def _moved_by_few(vectors: Vectors, names: tuple[str, ...]) -> list[str]:
    """Matrices of which most of the movement is in rows that few tasks move.

    Of the lengths r_k of a row's movement by each of K tasks, (Σ r)² / (K Σ r²) is the share of tasks that move it: 1/K
    where one does, and 1 where all do equally.
    """
    few = []
    for name in names if len(vectors) > 2 else ():
        moved = vectors.stack(name)
        if moved.ndim < 3:
            continue
        lengths = moved.flatten(2).double().norm(dim=2)  # (K, rows)
        power = lengths.square().sum(0)
        share = lengths.sum(0).square() / (len(vectors) * power).clamp_min(1e-300)
        if float(power.sum()) > 0 and float((share * power).sum() / power.sum()) < max(FEW, 1.5 / len(vectors)):
            few.append(name)
    return few
