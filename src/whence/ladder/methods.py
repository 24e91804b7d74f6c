"""The table of methods: from gradients at the start to true runs, each an outcome function of a Problem.

A new one is a line in `METHODS`, one in `PROBES` (probes.py) and one in `EXPECTED` (advice.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from whence.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from whence.measuring.outcome_fn import Measurable
    from whence.models.problem import Problem
    from whence.models.recipe import Recipe

QUARTERS = (0.25, 0.5, 0.75, 1.0)  # of a run
RETURNS = "a whence.Problem, or (problem, recipe), or (problem, recipe, {method: options})"


@dataclass(frozen=True)
class Method:
    """A method of measuring or estimating outcomes."""

    trust: str  # what it is good for
    make: Callable[..., Measurable]  # make(problem, recipe, **options) returns the outcome function
    trains: bool = True  # whether it takes a recipe
    kind: str = "estimates"  # or "truth", or "scores" of one joint run


def _home(name: str, *args: object, **options: object) -> Measurable:
    """Make an object of a class of the package, which is loaded on first use."""
    import whence

    made: Measurable = getattr(whence, name)(*args, **options)
    return made


def _gradex(problem: Problem, recipe: Recipe | None, **options: object) -> Measurable:
    usual = {} if recipe is None else {"weighting": recipe.weighting}
    return _home("GradEx", problem, **{**usual, **options})


def _along(problem: Problem, recipe: Recipe, **options: Any) -> Measurable:
    import whence

    return whence.GradEx.along(problem, recipe, **options)


def _scores(method: str, trust: str, **usual: object) -> Method:
    def make(problem: Problem, recipe: Recipe, **own: object) -> Measurable:
        return _home("JointScores", problem, recipe, method, **{**usual, **own})

    return Method(trust, make, kind="scores")


METHODS = {
    "one-step": Method("the start of a training: tens of steps", partial(_home, "OneStep"), trains=False),
    "gradex": Method(
        "a model linear in what is trained, or nearly so: heads, small changes", _gradex, trains=False
    ),
    "gradex-along": Method(
        "one run, then gradients along it: if linearising at the start is not enough", _along
    ),
    "influence": _scores("influence", "one run, then influence functions halfway: the first thing to fuse"),
    "influence-along": _scores("influence", "the same at every quarter of the run, averaged", at=QUARTERS),
    "trak": _scores("trak", "one run, then projected gradients halfway: less memory, large models"),
    "trak-along": _scores("trak", "the same at every quarter of the run, averaged", at=QUARTERS),
    "tracin": _scores("tracin", "one run, then gradient products along it: plain SGD"),
    "source": _scores("source", "one run, unrolled in segments: SGD, not trained to the end"),
    "bif": _scores("bif", "small models at a minimum: covariances of losses around it"),
    "merge": Method("fine-tuning that stays near its start", partial(_home, "TaskVectors")),
    "retrain": Method("always: true runs, up to the noise of a seed", partial(_home, "Retrain"), kind="truth"),
}  # fmt: skip


@dataclass(frozen=True)
class Setup:
    """What a user's ``problem()`` gives: a problem, how its model is trained, and options of methods."""

    problem: Problem
    recipe: Recipe | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, given: object) -> Setup:
        """Return the setup of what a function has returned, checked.

        Examples
        --------
        >>> Setup.of({"model": 1, "tasks": {}})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        whence.errors.InputError: The function must return a whence.Problem, or (problem, recipe), or ...
        """
        from whence.models.problem import Problem
        from whence.models.recipe import Recipe

        if isinstance(given, Setup):
            return given
        parts = given if isinstance(given, (tuple, list)) else (given,)
        if not 1 <= len(parts) <= 3 or not isinstance(parts[0], Problem):
            found = ", ".join(type(part).__name__ for part in parts)
            raise InputError(f"The function must return {RETURNS}. Got {found or 'nothing'} instead.")
        made = cls(*parts)
        if not (made.recipe is None or isinstance(made.recipe, Recipe)):
            raise InputError(f"The recipe must be a whence.Recipe or None. Got {type(made.recipe).__name__} instead.")
        if not isinstance(made.options, Mapping):
            raise InputError(f"The options must be a mapping by method. Got {type(made.options).__name__} instead.")
        if odd := [name for name in made.options if name not in METHODS]:
            raise InputError(f"There is no method '{odd[0]}' to give options to. {did_you_mean(str(odd[0]), METHODS)}")
        return made


def make_estimator(setup: Setup, method: str, **options: object) -> Measurable:
    """Return the outcome function of a method for a problem; options of the setup go before those given here."""
    if method not in METHODS:
        raise InputError(f"There is no method '{method}'. {did_you_mean(method, METHODS)}")
    if setup.recipe is None and METHODS[method].trains:
        raise InputError(f"The method '{method}' needs a recipe to train with: return (problem, recipe).")
    return METHODS[method].make(setup.problem, setup.recipe, **{**options, **setup.options.get(method, {})})


def make_estimators(
    setup: Setup, options: Mapping[str, Mapping[str, object]], *, run: str | os.PathLike[str] | None = None
) -> dict[str, Measurable]:
    """Return outcome functions of some methods, each with its options; scores share a joint run, kept in a folder."""
    shared: dict[str, object] = {}
    if setup.recipe is not None and any(METHODS[name].kind == "scores" for name in options):
        from whence.baselines.run import JointRun

        joint = JointRun(setup.problem, setup.recipe, run)
        _ = joint.folder  # one of something else is refused before anything is made
        shared = {"run": joint}
    return {
        name: make_estimator(setup, name, **own, **(shared if METHODS[name].kind == "scores" else {}))
        for name, own in options.items()
    }
