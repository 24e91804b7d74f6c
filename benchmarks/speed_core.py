"""How fast the core is: beside its peers in the same run, and how its cost grows with the table.

    pip install shapiq dattri                       (optional peers, after "pip install torch==2.13.0", its CPU build)
    python benchmarks/speed_core.py                 all of it, into benchmarks/results/speed_core.md
    python benchmarks/speed_core.py --quick         small sizes, under half a minute, nothing written
    python benchmarks/speed_core.py --section lds   one section: tuning, attribution, lds, runs, tasks, targets, fit,
                                                    answers, inducing

Both sides of a comparison have the same numbers to work on and the same single thread (``OMP_NUM_THREADS`` chooses
another count), take turns, and are warmed up. A peer that is not installed is named as skipped. Seconds are those that
the processor spent, which on one thread and an idle machine are those of the clock, and do not depend on who else is
using the machine; ratios by the clock stand beside them.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by BLAS and torch as they are loaded

import numpy as np
from rich.console import Console
from rich.markdown import Markdown
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV

import whence
import whence.surrogates.inducing as inducing_points
from whence.evaluation import residual_error
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.kernel import GRID_RUNS
from whence.surrogates.tuning import TUNING_TARGETS

RESULTS = Path(__file__).parent / "results" / "speed_core.md"
COMMAND = "python benchmarks/speed_core.py"
Table = list[list[str]]  # the header, then the rows


# ----------------------------------------------------------------------------------------------------------
# Tables of outcomes, clocks, text


def outcomes(n_runs: int, n_tasks: int, n_targets: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return subsets (m, K) and outcomes (m, T): effects of tasks and of as many pairs, saturating, with 10% noise."""
    rng, world = np.random.default_rng(seed), np.random.default_rng(1000)
    alone, together = world.normal(size=(2, n_tasks, n_targets)) / np.sqrt(n_tasks)
    partner = world.permutation(n_tasks)
    S = (rng.random((n_runs, n_tasks)) < 0.5).astype(float)
    signal = np.tanh(S @ alone + (S * S[:, partner]) @ together)
    return S, signal + 0.1 * signal.std(0) * rng.normal(size=signal.shape)


@dataclass(frozen=True)
class Seconds:
    """Median seconds of the processor and of the clock."""

    processor: float
    clock: float


def race(repetitions: int, *sides: Callable[[], Any]) -> list[Seconds]:
    """Return the median seconds of each side, the sides taking turns after one warm-up each."""
    for side in sides:
        side()
    took: list[list[tuple[float, float]]] = [[] for _ in sides]
    for _ in range(repetitions):
        for side, times in zip(sides, took, strict=True):
            processor, clock = time.process_time(), time.perf_counter()
            side()
            times.append((time.process_time() - processor, time.perf_counter() - clock))
    return [Seconds(*(statistics.median(column) for column in zip(*times, strict=True))) for times in took]


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def skipped(package: str) -> str:
    return f"**Skipped: {package} is not installed** (`pip install torch==2.13.0`, then `pip install shapiq dattri`)."


def markdown(table: Table) -> str:
    rows = [" | ".join(row) for row in table]
    rows.insert(1, "|".join("---" for _ in table[0]))
    return "\n".join(f"| {row} |" for row in rows)


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def verdict(ratio: float, goal: float) -> str:
    return f"{ratio:.3g} × ({'reached' if ratio >= goal else 'MISSED'}: {goal:g} ×)"


def compared(name: str, ours: Seconds, peer: Seconds, goal: float) -> list[str]:
    return [
        name,
        milliseconds(ours.processor),
        milliseconds(peer.processor),
        verdict(peer.processor / ours.processor, goal),
        f"{peer.clock / ours.clock:.3g} ×",
    ]


COMPARISON = ["work", "whence", "peer", "ratio (goal)", "ratio by the clock"]


def relative_error(estimate: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(estimate - exact) / np.linalg.norm(exact))


# ----------------------------------------------------------------------------------------------------------
# Beside the peers


def tuning(quick: bool) -> str:
    """Choose alpha and gamma on a 4 × 4 grid and fit, beside scikit-learn."""
    m, K, T = (200, 20, 50) if quick else (1000, 50, 450)
    S, Y = outcomes(m, K, T)
    fresh, truth = outcomes(500, K, T, seed=1)
    mean = Y.mean(0)  # KernelRidge has no intercept: it is given centred outcomes
    grid = {"alpha": np.array([0.003, 0.03, 0.3, 3.0]), "gamma": np.array([0.1, 0.3, 1.0, 3.0]) / K}
    kernel = whence.KernelSurrogate(alphas=grid["alpha"], gammas=grid["gamma"])
    search = GridSearchCV(KernelRidge(kernel="rbf"), grid)
    ours, peer = race(5, lambda: kernel.fit(S, Y), lambda: search.fit(S, Y - mean))

    held_out = whence.Outcomes(subsets=fresh, values=truth)
    best = search.best_params_
    chosen = [["", "alpha", "gamma·K", "residual error on 500 fresh runs"]]
    for name, alpha, gamma, predicted in [
        ("whence, leave-one-out", kernel.alpha_, kernel.gamma_, kernel.predict(fresh)),
        ("GridSearchCV, 5 folds", best["alpha"], best["gamma"], search.predict(fresh) + mean),
    ]:
        chosen.append([name, f"{alpha:g}", f"{K * gamma:g}", f"{residual_error(predicted, held_out).mean:.4f}"])
    steps = sum(
        abs(int(np.argmin(np.abs(grid[key] - mine))) - int(np.argmin(np.abs(grid[key] - best[key]))))
        for key, mine in (("alpha", kernel.alpha_), ("gamma", kernel.gamma_))
    )
    row = compared(f"4 × 4 grid, then fit; {m} runs, {K} tasks, {T} targets", ours, peer, goal=10)
    return "\n\n".join(
        [
            "## Tuning: leave-one-out in closed form beside `GridSearchCV(KernelRidge)`",
            markdown([COMPARISON, row]),
            markdown(chosen),
            f"The two choices are {steps} steps apart on the grid. Ours scores it on at most {GRID_RUNS} runs and "
            f"{TUNING_TARGETS} targets, fits on all, and includes calibrated intervals.",
        ]
    )


def attribution(quick: bool) -> str:
    """Shapley values and all pairwise interactions of one surrogate, beside shapiq's sampling."""
    m, K = (100, 20) if quick else (200, 50)
    tolerance, seeds = 0.03, (0, 1, 2)
    S, Y = outcomes(m, K, 1)
    surrogate = whence.KernelSurrogate().fit(S, Y[:, 0])
    pairs = np.triu_indices(K, 1)

    def exact() -> tuple[np.ndarray, np.ndarray]:
        return whence.attribute(surrogate).scores[:, 0], whence.interactions(surrogate).scores[..., 0][pairs]

    lines = ["## Attribution: closed form beside `shapiq.KernelSHAPIQ`"]
    if installed("shapiq"):
        from shapiq import KernelSHAPIQ

        def sampled(budget: int, seed: int, pairing: bool) -> tuple[np.ndarray, np.ndarray]:
            approximator = KernelSHAPIQ(K, max_order=2, index="SII", pairing_trick=pairing, random_state=seed)
            values = approximator.approximate(budget, lambda x: surrogate.predict(x.astype(float)))
            return values.get_n_order_values(1), values.get_n_order_values(2)[pairs]

        truth = exact()
        table = [[*COMPARISON, "calls of the surrogate", "its error: Shapley", "pairs"]]
        for pairing in (False, True):
            budget = 2 * K * K // 5
            while True:
                estimates = [sampled(budget, seed, pairing) for seed in seeds]
                errors = np.median(
                    [[relative_error(*both) for both in zip(e, truth, strict=True)] for e in estimates], 0
                )
                if errors.max() <= tolerance:
                    break
                budget = math.ceil(1.25 * budget)
            ours, peer = race(5, exact, lambda n=budget, p=pairing: sampled(n, 0, p))
            name = f"{m} runs, {K} tasks; shapiq {'with pairing_trick=True' if pairing else 'as it comes'}"
            table.append(
                [*compared(name, ours, peer, goal=100), str(budget), *(f"{100 * error:.2g} %" for error in errors)]
            )
        lines += [
            markdown(table),
            "The budget is the first in steps of 1.25 × at which ‖estimate − exact‖₂ / ‖exact‖₂ is at most 3 % "
            f"over the Shapley values and over the pairs, in the median of {len(seeds)} seeds. Both give the Shapley "
            "value and the Shapley interaction index (SII); ours adds the posterior std of each.",
        ]
    else:
        lines.append(skipped("shapiq"))
    alone, together = against_all_subsets(10 if quick else 14)
    lines.append(
        f"Against the sum over all 2^{10 if quick else 14} subsets, ours differ by at most {alone:.1e} (Shapley) and "
        f"{together:.1e} (pairs), relative to the largest value."
    )
    return "\n\n".join(lines)


def against_all_subsets(n_tasks: int) -> tuple[float, float]:
    """Return the largest difference from Shapley values and interactions summed over all subsets, relative."""
    S, Y = outcomes(200, n_tasks, 1)
    surrogate = whence.KernelSurrogate().fit(S, Y[:, 0])
    codes = np.arange(2**n_tasks)
    members = (codes[:, None] >> np.arange(n_tasks) & 1).astype(float)
    value, size = surrogate.predict(members), members.sum(1).astype(int)
    alone, together = np.zeros(n_tasks), np.zeros((n_tasks, n_tasks))
    for k in range(n_tasks):
        without = codes[members[:, k] == 0]
        chance = np.array([1 / (n_tasks * math.comb(n_tasks - 1, n)) for n in range(n_tasks)])
        alone[k] = chance[size[without]] @ (value[without | 1 << k] - value[without])
        for other in range(k):
            neither = without[members[without, other] == 0]
            chance = np.array([1 / ((n_tasks - 1) * math.comb(n_tasks - 2, n)) for n in range(n_tasks - 1)])
            both = value[neither | 1 << k | 1 << other] - value[neither | 1 << k] - value[neither | 1 << other]
            together[k, other] = together[other, k] = chance[size[neither]] @ (both + value[neither])
    ours = whence.attribute(surrogate).scores[:, 0], whence.interactions(surrogate).scores[..., 0]
    differences = [np.abs(a - b).max() / np.abs(b).max() for a, b in zip(ours, (alone, together), strict=True)]
    return float(differences[0]), float(differences[1])


def lds(quick: bool) -> str:
    """Linear datamodeling score of additive scores, beside dattri."""
    m, K, T, size = (50, 20, 40, 8) if quick else (200, 50, 450, 20)
    S = whence.FixedSize(size).draw(K, m, seed=0)
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(K, T))
    values = S @ scores + 5 * rng.normal(size=(m, T))
    held_out = whence.Outcomes(subsets=S, values=values)
    additive = whence.AdditiveSurrogate.from_coefficients(scores)
    lines = ["## LDS: `whence.lds` beside `dattri.metric.lds`"]
    if not installed("dattri"):
        return "\n\n".join([*lines, skipped("dattri")])
    import torch
    from dattri.metric import lds as dattri_lds

    members = torch.tensor(np.nonzero(S)[1].reshape(m, size))
    given, truth = torch.tensor(scores), (torch.tensor(values), members)
    ours, peer = race(7, lambda: whence.lds(additive, held_out), lambda: dattri_lds(given, truth))
    difference = np.abs(whence.lds(additive, held_out).per_target - dattri_lds(given, truth)[0].numpy()).max()
    row = compared(f"{m} subsets of {size} of {K} tasks, {T} targets", ours, peer, goal=10)
    lines += [
        markdown([COMPARISON, row]),
        f"Both sum the scores of each subset's tasks and rank. The values differ by at most {difference:.1e}. "
        "dattri computes p-values too, and for that every correlation twice.",
    ]
    return "\n\n".join(lines)


# ----------------------------------------------------------------------------------------------------------
# How cost grows

SURROGATES: dict[str, Callable[[int], Any]] = {
    "KernelSurrogate, alpha and gamma given": lambda n_tasks: whence.KernelSurrogate(alpha=0.1, gamma=1 / n_tasks),
    "KernelSurrogate, tuned": lambda _: whence.KernelSurrogate(),
    "CombinedSurrogate": lambda _: whence.CombinedSurrogate(),
}
N_FRESH = 1000


@dataclass(frozen=True)
class Point:
    """One size of table, for one surrogate, measured in a process of its own."""

    surrogate: str
    m: int
    K: int
    T: int
    effects: bool = False

    def measure(self) -> dict[str, float]:
        """Return the seconds of every step, and the peak memory in GiB."""
        S, Y = outcomes(self.m, self.K, self.T)
        fresh, _ = outcomes(N_FRESH, self.K, 1, seed=1)
        make = SURROGATES[self.surrogate]
        warnings.simplefilter("ignore")  # more tasks than runs, and the like: not the question here
        warm = make(5).fit(*outcomes(30, 5, 2))
        whence.attribute(warm), whence.interactions(warm)
        steps: dict[str, list[float]] = {}

        def timed(step: str, compute: Callable[[], Any]) -> Any:
            began = time.process_time()
            result = compute()
            steps.setdefault(step, []).append(time.process_time() - began)
            return result

        began = time.process_time()
        for _ in range(5):  # fewer where one takes long
            fitted = timed("fit", lambda: make(self.K).fit(S, Y))
            timed("predict", lambda fitted=fitted: fitted.predict(fresh))
            if self.effects:
                timed("attribute", lambda fitted=fitted: whence.attribute(fitted))
                timed("interactions", lambda fitted=fitted: whence.interactions(fitted))
            if time.process_time() - began > 10:
                break
        return {step: statistics.median(times) for step, times in steps.items()} | {"memory": peak_memory()}

    def in_own_process(self) -> dict[str, float]:
        """Return what `measure` does, of a fresh process whose peak memory is that of this point alone."""
        arguments = [sys.executable, __file__, "--point", json.dumps(vars(self))]
        return json.loads(subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout)

    def floor(self, step: str) -> float:
        """Floating-point operations that no exact implementation can do without; tuning is not among them."""
        m, K, T = self.m, self.K, self.T
        nodes = min((K + 2) // 2, 64)
        return {
            "fit": m**2 * K + m**3 / 3 + 2 * m**2 * T,  # half a Gram matrix, a Cholesky factor, two solves
            "predict": 2 * N_FRESH * m * (K + T),
            "attribute": m * K * nodes + m**2 * K + 2 * m * K * T,  # representers, their variance, their scores
            "interactions": (2 * m * nodes + m**2 + 2 * m * T) * K**2 / 2,  # the same for half of all pairs
        }[step]


def peak_memory() -> float:
    """Return the most memory that this process has held, in GiB.

    ``ru_maxrss`` can carry over that of the process which started this one; the kernel's own record cannot.
    """
    status = Path("/proc/self/status")
    if status.exists():
        record = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(record.split()[1]) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


@cache
def fastest_product(n: int = 1500) -> float:
    """Return the highest rate of floating-point operations seen in products of double-precision matrices."""
    A = np.random.default_rng(0).normal(size=(n, n))
    fastest = math.inf
    for _ in range(50):
        began = time.process_time()
        A @ A
        fastest = min(fastest, time.process_time() - began)
    return 2 * n**3 / fastest


def curve(along: str, points: Sequence[Point], steps: Sequence[Sequence[str]], rate: float, quick: bool) -> list[str]:
    """Return a Markdown table and a sentence with the exponents of one surrogate's cost along one size."""
    header = [along]
    for group in steps:
        header += [" + ".join(group), "× the floor"]
    table = [[*header, "peak memory"]]
    sizes, costs = [getattr(point, along) for point in points], []
    for point in points:
        seconds = point.measure() if quick else point.in_own_process()
        costs.append([sum(seconds[step] for step in group) for group in steps])
        row = [str(getattr(point, along))]
        for group, cost in zip(steps, costs[-1], strict=True):
            row += [milliseconds(cost), f"{cost * rate / sum(point.floor(step) for step in group):.3g}"]
        table.append([*row, "–" if quick else f"{seconds['memory']:.2f} GiB"])
    slopes = []
    for group, cost in zip(steps, zip(*costs, strict=True), strict=True):
        x, y = np.log(sizes), np.log(cost)
        slopes.append(
            f"{' + '.join(group)}: {np.polyfit(x, y, 1)[0]:.2f} overall, "
            f"{(y[-1] - y[-2]) / (x[-1] - x[-2]):.2f} at the end"
        )
    return [f"**{points[0].surrogate}**", markdown(table), f"Exponent in {along}: {'; '.join(slopes)}."]


def grown(
    along: str, sizes: Sequence[int], fixed: dict[str, int], steps: Sequence[Sequence[str]], title: str, quick: bool
) -> str:
    """Return the curves of all surrogates along one size, the others fixed."""
    rate = fastest_product()
    lines = [
        f"## {title}",
        f"The floor is one Gram matrix, one Cholesky factorisation, the solves and the products with {N_FRESH} fresh "
        f"subsets (for effects: their representers and the solves of their std) at the {rate / 1e9:.0f} GFlop/s that a "
        "matrix product reaches here. Tuning and intervals are not in it.",
    ]
    for name in SURROGATES:
        points = [Point(name, **(fixed | {along: size}), effects=len(steps) > 1) for size in sizes]
        lines += curve(along, points, steps, rate, quick)
    return "\n\n".join(lines)


FIT_AND_PREDICT = [["fit", "predict"]]


def runs(quick: bool) -> str:
    """Curves over the number of runs."""
    sizes = (100, 200) if quick else (250, 500, 1000, 2000, 5000, 10_000, 20_000)
    title = "More runs: 50 tasks, 10 targets (goal: 20,000 runs within 8 GiB)"
    return grown("m", sizes, {"K": 50, "T": 10}, FIT_AND_PREDICT, title, quick)


def tasks(quick: bool) -> str:
    """Curves over the number of tasks, attribution and interactions included."""
    m, sizes = (100, (10, 30)) if quick else (500, (10, 50, 200, 1000))
    steps = [*FIT_AND_PREDICT, ["attribute"], ["interactions"]]
    return grown("K", sizes, {"m": m, "T": 1}, steps, f"More tasks: {m} runs, 1 target", quick)


def targets(quick: bool) -> str:
    """Curves over the number of targets."""
    m, sizes = (100, (1, 100)) if quick else (1000, (1, 10, 100, 1000, 10_000))
    return grown("T", sizes, {"m": m, "K": 50}, FIT_AND_PREDICT, f"More targets: {m} runs, 50 tasks", quick)


def end_to_end(quick: bool) -> str:
    """``whence.fit`` with its cross-validated choice, as a user calls it."""
    cases = [(60, 8, 1)] if quick else [(200, 12, 1), (200, 12, 30), (1000, 50, 1), (400, 20, 1000)]
    table = [["runs", "tasks", "targets", "seconds of the processor", "of the clock", "chosen", "held-out LDS"]]
    for m, K, T in cases:
        S, Y = outcomes(m, K, T)
        table_of_runs = whence.Outcomes(subsets=S, values=Y)
        [took] = race(3, lambda table_of_runs=table_of_runs: whence.fit(table_of_runs))
        model = whence.fit(table_of_runs)
        times = f"{took.processor:.3g}", f"{took.clock:.3g}"
        table.append([str(m), str(K), str(T), *times, model.parts[0].name, f"{model.quality()['lds']:.3f}"])
    return "\n\n".join(["## `whence.fit` end to end, with cross-validation", markdown(table)])


def answers(quick: bool) -> str:
    """Select and interactions of many tasks."""
    (m, K), (n, L) = ((60, 30), (60, 40)) if quick else ((400, 200), (500, 1000))
    S, Y = outcomes(m, K, 1)
    model = whence.fit(whence.Outcomes(subsets=S, values=Y))
    S, Y = outcomes(n, L, 1)
    pairs = CombinedSurrogate().fit(S, Y[:, 0])
    [select] = race(1 if quick else 3, lambda: whence.select(model))
    [interactions] = race(1, lambda: whence.interactions(pairs))
    table = [["answer", "seconds of the processor", "goal"]]
    table.append([f"select without a size, {m} runs, {K} tasks", f"{select.processor:.3g}", "2"])
    table.append([f"interactions with their std, {n} runs, {L} tasks", f"{interactions.processor:.3g}", "6"])
    return "\n\n".join(["## Answers about many tasks", markdown(table)])


def inducing(quick: bool) -> str:
    """What inducing points cost in accuracy where the exact posterior can still be had, and what they make possible."""
    K, cases = 50, [(2500, True)] if quick else [(6000, True), (100_000, False)]
    fresh, truth = outcomes(3000, K, 1, seed=1)
    held_out = whence.Outcomes(subsets=fresh, values=truth)
    header = ["runs", "outcomes", "posterior", "seconds of the processor", "peak memory"]
    table = [[*header, "residual error", "LDS", "90% intervals hold"]]
    for m, exact_too in cases:
        S, Y = outcomes(m, K, 1)
        for scale in ("raw", "rank"):
            for most, name in [(m, "exact"), (0, f"{inducing_points.n_points(m):,} points")][not exact_too :]:
                inducing_points.EXACT_RUNS = most
                began = time.process_time()
                surrogate = CombinedSurrogate(scale).fit(S, Y[:, 0])
                took = time.process_time() - began
                mean, std = surrogate.predict(fresh, return_std=True)
                inside = np.mean(np.abs(truth[:, 0] - mean) <= 1.645 * std)
                scores = residual_error(mean[:, None], held_out).mean, whence.lds(mean[:, None], held_out).mean
                row = [f"{m:,}", scale, name, f"{took:.3g}", f"{peak_memory():.2f} GiB"]
                table.append([*row, *(f"{score:.4f}" for score in scores), f"{inside:.1%}"])
    words = "Against 3,000 fresh runs, whose noise alone is a residual error of 0.0099. Memory is the peak so far."
    return "\n\n".join(["## Inducing points beside the exact posterior", markdown(table), words])


# ----------------------------------------------------------------------------------------------------------

SECTIONS: dict[str, Callable[[bool], str]] = {
    "tuning": tuning,
    "attribution": attribution,
    "lds": lds,
    "runs": runs,
    "tasks": tasks,
    "targets": targets,
    "fit": end_to_end,
    "answers": answers,
    "inducing": inducing,
}


def preamble() -> str:
    packages = ["numpy", "scipy", "scikit-learn", *(p for p in ("shapiq", "dattri", "torch") if installed(p))]
    versions = ", ".join([f"whence {whence.__version__}", *(f"{p} {version(p)}" for p in packages)])
    cpuinfo = Path("/proc/cpuinfo")
    named = [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
    return "\n\n".join(
        [
            "# Speed of the core",
            f"`{COMMAND}`, {datetime.date.today():%d %B %Y}, on {platform.platform()}, "
            f"{os.cpu_count()} cores ({named[0] if named else platform.processor()}), "
            f"{os.environ['OMP_NUM_THREADS']} thread for all; Python {platform.python_version()}, {versions}.",
            "Seconds are medians of those that the processor spent; both sides of a ratio took turns in one run.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing written")
    parser.add_argument("--section", choices=SECTIONS, action="append", help="only this one, nothing written")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.point:
        print(json.dumps(Point(**json.loads(arguments.point)).measure()))
        return
    console = Console()
    texts = [preamble()]
    console.print(Markdown(texts[0]))
    for name in arguments.section or SECTIONS:
        texts.append(SECTIONS[name](arguments.quick))
        console.print(Markdown(texts[-1]))
    if not arguments.quick and not arguments.section:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text("\n\n".join(texts) + "\n")
        console.print(f"Written to {RESULTS}")


if __name__ == "__main__":
    main()
