"""Baselines beside their peers in time and memory, and beside the truth in what they say.

    python benchmarks/baselines.py --peer dattri=DIR --peer captum=DIR …              a small network; minutes
    python benchmarks/baselines.py --problem modular --truth RUNS --peer dattri=DIR …  the paper's transformer; longer
    … --keep FOUND                                                                     go on with what is there

DIR is a virtual environment that has the peer (dattri 0.3, captum 0.9, traker 0.3.2, kronfluence 1.0.1). RUNS is where
the true runs of benchmarks/gradex_fidelity.py are kept; without it they are made here, which takes a GPU. Results go to
benchmarks/results/baselines.md and baselines_modular.md. benchmarks/baselines_problems.py has both problems and their
truth, benchmarks/baselines_worker.py the calls. Scores are per query: LDS over subsets, and correlation over tasks with
leave-one-out changes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import torch

import whence
from baselines_problems import Case, digits, modular
from baselines_worker import SETTINGS
from whence.evaluation import loo_correlation, noise_ceiling, size_only, spearman_per_target

HERE = Path(__file__).resolve().parent
Told = dict[str, Any]  # seconds, added_mb, diagnostics, scores
METHODS = {  # what the worker calls it: its name in the table, and the peers that have it
    "cg": ("influence function, conjugate gradients", ["dattri"]),
    "lissa": ("influence function, LiSSA", ["dattri"]),
    "ekfac": ("influence function, EK-FAC", ["dattri", "kronfluence"]),
    "ekfac_all": ("influence function, EK-FAC of all parameters", []),
    "gauss_newton": ("influence function, Gauss–Newton", []),
    "tracin": ("TracIn", ["dattri", "captum"]),
    "trak": ("TRAK", ["dattri", "traker"]),
    "trak_penalised": ("TRAK, with a penalty", []),
    "trak_tasks": ("TRAK, kernel of task means", []),
    "source": ("SOURCE", []),
    "bif": ("BIF", []),
}
TIMES = (
    "Times are processor time, which others on the machine change little, of the best of three calls (of one, where "
    "that takes more than 5 s), all in one run; MB is what imports and calls added at their peak."
)
OTHER_WAYS = (
    "r: correlation, without sign, of the peer's scores (means over the examples of a task) with whence's. TracIn is "
    "the same number. Conjugate gradients are stopped early on a Hessian that is indefinite at this damping, 0.1, so "
    "that each goes its own way (on digits, with a damping of 5.0 and less the mean over tasks, r is 1.000). LiSSA "
    "draws its own examples and the peers' EK-FAC its own labels. TRAK of a low rank depends on its projection:"
)


def worked(python: str, what: str, source: Path, limit: int) -> Told | str:
    """What one method told and found, in a process of its own; in words what happened where that is nothing."""
    result = source.with_name(f"{source.stem}_{what.replace('/', '_')}.npy")
    kept = result.with_suffix(".json")
    if kept.exists():
        told = json.loads(kept.read_text())
        return told if isinstance(told, str) else {**told, "scores": np.load(result)}
    command = [python, str(HERE / "baselines_worker.py"), what, str(source), str(result), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        told = f"not finished in {limit} s"
    elif done.returncode:
        print((done.stderr.strip().splitlines() or ["?"])[-1][:300], file=sys.stderr)
        told = "failed"
    else:
        told = json.loads(done.stdout.strip().splitlines()[-1])
    kept.write_text(json.dumps(told))
    print(f"{what} on {source.stem}: {told}", file=sys.stderr)
    return told if isinstance(told, str) else {**told, "scores": np.load(result)}


def compared(
    source: Path, methods: list[str], peers: dict[str, str], limit: int
) -> tuple[list[str], dict[str, Told | str]]:
    """Rows of time and memory beside the peers, and what whence's own processes told."""
    lines = ["| method | whence | " + " | ".join(peers) + " | times faster than the fastest |"]
    lines.append("|" + "---|" * (len(peers) + 3))
    told_of = {}
    for method in methods:
        title, having = METHODS[method]
        mine = worked(sys.executable, f"whence/{method}", source, limit)
        if isinstance(mine, str):
            lines.append(f"| {title} | {mine} | " + " | ".join("" for _ in peers) + " | |")
            continue
        told_of[method] = mine
        cells, fastest, sure = [], np.inf, True
        for peer, python in peers.items():
            theirs = worked(python, f"{peer}/{method}", source, limit) if peer in having else ""
            if isinstance(theirs, str):
                cells.append(theirs)
                if theirs.startswith("not finished") and limit < fastest:
                    fastest, sure = limit, False
                continue
            if theirs["seconds"] < fastest:
                fastest, sure = theirs["seconds"], True
            agree = abs(np.corrcoef(theirs["scores"].ravel(), mine["scores"].ravel())[0, 1])
            cells.append(f"{theirs['seconds']:.3g} s, {theirs['added_mb']:.0f} MB (r {agree:.3f})")
        told = f"**{'' if sure else '> '}{fastest / mine['seconds']:.1f}**" if np.isfinite(fastest) else ""
        lines.append(
            f"| {title} | {mine['seconds']:.3g} s, {mine['added_mb']:.0f} MB | " + " | ".join(cells) + f" | {told} |"
        )
    return lines, told_of


def projections_apart(source: Path, told_of: dict[str, Told | str], limit: int) -> str:
    """A sentence on how far TRAK agrees with itself when its projection is another."""
    again = worked(sys.executable, "whence/trak_reseeded", source, limit)
    if isinstance(again, str) or "trak" not in told_of:
        return ""
    agree = np.corrcoef(again["scores"].ravel(), told_of["trak"]["scores"].ravel())[0, 1]
    return f"whence's own with another seed has r {agree:.3f}, while dattri and traker share a projection."


def quality(case: Case, told_of: dict[str, Told | str]) -> list[str]:
    """Rows of what each method says beside the truth."""
    lines = ["| method | seconds | LDS per query | mean loss, rank | leave-one-out |", "|---|---|---|---|---|"]
    for method, told in told_of.items():
        cells = [told] if isinstance(told, str) else [f"{told['seconds']:.3g}"]
        if not isinstance(told, str):
            cells += [f"{value:.2f}" for value in judged(told["scores"], case.subsets, case.alone)]
        lines.append(f"| {METHODS[method][0]} | " + " | ".join(cells) + " | " * (4 - len(cells)) + " |")
    return [*lines, *context(case.subsets, case.alone)]


def cut_short(case: Case, rank: int) -> dict[str, str]:
    """What was not run whole on the transformer, by the name of the method in the table."""
    at, groups = SETTINGS["modular"], case.subsets.n_tasks
    some = f"curvature of {at.curvature * groups} examples"
    notes = {
        "cg": f"truncated: {some}, {at.cg_steps} steps",
        "lissa": f"truncated: {some}, {at.depth} terms",
        "gauss_newton": f"truncated: {some}, {at.gauss_newton_steps} steps",
        "source": f"truncated: {some}, {at.krylov} Krylov dimensions",
        "bif": f"truncated: {20 * groups} examples, {at.chains} chains of {at.draws} draws",
        **{method: f"rank {rank}" for method in ("trak", "trak_penalised", "trak_tasks")},
    }
    return {METHODS[method][0]: note for method, note in notes.items()}


def noted(lines: list[str], notes: dict[str, str]) -> list[str]:
    """The rows of a table with a note beside the names of methods.

    >>> noted(["| TRAK | 0.4 |", "| TRAK, with a penalty | 0.5 |"], {"TRAK": "rank 128"})
    ['| TRAK (rank 128) | 0.4 |', '| TRAK, with a penalty | 0.5 |']
    """
    for name, note in notes.items():
        lines = [line.replace(f"| {name} |", f"| {name} ({note}) |", 1) for line in lines]
    return lines


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


def context(subsets: whence.Outcomes, alone: whence.Outcomes) -> list[str]:
    """Rows of what is trivial and what is possible: size, a surrogate of true runs, another seed."""
    rows, values = means(subsets)
    order = np.random.default_rng(0).permutation(len(rows))
    rows, values, half = rows[order], values[order], len(rows) // 2
    fitted = whence.AdditiveSurrogate().fit(rows[:half], values[:half])
    linear = float(np.nanmean(spearman_per_target(fitted.predict(rows[half:]), values[half:])))
    size = whence.lds(size_only(subsets, subsets), subsets).mean
    ceiling = noise_ceiling(subsets).mean
    return [
        f"| tuned linear surrogate of {half} of these runs, on the others | | {linear:.2f} | | |",
        f"| size only | | {size:.2f} | | |",
        f"| noise ceiling; one seed beside the others | | {ceiling:.2f} | | {one_seed(alone):.2f} |",
    ]


def one_seed(alone: whence.Outcomes) -> float:
    """Correlation of leave-one-out changes of the mean loss in one seed with those in the others."""
    rows = np.unique(alone.subsets, axis=0)[::-1]  # all tasks first
    losses = alone.values.mean(1)
    seeds = np.stack([losses[(alone.subsets == row).all(1)] for row in rows], axis=1)  # in the order of the seeds
    changes = seeds[:, :1] - seeds[:, 1:]
    others = (changes.sum(0) - changes) / (len(changes) - 1)
    return float(np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(changes, others, strict=True)]))


def of_digits(given, peers: dict[str, str], folder: Path) -> list[str]:
    """Lines of the results on digits."""
    case = digits(given.subsets, given.seeds)
    methods = [method for method in METHODS if method != "ekfac_all"]
    source = case.write(folder / "digits.npz", rank=512)
    speed, told_of = compared(source, methods, peers, given.limit)
    apart = projections_apart(source, told_of, given.limit)
    return [case.about, "", *speed, "", f"{TIMES} {OTHER_WAYS} {apart}", "", *quality(case, told_of)]


def of_modular(given, peers: dict[str, str], folder: Path) -> list[str]:
    """Lines of the results on modular arithmetic: times on a part of the data, and scores from all of it."""
    case = modular(given.truth)
    every = case.write(folder / "every.npz", rank=2048)
    told_of = {
        method: worked(sys.executable, f"whence/{method}", every, 5 * given.limit)
        for method in METHODS
        if method not in ("ekfac", "bif")
    }
    told_of["bif"] = worked(
        sys.executable, "whence/bif", case.write(folder / "some.npz", rank=2048, n_examples=20), 5 * given.limit
    )
    few = case.write(folder / "few.npz", rank=128, n_examples=10, n_queries=100)
    speed, told_of_few = compared(few, ["cg", "lissa", "ekfac", "tracin", "trak"], peers, given.limit)
    at, bif = SETTINGS["modular"], told_of["bif"]
    mixed = "" if isinstance(bif, str) else f", whose R-hat is {bif['diagnostics']['r_hat']:.2f} at the worst"
    return [
        case.about, "", "## Beside the truth", "",
        "All examples and all queries. Conjugate gradients, LiSSA and SOURCE take the curvature from "
        f"{at.curvature} examples of each group and stop after {at.cg_steps} steps, {at.depth} terms, and {at.krylov} "
        f"dimensions in each of {len(at.segments)} segments. BIF sees 20 examples of each group, in {at.chains} chains "
        f"of {at.draws} draws{mixed}. TRAK has rank 2048. AdamW trained the model, of which TracIn and SOURCE, made "
        "for plain gradient descent, know nothing. What one group more or less does is small beside the noise of a "
        "seed, as the last row says, so that the last column tells little.", "",
        *noted(quality(case, told_of), cut_short(case, 2048)), "",
        "## Time and memory", "",
        "10 examples of each group and 100 queries, the same for all; EK-FAC of the linear layers in both "
        "blocks; TRAK of rank 128. dattri's EK-FAC fails on layers with more than one position. "
        f"{TIMES} {OTHER_WAYS} {projections_apart(few, told_of_few, given.limit)}", "",
        *noted(speed, cut_short(case, 128)),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problem", choices=["digits", "modular"], default="digits")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--truth", type=Path, metavar="RUNS")
    parser.add_argument("--keep", type=Path, metavar="FOUND")
    parser.add_argument("--subsets", type=int, default=100, help="of digits")
    parser.add_argument("--seeds", type=int, default=3, help="of digits")
    parser.add_argument(
        "--limit", type=int, default=100, help="seconds of processor time for one method of one library"
    )
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    peers = {name: str(Path(folder) / "bin" / "python") for name, folder in (p.split("=", 1) for p in given.peer)}
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        lines = (of_digits if given.problem == "digits" else of_modular)(given, peers, folder)
    options = [f"--problem {given.problem}", f"--limit {given.limit}", *(f"--peer {peer}=DIR" for peer in peers)]
    options += ["--truth RUNS"] if given.truth else []
    options += [f"--seeds {given.seeds}"] if given.problem == "digits" else []
    head = [
        "# Baselines" + (" on the modular transformer" if given.problem == "modular" else ""), "",
        f"`python benchmarks/baselines.py {' '.join(options)}`; {date.today()}, {os.cpu_count()} cores, "
        f"{os.environ['OMP_NUM_THREADS']} threads, Python {platform.python_version()}, torch {torch.__version__}.", "",
    ]  # fmt: skip
    text = "\n".join([*head, *lines]) + "\n"
    name = "baselines.md" if given.problem == "digits" else "baselines_modular.md"
    (given.output or HERE / "results" / name).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
