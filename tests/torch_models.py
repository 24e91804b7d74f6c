"""Small models and data for tests of what works on models."""

import torch
from torch import nn


class Attention(nn.Module):
    """Tokens and places, one head of attention, a norm, a head."""

    def __init__(self, tokens=7, width=8, outputs=3):
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width, padding_idx=0), nn.Embedding(5, width)
        self.mix, self.norm, self.head = nn.Linear(width, 3 * width), nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, x):
        h = self.token(x) + self.place(torch.arange(x.shape[1]))
        q, k, v = self.mix(h).chunk(3, dim=-1)
        return self.head(self.norm(h + nn.functional.scaled_dot_product_attention(q, k, v))[:, -1])


class Tied(nn.Module):
    """An embedding that is also the head."""

    def __init__(self):
        super().__init__()
        self.token, self.norm, self.head = nn.Embedding(6, 4), nn.RMSNorm(4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.token.weight

    def forward(self, x):
        return self.head(self.norm(self.token(x)).mean(1))


def images():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 2),
        nn.GroupNorm(2, 4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3),
    )  # fmt: skip


def perceptron(width=6):
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))


def signals():
    return nn.Sequential(nn.Conv1d(2, 3, 3, dilation=2), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(12, 2))


def _tokens(n, generator):
    return torch.randint(1, 6, (n, 5), generator=generator)


MODELS = {
    "perceptron": (perceptron, lambda n, g: torch.randn(n, 4, generator=g)),
    "images": (images, lambda n, g: torch.randn(n, 2, 6, 6, generator=g)),
    "signals": (signals, lambda n, g: torch.randn(n, 2, 8, generator=g)),
    "attention": (Attention, _tokens),
    "tied": (Tied, _tokens),
}


def made(name, n=9, seed=0):
    """Return the model in evaluation mode with settled statistics, inputs, and labels."""
    build, draw = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build()
        generator = torch.Generator().manual_seed(seed + 1)
        model.train()(draw(16, generator))
    inputs = draw(n, generator)
    width = model.eval()(inputs).shape[1]
    return model, inputs, torch.randint(width, (n,), generator=generator)
