"""Task vectors, in memory and in a folder: each is saved at once, and vectors of another problem are refused.

In the folder, ``manifest.json`` identifies the problem: the initial weights, the training, the examples of each task. A
vector is a safetensors file with a checksum of its numbers, written whole or not at all. Points of a joint run are kept
in the same way.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from whence.arrays import Floats
from whence.errors import InputError, counted, some_of
from whence.models.memory import free_bytes
from whence.outcomes.writing import read_document, refuse_occupied, refuse_other, whole_file, write_document

if TYPE_CHECKING:
    from whence.estimators.merge import TaskVectors

Delta = Mapping[str, Tensor]
FORMAT = 1


class Vectors:
    """K task vectors, which are added up parameter by parameter.

    They are stacked on the device if they fit there, else in main memory. If they fit in neither and are in files, they
    are read when needed.

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
    """Task vector in a file; each tensor is read when needed."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with safe_open(file, framework="pt") as opened:
            self.names = list(opened.keys())
            self.about = dict(opened.metadata() or {})

    def __getitem__(self, name: str) -> Tensor:
        with safe_open(self.file, framework="pt") as opened:
            found: Tensor = opened.get_tensor(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class DeltaFolder:
    """Folder of task vectors, or of something else as ``noun`` names it, created if it does not exist.

    It must agree with ``about``, which identifies the vectors apart from the tasks, and with the hash of the examples
    of each task. If all vectors depend on all tasks (``together``), none may be added or left out.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        about: Mapping[str, object],
        tasks: Mapping[str, str],
        *,
        together: bool = False,
        noun: str = "task vector",
    ) -> None:
        self.path, self.noun = Path(path), noun
        about = {"format": FORMAT, **about}
        manifest = self.path / "manifest.json"
        found = read_document(manifest) if manifest.exists() else None
        if found is None and self.path.is_dir():
            refuse_occupied(self.path, lambda name: False, f"{noun}s")
        if found is not None:
            both = [name for name in tasks if name in found["tasks"]]
            was = {f"examples of {name}": found["tasks"][name] for name in both}
            was |= {name: value for name, value in found.items() if name != "tasks"}
            now = {f"examples of {name}": tasks[name] for name in both} | about
            refuse_other(f"The {noun}s in {self.path} are", was, now)
            if together and (others := sorted(set(found["tasks"]) ^ set(tasks))):
                raise InputError(
                    f"The {noun}s in {self.path} were trained with all tasks, and these differ: {some_of(others)}. "
                    "Use another folder."
                )
            tasks = {**found["tasks"], **tasks}
        if found is None or tasks != found["tasks"]:
            self.path.mkdir(parents=True, exist_ok=True)
            write_document(manifest, {**about, "tasks": tasks})

    def file(self, name: str) -> Path:
        """Where the vector of a task is, or will be."""
        readable = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:40]
        return self.path / f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}.safetensors"

    def load(self, name: str, like: Delta) -> DeltaFile | None:
        """Vector of a task, or None if it has not been made yet."""
        file = self.file(name)
        if not file.exists():
            return None
        try:
            delta = DeltaFile(file)
            fits = {key: value.shape for key, value in delta.items()} == {key: v.shape for key, v in like.items()}
            whole = fits and delta.about == {"task": name, "checksum": checksum(delta)}
            finite = is_finite(delta)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{file} cannot be read ({error}): delete it, and it is made again.") from error
        for good, what in (
            (fits, "does not have the parameters of the model"),
            (finite, "holds NaN or infinite numbers"),
            (whole, "was altered: it does not match its checksum"),
        ):
            if not good:
                raise InputError(f"The {self.noun} in {file} {what}: delete it, and it is made again.")
        return delta

    def save(self, name: str, delta: Delta) -> DeltaFile:
        """Save the vector of a task."""
        tensors = {key: value.detach().cpu().contiguous() for key, value in delta.items()}
        path = self.file(name)
        try:
            with whole_file(path) as file:
                save_file(tensors, Path(file.name), {"task": name, "checksum": checksum(tensors)})
        except (InputError, SafetensorError) as error:
            full = "No space left" in str(error) or "disk is full" in str(error)
            reason = f"{path} cannot be written: the disk is full" if full else str(error).rstrip(".")
            kept = counted(len(list(self.path.glob("*.safetensors"))), self.noun)
            raise InputError(f"{reason}. The folder has {kept}, which will not be made again.") from error
        return DeltaFile(path)

    def delete(self, names: Iterable[str]) -> None:
        """Delete vectors, and where none is left the folder too, so that it may be used for something else."""
        for name in names:
            self.file(name).unlink(missing_ok=True)
        if not any(self.path.glob("*.safetensors")):
            (self.path / "manifest.json").unlink(missing_ok=True)
            with suppress(OSError):  # hidden files, which do not count
                self.path.rmdir()


def checksum(delta: Delta) -> str:
    """Checksum of the names, shapes and numbers of a task vector.

    >>> checksum({"weight": torch.zeros(2)})
    'f1dd896b'
    """
    found = 0
    for name in sorted(delta):
        value = delta[name].detach().cpu().contiguous()
        found = zlib.crc32(f"{name} {value.dtype} {tuple(value.shape)}".encode(), found)
        found = zlib.crc32(value.flatten().view(torch.uint8).numpy().data, found)
    return f"{found:08x}"


def is_finite(delta: Delta) -> bool:
    """Whether all numbers are finite.

    >>> is_finite({"weight": torch.tensor([1.0, float("nan")])})
    False
    """
    return all(bool(value.isfinite().all()) for value in delta.values())


def train_vector(vectors: TaskVectors, subset: Floats, seed: int) -> dict[str, float]:
    """Train and save the vector of the only task of a subset, and return its length."""
    task = int(np.argmax(subset))
    (delta,) = vectors.trained_alone([task])
    if not is_finite(delta):
        raise InputError("Training diverged (NaN): lower the learning rate, or leave the task out.")
    vectors.folder().save(vectors.task_names[task], delta)
    return {"length": float(torch.stack([value.norm() for value in delta.values()]).norm())}
