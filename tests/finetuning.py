"""Tiny fine-tuning problems for tests: a Llama of random weights, and sources of a few words."""

from __future__ import annotations

import json

import numpy as np
import torch

from language_models import WORDS, tiny_model, tiny_tokenizer

CHAT = (
    "{% for m in messages %}{{ m['role'] == 'user' and 'Text: ' or 'Label: ' }}{{ m['content'] }} <s> {% endfor %}"
    "{% if add_generation_prompt %}Label: {% endif %}"
)


def tokenizer(*, chat=False):
    made = tiny_tokenizer()
    made.chat_template = CHAT if chat else None
    return made


def save_model(folder, *, chat=False, dtype=torch.float32):
    """A model folder, as ``save_pretrained`` writes it."""
    tiny_model(dtype=dtype).save_pretrained(folder)
    tokenizer(chat=chat).save_pretrained(folder)
    return folder


def texts(n, seed, flip=False):
    """Texts with the label that their words have ("good" or "fun": yes), or the other one."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        words = list(rng.choice(WORDS, 4))
        label = ("yes", "no")[(sum(word in ("good", "fun", "plot") for word in words) > 1) == flip]
        rows.append({"text": " ".join(words), "label": label})
    return rows


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_sources(folder, n_good=3, n_bad=2, n=12):
    """Files of sources that answer yes, and of others that answer no, and of a target that answers yes."""
    folder.mkdir(exist_ok=True)
    rows = {f"good{k}": [{**row, "label": "yes"} for row in texts(n, k)] for k in range(n_good)}
    rows |= {f"bad{k}": [{**row, "label": "no"} for row in texts(n, 50 + k)] for k in range(n_bad)}
    files = [write_jsonl(folder / f"{name}.jsonl", own) for name, own in rows.items()]
    return files, write_jsonl(folder / "val.jsonl", [{**row, "label": "yes"} for row in texts(20, 99)])


def tiny_adapted(**how):
    from whence.hf import adapt

    chat = how.pop("chat", False)
    return adapt(tiny_model(dtype=how.pop("dtype", torch.float32)), tokenizer(chat=chat), **how)


def tiny_prepared(n_tasks=2, n=6, *, per_query=False, **how):
    """Sources that answer yes or no, whatever the text, and a target that answers yes."""
    from whence.hf import prepare, sources_of

    rows = [{**row, "label": ("yes", "no")[k % 2], "source": f"s{k}"} for k in range(n_tasks) for row in texts(n, k)]
    asked = [{**row, "label": "yes", "source": "val"} for row in texts(4, 99)]
    return prepare(tiny_adapted(**how), sources_of(rows), sources_of(asked), per_query=per_query)


def tiny_problem(n_tasks=2, n=6, *, accuracy=False, **how):
    return tiny_prepared(n_tasks, n, **how).problem(accuracy=accuracy)
