"""Fine-tuning of language models: which sources of text help a target, which hurt, and which to train on.

Tasks are sources of text, a subset is a training set, and its outcome is the loss on the targets after fine-tuning an
adapter. The flow, and where each step lives::

    sources.py       JSONL files and datasets as named sources; what targets and sources have in common
    chats.py         what the chat template of a tokenizer writes, and where in it a turn is
    tokens.py        examples as tokens, of which those of answers are trained
    classes.py       what is different for sequence classifiers
    completions.py   a language model as a module with one output; many adapters over one frozen model
    adapters.py      a model loaded with a LoRA adapter, and the Problem of training it
    spending.py      what a budget is spent on: which estimates, and how many true runs
    folders.py       what is done with a folder of earlier runs
    mixing.py        all of it in one call: what a budget of runs tells, and the sources to use

`Prepared.problem` gives a `whence.Problem`, with which everything else works: retraining, merging, gradients,
baselines.
"""

from whence.hf.adapters import Adapted, Prepared, adapt, load, prepare
from whence.hf.mixing import Finetuned, finetune, verify
from whence.hf.sources import Leak, Record, Source, find_leaks, read_sources, sources_of, warn_of_leaks
from whence.hf.spending import Plan, plan_in_words, plan_of

__all__ = [
    "Adapted",
    "Finetuned",
    "Leak",
    "Plan",
    "Prepared",
    "Record",
    "Source",
    "adapt",
    "find_leaks",
    "finetune",
    "load",
    "plan_in_words",
    "plan_of",
    "prepare",
    "read_sources",
    "sources_of",
    "verify",
    "warn_of_leaks",
]
