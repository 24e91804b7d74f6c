"""Soft actor-critic for many agents at once: their networks in tensors (m, …), every update one batch for all.

Agents do not know of each other: each has its own actor, twin critics, temperature of every task, replay and random
start, and what the sum of their losses gives each is its own gradient. A graphics card thus runs as many kernels for 50
agents as for one. Tasks never end before their horizon, so that the value of what follows always counts.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from farm import LOG_STD
from mt10 import ACTIONS, SEEN, TASKS
from torch import Tensor
from torch.nn import functional

from whence.models.graphs import Recorded

RATE, DISCOUNT, FOLLOW = 3e-4, 0.99, 0.005
FIRST_ALPHA = 0.1  # temperature at the start; rewards are at most 1
INPUTS = SEEN + len(TASKS)
ROW = 2 * SEEN + ACTIONS + 1  # of a replay: seen, action, reward, seen after it

Layers = list[Tensor]  # weight (m, in, out), bias (m, 1, out), weight, …


class Agents:
    """Actors, twin critics and temperatures of m agents, and their updates.

    Parameters
    ----------
    seeds : list of int
        One per agent: what its networks start from.
    width : int
        Of both hidden layers of every network. Those of critics are normalised, which keeps values bounded where
        demonstrations show nothing.
    """

    def __init__(self, seeds: list[int], width: int, device: str) -> None:
        self.m, self.width, self.device = len(seeds), width, device
        self.actor = _networks([(seed, 0) for seed in seeds], (INPUTS, width, width, 2 * ACTIONS), device)
        twins = [(seed, 1 + twin) for seed in seeds for twin in range(2)]
        self.critic = _networks(twins, (INPUTS + ACTIONS, width, width, 1), device)
        self.target = [part.detach().clone() for part in self.critic]
        self.log_alpha = torch.full((self.m, len(TASKS)), math.log(FIRST_ALPHA), device=device, requires_grad=True)
        self.trained = [*self.actor, *self.critic, self.log_alpha]
        self.optimizer = torch.optim.Adam(self.trained, lr=RATE, fused=device != "cpu")
        self.recorded = Recorded(lambda batch: self._gradients(*batch), self.trained)

    def act(self, seen: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Actions (m, n, 4) and their log densities (m, n), at inputs (m, n, 49); the likeliest without noise."""
        outputs = _run(self.actor, seen)
        if noise is None:
            return torch.tanh(outputs[..., :ACTIONS]), torch.zeros_like(outputs[..., 0])
        return drawn(outputs, noise)

    def values(self, critic: Layers, seen: Tensor, action: Tensor) -> Tensor:
        """Values of both critics of each agent, (m, 2, n)."""
        both = torch.cat([seen, action], dim=-1)[:, None].expand(-1, 2, -1, -1)
        return _run(critic, both.flatten(0, 1), normed=True).reshape(self.m, 2, -1)

    def losses(
        self, seen: Tensor, action: Tensor, reward: Tensor, after: Tensor, task: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Losses of the critics, actors and temperatures, each summed over agents.

        Parameters
        ----------
        seen, after : tensor of shape (m, n, 49)
        action : tensor of shape (m, n, 4)
        reward, task : tensor of shape (m, n)
        noise : tensor of shape (2, m, n, 4)
            Normal numbers, of the actions after and now.
        """
        alpha = self.log_alpha.exp().detach().gather(1, task)
        with torch.no_grad():
            next_action, next_log = self.act(after, noise[0])
            follows = self.values(self.target, after, next_action).amin(1) - alpha * next_log
            wanted = reward + DISCOUNT * follows
        critic = ((self.values(self.critic, seen, action) - wanted[:, None]) ** 2).mean(-1).sum()
        own, own_log = self.act(seen, noise[1])
        actor = (alpha * own_log - self.values(self.critic, seen, own).amin(1)).mean(-1).sum()
        surprise = own_log.detach() - ACTIONS  # above 0 where actions are more certain than they should be
        temperature = -(self.log_alpha.gather(1, task) * surprise).mean(-1).sum()
        return critic, actor, temperature

    def update(self, *batch: Tensor) -> None:
        """One step of all agents on a batch as `losses` takes it."""
        self.recorded(batch)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(self.target, self.critic, FOLLOW)

    def _gradients(self, *batch: Tensor) -> None:
        """Put the gradient of each loss into what it trains, and into nothing else."""
        critic, actor, temperature = self.losses(*batch)
        for loss, params in ((critic, self.critic), (actor, self.actor), (temperature, [self.log_alpha])):
            for param, gradient in zip(params, torch.autograd.grad(loss, params), strict=True):
                param.grad = gradient

    def drawn(self) -> Tensor:
        """The actors as vectors (m, P), for processes that draw actions."""
        return torch.cat([part.detach().flatten(1) for part in self.actor], dim=1)

    def policies(self) -> Tensor:
        """The most likely actions' networks as vectors (m, P), for `mt10.act` ended by tanh."""
        *hidden, weight, bias = (part.detach() for part in self.actor)
        kept = [*hidden, weight[..., :ACTIONS], bias[..., :ACTIONS]]
        return torch.cat([part.flatten(1) for part in kept], dim=1)


class Replay:
    """What m agents did in each of their tasks, and demonstrations of all tasks, which they share.

    Parameters
    ----------
    tasks : list of ndarray
        Numbers of the tasks of each agent; environments are numbered through, as those of `farm.Farm`.
    shown : ndarray of bool (m,)
        Whether half of each batch of an agent is demonstrations.
    demos : tensor of shape (10, n, ROW)
        Demonstrations of each task.
    capacity, batch, seed : int
        Steps that are kept of each environment, at least n, and steps of a batch.
    """

    def __init__(
        self, tasks: list[np.ndarray], shown: np.ndarray, demos: Tensor, *, capacity: int, batch: int, seed: int
    ) -> None:
        self.count, self.capacity, self.n_demos = 0, capacity, demos.shape[1]
        self.n_envs, device = sum(len(own) for own in tasks), demos.device
        self.rows = torch.zeros(self.n_envs + len(TASKS), capacity, ROW, device=device)
        self.rows[self.n_envs :, : self.n_demos] = demos
        task, row = np.empty((2, len(tasks), batch), int)
        first = 0
        for agent, own in enumerate(tasks):  # what it did goes round its tasks, and so do demonstrations after it
            n_own = batch - batch // 2 if shown[agent] else batch
            turn = np.r_[:n_own, : batch - n_own] % len(own)
            task[agent] = own[turn]
            row[agent] = np.where(np.arange(batch) < n_own, first + turn, self.n_envs + own[turn])
            first += len(own)
        self.task, self.row = (torch.from_numpy(part).to(device) for part in (task, row))
        self.one_hot = functional.one_hot(self.task, len(TASKS)).float()
        self._random = torch.Generator(device).manual_seed(seed)

    def add(self, seen: Tensor, action: Tensor, reward: Tensor) -> None:
        """Keep n steps of every environment: seen (environments, n + 1, 39), the others (environments, n, …).

        The oldest go when it is full; the capacity must be a multiple of n.
        """
        start, n = self.count % self.capacity, action.shape[1]
        steps = torch.cat([seen[:, :-1], action, reward[..., None], seen[:, 1:]], dim=-1)
        self.rows[: self.n_envs, start : start + n] = steps
        self.count += n

    def draw(self) -> tuple[Tensor, ...]:
        """Return a batch of each agent, as `Agents.update` takes it."""
        below = torch.where(self.row < self.n_envs, min(self.count, self.capacity), self.n_demos)
        place = (torch.rand(self.row.shape, device=self.row.device, generator=self._random) * below).long()
        drawn = self.rows[self.row, torch.minimum(place, below - 1)]
        seen, action, reward, after = drawn.split([SEEN, ACTIONS, 1, SEEN], dim=-1)
        noise = torch.randn(2, *self.row.shape, ACTIONS, device=self.row.device, generator=self._random)
        with_task = (torch.cat([part, self.one_hot], dim=-1) for part in (seen, after))
        return next(with_task), action, reward[..., 0], next(with_task), self.task, noise


def drawn(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions (…, 4) that actors with such outputs (…, 8) draw by normal noise (…, 4), and their log densities (…)."""
    mean, wide = outputs.chunk(2, dim=-1)
    low, high = LOG_STD
    log_std = low + (high - low) * (torch.tanh(wide) + 1) / 2
    raw = mean + log_std.exp() * noise
    bent = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))  # log of the derivative of tanh
    return torch.tanh(raw), (-0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi) - bent).sum(-1)


def _networks(seeds: list[tuple[int, int]], sizes: tuple[int, ...], device: str) -> Layers:
    """Weights and biases of networks, stacked, each drawn by its own seed as ``nn.Linear`` draws them."""
    drawn = []
    for seed, number in seeds:
        random = torch.Generator().manual_seed(seed * 10 + number)
        parts = []
        for n_in, n_out in itertools.pairwise(sizes):
            for shape in ((n_in, n_out), (1, n_out)):
                parts.append((2 * torch.rand(shape, generator=random) - 1) / n_in**0.5)
        drawn.append(parts)
    return [torch.stack(parts).to(device).requires_grad_() for parts in zip(*drawn, strict=True)]


def _run(layers: Layers, x: Tensor, *, normed: bool = False) -> Tensor:
    """Outputs of stacked networks, (m, n, out), at inputs (m, n, in)."""
    *hidden, weight, bias = layers
    for own, offset in zip(hidden[::2], hidden[1::2], strict=True):
        x = torch.baddbmm(offset, x, own)
        x = functional.relu(functional.layer_norm(x, x.shape[-1:]) if normed else x)
    return torch.baddbmm(bias, x, weight)
