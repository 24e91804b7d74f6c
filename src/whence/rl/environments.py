"""Environments by name: how each is made, and that one policy can act in all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from whence.errors import InputError, brief, did_you_mean

if TYPE_CHECKING:
    from gymnasium import Env, Space

Make = Callable[[], "Env"]  # returns a new environment


def makers(envs: Mapping[str, str | Make], parameter: str, beside: Mapping[str, Make] | None = None) -> dict[str, Make]:
    """Return how each environment is made, by name, checked: all are made once and must share their spaces.

    ``beside``: environments that were checked before, whose spaces these must share too.
    """
    if not isinstance(envs, Mapping) or not envs:
        raise InputError(
            f"must map names to environments (Gymnasium ids, or functions that make one). Got {envs!r} instead.",
            parameter=parameter,
            of="Agents",
        )
    found = {str(name): maker(env, str(name)) for name, env in envs.items()}
    both = [*list((beside or {}).items())[:1], *found.items()]
    require_alike([(name, *_spaces(make, name)) for name, make in both])
    return found


def maker(env: str | Make, name: str) -> Make:
    """Return a function that makes the environment, from a Gymnasium id or such a function."""
    if callable(env):
        return env
    if not isinstance(env, str):
        raise InputError(
            f"The environment '{name}' must be a Gymnasium id or a function that makes an environment. Got {env!r}."
        )
    gymnasium = require_gymnasium()
    if ":" not in env and env not in gymnasium.registry:  # "module:id" is imported when it is made
        raise InputError(f"There is no environment '{env}'. {did_you_mean(env, gymnasium.registry)}")
    return functools.partial(gymnasium.make, env)


def require_alike(spaces: Sequence[tuple[str, Space[object], Space[object]]]) -> None:
    """Refuse environments whose observations or actions differ: one policy could not act in all of them."""
    (first, *wanted), *others = spaces
    for name, *own in others:
        for which, here, there in zip(("observation", "action"), own, wanted, strict=True):
            if here != there:
                raise InputError(
                    f"One policy must act in all environments, but the {which} space of '{name}' is {here} and that of "
                    f"'{first}' is {there}. Wrap them so that they are the same."
                )


def _spaces(make: Make, name: str) -> tuple[Space[object], Space[object]]:
    error = require_gymnasium().error
    try:
        env = make()
    except error.DependencyNotInstalled as missing:
        raise InputError(f"The environment '{name}' needs a package that is not installed: {missing}.") from missing
    except Exception as failed:
        raise InputError(f"The environment '{name}' could not be made: {brief(failed)}") from failed
    try:
        return env.observation_space, env.action_space
    except AttributeError as lacking:
        raise InputError(f"The environment '{name}' does not follow the API of Gymnasium: {lacking}.") from lacking
    finally:
        getattr(env, "close", lambda: None)()


def require_gymnasium() -> ModuleType:
    """Return the module, or say how to install it."""
    try:
        import gymnasium
    except ModuleNotFoundError:
        raise InputError('whence.rl needs Gymnasium: pip install "whence[rl]".') from None
    return gymnasium
