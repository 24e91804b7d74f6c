"""Frozen blocks below the first adapter: what they make of an example never changes, so it is computed once.

With adapters in the last blocks only, a run, a gradient or a merge then takes just the passes through these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import InputError
from whence.icl.language import import_transformers


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of a model of transformers, in the order in which they run."""
    kind = import_transformers().modeling_layers.GradientCheckpointingLayer
    return [block for block in model.modules() if isinstance(block, kind)]


def last_blocks(model: nn.Module, layers: int) -> list[int]:
    """Numbers of the last so many blocks."""
    n = len(blocks_of(model))
    if isinstance(layers, bool) or not isinstance(layers, int) or not 1 <= layers <= n:
        raise InputError(
            f"must be a whole number from 1 to {n}, the blocks of the model. Got {layers!r} instead.",
            parameter="layers", of="hf.load",
        )  # fmt: skip
    return list(range(n - layers, n))


def up_to_first_trained(model: nn.Module) -> list[nn.Module]:
    """The frozen blocks below the first trained one, and that one; none if anything before the blocks is trained."""
    embeddings: Any = getattr(model, "get_input_embeddings", lambda: None)()
    blocks = blocks_of(model)
    trained = [at for at, block in enumerate(blocks) if _trained(block)]
    if embeddings is None or _trained(embeddings) or not trained:
        return []
    return blocks[: trained[0] + 1]


@torch.no_grad()
def states_below(model: nn.Module, blocks: list[nn.Module], input_ids: Tensor) -> Tensor:
    """What the last of these blocks is given for some tokens (n, L): hidden states (n, L, d)."""
    found: list[Tensor] = []

    def stop(block: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        found.append(args[0] if args else kwargs["hidden_states"])
        raise _Reached

    hook = blocks[-1].register_forward_pre_hook(stop, with_kwargs=True)
    try:
        model(input_ids=input_ids, use_cache=False)
    except _Reached:
        pass
    finally:
        hook.remove()
    return found[0]


@contextmanager
def starting_at(blocks: list[nn.Module], states: Tensor) -> Iterator[None]:
    """Let the last of these blocks see the given hidden states, and those below do nothing."""

    def replace(
        block: nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[object, ...], dict[str, Any]]:
        return ((states, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": states})

    own = [block.__dict__.get("forward") for block in blocks[:-1]]
    for block in blocks[:-1]:
        block.forward = _pass_on
    hook = blocks[-1].register_forward_pre_hook(replace, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
        for block, forward in zip(blocks[:-1], own, strict=True):
            del block.forward
            if forward is not None:
                block.forward = forward


class _Reached(Exception):  # noqa: N818 - nothing went wrong
    """The block whose input is wanted has been reached."""


def _pass_on(hidden_states: Tensor, *args: object, **kwargs: object) -> Tensor:
    return hidden_states


def _trained(module: nn.Module) -> bool:
    return any(value.requires_grad for value in module.parameters())
