r"""Agents of SAC for any subset without training on it: from an agent that has all ten tasks, and ten with one each.

Estimators of policies, each of which gives parameters of an actor for any subset:

- ``imitating``: GradEx, linear at the actor of the agent of all tasks, imitating experts in their states;
- ``imitating_early``: the same where that actor was after 5,000 steps in each task;
- ``valued``: GradEx at the end, imitating the actions of its replay that its critics value most above its own;
- ``improved``: the same with its own actions, moved to where its critics value them more;
- ``one_step``: one step along the tasks' gradients of SAC's own loss of actors, by these critics, at the end;
- ``vectors``: the mean change of agents that have one task each, from the random start that they share.

Needs what sac_subsets.py wrote with the agents of crew.py, and demonstrations.npz of cloning.py, under ``--out``.

    python experiments/rl/sac_estimates.py --out run/rl2              half an hour of one busy core
    python experiments/rl/sac_estimates.py --out run/rl2 --quick      two minutes

Written: sac_rung_NAME.npz: by (subset of seven, task) imitation (squared error of actions in held-out states of
experts), value (mean of what the critics expect, in states of the replay) and linear (the loss that GradEx's linear
model tells); and of the first subsets returns and success (subset, task, episode).
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from cloning import Cloning, arguments, design, network, recipe, save, say, write_settings
from crew import Crew
from mt10 import ACTIONS, SEEN, TASKS, Rollouts
from policy_estimates import states
from sac import INPUTS, Agents, drawn
from sac_linearity import actors, state
from sac_subsets import networks
from torch import Tensor, nn

import whence
from whence.estimators.merged import Merged
from whence.models.problem import State

SIZES = {"rank": (512, 16), "rolled": (20, 1), "examples": (500, 50), "subsets": (120, 3)}  # and with --quick
EARLY = 5_000  # steps in each task
VALUED = 0.25  # share of the steps of the replay that are imitated
UPHILL, STRIDE = 10, 0.02  # steps of actions to where critics value them more, and their length

Examples = dict[str, tuple[Tensor, Tensor]]


def main() -> None:
    given = arguments(SIZES)
    warnings.simplefilter("ignore", whence.DataWarning)
    began, seconds = time.time(), {}
    played = Crew.sevens(given.rolled, 0).subsets
    others = design()[0][:120]
    subsets = np.vstack([played, others[~(others[:, None] == played).all(2).any(1)]])[: given.subsets]
    with np.load(given.out / "demonstrations.npz") as demos:
        known = Known(given, Cloning(dict(demos), given.width, recipe(given), given.device))
    sizes = {"episodes": given.episodes, "horizon": given.horizon, "width": given.width, "end": "tanh"}
    with Rollouts(given.workers, **sizes) as rollouts:
        waiting = {}
        for name, make in RUNGS.items():
            path = given.out / f"sac_rung_{name}.npz"
            if path.exists():
                continue
            since = time.time()
            rung = make(known)
            found = known.measured(moved := estimated(rung, subsets))
            if isinstance(rung, whence.GradEx):
                found["linear"] = np.stack(list(rung.batch(subsets).values()), axis=1)
            seconds[name] = time.time() - since
            means = ", ".join(f"{key} {values.mean():.3f}" for key, values in found.items())
            say(began, f"{name}: {means}, {seconds[name]:.1f} s")
            policies = known.cloned.policies(moved)[: given.rolled]
            beside = given.out / f"policies_{name}.npy"
            waiting[path] = found, rollouts.start(policies, np.ones_like(played), beside, seed=0, at_once=4)
        for path, (found, finish) in waiting.items():
            returns, success = finish()
            save(path, subsets=subsets, task_names=TASKS, returns=returns, success=success, **found)
            say(began, f"{path.stem}: return {returns.mean():.0f}, success {success.mean():.2f}")
    write_settings(given, seconds | {"all": time.time() - began}, {})


class Known:
    """What is known of the agent of all tasks, and of those of one task each.

    Attributes
    ----------
    cloned : Cloning
        Demonstrations, standardised as for the agents.
    agent : Agents
        The agent of all tasks at its end.
    states, actions : tensor (10, n, 49) and (10, n, 4)
        Of its replay, by task.
    """

    def __init__(self, given: argparse.Namespace, cloned: Cloning) -> None:
        self.given, self.cloned = given, cloned
        self.steps = sorted(int(path.stem.split("_")[-1]) for path in given.out.glob("sac_point_*.npz"))
        self.agent = self.at(self.steps[-1])
        with np.load(given.out / "sac_replay.npz") as replay:
            steps = torch.from_numpy(replay["steps"][0].astype(np.float32)).to(given.device)
        one_hot = torch.eye(len(TASKS), device=given.device)[:, None].expand(-1, steps.shape[1], -1)
        self.states = torch.cat([steps[..., :SEEN], one_hot], dim=-1)
        self.actions = steps[..., SEEN : SEEN + ACTIONS]

    def at(self, steps: int) -> Agents:
        """The agent after some steps in each task, or where it is known next to that."""
        near = min(self.steps, key=lambda known: abs(known - steps))
        agent = Agents([0], self.given.width, self.given.device)
        with np.load(self.given.out / f"sac_point_{near}.npz") as found:
            for name, place in networks(agent).items():
                place.copy_(torch.from_numpy(found[name][:1]))
        return agent

    def imitating(self, agent: Agents, tasks: Examples) -> whence.GradEx:
        """GradEx at the most likely action of an agent."""
        model = nn.Sequential(*network(self.given.width, 0), nn.Tanh())
        model.load_state_dict(actor_of(agent, ACTIONS))
        features = whence.Features(examples=self.given.examples)
        problem = whence.Problem(model, tasks, self.cloned.held_out, loss="squared", device=self.given.device)
        return whence.GradEx(problem, self.given.rank, projection="gaussian", weighting="task", features=features)

    def valued(self) -> Examples:
        """Actions in the replay that the critics value most above the agent's own, with their states."""
        seen = self.states.flatten(0, 1)[None]
        gain = self._value(seen, self.actions.flatten(0, 1)[None]) - self._value(seen, self.agent.act(seen)[0].detach())
        best = gain.reshape(len(TASKS), -1).argsort(1, descending=True)[:, : int(VALUED * self.states.shape[1])]
        return {name: (self.states[k, best[k]], self.actions[k, best[k]]) for k, name in enumerate(TASKS)}

    def improved(self) -> Examples:
        """The agent's own actions in states of its replay, a few steps up the slope of what the critics expect."""
        seen = self.states.flatten(0, 1)[None]
        action = self.agent.act(seen)[0].detach()
        for _ in range(UPHILL):
            (slope,) = torch.autograd.grad(self._value(seen, action.requires_grad_()).sum(), action)
            length = slope.norm(dim=-1, keepdim=True).clamp_min(1e-9)
            action = (action.detach() + STRIDE * slope / length).clamp(-1, 1)
        found = action[0].reshape(self.actions.shape)
        return {name: (self.states[k], found[k]) for k, name in enumerate(TASKS)}

    def by_critics(self, agent: Agents) -> whence.Problem:
        """The actor's loss of SAC in states of the replay, half of which are targets."""
        sizes = (INPUTS, self.given.width, self.given.width, 2 * ACTIONS)
        layers = [part for pair in itertools.pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
        model = nn.Sequential(*layers[:-1])
        model.load_state_dict(actor_of(agent, 2 * ACTIONS))
        noise = torch.randn(*self.states.shape[:2], ACTIONS, generator=torch.Generator().manual_seed(0))
        noise = noise.to(self.states)
        alpha = agent.log_alpha.detach().exp()[0][:, None, None].expand(-1, self.states.shape[1], 1)
        labels, half = torch.cat([self.states, noise, alpha], dim=-1), self.states.shape[1] // 2
        tasks, targets = (
            {name: (self.states[k, part], labels[k, part]) for k, name in enumerate(TASKS)}
            for part in (slice(half), slice(half, None))
        )

        def loss(outputs: Tensor, labels: Tensor) -> Tensor:
            seen, noise, alpha = labels.split([INPUTS, ACTIONS, 1], dim=-1)
            action, density = drawn(outputs, noise)
            critic = [part.detach() for part in agent.critic]
            return (alpha[..., 0] * density - agent.values(critic, seen[None], action[None])[0].amin(0)).mean()

        return whence.Problem(model, tasks, targets, loss=loss, device=self.given.device)

    def vectors(self) -> whence.TaskVectors:
        """Agents of one task each, of the first seed."""
        crew = Crew.read(self.given.out / "crew.csv")
        alone = [crew.kind.index(f"{name} alone") for name in TASKS]
        ends = actors(self.given.out)
        checkpoints = {name: state(ends, agent) for name, agent in zip(TASKS, alone, strict=True)}
        start = Agents([int(crew.starts[alone[0]])], self.given.width, "cpu")
        problem = self.cloned.problem.at(actor_of(start, ACTIONS))
        return whence.TaskVectors.from_checkpoints(checkpoints, problem, weighting="task")

    def measured(self, moved: State) -> dict[str, np.ndarray]:
        """Imitation of experts in held-out states, and what the critics expect, of stacked actors, each (m, 10)."""
        found: dict[str, list[list[float]]] = {"imitation": [], "value": []}
        expert = [[part.to(self.states) for part in self.cloned.held_out[name]] for name in TASKS]
        for row in range(len(moved["0.weight"])):
            actor = nn.Sequential(*network(self.given.width, 0), nn.Tanh()).to(self.states)
            actor.load_state_dict({name: value[row] for name, value in moved.items()})
            with torch.no_grad():
                found["imitation"].append([float((actor(seen) - wanted).square().mean()) for seen, wanted in expert])
                value = self._value(seen := self.states.flatten(0, 1)[None], actor(seen))
            found["value"].append(value.reshape(len(TASKS), -1).mean(1).tolist())
        return {key: np.array(values) for key, values in found.items()}

    def _value(self, seen: Tensor, action: Tensor) -> Tensor:
        """The lower value of both critics, (n,), of the agent at its end."""
        return self.agent.values([part.detach() for part in self.agent.critic], seen, action).amin(1)[0]


def actor_of(agent: Agents, outputs: int) -> State:
    """Parameters of the first agent's actor, or of its most likely action, as those of `cloning.network`."""
    found = {}
    for number, (weight, bias) in enumerate(zip(agent.actor[::2], agent.actor[1::2], strict=True)):
        found[f"{2 * number}.weight"] = weight.detach()[0].T[: outputs if number == 2 else None].clone()
        found[f"{2 * number}.bias"] = bias.detach()[0, 0][: outputs if number == 2 else None].clone()
    return found


def estimated(rung: whence.GradEx | Merged, subsets: np.ndarray) -> State:
    """Parameters of the most likely actions of actors that a rung estimates for subsets, stacked."""
    found = states(rung, subsets)
    return found | {name: found[name][:, :ACTIONS] for name in ("4.weight", "4.bias")}


RUNGS: dict[str, Callable[[Known], whence.GradEx | Merged]] = {
    "imitating": lambda known: known.imitating(known.agent, known.cloned.shown),
    "imitating_early": lambda known: known.imitating(known.at(EARLY), known.cloned.shown),
    "valued": lambda known: known.imitating(known.agent, known.valued()),
    "improved": lambda known: known.imitating(known.agent, known.improved()),
    "one_step": lambda known: whence.OneStep(known.by_critics(known.agent), weighting="task"),
    "vectors": Known.vectors,
}


if __name__ == "__main__":
    main()
