"""Digests of a problem: what tells its model, tasks and targets from others, for folders that must not mix them."""

from __future__ import annotations

import hashlib

from torch import nn
from torch.utils._pytree import tree_leaves

from whence.gradients.store import fingerprint
from whence.measuring.fingerprint import parts_of
from whence.models.callables import OwnMetric, PerExample
from whence.models.examples import Examples
from whence.models.losses import LOSSES, CrossEntropy
from whence.models.problem import Problem


def start_digest(problem: Problem) -> str:
    """Digest of all weights of the model, trained or not."""
    everything = {**problem.train_fn.fixed, **problem.start}
    return fingerprint(everything[name] for name in sorted(everything))


def group_digests(examples: Examples) -> dict[str, str]:
    """Digest of the examples of each group, by name."""
    found = {}
    for k, name in enumerate(examples.names):
        inputs, labels = examples.rows(examples.owner == k)
        found[name] = fingerprint([*tree_leaves(inputs), labels])
    return found


def loss_digest(problem: Problem) -> str:
    """What identifies a loss: its name, and for a user's own function what it depends on."""
    loss = problem.loss
    if isinstance(loss, PerExample):
        return f"{loss.name} {_function_digest(loss.given)}"
    if loss in LOSSES.values():
        return type(loss).__name__
    return repr(loss) if isinstance(loss, CrossEntropy) else f"{type(loss).__name__} {_function_digest(loss)}"


def _function_digest(function: object) -> str:
    """Digest of the source and settings of a function or module."""
    settings = sorted(parts_of(function))
    buffers = list(function.buffers()) if isinstance(function, nn.Module) else []
    found = hashlib.sha256(repr(settings).encode())
    found.update(fingerprint(buffers).encode())
    return found.hexdigest()[:16]


def problem_digests(problem: Problem) -> dict[str, str]:
    """Digests of all that outcomes depend on, apart from the method, by name."""
    return {
        "model": start_digest(problem),
        "trained": ", ".join(sorted(problem.trained)),
        "loss": loss_digest(problem),
        "metrics": ", ".join(problem.metrics) + (" per query" if problem.per_query else ""),
        **{
            f"metric {name}": _function_digest(metric.function)
            for name, metric in problem.metrics.items()
            if isinstance(metric, OwnMetric)
        },
        **{f"examples of {name}": found for name, found in group_digests(problem.tasks).items()},
        **{f"target {name}": found for name, found in group_digests(problem.targets).items()},
    }
