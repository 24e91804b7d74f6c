"""Task vectors of existing checkpoints, read from files instead of trained.

A checkpoint is a file of tensors (safetensors, or torch's own with nothing but tensors in it), a folder as
``save_pretrained`` of transformers writes it, or a folder of a LoRA adapter as peft writes it. What it changed is its
tensors less those of the model; of an adapter, the product that it adds to each weight, or its two factors where the
model has the same adapter.
"""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from whence.arrays import Floats
from whence.errors import DataWarning, InputError, brief, did_you_mean, some_of
from whence.estimators.deltas import Delta, Vectors, checksum, is_finite
from whence.estimators.merge import Merge, TaskVectors
from whence.estimators.merged import Merged, Scale
from whence.models.examples import Examples
from whence.models.points import Checkpoint
from whence.models.problem import Problem, as_problem
from whence.models.recipe import Weighting
from whence.models.stack import Batched, Stack

Given = str | os.PathLike[str] | Checkpoint
CONFIG = "adapter_config.json"
ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
WHOLE = ("model.safetensors", "pytorch_model.bin")
INNER = ("state_dict", "model_state_dict", "model")  # where training frameworks keep the weights in a file
PREFIXES = ("module.", "_orig_mod.", "model.", "base_model.model.")
UNRELATED = 0.3  # correlation with the weights of the model, below which a checkpoint is of another one
OUTSIDE = re.compile(r"rotary_emb|inv_freq|position_ids|attn\.(masked_)?bias$")  # kept in files, and not learned


class Checkpoints(TaskVectors):
    """Task vectors of existing checkpoints; made by `TaskVectors.from_checkpoints`.

    >>> from torch import nn
    >>> model, queries = nn.Linear(2, 2), (torch.eye(2), torch.tensor([0, 1]))
    >>> moved = {name: {k: v + 0.1 for k, v in model.state_dict().items()} for name in ("code", "law")}
    >>> problem = Problem(model, ["code", "law"], queries)
    >>> TaskVectors.from_checkpoints(moved, problem).provenance["merge"]
    'task × 1.0 of 2 checkpoints'
    """

    def __init__(
        self,
        checkpoints: Mapping[str, Given],
        problem: Problem,
        *,
        weighting: Weighting | None = None,
        scale: Scale | None = None,
        merge: Merge = "weights",
        seed: int = 0,
        batched: Batched = "auto",
    ) -> None:
        problem = as_problem(problem, examples=False)
        if sorted(checkpoints) != sorted(problem.task_names):
            raise InputError(
                f"There must be a checkpoint for each task of the problem ({some_of(problem.task_names)}). Got "
                f"{some_of(checkpoints) or 'none'}."
            )
        if weighting == "sample" and not problem.has_examples:
            raise InputError("To weigh tasks by their examples, give a problem whose tasks have some.")
        if not problem.has_examples and any(isinstance(m, _BatchNorm) for m in problem.train_fn.module.modules()):
            raise InputError(
                "The model has batch normalisation, whose statistics are renewed on the examples of the tasks: give a "
                "problem whose tasks have some."
            )
        own: Weighting = "sample" if problem.has_examples else "task"
        Merged.__init__(self, Stack(problem, batched), weighting=weighting or own, scale=scale, seed=seed)
        self.checkpoints, self.runs, self.background = checkpoints, "alone", 0.0
        self.merge: Merge = self._checked_merge(merge)
        self._known: dict[Examples, Tensor] = {}

    @cached_property
    def vectors(self) -> Vectors:
        """What each checkpoint changed; read on first use."""
        aliases = _aliases(self.problem)
        found = [_delta(self.problem, name, self.checkpoints[name], aliases) for name in self.task_names]
        bases = {name: base for name, (_, base) in zip(self.task_names, found, strict=True) if base}
        if len(set(bases.values())) > 1:
            said = some_of(f"{name} of {base}" for name, base in bases.items())
            raise InputError(f"The adapters are of different models, and cannot be merged: {said}.")
        return Vectors([delta for delta, _ in found], self.problem.device)

    @property
    def provenance(self) -> dict[str, str]:
        """How the outcomes were made."""
        what = "" if self.merge == "weights" else f"{self.merge} of "
        merge = f"{self.weighting} × {self.scale} of {what}{len(self.task_names)} checkpoints"
        return {"outcomes": "merged checkpoints", "merge": merge}

    @property
    def fingerprint(self) -> dict[str, str]:
        """What the outcomes depend on, apart from the method: the model, the checkpoints, the targets."""
        sums = {name: checksum(delta) for name, delta in zip(self.task_names, self.vectors.deltas, strict=True)}
        return super().fingerprint | {f"checkpoint of {name}": found for name, found in sums.items()}

    @property
    def _run_shares(self) -> Floats:
        return np.eye(len(self.task_names))

    @property
    def _run_weights(self) -> Floats:
        return self._run_shares

    @cached_property
    def _losses(self) -> tuple[float, float]:
        return super()._losses if self.problem.has_examples else (0.0, 0.0)

    def concerns(self) -> list[str]:
        """Reasons against merging these checkpoints, from examples of the tasks."""
        return super().concerns() if self.problem.has_examples else []

    def train(self, **how: Any) -> None:
        """Refuse: there is nothing to train."""
        raise InputError("These task vectors are of checkpoints, and need no training.")


def _delta(problem: Problem, task: str, given: Given, aliases: Mapping[str, str]) -> tuple[Delta, str]:
    """What a checkpoint changed of the trained parameters, and the model that it says it is of."""
    where = f"The checkpoint of {task!r}"
    base = ""
    if isinstance(given, nn.Module | Mapping):
        tensors = dict(given.state_dict() if isinstance(given, nn.Module) else given)
    else:
        where += f" ({given})"
        path = Path(given)
        if (path / CONFIG).is_file():
            return _adapter_delta(problem, path, where)
        tensors = _tensors(path, where)
    start = {name: problem.start[name] for name in problem.trained}
    found = _named(tensors, {**problem.output_fn.fixed, **problem.start}, aliases, where)
    if missing := [name for name in start if name not in found]:
        raise InputError(f"{where} has no tensor {missing[0]!r}. {did_you_mean(missing[0], found or tensors)}")
    delta = {name: _difference(found[name], value, f"{name!r} of {_of(where)}") for name, value in start.items()}
    _warn_if_unrelated(start, delta, where)
    return _checked(delta, where), base


def _checked(delta: dict[str, Tensor], where: str) -> Delta:
    if not is_finite(delta):
        bad = next(name for name, value in delta.items() if not bool(value.isfinite().all()))
        raise InputError(f"{where} holds NaN or infinite numbers in {bad!r}.")
    return delta


def _of(where: str) -> str:
    return where[0].lower() + where[1:]


def _difference(found: Tensor, start: Tensor, what: str) -> Tensor:
    """A tensor of a checkpoint less that of the model, in single precision or better."""
    if found.shape != start.shape:
        raise InputError(
            f"{what} must have shape {tuple(start.shape)}, as in the model. Got {tuple(found.shape)}: is it of another "
            "model?"
        )
    wide = torch.promote_types(start.dtype, torch.float32)
    return found.detach().to(start.device, wide) - start.to(wide)


def _warn_if_unrelated(start: Mapping[str, Tensor], delta: Mapping[str, Tensor], where: str) -> None:
    """Warn of a checkpoint that was not trained from the weights of the model."""
    name = max(start, key=lambda name: start[name].numel())
    first, second = start[name].double().flatten(), (start[name] + delta[name]).double().flatten()
    first, second = first - first.mean(), second - second.mean()
    both = first.norm() * second.norm()
    if len(first) > 16 and float(both) > 0 and float(first @ second / both) < UNRELATED:
        warnings.warn(
            f"{where} has little in common with the model (correlation {float(first @ second / both):.2f} of "
            f"{name!r}): it started from other weights or was trained very far. Do not trust its merge.",
            DataWarning,
            stacklevel=5,
        )


def _aliases(problem: Problem) -> dict[str, str]:
    """Other names of shared parameters, each with the one that the problem has."""
    known = {**problem.output_fn.fixed, **problem.start}
    first: dict[int, str] = {}
    aliases = {}
    for name, tensor in problem.output_fn.module.named_parameters(remove_duplicate=False):
        own = first.setdefault(id(tensor), name)
        if own != name and own in known:
            aliases[name] = own
    return aliases


def _named(
    tensors: Mapping[str, object], known: Mapping[str, Tensor], aliases: Mapping[str, str], where: str
) -> dict[str, Tensor]:
    """Tensors of a checkpoint by the names of the model, without prefixes that wrappers add or leave out."""
    floats = {name: value for name, value in tensors.items() if isinstance(value, Tensor)}
    names = {**{name: name for name in known}, **aliases}

    def renamed(change: Callable[[str], str]) -> dict[str, Tensor]:
        return {names[change(name)]: value for name, value in floats.items() if change(name) in names}

    def way(add: str, drop: str) -> Callable[[str], str]:
        return lambda name: add + name.removeprefix(drop)

    ways = [way("", ""), *(way("", prefix) for prefix in PREFIXES), *(way(prefix, "") for prefix in PREFIXES)]
    best = max(ways, key=lambda change: len(renamed(change)))
    left = [name for name in floats if best(name) not in names and not OUTSIDE.search(name)]
    if left and renamed(best):
        warnings.warn(
            f"{where} has {some_of(map(repr, left), 3)}, not in the model; ignored.", DataWarning, stacklevel=6
        )
    return renamed(best)


# ---- files -----------------------------------------------------------------------------------------------


def _tensors(path: Path, where: str) -> dict[str, Tensor]:
    """Tensors of a file, or of a folder of a model."""
    if path.is_dir():
        for name in WHOLE:
            if (path / name).is_file():
                return _file(path / name, where)
            if (path / f"{name}.index.json").is_file():
                parts = _json(path / f"{name}.index.json", where)["weight_map"].values()
                return {key: value for part in sorted(set(parts)) for key, value in _file(path / part, where).items()}
        raise InputError(f"{where}: the folder has neither {' nor '.join((CONFIG, *WHOLE))}.")
    return _file(path, where)


def _file(path: Path, where: str) -> dict[str, Tensor]:
    """Tensors by name of one file; no code in it is run."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise InputError(f"{where}: there is no such file or folder.") from error
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError) as error:
        raise InputError(f"{where} cannot be read ({brief(error)}).") from error
    except Exception as error:  # an UnpicklingError: whatever else is in it is not loaded
        raise InputError(
            f"{where} holds more than tensors, which is not loaded: save model.state_dict() alone, or as safetensors."
        ) from error
    for name in INNER:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    if not isinstance(found, Mapping) or not any(isinstance(value, Tensor) for value in found.values()):
        raise InputError(f"{where} must hold tensors by name, as model.state_dict() gives them.")
    return dict(found)


def _json(path: Path, where: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{where}: {path.name} cannot be read ({brief(error)}).") from error
    return found


# ---- adapters --------------------------------------------------------------------------------------------


def _adapter_delta(problem: Problem, folder: Path, where: str) -> tuple[Delta, str]:
    """What a LoRA adapter changes: its factors, where the model has the same adapter, or the weights it adds to."""
    config = _json(folder / CONFIG, where)
    kind = str(config.get("peft_type", "")).upper()
    if kind != "LORA" or config.get("use_dora"):
        raise InputError(
            f"{where} is an adapter of the kind {'DoRA' if kind == 'LORA' else kind}: only LoRA is merged."
        )
    file = next((folder / name for name in ADAPTERS if (folder / name).is_file()), None)
    if file is None:
        raise InputError(f"{where}: the folder has no {ADAPTERS[0]}.")
    tensors = _file(file, where)
    base = str(config.get("base_model_name_or_path") or "")
    if any(".lora_" in name for name in problem.trained):
        return _checked(_factors(problem, tensors, where), where), base
    return _checked(_products(problem, tensors, config, where), where), base


def _factors(problem: Problem, tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """The adapter's factors less those of the model, which peft calls by the name of the adapter too."""
    found = {}
    for name in problem.trained:
        stored = re.sub(r"\.(lora_(?:embedding_)?[AB])\.[^.]+(\.weight)?$", r".\1\2", name)
        stored = re.sub(r"\.modules_to_save\.[^.]+\.", ".", stored)
        if stored not in tensors:
            raise InputError(f"{where} has no tensor {stored!r}. {did_you_mean(stored, tensors)}")
        found[name] = _difference(tensors[stored], problem.start[name], f"{stored!r} of {_of(where)}")
    return found


def _products(
    problem: Problem, tensors: Mapping[str, Tensor], config: Mapping[str, Any], where: str
) -> dict[str, Tensor]:
    """What the adapter adds to the weights of the model, tensors that it does not touch being zero."""
    known = {name: problem.start[name] for name in problem.trained}
    found = {name: torch.zeros_like(v, dtype=torch.promote_types(v.dtype, torch.float32)) for name, v in known.items()}
    for name, first in tensors.items():
        layer, _, factor = name.removeprefix("base_model.model.").partition(".lora_")
        if factor.startswith(("B", "embedding_B")):
            continue
        weight = f"{layer}.weight" if factor else name.removeprefix("base_model.model.")
        if weight not in known:
            raise InputError(f"{where} changes {weight!r}, which is not a trained parameter of the model.")
        what = f"{weight!r} of {_of(where)}"
        if not factor:  # a layer that was saved whole
            found[weight] = _difference(first, known[weight], what)
            continue
        second = tensors.get(name.replace("lora_A", "lora_B").replace("lora_embedding_A", "lora_embedding_B"))
        if second is None or second.shape[-1] != first.shape[0]:
            raise InputError(f"{where} has a factor {name!r} without its other factor.")
        product = second.float() @ first.float() * _scaling(config, layer, len(first))
        product = product.T if config.get("fan_in_fan_out") or factor.startswith("embedding") else product
        found[weight] = found[weight] + _difference(product, torch.zeros_like(known[weight]), what)
    return found


def _scaling(config: Mapping[str, Any], layer: str, rank: int) -> float:
    """Factor that peft applies to the product of an adapter."""
    alphas = config.get("alpha_pattern") or {}
    special = [value for pattern, value in alphas.items() if re.match(rf"(.*\.)?({pattern})$", layer)]
    alpha = float(special[0] if special else config.get("lora_alpha", rank))
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
