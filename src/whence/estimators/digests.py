"""Digests of a problem: what tells its model, tasks and targets from others, for folders that must not mix them."""

from __future__ import annotations

from torch.utils._pytree import tree_leaves

from whence.gradients.store import fingerprint
from whence.models.examples import Examples
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


def problem_digests(problem: Problem) -> dict[str, str]:
    """Digests of all that outcomes depend on, apart from the method, by name."""
    return {
        "model": start_digest(problem),
        "trained": ", ".join(sorted(problem.trained)),
        "loss": type(problem.loss).__name__,
        "metrics": ", ".join(problem.metrics) + (" per query" if problem.per_query else ""),
        **{f"examples of {name}": found for name, found in group_digests(problem.tasks).items()},
        **{f"target {name}": found for name, found in group_digests(problem.targets).items()},
    }
