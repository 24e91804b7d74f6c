"""Which lakes to practise on: tabular Q-learning on subsets of frozen lakes, judged on one that is never trained on.

Nine random maps of Gymnasium's FrozenLake are the tasks, and all share one table of Q values by position: what is
learned on one map helps on another where their holes agree. Success is noisy, so every subset is run twice; then
`whence.select` recommends a subset, and its interval is held against new runs of it with other seeds.

    python experiments/rl/frozen_lake.py [--worlds 5] [--subsets 40] [--seeds 2] [--new 30]

Takes about a minute a world on one core.
"""

from __future__ import annotations

import argparse
import functools
import warnings

import gymnasium
import numpy as np
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

import whence
from whence.rl import Agents

SIZE, MAPS, EPISODES, DISCOUNT, RATE, EXPLORE = 5, 9, 60, 0.97, 0.2, 0.3


def lake(seed: int):
    """A random map, on which the agent slips every fifth step."""
    return gymnasium.make(
        "FrozenLake-v1", desc=generate_random_map(SIZE, p=0.8, seed=seed), success_rate=0.8, max_episode_steps=60
    )


def train(envs, seed):
    """Q-learning in the lakes in turn; returns the greedy policy."""
    rng, Q = np.random.default_rng(seed), np.zeros((SIZE * SIZE, 4))
    made = [make() for make in envs.values()]
    for episode in range(EPISODES * len(made)):
        env = made[episode % len(made)]
        at, _ = env.reset(seed=int(rng.integers(2**31)))
        over = False
        while not over:
            best = rng.choice(np.flatnonzero(Q[at] == Q[at].max()))
            action = int(rng.integers(4)) if rng.random() < EXPLORE else int(best)
            to, reward, ended, cut, _ = env.step(action)
            Q[at, action] += RATE * (reward + (not ended) * DISCOUNT * Q[to].max() - Q[at, action])
            at, over = to, ended or cut
    noise = np.random.default_rng(seed).random(Q.shape) * 1e-9
    return lambda seen: (Q + noise)[seen].argmax(1)


def judged(world: int, subsets: int, seeds: int, new: int) -> tuple[str, float, float, float, np.ndarray]:
    """Return the recommended lakes, what is expected of them with its interval, and the outcome of new runs."""
    tasks = {f"lake_{k}": functools.partial(lake, 100 * world + k) for k in range(MAPS)}
    target = {"unseen": functools.partial(lake, 100 * world + 99)}
    agents = Agents(tasks, train, targets=target, episodes=50)
    runs = whence.measure(agents, whence.Bernoulli(0.5), n=subsets, seeds=seeds, seed=world, engine="inline")
    found = whence.select(whence.fit(runs))
    rows = np.repeat(found.subset[None], new, axis=0)
    again = [agents(whence.Subset(row, agents.task_names), 10_000 + seed) for seed, row in enumerate(rows)]
    values = np.array([next(iter(outcome.values())) for outcome in again])
    return ", ".join(found.tasks), float(found.expected[0]), float(found.low[0]), float(found.high[0]), values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=5)
    parser.add_argument("--subsets", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--new", type=int, default=30, help="new runs of the recommended subset")
    arguments = parser.parse_args()
    inside = []
    print("| world | recommended | expected return (90% of runs) | new runs, mean | inside |\n|---|---|---|---|---|")
    for world in range(arguments.worlds):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tasks, mean, low, high, values = judged(world, arguments.subsets, arguments.seeds, arguments.new)
        inside.append(((low <= values) & (values <= high)).mean())
        told = f"{mean:.2f} ({low:.2f} to {high:.2f})"
        print(f"| {world} | {tasks} | {told} | {values.mean():.2f} | {inside[-1]:.0%} |", flush=True)
    print(f"\nInside, mean over worlds: {np.mean(inside):.0%}")


if __name__ == "__main__":
    main()
