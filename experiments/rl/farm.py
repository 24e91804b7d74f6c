"""Environments of many agents, stepped in processes that act by themselves: one order for many steps of all of them.

Each process has whole agents: it computes their actions with numpy from networks that lie in shared memory, so that
nobody waits for the GPU, or for the slowest of all environments, in every step.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from faster import faster_resets
from mt10 import ACTIONS, SEEN, TASKS, Task, layers_of
from threadpoolctl import threadpool_limits

LOG_STD = (-5.0, 2.0)  # of the policies' actions before tanh
PATIENCE = 5.0  # seconds between two looks at whether processes live


class Farm:
    """One environment for each task of each agent; all start and end their episodes together.

    Parameters
    ----------
    tasks : list of ndarray
        Numbers of the tasks of each of m agents. Environments are numbered through: those of the first agent, then
        those of the second.
    mean, scale : ndarray
        What is seen is given as (seen - mean) / scale.
    width, chunk, workers, seed : int
        Width of the networks, steps of one order, processes.

    Attributes
    ----------
    arrays : dict of str to ndarray
        Shared with the processes: policy (m, P); active (m,), above 0 for agents that go on; of the last order seen
        (n, chunk + 1, 39), action (n, chunk, 4) and reward (n, chunk) in n environments.
    """

    def __init__(
        self, tasks: list[np.ndarray], mean: np.ndarray, scale: np.ndarray, *, width: int, chunk: int, workers: int,
        seed: int,
    ) -> None:  # fmt: skip
        context, m = multiprocessing.get_context("spawn"), len(tasks)
        ends = np.cumsum([len(own) for own in tasks])
        n, n_inputs = int(ends[-1]), SEEN + len(TASKS)
        n_params = (n_inputs + 1) * width + (width + 1) * width + (width + 1) * 2 * ACTIONS
        sizes = {"policy": (m, n_params), "active": (m,), "seen": (n, chunk + 1, SEEN)}
        sizes |= {"action": (n, chunk, ACTIONS), "reward": (n, chunk)}
        memory = {name: context.RawArray("f", int(np.prod(shape))) for name, shape in sizes.items()}
        self.arrays = _views(memory, sizes)
        self.arrays["active"][:] = 1
        self._workers = []
        for agents in shares([len(own) for own in tasks], workers):
            here, there = context.Pipe()
            own = {agent: (int(ends[agent]) - len(tasks[agent]), tasks[agent].tolist()) for agent in agents}
            given = (there, memory, sizes, own, mean[:SEEN], scale[:SEEN], width, seed)
            process = context.Process(target=_work, args=given, daemon=True)
            process.start()
            self._workers.append((process, here))
        self.order(b"ready")
        self.answer()

    def order(self, what: bytes) -> None:
        """Begin new episodes (b"reset"), or steps by the policies (b"step") or at random (b"random")."""
        for _, pipe in self._workers:
            pipe.send_bytes(what)

    def answer(self) -> None:
        """Wait until all have done what was ordered."""
        for process, pipe in self._workers:
            while not pipe.poll(PATIENCE):
                if not process.is_alive():
                    raise RuntimeError(f"A process that steps environments has ended (status {process.exitcode}).")
            pipe.recv_bytes()

    def close(self) -> None:
        for process, pipe in self._workers:
            pipe.send_bytes(b"end")
            process.join(PATIENCE)


def shares(sizes: list[int], workers: int) -> list[list[int]]:
    """Agents of each process, so that their environments are about as many: the largest first, to who has least."""
    found: list[list[int]] = [[] for _ in range(min(workers, len(sizes)))]
    for agent in sorted(range(len(sizes)), key=lambda agent: -sizes[agent]):
        min(found, key=lambda own: sum(sizes[other] for other in own)).append(agent)
    return found


def sample(layers: list[tuple[np.ndarray, np.ndarray]], inputs: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Actions (n, 4) that policies draw with normal noise (n, 4), at inputs (n, 49), as `sac.Agents.act`."""
    for weight, bias in layers[:-1]:
        inputs = np.maximum(inputs @ weight + bias, 0)
    weight, bias = layers[-1]
    mean, wide = np.split(inputs @ weight + bias, 2, axis=-1)
    low, high = LOG_STD
    return np.tanh(mean + np.exp(low + (high - low) * (np.tanh(wide) + 1) / 2) * noise)


def _work(
    pipe: Connection, memory: Any, sizes: Any, own: dict[int, tuple[int, list[int]]], mean: np.ndarray,
    scale: np.ndarray, width: int, seed: int,
) -> None:  # fmt: skip
    threadpool_limits(1)
    arrays, rng = _views(memory, sizes), np.random.default_rng([seed, *own])
    envs = {agent: [_made(task, [seed, agent, task]) for task in tasks] for agent, (_, tasks) in own.items()}
    one_hot = {agent: np.eye(len(TASKS), dtype=np.float32)[tasks] for agent, (_, tasks) in own.items()}
    while (what := pipe.recv_bytes()) != b"end":
        for agent, (first, tasks) in own.items():
            if what == b"ready" or not arrays["active"][agent]:
                continue
            seen, action, reward = (arrays[name][first : first + len(tasks)] for name in ("seen", "action", "reward"))
            if what == b"reset":
                seen[:, -1] = [(env.reset()[0] - mean) / scale for env in envs[agent]]
                continue
            layers = layers_of(arrays["policy"][agent], width, 2 * ACTIONS)
            seen[:, 0] = seen[:, -1]
            for step in range(action.shape[1]):
                if what == b"random":
                    action[:, step] = rng.uniform(-1, 1, action[:, step].shape)
                else:
                    inputs = np.concatenate([seen[:, step], one_hot[agent]], axis=1)
                    action[:, step] = sample(layers, inputs, rng.standard_normal(action[:, step].shape))
                for i, env in enumerate(envs[agent]):
                    after, reward[i, step], *_ = env.step(action[i, step])
                    seen[i, step + 1] = (after - mean) / scale
        pipe.send_bytes(b"done")


def _made(task: int, seed: list[int]) -> Any:
    """The environment of Meta-World itself, which resets fast."""
    env = Task(TASKS[task]).env
    faster_resets(env)
    env.seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
    return env


def _views(memory: Any, sizes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(memory[name], np.float32).reshape(shape) for name, shape in sizes.items()}
