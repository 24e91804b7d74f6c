"""Environments of many agents, stepped together in processes: one order, one answer for each step of all of them."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from faster import faster_resets
from mt10 import ACTIONS, SEEN, Task
from threadpoolctl import threadpool_limits


class Farm:
    """One environment per entry of a list of tasks, in processes.

    All start and end their episodes together, so that none waits for another's reset.

    Parameters
    ----------
    names : list of str
        Task of each environment.
    seed : int
    workers : int
    """

    def __init__(self, names: list[str], seed: int, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        n = len(names)
        sizes = {"seen": (n, SEEN), "action": (n, ACTIONS), "reward": (n,)}
        memory = {name: context.RawArray("f", int(np.prod(shape))) for name, shape in sizes.items()}
        self.arrays = _views(memory, sizes)
        self._workers = []
        for worker in range(min(workers, n)):
            here, there = context.Pipe()
            rows = list(range(worker, n, workers))
            own = [names[row] for row in rows]
            given = (there, memory, sizes, rows, own, seed)
            process = context.Process(target=_work, args=given, daemon=True)
            process.start()
            self._workers.append((process, here))
        self._ask(b"ready")

    def reset(self) -> np.ndarray:
        """Begin new episodes; what is seen (n, 39)."""
        self._ask(b"reset")
        return self.arrays["seen"].copy()

    def order(self, actions: np.ndarray) -> None:
        """Begin a step of all environments with actions (n, 4)."""
        self.arrays["action"][:] = actions
        for _, pipe in self._workers:
            pipe.send_bytes(b"step")

    def answer(self) -> tuple[np.ndarray, np.ndarray]:
        """Wait for the step that was ordered: what is seen (n, 39), and rewards (n,)."""
        for process, pipe in self._workers:
            while not pipe.poll(5):
                if not process.is_alive():
                    raise RuntimeError(f"A process that steps environments has ended (status {process.exitcode}).")
            pipe.recv_bytes()
        return self.arrays["seen"].copy(), self.arrays["reward"].copy()

    def close(self) -> None:
        for process, pipe in self._workers:
            pipe.send_bytes(b"end")
            process.join(5)

    def _ask(self, what: bytes) -> None:
        for _, pipe in self._workers:
            pipe.send_bytes(what)
        self.answer()


def _work(pipe: Connection, memory: Any, sizes: Any, rows: list[int], names: list[str], seed: int) -> None:
    threadpool_limits(1)
    arrays = _views(memory, sizes)
    envs = [Task(name) for name in names]
    for row, env in zip(rows, envs, strict=True):
        faster_resets(env.env)
        env.env.seed(int(np.random.SeedSequence([seed, row]).generate_state(1)[0]))
    while (what := pipe.recv_bytes()) != b"end":
        for row, env in zip(rows, envs, strict=True):
            if what == b"step":
                seen, arrays["reward"][row], *_ = env.step(arrays["action"][row])
                arrays["seen"][row] = seen[:SEEN]
            elif what == b"reset":
                arrays["seen"][row] = env.reset()[0][:SEEN]
        pipe.send_bytes(b"done")


def _views(memory: Any, sizes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(memory[name], np.float32).reshape(shape) for name, shape in sizes.items()}
