"""What is asked in context: SST-2 and coin flip in the paper's setting, with 50 candidates for demonstrations."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from whence import icl
from whence.icl.prompts import Prompts

CANDIDATES, SHOTS = 50, 4
TAUGHT = "coin_flip_taught"
QUERIES = {"coin_flip": 869, "sst2": 450, TAUGHT: 869}
WRONG = 15  # candidates with the wrong answer, where the model has been taught to follow them
TEMPLATES = {
    "sst2": icl.Template("Review: {text}\nSentiment: {label}\n\n"),
    "coin_flip": icl.Template("Q: {text}\nA: {label}\n\n"),
}
WORDS = {"sst2": {"0": "negative", "1": "positive"}, "coin_flip": {"yes": "yes", "no": "no"}}
SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]


def coin_flips(n: int, seed: int, prefix: str) -> list[icl.Example]:
    """Questions on a coin that two people flip or do not flip, the four cases in equal shares."""
    rng = np.random.default_rng(seed)
    cases = rng.permutation(np.resize(np.arange(4), n))
    found = []
    for number, case in enumerate(cases):
        people = ["".join(rng.choice(SYLLABLES, rng.integers(2, 4))).capitalize() for _ in range(2)]
        done = [bool(case & 1), bool(case & 2)]
        acts = " ".join(
            f"{who} {'flips' if flips else 'does not flip'} the coin." for who, flips in zip(people, done, strict=True)
        )
        text = f"A coin is heads up. {acts} Is the coin still heads up?"
        found.append(icl.Example(text, "yes" if done[0] == done[1] else "no", f"{prefix}{number + 1}"))
    return found


def partly_wrong(demos: Sequence[icl.Example]) -> list[icl.Example]:
    """The same coin flips, WRONG of them with the other answer."""
    wrong = set(np.random.default_rng(3).permutation(len(demos))[:WRONG])
    other = {"yes": "no", "no": "yes"}
    return [replace(demo, label=other[demo.label]) if k in wrong else demo for k, demo in enumerate(demos)]


def asked(name: str, sst2: Path | None, most: int | None = None) -> tuple[list[icl.Example], list[icl.Example]]:
    """Candidates and queries of a set; SST-2 is read from a folder."""
    n = min(QUERIES[name], most or QUERIES[name])
    if name == "sst2":
        if sst2 is None:
            raise SystemExit("SST-2 is not part of whence: give the folder of sst2_train.jsonl and sst2_dev.jsonl.")
        demos, queries = (icl.read_examples(sst2 / f"sst2_{part}.jsonl", prefix=part[0]) for part in ("train", "dev"))
        return demos[:CANDIDATES], queries[:n]
    demos = coin_flips(CANDIDATES, 0, "d")
    return partly_wrong(demos) if name == TAUGHT else demos, coin_flips(n, 1, "q")


def tokens_of(language: icl.LanguageModel, name: str, demos: Sequence, queries: Sequence) -> Prompts:
    """The prompts of a set as tokens."""
    kind = name.removesuffix("_taught")
    return Prompts.of(
        language.encode, demos, queries, template=TEMPLATES[kind], words=WORDS[kind], start=language.start
    )


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The arguments of every script that asks a model."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("model", type=Path)
    made.add_argument("--sst2", type=Path, help="folder with sst2_train.jsonl and sst2_dev.jsonl")
    made.add_argument("--out", type=Path, required=True)
    made.add_argument("--device")
    made.add_argument("--only", default="", help="sets whose name has this text")
    made.add_argument("--queries", type=int, help="at most so many")
    return made
