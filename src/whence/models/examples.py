"""Labelled examples in named groups: the tasks to train on, and the targets to evaluate on.

Tasks and targets are given as ``{name: (inputs, labels)}``. `Examples` stacks them once, so retraining, gradients and
merging all see the same rows in the same order, each with its group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map

from whence.errors import InputError, counted, some_of

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]  # with one row per example
Given = object  # Examples, {name: group} or a single group: (inputs, labels), or a dataset of such pairs or dicts
Collate = Callable[[list[Any]], object]  # examples of a dataset → (inputs, labels), or a dict with "labels"
LABELS = ("labels", "label")  # as the datasets and models of Hugging Face call them


@dataclass(frozen=True, eq=False, repr=False)
class Examples:
    """Inputs and labels of all groups, one row per example, group after group.

    >>> group = (torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    >>> Examples.of({"a": group, "b": group})
    Examples: 6 rows in 2 groups (a, b)
    """

    inputs: Inputs  # (n, ...) each
    labels: Tensor  # (n, ...)
    owner: Tensor  # (n,): index of the group of each row; ascending
    names: tuple[str, ...]  # of the groups

    @classmethod
    def of(cls, given: Given, what: str = "tasks", collate: Collate | None = None) -> Examples:
        """Examples of the given groups, by name or a single one, checked; ``what`` names them in errors.

        A group is ``(inputs, labels)`` with tensors of equal length, or a dataset of such pairs, or of dicts with
        "labels", as in Hugging Face. ``collate`` makes a batch from the examples of all datasets.
        """
        if isinstance(given, Examples):
            return given
        groups = dict(given) if isinstance(given, Mapping) and not is_group(given) else {what: given}
        if not groups:
            raise InputError(f"The {what} must have at least one group of examples. Got none.")
        groups = _collated({str(name): group for name, group in groups.items()}, what, collate)
        parts = {name: _pair(group, f"{what}[{name!r}]") for name, group in groups.items()}
        _check_same_form(parts, what)
        sizes = torch.tensor([len(labels) for _, labels in parts.values()])
        inputs, labels = zip(*parts.values(), strict=True)
        return cls(
            inputs=tree_map(lambda *leaves: torch.cat(leaves), *inputs),
            labels=torch.cat(labels),
            owner=torch.repeat_interleave(torch.arange(len(parts)), sizes),
            names=tuple(parts),
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        groups = counted(len(self.names), "group")
        return f"Examples: {counted(len(self), 'row')} in {groups} ({some_of(self.names)})"

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of examples in each group, (K,)."""
        return np.bincount(self.owner.cpu().numpy(), minlength=len(self.names))

    def rows(self, index: Tensor | slice) -> tuple[Inputs, Tensor]:
        """Inputs and labels of some rows."""
        return tree_map(lambda leaf: leaf[index], self.inputs), self.labels[index]

    def sample(self, most: int, seed: int = 0) -> Examples:
        """At most this many examples of each group, drawn at random."""
        generator = torch.Generator().manual_seed(seed)
        owner = self.owner.cpu()
        rows = [(owner == k).nonzero()[:, 0] for k in range(len(self.names))]
        kept = torch.cat([mine[torch.randperm(len(mine), generator=generator)[:most]] for mine in rows])
        kept = kept.to(self.labels.device)
        return Examples(*self.rows(kept), self.owner[kept], self.names)

    def standing_for(self, names: Sequence[str]) -> Examples:
        """One of these examples as a placeholder for each name, for tasks without examples."""
        if len(set(names)) < len(names):
            raise InputError(f"The names of the tasks must differ. Got {some_of(names)}.")
        index = torch.zeros(len(names), dtype=torch.long, device=self.labels.device)
        return Examples(*self.rows(index), torch.arange(len(names), device=index.device), tuple(names))

    def blocks(self, size: int) -> Iterator[slice]:
        """Slices that cover all rows in order, at most ``size`` at a time."""
        return (slice(start, min(start + size, len(self))) for start in range(0, len(self), size))

    def to(self, device: torch.device | str) -> Examples:
        """The same examples on another device."""
        inputs = tree_map(lambda leaf: leaf.to(device), self.inputs)
        return Examples(inputs, self.labels.to(device), self.owner.to(device), self.names)


def names_alone(given: Given) -> TypeGuard[Sequence[str]]:
    """Whether tasks are given as names, without examples."""
    return isinstance(given, list | tuple) and len(given) > 0 and all(isinstance(name, str) for name in given)


def is_group(given: Mapping[str, object]) -> bool:
    """Whether a mapping is a batch of Hugging Face, and not groups by name."""
    return any(isinstance(given.get(name), Tensor | np.ndarray | list) for name in LABELS)


def _is_dataset(group: object) -> TypeGuard[torch.utils.data.Dataset[object]]:
    """Whether something has indexed examples, like datasets of torch and Hugging Face."""
    if isinstance(group, torch.utils.data.Dataset) or hasattr(group, "column_names"):
        return True
    return isinstance(group, list) and len(group) > 0 and isinstance(group[0], Mapping)


def _collated(groups: dict[str, object], what: str, collate: Collate | None) -> dict[str, object]:
    """The groups with each dataset replaced by one batch, all padded to the same length."""
    for name, group in groups.items():
        if isinstance(group, torch.utils.data.DataLoader):
            groups[name], collate = group.dataset, collate or group.collate_fn
    datasets = {name: group for name, group in groups.items() if _is_dataset(group)}
    if not datasets:
        return groups
    sizes = []
    for name, group in datasets.items():
        if not isinstance(group, Sized):
            raise InputError(f"{what}[{name!r}] is a stream without a length: give a dataset that has one.")
        if not len(group):
            raise InputError(f"{what}[{name!r}] has no examples: leave the task out, or give it some.")
        sizes.append(len(group))
    rows = [group[i] for group, size in zip(datasets.values(), sizes, strict=True) for i in range(size)]
    try:
        batch = (collate or torch.utils.data.default_collate)(rows)
    except Exception as error:
        fix = "" if collate else " Give a 'collate' function that pads them, such as a data collator of transformers."
        text = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:200]
        raise InputError(f"The examples of the {what} cannot be made into a batch ({text}).{fix}") from error
    inputs, labels = _split_labels(batch, what)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    if any(not isinstance(leaf, Tensor) or len(leaf) != starts[-1] for leaf in [*tree_flatten(inputs)[0], labels]):
        raise InputError(f"A batch of the {what} must hold tensors with a row for each of {starts[-1]} examples.")
    assert isinstance(labels, Tensor)
    for name, start, stop in zip(datasets, starts[:-1], starts[1:], strict=True):
        groups[name] = tree_map(lambda leaf, a=start, b=stop: leaf[a:b], inputs), labels[start:stop]
    return groups


def _split_labels(batch: object, what: str) -> tuple[object, object]:
    """Inputs and labels of a batch."""
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], batch[1]
    if isinstance(batch, Mapping):
        known = [name for name in LABELS if name in batch]
        if known:
            return {name: value for name, value in batch.items() if name != known[0]}, batch[known[0]]
        raise InputError(f"A batch of the {what} must have 'labels'. It has {some_of(batch)}.")
    raise InputError(
        f"A batch of the {what} must be a pair (inputs, labels), or a dict with 'labels'. Got {type(batch).__name__}."
    )


def _pair(group: object, where: str) -> tuple[Inputs, Tensor]:
    """Return (inputs, labels) of a group, as tensors."""
    if isinstance(group, Mapping):
        group = _split_labels(group, where)
    if not (isinstance(group, (tuple, list)) and len(group) == 2):
        several = isinstance(group, (tuple, list)) and all(isinstance(one, (tuple, list)) for one in group)
        hint = " To give several groups, name them: {'name': (inputs, labels), …}." if several and group else ""
        raise InputError(
            f"{where} must be a pair (inputs, labels) or a Dataset of such pairs. Got {type(group).__name__}.{hint}"
        )
    inputs, labels = tree_map(_tensor, group[0]), _tensor(group[1])
    leaves, _ = tree_flatten(inputs)
    if any(not isinstance(leaf, Tensor) or leaf.ndim == 0 for leaf in [*leaves, labels]) or not leaves:
        raise InputError(f"{where} must hold tensors (or arrays) with one row per example.")
    assert isinstance(labels, Tensor)
    if len({len(leaf) for leaf in [*leaves, labels]}) > 1:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in [*leaves, labels])
        raise InputError(f"{where} must have as many labels as inputs. Got shapes {shapes}.")
    if not len(labels):
        raise InputError(f"{where} has no examples: leave the task out, or give it some.")
    return inputs, labels


def _tensor(leaf: object) -> object:
    return torch.as_tensor(leaf) if isinstance(leaf, (np.ndarray, list)) else leaf


def _check_same_form(parts: Mapping[str, tuple[Inputs, Tensor]], what: str) -> None:
    """Refuse groups that cannot be stacked."""

    def form(part: tuple[Inputs, Tensor]) -> tuple[TreeSpec, list[tuple[tuple[int, ...], torch.dtype, torch.device]]]:
        leaves, spec = tree_flatten(part)
        return spec, [(tuple(leaf.shape[1:]), leaf.dtype, leaf.device) for leaf in leaves]

    (first, expected), *others = ((name, form(part)) for name, part in parts.items())
    for name, found in others:
        if found != expected:
            raise InputError(
                f"All groups of the {what} must have inputs and labels of one shape and type, so that they can be "
                f"stacked (pad sequences first). {first!r} has {expected[1]}, {name!r} has {found[1]}."
            )
