"""Steps and updates a second of Stable-Baselines3's SAC on one subset of seven tasks, beside those of sac_subsets.py.

The same tasks, width, batch and updates for each step of all environments as there; environments in seven processes.

    python experiments/rl/sb3_speed.py --out run/rl --seconds 15
    python experiments/rl/sb3_speed.py --out run/rl --agents 5      updates alone, of five agents stacked and of one of
                                                                    Stable-Baselines3, in processor time
"""

from __future__ import annotations

import functools
import json
import time
import warnings

import gymnasium
import numpy as np
import torch
from cloning import arguments
from crew import Crew
from mt10 import ACTIONS, SEEN, TASKS, Task
from sac import ROW, Agents, Replay
from sac_subsets import SIZES
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import SubprocVecEnv


class Clock(BaseCallback):
    """Ends the training after a time, and counts from the first update on."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.since, self.before = seconds, None, (0, 0)

    def _on_step(self) -> bool:
        if self.since is None and self.model._n_updates > 5:
            self.since, self.before = time.time(), (self.num_timesteps, self.model._n_updates)
        return self.since is None or time.time() - self.since < self.seconds


class Blank(gymnasium.Env):
    """What a task of MT10 looks like, without a simulation."""

    action_space, observation_space = Task.action_space, Task.observation_space

    def reset(self, *, seed=None, options=None):
        return self._seen(), {}

    def step(self, action):
        return self._seen(), 0.0, False, False, {}

    def _seen(self) -> np.ndarray:
        return self.observation_space.sample()


def updates_alone(given) -> dict[str, object]:
    """Processor milliseconds that an update of one agent takes, stacked and in Stable-Baselines3; best of several."""
    k, n_updates, batch = 7, 2 if given.quick else 20, given.batch
    agents = Agents(list(range(given.agents)), given.width, "cpu")
    sizes, none = {"capacity": 200, "batch": batch, "seed": 0}, torch.zeros(len(TASKS), 1, ROW)
    replay = Replay([np.arange(k)] * given.agents, np.zeros(given.agents, bool), none, **sizes)
    shape = (given.agents * k, 200)
    replay.add(torch.randn(given.agents * k, 201, SEEN), torch.rand(*shape, ACTIONS), torch.rand(shape))
    net = {"net_arch": [given.width, given.width]}
    model = SAC("MlpPolicy", Blank(), batch_size=batch, buffer_size=2000, learning_starts=1000, policy_kwargs=net,
                device="cpu")  # fmt: skip
    model.learn(1001)
    best = {"stacked": np.inf, "Stable-Baselines3": np.inf}
    for _ in range(5):
        since = time.process_time()
        for _ in range(n_updates):
            agents.update(*replay.draw())
        between = time.process_time()
        model.train(gradient_steps=n_updates, batch_size=batch)
        ours, theirs = (between - since) / given.agents, time.process_time() - between
        for name, seconds in zip(best, (ours, theirs), strict=True):
            best[name] = min(best[name], 1000 * seconds / n_updates)
    return {"agents": given.agents, "width": given.width, "batch": batch,
            "processor milliseconds for an update of one agent": {name: round(ms, 2) for name, ms in best.items()},
            "times faster": round(best["Stable-Baselines3"] / best["stacked"], 2)}  # fmt: skip


def main() -> None:
    given = arguments(SIZES | {"seconds": (15.0, 3.0), "agents": (0, 0)})
    warnings.simplefilter("ignore")
    if given.agents:
        print(json.dumps(updates_alone(given)), flush=True)
        return
    names = [TASKS[k] for k in Crew.sevens(1, 0).tasks[0]]
    envs = SubprocVecEnv([functools.partial(Task, name) for name in names], start_method="spawn")
    model = SAC(
        "MlpPolicy", envs, batch_size=given.batch, train_freq=1, gradient_steps=given.updates,
        learning_starts=2 * given.batch, buffer_size=100_000, device=given.device,
        policy_kwargs={"net_arch": [given.width, given.width]},
    )  # fmt: skip
    torch.set_float32_matmul_precision("high")
    clock = Clock(given.seconds)
    model.learn(10**9, callback=clock)
    seconds = time.time() - clock.since
    steps, updates = model.num_timesteps - clock.before[0], model._n_updates - clock.before[1]
    envs.close()
    found = {
        "environment steps a second": round(steps / seconds), "updates a second": round(updates / seconds, 1),
        "batch": given.batch, "tasks": names, "seconds": round(seconds, 1), "device": given.device,
    }  # fmt: skip
    print(json.dumps(found), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "sb3_speed.json").write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
