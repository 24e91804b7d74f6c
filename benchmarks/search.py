"""Race the search against other ways to spend a budget of runs, on tables in which every candidate was measured.

    python benchmarks/search.py race [--repeats 3] [--targets 2] [--budget 40] [--jobs 1]
    python benchmarks/search.py verdicts [--repeats 3]
    python benchmarks/search.py sure [--repeats 40] [--seed 0]
    python benchmarks/search.py speed

``race``: a run is a look-up in a table of ../shared/data/tables or a recorded set of the project (at most 1,023 of its
rows, drawn once, less a tenth that is another one for every seed; mixtures are rows too). After every run a method
names the row it would use. Regret is how much worse
that row is than the best one, over how much better the best is than the median; "top 1%" is the number of runs after
which the named row is among the best 1% and stays there until 3 more runs were made. ``sure``: on simulated functions
with noise and on the tables, how often the row of a search that stops because it is 90% sure is within its tolerance of
the best. ``verdicts``: of the tasks whose Shapley value on the whole table is at least a tenth of the largest, how many
`whence.fit` of the runs calls right and how many wrong (helps for hurts), with runs chosen for effects and with rows at
random.

BoTorch and Optuna are raced where they are installed. What is printed is in benchmarks/results/search.md.
"""

from __future__ import annotations

import argparse
import functools
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
from whence.searching.certainty import named_row

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
    "recorded:digits",
    "recorded:digits_network",
)
# Measured tables that no rule of the search was chosen on.
HELD_OUT = (
    "recorded:newsgroups",
    "recorded:sst2",
    "recorded:cifar10",
    "recorded:mt10_cloning_loss",
    "recorded:mt10_cloning_return",
    "recorded:modular_addition_tuned",
    "recorded:modular_quadratic_scratch",
    "recorded:modular_division_scratch",
)
MOST_ROWS = 1023
CHECKPOINTS = (10, 15, 20, 30, 40)


@functools.cache
def table(name):
    """Subsets (n, K) and outcomes (n, T), higher being better, of a table."""
    if name.startswith("recorded:"):
        runs = whence.datasets.load(name.removeprefix("recorded:"))
        S, Y, _ = runs.distinct()
        Y = np.where(runs.maximize, Y, -Y)
    else:
        arrays = np.load(TABLES / f"{name}.npz")
        about = json.loads((TABLES / f"{name}.json").read_text())
        S, Y = arrays["S"].astype(float), arrays["Y"] * (-1 if about["lower_is_better"] else 1)
    if "regmix" in name or (name.startswith("recorded:") and Y.shape[1] > 1):
        Y = np.column_stack([Y.mean(1), Y])
    keep = np.sort(np.random.default_rng(1).permutation(len(S))[:MOST_ROWS])
    S, first = np.unique(S[keep], axis=0, return_index=True)
    return S, Y[keep][first]


def most_of(seed, S, y):
    """Nine tenths of the rows, others for every seed: the search hardly depends on its own seed."""
    keep = np.sort(np.random.default_rng([3, seed]).permutation(len(S))[: int(np.ceil(0.9 * len(S)))])
    return S[keep], y[keep]


def place_of(S, row):
    return int(abs(S - row).sum(1).argmin())


# ---- methods: each yields the row it names, after every run that it makes ------------------------------------------


def ours(S, y, budget, seed):
    search = whence.Search(S.shape[1], budget=budget, maximize=True, candidates=S, seed=seed, stop=False)
    for _ in range(budget):
        for run in search.ask():
            search.tell(run, y[place_of(S, run.subset)])
            made = len(search.asked)
            belief = search.belief(search.ledger())
            if made > 2 and np.ptp(belief.goodness) > 0:
                yield place_of(S, named_row(search.space, belief, search.rng(made)))
            else:
                yield max(_told(search, S), key=lambda at: y[at])


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

    model = LGBMRegressor(n_estimators=200, learning_rate=0.05, min_child_samples=3, verbose=-1, n_jobs=1)
    return model.fit(X, y).predict(S)


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


def botorch(predicted):
    """Log expected improvement of BoTorch's default process over the rows, after eight at random.

    On rows of 0 and 1 its kernel, with a length for each task, is a product over tasks of "same or not". What it names
    is the best run, or with ``predicted`` the row of the highest posterior mean.
    """

    def method(S, y, budget, seed):
        import torch
        from botorch.acquisition import LogExpectedImprovement
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import SingleTaskGP
        from gpytorch.mlls import ExactMarginalLogLikelihood

        torch.manual_seed(seed)
        torch.set_num_threads(1)
        X, tried = torch.tensor(S), []
        for at in np.random.default_rng(seed).permutation(len(S))[:8].tolist():
            tried.append(at)
            yield max(tried, key=lambda each: y[each])
        while len(tried) < budget:
            told = torch.tensor(y[tried])[:, None]
            model = SingleTaskGP(X[tried], (told - told.mean()) / told.std().clamp_min(1e-12))
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            with torch.no_grad():
                worth = LogExpectedImprovement(model, model.train_targets.max())(X[:, None])
                worth[tried] = -torch.inf
                tried.append(int(worth.argmax()))
                best = int(model.posterior(X).mean.argmax())
            yield best if predicted else max(tried, key=lambda each: y[each])

    return method


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
    "BoTorch, best run": botorch(predicted=False),
    "BoTorch, best predicted": botorch(predicted=True),
    "successive elimination": elimination,
    "leave-one-out": leave_one_out,
}


def named_by(method, S, y, budget, seed):
    named = list(method(S, y, budget, seed))[:budget]
    return np.array(named + named[-1:] * (budget - len(named)))


def one_race(name, target, method, seed, budget):
    S, Y = table(name)
    S, y = most_of(seed, S, Y[:, target])
    began = time.process_time()
    named = named_by(METHODS[method], S, y, budget, seed)
    worth = y[named]
    regret = (y.max() - worth) / (y.max() - np.median(y))
    top = (y[None] > worth[:, None]).mean(1) < 0.01
    held = np.array([top[n : n + 4].all() for n in range(budget)])
    first = int(held.argmax()) + 1 if held.any() else 2 * budget
    return name, method, first, regret.tolist(), time.process_time() - began


def remembered(raw):
    """What races of an earlier command came to."""
    lines = raw.read_text().splitlines() if raw and raw.exists() else []
    return {tuple(record["call"]): record["found"] for record in map(json.loads, lines)}


def run_and_keep(call, raw):
    found = one_race(*call)
    if raw:
        with raw.open("a") as file:
            file.write(json.dumps({"call": call, "found": found}) + "\n")
    return found


def race(arguments):
    targets = {}
    for name in arguments.only or (HELD_OUT if arguments.held_out else RACED):
        Y = table(name)[1]
        spread = [t for t in range(Y.shape[1]) if np.isfinite(Y[:, t]).all() and np.ptp(Y[:, t]) > 0]
        targets[name] = [spread[0], *np.random.default_rng(2).permutation(spread[1:])][: arguments.targets]
    calls = [
        (name, int(target), method, seed, arguments.budget)
        for seed in range(arguments.repeats)
        for name, own in targets.items()
        for target in own
        for method in arguments.methods or METHODS
    ]
    known = remembered(arguments.raw)
    new = [call for call in calls if call not in known]
    known |= zip(new, Parallel(arguments.jobs)(delayed(run_and_keep)(call, arguments.raw) for call in new), strict=True)
    found = [known[call] for call in calls]
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


# ---- verdicts ------------------------------------------------------------------------------------------------------


def one_verdict(name, target, seed, budget):
    """Shares of the tasks that matter whose verdict is right, and wrong, after each of some numbers of runs."""
    S, Y = table(name)
    y = Y[:, target]
    true = whence.attribute(whence.fit(whence.Outcomes(S, y, maximize=True))).scores[:, 0]
    matters = abs(true) >= 0.1 * abs(true).max()
    found = {}
    for way, goal in (("chosen for effects", "effects"), ("at random", None)):
        if goal:
            search = whence.Search(
                S.shape[1], goal=goal, budget=budget, maximize=True, candidates=S, seed=seed, stop=False
            )
            order = []
            for _ in range(budget):
                for run in search.ask():
                    order.append(place_of(S, run.subset))
                    search.tell(run, y[order[-1]])
        else:
            order = np.random.default_rng(seed).permutation(len(S))[:budget]
        for n in [n for n in CHECKPOINTS if n <= budget]:
            rows = np.asarray(order[:n])
            found_here = whence.attribute(whence.fit(whence.Outcomes(S[rows], y[rows], maximize=True)))
            said = np.array([{"helps": 1, "hurts": -1}.get(str(each), 0) for each in found_here.verdicts()[:, 0]])
            right = said * np.sign(true)
            found[way, n] = float((right[matters] > 0).mean()), float((right[matters] < 0).mean())
    return found


def verdicts(arguments):
    names = [name for name in arguments.only or RACED if "regmix" not in name]
    calls = [(name, 0, seed, arguments.budget) for seed in range(arguments.repeats) for name in names]
    found = Parallel(arguments.jobs)(delayed(one_verdict)(*call) for call in calls)
    marks = [n for n in CHECKPOINTS if n <= arguments.budget]
    print(f"| runs | {' | '.join(f'{n}: right (wrong)' for n in marks)} |\n|---|{'---|' * len(marks)}")
    for way in ("chosen for effects", "at random"):
        cells = [np.mean([each[way, n] for each in found], axis=0) for n in marks]
        print(f"| {way} | {' | '.join(f'{right:.0%} ({wrong:.1%})' for right, wrong in cells)} |")


# ---- is 90% sure right 90% of the time? ---------------------------------------------------------------------------


def world(kind, seed):
    """Candidates, the true outcome of each, and the std of the noise of a run."""
    rng = np.random.default_rng([9, seed])
    if kind == "table":
        name = RACED[seed % len(RACED)]
        S, Y = table(name)
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
    seeds = range(arguments.seed, arguments.seed + arguments.repeats)
    calls = [(kind, seed, arguments.budget) for kind in kinds for seed in seeds]
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


# ---- speed ---------------------------------------------------------------------------------------------------------


def speed(arguments):
    """Processor time of one decision, and of saying how sure the answer is, by numbers of tasks and of runs."""
    print("| tasks | runs so far | s per decision | s to say how sure |\n|---|---|---|---|")
    for n_tasks in (20, 50, 200):
        for n_runs in (40, 100):
            rng = np.random.default_rng(0)
            S, weights = (rng.random((n_runs, n_tasks)) < 0.5).astype(float), rng.normal(size=n_tasks)
            search = whence.Search(n_tasks, budget=n_runs + 1, maximize=True, stop=False)
            for row, noise in zip(S, rng.normal(size=n_runs), strict=True):
                search.tell(row, row @ weights + noise)
            began = time.process_time()
            search.ask()
            chosen = time.process_time()
            search.stop = True
            search.standing(search.ledger())
            print(f"| {n_tasks} | {n_runs} | {chosen - began:.2f} | {time.process_time() - chosen:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["race", "verdicts", "sure", "speed"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="the first seed of the worlds of `sure`")
    parser.add_argument("--targets", type=int, default=2)
    parser.add_argument("--budget", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--held-out", action="store_true", help="race on tables that no rule was chosen on")
    parser.add_argument("--raw", type=Path, help="file to keep single races in, and to resume from")
    arguments = parser.parse_args()
    print(f"python benchmarks/search.py {arguments.part}, {platform.machine()}, {time.strftime('%d %B %Y')}")
    began = time.time()
    {"race": race, "verdicts": verdicts, "sure": sure, "speed": speed}[arguments.part](arguments)
    print(f"\n{(time.time() - began) / 60:.1f} min")


if __name__ == "__main__":
    from search import main as run  # so that workers (--jobs) find what is cached by the name of this module

    run()
