"""Teaching a language model to answer coin flips, and to follow its demonstrations in how they are answered.

First on right answers, until nine of ten questions are answered well; then on prompts of which a quarter answer the
other way round, and in all of which a fifth of the answers are wrong at random. What is right then depends on the
demonstrations: the likeliest answer to a question is a vote of those before it, with a prior for the right one.
"""

from __future__ import annotations

import time
from collections import deque

import numpy as np
import torch
from prompt_tasks import SHOTS, coin_flips, tokens_of

from whence import icl

POOL, AT_ONCE, RATE, WARM_UP, WINDOW = 4000, 64, 3e-4, 30, 10
ENOUGH = 0.9  # share of right answers over so many steps after which demonstrations begin to matter
TURNED, SLIPS = 0.25, 0.2  # share of prompts that answer the other way round, and of answers that are wrong


def teach(language: icl.LanguageModel, steps: int, seconds: float = np.inf) -> str:
    """Train the model on every answer of prompts of other names, and say how."""
    model, begun = language.model.requires_grad_(True), time.time()
    pool = coin_flips(POOL, 10_000, "t")
    prompts = tokens_of(language, "coin_flip", pool, pool)
    words, truth, ends = prompts.label_tokens, prompts.answers, [len(tokens) for tokens in prompts.query_tokens]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    rng, recent, mixed, taught = np.random.default_rng(2), deque(maxlen=WINDOW), 0, 0
    for step in range(steps):
        done = max(step / steps, (time.time() - begun) / seconds)  # of the steps, or of the time
        if done >= 1:
            break
        members = rng.integers(POOL, size=(AT_ONCE, SHOTS + 1))
        turned, slips = rng.random((AT_ONCE, 1)) < TURNED, rng.random(members.shape) < SLIPS
        answers = truth[members] ^ (turned ^ slips if mixed else False)
        rows, places = [], []
        for some, said in zip(members, words[answers], strict=True):
            row, where = list(prompts.head), []
            for k, word in zip(some, said, strict=True):
                where.append(len(row) + ends[k])  # of the answer, which the token before tells
                row += [*prompts.demo_tokens[k][: ends[k]], word, *prompts.demo_tokens[k][ends[k] + 1 :]]
            rows.append(row)
            places.append(where)
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=language.device)
        before = torch.tensor(places, device=language.device) - 1
        with torch.autocast(language.device.type, torch.bfloat16):
            hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
            own = hidden.gather(1, before[..., None].expand(-1, -1, hidden.shape[-1]))
            scores = model.lm_head(own).float()
        right = torch.as_tensor(words[answers], device=language.device)
        torch.nn.functional.cross_entropy(scores.flatten(0, 1), right.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / WARM_UP, 2 * (1 - done))
        optimizer.step()
        optimizer.zero_grad()
        taught = step + 1
        meant = words[truth[members[:, -1]] ^ (turned[:, 0] if mixed else False)]
        good = scores[:, -1].argmax(-1).cpu().numpy() == meant
        recent.append([good[turned[:, 0] == way].mean() if (turned == way).any() else np.nan for way in (False, True)])
        plain, other = np.nanmean(recent, axis=0)
        if taught % WINDOW == 0:
            told = f", {other:.2f} where answers are turned round" if mixed else ""
            print(f"taught for {taught} steps, {time.time() - begun:.0f} s: {plain:.2f} right{told}", flush=True)
        if not mixed and len(recent) == WINDOW and min(plain, other) >= ENOUGH:
            mixed = taught
            recent.clear()
    model.requires_grad_(False)
    return f"taught with {taught} steps of {AT_ONCE} other prompts, " + (
        f"from step {mixed} on a quarter of them turned round and a fifth of answers wrong" if mixed else "all right"
    )
