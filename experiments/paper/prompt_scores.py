r"""Influence functions, TracIn and TRAK of demonstrations, beside prompts that were run: the paper's table in context.

    python experiments/paper/prompt_scores.py MODEL.gguf --sst2 DIR --out DIR     a minute or two on an H200
    … --queries 3                   a small part, for a processor

A demonstration is a training example here: the loss of its answer after itself alone, and its gradient by the model's
weights, beside those of the queries. A prompt of demonstrations is worth the sum of their scores. Nothing is trained,
so that there is one checkpoint, the model as it is. Gradients are those of the last four blocks. OUT/NAME_scores.npz
has a score for each demonstration and query. Those of a model that has been taught are written by prompt_sets.py.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Sequence

import numpy as np
import torch
from prompt_tasks import asked, parser, tokens_of
from torch import Tensor, nn

import whence
from whence import icl
from whence.baselines import EKFAC, influence_scores, tracin_scores, trak_scores

BLOCKS, SKETCH = 4, 2**16


class Words(nn.Module):
    """Logits of label words (n, C) after token rows (n, L), which end in −1."""

    def __init__(self, model: nn.Module, words: Sequence[int]) -> None:
        super().__init__()
        self.model, self.words = model, list(words)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.model.model(input_ids=tokens.clamp_min(0), use_cache=False).last_hidden_state
        last = (tokens >= 0).sum(1, keepdim=True) - 1
        ends = hidden.gather(1, last[..., None].expand(-1, 1, hidden.shape[-1]))[:, 0]
        return ends @ self.model.lm_head.weight[self.words].T


def problem_of(
    language: icl.LanguageModel, name: str, args: argparse.Namespace, params: Sequence[str]
) -> whence.Problem:
    """Demonstrations as tasks of one example, and queries."""
    demos, queries = asked(name, args.sst2, args.queries)
    both = tokens_of(language, name, [*demos, *queries], queries)
    answers = {label: place for place, label in enumerate(both.words)}
    alone = tokens_of(language, name, demos, demos)

    def rows(prompts) -> Tensor:
        found = [np.concatenate([prompts.head, tokens]) for tokens in prompts.query_tokens]
        longest = max(map(len, found))
        return torch.tensor(np.stack([np.pad(row, (0, longest - len(row)), constant_values=-1) for row in found]))

    def labels(examples) -> Tensor:
        return torch.tensor([answers[str(example.label)] for example in examples])

    length = max(part.shape[1] for part in (rows(alone), rows(both)))
    inputs, asking = (
        nn.functional.pad(part, (0, length - part.shape[1]), value=-1) for part in (rows(alone), rows(both))
    )
    tasks = {demo.name: (inputs[k : k + 1], labels(demos)[k : k + 1]) for k, demo in enumerate(demos)}
    words = [int(token) for token in np.ravel(both.label_tokens)]
    return whence.Problem(
        Words(language.model, words), tasks, (asking, labels(queries)), per_query=True, params=params,
        device=language.device,
    )  # fmt: skip


def score(language: icl.LanguageModel, name: str, args: argparse.Namespace) -> None:
    """Write the scores of the demonstrations of a set by every method."""
    language.model.requires_grad_(True)
    n = len(language.model.model.layers)
    some = problem_of(language, name, args, tuple(f"model.model.layers.{block}.*" for block in range(n - BLOCKS, n)))
    ways = {
        "TRAK": lambda: trak_scores(some, 512, l2=1.0),
        "Influence functions": lambda: influence_scores(some, solver=EKFAC(relative_damping=0.3), damping=0.0),
        "TracIn": lambda: tracin_scores(some, learning_rates=[1.0], rank=SKETCH),
    }
    found = {}
    for way, made in ways.items():
        begun = time.time()
        try:
            found[way] = made().coef_.astype(np.float32)
        except Exception:
            traceback.print_exc()
            continue
        print(f"{name}, {way}: {time.time() - begun:.1f} s", flush=True)
        np.savez_compressed(args.out / f"{name}_scores.npz", **found)


def main() -> None:
    args = parser(__doc__).parse_args()
    language = icl.LanguageModel.load(args.model, device=args.device, dtype=torch.float32)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in (name for name in ("sst2", "coin_flip") if args.only in name):
        score(language, name, args)


if __name__ == "__main__":
    main()
