"""Baselines beside their peers in time and memory, and beside the truth in what they say.

    python benchmarks/baselines.py --peer dattri=DIR --peer captum=DIR …   a small network; minutes on a processor
    python benchmarks/baselines.py --problem modular --device cuda         the paper's transformer; whence alone

DIR is a virtual environment that has the peer (dattri 0.3, captum 0.9, traker 0.3.2, kronfluence 1.0.1). Results go to
benchmarks/results/baselines.md, or baselines_modular.md.

Problem *digits*: a network of 64 → 128 → 10 learns handwritten digits from 20 tasks: 40 images of each digit with the
right labels, and 40 with two in five labels drawn at random. Problem *modular*: see benchmarks/modular.py, addition
from scratch. Truth: true runs on subsets of half of the tasks (so that size says nothing), the loss of each query, mean
of the seeds; and leave-one-out runs. Scores are per query: LDS over subsets, and correlation over tasks with
leave-one-out changes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from datetime import date
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "2")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import torch
from sklearn.datasets import load_digits

import whence
from baselines_worker import network
from whence import baselines
from whence.estimators.problem import Problem
from whence.estimators.training import train
from whence.evaluation import loo_correlation, noise_ceiling, size_only, spearman_per_target

HERE = Path(__file__).resolve().parent
METHODS = {  # what the worker calls it: its name in the table, and the peers that have it
    "cg": ("influence function, conjugate gradients", ["dattri"]),
    "lissa": ("influence function, LiSSA", ["dattri"]),
    "ekfac": ("influence function, EK-FAC", ["dattri", "kronfluence"]),
    "gauss_newton": ("influence function, Gauss–Newton", []),
    "tracin": ("TracIn", ["dattri", "captum"]),
    "trak": ("TRAK", ["dattri", "traker"]),
    "trak_penalised": ("TRAK, with a penalty", []),
    "trak_tasks": ("TRAK, kernel of task means", []),
    "source": ("SOURCE", []),
    "bif": ("BIF", []),
}


def digits():
    """Return the network, its tasks, queries, and how it is trained."""
    X, y = load_digits(return_X_y=True)
    X, y = torch.as_tensor(X / 16, dtype=torch.float32), torch.as_tensor(y)
    rng = np.random.default_rng(0)
    order = torch.as_tensor(rng.permutation(len(y)))
    X, y = X[order], y[order]
    used, tasks = torch.zeros(len(y), dtype=torch.bool), {}
    for noisy in (False, True):
        for digit in range(10):
            rows = ((y == digit) & ~used).nonzero()[:40, 0]
            used[rows] = True
            labels = y[rows].clone()
            if noisy:
                wrong = torch.as_tensor(rng.random(40) < 0.4)
                labels[wrong] = torch.as_tensor(rng.integers(0, 10, int(wrong.sum())))
            tasks[f"t{len(tasks):02d}"] = (X[rows], labels)
    rest = (~used).nonzero()[:100, 0]
    torch.manual_seed(0)
    recipe = whence.Recipe(steps=400, lr=0.3, optimizer="sgd", batch_size=64, weighting="task")
    return network(), tasks, (X[rest], y[rest]), recipe


def modular(device: str):
    """Return the transformer, its 25 groups, queries, and how it is trained."""
    from modular import initial, tasks_and_target

    tasks, (tokens, results) = tasks_and_target("addition")
    recipe = whence.Recipe(steps=800, lr=1e-3, batch_size=512, weight_decay=0.1, weighting="task")
    return initial(0, device), tasks, (tokens[:200], results[:200]), recipe


def way(model, tasks, queries, recipe, device, n: int = 4) -> list[dict[str, torch.Tensor]]:
    """Return the weights at n points of one training on all tasks, the last at its end."""
    problem = Problem(model, tasks, queries, batched=False, device=device)
    state, points = {name: value[None].clone() for name, value in problem.start.items()}, []
    everything = np.ones((1, len(tasks)))
    for part in range(n):
        shorter = whence.Recipe(
            steps=recipe.steps // n, lr=recipe.lr, optimizer=recipe.optimizer, batch_size=recipe.batch_size,
            weight_decay=recipe.weight_decay, weighting=recipe.weighting,
        )  # fmt: skip
        state = train(problem, shorter, state, everything, np.array([part]))
        points.append({name: value[0].clone() for name, value in state.items()})
    return points


def truth(model, tasks, queries, recipe, device, n_subsets: int, n_seeds: int):
    """Return runs on subsets of half of the tasks and leave-one-out runs, and the seconds they took."""
    retrain = whence.Retrain(model, tasks, queries, recipe, per_query=True, device=device)
    names, began = list(tasks), time.perf_counter()
    half = whence.FixedSize(len(names) // 2).draw(len(names), n_subsets, seed=0)
    alone = whence.LeaveOneOut().draw(len(names))
    tables = []
    for rows in (half, alone):
        subsets = np.repeat(rows, n_seeds, axis=0)
        seeds = np.tile(np.arange(n_seeds), len(rows))
        tables.append(whence.Outcomes(subsets, retrain.batch(subsets, seeds)["loss"], task_names=names))
    return *tables, time.perf_counter() - began


def worked(python: str, what: str, source: Path, folder: Path) -> dict[str, object] | None:
    """Run one method in a process of its own; None, and its last line on stderr, where it fails."""
    result = folder / f"{what.replace('/', '_')}.npy"
    command = [python, str(HERE / "baselines_worker.py"), what, str(source), str(result)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    except subprocess.TimeoutExpired:
        print(f"{what} took too long", file=sys.stderr)
        return None
    if done.returncode:
        print(f"{what} failed: {done.stderr.strip().splitlines()[-1][:300]}", file=sys.stderr)
        return None
    told = json.loads(done.stdout.strip().splitlines()[-1])
    print(f"{what}: {told['seconds']:.3f} s, {told['added_mb']:.0f} MB", file=sys.stderr)
    return {**told, "scores": np.load(result)}


def judged(coef, subsets: whence.Outcomes, alone: whence.Outcomes) -> tuple[float, float, float]:
    """LDS per query, rank correlation of the mean loss, and correlation with leave-one-out changes of the mean loss."""
    rows, values = means(subsets)
    guess = rows @ coef
    per_query = spearman_per_target(guess, values)
    whole = spearman_per_target(guess.mean(1, keepdims=True), values.mean(1, keepdims=True))
    mean_alone = whence.Outcomes(alone.subsets, alone.values.mean(1), task_names=alone.task_names)
    return float(np.nanmean(per_query)), float(whole[0]), loo_correlation(coef.mean(1), mean_alone).mean


def means(table: whence.Outcomes):
    """Distinct subsets and the mean of their seeds."""
    rows, index = np.unique(table.subsets, axis=0, return_inverse=True)
    counts = np.bincount(index.ravel())
    totals = np.zeros((len(rows), table.n_targets))
    np.add.at(totals, index.ravel(), table.values)
    return rows, totals / counts[:, None]


def write_problem(path: Path, points, tasks, queries, recipe) -> None:
    rates = np.full(len(points), recipe.lr * recipe.steps / len(points))
    parts = {f"{c}:{name}": value.numpy() for c, state in enumerate(points) for name, value in state.items()}
    np.savez(
        path, **parts, n_checkpoints=len(points), X=torch.cat([x for x, _ in tasks.values()]).numpy(),
        y=torch.cat([y for _, y in tasks.values()]).numpy(), queries=queries[0].numpy(), labels=queries[1].numpy(),
        owner=np.repeat(np.arange(len(tasks)), [len(y) for _, y in tasks.values()]), rates=rates,
        segment_rates=np.full(len(points), recipe.lr), segment_steps=np.full(len(points), recipe.steps // len(points)),
    )  # fmt: skip


def of_digits(peers: dict[str, str], n_subsets: int, n_seeds: int) -> list[str]:
    """Return the lines of the results on digits."""
    model, tasks, queries, recipe = digits()
    points = way(model, tasks, queries, recipe, "cpu")
    subsets, alone, seconds = truth(model, tasks, queries, recipe, "cpu", n_subsets, n_seeds)
    print(f"truth: {subsets.n_runs + alone.n_runs} runs in {seconds:.0f} s", file=sys.stderr)
    speed = ["| method | whence | " + " | ".join(peers) + " | times faster than the fastest |"]
    speed.append("|" + "---|" * (len(peers) + 3))
    quality = ["| method | LDS per query | mean loss, rank | leave-one-out |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_problem(folder / "problem.npz", points, tasks, queries, recipe)
        for method, (title, having) in METHODS.items():
            mine = worked(sys.executable, f"whence/{method}", folder / "problem.npz", folder)
            if mine is None:
                continue
            quality.append(
                f"| {title} | " + " | ".join(f"{v:.2f}" for v in judged(mine["scores"], subsets, alone)) + " |"
            )
            cells, fastest = [], np.inf
            for peer, python in peers.items():
                theirs = worked(python, f"{peer}/{method}", folder / "problem.npz", folder) if peer in having else None
                if theirs is None:
                    cells.append("failed" if peer in having else "")
                    continue
                fastest = min(fastest, theirs["seconds"])
                agree = abs(np.corrcoef(theirs["scores"].ravel(), mine["scores"].ravel())[0, 1])
                cells.append(f"{theirs['seconds']:.3g} s, {theirs['added_mb']:.0f} MB (r {agree:.3f})")
            told = f"**{fastest / mine['seconds']:.1f}**" if np.isfinite(fastest) else ""
            speed.append(
                f"| {title} | {mine['seconds']:.3g} s, {mine['added_mb']:.0f} MB | "
                + " | ".join(cells)
                + f" | {told} |"
            )
    quality += context(subsets, alone)
    about = (
        f"Digits: {len(tasks)} tasks of 40 images, {sum(p.numel() for p in model.parameters()):,} parameters, "
        f"{len(queries[1])} queries; {n_subsets} subsets of {len(tasks) // 2} tasks and {len(tasks) + 1} leave-one-out "
        f"subsets × {n_seeds} seeds, trained in {seconds:.0f} s."
    )
    notes = (
        "Times are the best of three calls, in one run, on a machine shared with others; MB is what imports and calls "
        "added at their peak. r: correlation, without sign, of the peer's scores (means over the examples of a "
        "task) with whence's. TracIn is the same number. Conjugate gradients are stopped after 20 steps on a "
        "Hessian that may be indefinite, where each goes its own way. LiSSA draws its own examples and EK-FAC its "
        "own labels. The peers' TRAK is of the margin and whence's of the loss, with other projections."
    )
    return [about, "", *speed, "", notes, "", *quality]


def context(subsets: whence.Outcomes, alone: whence.Outcomes) -> list[str]:
    """Rows of what is trivial and what is possible: size, a surrogate of true runs, another seed."""
    rows, values = means(subsets)
    half = len(rows) // 2
    fitted = whence.AdditiveSurrogate().fit(rows[:half], values[:half])
    linear = float(np.nanmean(spearman_per_target(fitted.predict(rows[half:]), values[half:])))
    size = whence.lds(size_only(subsets, subsets), subsets).mean
    ceiling = noise_ceiling(subsets)
    return [
        f"| tuned linear surrogate of {half} of these runs, on the others | {linear:.2f} | | |",
        f"| size only | {size:.2f} | | |",
        f"| noise ceiling | {ceiling.mean:.2f} | | |",
    ]


def of_modular(device: str, n_subsets: int, n_seeds: int) -> list[str]:
    """Return the lines of the results on modular arithmetic, whence alone."""
    model, tasks, queries, recipe = modular(device)
    points = way(model, tasks, queries, recipe, device)
    subsets, alone, seconds = truth(model, tasks, queries, recipe, device, n_subsets, n_seeds)
    trained = modular(device)[0]
    trained.load_state_dict(points[-1], strict=False)
    given, rates = (trained, tasks, queries), [recipe.lr * recipe.steps / len(points)] * len(points)
    calls = {
        "gauss_newton": lambda: baselines.influence_scores(
            *given, per_query=True, curvature="gauss_newton", damping=0.1, tol=1e-2, max_steps=50, device=device
        ),
        "tracin": lambda: baselines.tracin_scores(
            *given, per_query=True, checkpoints=points, learning_rates=rates, device=device
        ),
        "trak": lambda: baselines.trak_scores(*given, per_query=True, rank=2048, l2=1.0, device=device),
        "source": lambda: baselines.source_scores(
            *given, per_query=True, segments=[[p] for p in points], learning_rates=[recipe.lr] * len(points),
            steps=[recipe.steps // len(points)] * len(points), rank=16, device=device,
        ),
        "bif": lambda: baselines.bif_scores(
            *given, per_query=True, damping=0.1, chains=8, draws=100, batch_size=512, device=device
        ),
    }  # fmt: skip
    lines = ["| method | seconds | LDS per query | mean loss, rank | leave-one-out |", "|---|---|---|---|---|"]
    for name, call in calls.items():
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", whence.DataWarning)
            coef = call().coef_
        took = time.perf_counter() - began
        lines.append(
            f"| {METHODS[name][0]} | {took:.1f} | "
            + " | ".join(f"{v:.2f}" for v in judged(coef, subsets, alone)) + " |"
        )  # fmt: skip
        print(lines[-1], file=sys.stderr)
    lines += [row.replace(" | ", " | | ", 1) for row in context(subsets, alone)]
    return [
        f"Modular addition: {len(tasks)} groups; {subsets.n_runs + alone.n_runs} true runs in {seconds:.0f} s.",
        "",
        *lines,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problem", choices=["digits", "modular"], default="digits")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--subsets", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    peers = {name: str(Path(folder) / "bin" / "python") for name, folder in (p.split("=", 1) for p in given.peer)}
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if given.problem == "digits":
        lines, output = of_digits(peers, given.subsets, given.seeds), HERE / "results" / "baselines.md"
    else:
        lines, output = of_modular(given.device, given.subsets, given.seeds), HERE / "results" / "baselines_modular.md"
    command = "python benchmarks/baselines.py " + " ".join(a for a in sys.argv[1:] if "=" not in a and a != "--peer")
    machine = torch.cuda.get_device_name() if given.device.startswith("cuda") else f"{os.cpu_count()} cores"
    head = [
        "# Baselines", "",
        f"`{command.strip()}`; {date.today()}, {machine}, {os.environ['OMP_NUM_THREADS']} threads, "
        f"Python {platform.python_version()}, torch {torch.__version__}.", "",
    ]  # fmt: skip
    text = "\n".join([*head, *lines]) + "\n"
    (given.output or output).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
