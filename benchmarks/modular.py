"""Modular arithmetic as in the paper's appendix: the model, the 25 groups of examples, and a pretrained point.

a + b and a² + ab + b² modulo 97 for all pairs, 90% to train on and 10% to test; groups by ⌊a/20⌋ and ⌊b/20⌋; a
decoder-only transformer of two layers and width 128 predicts the result from the tokens a, op, b, =.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    import whence

P = 97
OPERATIONS = {
    "addition": lambda a, b: (a + b) % P,
    "quadratic": lambda a, b: (a * a + a * b + b * b) % P,
    "difference": lambda a, b: (a - b) % P,
    "product": lambda a, b: (a * b) % P,
    "squares": lambda a, b: (a * a + b * b) % P,
}
OTHERS = ("difference", "product", "squares")  # what a pretrained model has seen


class Layer(nn.Module):
    """Causal attention and a feed-forward part, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rise, self.fall = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, last: int = 0) -> Tensor:
        """Hidden states of all positions, or of the last so many."""
        n, t, d = x.shape
        q, k, v = self.attend(self.norm_1(x)).view(n, t, 3, self.heads, d // self.heads).unbind(2)
        x, q = x[:, -last:], q[:, -last:] * (d // self.heads) ** -0.5
        # Products of all pairs, (n, query, key, head, …): batches of 4 × 4 matrices would be far slower on a GPU.
        scores = (q[:, :, None] * k[:, None]).sum(-1)
        future = torch.triu(torch.ones(t, t, dtype=torch.bool, device=x.device), 1)[-last:, :, None]
        shares = scores.masked_fill(future, float("-inf")).softmax(2)
        x = x + self.mix((shares[..., None] * v[:, None]).sum(2).flatten(2))
        return x + self.fall(nn.functional.gelu(self.rise(self.norm_2(x))))


class Transformer(nn.Module):
    """Decoder-only transformer; returns the logits of the result at the last position."""

    def __init__(self, width: int = 128, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(P + len(OPERATIONS) + 1, width), nn.Embedding(4, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, P)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.token(x) + self.place(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers[:-1]:
            h = layer(h)
        return self.head(self.norm(self.layers[-1](h, last=1)[:, -1]))


def equations(operation: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens (n, 4), results (n,) and the group of each equation (n,)."""
    a, b = torch.meshgrid(torch.arange(P), torch.arange(P), indexing="ij")
    a, b = a.flatten(), b.flatten()
    op = torch.full_like(a, P + list(OPERATIONS).index(operation))
    equals = torch.full_like(a, P + len(OPERATIONS))
    return torch.stack([a, op, b, equals], dim=1), OPERATIONS[operation](a, b), (a // 20) * 5 + b // 20


def tasks_and_target(operation: str, seed: int = 0) -> tuple[dict[str, tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    """Return the 25 groups of training equations, and the held-out tenth as the target."""
    tokens, results, group = equations(operation)
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(seed))
    test, train = order[: len(order) // 10], order[len(order) // 10 :]
    mine = {f"g{k // 5}{k % 5}": train[group[train] == k] for k in range(25)}
    return {name: (tokens[rows], results[rows]) for name, rows in mine.items()}, (tokens[test], results[test])


def initial(seed: int, device: str = "cpu", **size: int) -> Transformer:
    """Return a model with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Transformer(**size).to(device)


def trained(model: nn.Module, tasks, recipe: whence.Recipe, subset=None, seed: int = 0, steps=None) -> nn.Module:
    """Return a copy of the model after training on a subset of the tasks, or on all; maybe the first steps only."""
    # Environments that have a peer and no whence take the model alone from here.
    from whence.models.problem import Problem
    from whence.models.stack import Stack
    from whence.models.training import train

    stack = Stack(Problem(model, tasks, next(iter(tasks.values()))), batched=False)
    chosen = np.ones((1, len(tasks))) if subset is None else np.asarray(subset, dtype=float)[None]
    end = train(stack, recipe, stack.start(1), chosen, np.array([seed]), steps)
    moved = copy.deepcopy(model)
    moved.load_state_dict({name: value[0] for name, value in end.items()}, strict=False)
    return moved


def pretrained(device: str = "cpu", steps: int = 3000, **size: int) -> nn.Module:
    """Return a model that has learned three other operations."""
    import whence

    tasks = {name: equations(name)[:2] for name in OTHERS}
    recipe = whence.Recipe(steps=steps, lr=1e-3, batch_size=512, weight_decay=0.1, warmup=steps // 40)
    return trained(initial(0, device, **size), tasks, recipe)
