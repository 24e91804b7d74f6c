"""Environments by name, and episodes of a policy in one of them: what it is judged by."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whence.arrays import Floats, Integers
from whence.errors import InputError, brief, did_you_mean, needed, whole_number

if TYPE_CHECKING:
    from gymnasium import Env, Space
    from gymnasium.vector import VectorEnv


Make = Callable[[], "Env"]  # returns a new environment
Act = Callable[[NDArray[Any]], ArrayLike]  # from observations (n, …) to actions (n, …)

SUCCESS = ("success", "is_success")  # keys in the info of an environment


class Predicts(Protocol):
    """A policy as in Stable-Baselines3."""

    def predict(self, observation: NDArray[Any], *, deterministic: bool) -> tuple[ArrayLike, object]:
        """Actions, and the state of a recurrent policy."""
        ...


Policy = Act | Predicts


@dataclass(frozen=True)
class Episodes:
    """Return, length and success of every episode, (n,); success is NaN if the environment does not report it."""

    returns: Floats
    lengths: Floats
    success: Floats


def rollout(
    policy: Policy,
    env: str | Make,
    *,
    episodes: int = 20,
    seed: int = 0,
    max_steps: int = 1000,
    copies: int | None = None,
    processes: bool = False,
) -> Episodes:
    """Return what a policy reaches in whole episodes of an environment.

    Parameters
    ----------
    policy : callable, or object with a method ``predict``
        From a batch of observations (n, …) to a batch of actions (n, …); ``predict(observations, deterministic=True)``
        as in Stable-Baselines3.
    env : str or callable
        Gymnasium id, or a function that makes an environment.
    episodes : int
        Number of episodes.
    seed : int
        Same seed, same starts.
    max_steps : int
        Steps after which an episode is cut off.
    copies : int, optional
        Environments to run side by side, with one batch of actions for all; by default one per episode, up to 20.
    processes : bool
        Step every copy in its own process: for environments that are slow to step.

    Examples
    --------
    >>> import numpy as np
    >>> found = rollout(lambda seen: (seen[:, 2] + seen[:, 3] > 0).astype(int), "CartPole-v1", episodes=4)
    >>> bool((found.returns > 150).all()), found.returns.shape
    (True, (4,))
    """
    require_gymnasium()
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
    from gymnasium.wrappers import TimeLimit

    for name, number in (("episodes", episodes), ("max_steps", max_steps)):
        whole_number(number, name, of="rollout")
    act, make = acting(policy), maker(env, str(env))
    n = min(episodes, copies or 20)
    made = (AsyncVectorEnv if processes else SyncVectorEnv)([lambda: TimeLimit(make(), max_steps)] * n)
    quota = np.full(n, episodes // n) + (np.arange(n) < episodes % n)
    try:
        finished = _play(made, act, quota, seed)
    finally:
        made.close()
    return Episodes(*(np.array(column, np.float64) for column in zip(*finished, strict=True)))


def _play(envs: VectorEnv, act: Act, quota: Integers, seed: int) -> list[tuple[float, ...]]:
    """Play until every copy has finished its quota of episodes, and return them copy by copy."""
    n = len(quota)
    done: list[list[tuple[float, ...]]] = [[] for _ in range(n)]
    total, length, success = np.zeros(n), np.zeros(n), np.full(n, np.nan)
    ended = np.zeros(n, bool)
    seen, _ = envs.reset(seed=np.random.SeedSequence(seed).generate_state(n).tolist())
    while any(len(own) < most for own, most in zip(done, quota, strict=True)):
        anew = ended  # a copy that has ended starts anew with the next step, whatever the action
        seen, reward, terminated, truncated, info = envs.step(_checked(act(seen), envs))
        if not np.isfinite(reward).all():
            raise InputError("The environment returned a reward that is not a number (NaN or infinite).")
        total, length = np.where(anew, 0, total + reward), np.where(anew, 0, length + 1)
        success = np.where(anew, np.nan, np.fmax(success, _success(info, n)))
        ended = terminated | truncated
        for copy in np.flatnonzero(ended):
            done[copy].append((total[copy], length[copy], success[copy]))
    return [episode for own, most in zip(done, quota, strict=True) for episode in own[:most]]


def _success(info: Mapping[str, ArrayLike], n: int) -> Floats:
    """Success that each copy reports in this step; NaN if it reports none."""
    for key in SUCCESS:
        if key in info:
            known = info.get(f"_{key}", np.ones(n, bool))
            return np.where(known, np.asarray(info[key], np.float64), np.nan)
    return np.full(n, np.nan)


def acting(policy: Policy) -> Act:
    """Return a policy as a function from observations to actions."""
    if callable(predict := getattr(policy, "predict", None)):
        return lambda seen: predict(seen, deterministic=True)[0]
    if not callable(policy):
        raise InputError(
            "A policy must be a function from observations to actions, or have a method 'predict'. "
            f"Got {type(policy).__name__} instead."
        )

    def act(seen: NDArray[Any]) -> ArrayLike:
        actions: Any = policy(seen)  # an array, or a tensor
        return actions.detach().cpu().numpy() if callable(getattr(actions, "detach", None)) else actions  # type: ignore[no-any-return]

    return act


def _checked(actions: ArrayLike, envs: VectorEnv) -> NDArray[Any]:
    """Return actions as the environments take them, refusing NaN, wrong shapes and actions that do not exist."""
    found, space = np.asarray(actions), envs.action_space
    if found.shape != space.shape:
        raise InputError(
            f"A policy must return an action for each observation, of shape {space.shape}. Got {found.shape} instead. "
            "It is called with the observations of several episodes at once, one after the other along the first axis."
        )
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise InputError("The policy returned an action that is not a number (NaN or infinite). Its training diverged.")
    taken = found.astype(space.dtype)
    if taken.dtype.kind in "iu" and not ((taken == found).all() and space.contains(taken)):
        raise InputError(
            f"A policy must return actions of {envs.single_action_space}. Got {found[0].tolist()} instead."
        )
    return taken


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
        ours = ', or pip install "whence[rl]", which brings MuJoCo' if "mujoco" in str(missing).lower() else ""
        raise InputError(
            f"The environment '{name}' needs a package that is not installed: {missing}{ours}."
        ) from missing
    except Exception as failed:
        raise InputError(f"The environment '{name}' could not be made: {brief(failed)}") from failed
    try:
        return env.observation_space, env.action_space
    except AttributeError as lacking:
        raise InputError(f"The environment '{name}' does not follow the API of Gymnasium: {lacking}.") from lacking
    finally:
        getattr(env, "close", lambda: None)()


def require_gymnasium() -> Any:
    """Return the module, or say how to install it."""
    return needed("gymnasium", "whence.rl needs Gymnasium", "rl")
