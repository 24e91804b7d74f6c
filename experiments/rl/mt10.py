"""The ten tasks of Meta-World's MT10: environments, demonstrations by scripted experts, episodes of many policies.

Every reset draws a new place of the object and of the goal, by the seed; the goal is in what is seen, and so is the
number of the task, as a one-hot of all ten, whichever of them a policy is trained on. Episodes never end before their
horizon. This module needs no torch, so that processes that step environments start fast.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from faster import faster
from threadpoolctl import threadpool_limits

from whence.errors import InputError, did_you_mean
from whence.rl import rollout

TASKS = (
    "reach", "push", "pick-place", "door-open", "drawer-open",
    "drawer-close", "button-press-topdown", "peg-insert-side", "window-open", "window-close",
)  # fmt: skip
SEEN, ACTIONS = 39, 4  # numbers that an environment shows without the one-hot, and that it takes


class Task(gymnasium.Env):
    """One task of MT10."""

    action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (SEEN + len(TASKS),), np.float32)

    def __init__(self, name: str) -> None:
        if name not in TASKS:
            raise InputError(f"There is no task '{name}' in MT10. {did_you_mean(name, TASKS)}")
        try:
            from metaworld.env_dict import MT10_V3
        except ModuleNotFoundError as missing:
            raise InputError(
                f'Meta-World is not installed ({missing.name} is missing): pip install "whence[rl]".'
            ) from None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the precision of its spaces
            self.env = faster(MT10_V3[f"{name}-v3"]())
        self.env._set_task_called, self.env._freeze_rand_vec, self.env.seeded_rand_vec = True, False, True
        self.env._partially_observable = False
        vars(self.env).pop("sawyer_observation_space", None)  # without the goal; it is made again when needed
        self._one_hot = np.eye(len(TASKS), dtype=np.float32)[TASKS.index(name)]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            self.env.seed(int(seed))
        seen, info = self.env.reset()
        return self._shown(seen), info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        seen, reward, _, cut, info = self.env.step(np.clip(action, -1, 1))
        return self._shown(seen), float(reward), False, cut, {"success": float(info["success"])}

    def _shown(self, seen: np.ndarray) -> np.ndarray:
        return np.concatenate([seen.astype(np.float32), self._one_hot])


@functools.cache
def shared(name: str) -> Task:
    """Environment of a task, made once in a process: reading its meshes takes longer than an episode."""
    return Task(name)


def demonstrations(name: str, episodes: int, horizon: int, noise: float, seed: int) -> dict[str, np.ndarray]:
    """Episodes of the scripted expert of a task.

    What is done is the expert's action and some noise, so that states beside its path are shown too; what the expert
    would do is kept apart.

    Returns
    -------
    dict
        seen (episodes, horizon + 1, 39), done and expert (episodes, horizon, 4), reward and success (episodes, horizon)
    """
    from metaworld.policies import ENV_POLICY_MAP

    env, expert = shared(name), ENV_POLICY_MAP[f"{name}-v3"]()
    rng = np.random.default_rng([seed, TASKS.index(name)])
    kept: dict[str, list[np.ndarray]] = {key: [] for key in ("seen", "done", "expert", "reward", "success")}
    for _ in range(episodes):
        seen, _ = env.reset(seed=int(rng.integers(2**31)))
        episode: dict[str, list[Any]] = {key: [] for key in kept}
        for _ in range(horizon):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # experts ask for more than can be done, on purpose
                wanted = np.clip(expert.get_action(seen[:SEEN].astype(np.float64)), -1, 1)
            action = np.clip(wanted + noise * rng.standard_normal(ACTIONS), -1, 1)
            after, reward, _, _, info = env.step(action)
            for key, value in zip(kept, (seen[:SEEN], action, wanted, reward, info["success"]), strict=True):
                episode[key].append(value)
            seen = after
        episode["seen"].append(seen[:SEEN])
        for key, values in episode.items():
            kept[key].append(np.array(values, np.float32))
    return {key: np.stack(episodes_) for key, episodes_ in kept.items()}


# ---- policies as plain numpy ------------------------------------------------------------------------------


def layers_of(flat: np.ndarray, width: int, outputs: int = ACTIONS) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights (in, out) and biases of a network of two hidden layers, from one vector."""
    sizes, found, start = (SEEN + len(TASKS), width, width, outputs), [], 0
    for n_in, n_out in itertools.pairwise(sizes):
        weight = flat[start : start + n_in * n_out].reshape(n_in, n_out)
        start += n_in * n_out
        found.append((weight, flat[start : start + n_out]))
        start += n_out
    return found


def act(layers: list[tuple[np.ndarray, np.ndarray]], seen: np.ndarray, end: str = "clip") -> np.ndarray:
    """Actions of a network with rectified hidden layers, ended by a clip to [-1, 1] or by tanh."""
    for weight, bias in layers[:-1]:
        seen = np.maximum(seen @ weight + bias, 0)
    weight, bias = layers[-1]
    out = seen @ weight + bias
    return np.tanh(out) if end == "tanh" else np.clip(out, -1, 1)


def folded(flat: np.ndarray, width: int, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Vectors (m, P) of networks of raw observations, from those of networks of (observation - mean) / scale."""
    raw = flat.copy()
    for row in raw:
        weight, bias = layers_of(row, width)[0]  # views
        weight /= scale[:, None]
        bias -= mean @ weight
    return raw


# ---- in parallel ------------------------------------------------------------------------------------------


def play(
    path: str, rows: Sequence[int], name: str, episodes: int, horizon: int, seed: int, width: int, end: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns and successes (rows, episodes) in a task, of some of the policies in a file; all get the same starts."""
    policies = np.load(path, mmap_mode="r")
    found = []
    for row in rows:
        policy = functools.partial(act, layers_of(np.array(policies[row]), width), end=end)
        made = functools.partial(shared, name)
        found.append(rollout(policy, made, episodes=episodes, seed=seed, max_steps=horizon, copies=1))
    return np.array([one.returns for one in found]), np.array([one.success for one in found])


class Rollouts:
    """Processes that play episodes, each with its own environments.

    Parameters
    ----------
    workers, episodes, horizon, width : int
        Number of processes, episodes of each policy in each task, their steps, and width of the policies' layers.
    end : {"clip", "tanh"}
        How policies end.
    """

    def __init__(self, workers: int, *, episodes: int, horizon: int, width: int, end: str = "clip") -> None:
        context = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(workers, context, initializer=threadpool_limits, initargs=(1,))
        self.episodes, self.horizon, self.width, self.end = episodes, horizon, width, end

    def demonstrations(self, episodes: int, noise: float, seed: int) -> dict[str, np.ndarray]:
        """Demonstrations of all tasks, with the task as the first axis."""
        made = [self.pool.submit(demonstrations, name, episodes, self.horizon, noise, seed) for name in TASKS]
        found = [future.result() for future in made]
        return {key: np.stack([one[key] for one in found]) for key in found[0]}

    def start(self, policies: np.ndarray, wanted: np.ndarray, path: Path, seed: int, at_once: int = 8) -> Callable:
        """Begin to play policies (m, P) in the tasks that are wanted of each, (m, 10).

        Returns a function that waits for returns and successes (m, 10, episodes), NaN where they were not wanted.
        """
        np.save(path, policies)
        jobs: list[tuple[int, np.ndarray, Future]] = []
        for task, name in enumerate(TASKS):
            rows = np.flatnonzero(wanted[:, task])
            for some in np.array_split(rows, -(-len(rows) // at_once) or 1):
                given = (str(path), some.tolist(), name, self.episodes, self.horizon, seed, self.width, self.end)
                jobs.append((task, some, self.pool.submit(play, *given)))

        def finish() -> tuple[np.ndarray, np.ndarray]:
            returns = np.full((*wanted.shape, self.episodes), np.nan)
            success = returns.copy()
            for task, rows, job in jobs:
                if len(rows):
                    returns[rows, task], success[rows, task] = job.result()
            return returns, success

        return finish

    def __enter__(self) -> Rollouts:
        return self

    def __exit__(self, *_: Any) -> None:
        self.pool.shutdown(cancel_futures=True)
