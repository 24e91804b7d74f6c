"""Features on disk: written block by block, resumable after a kill at any point, and read as if they were in memory.

A store is a folder. ``manifest.json`` says what the features are of (sizes, settings, hashes of the parameters and the
examples), ``outputs.f32`` and ``features.f32`` are plain arrays that are mapped into memory, and ``blocks.jsonl`` lists
the blocks of rows that are complete, each with its checksum. A block is listed only once it is safely on disk, so
blocks that are listed can be trusted, and others are made again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whence.errors import InputError
from whence.outcomes.sizes import size_in_words
from whence.outcomes.writing import (
    as_line,
    from_line,
    open_to_append,
    read_document,
    refuse_occupied,
    refuse_other,
    why,
    write_document,
)
from whence.progress import track

Float32s = NDArray[np.float32]


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Hash of the values, shapes and types of tensors, as 32 hexadecimal digits.

    >>> fingerprint([torch.zeros(2)]) == fingerprint([torch.zeros(2)]), fingerprint([torch.zeros(2, 1)])[:4]
    (True, 'e8e0')
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


class Store:
    """Outputs (n, C) and features (n, C, rank) of n examples in a folder.

    Opening one creates the folder, or checks that an existing one is intact and belongs to the same model, examples and
    settings (``about``). ``block`` rows are written at a time.
    """

    def __init__(
        self, path: str | os.PathLike[str], shape: tuple[int, int, int], block: int, about: dict[str, object]
    ) -> None:
        self.path, self.shape = Path(path), shape
        self._sizes = {"outputs.f32": 4 * shape[0] * shape[1], "features.f32": 4 * shape[0] * shape[1] * shape[2]}
        wanted = {"format": 1, "rows": shape[0], "outputs": shape[1], "rank": shape[2], "block": block, **about}
        manifest = self.path / "manifest.json"
        if manifest.exists():
            self.block = self._compare(manifest, wanted)
        else:
            self.block = block
            self._create(manifest, wanted)
        self.outputs = np.memmap(self.path / "outputs.f32", np.float32, "r+", shape=shape[:2])
        self.features = np.memmap(self.path / "features.f32", np.float32, "r+", shape=shape)
        self.done = self._listed()

    def blocks(self) -> list[slice]:
        """Rows of each block."""
        return [slice(start, min(start + self.block, self.shape[0])) for start in range(0, self.shape[0], self.block)]

    def write(self, rows: slice, outputs: Float32s, features: Float32s) -> None:
        """Keep a block: on disk, and listed, when this returns."""
        self.outputs[rows], self.features[rows] = outputs, features
        self.outputs.flush()
        self.features.flush()
        with open(open_to_append(self.path / "blocks.jsonl"), "ab") as file:
            file.write(as_line({"start": rows.start, "crc32": self._checksum(rows)}))
            file.flush()
            os.fsync(file.fileno())
        self.done.add(rows.start)

    def _checksum(self, rows: slice) -> int:
        return zlib.crc32(self.features[rows].tobytes(), zlib.crc32(self.outputs[rows].tobytes()))

    def _create(self, manifest: Path, wanted: dict[str, object]) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            refuse_occupied(self.path, {*self._sizes, "blocks.jsonl"}.__contains__, "feature store")
            needed, free = sum(self._sizes.values()), shutil.disk_usage(self.path).free
            if needed > free:
                raise InputError(
                    f"The features take {size_in_words(needed)} and {self.path} has {size_in_words(free)} free: "
                    "give another folder, or lower the rank."
                )
            for name, size in self._sizes.items():
                (self.path / name).unlink(missing_ok=True)  # and so not through a link
                with open(self.path / name, "xb") as file:
                    if hasattr(os, "posix_fallocate"):
                        os.posix_fallocate(file.fileno(), 0, size)  # a full disk says so now, and not in a write later
                    else:
                        file.truncate(size)
            (self.path / "blocks.jsonl").unlink(missing_ok=True)
            write_document(manifest, wanted)
        except OSError as error:
            raise InputError(f"The feature store {self.path} cannot be made: {why(error)}.") from error

    def _compare(self, manifest: Path, wanted: dict[str, object]) -> int:
        """Return the block size of the folder, or refuse it."""
        found = read_document(manifest)
        refuse_other(f"The feature store {self.path} is", found, wanted | {"block": found.get("block")})
        for name, size in self._sizes.items():
            file = self.path / name
            if not file.exists() or file.stat().st_size != size:
                raise InputError(
                    f"The feature store {self.path} is damaged ({name} is cut short): delete it to start over."
                )
        return int(found["block"])

    def _listed(self) -> set[int]:
        """Return the starts of the complete blocks, after checking each."""
        sums: dict[int, int] = {}
        with open(open_to_append(self.path / "blocks.jsonl"), "a+b") as listing:
            listing.seek(0)
            text = listing.read()
            if text and not text.endswith(b"\n"):
                listing.write(b"\n")
        for line in text.split(b"\n"):
            if (entry := from_line(line)) is not None:  # one cut short by a kill, or damaged: that block is made again
                sums[entry["start"]] = entry["crc32"]
        known = [rows for rows in self.blocks() if rows.start in sums]
        for rows in track(known, "checking the feature store"):
            if self._checksum(rows) != sums[rows.start]:
                raise InputError(
                    f"The feature store {self.path} was altered: rows {rows.start} to {rows.stop - 1} do not match "
                    "their checksum. Delete it to start over."
                )
        return {rows.start for rows in known}
