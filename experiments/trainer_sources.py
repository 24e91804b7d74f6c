r"""Your own ``transformers.Trainer``, a run per subset of sources: measured by whence, or imported from earlier runs.

``train(subset, seed)`` is all that ``whence measure`` needs. It fine-tunes a LoRA adapter on the files of the subset
and returns the loss on the target:

    MODEL_DIR=model DATA_DIR=data whence measure experiments/trainer_sources.py:train --tasks code,law,web \
        --design bernoulli:0.5 -n 20 --timeout 3600 -o run/
    whence attribute run/ --outcome loss

Runs that were made elsewhere need no callback: of each, whence wants which sources it had and what came out. Here that
is a folder per run with ``sources.json``, a list of names, and the ``trainer_state.json`` that Trainer saves:

    python experiments/trainer_sources.py runs/ runs.csv
    whence attribute runs.csv --outcome eval_loss

Files are JSONL with ``prompt`` and ``completion``; ``DATA_DIR/val.jsonl`` is the target.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from whence.icl.language import import_transformers

STEPS = int(os.environ.get("STEPS", "60"))


def train(subset: Any, seed: int) -> dict[str, float]:
    """Loss on the target after fine-tuning on the sources of the subset."""
    transformers = import_transformers()
    import peft

    data = Path(os.environ["DATA_DIR"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(os.environ["MODEL_DIR"])
    model = transformers.AutoModelForCausalLM.from_pretrained(os.environ["MODEL_DIR"])
    transformers.set_seed(seed)
    model = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(
            output_dir=os.environ.get("OUTPUT_DIR", "trainer_output"), max_steps=STEPS, learning_rate=2e-4, seed=seed,
            per_device_train_batch_size=8, save_strategy="no", report_to=[], disable_tqdm=True,
            use_cpu=not transformers.utils.is_torch_cuda_available(),
        ),
        train_dataset=[row for name in subset.tasks for row in rows(data / f"{name}.jsonl", tokenizer)],
        eval_dataset=rows(data / "val.jsonl", tokenizer),
        data_collator=padded,
    )  # fmt: skip
    if subset.tasks:
        trainer.train()
    return {"loss": trainer.evaluate()["eval_loss"]}


def rows(path: Path, tokenizer: Any) -> list[dict[str, list[int]]]:
    """Tokens and labels of the examples of a file; those of prompts are −100, which does not count."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        prompt, answer = (
            tokenizer(record[part], add_special_tokens=False).input_ids for part in ("prompt", "completion")
        )
        found.append({"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer})
    return found


def padded(batch: list[dict[str, list[int]]]) -> dict[str, Any]:
    """Examples of a batch, filled up to the length of the longest."""
    import torch

    length = max(len(row["input_ids"]) for row in batch)
    fill = {"input_ids": 0, "labels": -100}
    return {
        name: torch.tensor([row[name] + [value] * (length - len(row[name])) for row in batch])
        for name, value in fill.items()
    }


def imported(folder: Path) -> Any:
    """Table of the runs in a folder: a column per source, and what Trainer evaluated last."""
    import pandas as pd

    found = []
    for state in sorted(folder.glob("*/trainer_state.json")):
        history = json.loads(state.read_text(encoding="utf-8"))["log_history"]
        last = next(entry for entry in reversed(history) if "eval_loss" in entry)
        sources = json.loads((state.parent / "sources.json").read_text(encoding="utf-8"))
        found.append({**dict.fromkeys(sources, 1), "eval_loss": last["eval_loss"]})
    frame = pd.DataFrame(found)
    tasks = sorted(set(frame.columns) - {"eval_loss"})
    return frame[[*tasks, "eval_loss"]].fillna({task: 0 for task in tasks}).astype(dict.fromkeys(tasks, int))


if __name__ == "__main__":
    imported(Path(sys.argv[1])).to_csv(sys.argv[2], index=False)
