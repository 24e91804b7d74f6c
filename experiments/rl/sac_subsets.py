r"""Soft actor-critic on subsets of seven tasks of MT10: all agents step and learn together, then play real episodes.

Every agent has one environment for each of its tasks. All environments of all agents step together, in processes; for
each of their steps the GPU updates all agents ``--updates`` times, on ``--per_task`` steps of each task, half of them
demonstrations (none with ``--plain 1``, which learns by trial alone). If the steps would not be over in time, there are
fewer updates, or the agents of further seeds end, whichever takes the time. Needs demonstrations.npz of cloning.py
under ``--out``.

    python experiments/rl/sac_subsets.py --out run/rl --repeated 10 --per_task 32 --seconds 700     on an H200
    python experiments/rl/sac_subsets.py --out run/rl --quick                              half a minute on two cores

It stops after ``--seconds`` or ``--steps`` steps of every agent, whichever is first, and goes on when called again:
networks are kept in half precision (sac_networks_*.npz), the replay is filled anew before updates go on. Written:
sac_truth.npz (returns and successes (agent, task, episode), subsets, seeds, steps of each), sac_curve.npz (return of
each episode in training (episode, agent, task of the agent)) and sac_subsets.json.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from cloning import arguments, design, save, say, standard, write_settings
from farm import Farm
from mt10 import SEEN, TASKS, Rollouts, folded
from sac import ROW, Agents, Replay

from whence.errors import InputError

SIZES = {  # by default, and with --quick
    "subsets": (40, 2), "repeated": (0, 0), "seconds": (200.0, 2.0), "per_task": (64, 8), "updates": (4, 1),
    "warmup": (200, 20), "steps": (200_000, 5_000), "plain": (0, 0),
}  # fmt: skip
REWARD_SCALE = 0.1
AGENTS_PER_FILE = 30
CHUNK = 25  # steps that environments make with the same policies
BUSY = 0.1  # share of time that the updates wait for environments, from which on these are what takes the time


def main() -> None:
    given = arguments(SIZES)
    torch.set_float32_matmul_precision("high")
    began = time.time()
    if not (given.out / "demonstrations.npz").is_file():
        made = f"python experiments/rl/cloning.py --out {given.out}"
        raise SystemExit(f"{given.out} has no demonstrations of the experts. Make them with: {made}")
    with np.load(given.out / "demonstrations.npz") as found:
        demos = dict(found)
    if given.quick:
        given.horizon = min(given.horizon, demos["reward"].shape[2])
    subsets, seeds = chosen(given.subsets, given.repeated)
    training = Training(given, subsets, seeds, demos)
    found = training.run(began)
    say(began, "playing")
    sizes = {"episodes": given.episodes, "horizon": given.horizon, "width": given.width, "end": "tanh"}
    with Rollouts(given.workers, **sizes) as rollouts:
        policies = folded(training.agents.policies().cpu().numpy(), given.width, training.mean, training.scale)
        wanted = np.ones_like(subsets)
        wanted[:, 2:] *= not given.quick
        returns, success = rollouts.start(policies, wanted, given.out / "sac_policies.npy", 0)()
    save(
        given.out / "sac_truth.npz", subsets=subsets, seeds=seeds, returns=returns, success=success,
        steps=training.steps, task_names=TASKS,
    )  # fmt: skip
    inside = subsets.astype(bool)
    say(began, f"success in own tasks {np.nanmean(success[inside]):.2f}, in others {np.nanmean(success[~inside]):.2f}")
    write_settings(given, {"all": time.time() - began}, found)


def chosen(n: int, repeated: int) -> tuple[np.ndarray, np.ndarray]:
    """Subsets of seven in a random order, the first of them with two more seeds: (agents, 10), and seeds (agents,)."""
    sevens = np.random.default_rng(0).permutation(design()[0][:120])[:n]
    subsets = np.vstack([sevens, sevens[:repeated], sevens[:repeated]])
    return subsets, np.repeat([0, 1, 2], [n, repeated, repeated])


class Training:
    """Agents, their replay and their environments.

    Attributes
    ----------
    curve : ndarray of shape (episodes, agents, tasks of an agent)
        Return of each episode; NaN of agents that had ended.
    steps_done : int
        Of every agent that goes on, all its tasks together, with those of earlier calls.
    """

    def __init__(
        self, given: argparse.Namespace, subsets: np.ndarray, seeds: np.ndarray, demos: dict[str, np.ndarray]
    ) -> None:
        self.given, (self.mean, self.scale), self.repeated = given, standard(demos), seeds > 0
        device = given.device
        self.agents = Agents([1000 * int(seed) + i for i, seed in enumerate(seeds)], given.width, device)
        self.tasks = np.stack([np.flatnonzero(row) for row in subsets])
        self.m, self.k = self.tasks.shape
        self.curve, self.steps_done = load(given.out, self.agents, (self.m, self.k), given.horizon)
        self.fresh = self.steps_done == 0
        shown = None if given.plain else self._packed(demos).to(device)
        episodes = max(0, given.steps - self.steps_done) // (self.k * given.horizon) + 1
        tasks = torch.from_numpy(self.tasks).to(device)
        self.replay = Replay(tasks, episodes * given.horizon, shown, seed=self.steps_done)
        self.chunk = math.gcd(CHUNK, given.horizon)

    @property
    def steps(self) -> np.ndarray:
        """Steps of each agent, (m,)."""
        return (~np.isnan(self.curve[:, :, 0])).sum(0) * self.given.horizon * self.k

    def run(self, began: float) -> dict[str, object]:
        """Train until time or steps are over; return the rates."""
        given, workers = self.given, max(1, self.given.workers - 1)  # one core is for the updates
        sizes = {"width": given.width, "chunk": self.chunk, "workers": workers, "seed": self.steps_done}
        farm = Farm(self.tasks, self.mean, self.scale, **sizes)
        since, before, made, updates, waited = time.time(), self.steps.sum(), self.steps_done, 0, 0.0
        lately = since, made, waited
        say(began, f"{self.m} agents in {self.tasks.size} environments, from step {made:,}")
        while time.time() - since < given.seconds and self.steps_done < given.steps:
            total, done, idle = self._episode(farm)
            self.curve = np.concatenate([self.curve, total[None]])
            self.steps_done += given.horizon * self.k
            updates, waited = updates + done, waited + idle
            if len(self.curve) % 40 == 0:
                self.keep()
            if len(self.curve) % 5 == 0:
                now, took = time.time(), time.time() - lately[0]
                rate, share = (self.steps_done - lately[1]) / took, (waited - lately[2]) / took
                lately = now, self.steps_done, waited
                if now - since + (given.steps - self.steps_done) / rate > given.seconds:
                    self._hurry(farm, share)
                going = int(farm.arrays["active"].sum())
                reached = f"mean return {np.nanmean(total):.0f}, {rate * going:,.0f} environment steps a second"
                reached += f", {going} agents, {given.updates} updates in a tick, {share:.0%} waiting for environments"
                say(began, f"step {self.steps_done:,} of each: {reached}")
        seconds = time.time() - since
        farm.close()
        self.keep()
        ticks = (self.steps_done - made) // self.k
        found = {
            "agents": self.m, "steps of each agent": self.steps_done, "seconds of training": round(seconds, 1),
            "environment steps a second": round(float(self.steps.sum() - before) / seconds),
            "updates of all agents a second": round(updates / seconds, 2),
            "updates of single agents a second": round(updates * self.m / seconds, 1),
            "batch of an update": given.per_task * self.k, "updates in a tick": round(updates / max(1, ticks), 2),
            "share of time waiting for environments": round(waited / seconds, 2),
            "recorded as a graph": bool(self.agents.recorded.graphs),
        }  # fmt: skip
        say(began, str(found))
        return found

    def _hurry(self, farm: Farm, share: float) -> None:
        """Make fewer updates where environments wait for them; else end the agents of more seeds than one."""
        if share < BUSY and self.given.updates > 1:
            self.given.updates -= 1
        elif share >= BUSY:
            farm.arrays["active"][self.repeated] = 0

    def keep(self) -> None:
        """Write the networks and the curve, to go on from."""
        save_networks(self.agents, self.given.out)
        save(self.given.out / "sac_curve.npz", returns=self.curve)

    def _episode(self, farm: Farm) -> tuple[np.ndarray, int, float]:
        """One episode of all: returns (agents, tasks), updates, and seconds of waiting for environments."""
        total, updates, waited = np.zeros((self.m, self.k)), 0, 0.0
        farm.order(b"reset")
        farm.answer()
        for _ in range(self.given.horizon // self.chunk):
            farm.arrays["policy"][:] = self.agents.drawn().cpu().numpy()
            farm.order(b"random" if self.fresh and self.replay.count <= self.given.warmup else b"step")
            updates += self._learn()
            since = time.time()
            farm.answer()
            waited += time.time() - since
            seen, action, reward = (farm.arrays[name] for name in ("seen", "action", "reward"))
            total += reward.sum(2)
            steps = (torch.from_numpy(part).to(self.given.device) for part in (seen, action, REWARD_SCALE * reward))
            self.replay.add(*steps)
        total[farm.arrays["active"] == 0] = np.nan
        return total, updates, waited

    def _learn(self) -> int:
        """Make the updates of a chunk of steps, none before the replay is warm; how many were made."""
        given = self.given
        if self.replay.count <= given.warmup:
            return 0
        for _ in range(given.updates * self.chunk):
            self.agents.update(*self.replay.draw(given.per_task))
        if given.device != "cpu":
            torch.cuda.synchronize()
        return int(given.updates) * self.chunk

    def _packed(self, demos: dict[str, np.ndarray]) -> torch.Tensor:
        """Demonstrations as rows of a replay, (10, n, ROW)."""
        seen = (demos["seen"] - self.mean[:SEEN]) / self.scale[:SEEN]
        reward = REWARD_SCALE * demos["reward"][..., None]
        rows = np.concatenate([seen[:, :, :-1], demos["done"], reward, seen[:, :, 1:]], axis=-1)
        return torch.from_numpy(rows.reshape(len(TASKS), -1, ROW).astype(np.float32))


def networks(agents: Agents) -> dict[str, torch.Tensor]:
    """Tensors of the networks by name, with the agent as their first axis."""
    found = {f"actor.{i}": part for i, part in enumerate(agents.actor)}
    found |= {f"critic.{i}": part.unflatten(0, (agents.m, 2)) for i, part in enumerate(agents.critic)}
    return {name: part.detach() for name, part in found.items()} | {"log_alpha": agents.log_alpha.detach()}


def save_networks(agents: Agents, out: Path) -> None:
    """Write the networks, in half precision and in files that stay small."""
    for number, rows in enumerate(torch.arange(agents.m).split(AGENTS_PER_FILE)):
        half = {name: part[rows.to(part.device)].half().cpu().numpy() for name, part in networks(agents).items()}
        np.savez(out / f"sac_networks_{number}.npz", **half)


def load(out: Path, agents: Agents, shape: tuple[int, int], horizon: int) -> tuple[np.ndarray, int]:
    """Put the networks of an earlier call in place; return its curve and its steps, none where there was no call."""
    path = out / "sac_curve.npz"
    if not path.exists():
        return np.zeros((0, *shape), np.float32), 0
    with np.load(path) as found:
        curve = found["returns"]
    if curve.shape[1:] != shape:
        raise InputError(f"{out} has {curve.shape[1]} agents. Got {shape[0]}: give the same numbers, or another --out.")
    parts = [dict(np.load(out / f"sac_networks_{i}.npz")) for i in range(-(-agents.m // AGENTS_PER_FILE))]
    for name, place in networks(agents).items():
        place.copy_(torch.from_numpy(np.concatenate([part[name] for part in parts])))
    for target, critic in zip(agents.target, agents.critic, strict=True):
        target.copy_(critic.detach())
    return curve, len(curve) * horizon * shape[1]


if __name__ == "__main__":
    main()
