"""What the fine-tuning runs of SmolLM2-135M say: every rung, alone and fused with true runs, at its price.

    python experiments/finetune_tables.py reviews arithmetic                     some minutes each, without a model
    python experiments/finetune_tables.py reviews_large arithmetic_large         with adapters in all blocks
    python experiments/finetune_tables.py --merged reviews_large                 merged weights of fewer subsets
    python experiments/finetune_tables.py --alone reviews_large                  every rung alone
    python experiments/finetune_tables.py --usual topics texts                   what whence finetune makes
    python experiments/finetune_tables.py --mixed reviews_large                  what to fuse, at whole prices
    python experiments/finetune_tables.py --picture docs/images/finetune_smollm.png   of what these found

It reads the recorded runs (``whence.datasets.load("smollm_reviews")`` and so on) and what
experiments/finetune_smollm.py kept beside them: estimates of every rung, prices, choices. Rungs and true runs learn
from runs of the first seed, and are judged on other subsets by the rank correlation, for each query, with the mean of
both seeds (LDS). Everything is the mean over splits into subsets to learn from and to judge by, ± its standard
deviation over splits. Prices are in true runs.
"""

from __future__ import annotations

import argparse
import json
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np

import whence
from whence.evaluation import spearman_per_target

RECORDED = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "finetune_smollm"
TRUE_RUNS = (5, 10, 20, 40)
JUDGED, SPLITS = 30, 4
EVERY = 6  # queries, of which one is used to compare merged weights of fewer subsets
ASKED, MERGED = 40, 100  # queries, and subsets of merged weights, by which what to fuse is compared
FUSED = (
    ("trak",), ("trak", "merged_weights"), ("merged_weights",), ("points",), ("trak", "points"),
    ("points", "merged_weights"),
)  # fmt: skip
USUAL = ("true runs", "points")  # what whence finetune makes, beside true runs alone
MIXES = {
    "trak + influence": ("trak", "influence"),
    "trak + merged": ("trak", "merged_outputs"),
    "points + merged": ("points", "merged_weights"),
}
NAMES = {
    "trak": "TRAK", "influence": "influence functions (EK-FAC)", "merged_outputs": "merged adapters, outputs",
    "merged_weights": "merged adapters, weights", "gradex": "GradEx at the start",
    "along": "GradEx along a run, gradients of tasks", "halfway": "GradEx halfway, random directions",
    "points": "GradEx at three points, random directions", "points_few": "GradEx at three points, 64 examples a source",
    "trak_points": "TRAK at three points, all examples",
    "trak + influence": "**TRAK, influence functions**", "trak + merged": "**TRAK, merged outputs**",
    "points + merged": "**GradEx at three points, merged weights**",
}  # fmt: skip
Scores = dict[str, list[float]]  # by kind of outcome, of every split


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--merged", nargs="*", default=[], help="families")
    parser.add_argument("--alone", nargs="*", default=[], help="families")
    parser.add_argument("--usual", nargs="*", default=[], help="families")
    parser.add_argument("--mixed", nargs="*", default=[], help="families")
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore", whence.DataWarning)
    for family in given.families:
        runs = Recorded(family)
        (RECORDED / f"{family}_scores.json").write_text(json.dumps(runs.means(), indent=1) + "\n", encoding="utf-8")
        print("\n\n".join([f"## {runs.family}", runs.ceiling(), *runs.tables()]), flush=True)
    for family in given.merged:
        print(f"## {family}, merged by weights\n\n{Recorded(family, ways=()).merged()}", flush=True)
    for family in given.alone:
        print(f"## {family}, every rung alone\n\n{Recorded(family, ways=()).alone()}", flush=True)
    for family in given.usual:
        runs = Recorded(family, ways=USUAL)
        parts = [runs.ceiling(), *runs.fused(), runs.accused(USUAL), runs.chosen()]
        print("\n\n".join([f"## {family}, as whence finetune has it", *parts]), flush=True)
    for family in given.mixed:
        print(f"## {family}, fused\n\n{Recorded(family, ways=()).mixed()}", flush=True)
    if given.picture:
        files = {family: RECORDED / f"{family}_scores.json" for family in ("reviews", "arithmetic")}
        picture({name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}, given.picture)


class Recorded:
    """The recorded runs of a family, and the scores of every way to predict them."""

    every = 1  # queries, of which one is used

    def __init__(self, family: str, folder: Path = RECORDED, *, ways: tuple[str, ...] | None = None) -> None:
        self.family = family
        runs = whence.datasets.load(f"smollm_{family}")
        kept = np.load(folder / f"{family}.npz")
        self.known = json.loads((folder / f"{family}.json").read_text(encoding="utf-8"))
        self.prices = self.known["prices"]
        n = len(runs.distinct()[0])
        self.truth, self.second = runs.rows(np.arange(n)), runs.values[n:]
        self.estimates = {}
        for name in (name for name in kept if name.startswith("rung_")):
            made = whence.Outcomes(kept["subsets"], kept[name].astype(float), runs.task_names, runs.target_names)
            # Those of some subsets only, where a rung was made for no more.
            self.estimates[name.removeprefix("rung_")] = made.rows(np.flatnonzero(~np.isnan(made.values).any(1)))
        self.splits = [self._split(seed) for seed in range(SPLITS)]
        self.mixes = {name: parts for name, parts in MIXES.items() if set(parts) <= set(self.estimates)}
        self.parts: dict[str, tuple[str, ...]] = {"true runs": (), **{name: (name,) for name in self.estimates}}
        self.parts |= self.mixes
        self.scores: dict[str, dict[int, Scores]] = {}
        for name in self.parts if ways is None else ways:
            alone = (0,) if len(self.parts[name]) == 1 else ()
            self.scores[name] = {n: self._score(self.parts[name], n) for n in (*alone, *TRUE_RUNS)}

    def _split(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Subsets to learn from, in order, and those to judge by, all of which have been trained twice."""
        rng = np.random.default_rng(seed)
        judge = rng.permutation(len(self.second))[: min(JUDGED, 3 * len(self.second) // 4)]
        return rng.permutation(np.setdiff1d(np.arange(self.truth.n_runs), judge)), judge

    def _score(self, parts: tuple[str, ...], n: int) -> Scores:
        """LDS of rungs fused with n true runs, of either alone, for each query and of the mean loss."""
        found: Scores = {"each query": [], "mean loss": []}
        for learn, judge in self.splits:
            true = (self.truth.values[judge] + self.second[judge]) / 2
            for kind, reduce in (("each query", self._thinned), ("mean loss", mean_loss)):
                estimates = {name: reduce(self.estimates[name]) for name in parts}
                wanted = self.truth.subsets[judge]
                if n:
                    few = reduce(self.truth.rows(learn[:n]))
                    predicted = whence.fit(few, estimates=estimates or None).predict(wanted)
                else:
                    (table,) = estimates.values()
                    place = {row.tobytes(): at for at, row in enumerate(table.subsets + 0.0)}
                    predicted = table.values[[place[row.tobytes()] for row in wanted + 0.0]]
                wished = true[:, :: self.every] if kind == "each query" else true.mean(1, keepdims=True)
                found[kind].append(lds(predicted, wished))
        return found

    def alone(self) -> str:
        """Scores of every rung alone, the best first, and of the best one with a few true runs."""
        scores = {name: self._score((name,), 0) for name in self.estimates}
        best_first = sorted(scores, key=lambda name: -float(np.mean(scores[name]["each query"])))
        rows = [(NAMES[name], self.price(name), scores[name]) for name in best_first]
        best = best_first[0]
        for n in TRUE_RUNS[:2]:
            passes, clock = self.price(best)
            rows.append((f"{NAMES[best]}, {n} true runs", (n + passes, n + clock), self._score((best,), n)))
        lines = ["| | price: passes (clock) | each query | mean loss |", "|---|---|---|---|"]
        for name, (passes, clock), own in rows:
            price = f"{passes:.1f} ({clock:.1f})".replace("nan", "–")
            lines.append(f"| {name} | {price} | {spread(own['each query'])} | {spread(own['mean loss'])} |")
        return "\n".join([self.ceiling(), "", *lines])

    def merged(self) -> str:
        """Scores of ways to fuse with merged weights of fewer subsets, and whole prices; each query by some of them."""
        self.every, made, whole = EVERY, self.estimates, self.estimates["merged_weights"]
        passes, queries = self.prices["true run"][0], self.truth.n_targets
        lines = ["| | total price (passes) | each query | mean loss |", "|---|---|---|---|"]
        ways = [((), n, 0) for n in TRUE_RUNS] + [(("trak",), 10, 0), (("trak", "merged_outputs"), 7, 0)]
        ways += [(("merged_weights",), 5, n) for n in (0, 100, 60)] + [(("merged_weights",), 10, 100)]
        ways += [(("trak", "merged_weights"), n, 100) for n in (4, 5, 10)]
        for parts, n, few in ways:
            some = np.random.default_rng(0).permutation(whole.n_runs)[: few or None]
            self.estimates = {**made, "merged_weights": whole.rows(np.sort(some))}
            less = (whole.n_runs - len(some)) * queries / passes if "merged_weights" in parts else 0.0
            price = n + sum(self.prices[part][0] for part in parts) - less
            scores = self._score(parts, n)
            named = [NAMES[part] for part in parts] + [f"{n} true runs"]
            of = f" (weights of {len(some)} subsets)" if "merged_weights" in parts else ""
            lines.append(
                f"| {', '.join(named)}{of} | {price:.1f} | {spread(scores['each query'])} | "
                f"{spread(scores['mean loss'])} |"
            )
        return "\n".join(lines)

    def mixed(self) -> str:
        """Scores of what a budget may be spent on, some rungs and true runs, and whole prices; of some queries."""
        self.every = self.truth.n_targets // ASKED
        passes, queries, less = self.prices["true run"][0], self.truth.n_targets, 0.0
        if (whole := self.estimates.get("merged_weights")) is not None:
            some = np.random.default_rng(0).permutation(whole.n_runs)[:MERGED]
            self.estimates["merged_weights"] = whole.rows(np.sort(some))
            less = (whole.n_runs - len(some)) * queries / passes
        lines = ["| | total price (passes) | each query | mean loss |", "|---|---|---|---|"]
        for parts in (parts for parts in FUSED if set(parts) <= set(self.estimates)):
            own = sum(self.prices[part][0] for part in parts) - less * ("merged_weights" in parts)
            shared = self.prices["joint run"][0] * ({"trak", "points"} <= set(parts))
            for n in TRUE_RUNS[:2]:
                scores = self._score(parts, n)
                named = ", ".join([*(NAMES[part] for part in parts), f"{n} true runs"])
                lines.append(
                    f"| {named} | {n + own - shared:.1f} | {spread(scores['each query'])} | "
                    f"{spread(scores['mean loss'])} |"
                )
        return "\n".join(lines)

    def _thinned(self, runs: whence.Outcomes) -> whence.Outcomes:
        return runs.targets(list(runs.target_names)[:: self.every])

    def price(self, name: str) -> tuple[float, float]:
        """Of the rungs of a way to predict, in true runs: by passes, and by the clock."""
        parts = self.parts[name]
        shared = ["joint run"] if "influence" in parts and "trak" not in parts else []
        prices = np.array([self.prices[part] for part in (*parts, *shared)] or [[0.0, 0.0]], dtype=float)
        passes, clock = prices.sum(axis=0)
        return float(passes), float(clock)

    def worth(self, score: float) -> str:
        """How many true runs alone have this score for each query, between those that were tried."""
        curve = [(n, np.mean(self.scores["true runs"][n]["each query"])) for n in TRUE_RUNS]
        if score <= curve[0][1]:
            return f"≤ {curve[0][0]}"
        if score > curve[-1][1]:
            return f"> {curve[-1][0]}"
        below, above = next((a, b) for a, b in pairwise(curve) if score <= b[1])
        share = (score - below[1]) / (above[1] - below[1])
        return f"{below[0] * (above[0] / below[0]) ** share:.0f}"

    def means(self) -> dict[str, dict[str, list[float]]]:
        """Whole prices by passes of every way to predict, with their mean scores for each query."""
        found = {}
        for name, scores in self.scores.items():
            prices = [round(n + self.price(name)[0], 2) for n in scores]
            means = [round(float(np.mean(own["each query"])), 4) for own in scores.values()]
            found[name] = {"price": prices, "lds": means}
        return found

    def ceiling(self) -> str:
        """The score of one true run with another seed."""
        first, second = self.truth.values[: len(self.second)], self.second
        mean = lds(first.mean(1, keepdims=True), second.mean(1, keepdims=True))
        return (
            f"{self.truth.n_runs} subsets, {len(second)} of them with two seeds. A true run of another seed has "
            f"{lds(second, first):.2f} for each query and {mean:.2f} of the mean loss."
        )

    def fused(self) -> list[str]:
        """Scores of every way with more and more true runs, for each query and of the mean loss."""
        head = "| | price: passes (clock) | alone | " + " | ".join(f"+ {n}" for n in TRUE_RUNS) + " |"
        rows = [[], []]
        for name, scores in self.scores.items():
            passes, clock = self.price(name)
            price = "–" if name == "true runs" else f"{passes:.1f} ({clock:.1f})".replace("nan", "–")
            for kind, own in zip(("each query", "mean loss"), rows, strict=True):
                cells = [spread(scores[n][kind]) if n in scores else "–" for n in (0, *TRUE_RUNS)]
                own.append(f"| {NAMES.get(name, name)} | {price} | " + " | ".join(cells) + " |")
        line = "|---" * (3 + len(TRUE_RUNS)) + "|"
        parts = ["\n".join([head, line, *own]) for own in rows]
        return [f"Each query:\n\n{parts[0]}", f"Mean loss:\n\n{parts[1]}"]

    def tables(self) -> list[str]:
        worth = ["| | total price | LDS | true runs alone with that LDS |", "|---|---|---|---|"]
        for name, scores in list(self.scores.items())[1:]:
            for n in TRUE_RUNS[:-1]:
                score = float(np.mean(scores[n]["each query"]))
                passes, clock = self.price(name)
                price = f"{n + passes:.0f} ({n + clock:.0f})".replace("nan", "–")
                worth.append(f"| {NAMES[name]}, {n} true runs | {price} | {score:.2f} | {self.worth(score)} |")
        return [*self.fused(), "\n".join(worth), self.accused(("true runs", *self.mixes)), self.chosen()]

    def accused(self, ways: tuple[str, ...]) -> str:
        """Planted bad sources that were found, and others that were accused, on every split and number of runs."""
        bad = set(self.known["setting"]["bad"])
        lines = ["| | " + " | ".join(f"{n} true runs" for n in TRUE_RUNS) + " |", "|---" * (1 + len(TRUE_RUNS)) + "|"]
        for name in ways:
            cells = []
            for n in TRUE_RUNS:
                counts = []
                for learn, _ in self.splits:
                    estimates = {part: mean_loss(self.estimates[part]) for part in self.parts[name]}
                    model = whence.fit(mean_loss(self.truth.rows(learn[:n])), estimates=estimates or None)
                    frame = whence.attribute(model).to_frame()
                    hurts = set(frame[frame["verdict"] == "hurts"]["task"])
                    counts.append((len(hurts & bad), len(hurts - bad)))
                found, false = np.mean(counts, axis=0)
                cells.append(f"{found:.1f} of {len(bad)}, {false:.1f} falsely")
            lines.append(f"| {NAMES.get(name, name)} | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def chosen(self) -> str:
        lines = ["| trained on | sources | loss, mean of 3 seeds ± std |", "|---|---|---|"]
        for way, row in self.known["chosen"].items():
            losses = row["losses"]
            said = f"{np.mean(losses):.3f} ± {np.std(losses, ddof=1):.3f}"
            lines.append(f"| {way} | {', '.join(row['sources'])} | {said} |")
        every = self.truth.values.mean(1)
        lines.append(f"| {len(every)} random subsets, one seed each | | {every.mean():.3f} ± {every.std(ddof=1):.3f} |")
        return "\n".join(lines)


def lds(predicted: np.ndarray, true: np.ndarray) -> float:
    """Mean rank correlation over queries; one whose predictions or outcomes are all equal counts as 0."""
    return float(np.nan_to_num(spearman_per_target(predicted, true)).mean())


def spread(scores: list[float]) -> str:
    return f"{np.mean(scores):.2f} ± {np.std(scores, ddof=1):.2f}"


def mean_loss(runs: whence.Outcomes) -> whence.Outcomes:
    return whence.Outcomes(runs.subsets, runs.values.mean(1), runs.task_names, ["loss"])


def picture(found: dict[str, dict], path: Path) -> None:
    """LDS for each query against the whole price, of true runs alone and of ways to fuse them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(found), 4), layout="constrained")
    shown = {"true runs": "true runs alone", "trak": "TRAK", "trak + influence": "TRAK, influence functions"}
    shown |= {"trak + merged": "TRAK, merged adapters", "along": "GradEx along a run"}
    shown |= {"merged_outputs": "merged adapters"}
    for axes, (family, ways) in zip(figure.subplots(1, len(found), sharey=True), found.items(), strict=True):
        for name, label in shown.items():
            color = "black" if name == "true runs" else None
            axes.plot(ways[name]["price"], ways[name]["lds"], marker="o", color=color, label=label)
        axes.set(title=family, xlabel="price in true runs (passes)", xscale="log")
        axes.set_xticks([1, 2, 5, 10, 20, 40], ["1", "2", "5", "10", "20", "40"])
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("LDS for each query")
    figure.axes[-1].legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
