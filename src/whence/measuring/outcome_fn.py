"""Outcome functions: the contract between `whence.measure` and the function it calls.

An outcome function maps subsets of tasks to numbers. Any function of ``(subset, seed)`` is one, and so is any object
that has a method ``__call__(subset, seed)`` or ``batch(subsets, seeds)``, with whichever of the attributes below it
has. `OutcomeFn` lists them all with their defaults: inherit from it to be complete, or leave it to `as_outcome_fn`, the
only place that looks at what an object has. The conformance table of the tests runs all outcome functions of the
library; one line there adds another.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Protocol

import numpy as np

from whence.arrays import Floats, Integers
from whence.errors import InputError
from whence.outcomes import Outcomes
from whence.outcomes.checks import Directions, listed
from whence.outcomes.subset import Subset

BATCH_SIZE = 64
_SAID = ("task_names", "maximize", "provenance", "replicates", "batch_size", "batch", "tuned", "check")


class Batched(Protocol):
    """Object that measures many subsets in one call; see `OutcomeFn`."""

    @property
    def batch(self) -> Callable[[Floats, Integers], object]:
        """From arrays (m, K) and (m,) to ``{metric: (m,) or (m, T)}``."""
        ...


Measurable = Callable[[Subset, int], object] | Batched


class OutcomeFn:
    """Outcome function, with its own metadata.

    A subclass defines ``__call__``, or ``batch``, or both; everything else is optional.

    Attributes
    ----------
    task_names : sequence of str or None
        Tasks, in the order of the columns of subsets; None if it works with any tasks.
    maximize : bool or sequence of str
        Metrics for which higher is better.
    provenance : mapping of str to str
        How the outcomes are made, in words; kept in the table.
    fingerprint : mapping of str to str, or None
        What the outcomes depend on (data, model, recipe), each as a digest or a short text: a run folder is resumed
        only if they are the same. None to find them by inspecting the function; see `whence.measuring.fingerprint`.
    batch : callable or None
        ``batch(subsets, seeds)`` from arrays (m, K) and (m,) to ``{metric: (m,) or (m, T)}``, called in this process;
        None if subsets are measured one by one.
    batch_size : int
        The largest m.
    replicates : int
        Default number of runs per subset; more than one if training is noisy.

    Examples
    --------
    >>> class Size(OutcomeFn):
    ...     task_names = ["code", "math"]
    ...     def __call__(self, subset, seed):
    ...         return {"size": subset.sum()}
    >>> as_outcome_fn(Size()).tuned(None).task_names
    ['code', 'math']
    """

    task_names: Sequence[str] | None = None
    maximize: Directions = ()
    provenance: Mapping[str, str] = {}
    fingerprint: Mapping[str, str] | None = None
    batch: Callable[[Floats, Integers], object] | None = None
    batch_size: int = BATCH_SIZE
    replicates: int = 1

    def __call__(self, subset: Subset, seed: int) -> object:
        """Outcomes of one subset: a number, an array, or ``{metric: number or array}``."""
        if self.batch is None:
            raise NotImplementedError(f"{name_of(self)} has neither __call__ nor batch.")
        found = self.batch(np.asarray(subset)[None], np.array([seed]))
        return {name: np.asarray(values)[0] for name, values in found.items()} if isinstance(found, Mapping) else found

    def tuned(self, runs: Outcomes) -> OutcomeFn:
        """A copy with its settings chosen by a few true runs; itself if it has none to choose."""
        return self

    def check(self, runs: Outcomes) -> object:
        """The result of a comparison with true runs, whose ``str`` is a verdict; None if nothing can be compared."""
        return None


class _Adapted(OutcomeFn):
    """Any function or object as an `OutcomeFn`."""

    def __init__(self, given: object) -> None:
        self.given = given
        self.__qualname__ = name_of(given)
        for name in _SAID:
            if (found := getattr(given, name, None)) is not None:
                setattr(self, name, found)

    @property
    def fingerprint(self) -> Mapping[str, str] | None:  # type: ignore[override]
        """Read only when needed: it may take long to compute."""
        return getattr(self.given, "fingerprint", None)

    def __call__(self, subset: Subset, seed: int) -> object:
        return self.given(subset, seed) if callable(self.given) else super().__call__(subset, seed)


def as_outcome_fn(function: object) -> OutcomeFn:
    """The given function or object as an `OutcomeFn`; anything else is refused.

    >>> as_outcome_fn(lambda subset, seed: 0.0).batch_size
    64
    >>> as_outcome_fn(3)
    Traceback (most recent call last):
    ...
    whence.errors.InputError: The 'outcome_fn' parameter of measure must be a function of (subset, seed), ... 3 instead.
    """
    if inspect.isclass(function) or not (callable(function) or callable(getattr(function, "batch", None))):
        raise InputError(
            "The 'outcome_fn' parameter of measure must be a function of (subset, seed), or an object with a method "
            f"batch(subsets, seeds). Got {function!r} instead."
        )
    found = function if isinstance(function, OutcomeFn) else _Adapted(function)
    _check(found)
    return found


def given(outcome_fn: OutcomeFn) -> object:
    """What the user gave to `as_outcome_fn`."""
    return outcome_fn.given if isinstance(outcome_fn, _Adapted) else outcome_fn


def _check(found: OutcomeFn) -> None:
    """Refuse attributes that break the contract, by name."""
    for name, value, wanted, good in (
        ("batch", found.batch, "a method", found.batch is None or callable(found.batch)),
        ("tuned", found.tuned, "a method", callable(found.tuned)),
        ("check", found.check, "a method", callable(found.check)),
        ("batch_size", found.batch_size, "an integer of at least 1", _is_count(found.batch_size)),
        ("replicates", found.replicates, "an integer of at least 1", _is_count(found.replicates)),
        ("provenance", found.provenance, "a mapping of names to text", isinstance(found.provenance, Mapping)),
    ):
        if not good:
            raise InputError(f"The '{name}' of the outcome function {name_of(found)} must be {wanted}. Got {value!r}.")
    if found.task_names is not None:
        listed(found.task_names)


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def name_of(outcome_fn: object) -> str:
    """Name of a function, of what a partial calls, or of the class of an object.

    >>> name_of(len), name_of(functools.partial(len))
    ('len', 'len')
    """
    while isinstance(outcome_fn, functools.partial):
        outcome_fn = outcome_fn.func
    return str(getattr(outcome_fn, "__qualname__", type(outcome_fn).__qualname__))


def check_signature(outcome_fn: OutcomeFn, subset: Subset) -> None:
    """Refuse, before anything starts, a function that cannot be called with a subset and a seed."""
    function = given(outcome_fn)
    assert callable(function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some built-in functions have no signature
    try:
        signature.bind(subset, 0)
    except TypeError as error:
        raise InputError(
            f"The outcome function must take a subset and a seed, as in {name_of(outcome_fn)}(subset, seed). "
            f"It takes {signature}."
        ) from error
