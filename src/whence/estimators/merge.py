"""Task vectors: any subset from K short runs, by averaging their weights or their outputs.

Each task is trained from W₀. The change, Δ_k = W_k − W₀, is its task vector. The average over the tasks of a subset is
close to what training on the subset gives, as long as runs stay near W₀. It is far better than a linear model if
fine-tuning learns features, and costs K runs instead of one per subset.

A run on one task alone memorises it, and misses what tasks teach together. Each run may therefore draw a share β of its
batches from all tasks and the rest from its own, or use all tasks but its own. Run k then trains on the shares
q_k = (1 − β) e_k + β π, with π the shares of all tasks, or on π without π_k. For a subset with shares p, the
coefficients c with Σ_k c_k q_k = p combine the runs to these shares.

Long runs end far apart, and the weights between them are bad. Their outputs can still be averaged: the same
coefficients may merge outputs, probabilities or outcomes of the K runs, which are computed once; any subset is then a
sum.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from whence.arrays import Floats
from whence.errors import InputError, check_choice, some_of
from whence.estimators.deltas import Delta, DeltaFolder, Vectors, is_finite, train_vector
from whence.estimators.digests import group_digests, loss_digest, start_digest
from whence.estimators.merged import Merged, Scale
from whence.measuring import measure
from whence.measuring.inline import growing
from whence.models.callables import is_whole
from whence.models.examples import Examples
from whence.models.losses import CrossEntropy
from whence.models.memory import Chunks, free_bytes
from whence.models.metrics import Metric
from whence.models.problem import Problem
from whence.models.recipe import Recipe, Weighting
from whence.models.sampling import Draws, task_shares
from whence.models.stack import Batched, Stack, unstacked
from whence.models.training import bytes_per_model, train
from whence.progress import track

if TYPE_CHECKING:
    from typing_extensions import Self

    from whence.estimators.checkpoints import Given

Runs = Literal["alone", "left out"]
Merge = Literal["weights", "outputs", "probabilities", "outcomes"]
BLOCK_NUMBERS = 2**26  # merged outputs at once
JUDGED_RUNS = 3  # whose loss on all tasks is compared with that of their merge
_OF_WEIGHTS = "Scales by parameter name are of merged weights, and not of {}."
SCALES = tuple(float(scale) for scale in np.geomspace(0.25, 4, 9))


class TaskVectors(Merged):
    """Outcome function that merges K runs, one per task: their weights, or their outputs.

    Parameters
    ----------
    problem : Problem
        With the model at W₀, usually pretrained. If it has adapters (the parameters that require a gradient), these are
        trained, and merged as the products that they add to the weights.
    recipe : Recipe
        Recipe of the runs to be estimated; each task is trained with it.
    weighting : {"sample", "task"}, optional
        How the vectors of a subset are averaged: by the number of examples of the tasks, or all equally. By default as
        in the recipe.
    scale : float or mapping of str to float, optional
        Factor of the average, or factors by pattern of parameter names (``{"head.*": 2.0}``; 1 for others). By default
        1, the plain average, which is seldom far from the best; `tuned` chooses it by true runs.
    merge : {"weights", "outputs", "probabilities", "outcomes"}
        What is merged. "weights": the merged model is run for each subset. "outputs": the logits (or numbers) for each
        query, computed once per run; as good if runs stay near their start, and better if they do not.
        "probabilities": a mixture of the class probabilities, for runs on single tasks that end far apart. "outcomes":
        each metric itself. `by` merges the same runs in another way.
    runs : {"alone", "left out"}
        Whether each run trains on its task, or on all others. The latter shows what is lost without a task, which
        matters if a task is the only source of something.
    background : float
        For runs "alone", the share β of the batches that is drawn from all tasks, the same examples in all runs. 0.75
        is far better than 0 for subsets of many tasks if runs end before the tasks are learned, and worse if they are
        learned; `check` it with a few true runs.
    early : float
        Share of the recipe's steps after which single-task runs stop: 0.25 takes a quarter of the time.
    path : str or path, optional
        Folder to keep the vectors in; vectors that are there already are not trained again.
    seed : int
        Of the batches of the runs.
    batched : bool or "auto"
        As for `Retrain`.

    Examples
    --------
    >>> from torch import nn
    >>> inputs, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    >>> tasks = {"zeros": (inputs[:2], labels[:2]), "ones": (inputs[2:], labels[2:])}
    >>> problem = Problem(nn.Linear(4, 2), tasks, (inputs, labels), metrics="accuracy")
    >>> vectors = TaskVectors(problem, Recipe(steps=20, lr=0.1))
    >>> vectors.batch([[1, 0], [1, 1]])["accuracy"]
    array([0.5, 1. ])
    """

    whole_runs = True

    def __init__(
        self,
        problem: Problem,
        recipe: Recipe,
        *,
        weighting: Weighting | None = None,
        scale: Scale | None = None,
        merge: Merge = "weights",
        runs: Runs = "alone",
        background: float = 0.0,
        early: float = 1.0,
        path: str | os.PathLike[str] | None = None,
        seed: int = 0,
        batched: Batched = "auto",
    ) -> None:
        if not 0 < early <= 1:
            raise InputError(f"The 'early' share of steps must be above 0 and at most 1. Got {early!r}.")
        if not 0 <= background < 1:
            raise InputError(f"The 'background' share of batches must be 0 or more, and below 1. Got {background!r}.")
        check_choice(runs, get_args(Runs), "runs", of="TaskVectors")
        if runs == "left out" and background:
            raise InputError("Runs that leave their task out see all others anyway: leave 'background' at 0.")
        stack = Stack(problem, batched, full_batches=recipe.batch_size is None)
        super().__init__(stack, weighting=weighting or recipe.weighting, scale=scale, seed=seed)
        if runs == "left out" and len(problem.task_names) < 2:
            raise InputError("Runs that leave a task out need two tasks or more.")
        self.recipe, self.runs, self.background, self.early, self.path = recipe, runs, background, early, path
        self.merge: Merge = self._checked_merge(merge)
        self._known: dict[Examples, Tensor] = {}

    @staticmethod
    def from_checkpoints(checkpoints: Mapping[str, Given], problem: Problem, **how: Any) -> TaskVectors:
        """Task vectors of existing checkpoints, one per task: nothing is trained.

        Parameters
        ----------
        checkpoints : mapping of str to path, nn.Module or mapping of str to tensor
            For each task, the result of training on it alone from the weights of the problem's model: a file of tensors
            (``.safetensors``, or ``.pt`` with only tensors), a folder of a model or of a LoRA adapter.
        problem : Problem
            With the model at W₀. Its tasks may be just names, without examples.
        **how
            As for `TaskVectors`: weighting ("task" if there are no examples), scale, merge, seed, batched.
        """
        from whence.estimators.checkpoints import Checkpoints

        return Checkpoints(checkpoints, problem, **how)

    def by(self, merge: Merge) -> Self:
        """The same runs, merged in another way.

        Examples
        --------
        >>> from torch import nn
        >>> inputs, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
        >>> tasks = {"zeros": (inputs[:2], labels[:2]), "ones": (inputs[2:], labels[2:])}
        >>> vectors = TaskVectors(Problem(nn.Linear(4, 2), tasks, (inputs, labels)), Recipe(steps=20, lr=0.1))
        >>> vectors.by("outputs").provenance["merge"]
        'sample × 1.0 of outputs of 2 runs of 20 steps'
        """
        _ = self.vectors  # trained once for both
        other = copy.copy(self)
        other.__dict__.pop("_losses", None)
        other.merge = other._checked_merge(merge)
        return other

    def _checked_merge(self, merge: Merge) -> Merge:
        check_choice(merge, get_args(Merge), "merge", of="TaskVectors")
        if merge != "weights" and isinstance(self._scale, Mapping):
            raise InputError(_OF_WEIGHTS.format(merge))
        if merge == "probabilities":
            if not self._apart or self._scale not in (None, 1.0):
                raise InputError(
                    "Probabilities are merged with the shares of the tasks: for runs on single tasks (runs='alone', "
                    "background=0), and without a scale."
                )
            if not isinstance(self.problem.loss, CrossEntropy) or self.problem.targets.labels.ndim > 1:
                raise InputError(
                    "Only outputs whose loss is 'cross_entropy', with one label each, are probabilities: merge outputs "
                    "instead."
                )
        if merge == "outcomes" and (whole := [name for name, m in self.problem.metrics.items() if is_whole(m)]):
            raise InputError(
                f"The metric {whole[0]!r} is one number for many queries, and cannot be merged: merge outputs instead."
            )
        return merge

    @property
    def scales(self) -> tuple[float, ...]:
        """Scales worth trying, from a quarter to four times the average; none but 1 where ranks do not depend on it."""
        return SCALES if self.merge in ("weights", "outputs") else (1.0,)

    def default_scale(self) -> float:
        """Scale of the plain average."""
        return 1.0

    @property
    def steps(self) -> int:
        """Steps of each single-task run."""
        return max(1, math.ceil(self.early * self.recipe.steps))

    def coefs(self, shares: Floats) -> Floats:
        """Coefficients of the runs that together have trained on these shares; none for the empty subset."""
        return np.asarray(np.linalg.solve(self._run_shares.T, shares.T).T, dtype=np.float64)

    def evaluate(
        self, subsets: Floats, scale: Scale, examples: Examples, metrics: Mapping[str, Metric]
    ) -> dict[str, Tensor]:
        """Metrics of subsets on every one of the examples, {metric: (m, n)}."""
        if self.merge == "weights":
            return super().evaluate(subsets, scale, examples, metrics)
        if isinstance(scale, Mapping):
            raise InputError(_OF_WEIGHTS.format(self.merge))
        outputs = self._outputs_of_runs(examples)
        coefs = scale * self.coefs(self.shares(subsets))
        both = torch.from_numpy(np.hstack([1 - coefs.sum(1, keepdims=True), coefs])).to(outputs)
        parts: dict[str, list[Tensor]] = {name: [] for name in metrics}
        for rows in examples.blocks(max(1, BLOCK_NUMBERS // (len(subsets) * outputs[0, 0].numel()))):
            some, labels = outputs[:, rows], examples.labels[rows]
            merged = some if self.merge == "outcomes" else self._merged_outputs(both, some)
            for name, metric in metrics.items():
                values = metric(merged, labels)
                parts[name].append(both @ values.to(both) if self.merge == "outcomes" else values)
        return {name: torch.cat(part, dim=1) for name, part in parts.items()}

    def _merged_outputs(self, coefs: Tensor, outputs: Tensor) -> Tensor:
        """Outputs (m, n, C) from those of W₀ and the runs, (K + 1, n, C), by coefficients (m, K + 1)."""
        if self.merge == "probabilities":
            # In double precision, so that what is next to impossible for all has a logarithm.
            coefs, outputs = coefs.double(), outputs.double().softmax(-1)
        merged: Tensor = torch.tensordot(coefs, outputs, dims=1)
        return merged.log() if self.merge == "probabilities" else merged

    def _outputs_of_runs(self, examples: Examples) -> Tensor:
        """Outputs of W₀ and of each run, (K + 1, n, C)."""
        if examples not in self._known:
            coefs = np.vstack([np.zeros(len(self.task_names)), np.eye(len(self.task_names))])
            seen = np.vstack([coefs[:1], self._run_weights])

            def some(part: slice) -> Tensor:
                state = self._with_statistics(self.moved(coefs[part], 1.0), seen[part])
                return self.stack.evaluate(state, examples, {"outputs": lambda outputs, labels: outputs})["outputs"]

            self._known[examples] = torch.cat(self._chunks.run(len(coefs), some))
        return self._known[examples]

    def loss_of_runs(self) -> float | None:
        """Mean loss of some of the runs on `some_examples`, where they saw all tasks."""
        if not self.background:
            return None
        some = np.unique(np.linspace(0, len(self.task_names) - 1, JUDGED_RUNS).astype(int))
        state = self._with_statistics(self.moved(np.eye(len(self.task_names))[some], 1.0), self._run_weights[some])
        losses = self.stack.evaluate(state, self.some_examples, {"loss": self.problem.loss})["loss"]
        return float(losses.double().mean())

    @property
    def provenance(self) -> dict[str, str]:
        """How the outcomes were made."""
        more = f", all tasks in {self.background:g} of each" if self.background else ""
        more = ", each without its task" if self.runs == "left out" else more
        what = "" if self.merge == "weights" else f"{self.merge} of "
        merge = f"{self.weighting} × {self.scale} of {what}{len(self.task_names)} runs of {self.steps} steps{more}"
        return {"outcomes": "merged task vectors", "merge": merge, "recipe": str(self.recipe)}

    @cached_property
    def vectors(self) -> Vectors:
        """What each task changes; trained on first use, or read from the folder."""
        folder = None if self.path is None else self.folder()
        made: dict[str, Delta] = {}
        if folder:
            loaded = {name: folder.load(name, self._start) for name in self.task_names}
            made = {name: delta for name, delta in loaded.items() if delta is not None}
        missing = [k for k, name in enumerate(self.task_names) if name not in made]
        diverged: dict[str, None] = {}

        def work(tasks: list[int]) -> None:
            for k, delta in zip(tasks, self.trained_alone(tasks), strict=True):
                name = self.task_names[k]
                if not is_finite(delta):
                    diverged[name] = None
                elif folder:
                    made[name] = folder.save(name, delta)
                else:
                    made[name] = delta

        if self.stack.batched:
            fits = free_bytes(self.problem.device) // bytes_per_model(self.problem, self.recipe)
            chunks = Chunks(fits)
            for some in growing(len(missing), max(1, fits)):
                rest = missing[some]
                chunks.run(len(rest), lambda part, rest=rest: work(rest[part]))  # type: ignore[misc]
        else:
            for k in track(missing, "Training a model on each task"):
                work([k])
        if diverged:
            alone = " alone" if self._apart else ""
            raise InputError(
                f"Training diverged (NaN) on {some_of(diverged)}{alone}: lower the learning rate, or leave "
                f"{'the task' if len(diverged) == 1 else 'these tasks'} out."
            )
        return Vectors([made[name] for name in self.task_names], self.problem.device)

    def train(self, **how: Any) -> None:
        """Train the missing vectors of the folder, in several processes or on a cluster, and save each at once.

        After any interruption, the same call continues with the remaining tasks. Use it for large models: small ones
        are trained side by side when their vectors are first needed.

        Parameters
        ----------
        **how
            As for `whence.measure`: jobs, engine, threads, timeout, address, cpus_per_task, gpus_per_task, progress.
        """
        if self.path is None:
            raise InputError("To train task vectors elsewhere, give a 'path', the folder that they are kept in.")
        folder = self.folder()
        missing = [k for k, name in enumerate(self.task_names) if folder.load(name, self._start) is None]
        if missing:
            measure(partial(train_vector, self), np.eye(len(self.task_names))[missing], tasks=self.task_names, **how)

    @property
    def _apart(self) -> bool:
        """Whether each run sees its own task alone."""
        return self.runs == "alone" and not self.background

    @cached_property
    def _run_shares(self) -> Floats:
        """Shares of the tasks in each run, (K, K)."""
        own, everything = np.eye(len(self.task_names)), np.ones((1, len(self.task_names)))
        shares: Floats = task_shares(everything, self.problem.tasks.sizes, self.recipe.weighting)[0]
        if self.runs == "left out":
            return (1 - own) * shares / (1 - shares)[:, None]
        return (1 - self.background) * own + self.background * shares

    @property
    def _run_weights(self) -> Floats:
        """The same as weights of the tasks, as subsets have them."""
        sample = self.recipe.weighting == "sample"
        return self._run_shares / self.problem.tasks.sizes if sample else self._run_shares

    @property
    def _start(self) -> Delta:
        return {name: self.problem.start[name] for name in self.problem.trained}

    def trained_alone(self, tasks: list[int]) -> list[Delta]:
        """Task vectors of some tasks, in single precision or better."""
        start, seeds = self.stack.start(len(tasks)), np.full(len(tasks), self.seed)
        # A left-out task is a small part of a batch: what is drawn in its place would be as much noise as it is signal.
        draws: Draws = "reweighted" if self.runs == "left out" else "shared" if self.background else "own"
        state = train(self.stack, self.recipe, start, self._run_weights[tasks], seeds, self.steps, draws=draws)
        wide = {name: torch.promote_types(value.dtype, torch.float32) for name, value in self._start.items()}
        return [
            {name: one[name].to(wide[name]) - value.to(wide[name]) for name, value in self._start.items()}
            for one in unstacked(state)
        ]

    def folder(self) -> DeltaFolder:
        """The folder of the vectors."""
        assert self.path is not None
        problem = self.problem
        about = {
            "start": start_digest(problem),
            "trained": sorted(problem.trained),
            "recipe": self.recipe.settings,
            "steps": self.steps,
            "loss": loss_digest(problem),
            "seed": self.seed,
            **({"background": self.background} if self.background else {}),
            **({"runs": self.runs} if self.runs != "alone" else {}),
        }
        return DeltaFolder(self.path, about, group_digests(problem.tasks), together=not self._apart)
