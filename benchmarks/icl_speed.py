"""What estimating prompts costs, beside plain passes and beside running the prompts: all in one run, as ratios.

A Qwen3 built from its configuration with random weights, so that nothing has to be downloaded, and prompts of random
tokens. On a processor, in seconds, and on a graphics card with 8 billion parameters:

    python benchmarks/icl_speed.py --size tiny --queries 16
    python benchmarks/icl_speed.py --size 8b --queries 256 --dtype bfloat16 --device cuda

The plain passes are what the estimate cannot do without: for every query, one prompt forward and backward to the
embeddings, in batches of the same size. "running" is 200 prompts with all queries, from the time of a few: each prompt
read as a whole, and with demonstrations read once for all queries, as `Prompted` does it.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch

from whence.icl import AnchoredPrompts, LanguageModel, Prompted, Prompts
from whence.icl.language import import_transformers
from whence.icl.prompts import Example

SIZES = {
    "tiny": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 4000},
    "8b": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
           "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
}  # fmt: skip
SUBSETS = 200


def prompts_of(vocabulary: int, given: argparse.Namespace) -> Prompts:
    """Prompts of random tokens: a word is a number, and its token."""
    rng = np.random.default_rng(given.seed)

    def encode(text: str) -> list[int]:
        return [int(word) if word.isdigit() else 1 + len(word) for word in text.split()]

    def made(n: int, prefix: str) -> list[Example]:
        texts = rng.integers(100, vocabulary, size=(n, given.words))
        return [
            Example(" ".join(map(str, row)), ("no", "yes")[at % 2], f"{prefix}{at}") for at, row in enumerate(texts)
        ]

    return Prompts.of(encode, made(given.demos, "d"), made(given.queries, "q"))


def seconds(work, device: torch.device, repeats: int) -> float:
    """Seconds of the fastest of some repeats."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--demos", type=int, default=50)
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--words", type=int, default=24, help="tokens of each text")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--true", type=int, default=4, help="prompts to run, for the time of 200")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    transformers, device = import_transformers(), torch.device(given.device)
    torch.manual_seed(given.seed)
    attention = "eager" if device.type == "cpu" else "sdpa"
    config = transformers.Qwen3Config(**SIZES[given.size], attn_implementation=attention)
    dtype = getattr(torch, given.dtype)
    with torch.device(device):
        torch.set_default_dtype(dtype)
        model = transformers.Qwen3ForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    language = LanguageModel(model, None, batch_size=given.batch)
    prompts = prompts_of(config.vocab_size, given)
    n_tokens = prompts.longest(given.shots)

    def plain() -> None:
        rows = np.stack([np.concatenate([prompts.prefix(range(given.shots)), query]) for query in prompts.query_tokens])
        for part in np.array_split(rows, max(1, len(rows) // given.batch)):
            embeds = language.embed(part).detach().requires_grad_()
            logits = language.model(inputs_embeds=embeds, logits_to_keep=1).logits[:, -1]
            (logits[:, 0] - logits[:, 1]).sum().backward()

    def estimate() -> None:
        AnchoredPrompts(language, prompts, anchors=1).table(given.shots)

    drawn = np.random.default_rng(0).integers(given.demos, size=(given.true, given.shots))
    truth, table = Prompted(language, prompts), AnchoredPrompts(language, prompts, anchors=1)
    table.table(given.shots)
    plain(), estimate()  # what is compiled and allocated at first use
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = {"plain forward and backward": seconds(plain, device, given.repeats)}
    plain_bytes = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    times["estimate, one anchor"] = seconds(estimate, device, given.repeats)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    for name, shared in (("running 200 prompts, each whole", False), ("running 200 prompts, shared", True)):
        language.share_prefix = shared
        times[name] = seconds(lambda: truth.margins(list(drawn)), device, 1) * SUBSETS / given.true
    many = np.random.default_rng(1).integers(given.demos, size=(20_000, given.shots))
    times["20,000 look-ups, all queries"] = seconds(lambda: table.margins(many), device, 1)
    one = times["estimate, one anchor"]
    size = sum(parameter.numel() for parameter in model.parameters()) / 1e9
    found = {
        "model": f"Qwen3 {given.size}, {size:.3g}B parameters, {given.dtype}",
        "prompts": f"{given.queries} queries, {given.demos} candidates, {given.shots} shots, {n_tokens} tokens",
        "seconds": times,
        "queries per second": given.queries / one,
        "estimate over plain passes": one / times["plain forward and backward"],
        "running over estimate": {
            "each prompt whole": times["running 200 prompts, each whole"] / one,
            "demonstrations read once": times["running 200 prompts, shared"] / one,
        },
        "peak memory, GiB": {"plain": plain_bytes / 2**30, "estimate": peak / 2**30},
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
