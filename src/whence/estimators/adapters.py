"""Low-rank adapters, merged as what they add to the weights.

An adapter adds B·A to a weight. Averaging the factors of several runs gives (mean B)·(mean A), which is not what the
runs have learned; the mean of the products is. It is a product again, of a higher rank: with all A on top of each other
and all B side by side, each with its coefficient, ``[c₁B₁ … c_K B_K]·[A₁; …; A_K] = Σ_k c_k B_k A_k``. So merging
makes no matrix of the size of the weight, and the model runs as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

FIRST, SECOND = "lora_A", "lora_B"  # as peft calls them; embeddings have lora_embedding_A and lora_embedding_B


def adapter_pairs(names: Iterable[str]) -> list[tuple[str, str]]:
    """Names of the two factors of each adapter of which both are there.

    Examples
    --------
    >>> adapter_pairs(["q.lora_A.default.weight", "q.lora_B.default.weight", "head.weight"])
    [('q.lora_A.default.weight', 'q.lora_B.default.weight')]
    """
    known = list(names)
    pairs = []
    for name in known:
        for first, second in ((FIRST, SECOND), ("lora_embedding_A", "lora_embedding_B")):
            parts = name.split(".")
            if first in parts:
                partner = ".".join(second if part == first else part for part in parts)
                if partner in known:
                    pairs.append((name, partner))
    return pairs


def merge_products(first: Tensor, second: Tensor, coefs: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of Σ_k c_k B_k A_k for m rows of coefficients.

    Parameters
    ----------
    first : tensor of shape (K, r, ...)
        A of each run.
    second : tensor of shape (K, out, r, ...)
        B of each run.
    coefs : tensor of shape (m, K)

    Returns
    -------
    tensors of shape (m, K·r, ...) and (m, out, K·r, ...)
        The first is the same for all rows, and takes the memory of one.

    Examples
    --------
    >>> import torch
    >>> A, B = torch.randn(3, 2, 5), torch.randn(3, 4, 2)
    >>> a, b = merge_products(A, B, torch.tensor([[0.5, 0.5, 0.0]]))
    >>> torch.allclose(b[0] @ a[0], (B[0] @ A[0] + B[1] @ A[1]) / 2, atol=1e-6)
    True
    """
    m, k = coefs.shape
    scaled = coefs.view(m, k, *[1] * (second.ndim - 1)) * second
    sides = scaled.movedim(1, 2).flatten(2, 3)
    return first.flatten(0, 1).expand(m, -1, *first.shape[2:]), sides
