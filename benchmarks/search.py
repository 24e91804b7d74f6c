"""Race the search against other ways to spend a budget of runs, on tables in which every candidate was measured.

    python benchmarks/search.py race [--repeats 3] [--targets 2] [--budget 40] [--jobs 1]
    python benchmarks/search.py sure [--repeats 40]

``race``: a run is a look-up in a table of ../shared/data/tables (at most 1,023 of its rows, drawn once; mixtures are
rows too). After every run a method names the row it would use. Regret is how much worse that row is than the best one,
over how much better the best is than the median; "top 1%" is the number of runs after which the named row is among the
best 1% and stays there until 3 more runs were made. ``sure``: on simulated functions with noise and on the tables, how
often the row of a search that stops because it is 90% sure is within its tolerance of the best.

Left out: BoTorch with a binary kernel, which is not installed here. What is printed is in benchmarks/results/search.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from joblib import Parallel, delayed

import whence

warnings.simplefilter("ignore")
TABLES = Path(__file__).resolve().parents[1] / ".." / "shared" / "data" / "tables"
RACED = (
    "shapiq_dsetval_bike",
    "shapiq_ensemble_california",
    "shapiq_featsel_adult",
    "shapiq_dataval_adult",
    "shapiq_image_resnet14",
    "shapiq_sentiment14",
    "regmix_1m",
    "regmix_60m",
)
MOST_ROWS = 1023
CHECKPOINTS = (10, 15, 20, 30, 40)


def table(name, rng):
    """Subsets (n, K) and outcomes (n, T), higher being better, of a table."""
    arrays = np.load(TABLES / f"{name}.npz")
    about = json.loads((TABLES / f"{name}.json").read_text())
    S, Y = arrays["S"].astype(float), arrays["Y"] * (-1 if about["lower_is_better"] else 1)
    if "regmix" in name:
        Y = np.column_stack([Y.mean(1), Y])
    keep = np.sort(rng.permutation(len(S))[:MOST_ROWS])
    S, first = np.unique(S[keep], axis=0, return_index=True)
    return S, Y[keep][first]


def place_of(S, row):
    return int(abs(S - row).sum(1).argmin())


# ---- methods: each yields the row it names, after every run that it makes ------------------------------------------


def ours(S, y, budget, seed):
    search = whence.Search(S.shape[1], budget=budget, maximize=True, candidates=S, seed=seed, stop=False)
    for _ in range(budget):
        for run in search.ask():
            search.tell(run, y[place_of(S, run.subset)])
            made = len(search.asked)
            if made <= 20 or made % 2 == 0:
                best = search.standing(search.ledger()).best
                named = place_of(S, best.row) if best else int(max(_told(search, S), key=lambda at: y[at]))
            yield named


def _told(search, S):
    return [place_of(S, np.array(each.row)) for each in search.asked]


def random_best(S, y, budget, seed):
    order = np.random.default_rng(seed).permutation(len(S))[:budget]
    for n in range(1, budget + 1):
        yield order[y[order[:n]].argmax()]


def _fitted(make, every=(8, 10, 12, 15, 18, 20, 25, 30, 35, 40)):
    """A method that measures rows at random and names the row that a model predicts to be best."""

    def method(S, y, budget, seed):
        order, named = np.random.default_rng(seed).permutation(len(S))[:budget], 0
        for n in range(1, budget + 1):
            if n in every:
                named = int(make(S[order[:n]], y[order[:n]], S).argmax())
            elif n < every[0]:
                named = order[y[order[:n]].argmax()]
            yield named

    return method


def whence_fit(X, y, S):
    return whence.fit(whence.Outcomes(X, y, maximize=True)).predict_quietly(S)[:, 0]


def linear(X, y, S):
    from sklearn.linear_model import RidgeCV

    return RidgeCV(np.logspace(-3, 3, 13)).fit(X, y).predict(S)


def boosted(X, y, S):
    from lightgbm import LGBMRegressor

    return LGBMRegressor(n_estimators=200, learning_rate=0.05, min_child_samples=3, verbose=-1).fit(X, y).predict(S)


def tpe(S, y, budget, seed):
    """Optuna's TPE over one coin per task, or one weight; the nearest row is what is run."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True))
    binary, tried = np.isin(S, (0, 1)).all(), []
    for _ in range(budget):
        trial = study.ask()
        if binary:
            row = np.array([trial.suggest_categorical(f"t{k}", [0, 1]) for k in range(S.shape[1])], float)
        else:
            row = -np.log(np.array([trial.suggest_float(f"t{k}", 1e-6, 1) for k in range(S.shape[1])]))
            row /= row.sum()
        at = place_of(S, row)
        study.tell(trial, y[at])
        tried.append(at)
        yield max(tried, key=lambda each: y[each])


def elimination(S, y, budget, seed):
    """Start from all tasks and drop the one whose absence is best, again and again; add where that is better."""
    binary, tried = np.isin(S, (0, 1)).all(), []
    rng = np.random.default_rng(seed)
    current = place_of(S, np.ones(S.shape[1]) if binary else np.full(S.shape[1], 1 / S.shape[1]))

    def run(at):
        tried.append(at)
        return max(tried, key=lambda each: y[each])

    yield run(current)
    while len(tried) < budget:
        moves = []
        for task in rng.permutation(S.shape[1]):
            if len(tried) >= budget:
                return
            row = S[current].copy()
            row[task] = 1 - row[task] if binary else 0
            at = place_of(S, row if binary else row / max(row.sum(), 1e-9))
            moves.append(at)
            yield run(at)
        best = max(moves, key=lambda each: y[each])
        current = best if y[best] > y[current] else int(rng.integers(len(S)))


def leave_one_out(S, y, budget, seed):
    """All tasks, and all but each: then the tasks whose absence hurts, together."""
    binary, n_tasks, tried = np.isin(S, (0, 1)).all(), S.shape[1], []
    full = place_of(S, np.ones(n_tasks) if binary else np.full(n_tasks, 1 / n_tasks))
    tried.append(full)
    yield full
    gains = []
    for task in range(n_tasks):
        row = np.ones(n_tasks)
        row[task] = 0
        at = place_of(S, row if binary else row / row.sum())
        tried.append(at)
        gains.append(y[full] - y[at])
        yield max(tried, key=lambda each: y[each])
    order = np.argsort(gains)[::-1]
    for size in range(1, n_tasks + 1):
        row = np.zeros(n_tasks)
        row[order[:size]] = 1
        tried.append(place_of(S, row if binary else row / size))
        yield max(tried, key=lambda each: y[each])


METHODS = {
    "whence.search": ours,
    "random + best": random_best,
    "random + whence.fit": _fitted(whence_fit),
    "random + linear": _fitted(linear, range(4, 41, 2)),
    "random + LightGBM": _fitted(boosted, range(10, 41, 3)),
    "Optuna TPE": tpe,
    "successive elimination": elimination,
    "leave-one-out": leave_one_out,
}


def named_by(method, S, y, budget, seed):
    named = list(method(S, y, budget, seed))[:budget]
    return np.array(named + named[-1:] * (budget - len(named)))


def one_race(name, target, method, seed, budget):
    rng = np.random.default_rng(1)
    S, Y = table(name, rng)
    y = Y[:, target]
    began = time.process_time()
    named = named_by(METHODS[method], S, y, budget, seed)
    worth = y[named]
    regret = (y.max() - worth) / (y.max() - np.median(y))
    top = (y[None] > worth[:, None]).mean(1) < 0.01
    held = np.array([top[n : n + 4].all() for n in range(budget)])
    first = int(held.argmax()) + 1 if held.any() else 2 * budget
    return name, method, first, regret.tolist(), time.process_time() - began


def remembered(call, raw):
    """What a race came to; from the file where it is in it, else run and added to it."""
    key = json.dumps([*call[:2], *call[2:]], default=int)
    if raw and raw.exists():
        for line in raw.read_text().splitlines():
            record = json.loads(line)
            if record["call"] == key:
                return record["found"]
    found = one_race(*call)
    if raw:
        with raw.open("a") as file:
            file.write(json.dumps({"call": key, "found": found}) + "\n")
    return found


def race(arguments):
    targets = {}
    for name in arguments.only or RACED:
        Y = table(name, np.random.default_rng(1))[1]
        spread = [t for t in range(Y.shape[1]) if np.isfinite(Y[:, t]).all() and np.ptp(Y[:, t]) > 0]
        targets[name] = [spread[0], *np.random.default_rng(2).permutation(spread[1:])][: arguments.targets]
    calls = [
        (name, target, method, seed, arguments.budget)
        for name, own in targets.items()
        for target in own
        for seed in range(arguments.repeats)
        for method in arguments.methods or METHODS
    ]
    found = Parallel(arguments.jobs)(delayed(remembered)(call, arguments.raw) for call in calls)
    marks = [n for n in CHECKPOINTS if n <= arguments.budget]
    print(f"| method | runs to the top 1% | {' | '.join(f'regret at {n}' for n in marks)} | s per search |")
    print(f"|---|---|{'---|' * (len(marks) + 1)}")
    by_table = {}
    for method in arguments.methods or METHODS:
        tables = [[each for each in found if each[1] == method and each[0] == name] for name in targets]
        first = [np.mean([each[2] for each in own]) for own in tables]
        regret = np.mean([np.mean([each[3] for each in own], axis=0) for own in tables], axis=0)
        seconds = np.mean([each[4] for each in found if each[1] == method])
        by_table[method] = first, [np.mean([np.mean(each[3]) for each in own]) for own in tables]
        cells = " | ".join(f"{regret[n - 1]:.3f}" for n in marks)
        print(f"| {method} | {np.mean(first):.1f} | {cells} | {seconds:.1f} |", flush=True)
    for place, what in ((0, "runs to the top 1%"), (1, "mean regret over all runs")):
        print(f"\n| {what} | {' | '.join(targets)} |\n|---|{'---|' * len(targets)}")
        for method, own in by_table.items():
            print(f"| {method} | {' | '.join(f'{value:.3g}' for value in own[place])} |")


# ---- is 90% sure right 90% of the time? ---------------------------------------------------------------------------


def world(kind, seed):
    """Candidates, the true outcome of each, and the std of the noise of a run."""
    rng = np.random.default_rng([9, seed])
    if kind == "table":
        name = RACED[seed % len(RACED)]
        S, Y = table(name, np.random.default_rng(1))
        good = [t for t in range(Y.shape[1]) if np.isfinite(Y[:, t]).all() and np.ptp(Y[:, t]) > 0]
        return S, Y[:, good[rng.integers(len(good))]], 0.0
    K = int(rng.integers(6, 11))
    S = whence.Exhaustive().draw(K)
    S = S[S.sum(1) > 0]
    y = S @ rng.normal(size=K)
    if kind != "additive":
        for _ in range(K):
            a, b = rng.choice(K, 2, replace=False)
            y = y + rng.normal() * S[:, a] * S[:, b]
    if kind == "saturating":
        y = 1 / (1 + np.exp(-(y - y.mean()) / y.std()))
    return S, y, float(rng.choice([0.0, 0.1, 0.3])) * y.std()


def one_sure(kind, seed, budget):
    S, y, noise = world(kind, seed)
    rng = np.random.default_rng([8, seed])
    search = whence.Search(S.shape[1], budget=budget, maximize=True, candidates=S, seed=seed, stop=False)
    seen, stopped = [], None
    for n in range(1, budget + 1):
        for run in search.ask():
            search.tell(run, y[place_of(S, run.subset)] + noise * rng.normal())
        if n < search.n_start + 5 or n % 2:
            continue
        search.stop = True
        standing = search.standing(search.ledger())
        search.stop = False
        right = bool(y.max() - y[place_of(S, standing.best.row)] <= standing.best.within + 1e-12)
        seen.append((standing.best.sure, right))
        if stopped is None and standing.stop:
            stopped = n, right
    print(kind, seed, stopped, file=sys.stderr, flush=True)
    return kind, seen, stopped


def sure(arguments):
    kinds = arguments.only or ("additive", "pairs", "saturating", "table")
    calls = [(kind, seed, arguments.budget) for kind in kinds for seed in range(arguments.repeats)]
    found = Parallel(arguments.jobs)(delayed(one_sure)(*call) for call in calls)
    print("| world | stopped | right when stopped | after runs | said 85-95% sure | right then | said 50-70% | right |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in (*kinds, "all"):
        own = [each for each in found if kind in (each[0], "all")]
        stops = [each[2] for each in own if each[2]]
        claims = [claim for each in own for claim in each[1]]
        near = [right for said, right in claims if 0.85 <= said <= 0.95]
        half = [right for said, right in claims if 0.5 <= said <= 0.7]
        right = np.mean([each[1] for each in stops]) if stops else np.nan
        after = np.median([each[0] for each in stops]) if stops else np.nan
        print(
            f"| {kind} | {len(stops)} of {len(own)} | {right:.0%} | {after:.0f} | {len(near)} | "
            f"{np.mean(near) if near else np.nan:.0%} | {len(half)} | {np.mean(half) if half else np.nan:.0%} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["race", "sure"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--targets", type=int, default=2)
    parser.add_argument("--budget", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--raw", type=Path, help="file to keep single races in, and to resume from")
    arguments = parser.parse_args()
    print(f"python benchmarks/search.py {arguments.part}, {platform.machine()}, {time.strftime('%d %B %Y')}")
    began = time.time()
    {"race": race, "sure": sure}[arguments.part](arguments)
    print(f"\n{(time.time() - began) / 60:.1f} min")


if __name__ == "__main__":
    main()
