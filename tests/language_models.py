"""Tiny language models for tests of in-context learning: random weights, a tokenizer of a few words, and an oracle."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn

from whence.icl import Example, LanguageModel, Prompts
from whence.icl.language import import_transformers

transformers = import_transformers()

WORDS = ("good", "bad", "film", "plot", "dull", "fun", "a", "the", "very", "not")
VOCABULARY = ["<unk>", "<s>", "Text:", "Label:", "yes", "no", "maybe", *WORDS]
TINY = {
    "vocab_size": len(VOCABULARY), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3,
}  # fmt: skip


def tiny_tokenizer():
    words = Tokenizer(WordLevel({word: at for at, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="<s>")


def tiny_model(kind="llama", dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    if kind == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY, attn_implementation="eager"))
    else:
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**TINY, head_dim=8, attn_implementation="eager"))
    return model.to(dtype)


def examples(n, length=None, seed=0, prefix="d", labels=("no", "yes")):
    """Random texts, of so many words or of different lengths, with labels in turn."""
    rng = np.random.default_rng(seed)
    return [
        Example(
            " ".join(rng.choice(WORDS, length or rng.integers(1, 6))), labels[at % len(labels)], f"{prefix}{at + 1}"
        )
        for at in range(n)
    ]


def tiny(n_demos=6, n_queries=5, *, kind="llama", length=None, dtype=torch.float64, labels=("no", "yes"), **options):
    """A language model and prompts."""
    language = LanguageModel(tiny_model(kind, dtype), tiny_tokenizer(), **options)
    demos = examples(n_demos, length, labels=labels)
    queries = examples(n_queries, seed=1, prefix="q", labels=labels)
    return language, Prompts.of(language.encode, demos, queries, start=[1])


class InContextLearner:
    """A model that learns in context: each demonstration in the prompt votes for its label, by the words it shares.

    A little of the words' meaning is known beforehand, one label word is liked whatever the text, and there is noise.
    """

    def __init__(self, encode, meaning, *, known=0.5, bias=2.0, noise=0.5):
        self.encode, self.meaning, self.known, self.bias, self.noise = encode, meaning, known, bias, noise
        self.text, self.label = (encode(mark)[0] for mark in ("Text:", "Label:"))
        self.context = 1 << 20

    def check_length(self, n_tokens, shots):
        pass

    def after(self, prefix, queries, label_tokens):
        demos, current = [], []
        for token in [*prefix, self.text]:
            if token == self.text and current:
                *words, _, label = current
                demos.append((set(words), label))
                current = []
            elif token != self.text:
                current.append(token)
        found = []
        for query in queries:
            words = set(query) - {self.text, self.label}
            votes = {int(token): 0.0 for token in label_tokens}
            for shown, label in demos:
                votes[int(label)] += len(shown & words) / max(len(words), 1)
            rng = np.random.default_rng([len(prefix), *map(int, query), *map(int, prefix[-6:])])
            prior = self.known * sum(self.meaning.get(int(word), 0) for word in words)
            logits = np.array(list(votes.values())) + np.array([prior + self.bias, -prior])
            found.append(logits + self.noise * rng.normal(size=len(logits)))
        return torch.tensor(np.array(found))


class LinearInEmbeddings(nn.Module):
    """Logits that are a linear function of the embeddings of all tokens, different for every position."""

    def __init__(self, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.embedding = nn.Embedding.from_pretrained(normal(len(VOCABULARY), 8))
        self.weights = nn.Parameter(normal(64, 8, len(VOCABULARY)))
        self.config = SimpleNamespace(max_position_embeddings=64)

    def get_input_embeddings(self):
        return self.embedding

    def forward(self, input_ids=None, inputs_embeds=None, attention_mask=None, position_ids=None):
        embeds = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        embeds = embeds * attention_mask[..., None]
        return SimpleNamespace(logits=torch.einsum("bnd,bndv->bv", embeds, self.weights[position_ids])[:, None])
