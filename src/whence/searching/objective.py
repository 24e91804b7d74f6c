"""What a search maximises: one target, several with the same direction, or a weighted sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from whence.errors import InputError, did_you_mean
from whence.outcomes.checks import Directions, as_directions
from whence.surrogates.kernels import Array


@dataclass(frozen=True)
class Objective:
    """From values of targets (n, T) to what the goal optimises; see `whence.Search`."""

    goal: str
    target: str | None = None
    weights: Mapping[str, float] | None = None

    def goodness(self, values: Array, targets: tuple[str, ...], maximize: Directions) -> Array:
        """Return what is maximised (n, 1), or for other goals the standardised targets (n, T)."""
        if not targets or np.isnan(values).all():
            return np.zeros((len(values), 1))
        if self.goal == "best":
            return np.asarray(values @ self.signed_weights(targets, maximize), np.float64)[:, None]
        at = [self._place(self.target, targets)] if self.target else list(range(len(targets)))
        spread = np.nanstd(values[:, at], axis=0)
        return np.asarray((values[:, at] - np.nanmean(values[:, at], axis=0)) / np.where(spread > 0, spread, 1.0))

    def signed_weights(self, targets: tuple[str, ...], maximize: Directions) -> Array:
        """Return the signed weight of every target, (T,)."""
        sign = np.where(as_directions(maximize, targets), 1.0, -1.0)
        share = np.zeros(len(targets))
        if self.weights is not None:
            for name, weight in self.weights.items():
                share[self._place(name, targets)] = weight
            if not (np.isfinite(share).all() and (share >= 0).all() and share.any()):
                raise InputError("must be zero or more, and not all zero.", parameter="weights", of="search")
            return np.asarray(sign * share)
        share[self._place(self.target, targets) if self.target else slice(None)] = 1.0
        if len(set(sign[share > 0])) > 1:
            raise InputError(
                "Some targets are to be maximised and some minimised. Weight them with {weights}, "
                "or name the one to optimise with {target}; the runs that are made are kept.",
                weights=None,
                target=None,
            )
        return np.asarray(sign * share / share.sum())

    @staticmethod
    def _place(name: str, targets: tuple[str, ...]) -> int:
        if name not in targets:
            raise InputError(f"There is no target {name!r}. {did_you_mean(name, targets)}")
        return targets.index(name)

    def shown(self, goodness: float, targets: tuple[str, ...], maximize: Directions) -> str:
        """Return a goodness as text, with the sign of the measured value."""
        up = self.weights or self.signed_weights(targets, maximize).sum() > 0
        return f"{goodness if up else -goodness:.4g}"
