"""Coin flips for a small transformer that does learn in context: wrong demonstrations are known, and must be found.

Where a ready-made small model is at chance, one is trained here in minutes. A coin is flipped or left alone by two
people, and the answer says whether it was turned; but what "yes" means is drawn anew for every prompt, so that only
demonstrations can tell, and a tenth of these are wrong. It learns what an answer is first, then that its meaning
varies, then that demonstrations err. Candidates are right ones and a few wrong ones. Estimates and surrogates are held
against all prompts run for real, and attribution against which candidates are wrong.

    python experiments/icl_small_transformer.py --out run/
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata

import whence
from whence import icl
from whence.evaluation import lds
from whence.icl.language import import_transformers

FLIP, STAY = ("flips", "turns"), ("stays", "keeps")
WORDS = ["?", *FLIP, *STAY, "->", "yes", "no", "."]
TEMPLATE = icl.Template("{text} -> {label} . ")
PEOPLE, SHOTS, WRONG = 2, 4, 0.1


class Tokenizer:
    """A token per word; the first for words that it does not know."""

    def __call__(self, text: str, add_special_tokens: bool = False):
        return type("Encoding", (), {"input_ids": [WORDS.index(word) if word in WORDS else 0 for word in text.split()]})


def batch(rng: np.random.Generator, size: int, varied: float, wrong: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts of five coin flips as tokens, and what should be learned: −100 but for the answers, the right ones.

    ``varied`` is the share of prompts in which the meaning of "yes" is drawn, ``wrong`` that of wrong answers shown.
    """
    turned = rng.integers(2, size=(size, SHOTS + 1, PEOPLE))
    means = rng.integers(2, size=(size, 1)) * (rng.random((size, 1)) < varied)
    answer = (turned.sum(2) + means) % 2
    shown = (answer + (rng.random(answer.shape) < wrong)) % 2
    people = np.where(turned == 1, 1, 3) + rng.integers(2, size=turned.shape)
    ends = [np.full(answer.shape, 5), 6 + shown, np.full(answer.shape, 8)]
    cells = np.concatenate([people, np.stack(ends, axis=2)], axis=2)
    wanted = np.full(cells.shape, -100)
    wanted[..., PEOPLE] = 6 + answer
    return torch.as_tensor(cells.reshape(size, -1)), torch.as_tensor(wanted.reshape(size, -1))


def trained(steps: int, seed: int, device: str) -> torch.nn.Module:
    """A Llama of three layers that has read many prompts."""
    transformers = import_transformers()
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=64, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
    warmed = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 100, (1 - step / steps) / 0.3)
    )
    rng = np.random.default_rng(seed)
    for step in range(steps):
        varied, wrong = (float(np.clip((step / steps - at) / over, 0, 1)) for at, over in ((0.2, 0.3), (0.6, 0.2)))
        tokens, wanted = (part.to(device) for part in batch(rng, 128, varied, WRONG * wrong))
        loss = torch.nn.functional.cross_entropy(model(input_ids=tokens).logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warmed.step()
        if step % 500 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return model


def accuracy(model: torch.nn.Module, device: str) -> list[float]:
    """How often the answer is right after 0, 1, … demonstrations, on prompts that nothing was learned from."""
    tokens, wanted = (part.to(device) for part in batch(np.random.default_rng(10**6), 2000, 1.0, WRONG))
    with torch.no_grad():
        right = model(input_ids=tokens).logits.argmax(-1) == wanted
    return right[:, PEOPLE :: PEOPLE + 3].double().mean(0).tolist()


def examples(rng: np.random.Generator, n: int, n_wrong: int, prefix: str) -> list[icl.Example]:
    """Coin flips whose answer is "no" where the coin was turned; the last ones are wrong."""
    found = []
    for at in range(n):
        turned = rng.integers(2, size=PEOPLE)
        text = " ".join(str(rng.choice(FLIP if flip else STAY)) for flip in turned)
        right = ("yes", "no")[turned.sum() % 2]
        label = right if at < n - n_wrong else {"yes": "no", "no": "yes"}[right]
        found.append(icl.Example(text, label, f"{prefix}{at + 1}"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--demos", type=int, default=16)
    parser.add_argument("--wrong", type=int, default=5)
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--train", type=int, default=40, help="true prompts to learn from; all others judge")
    parser.add_argument("--anchors", type=int, default=8)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    model = trained(given.steps, given.seed, given.device)
    learned = accuracy(model, given.device)
    language = icl.LanguageModel(model, Tokenizer())
    rng = np.random.default_rng(given.seed + 1)
    demos, queries = examples(rng, given.demos, given.wrong, "d"), examples(rng, given.queries, 0, "q")
    prompts = icl.Prompts.of(language.encode, demos, queries, template=TEMPLATE)
    truth, estimate = icl.Prompted(language, prompts), icl.AnchoredPrompts(language, prompts, anchors=given.anchors)
    design, total = whence.FixedSize(SHOTS), math.comb(given.demos, SHOTS)
    runs = whence.measure(truth, design, total, seed=given.seed, path=given.out / "true")
    cheap = whence.measure(estimate, runs, progress=False)
    train, held_out = runs.rows(np.arange(given.train)), runs.rows(np.arange(given.train, total))
    models = {
        "embedding estimate": cheap.values[given.train :],
        "true prompts alone": whence.fit(train),
        "tuned ridge on true prompts": whence.AdditiveSurrogate("ridge").fit(train.subsets, train.values),
        "estimates and true prompts fused": whence.fit(train, estimates=cheap),
    }
    right = np.arange(given.demos) < given.demos - given.wrong
    scores = {
        "estimates alone": whence.attribute(whence.fit(cheap), "inclusion").scores[:, 0],
        "fused": whence.attribute(models["estimates and true prompts fused"], "inclusion").scores[:, 0],
        "all true prompts": runs.subsets.T @ (runs.values[:, 0] - runs.values.mean()),
    }
    with_right = runs.subsets @ right == SHOTS
    found = {
        "setting": {key: str(value) for key, value in vars(given).items()},
        "accuracy after 0, 1, … demonstrations": learned,
        "mean loss": {
            "no demonstration": float(truth.values([[]])["loss"].mean()),
            "four right ones": float(runs.values[with_right].mean()),
            "all prompts": float(runs.values.mean()),
        },
        "LDS": {name: lds(model, held_out).mean for name, model in models.items()},
        "probability that a wrong one is scored as more harmful than a right one": {
            name: area(values, ~right) for name, values in scores.items()
        },
    }
    (given.out / "found.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


def area(scores: np.ndarray, positive: np.ndarray) -> float:
    """Area under the ROC curve: how often a positive has the higher score."""
    n = int(positive.sum())
    return float((rankdata(scores)[positive].sum() - n * (n + 1) / 2) / (n * (len(scores) - n)))


if __name__ == "__main__":
    main()
