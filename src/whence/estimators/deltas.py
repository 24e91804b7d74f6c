"""Task vectors, in memory and in a folder: each on disk as soon as it is there, and refused if of something else.

In the folder, ``manifest.json`` says what they are of: the weights they start from, the training, the examples of each
task. A vector is a safetensors file. It is written under another name, synced and renamed, so that a file that is there
is whole.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from whence.errors import InputError, counted, some_of
from whence.models.memory import free_bytes

Delta = Mapping[str, Tensor]
FORMAT = 1


class Vectors:
    """K task vectors, which are added up parameter by parameter.

    They are stacked on the device where they fit there, else in main memory; where they fit in neither, and are in
    files, they are read as they are needed.

    Parameters
    ----------
    deltas : sequence of mapping of str to tensor
        One per task.
    device : device

    Examples
    --------
    >>> vectors = Vectors([{"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])}], torch.device("cpu"))
    >>> vectors.combine("w", torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    tensor([[1., 1.],
            [0., 2.]])
    """

    def __init__(self, deltas: Sequence[Delta], device: torch.device) -> None:
        self.deltas, self.device = deltas, device
        needed = len(deltas) * sum(value.nbytes for value in deltas[0].values())
        homes = [home for home in (device, torch.device("cpu")) if 2 * needed < free_bytes(home)]
        in_files = any(isinstance(delta, DeltaFile) for delta in deltas)
        self.stacked: dict[str, Tensor] | None = None
        if homes or not in_files:
            home = homes[0] if homes else torch.device("cpu")
            self.stacked = {name: torch.stack([d[name].to(home) for d in deltas]) for name in deltas[0]}

    def __len__(self) -> int:
        return len(self.deltas)

    def stack(self, name: str) -> Tensor:
        """Values of one parameter, (K, ...)."""
        if self.stacked is not None:
            return self.stacked[name].to(self.device)
        return torch.stack([delta[name].to(self.device) for delta in self.deltas])

    def combine(self, name: str, coefs: Tensor) -> Tensor:
        """Sums of one parameter, (m, ...), by coefficients (m, K)."""
        if self.stacked is not None:
            values = self.stacked[name]
            sums = coefs.to(values) @ values.flatten(1)
            return sums.view(len(coefs), *values.shape[1:]).to(self.device)
        first = self.deltas[0][name]
        total = torch.zeros(len(coefs), *first.shape, dtype=first.dtype, device=self.device)
        for column, delta in zip(coefs.unbind(1), self.deltas, strict=True):
            if column.any():
                value = delta[name].to(self.device)
                total += column.to(value).view(-1, *[1] * value.ndim) * value
        return total


class DeltaFile(Mapping[str, Tensor]):
    """Task vector in a file, of which each tensor is read when it is asked for."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with safe_open(file, framework="pt") as opened:
            self.names = list(opened.keys())

    def __getitem__(self, name: str) -> Tensor:
        with safe_open(self.file, framework="pt") as opened:
            found: Tensor = opened.get_tensor(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class DeltaFolder:
    """Folder of task vectors.

    Parameters
    ----------
    path : str or path
        Made where it does not exist.
    about : mapping of str to JSON values
        What the vectors are of, apart from the tasks: compared with what the folder says.
    tasks : mapping of str to str
        Name of each task, and a hash of its examples.
    together : bool
        Whether every vector depends on all tasks, so that none may be added or left out.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        about: Mapping[str, Any],
        tasks: Mapping[str, str],
        *,
        together: bool = False,
    ) -> None:
        self.path = Path(path)
        about = {"format": FORMAT, **about}
        manifest = self.path / "manifest.json"
        found = self._read(manifest)
        if found is not None:
            self._compare(found, about, tasks)
            if together and (others := sorted(set(found["tasks"]) ^ set(tasks))):
                raise InputError(
                    f"The task vectors in {self.path} saw all tasks there were, which differ in: {some_of(others)}. "
                    "Give another folder, or train each task alone, without a background."
                )
            tasks = {**found["tasks"], **tasks}
        if found is None or tasks != found["tasks"]:
            self._write(manifest, lambda draft: draft.write_text(json.dumps({**about, "tasks": tasks}, indent=1)))

    def file(self, task: str) -> Path:
        """Where the vector of a task is, or will be."""
        readable = re.sub(r"[^A-Za-z0-9_-]+", "_", task)[:40]
        return self.path / f"{readable}-{hashlib.sha256(task.encode()).hexdigest()[:8]}.safetensors"

    def load(self, task: str, like: Delta) -> DeltaFile | None:
        """Vector of a task, or None where it has not been made yet."""
        file = self.file(task)
        if not file.exists():
            return None
        try:
            delta = DeltaFile(file)
            fits = {name: value.shape for name, value in delta.items()} == {name: v.shape for name, v in like.items()}
            finite = is_finite(delta)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{file} cannot be read ({error}): delete it, and it is made again.") from error
        if not fits or not finite:
            what = "does not have the parameters of the model" if not fits else "holds NaN or infinite numbers"
            raise InputError(f"The task vector in {file} {what}: delete it, and it is made again.")
        return delta

    def save(self, task: str, delta: Delta) -> DeltaFile:
        """Keep the vector of a task: on disk when this returns."""
        tensors = {name: value.detach().cpu().contiguous() for name, value in delta.items()}
        self._write(self.file(task), lambda draft: save_file(tensors, draft, {"task": task}))
        return DeltaFile(self.file(task))

    def _write(self, file: Path, write: Any) -> None:
        draft = file.with_name(file.name + ".draft")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write(draft)
            with open(draft, "rb+") as handle:
                os.fsync(handle.fileno())
            draft.replace(file)
        except (OSError, SafetensorError) as error:
            draft.unlink(missing_ok=True)
            full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
            reason = "the disk is full" if full else str(error)
            kept = counted(len(list(self.path.glob("*.safetensors"))), "task vector")
            raise InputError(
                f"{file} cannot be written: {reason}. The folder has {kept}, which will not be made again."
            ) from error

    def _read(self, manifest: Path) -> dict[str, Any] | None:
        if not manifest.exists():
            others = [entry.name for entry in self.path.iterdir()] if self.path.is_dir() else []
            if any(not name.endswith(".draft") for name in others):
                raise InputError(f"{self.path} is not empty and has no task vectors in it (but {some_of(others, 3)}).")
            return None
        try:
            found: dict[str, Any] = json.loads(manifest.read_text())
            dict(found["tasks"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{manifest} is not readable: delete the folder to start anew.") from error
        return found

    def _compare(self, found: Mapping[str, Any], about: Mapping[str, Any], tasks: Mapping[str, str]) -> None:
        ended = "Give another folder, or delete this one."
        if found.get("start") != about.get("start"):
            raise InputError(f"The task vectors in {self.path} start from the weights of another model. {ended}")
        differing = sorted(key for key in {*found, *about} - {"tasks"} if found.get(key) != about.get(key))
        if differing:
            told = [f"{key} ({found.get(key)} there, {about.get(key)} now)" for key in differing]
            raise InputError(f"The task vectors in {self.path} were trained otherwise: {some_of(told, 4)}. {ended}")
        changed = [name for name, data in tasks.items() if found["tasks"].get(name, data) != data]
        if changed:
            raise InputError(f"The task vectors in {self.path} are of other examples for {some_of(changed)}. {ended}")


def is_finite(delta: Delta) -> bool:
    """Whether all numbers are finite.

    >>> is_finite({"weight": torch.tensor([1.0, float("nan")])})
    False
    """
    return all(bool(value.isfinite().all()) for value in delta.values())
