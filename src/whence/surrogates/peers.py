"""The methods that whence is compared with, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from whence.errors import InputError, did_you_mean
from whence.evaluation import SizeOnly
from whence.outcomes import Outcomes
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.fit import fit
from whence.surrogates.kernel import KernelSurrogate
from whence.surrogates.model import SIZE_ONLY

Method = Callable[[Outcomes], Any]  # runs to learn from → a model
PEERS: dict[str, Callable[[], Any]] = {
    "tuned linear": AdditiveSurrogate,
    "least squares": lambda: AdditiveSurrogate("ols"),
    "lasso": lambda: AdditiveSurrogate("lasso"),
    "tuned kernel": KernelSurrogate,
    "paper kernel": lambda: KernelSurrogate(settings="paper"),
}

STANDARD = ("tuned linear", "paper kernel", SIZE_ONLY)  # where nothing else is asked for


def peers(names: Iterable[str], seed: int = 0) -> dict[str, Method]:
    """Return the methods of these names."""
    known: dict[str, Method] = {name: fitting(make(), seed) for name, make in PEERS.items()}
    known[SIZE_ONLY] = SizeOnly.fit
    wanted = list(names)
    if unknown := [name for name in wanted if name not in known]:
        raise InputError(f"There is no method {unknown[0]!r}. {did_you_mean(unknown[0], known)}")
    return {name: known[name] for name in wanted}


def fitting(surrogate: Any, seed: int = 0) -> Method:
    """Return the method that fits this surrogate, or any regressor in the style of scikit-learn."""
    return lambda train: fit(train, surrogate=surrogate, seed=seed)
