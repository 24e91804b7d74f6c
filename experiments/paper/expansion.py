"""How far outputs are from their first-order expansion, relative to the outputs and to how they change."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def relative(before: Tensor, slope: Tensor, after: Tensor) -> dict[str, float]:
    """Mean and standard deviation over examples of both errors, from outputs (n, C) and their slope."""
    gap, found = (after - before - slope).norm(dim=1), {}
    for kind, size in {"outputs": after, "change": after - before}.items():
        each = gap / size.norm(dim=1).clamp_min(1e-12)
        found |= {f"of_{kind}": float(each.mean()), f"of_{kind}_std": float(each.std())}
    return found


@torch.no_grad()
def expanded(outputs: Callable, here, there) -> dict[str, float]:
    """Errors of the expansion at one point (tensors by name, or one tensor), at another."""
    step = {name: there[name] - value for name, value in here.items()} if isinstance(here, dict) else there - here
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        before, slope = torch.func.jvp(outputs, (here,), (step,))
        return relative(before, slope, outputs(there))


def errors(start: nn.Module, moved: nn.Module, inputs: Tensor) -> dict[str, float]:
    """Errors of the linear model at the start, of where its weights have moved."""
    here, there = (dict(model.named_parameters()) for model in (start, moved))
    return expanded(lambda at: torch.func.functional_call(start, at, (inputs,)), here, there)
