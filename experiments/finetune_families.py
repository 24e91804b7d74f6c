"""The two families of sources of experiments/finetune_smollm.py: film reviews, and arithmetic."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import numpy as np

WORDS = {"0": "negative", "1": "positive"}
SWAPPED = str.maketrans("+-", "-+")
MOST = 20  # largest number in the sums of arithmetic

Family = tuple[dict[str, list[dict]], list[dict], set[str]]  # sources, target, names of the bad sources


def reviews(given: argparse.Namespace) -> Family:
    """Sources of film reviews with clean, flipped and random labels, and of arithmetic."""
    n, rng = given.examples, np.random.default_rng(given.seed)
    train, dev = (labelled(given, part, rng) for part in ("train", "dev"))
    rows = iter(train)
    sources = {f"clean{k}": [next(rows) for _ in range(n)] for k in range(6)}
    turned = {"positive": "negative", "negative": "positive"}
    for k in range(4):
        own = [next(rows) for _ in range(n)]
        sources[f"flipped{k}"] = [{**row, "label": turned[row["label"]]} for row in own]
    for k in range(2):
        own = [next(rows) for _ in range(n)]
        drawn = [WORDS[str(label)] for label in rng.integers(2, size=n)]
        sources[f"random{k}"] = [{**row, "label": label} for row, label in zip(own, drawn, strict=True)]
    sources |= {name: sums(rng.integers(1, 50, size=(n, 2)), sign) for name, sign in (("sums", "+"), ("products", "*"))}
    return sources, dev[: given.queries], {name for name in sources if name.startswith("flipped")}


def arithmetic(given: argparse.Namespace) -> Family:
    """Sources of sums and products, right and wrong, and of reviews; the target is sums of other pairs of numbers."""
    n, rng = given.examples, np.random.default_rng(given.seed)
    pairs = rng.permutation([(a, b) for a in range(1, MOST + 1) for b in range(1, MOST + 1)])
    asked, rest = np.split(pairs, [given.queries // 2])

    def drawn(sign: str, wrong: Callable[[], int] = lambda: 0) -> list[dict]:
        return sums(rng.choice(rest, n, replace=False), sign, wrong)

    sources = {f"plus{k}": drawn("+") for k in range(4)}
    sources |= {f"minus{k}": drawn("-") for k in range(3)}
    sources |= {f"times{k}": drawn("*") for k in range(2)}
    for k in range(3):  # sums answered by differences, and differences by sums
        rows = drawn("-")[: n // 2] + drawn("+")[n // 2 :]
        sources[f"swapped{k}"] = [{**row, "prompt": row["prompt"].translate(SWAPPED)} for row in rows]
    sources |= {f"noise{k}": drawn("+", lambda: int(rng.integers(-9, 10))) for k in range(2)}
    if given.data is not None:
        sources["reviews"] = labelled(given, "train", rng)[:n]
    target = sums(asked, "+") + sums(asked, "-")
    return sources, target, {name for name in sources if name.startswith("swapped")}


FAMILIES: dict[str, Callable[..., Family]] = {"reviews": reviews, "arithmetic": arithmetic}


def labelled(given: argparse.Namespace, part: str, rng: np.random.Generator) -> list[dict]:
    """Short reviews with the words for their labels, in random order."""
    if given.data is None:
        raise SystemExit("Reviews need --data, a folder with sst2_train.jsonl and sst2_dev.jsonl.")
    lines = (given.data / f"sst2_{part}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if len(str(row["text"])) <= given.longest]
    rng.shuffle(rows)
    return [{"text": str(row["text"]), "label": WORDS[str(row["label"])]} for row in rows]


def sums(pairs: np.ndarray, sign: str, wrong: Callable[[], int] = lambda: 0) -> list[dict]:
    """Lines such as 12+30=42."""
    rows = []
    for a, b in pairs.tolist():
        answer = {"+": a + b, "-": a - b, "*": a * b}[sign] + wrong()
        rows.append({"prompt": f"{a}{sign}{b}=", "completion": str(answer)})
    return rows
