"""Agents that train in a subset of environments, as an outcome function."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from whence.errors import InputError, brief, whole_number
from whence.measuring.fingerprint import parts_of
from whence.measuring.outcome_fn import OutcomeFn, name_of
from whence.outcomes.subset import Subset
from whence.rl.rollouts import Make, Policy, makers, rollout

Train = Callable[[Mapping[str, Make], int], Policy]


class Agents(OutcomeFn):
    """Outcome function of environments: train in those of a subset, then play whole episodes in the targets.

    Training is noisy, so `whence.measure` makes two runs of every subset by default.

    Parameters
    ----------
    envs : mapping of str to environment
        The tasks: Gymnasium ids, or functions that make an environment. All must have the same spaces.
    train : callable
        ``train(envs, seed)`` returns a policy; ``envs`` maps the names of the subset to functions that make them.
    targets : mapping of str to environment, optional
        Environments to evaluate policies in, with the same spaces; by default all of ``envs``.
    episodes : int
        Episodes in each target.
    max_steps : int
        Steps after which an episode is cut off.
    processes : bool
        Whether to step environments in separate processes during evaluation.

    Examples
    --------
    >>> import gymnasium, whence
    >>> def train(envs, seed):  # your training; this one is better the more environments it has
    ...     return lambda seen: (seen[:, 2] + len(envs) * seen[:, 3] > 0).astype(int)
    >>> def short():
    ...     return gymnasium.make("CartPole-v1", max_episode_steps=50)
    >>> agents = Agents({"pole": "CartPole-v1", "short": short}, train, episodes=2)
    >>> runs = whence.measure(agents, whence.Exhaustive(), seeds=1)
    >>> runs.target_names, runs.maximize
    (('return[pole]', 'return[short]'), (True, True))
    """

    maximize = True
    replicates = 2

    def __init__(
        self,
        envs: Mapping[str, str | Make],
        train: Train,
        *,
        targets: Mapping[str, str | Make] | None = None,
        episodes: int = 20,
        max_steps: int = 1000,
        processes: bool = False,
    ) -> None:
        if not callable(train):
            raise InputError(
                f"must be a function of (envs, seed). Got {train!r} instead.", parameter="train", of="Agents"
            )
        for name, number in (("episodes", episodes), ("max_steps", max_steps)):
            whole_number(number, name, of="Agents")
        self._envs = makers(envs, "envs")
        self._targets = self._envs if targets is None else makers(targets, "targets", self._envs)
        self._train, self._episodes = train, episodes
        self._max_steps, self._processes = max_steps, processes
        self.task_names: tuple[str, ...] = tuple(self._envs)
        self.provenance = {"outcome": f"mean of {episodes} episodes of a policy trained on the subset"}

    @property
    def fingerprint(self) -> Mapping[str, str]:  # type: ignore[override]
        """The training, how each environment is made, and how policies are judged."""
        used: dict[str, object] = {f"environment {name}": make for name, make in self._envs.items()}
        used |= {f"target {name}": make for name, make in self._targets.items()} | {"training": self._train}
        parts = {f"{of}: {name}": value for of, function in used.items() for name, value in parts_of(function)}
        names = {of: name_of(function) for of, function in used.items()}
        return names | parts | {"episodes": f"{self._episodes} of at most {self._max_steps} steps"}

    def __call__(self, subset: Subset, seed: int) -> dict[str, float]:
        weights = np.asarray(subset)
        if not np.isin(weights, (0, 1)).all():
            raise InputError("Agents train in an environment or not: subsets must be 0/1. Got weights instead.")
        chosen = {name: self._envs[name] for name, inside in zip(self.task_names, weights, strict=True) if inside}
        policy = self._train(chosen, seed)
        found: dict[str, float] = {}
        for place, (name, make) in enumerate(self._targets.items()):
            own_seed = int(np.random.SeedSequence([seed, place]).generate_state(1)[0])
            try:
                played = rollout(
                    policy,
                    make,
                    episodes=self._episodes,
                    seed=own_seed,
                    max_steps=self._max_steps,
                    processes=self._processes,
                )
            except Exception as failed:
                raise InputError(f"Playing in '{name}' failed: {brief(failed)}") from failed
            found[f"return[{name}]"] = float(played.returns.mean())
            if not np.isnan(played.success).all():
                found[f"success[{name}]"] = float(np.nanmean(played.success))
        return found
