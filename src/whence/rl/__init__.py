"""Reinforcement learning: environments as tasks, and what agents that train in some of them reach.

`Agents` is an outcome function of any environments in the style of Gymnasium and any ``train(envs, seed)``;
`rollout` is what it judges a policy by.
"""

from whence.rl.agents import Agents
from whence.rl.rollouts import Episodes, rollout

__all__ = ["Agents", "Episodes", "rollout"]
