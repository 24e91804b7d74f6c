"""The experiments on Meta-World: what is stacked equals what is made one at a time, and numpy equals torch."""

import sys
import warnings
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

gymnasium = pytest.importorskip("gymnasium")
torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "experiments" / "rl"))

import cloning  # noqa: E402
import crew  # noqa: E402
import farm  # noqa: E402
import faster  # noqa: E402
import mt10  # noqa: E402
import mt10_results as results  # noqa: E402
import policy_estimates  # noqa: E402
import sac  # noqa: E402
import sac_companions  # noqa: E402
import sac_estimates  # noqa: E402
import sac_linearity  # noqa: E402
import sac_results  # noqa: E402
import sac_rungs  # noqa: E402
import sac_subsets  # noqa: E402

import whence  # noqa: E402

WIDTH, HORIZON = 8, 12


@pytest.fixture(scope="module")
def demos():
    """Demonstrations as `mt10` has them, of an expert that is linear in what it sees."""
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(10, 5, HORIZON + 1, mt10.SEEN)).astype(np.float32)
    seen[..., -3:] = 0.5  # never changes
    expert = np.tanh(seen[:, :, :-1] @ rng.normal(size=(mt10.SEEN, 4)) / 6).astype(np.float32)
    reward = rng.random((10, 5, HORIZON)).astype(np.float32)
    return {"seen": seen, "expert": expert, "done": expert, "reward": reward, "success": reward > 0.5}


@pytest.fixture(scope="module")
def cloned(demos):
    recipe = whence.Recipe(steps=30, lr=1e-2, batch_size=16, weighting="task")
    return cloning.Cloning(demos, WIDTH, recipe, "cpu")


def some_subsets():
    subsets, wanted = cloning.design()
    return subsets[[0, 50, 130, 332]], wanted


def test_the_design_has_all_subsets_of_seven_and_four_once():
    subsets, wanted = cloning.design()
    assert len(np.unique(subsets, axis=0)) == len(subsets) == 120 + 210 + 10 + 1
    assert (wanted[:120] == 1).all()
    assert (wanted[120:] == subsets[120:]).all()
    chosen = crew.Crew.sevens(40, 10)
    assert len(np.unique(chosen.subsets[:40], axis=0)) == 40
    assert (chosen.subsets.sum(1) == 7).all()
    assert [int((chosen.seeds == seed).sum()) for seed in range(3)] == [40, 10, 10]
    assert (chosen.subsets[40:50] == chosen.subsets[50:]).all()


def test_policies_trained_side_by_side_are_those_of_a_plain_loop(cloned):
    subsets, _ = some_subsets()
    side_by_side = cloned.train(subsets, seed=1)
    for row in range(len(subsets)):
        model = cloning.network(WIDTH, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
        tasks = cloned.problem.tasks
        sizes = tasks.sizes
        batches = whence.models.sampling.draw_batches(
            subsets[row : row + 1], np.array([100_000 + row]), sizes, cloned.recipe, cloned.recipe.steps
        )
        for drawn in batches:
            inputs, labels = tasks.rows(torch.from_numpy(drawn[0]))
            optimizer.zero_grad()
            cloned.problem.loss(model(inputs), labels).mean().backward()
            optimizer.step()
        for name, value in model.state_dict().items():
            torch.testing.assert_close(side_by_side[name][row], value, rtol=1e-4, atol=1e-5)


def test_the_numpy_policy_acts_as_the_torch_policy_on_raw_observations(cloned, demos):
    subsets, _ = some_subsets()
    states = cloned.train(subsets, seed=0)
    flat = cloned.policies(states)
    seen = np.hstack([demos["seen"][3, 0], np.tile(np.eye(10)[3], (HORIZON + 1, 1))]).astype(np.float32)
    scaled = torch.from_numpy((seen - cloned.mean) / cloned.scale)
    for row in range(len(subsets)):
        wanted = cloned.problem.output_fn({name: value[row] for name, value in states.items()}, scaled)
        found = mt10.act(mt10.layers_of(flat[row], WIDTH), seen)
        np.testing.assert_allclose(found, wanted.clamp(-1, 1).numpy(), rtol=1e-4, atol=1e-5)
    agents = sac.Agents([3, 4], WIDTH, "cpu")
    flat = mt10.folded(agents.policies().numpy(), WIDTH, cloned.mean, cloned.scale)
    wanted, _ = agents.act(scaled.expand(2, -1, -1))
    for row in range(2):
        found = mt10.act(mt10.layers_of(flat[row], WIDTH), seen, "tanh")
        np.testing.assert_allclose(found, wanted[row].detach().numpy(), rtol=1e-4, atol=1e-5)


def replay_of(tasks, shown=False, seed=0, batch=12):
    """Replay of agents with the same answer to whether they are shown demonstrations, whose rewards are 100 + task."""
    demos = torch.arange(10.0)[:, None, None].expand(10, 30, sac.ROW) + 100
    sizes = {"capacity": 40, "batch": batch, "seed": seed}
    replay = sac.Replay([np.array(own) for own in tasks], np.full(len(tasks), bool(shown)), demos, **sizes)
    random, n = torch.Generator().manual_seed(seed), sum(len(own) for own in tasks)
    for _ in range(5):  # more than it holds
        seen = torch.randn(n, 11, mt10.SEEN, generator=random)
        action = torch.randn(n, 10, mt10.ACTIONS, generator=random).tanh()
        replay.add(seen, action, action[..., 0])
    return replay


def test_stacked_agents_learn_as_single_ones():
    seeds, tasks = [5, 6, 7], [[0, 3], [1, 2, 4], [8]]
    together = sac.Agents(seeds, WIDTH, "cpu")
    replay = replay_of(tasks)
    batches = [replay.draw() for _ in range(20)]
    for batch in batches:
        together.update(*batch)
    for row, seed in enumerate(seeds):
        alone = sac.Agents([seed], WIDTH, "cpu")
        for *parts, noise in batches:
            alone.update(*(part[row : row + 1] for part in parts), noise[:, row : row + 1])
        for name, value in sac_subsets.networks(alone).items():
            torch.testing.assert_close(sac_subsets.networks(together)[name][row], value[0], rtol=1e-5, atol=1e-5)


def test_the_losses_of_sac_are_those_of_a_plain_agent():
    """One agent, written out with torch.distributions and without stacking."""
    agents, replay = sac.Agents([2], WIDTH, "cpu"), replay_of([[4, 7]])
    agents.log_alpha.data[:] = torch.linspace(-1, 1, 10)
    seen, action, reward, after, task, noise = replay.draw()

    def network(layers, which, x, normed):
        parts = [part.detach()[which] for part in layers]
        for weight, bias in ((parts[0], parts[1]), (parts[2], parts[3])):
            x = x @ weight + bias
            x = torch.relu((x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
                           if normed else x)  # fmt: skip
        return x @ parts[4] + parts[5]

    def acted(x, e):
        mean, wide = network(agents.actor, 0, x, False).chunk(2, -1)
        std = (-5 + 3.5 * (wide.tanh() + 1)).exp()
        raw = mean + std * e
        density = torch.distributions.TransformedDistribution(
            torch.distributions.Normal(mean.double(), std.double()), torch.distributions.TanhTransform(cache_size=1)
        )
        return raw.tanh(), density.log_prob(density.transforms[0](raw.double())).sum(-1)

    def least(layers, x, a):
        values = [network(layers, twin, torch.cat([x, a], -1), True)[:, 0] for twin in range(2)]
        return torch.minimum(*values), values

    alpha = agents.log_alpha.detach().exp()[0][task[0]]
    next_action, next_log = acted(after[0], noise[0, 0])
    wanted = reward[0] + 0.99 * (least(agents.target, after[0], next_action)[0] - alpha * next_log)
    _, values = least(agents.critic, seen[0], action[0])
    own, own_log = acted(seen[0], noise[1, 0])
    expected = (
        sum(((value - wanted) ** 2).mean() for value in values),
        (alpha * own_log - least(agents.critic, seen[0], own)[0]).mean(),
        -(agents.log_alpha.detach()[0][task[0]] * (own_log - 4)).mean(),
    )
    for found, value in zip(agents.losses(seen, action, reward, after, task, noise), expected, strict=True):
        assert float(found.detach()) == pytest.approx(float(value), rel=1e-4)


def test_half_of_a_batch_is_demonstrations_of_the_own_tasks():
    tasks = [[4, 7], [0, 1, 9], [3]]
    seen, action, reward, after, task, noise = replay_of(tasks, shown=True).draw()
    assert seen.shape == after.shape == (3, 12, 49)
    assert noise.shape == (2, 3, 12, 4)
    for with_task in (seen, after):
        assert (with_task[..., mt10.SEEN :].argmax(-1) == task).all()
    assert task.tolist() == [[4, 7] * 6, [0, 1, 9] * 4, [3] * 12]
    is_shown = reward > 50
    assert is_shown.tolist() == [[False] * 6 + [True] * 6] * 3
    assert (reward[is_shown] == 100 + task[is_shown]).all()
    assert (action[~is_shown].abs() < 1).all()


def test_agents_without_demonstrations_learn_from_what_they_did():
    tasks, batch = [[4, 7], [0, 1, 9]], 3000
    replay = replay_of(tasks, batch=batch)
    assert not (replay.draw()[2] > 50).any()
    rows = torch.arange(replay.n_envs)[:, None].expand(-1, 11).float()
    for _ in range(4):  # each step tells its environment
        replay.add(torch.zeros(replay.n_envs, 11, mt10.SEEN), torch.zeros(replay.n_envs, 10, mt10.ACTIONS), rows[:, 1:])
    own = replay.draw()[2]
    assert [set(row.tolist()) for row in own] == [{0, 1}, {2, 3, 4}]


def test_steps_are_kept_with_what_follows_them():
    none = torch.zeros(10, 1, sac.ROW)
    replay = sac.Replay([np.array([0, 1])], np.array([False]), none, capacity=20, batch=100, seed=0)
    seen = torch.arange(11.0).expand(2, 11).unsqueeze(-1).expand(-1, -1, mt10.SEEN)
    replay.add(seen, torch.zeros(2, 10, mt10.ACTIONS), torch.arange(10.0).expand(2, 10))
    before, _, reward, after, *_ = replay.draw()
    assert (before[..., 0] == reward).all()
    assert (after[..., : mt10.SEEN] == reward[..., None] + 1).all()
    assert sorted(reward.unique().tolist()) == list(range(10))


def test_processes_get_about_as_many_environments_each():
    sizes = [10, 10, *[7] * 9, *[1] * 12]
    found = farm.shares(sizes, 4)
    assert sorted(agent for own in found for agent in own) == list(range(len(sizes)))
    assert {sum(sizes[agent] for agent in own) for own in found} <= {23, 24}
    assert farm.shares([3, 3], 9) == [[0], [1]]


def test_agents_are_read_as_they_were_written(tmp_path):
    found = whence.Outcomes(
        (whole := crew.Crew.sevens(40, 0)).subsets, whole.subsets + 0.0, task_names=mt10.TASKS, maximize=True
    )
    with pytest.warns(whence.DataWarning, match="outside the range of the runs"):  # of seven tasks
        second = crew.second(found, np.eye(10))
    (tmp_path / "crew.csv").write_text("\n".join(second.lines()))
    again = crew.Crew.read(tmp_path / "crew.csv")
    assert again.kind == second.kind
    for name in ("subsets", "seeds", "starts", "shown"):
        np.testing.assert_array_equal(getattr(again, name), getattr(second, name))
    sevens = crew.Crew.sevens(10, 10)
    mine = [row for row, kind in zip(second.subsets, second.kind, strict=True) if kind == "sevens"]
    np.testing.assert_array_equal(mine, sevens.subsets[10:])
    assert [kind for kind, shown in zip(second.kind, second.shown, strict=True) if not shown] == ["plain"] * 10
    fours = [(kind, row) for kind, row in zip(second.kind, second.subsets, strict=True) if " with " in kind]
    assert len(fours) == 36
    assert all(row.sum() == 4 and row[mt10.TASKS.index(kind.split(" with ")[0])] for kind, row in fours)
    steps = 100 * second.subsets.sum(1)
    steps[[3, 60]] -= 100
    cloning.save(tmp_path / "sac_truth.npz", kinds=second.kind, seeds=second.seeds, subsets=second.subsets, steps=steps)
    left = crew.without(second, [tmp_path])
    assert [(kind, int(start)) for kind, start in zip(left.kind, left.starts, strict=True)] == [
        (second.kind[row], int(second.starts[row])) for row in (3, 60)
    ]
    (tmp_path / "crew.csv").write_text("kind,tasks,seed,start,demonstrations\nalone,reach+pull,0,0,1\n")
    with pytest.raises(whence.InputError, match=r"'reach\+pull' are not tasks of MT10: reach, push"):
        crew.Crew.read(tmp_path / "crew.csv")


def test_processes_draw_the_actions_of_their_agents():
    agents = sac.Agents([3, 4], WIDTH, "cpu")
    seen, noise = torch.randn(2, 5, 49), torch.randn(2, 5, mt10.ACTIONS)
    wanted, _ = agents.act(seen, noise)
    for row, flat in enumerate(agents.drawn().numpy()):
        layers = mt10.layers_of(flat, WIDTH, 2 * mt10.ACTIONS)
        found = farm.sample(layers, seen[row].numpy(), noise[row].numpy())
        np.testing.assert_allclose(found, wanted[row].detach(), rtol=1e-4, atol=1e-6)


def test_the_actor_of_an_agent_is_a_network_of_cloning(tmp_path):
    agents, seen = sac.Agents([3, 4], WIDTH, "cpu"), torch.randn(5, 49)
    sac_subsets.save_networks(agents, tmp_path)
    model = cloning.network(WIDTH, 0)
    model.load_state_dict(sac_linearity.state(sac_linearity.actors(tmp_path), 1))
    wanted, _ = agents.act(seen.expand(2, -1, -1))
    torch.testing.assert_close(model(seen).tanh(), wanted[1], rtol=1e-2, atol=1e-2)  # kept in half precision


def test_training_goes_on_from_its_files(tmp_path):
    agents = sac.Agents([1, 2], WIDTH, "cpu")
    agents.update(*replay_of([[0, 1], [2]]).draw())
    sac_subsets.save_networks(agents, tmp_path)
    cloning.save(tmp_path / "sac_curve.npz", returns=np.ones((3, 3)))
    other = sac.Agents([3, 4], WIDTH, "cpu")
    assert sac_subsets.load(tmp_path, other, 3).shape == (3, 3)
    with pytest.raises(whence.InputError, match=r"has 3 environments\. Got 4: give the same agents, or another --out"):
        sac_subsets.load(tmp_path, other, 4)
    for name, value in sac_subsets.networks(agents).items():
        torch.testing.assert_close(sac_subsets.networks(other)[name], value, rtol=1e-3, atol=1e-3)


def test_parameters_estimated_by_gradex_have_its_estimated_losses_where_the_policy_is_linear(demos):
    linear = cloning.Cloning(demos, WIDTH, whence.Recipe(steps=20, lr=1e-2, weighting="task"), "cpu")
    model = torch.nn.Linear(mt10.SEEN + 10, mt10.ACTIONS)
    tasks, targets = (
        {name: rows(examples, k) for k, name in enumerate(mt10.TASKS)}
        for examples in (linear.problem.tasks, linear.problem.targets)
    )
    problem = whence.Problem(model, tasks, targets, loss="squared")
    recipe = whence.Recipe(steps=20, lr=1e-2, weighting="task")
    subsets, _ = some_subsets()
    stack = whence.models.stack.Stack(problem, batched=True)
    for rung in (whence.GradEx(problem, 30, projection="gaussian"), whence.GradEx.along(problem, recipe, rank=30)):
        wanted = rung.batch(subsets)
        found = stack.outcomes(policy_estimates.states(rung, subsets))
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-3)


def test_chosen_rows_of_the_design_are_trained_as_among_all(cloned):
    assert cloning.numbers("0:3,7").tolist() == [0, 1, 2, 7]
    subsets, _ = some_subsets()
    together, alone = cloned.train(subsets, seed=1), cloned.train(subsets[[2]], seed=1, rows=np.array([2]))
    for name, value in alone.items():
        torch.testing.assert_close(together[name][2], value[0], rtol=1e-4, atol=1e-5)


class Playing:
    """Rollouts whose returns are a weight of each policy; they break down when told to."""

    def __init__(self, *_, breaks_at=None, **__):
        self.breaks_at, self.calls = breaks_at, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def start(self, policies, wanted, path, seed):
        self.calls.append(len(policies))
        if len(self.calls) == self.breaks_at:
            raise KeyboardInterrupt
        found = np.where(wanted > 0, policies[:, :1], np.nan)[..., None]
        return lambda: (found, (found > 0).astype(float))


def test_an_interrupted_seed_keeps_its_policies_and_ends_as_if_it_had_not_been(demos, tmp_path, monkeypatch):
    def run(folder, together, breaks_at=None):
        rollouts = Playing(breaks_at=breaks_at)
        monkeypatch.setattr(cloning, "Rollouts", lambda *_, **__: rollouts)
        arguments = ["--quick", "--steps", "60", "--width", str(WIDTH), "--together", str(together), "--device", "cpu"]
        monkeypatch.setattr(sys, "argv", ["cloning.py", "--out", str(folder), *arguments])
        cloning.main()
        return rollouts.calls

    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
        cloning.save(tmp_path / name / "demonstrations.npz", **demos)
    assert run(tmp_path / "whole", 3) == [3]
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", 1, breaks_at=2)
    assert run(tmp_path / "broken", 2) == [2]  # the other one is there
    found, expected = (dict(np.load(tmp_path / name / "truth_seed0.npz")) for name in ("broken", "whole"))
    assert found["subsets"].tolist() == expected["subsets"].tolist()
    assert len(np.unique(expected["returns"][:, 0])) == 3
    alone = cloning.Cloning(demos, WIDTH, cloning.recipe(Namespace(steps=60, batch=32)), "cpu")
    losses = alone.losses(alone.train(cloning.quick_design()[0], 0))
    np.testing.assert_allclose(expected["losses"], losses, rtol=1e-4)
    for key in ("returns", "success", "losses"):
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-4, atol=1e-6)
    assert not list((tmp_path / "broken").glob("seed0_*"))


def test_gradients_at_the_joint_policy_are_those_of_autograd(cloned):
    problem = policy_estimates.problem_at_joint(cloned)
    model = cloning.network(WIDTH, 0)
    model.load_state_dict(problem.start)
    found = []
    for k in range(10):
        inputs, labels = rows(problem.tasks, k)
        gradients = torch.autograd.grad(problem.loss(model(inputs), labels).mean(), list(model.parameters()))
        found.append(torch.cat([one.flatten() for one in gradients]).numpy())
    subsets, _ = some_subsets()
    at = policy_estimates.at_joint(cloned, subsets[:2])
    np.testing.assert_allclose(at["cosines"], cosine(np.array(found)), atol=1e-4)
    assert at["error_of_outputs"].shape == at["error_of_change"].shape == (2,)


def cosine(vectors):
    length = np.linalg.norm(vectors, axis=1)
    return vectors @ vectors.T / np.outer(length, length)


@pytest.fixture
def recorded(tmp_path):
    """Two seeds of all subsets and one of those of seven."""
    subsets, wanted = cloning.design()
    for seed, n in enumerate((341, 341, 120)):
        values = np.random.default_rng(seed).random((n, 10, 4)) + np.where(wanted[:n] > 0, 0, np.nan)[..., None]
        truth = {"returns": 100 * values, "success": (values > 0.5).astype(float), "losses": values.mean(2)}
        cloning.save(tmp_path / f"truth_seed{seed}.npz", subsets=subsets[:n], seed=seed, task_names=mt10.TASKS, **truth)
    return tmp_path


def test_recorded_seeds_are_read_and_those_in_part_are_counted(recorded):
    truth = results.Truth(recorded)
    assert truth.seeds == 3
    assert truth.return_.shape == (3, 341, 10)
    assert np.isnan(truth.return_[2, 120:]).all()
    with np.load(recorded / "truth_seed2.npz") as file:
        np.testing.assert_allclose(truth.return_[2, :120], file["returns"].mean(2), rtol=1e-6)
        runs = truth.runs(truth.return_, "return")
        np.testing.assert_allclose(runs.values[240:, :10], file["returns"].mean(2), rtol=1e-6)
    np.testing.assert_allclose(runs.values[:, 10], runs.values[:, :10].mean(1))


def test_what_is_reached_is_looked_up_in_the_seed_that_is_scored(recorded):
    truth = results.Truth(recorded)
    inside = np.flatnonzero((truth.subsets.sum(1) == 4) & (truth.subsets[:, 3] == 1))
    a, b = truth.return_[:2, inside, 3]
    found = results.across(truth, inside, [b, a], 3)
    assert found[0] == pytest.approx((a[b.argmax()] + b[a.argmax()]) / 2)
    assert results.across(truth, inside, [b, a, a], 3).tolist() == found.tolist()  # the third seed has none
    assert results.own(truth, inside, 3)[0] == pytest.approx((a.mean() + b.mean()) / 2)  # the third seed has none


def test_ways_to_choose_are_subsets_of_the_design(recorded):
    truth, cosines = results.Truth(recorded), np.random.default_rng(0).random((10, 10))
    found = results.ways(truth, 3, {}, cosines)
    chosen = {way: truth.subsets[rows] for way, rows in found.items()}
    assert chosen.pop(results.ANY).shape == (84, 10)
    assert chosen["alone"].tolist() == [np.eye(10)[3].tolist()]
    assert chosen["with all nine"].tolist() == [[1.0] * 10]
    near = sorted((k for k in range(10) if k != 3), key=lambda k: -cosines[3, k])[:3]
    assert set(np.flatnonzero(chosen["with the top three by gradients"][0])) == {3, *near}


def on_the_page(after):
    """Cells of the row that needs no surrogate, in the first table after some words."""
    page = (results.ROOT / "benchmarks" / "results" / "mt10.md").read_text(encoding="utf-8")
    _, _, rest = page.partition(after)
    row = next(line for line in rest.splitlines() if line.startswith(f"| {results.ITSELF}"))
    return [cell.strip() for cell in row.split("|")]


def test_the_page_says_what_the_recorded_set_says():
    """By a plain loop over the data set that is shipped."""
    runs = whence.datasets.load("mt10_cloning_return")
    seeds, scores = runs.values.reshape(-1, 120, 10), []
    for split in range(24):
        order = np.random.default_rng(split).permutation(120)[40:]
        own, measured = runs.subsets[order], seeds[split % len(seeds)][order]
        scores.append(np.mean([spearmanr(own[:, k], measured[:, k])[0] for k in range(10)]))
    assert on_the_page("by cloning\n")[3] == f"{np.mean(scores):.2f} ± {np.std(scores, ddof=1):.2f}"


def test_the_page_says_what_the_runs_of_sac_say():
    runs, scores = whence.datasets.load("mt10_sac_return"), []
    for split in range(24):
        order = np.random.default_rng(split).permutation(40)[:10]
        own, measured = runs.subsets[order], runs.values[order]
        varied = [k for k in range(10) if np.ptp(own[:, k]) > 0]  # 0 where all ten have the target
        scores.append(sum(spearmanr(own[:, k], measured[:, k])[0] for k in varied) / 10)
    assert on_the_page("| Return of SAC |")[2] == f"{np.mean(scores):.2f} ± {np.std(scores, ddof=1):.2f}"


def test_the_page_says_what_the_estimates_of_sac_say():
    runs = whence.datasets.load("mt10_sac_return")
    with np.load(results.RUNS / "sac_rung_imitating.npz") as rung:
        subsets, losses = rung["subsets"], rung["linear"]
    rows = [next(i for i in range(120) if (subsets[i] == subset).all()) for subset in runs.subsets[:40]]
    each = np.mean([spearmanr(-losses[rows, k], runs.values[:40, k])[0] for k in range(10)])
    mean = spearmanr(-losses[rows].mean(1), runs.values[:40].mean(1))[0]
    page = (results.ROOT / "benchmarks" / "results" / "mt10.md").read_text(encoding="utf-8")
    title = sac_rungs.TITLES["imitating"]
    assert f"| {title} | {each:.2f} / {mean:.2f} |" in page
    assert f"| return: {title} | 1.4 | {each:.2f} / {mean:.2f} |" in page


@pytest.fixture
def sac_truth():
    """Twenty agents of the first seed, two of their subsets again; outcomes that add up."""
    subsets, seeds = (made := crew.Crew.sevens(20, 2)).subsets, made.seeds
    noise = 0.01 * np.random.default_rng(0).normal(size=(len(subsets), 10))
    values = 2 * subsets + subsets @ np.arange(10)[:, None] / 10 + noise
    steps = np.full(len(subsets), 100)
    return sac_results.SacTruth(subsets, seeds, steps, {"return": values}, list(mt10.TASKS), {})


def test_agents_of_seven_tasks_are_read_from_all_folders(tmp_path):
    first, more = crew.Crew.sevens(4, 1), crew.Crew.sevens(4, 0)
    values, names = np.random.default_rng(0).random((6, 10, 4)), mt10.TASKS
    subsets = np.vstack([more.subsets, np.ones((1, 10)), more.subsets[:1]])
    kinds = {
        "first": {"subsets": first.subsets, "seeds": first.seeds, "steps": 700},
        "more": {
            "subsets": subsets, "seeds": np.arange(6) + 1, "shown": np.array([True] * 3 + [False] + [True] * 2),
            "steps": np.array([700, 700, 600, 700, 1000, 700]),
        },
    }  # fmt: skip
    for folder, found in kinds.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sac_subsets.json").write_text(f'{{"command": "{folder}"}}')
        played = {"returns": values, "success": values > 0.5, "task_names": names}
        cloning.save(tmp_path / folder / "sac_truth.npz", **found, **played)
    truth = sac_results.SacTruth.read(tmp_path / "first", tmp_path / "more")
    assert truth.seeds.tolist() == [0, 0, 0, 0, 1, 2, 1, 2, 6]
    assert truth.first.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(truth.subsets, [*first.subsets, *more.subsets[:2], more.subsets[0]])
    np.testing.assert_allclose(truth.outcomes["return"], values.mean(2)[[0, 1, 2, 3, 4, 5, 0, 1, 5]], rtol=1e-6)
    assert truth.facts == {"command": "first"}


def test_predictions_of_sac_are_judged_as_by_a_plain_loop(sac_truth, monkeypatch):
    monkeypatch.setattr(sac_results, "JUDGED_BY", 5)
    found = sac_results.fidelity(sac_truth, "return", 2)
    for split in range(2):
        held = np.random.default_rng(split).permutation(20)[:5]
        learned = np.random.default_rng(split).permutation(20)[5:]
        table = sac_truth.runs("return", learned)
        guess, measured = whence.fit(table).predict(sac_truth.subsets[held]), sac_truth.outcomes["return"][held]
        for target in range(10):
            if np.ptp(sac_truth.subsets[held, target]) == 0:
                continue
            own = found["whence.fit"]
            assert own["lds"][split, target] == pytest.approx(spearmanr(guess[:, target], measured[:, target])[0])
            inside = sac_truth.subsets[held, target] == 1
            best = measured[inside, target][guess[inside, target].argmax()]
            assert own["gain"][split, target] == pytest.approx(best - measured[inside, target].mean())


@pytest.fixture
def known(tmp_path, demos):
    """An agent of all tasks at two points, its replay, and agents of one task each that ended alike."""
    agents, ends = sac.Agents([0], WIDTH, "cpu"), sac.Agents([900] * 10, WIDTH, "cpu")
    for part in ends.actor:
        part.data *= 1.5
    found = {name: part.numpy() for name, part in sac_subsets.networks(agents).items()}
    np.savez(tmp_path / "sac_point_7.npz", agents=np.array([0]), **found)
    np.savez(tmp_path / "sac_point_3.npz", agents=np.array([0]), **{name: 0 * part for name, part in found.items()})
    sac_subsets.save_networks(ends, tmp_path)
    steps = np.tanh(np.random.default_rng(0).normal(size=(1, 10, 12, sac.ROW)))
    np.savez(tmp_path / "sac_replay.npz", agents=np.array([0]), steps=steps)
    alone = crew.Crew([f"{name} alone" for name in mt10.TASKS], np.eye(10), *[np.full(10, k) for k in (0, 900, 1)])
    (tmp_path / "crew.csv").write_text("\n".join(alone.lines()))
    given = Namespace(out=tmp_path, width=WIDTH, device="cpu", rank=4, examples=5)
    return sac_estimates.Known(given, cloning.Cloning(demos, WIDTH, whence.Recipe(steps=1), "cpu"))


def test_critics_expect_more_of_the_actions_that_are_imitated(known):
    seen = known.states.flatten(0, 1)[None]
    own = known.agent.act(seen)[0].detach()
    value = lambda seen, action: known.agent.values(known.agent.critic, seen[None], action[None]).amin(1)[0].detach()  # noqa: E731
    usual = value(seen[0], own[0]).reshape(10, 12)
    improved = known.improved()
    for k, name in enumerate(mt10.TASKS):
        assert (value(*improved[name]) >= usual[k] - 1e-5).all()
        gains = value(known.states[k], known.actions[k]) - usual[k]
        states, actions = known.valued()[name]
        assert len(states) == 3
        np.testing.assert_array_equal(actions, known.actions[k][gains.argsort(descending=True)[:3]])
    assert (torch.cat([improved[name][1] for name in mt10.TASKS]) - own[0]).abs().mean() > 0.01


def test_estimated_actors_start_at_the_agents_own(known):
    subsets = crew.Crew.sevens(2, 0).subsets
    seen = torch.randn(6, 49)
    wanted = known.agent.act(seen[None])[0][0]
    for rung in (known.imitating(known.agent, known.cloned.shown), whence.OneStep(known.by_critics(known.agent))):
        start = {name: value[:1] for name, value in sac_estimates.estimated(rung, 0 * subsets).items()}
        model = cloning.network(WIDTH, 0)
        model.load_state_dict({name: value[0] for name, value in start.items()})
        torch.testing.assert_close(model(seen).tanh(), wanted, rtol=1e-4, atol=1e-5)
    assert known.at(4).log_alpha.abs().max() == 0  # next to 3
    merged = sac_estimates.estimated(known.vectors(), subsets)
    ends, model = sac.Agents([900], WIDTH, "cpu"), cloning.network(WIDTH, 0)
    for part in ends.actor:
        part.data *= 1.5
    model.load_state_dict({name: value[1] for name, value in merged.items()})
    torch.testing.assert_close(model(seen).tanh(), ends.act(seen[None])[0][0], rtol=1e-2, atol=1e-2)
    found = known.measured({name: value[:1].repeat(2, *[1] * (value.ndim - 1)) for name, value in merged.items()})
    wanted = known.cloned.held_out[mt10.TASKS[3]]
    error = ((model(wanted[0]).tanh() - wanted[1]) ** 2).mean().item()
    np.testing.assert_allclose(found["imitation"][:, 3], error, rtol=1e-3)


def test_what_is_reached_by_number_of_tasks_is_that_of_a_plain_loop(tmp_path):
    subsets = np.vstack([np.ones((2, 10)), crew.Crew.sevens(6, 0).subsets, np.eye(10), np.eye(10)])
    values, names = np.random.default_rng(0).random((28, 10, 4)), mt10.TASKS
    shown, steps = np.arange(28) != 7, 100 * subsets.sum(1)
    steps[1] = 900  # ended early
    cloning.save(
        tmp_path / "sac_truth.npz", subsets=subsets, returns=values, success=values > 0.5, shown=shown, steps=steps,
        task_names=names,
    )  # fmt: skip
    found = sac_companions.played(tmp_path)
    rows = found["shown"] & sac_companions.done(found)
    assert np.flatnonzero(~rows).tolist() == [1, 7]
    means = values.mean(2)
    wanted = [means[[row for row in range(2, 7) if subsets[row, k]], k].mean() for k in range(10)]
    np.testing.assert_allclose(sac_companions.by_task(found, "return", rows & (subsets.sum(1) == 7)), wanted, rtol=1e-6)
    lines = list(sac_companions.companions(tmp_path))
    assert any(line.startswith("| alone | 20 | ") for line in lines)
    assert any(line.startswith("| with all nine | 1 | ") for line in lines)


def test_chosen_companions_are_compared_with_random_ones_seed_by_seed(tmp_path):
    values, kinds = np.random.default_rng(0).random((6, 10, 4)), ["push with top", "push with random"]
    for folder, seeds in (("a", [0]), ("b", [1, 2])):
        (tmp_path / folder).mkdir()
        n = 2 * len(seeds)
        cloning.save(
            tmp_path / folder / "sac_truth.npz", subsets=np.tile(np.eye(10)[1] + np.eye(10)[3], (n, 1)),
            seeds=np.repeat(seeds, 2), kinds=kinds * len(seeds), steps=np.full(n, 200), shown=np.ones(n, bool),
            returns=values[2 * seeds[0] :][:n], success=values[2 * seeds[0] :][:n], task_names=mt10.TASKS,
        )  # fmt: skip
    lines = list(sac_companions.threes(tmp_path / "a", tmp_path / "b"))
    top, random = (values[row::2, 1].mean(1) for row in (0, 1))
    assert lines[2].endswith(f"| {top.mean():.2f} | {top.mean():.0f} |")
    assert lines[3].endswith(f"| {random.mean():.2f} | {random.mean():.0f} |")
    gain, half = (top - random).mean(), 4.3027 * (top - random).std(ddof=1) / 3**0.5  # Student's t of two freedoms
    assert f"{gain:+.2f} ({gain - half:+.2f} to {gain + half:+.2f}) more success" in lines[4]


def test_agents_without_demonstrations_stand_beside_those_of_the_same_subsets(tmp_path):
    subsets, values = crew.Crew.sevens(4, 0).subsets, np.random.default_rng(0).random((4, 10, 4))
    for folder, rows, shown in (("plain", [0, 2], False), ("shown", [1, 0], True)):
        (tmp_path / folder).mkdir()
        cloning.save(
            tmp_path / folder / "sac_truth.npz", subsets=subsets[rows], steps=700 * np.ones(2), task_names=mt10.TASKS,
            shown=np.full(2, shown), returns=values[rows], success=values[rows],
        )  # fmt: skip
    lines = list(sac_companions.plain(tmp_path / "plain", tmp_path / "shown"))
    own = [f"{value:.2f}" if inside else "nan" for value, inside in zip(values[0].mean(1), subsets[0], strict=True)]
    assert lines[2] == f"| with demonstrations | {' | '.join(own)} |"


def test_estimates_of_sac_are_compared_with_the_runs_of_the_same_subsets(sac_truth):
    order = np.random.default_rng(1).permutation(20)
    truth = sac_truth.outcomes["return"][:20]
    rung = sac_rungs.Rung(sac_truth.subsets[:20][order], {"value": truth[order] ** 3}, truth[:5], truth[:5])
    assert rung.rows(sac_truth.subsets[order]).tolist() == list(range(20))
    both = sac_results.SacTruth(**(vars(sac_truth) | {"outcomes": {"return": truth, "success": truth}}))
    both = both.of(np.arange(20))
    *_, line = sac_rungs.alone({"cubed": rung}, both)
    told = np.mean([spearmanr(truth[:, k], truth[:, k])[0] for k in range(10)])
    assert line.split("|")[4].strip().startswith(f"{told:.2f} / ")
    *_, line = sac_rungs.played({"cubed": rung}, both)
    assert line.startswith("| training | ")
    assert line.endswith("| 1.00 |")


def rows(examples, k):
    return examples.rows(examples.owner == k)


# ---- in Meta-World itself ---------------------------------------------------------------------------------


@pytest.fixture
def metaworld(monkeypatch):
    pytest.importorskip("metaworld", reason='Meta-World is not installed: pip install "whence[rl]"')
    monkeypatch.setenv("MUJOCO_GL", "disable")


def test_a_seed_is_a_start_and_the_goal_and_task_are_seen(metaworld):
    env = mt10.shared("reach")
    first, again, other = (env.reset(seed=seed)[0] for seed in (1, 1, 2))
    assert first.shape == env.observation_space.shape
    assert (first == again).all()
    assert (first[36:39] != other[36:39]).all()  # the goal
    assert first[mt10.SEEN :].tolist() == np.eye(10)[0].tolist()
    assert mt10.shared("reach") is env


@pytest.mark.parametrize("name", ["pick-place", "push", "peg-insert-side", "door-open", "reach"])
def test_faster_environments_are_those_of_meta_world(metaworld, monkeypatch, name):
    from metaworld.policies import ENV_POLICY_MAP
    from metaworld.utils import reward_utils
    from scipy.spatial.transform import Rotation

    def played():
        env, expert = mt10.Task(name), ENV_POLICY_MAP[f"{name}-v3"]()
        seen, _ = env.reset(seed=5)
        found = []
        for _ in range(70):  # until the object is grasped
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                action = expert.get_action(seen[: mt10.SEEN].astype(float))
            seen, reward, *_ = env.step(action)
            found.append([*seen, reward])
        return np.array(found), sys.modules[type(env.env).__module__].Rotation

    quick, used = played()
    assert used is faster.Rotation
    monkeypatch.setattr(mt10, "faster", lambda env: env)
    monkeypatch.setattr(reward_utils, "tolerance", reward_utils.tolerance.args[0])
    monkeypatch.setattr(sys.modules[used_module(name)], "Rotation", Rotation)
    wanted, used = played()
    assert used is Rotation
    np.testing.assert_allclose(quick, wanted, rtol=1e-6, atol=1e-6)


def used_module(name):
    from metaworld.env_dict import MT10_V3

    return MT10_V3[f"{name}-v3"].__module__


def test_what_the_gripper_touches_is_what_meta_world_says(metaworld):
    from metaworld.policies import ENV_POLICY_MAP

    env, expert = mt10.Task("pick-place"), ENV_POLICY_MAP["pick-place-v3"]()
    seen, _ = env.reset(seed=5)
    object_id, found, wanted = env.env._get_id_main_object(), [], []
    for _ in range(70):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen, *_ = env.step(expert.get_action(seen[: mt10.SEEN].astype(float)))
        found.append(faster.touching_object(env.env, object_id))
        wanted.append(bool(type(env.env).touching_object(env.env, object_id)))
    assert found == wanted
    assert 0 < sum(wanted) < len(wanted)


def test_rotations_are_those_of_scipy():
    from scipy.spatial.transform import Rotation

    for matrix in Rotation.random(50, rng=0).as_matrix():
        np.testing.assert_allclose(
            faster.Rotation.from_matrix(matrix).as_quat(), Rotation.from_matrix(matrix).as_quat(), atol=1e-12
        )


def test_experts_show_how_to_succeed(metaworld):
    shown = mt10.demonstrations("reach", episodes=2, horizon=70, noise=0.1, seed=0)
    assert shown["seen"].shape == (2, 71, mt10.SEEN)
    assert shown["success"][:, -1].all()
    assert (shown["done"] != shown["expert"]).any()
    assert (np.abs(shown["done"]) <= 1).all()
    again = mt10.demonstrations("reach", episodes=2, horizon=70, noise=0.1, seed=0)
    assert all((again[key] == value).all() for key, value in shown.items())


def test_a_numpy_policy_plays_as_the_torch_policy_does(metaworld, cloned, tmp_path):
    states = cloned.train(np.ones((2, 10)), seed=0)
    np.save(tmp_path / "policies.npy", cloned.policies(states))
    returns, success = mt10.play(str(tmp_path / "policies.npy"), [1], "push", 2, 30, 0, WIDTH, "clip")
    state = {name: value[1] for name, value in states.items()}

    def policy(seen):
        scaled = torch.from_numpy((seen - cloned.mean) / cloned.scale)
        return cloned.problem.output_fn(state, scaled).clamp(-1, 1)

    wanted = whence.rl.rollout(policy, lambda: mt10.shared("push"), episodes=2, seed=0, max_steps=30, copies=1)
    np.testing.assert_allclose(returns[0], wanted.returns, rtol=1e-3)
    assert (success[0] == wanted.success).all()


def test_a_task_that_is_not_in_mt10_is_answered_with_near_names():
    with pytest.raises(whence.InputError, match=r"no task 'door-opne' in MT10\. Did you mean 'door-open'"):
        mt10.Task("door-opne")


def test_a_missing_meta_world_is_said_in_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "metaworld", None)
    monkeypatch.setitem(sys.modules, "metaworld.env_dict", None)
    with pytest.raises(whence.InputError, match=r'Meta-World is not installed .*pip install "whence\[rl\]"'):
        mt10.Task("reach")


@pytest.mark.parametrize("name", ["drawer-close", "push"])
def test_faster_resets_begin_next_to_where_usual_ones_do(metaworld, name):
    usual, quick = mt10.Task(name), mt10.Task(name)
    faster.faster_resets(quick.env)
    for seed in range(3):
        np.testing.assert_allclose(quick.reset(seed=seed)[0], usual.reset(seed=seed)[0], atol=2e-3)
