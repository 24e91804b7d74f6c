"""Agents in environments: episodes counted by hand, real agents, and what is refused."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import whence
from clock import overdue_once
from whence.errors import InputError

gymnasium = pytest.importorskip("gymnasium")

from whence.rl import Agents, rollout  # noqa: E402

ALWAYS = {"left": 0, "right": 1}


class Corridor(gymnasium.Env):
    """Walk right to the end: a reward of 1 for each step right, success at the end; it is left after ``patience``."""

    observation_space = gymnasium.spaces.Box(-100, 100, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=5, patience=8, slippery=0.0, tells=True):
        self.length, self.patience, self.slippery, self.tells = length, patience, slippery, tells

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.steps = 0, 0
        return np.array([0.0]), {}

    def step(self, action):
        right = action == 1 and self.np_random.random() >= self.slippery
        self.at, self.steps = self.at + (1 if right else -1), self.steps + 1
        there = self.at >= self.length
        info = {"success": there} if self.tells else {}
        return np.array([float(self.at)]), float(right), there, self.steps >= self.patience, info


def always(action):
    return lambda seen: np.full(len(seen), action)


def majority(envs, seed):
    """A training: the direction that most environments of the subset are named after."""
    votes = sum(1 if name.startswith("right") else -1 for name in envs)
    return always(int(votes > 0))


def test_episodes_are_counted_by_hand():
    for copies, processes in ((1, False), (3, False), (3, True)):
        found = rollout(always(1), Corridor, episodes=7, copies=copies, processes=processes)
        assert (found.returns == 5).all()
        assert (found.lengths == 5).all()
        assert (found.success == 1).all()
        assert len(found.returns) == 7
    found = rollout(always(0), Corridor, episodes=4, copies=2)
    assert (found.returns == 0).all()
    assert (found.lengths == 8).all()
    assert (found.success == 0).all()
    assert np.isnan(rollout(always(0), lambda: Corridor(tells=False), episodes=1).success).all()
    endless = rollout(always(1), lambda: Corridor(length=10**6, patience=10**6), episodes=3, max_steps=20)
    assert (endless.lengths == 20).all()


def test_episodes_are_those_of_a_plain_loop():
    """The same seeds, played one after the other without a vector of environments."""
    make = lambda: Corridor(slippery=0.5)  # noqa: E731
    found = rollout(always(1), make, episodes=6, copies=6, seed=3)
    returns = []
    for seed in np.random.SeedSequence(3).generate_state(6).tolist():
        env, total, ended = make(), 0.0, False
        env.reset(seed=seed)
        while not ended:
            _, reward, terminated, truncated, _ = env.step(1)
            total, ended = total + reward, terminated or truncated
        returns.append(total)
    assert found.returns.tolist() == returns
    assert len(set(returns)) > 1
    again = rollout(always(1), make, episodes=6, copies=6, seed=4).returns
    assert again.tolist() != returns


def test_agents_are_measured_twice_and_explained():
    agents = Agents({"right a": Corridor, "right b": Corridor, "wrong": Corridor}, majority, episodes=3)
    runs = whence.measure(agents, whence.Exhaustive())
    assert runs.target_names[:2] == ("return[right a]", "success[right a]")
    assert runs.maximize == (True,) * 6
    assert len(runs.values) == 2 * 7
    won = runs.subsets[:, :2].sum(1) > runs.subsets[:, 2]
    assert (runs.values[:, 0] == np.where(won, 5, 0)).all()
    assert (runs.values[:, 1] == won).all()
    scores = whence.attribute(whence.fit(runs.targets(["return[right a]"]))).scores[:, 0]
    assert scores[2] < 0 < min(scores[:2])


def test_policies_are_judged_where_they_are_asked_to_be():
    agents = Agents({"right": Corridor, "wrong": Corridor}, majority, targets={"long": lambda: Corridor(7)}, episodes=2)
    subset = whence.Subset([1, 0], agents.task_names)
    assert agents(subset, 0) == {"return[long]": 7.0, "success[long]": 1.0}
    with pytest.raises(InputError, match="must be 0/1"):
        agents(whence.Subset([0.5, 0.5], agents.task_names), 0)


def test_a_folder_knows_its_training_and_its_environments(tmp_path):
    def other(envs, seed):
        return always(1)

    def measured(envs, train):
        return whence.measure(Agents(envs, train, episodes=2), whence.Exhaustive(), path=tmp_path / "run")

    measured({"right": Corridor, "wrong": Corridor}, majority)
    for envs, train in (
        ({"right": Corridor, "wrong": Corridor}, other),
        ({"right": Corridor, "wrong": lambda: Corridor(9)}, majority),
    ):
        with pytest.raises(InputError, match=r"training|environment"):
            measured(envs, train)


def test_an_agent_of_stable_baselines():
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import DummyVecEnv

    def train(envs, seed):
        learner = stable_baselines3.PPO(
            "MlpPolicy", DummyVecEnv(list(envs.values())), n_steps=64, batch_size=64, seed=seed, device="cpu"
        )
        return learner.learn(128)

    envs = {"pole": "CartPole-v1", "short": lambda: gymnasium.make("CartPole-v1", max_episode_steps=50)}
    agents = Agents(envs, train, targets={"pole": "CartPole-v1"}, episodes=3)
    found = agents(whence.Subset([1, 1], agents.task_names), 0)
    assert found["return[pole]"] > 5
    assert found == agents(whence.Subset([1, 1], agents.task_names), 0)


def test_a_training_written_out_in_torch():
    """In the style of single files: policy gradients of a linear policy, which learns to walk right."""
    torch = pytest.importorskip("torch")
    from gymnasium.vector import SyncVectorEnv

    def train(envs, seed):
        torch.manual_seed(seed)
        policy, vector = torch.nn.Linear(1, 2), SyncVectorEnv(list(envs.values()) * 4)
        adam = torch.optim.Adam(policy.parameters(), lr=0.1)
        seen, _ = vector.reset(seed=seed)
        for _ in range(60):
            distribution = torch.distributions.Categorical(logits=policy(torch.as_tensor(seen).float()))
            action = distribution.sample()
            seen, reward, *_ = vector.step(action.numpy())
            loss = -(distribution.log_prob(action) * torch.as_tensor(reward)).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
        return lambda seen: policy(torch.as_tensor(seen).float()).argmax(1)

    agents = Agents({"corridor": Corridor, "long": lambda: Corridor(9, 20)}, train, episodes=4)
    found = agents(whence.Subset([1, 1], agents.task_names), 0)
    assert found["success[corridor]"] == 1.0


@pytest.mark.parametrize(
    ("envs", "message"),
    [
        ({}, "'envs' parameter of Agents must map names to environments"),
        ({"pole": "CartPol-v1"}, "There is no environment 'CartPol-v1'. Did you mean 'CartPole-v1'"),
        ({"pole": 3}, "The environment 'pole' must be a Gymnasium id or a function"),
        ({"pole": "CartPole-v1", "car": "MountainCar-v0"}, "the observation space of 'car' is Box"),
        ({"coarse": "MountainCar-v0", "fine": "MountainCarContinuous-v0"}, "the action space of 'fine' is Box"),
        ({"broken": lambda: 1 / 0}, "The environment 'broken' could not be made: ZeroDivisionError"),
        ({"odd": lambda: object()}, "The environment 'odd' does not follow the API of Gymnasium"),
    ],
)
def test_environments_that_cannot_be_tasks_are_refused_at_once(envs, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(").replace(".", r"\.")):
        Agents(envs, majority)


def test_targets_that_a_policy_of_the_tasks_cannot_act_in_are_refused_at_once():
    with pytest.raises(InputError, match=r"the observation space of 'swing' is Box.* that of 'pole' is Box"):
        Agents({"pole": "CartPole-v1"}, majority, targets={"swing": "Acrobot-v1"})


def test_a_missing_package_of_an_environment_is_named():
    def make():
        raise gymnasium.error.DependencyNotInstalled('MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`')

    said = r"'ant' needs a package that is not installed: MuJoCo .*gymnasium\[mujoco\].*whence\[rl\]"
    with pytest.raises(InputError, match=said):
        Agents({"ant": make}, majority)


@pytest.mark.parametrize("numbers", [{"episodes": 0}, {"episodes": 2.5}, {"max_steps": 0}])
def test_numbers_that_play_nothing_are_refused_at_once(numbers):
    (name,) = numbers
    with pytest.raises(InputError, match=f"'{name}' parameter of Agents must be an integer of at least 1"):
        Agents({"corridor": Corridor}, majority, **numbers)
    with pytest.raises(InputError, match=f"'{name}' parameter of rollout must be an integer of at least 1"):
        rollout(always(1), Corridor, **numbers)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (lambda seen: np.zeros(len(seen) + 1, int), "must return an action for each observation"),
        (3, "A policy must be a function"),
    ],
)
def test_policies_that_cannot_act_are_refused(policy, message):
    with pytest.raises(InputError, match=message):
        rollout(policy, Corridor, episodes=2)


def test_actions_that_are_not_numbers_are_refused():
    with pytest.raises(InputError, match=r"not a number .* diverged"):
        rollout(lambda seen: np.full((len(seen), 1), np.nan, np.float32), "Pendulum-v1", episodes=1)


@pytest.mark.parametrize("action", [7, -1, 0.5])
def test_actions_that_do_not_exist_are_refused(action):
    with pytest.raises(InputError, match=rf"must return actions of Discrete\(2\)\. Got {action} instead"):
        rollout(lambda seen: np.full(len(seen), action), "CartPole-v1", episodes=1)


def test_whole_actions_may_come_as_fractions():
    assert rollout(lambda seen: np.ones(len(seen)), Corridor, episodes=1).success == 1


class Undefined(Corridor):
    def step(self, action):
        seen, _, *rest = super().step(action)
        return seen, np.nan, *rest


class Crashing(Corridor):
    def step(self, action):
        raise RuntimeError("the simulator is unstable")


@pytest.mark.parametrize(
    ("target", "message"), [(Undefined, "a reward that is not a number"), (Crashing, "RuntimeError: the simulator")]
)
def test_the_target_that_cannot_be_played_is_named(target, message):
    agents = Agents({"fine": Corridor}, lambda envs, seed: always(1), targets={"fine": Corridor, "odd": target})
    with pytest.raises(InputError, match=f"Playing in 'odd' failed: .*{message}"):
        agents(whence.Subset([1], agents.task_names), 0)


def test_one_environment_that_crashes_fails_its_rows_and_no_others(tmp_path):
    agents = Agents({"fine": Corridor, "bad": Crashing}, one_step, targets={"fine": Corridor}, episodes=1)
    with pytest.warns(whence.DataWarning, match="failed"):
        runs = whence.measure(agents, whence.Exhaustive(allow_empty=False), seeds=1, keep_going=True, engine="inline")
    assert np.isnan(runs.values[runs.subsets[:, 1] == 1]).all()
    assert not np.isnan(runs.values[runs.subsets[:, 1] == 0]).any()


class Hanging(Corridor):
    def step(self, action):
        Path(os.environ["WHENCE_TEST_MARK"]).touch()
        threading.Event().wait()  # for ever


def one_step(envs, seed):
    """A training that takes a step in every environment."""
    for make in envs.values():
        env = make()
        env.reset(seed=seed)
        env.step(1)
    return always(1)


def test_an_environment_that_hangs_is_given_up_and_the_others_go_on(tmp_path, monkeypatch):
    mark = tmp_path / "hanging"
    monkeypatch.setenv("WHENCE_TEST_MARK", str(mark))
    overdue_once(monkeypatch, mark.exists)
    agents = Agents({"fine": Corridor, "stuck": Hanging}, one_step, targets={"fine": Corridor}, episodes=1)
    subsets = [[1, 0], [0, 1], [1, 0]]
    with pytest.warns(whence.DataWarning, match=r"1 of 3 rows failed.*took longer than 600 s"):
        runs = whence.measure(agents, subsets, seeds=1, timeout=600, path=tmp_path / "run")
    assert np.isnan(runs.values[:, 0]).tolist() == [False, True, False]


def test_a_missing_gymnasium_is_said_in_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    for call in (lambda: Agents({"pole": "CartPole-v1"}, majority), lambda: rollout(always(1), Corridor)):
        with pytest.raises(InputError, match=r'needs Gymnasium: pip install "whence\[rl\]"'):
            call()
