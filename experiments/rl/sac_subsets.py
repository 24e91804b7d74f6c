r"""Soft actor-critic on subsets of tasks of MT10: all agents step and learn together, then play real episodes.

Every agent has one environment for each of its tasks. All environments of all agents step together, in processes; for
each of their steps the GPU updates all agents ``--updates`` times, on ``--batch`` steps spread over their tasks, half
of them demonstrations. If the steps would not be over in time, there are fewer updates, or the last of the agents end,
whichever takes the time. Needs demonstrations.npz of cloning.py under ``--out``.

    python experiments/rl/sac_subsets.py --out run/rl --repeated 10 --seconds 700          on an H200: subsets of seven
    python experiments/rl/sac_subsets.py --out run/rl2 --crew run/rl2/crew.csv             … agents that crew.py lists
    python experiments/rl/sac_subsets.py --out run/rl --quick                              half a minute on two cores

It stops after ``--seconds`` or ``--steps`` steps in each task, whichever is first, and goes on when called again:
networks are kept in half precision (sac_networks_*.npz), the replay is filled anew before updates go on. Written:
sac_truth.npz (returns and successes (agent, task, episode), subsets, seeds, kinds, steps of each), sac_curve.npz
(return of each episode in training (episode, environment)), sac_subsets.json, and of agents that have all ten tasks
sac_point_*.npz (networks on their way) and sac_replay.npz (some steps of their replay).
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from cloning import arguments, save, say, standard, write_settings
from crew import Crew
from farm import Farm
from mt10 import SEEN, TASKS, Rollouts, folded
from sac import ROW, Agents, Replay

from whence.errors import InputError

SIZES = {  # by default, and with --quick
    "subsets": (40, 2), "repeated": (0, 0), "crew": ("", ""), "seconds": (200.0, 2.0), "batch": (224, 56),
    "updates": (4, 1), "warmup": (200, 20), "steps": (28_600, 700), "points": (25, 0),
}  # fmt: skip
REWARD_SCALE = 0.1
AGENTS_PER_FILE = 30
CHUNK = 25  # steps that environments make with the same policies
BUSY = 0.1  # share of time that the updates wait for environments, from which on these are what takes the time
MOST = 1.05  # environments that end at once where time is short, over those that go on
ENOUGH = 0.9  # of the time that is left: with less, more updates are made again
SEVEN = 7  # tasks of agents that are judged in all ten tasks; others in their own
PATIENT = 0.1  # share of the steps after which it is seen whether time is enough
SAMPLE = 500  # steps in each task that are kept of a replay


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
    crew = Crew.read(Path(given.crew)) if given.crew else Crew.sevens(given.subsets, given.repeated)
    training = Training(given, crew, demos)
    found = training.run(began)
    say(began, "playing")
    sizes = {"episodes": given.episodes, "horizon": given.horizon, "width": given.width, "end": "tanh"}
    with Rollouts(given.workers, **sizes) as rollouts:
        policies = folded(training.agents.policies().cpu().numpy(), given.width, training.mean, training.scale)
        wanted = np.where(crew.subsets.sum(1, keepdims=True) == SEVEN, 1, crew.subsets)
        wanted[:, 2:] *= not given.quick
        returns, success = rollouts.start(policies, wanted, given.out / "sac_policies.npy", 0)()
    save(
        given.out / "sac_truth.npz", subsets=crew.subsets, seeds=crew.seeds, kinds=crew.kind, shown=crew.shown,
        returns=returns, success=success, steps=training.steps, task_names=TASKS,
    )  # fmt: skip
    inside = crew.subsets > 0
    others = f", in others {np.nanmean(success[~inside]):.2f}" if (wanted[~inside] > 0).any() else ""
    say(began, f"success in own tasks {np.nanmean(success[inside]):.2f}{others}")
    write_settings(given, {"all": time.time() - began}, found)


class Training:
    """Agents, their replay and their environments.

    Attributes
    ----------
    curve : ndarray of shape (episodes, environments)
        Return of each episode; NaN of agents that had ended.
    steps_done : int
        In each task of every agent that goes on, with those of earlier calls.
    """

    def __init__(self, given: argparse.Namespace, crew: Crew, demos: dict[str, np.ndarray]) -> None:
        self.given, (self.mean, self.scale), self.tasks = given, standard(demos), crew.tasks
        self.agents = Agents(crew.starts.tolist(), given.width, given.device)
        sizes = [len(own) for own in self.tasks]
        self.first, self.owner = np.cumsum([0, *sizes[:-1]]), np.repeat(np.arange(len(sizes)), sizes)
        self.curve = load(given.out, self.agents, len(self.owner))
        self.steps_done = len(self.curve) * given.horizon
        self.fresh = self.steps_done == 0
        packed = self._packed(demos).to(given.device)
        left = max(0, given.steps - self.steps_done, packed.shape[1])
        room = {"capacity": (left // given.horizon + 1) * given.horizon, "batch": given.batch}
        self.replay = Replay(self.tasks, crew.shown, packed, **room, seed=self.steps_done)
        self.chunk, self.updates = math.gcd(CHUNK, given.horizon), given.updates

    @property
    def steps(self) -> np.ndarray:
        """Steps of each agent in all its tasks, (m,)."""
        episodes = (~np.isnan(self.curve[:, self.first])).sum(0)
        return episodes * self.given.horizon * np.array([len(own) for own in self.tasks])

    def run(self, began: float) -> dict[str, object]:
        """Train until time or steps are over; return the rates."""
        given, workers = self.given, max(1, self.given.workers - 1)  # one core is for the updates
        sizes = {"width": given.width, "chunk": self.chunk, "workers": workers, "seed": self.steps_done}
        farm = Farm(self.tasks, self.mean, self.scale, **sizes)
        since, before, made, updates, waited = time.time(), self.steps.sum(), self.steps_done, 0, 0.0
        lately = since, before, made, waited
        say(began, f"{len(self.tasks)} agents in {len(self.owner)} environments, from step {made:,}")
        while time.time() - since < given.seconds and self.steps_done < given.steps:
            total, done, idle = self._episode(farm)
            self.curve = np.concatenate([self.curve, total[None]])
            self.steps_done += given.horizon
            updates, waited = updates + done, waited + idle
            if len(self.curve) % 40 == 0:
                self.keep()
            if given.points and len(self.curve) % given.points == 0:
                self.keep_point()
            if len(self.curve) % 5 == 0:
                now, steps, took = time.time(), self.steps.sum(), time.time() - lately[0]
                left = (given.steps - self.steps_done) * took / (self.steps_done - lately[2])
                rate, share = (steps - lately[1]) / took, (waited - lately[3]) / took
                lately = now, steps, self.steps_done, waited
                if self.steps_done - made > PATIENT * (given.steps - made):
                    self._hurry(farm, share, left / (given.seconds - (now - since)))
                reached = f"mean return {np.nanmean(total):.0f}, {rate:,.0f} environment steps a second"
                reached += f", {farm.arrays['active'].sum():.0f} agents, {self.updates} updates in a tick"
                reached += f", {share:.0%} waiting for environments, {left:.0f} s left"
                say(began, f"step {self.steps_done:,} in each task: {reached}")
        seconds = time.time() - since
        farm.close()
        self.keep()
        self.keep_point()
        ticks = self.steps_done - made
        found = {
            "agents": len(self.tasks), "environments": len(self.owner), "steps in each task": self.steps_done,
            "seconds of training": round(seconds, 1),
            "environment steps a second": round(float(self.steps.sum() - before) / seconds),
            "updates of all agents a second": round(updates / seconds, 2),
            "updates of single agents a second": round(updates * len(self.tasks) / seconds, 1),
            "batch of an update": given.batch, "updates in a tick": round(updates / max(1, ticks), 2),
            "share of time waiting for environments": round(waited / seconds, 2),
            "recorded as a graph": bool(self.agents.recorded.graphs),
        }  # fmt: skip
        say(began, str(found))
        return found

    def _hurry(self, farm: Farm, share: float, late: float) -> None:
        """Make fewer updates if environments wait for them, else end the last agents, where time would not be enough.

        ``late`` is the time that the steps will take over the time that is left. As many updates as were asked for are
        made again when there is time for them.
        """
        if late > 1 and share < BUSY and self.updates > 1:
            self.updates -= 1
        elif late > 1 and share >= BUSY:
            sizes = np.where(farm.arrays["active"] > 0, np.bincount(self.owner), 0)
            farm.arrays["active"][np.cumsum(sizes) > max(sizes.sum() / min(late, MOST), sizes[0])] = 0
        elif late < ENOUGH and self.updates < self.given.updates:
            self.updates += 1

    def keep(self) -> None:
        """Write the networks and the curve, to go on from."""
        save_networks(self.agents, self.given.out)
        save(self.given.out / "sac_curve.npz", returns=self.curve)

    def keep_point(self) -> None:
        """Write the networks and some of the replay of agents that have all tasks, for what is linear there."""
        rows = np.array([agent for agent, own in enumerate(self.tasks) if len(own) == len(TASKS)], int)
        if not len(rows) or not self.replay.count:
            return
        half = {name: part[rows].half().cpu().numpy() for name, part in networks(self.agents).items()}
        np.savez(self.given.out / f"sac_point_{self.steps_done}.npz", agents=rows, **half)
        place = np.random.default_rng(0).integers(min(self.replay.count, self.replay.capacity), size=SAMPLE)
        envs = self.first[rows][:, None] + np.arange(len(TASKS))
        kept = self.replay.rows[torch.from_numpy(envs)[..., None], torch.from_numpy(place)].half().cpu().numpy()
        np.savez(self.given.out / "sac_replay.npz", agents=rows, steps=kept, mean=self.mean, scale=self.scale)

    def _episode(self, farm: Farm) -> tuple[np.ndarray, int, float]:
        """One episode of all: returns (environments,), updates, and seconds of waiting for environments."""
        total, updates, waited = np.zeros(len(self.owner)), 0, 0.0
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
            total += reward.sum(1)
            steps = (torch.from_numpy(part).to(self.given.device) for part in (seen, action, REWARD_SCALE * reward))
            self.replay.add(*steps)
        total[farm.arrays["active"][self.owner] == 0] = np.nan
        return total, updates, waited

    def _learn(self) -> int:
        """Make the updates of a chunk of steps, none before the replay is warm; how many were made."""
        if self.replay.count <= self.given.warmup:
            return 0
        for _ in range(self.updates * self.chunk):
            self.agents.update(*self.replay.draw())
        if self.given.device != "cpu":
            torch.cuda.synchronize()
        return int(self.updates) * self.chunk

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


def load(out: Path, agents: Agents, environments: int) -> np.ndarray:
    """Put the networks of an earlier call in place; return its curve, without episodes where there was no call."""
    path = out / "sac_curve.npz"
    if not path.exists():
        return np.zeros((0, environments), np.float32)
    with np.load(path) as found:
        curve = found["returns"]
    if curve.shape[1:] != (environments,):
        raise InputError(
            f"{out} has {curve.shape[1]} environments. Got {environments}: give the same agents, or another --out."
        )
    parts = [dict(np.load(out / f"sac_networks_{i}.npz")) for i in range(-(-agents.m // AGENTS_PER_FILE))]
    for name, place in networks(agents).items():
        place.copy_(torch.from_numpy(np.concatenate([part[name] for part in parts])))
    for target, critic in zip(agents.target, agents.critic, strict=True):
        target.copy_(critic.detach())
    return np.asarray(curve)


if __name__ == "__main__":
    main()
