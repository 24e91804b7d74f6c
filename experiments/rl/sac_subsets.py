r"""Soft actor-critic on subsets of seven tasks of MT10: all agents step and learn together, then play real episodes.

Every agent has one environment for each of its tasks. In each tick all environments of all agents step once, in
processes, while the GPU updates all agents ``--updates`` times (less often if the steps would not be over in time), on
``--per_task`` steps of each task, half of them demonstrations (none with ``--plain 1``, which learns by trial alone).
Needs demonstrations.npz of cloning.py under ``--out``.

    python experiments/rl/sac_subsets.py --out run/rl --seconds 200 --subsets 40      on an H200 and 16 cores
    python experiments/rl/sac_subsets.py --out run/rl --quick                         half a minute on two cores

It stops after ``--seconds`` or ``--steps`` steps of every agent, whichever is first, and goes on when called again:
networks are kept in half precision (sac_networks_*.npz), the replay is filled anew before updates go on. Written:
sac_truth.npz (returns and successes (agent, task, episode), subsets, seeds, steps), sac_curve.npz (return of each
episode in training (episode, agent, task of the agent)) and sac_subsets.json.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from cloning import arguments, design, save, say, standard, write_settings
from farm import Farm
from mt10 import ACTIONS, SEEN, TASKS, Rollouts, folded
from sac import ROW, Agents, Replay

from whence.errors import InputError

SIZES = {  # by default, and with --quick
    "subsets": (40, 2), "repeated": (0, 0), "seconds": (200.0, 2.0), "per_task": (64, 8), "updates": (4, 1),
    "warmup": (200, 20), "steps": (200_000, 5_000), "plain": (0, 0),
}  # fmt: skip
REWARD_SCALE = 0.1
AGENTS_PER_FILE = 30


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
        steps=training.steps_done, task_names=TASKS,
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
        Return of each episode.
    steps_done : int
        Of every agent, all its tasks together, with those of earlier calls.
    """

    def __init__(
        self, given: argparse.Namespace, subsets: np.ndarray, seeds: np.ndarray, demos: dict[str, np.ndarray]
    ) -> None:
        self.given, (self.mean, self.scale) = given, standard(demos)
        device = given.device
        self.agents = Agents([1000 * int(seed) + i for i, seed in enumerate(seeds)], given.width, device)
        tasks = np.stack([np.flatnonzero(row) for row in subsets])
        self.m, self.k = tasks.shape
        self.curve, self.steps_done = load(given.out, self.agents, (self.m, self.k), given.horizon)
        self.fresh = self.steps_done == 0
        shown = None if given.plain else self._packed(demos).to(device)
        capacity = max(1, (given.steps - self.steps_done) // self.k + given.horizon)
        self.replay = Replay(torch.from_numpy(tasks).to(device), capacity, shown, seed=self.steps_done)
        self.names = [TASKS[task] for task in tasks.ravel()]

    def run(self, began: float) -> dict[str, object]:
        """Train until time or steps are over; return the rates."""
        given = self.given
        farm = Farm(self.names, self.steps_done, max(1, given.workers - 1))  # one core is for the updates
        since, before, updates = time.time(), self.steps_done, 0
        lately = since, before
        say(began, f"{self.m} agents in {len(self.names)} environments, from step {before:,}")
        while time.time() - since < given.seconds and self.steps_done < given.steps:
            total, done = self._episode(farm)
            self.curve = np.concatenate([self.curve, total[None]])
            self.steps_done += given.horizon * self.k
            updates += done
            if len(self.curve) % 40 == 0:
                self.keep()
            if len(self.curve) % 10 == 0:
                rate = (self.steps_done - lately[1]) / (time.time() - lately[0])
                lately = time.time(), self.steps_done
                late = lately[0] - since + (given.steps - self.steps_done) / rate > given.seconds
                given.updates -= late and given.updates > 1
                reached = f"mean return {total.mean():.0f}, {rate * self.m:,.0f} environment steps a second"
                say(began, f"step {self.steps_done:,} of each: {reached}, {given.updates} updates in a tick")
        seconds = time.time() - since
        ticks = (self.steps_done - before) // self.k
        farm.close()
        self.keep()
        found = {
            "agents": self.m, "steps of each agent": self.steps_done, "seconds of training": round(seconds, 1),
            "environment steps a second": round((self.steps_done - before) * self.m / seconds),
            "updates of all agents a second": round(updates / seconds, 2),
            "updates of single agents a second": round(updates * self.m / seconds, 1),
            "batch of an update": given.per_task * self.k, "updates in a tick": round(updates / max(1, ticks), 2),
            "recorded as a graph": bool(self.agents.recorded.graphs),
        }  # fmt: skip
        say(began, str(found))
        return found

    def keep(self) -> None:
        """Write the networks and the curve, to go on from."""
        save_networks(self.agents, self.given.out)
        save(self.given.out / "sac_curve.npz", returns=self.curve)

    def _episode(self, farm: Farm) -> tuple[np.ndarray, int]:
        """One episode of all environments, with an update in each tick; returns (agents, tasks), and updates made."""
        total, updates = np.zeros((self.m, self.k)), 0
        seen = self._scaled(farm.reset())
        for _ in range(self.given.horizon):
            action = self._actions(seen)
            farm.order(action.reshape(-1, ACTIONS).cpu().numpy())
            updates += self._learn()
            after, reward = farm.answer()
            total += reward.reshape(self.m, self.k)
            after = self._scaled(after)
            kept = torch.from_numpy(REWARD_SCALE * reward).to(seen).reshape(self.m, self.k)
            self.replay.add(seen, action, kept, after)
            seen = after
        return total, updates

    def _learn(self) -> int:
        """Make the updates of a tick, none before the replay is warm; how many were made."""
        given = self.given
        if self.replay.count <= given.warmup:
            return 0
        for _ in range(given.updates):
            self.agents.update(*self.replay.draw(given.per_task))
        return int(given.updates)

    @torch.no_grad()
    def _actions(self, seen: torch.Tensor) -> torch.Tensor:
        """Actions (m, k, 4): at random before the first update."""
        if self.fresh and self.replay.count <= self.given.warmup:
            return 2 * torch.rand(self.m, self.k, ACTIONS, device=seen.device) - 1
        noise = torch.randn(self.m, self.k, ACTIONS, device=seen.device)
        return self.agents.act(self.replay.inputs(seen[:, :, None]).flatten(1, 2), noise)[0]

    def _scaled(self, seen: np.ndarray) -> torch.Tensor:
        scaled = (seen - self.mean[:SEEN]) / self.scale[:SEEN]
        return torch.from_numpy(scaled).to(self.given.device).reshape(self.m, self.k, SEEN)

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
