"""Flatness and surrogates: modular quadratic over training under SGD, SAM and NSO, as in the paper's figure.

    python experiments/paper/flatness.py --out DIR --device cuda     modulo 97, width 128; for a graphics card
    python experiments/paper/flatness.py --out DIR --small           modulo 19, width 24; about 10 minutes on one core
    python experiments/paper/flatness.py --out DIR --quick           a few steps, in seconds
    … --optimizers nso                                               only these: flatness.json of DIR keeps the others
    Where DIR has the runs already, the table is made from them.

A two-layer transformer is trained from the same random weights on Bernoulli(0.9) subsets of the 25 groups, and on all
of them, with SGD with momentum, and with SAM and NSO on top of it. At several training lengths: the trace of the
Hessian of the mean training loss of the model of all groups (Hutchinson, with its standard error), and the loss of
every held-out equation after each subset. LDS and residual error are those of linear and RBF surrogates on held-out
subsets, as the paper has them (least squares, the paper's kernel) and tuned, as means over splits of 4/5 to learn from
and 1/5 to be judged on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from runs import command, machine

import whence
from modular import P, equations, initial, tasks_and_target
from whence.errors import DataWarning
from whence.evaluation import noise_ceiling, repeated_splits
from whence.models.flatness import hessian_trace
from whence.models.optimizers import NSO, SAM, SGD
from whence.models.stack import Stack, unstacked
from whence.models.training import train
from whence.surrogates.peers import peers

K = 25
METHODS = ("least squares", "tuned linear", "paper kernel", "tuned kernel", "size only")
BASE = SGD(momentum=0.9)
OPTIMIZERS = {"sgd": BASE, "sam": SAM(base=BASE, rho=0.05), "nso": NSO(base=BASE, sigma=0.01)}
TRACED = 2048  # examples whose mean loss the trace is of


@dataclass(frozen=True)
class Size:
    """How large the study is."""

    modulus: int = P
    width: int = 128
    layers: int = 2
    heads: int = 4
    batch: int = 256
    lr: float = 0.03
    lengths: tuple[int, ...] = (100, 200, 400, 800, 1600)
    subsets: int = 50
    again: int = 12  # of these, with another seed

    def __str__(self) -> str:
        return (
            f"Modulo {self.modulus}, a transformer of {self.layers} layers and width {self.width}, "
            f"{self.subsets} Bernoulli(0.9) subsets of the {K} groups, {self.again} of them with two seeds, "
            f"batches of {self.batch}, learning rate {self.lr:g}."
        )


FULL = Size()
SMALL = Size(modulus=19, width=24, heads=2, batch=96, lr=0.1, lengths=(50, 100, 200, 400, 600))
QUICK = Size(modulus=11, width=16, layers=1, heads=2, batch=32, lr=0.1, lengths=(2, 4), subsets=6, again=3)


def smaller(modulus: int, operation: str = "quadratic"):
    """The 25 groups and the held-out tenth of a + b or a² + ab + b², all modulo a smaller prime."""
    tokens, _, _ = equations("quadratic")
    tokens = tokens[(tokens[:, 0] < modulus) & (tokens[:, 2] < modulus)]
    a, b = tokens[:, 0], tokens[:, 2]
    results = (a + b if operation == "addition" else a * a + a * b + b * b) % modulus
    group = (5 * a // modulus) * 5 + 5 * b // modulus
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))
    test, train = order[: len(order) // 10], order[len(order) // 10 :]
    mine = {f"g{k // 5}{k % 5}": train[group[train] == k] for k in range(K)}
    return {name: (tokens[rows], results[rows]) for name, rows in mine.items()}, (tokens[test], results[test])


def runs_of(name: str, size: Size, args: argparse.Namespace, path: Path) -> None:
    """Write losses (lengths, seeds, runs, queries) under an optimizer, and what the runs on all groups were like.

    All seeds are trained side by side; each has a start, subsets and batches of its own. What is there is written at
    every length, so that runs that are stopped leave those they have reached.
    """
    tasks, target = tasks_and_target("quadratic") if size.modulus == P else smaller(size.modulus)
    shape = {"width": size.width, "layers": size.layers, "heads": size.heads}
    each_seed = range(args.first, args.first + args.seeds)
    starts = [initial(seed, args.device, **shape) for seed in each_seed]
    drawn = [whence.Bernoulli(0.9).draw(K, size.subsets, seed=seed) for seed in each_seed]
    each = [np.concatenate([np.ones((1, K)), some, some[: size.again]]) for some in drawn]  # all groups come first
    rows, n = np.concatenate(each), len(each[0])
    problem = whence.Problem(starts[0], tasks, target, metrics=["loss", "accuracy"], per_query=True)
    recipe = whence.Recipe(
        steps=max(size.lengths), lr=size.lr, optimizer=OPTIMIZERS[name], batch_size=size.batch, clip=args.clip
    )
    stack = Stack(problem, batched=True)
    few = problem.tasks.sample(max(1, TRACED // K), 0)
    found: dict[str, list] = {key: [] for key in ("lengths", "losses", "accuracy", "training_loss", "trace", "error")}

    def watch(step: int, state, _) -> None:
        if step not in size.lengths:
            return
        now = {part: value.detach().clone() for part, value in state.items()}
        outcomes = stack.outcomes(now)
        whole = {part: value[::n] for part, value in now.items()}
        traces = [
            hessian_trace(problem, one, examples=few, n_products=args.products)
            for one in unstacked({part: value.clone() for part, value in whole.items()})
        ]
        losses = outcomes["loss"].reshape(args.seeds, n, -1)
        found["lengths"].append(step)
        found["losses"].append(losses[:, 1:].astype(np.float32))
        found["accuracy"].append(outcomes["accuracy"].mean(1).reshape(args.seeds, n))
        found["training_loss"].append(stack.evaluate(whole, few, {"loss": problem.loss})["loss"].mean(1).tolist())
        found["trace"].append([trace.trace for trace in traces])
        found["error"].append([trace.std_error for trace in traces])
        about = json.dumps({"command": command(), "machine": machine(), "date": time.strftime("%Y-%m-%d")})
        np.savez_compressed(
            path, about=about, subsets=np.stack(each)[:, 1:], **{key: np.array(many) for key, many in found.items()}
        )
        print(f"{name}, {step} steps: traces {', '.join(map(str, traces))}, training losses "
              f"{found['training_loss'][-1]}, test loss {losses.mean():.3f}, "
              f"accuracy {outcomes['accuracy'].mean():.3f}", flush=True)  # fmt: skip

    state = stack.start(len(rows))
    for part, value in state.items():
        value.copy_(torch.cat([start.state_dict()[part][None].repeat(n, *[1] * (value.ndim - 1)) for start in starts]))
    seeds = np.zeros(len(rows), dtype=int) if args.same_batches else args.first * n + np.arange(len(rows))
    train(stack, recipe, state, rows, seeds, watch=watch)


def scores(found: dict[str, np.ndarray], seed: int, n: int, n_splits: int) -> list[dict]:
    """LDS and residual error of the surrogates of the first n runs at every length, and the noise ceiling of all."""
    rows = []
    names = [f"loss[{i}]" for i in range(found["losses"].shape[3])]
    for i, length in enumerate(found["lengths"]):
        values, subsets = found["losses"][i, seed].astype(float), found["subsets"][seed]
        row = {
            "steps": int(length),
            **{key: float(found[key][i, seed]) for key in ("trace", "error", "training_loss")},
            "accuracy": float(found["accuracy"][i, seed, 0]),
        }
        tables = {
            "query": whence.Outcomes(subsets, values, target_names=names),
            "mean": whence.Outcomes(subsets, values.mean(1), target_names=["loss"]),
        }
        row["ceiling"] = {kind: noise_ceiling(runs).mean for kind, runs in tables.items()}
        for kind, every in tables.items():
            runs = every.rows(np.arange(n))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)
                size = 4 * len(runs.subsets) // 5
                split = repeated_splits(runs, peers(METHODS), n_splits=n_splits, train_size=size, seed=0).to_frame()
            row[kind] = {
                method: {"lds": float(split["lds"][method]), "residual_error": float(split["residual_error"][method])}
                for method in METHODS
            }
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clip", type=float)
    parser.add_argument("--products", type=int, default=32)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5, help="starts, each with subsets and batches of its own")
    parser.add_argument("--first", type=int, default=0, help="the first seed; those of other calls are kept")
    parser.add_argument("--same-batches", action="store_true", help="one seed of batches for all subsets")
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--only-runs", action="store_true", help="make the runs where there is a graphics card")
    parser.add_argument("--small", action="store_true", help="a size for one core of a processor")
    parser.add_argument("--quick", action="store_true", help="a few steps, in seconds")
    args = parser.parse_args()
    size = QUICK if args.quick else SMALL if args.small else FULL
    if args.quick:
        args.products, args.splits, args.seeds = 6, 2, 2
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    report, known = args.out / "flatness.json", {}
    if report.exists():
        before = json.loads(report.read_text(encoding="utf-8"))
        known = before["optimizers"] if before["size"] == str(size) else {}
    for name in args.optimizers:
        path, begun = args.out / f"flatness_{name}_{args.first}.npz", time.time()
        if not path.exists():
            runs_of(name, size, args, path)
            print(f"{name}: {time.time() - begun:.0f} s", flush=True)
        if not args.only_runs:
            every, about = [], {}
            for part in sorted(args.out.glob(f"flatness_{name}_*.npz")):
                with np.load(part) as found:
                    runs = dict(found)
                about = about or json.loads(str(runs["about"]))
                every += [scores(runs, seed, size.subsets, args.splits) for seed in range(len(runs["subsets"]))]
            known[name] = {**about, "seeds": every}
            for row in (row for rows in every for row in rows):
                told = "; ".join(f"{method} {row['query'][method]['lds']:.2f} / {row['mean'][method]['lds']:.2f}"
                                 for method in METHODS)  # fmt: skip
                print(f"{name} {row['steps']}: trace {row['trace']:.4g}; LDS per query / mean: {told}", flush=True)
    document = {"size": str(size), "optimizers": {name: known[name] for name in OPTIMIZERS if name in known}}
    report.write_text(json.dumps(document, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
