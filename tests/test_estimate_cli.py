"""The ladder of estimators, its prices, and the verb that climbs it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import whence
from clock import counted_seconds
from whence.cli import app
from whence.errors import DataWarning, InputError
from whence.estimators import trajectory
from whence.estimators.linearity import is_linear
from whence.ladder import probes
from whence.ladder.advice import (
    EXACT,
    EXPECTED,
    MEASURED,
    MIXES,
    Workload,
    added_prices,
    default_mix,
    recommend,
    workload,
)
from whence.ladder.methods import METHODS, Setup, make_estimator
from whence.ladder.probes import Price, extrapolated, probe

pytestmark = pytest.mark.slow

SLOW = """
def slow():
    return problem()[0], whence.Recipe(steps=20, lr=1e-9)
"""

EXPERIMENT = """
import torch, whence
from torch import nn

def problem():
    print("loading the data")
    torch.manual_seed(0)
    centers = torch.randn(4, 5)
    def group(k, n=12):
        inputs = centers[k] + torch.randn(n, 5)
        return inputs, (inputs.sum(1) > 0).long()
    tasks = {name: group(k) for k, name in enumerate(["code", "math", "law", "news"])}
    targets = {"val": group(0, 8), "test": group(1, 8)}
    made = whence.Problem(nn.Linear(5, 2), tasks, targets, metrics=["loss", "accuracy"])
    return made, whence.Recipe(steps=6, lr=0.05, batch_size=4)

def without_recipe():
    return problem()[0]

def nothing():
    return None

def a_mapping():
    return {"model": nn.Linear(5, 2), "tasks": {}}

def misspelt():
    return *problem(), {"merg": {"early": 0.5}}

def no_options():
    return *problem(), 0.5

def no_recipe():
    return problem()[0], {"steps": 6}

def wrong_labels():
    inputs = torch.zeros(2, 5)
    return whence.Problem(nn.Linear(5, 2), (inputs, torch.tensor([0, 7])), (inputs, torch.tensor([0, 1])))

def broken():
    raise RuntimeError("no data here")

def briefly():
    from whence.baselines import Langevin
    return *problem(), {"bif": {"sampler": Langevin(damping=5.0, chains=20, draws=60, thin=4)}}

def slower():
    return *problem(), {"merge": {"early": 0.5}}

def longer():
    return problem()[0], whence.Recipe(steps=12, lr=0.05, batch_size=4)

def bent():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    tasks = {name: (torch.randn(12, 5), torch.arange(12) % 2) for name in "abcd"}
    return whence.Problem(model, tasks, tasks["a"]), whence.Recipe(steps=40, lr=0.05, batch_size=4)
"""
WORK = Workload(25, 5000, 900, n_params=400_000, n_trained=400_000)
# In seconds: a true run takes two, so that 500 subsets cost 2.5, 5, 110, 27.5 and 500 of them.
ONCE_AND_EACH = {
    "one-step": (4.0, 0.002),
    "gradex": (8.0, 0.004),
    "gradex-along": (200.0, 0.04),
    "merge": (50.0, 0.01),
    "retrain": (0.0, 2.0),
}
PRICES = {method: Price(method, *cost) for method, cost in ONCE_AND_EACH.items()}


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="whence")


def document_of(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp.py").write_text(EXPERIMENT)
    return tmp_path


# ---- prices ----------------------------------------------------------------------------------------------


class Counting(nn.Linear):
    """A model that counts the examples that pass through it."""

    passed = 0

    def forward(self, inputs):
        Counting.passed += len(inputs)
        return super().forward(inputs)


def counted_setup(recipe=None, *, params=None, **options):
    generator = torch.Generator().manual_seed(0)

    def group(n):
        return torch.randn(n, 3, generator=generator), torch.randint(0, 2, (n,), generator=generator)

    tasks = {"a": group(10), "b": group(6), "c": group(8)}
    problem = whence.Problem(Counting(3, 2), tasks, group(7), params=params)
    options = {method.replace("_", "-"): given for method, given in options.items()}
    return Setup(problem, recipe or whence.Recipe(steps=5, batch_size=4), options)


def passes(estimator, n):
    """Examples that pass forward for n subsets more, after the first."""
    subsets = np.eye(3)[np.arange(n + 1) % 3]

    def measure(rows):
        before = Counting.passed
        for row in rows:
            estimator(row, 0)
        return Counting.passed - before

    measure(subsets[:1])
    return measure(subsets[1:])


@pytest.mark.parametrize("method", ["one-step", "merge"])
def test_a_subset_takes_the_queries_once_there_are_vectors(method):
    assert passes(make_estimator(counted_setup(), method, batched=False), 4) == 4 * 7


def test_a_true_run_takes_its_batches_and_the_queries():
    assert passes(make_estimator(counted_setup(), "retrain", batched=False), 4) == 4 * (5 * 4 + 7)


def test_merging_takes_a_run_for_each_task():
    vectors = make_estimator(counted_setup(), "merge", batched=False)
    before = Counting.passed
    _ = vectors.vectors
    assert Counting.passed - before == 3 * 5 * 4


@pytest.mark.filterwarnings("ignore:The merge of all tasks is worse")
def test_merging_outputs_of_short_runs_takes_the_queries_once_for_each_run():
    problem = counted_setup(merge={"merge": "outputs", "early": 0.4})
    vectors = make_estimator(problem, "merge", batched=False)
    before = Counting.passed
    _ = vectors.vectors
    trained = Counting.passed - before
    assert trained == 3 * 2 * 4
    vectors._outputs_of_runs(vectors.problem.targets)
    assert Counting.passed - before - trained == 4 * 7
    assert passes(vectors, 4) == 0


def test_gradex_along_takes_a_run_and_the_gradients_on_its_way():
    problem = counted_setup(gradex_along={"rank": 12})

    before = Counting.passed
    make_estimator(problem, "gradex-along")
    forward = Counting.passed - before
    run, ways, loss = 5 * 4, 3 * 24, 24  # W₀ and two points: 12 directions of 3 tasks, plain and as AdamW scales them
    assert forward == run + ways + loss


# ---- probes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fixed", "slope"), [(0.0, 1.0), (0.1, 0.01), (3.0, 0.5)])
@pytest.mark.parametrize("most", [1, 40, 1000])
def test_what_more_work_takes_is_told_from_a_little_of_it(fixed, slope, most, monkeypatch):
    done = []

    def prepare(size):
        return lambda: done.append(size)

    monkeypatch.setattr(probes, "seconds", lambda work: work() or fixed + slope * done[-1])
    found = extrapolated(prepare, most)
    whole = fixed + slope * most
    assert found == pytest.approx(whole) if fixed < probes.LONG else whole <= found <= whole + fixed * most
    assert sum(done[:-1]) * slope <= 2 * max(probes.MOMENT, slope)  # and little of it is done


def small_problem(model, steps):
    """20 tasks of images, a model, and runs of some steps."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, 64, generator=generator)

    def group(n):
        labels = torch.randint(10, (n,), generator=generator)
        return patterns[labels] + torch.randn(n, 64, generator=generator), labels

    problem = whence.Problem(model, {f"t{k}": group(30) for k in range(20)}, group(60))
    return Setup(problem, whence.Recipe(steps=steps, lr=3e-3))


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 34), nn.ReLU(),
        nn.Linear(34, 10),
    )  # fmt: skip


@pytest.fixture(scope="module")
def small():
    """The problem of a small network, and the prices of its methods for 24 subsets, by counted operations."""
    problem = small_problem(convolutions(), 80)
    assert 3700 < workload(problem).n_trained < 3900
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "seconds", counted_seconds)
        return problem, probe(problem, 24)


@pytest.mark.parametrize("method", ["one-step", "gradex", "merge"])
def test_probed_prices_are_those_of_the_whole_work(method, small):
    """In true runs; counting passes erred by hundreds of times."""
    problem, found = small
    subsets = whence.FixedSize(10).draw(20, 24, seed=0)

    def measured(name):
        estimator = make_estimator(problem, name)
        return counted_seconds(lambda: estimator.batch(subsets, np.arange(24)))

    true = measured(method) / measured("retrain") * 24
    told = found[method].total(24) / found["retrain"].each
    assert told == pytest.approx(true, rel=0.25)


def test_a_small_network_is_linearised_rather_than_trained_on_every_task(small):
    problem, _ = small
    cheap = {"one-step": (0.1, 0.001), "gradex": (1.0, 0.001), "merge": (3.0, 0.001)}
    expensive = {"gradex-along": (10.0, 0.01), "retrain": (0.0, 0.1)}
    prices = {method: Price(method, *cost) for method, cost in (cheap | expensive).items()}
    method, why = recommend(prices, workload(problem), 500)
    assert method == "gradex", why
    assert "On small models it had a rank correlation of" in why


def test_for_a_linear_model_it_recommends_gradex(monkeypatch):
    monkeypatch.setattr(probes, "seconds", counted_seconds)
    problem = small_problem(nn.Linear(64, 10), 2000)
    work, found = workload(problem), probe(problem, 500)
    assert (work.linear, work.exact) == (True, True)
    method, why = recommend(found, work, 500)
    assert method == "gradex", (why, found)
    assert "linear in what is trained" in why


def test_prices_take_the_options_of_the_methods_and_leave_their_folders_alone(tmp_path):
    features = whence.Features(store=tmp_path / "features", examples=3)
    setup = counted_setup(
        merge={"path": tmp_path / "vectors", "merge": "outputs", "early": 0.4},
        gradex={"features": features, "rank": 4, "projection": "gaussian"},
        gradex_along={"rank": 5, "of": "margin", "at": (0.5,)},
    )
    found = probe(setup, 12)
    assert list(found) == list(METHODS)
    assert not list(tmp_path.iterdir())
    assert found["gradex"].bytes == 4 * (3 * 3 + 7) * 2 * 4
    assert found["gradex-along"].bytes == 4 * (24 + 7) * 1 * 5
    assert found["merge"].bytes == 4 * 3 * 8 + 4 * 4 * 7 * 2
    assert all(price.once >= 0 and price.each >= 0 for price in found.values())


def test_the_workload_is_that_of_the_problem():
    problem = counted_setup()
    expected = Workload(3, 24, 7, n_params=8, n_trained=8, linear=True, exact=True)
    assert workload(problem) == expected
    assert workload(counted_setup(params="bias")).n_trained == 2
    assert workload(counted_setup(merge={"early": 0.4})).early == 0.4
    assert workload(counted_setup(gradex={"rank": 2})).exact
    assert not workload(counted_setup(gradex={"rank": 1})).exact
    assert not workload(counted_setup(gradex={"projection": "gaussian"})).exact


@pytest.mark.parametrize(("params", "linear"), [(None, False), ("2.*", True), ("0.*", False), ("*.bias", False)])
def test_linear_is_what_the_outputs_are_in_what_is_trained(params, linear):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    group = (torch.randn(9, 3), torch.zeros(9, dtype=torch.long))
    assert is_linear(whence.Problem(model, {"a": group}, group, params=params)) is linear


def test_a_head_that_starts_at_zero_is_linear_and_what_is_below_it_is_not():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    nn.init.zeros_(model[2].weight)
    group = (torch.randn(9, 3), torch.zeros(9, dtype=torch.long))
    assert is_linear(whence.Problem(model, {"a": group}, group, params="2.*"))
    assert not is_linear(whence.Problem(model, {"a": group}, group))


def test_only_methods_that_can_be_carried_out_have_a_price():
    setup = replace(counted_setup(), recipe=None)
    assert list(probe(setup, 5)) == ["one-step", "gradex"]


# ---- advice ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "budget", "method"),
    [
        (500, None, "merge"),  # for less than two true runs for each task
        (500, 100, "merge"),
        (500, 120, "gradex-along"),
        (40, None, "retrain"),  # fewer than two for each of 25 tasks
        (500, 600, "retrain"),
        (500, 10, "one-step"),
        (500, 0.1, "one-step"),
    ],
)
def test_what_is_recommended_fits_the_budget(n, budget, method):
    chosen, why = recommend(PRICES, WORK, n, budget)
    assert chosen == method, why
    if budget and budget >= 1:
        assert PRICES[chosen].total(n) <= budget * PRICES["retrain"].each
    assert ("exceed the budget" in why) == (budget == 0.1)


def test_of_two_that_come_as_near_the_cheaper_is_taken():
    small, few = replace(WORK, n_trained=4000), ("influence", "trak", "retrain")
    assert abs(small.expected("influence") - small.expected("trak")) < 0.05
    for cheaper, dearer in (("influence", "trak"), ("trak", "influence")):
        found = {cheaper: PRICES["one-step"], dearer: PRICES["merge"], "retrain": PRICES["retrain"]}
        assert recommend({name: found[name] for name in few}, small, 500)[0] == cheaper
    assert recommend(PRICES, small, 500)[0] == "gradex"  # which is nearer than these


def test_runs_of_a_quarter_of_the_steps_are_offered_where_nothing_else_fits():
    dear = {**PRICES, **{name: Price(name, 900.0, 0.1) for name in ("one-step", "gradex")}}
    method, why = recommend(dear, WORK, 500, 10)
    assert method == "merge"
    assert "a quarter of the steps and by outputs" in why
    assert "it costs 6.4 true runs instead of 28" in why
    method, why = recommend(dear, WORK, 500, 6)
    assert (method, why) == ("retrain", "no estimate fits the budget: spend it on 6 true runs.")
    assert "exceed the budget" in recommend(dear, WORK, 500, 2)[1]  # too few to fit anything to


def test_true_runs_are_recommended_where_estimates_cost_as_much():
    quick = {**PRICES, "retrain": Price("retrain", 0.0, 0.021)}
    method, why = recommend(quick, WORK, 500)
    assert method == "retrain"
    assert why == "no estimate is worth its price here: a surrogate of 50 true runs is about as good."
    exact = replace(WORK, linear=True, exact=True)
    assert recommend({**quick, "gradex": Price("gradex", 80.0, 0.0)}, exact, 500)[0] == "retrain"
    assert recommend(PRICES, exact, 500)[0] == "gradex"


def test_runs_of_a_few_seconds_are_made_and_not_estimated():
    found = {name: Price(name, 0.001, 0.0) for name in PRICES} | {"retrain": Price("retrain", 0.0, 0.01)}
    assert recommend(found, WORK, 500) == ("retrain", "500 true runs are the truth itself, and take 5 s.")
    assert recommend(found, WORK, 5000)[0] != "retrain"


def test_a_linear_model_has_one_figure_for_gradex():
    assert replace(WORK, linear=True, exact=True).evidence("gradex") == (EXACT, EXACT, EXACT)


def test_nothing_is_trained_without_a_recipe():
    found = {name: PRICES[name] for name in ("one-step", "gradex")}
    for work, expected in ((WORK, "one-step"), (replace(WORK, linear=True, exact=True), "gradex")):
        method, why = recommend(found, work, 500)
        assert method == expected
        assert "without a recipe" in why


# ---- problems --------------------------------------------------------------------------------------------


def test_options_of_a_method_reach_its_estimator():
    recipe = whence.Recipe(steps=5, batch_size=4, optimizer="sgd", weighting="task")
    problem = counted_setup(recipe, merge={"early": 0.4}, one_step={"scale": 0.5})
    assert make_estimator(problem, "merge").steps == 2
    assert make_estimator(problem, "one-step").scale == 0.5
    with pytest.raises(InputError, match=r"There is no method 'merging'\. Did you mean 'merge'\?"):
        make_estimator(problem, "merging")


def test_every_method_weights_tasks_as_the_recipe_does():
    for weighting in ("sample", "task"):
        setup = counted_setup(whence.Recipe(steps=5, batch_size=4, optimizer="sgd", weighting=weighting))
        for method in set(METHODS) - {"retrain"}:
            assert make_estimator(setup, method).weighting == weighting
        assert str(make_estimator(setup, "one-step").optimizer) == "sgd"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nothing", "exp.py:nothing: The function must return a whence.Problem, or (problem, recipe), or"),
        ("a_mapping", "Got dict instead."),
        ("misspelt", "There is no method 'merg' to give options to. Did you mean 'merge'?"),
        ("no_options", "The options must be a mapping by method. Got float instead."),
        ("no_recipe", "The recipe must be a whence.Recipe or None. Got dict instead."),
        ("wrong_labels", "exp.py:wrong_labels: Labels of the tasks must be from 0 to 1, one per output. Got 7."),
        ("broken", "exp.py:broken: cannot be called (RuntimeError: no data here)"),
        ("absent", "there is no 'absent' in it"),
    ],
)
def test_a_function_that_gives_no_problem_is_one_sentence(name, sentence, folder):
    result = run("estimate", f"exp.py:{name}")
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


# ---- the verb --------------------------------------------------------------------------------------------


def test_without_a_method_it_shows_prices_and_recommends_one(folder):
    result = run("estimate", "exp.py:problem", "-n", "10", "--budget", "8")
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "4 tasks, 48 examples; 16 queries; 12 of 12 parameters are trained. The model is linear in them." in said
    for method, own in METHODS.items():
        assert method in result.stdout
        assert own.trust.split()[0] in result.stdout
    recommended = re.search(r"Recommended: (\S+)\.", said)[1]
    assert f"--method {recommended} -n {8 if recommended == 'retrain' else 10}" in said
    found = document_of("estimate", "exp.py:problem", "-n", "10", "--budget", "8")
    assert found["recommended"] in METHODS
    by_method = {row["method"]: row for row in found["prices"]}
    assert list(by_method) == list(METHODS)
    for row in by_method.values():
        assert row["total"] == pytest.approx(row["once"] + 10 * row["each"])
    assert by_method["gradex"]["expected_lds"] == EXACT


def test_without_a_number_of_subsets_it_takes_as_many_as_there_are(folder):
    assert document_of("estimate", "exp.py:problem")["n"] == 2**4 - 1
    found = document_of("estimate", "exp.py:problem", "--method", "one-step", "-o", "cheap")
    assert found["rows"] == 2**4 - 1


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_fills_a_table_that_can_be_fused(method, folder):
    found = document_of("estimate", "exp.py:briefly", "--method", method, "-n", "12", "-o", "cheap", "--seed", "3")
    assert (found["measured"], found["failed"]) == (12, 0)
    table = whence.read_outcomes("cheap")
    assert table.task_names == ("code", "math", "law", "news")
    of_loss = METHODS[method].kind == "scores"
    accuracies = () if of_loss else ("val/accuracy", "test/accuracy")
    assert table.target_names == ("val/loss", "test/loss", *accuracies)
    assert of_loss or dict(zip(table.target_names, table.maximize, strict=True))["val/accuracy"]
    estimator = make_estimator(_problem_of(folder), method, **({} if method == "retrain" else {"seed": 3}))
    assert table.provenance["outcomes"] == estimator.provenance["outcomes"]
    if method != "retrain":
        expected = estimator.batch(table.subsets)
        np.testing.assert_allclose(table.values[:, 0], expected["val/loss"], rtol=1e-5)


def _problem_of(folder):
    space: dict = {}
    exec((folder / "exp.py").read_text(), space)
    return Setup.of(space["briefly"]())


def test_it_goes_on_where_it_stopped_and_with_the_same_vectors(folder):
    arguments = ("estimate", "exp.py:problem", "--method", "merge", "-o", "cheap")
    document_of(*arguments, "-n", "5")
    vectors = {file.name: file.stat().st_mtime_ns for file in (folder / "cheap-vectors").iterdir()}
    before = whence.read_outcomes("cheap").values
    assert document_of(*arguments, "-n", "9")["measured"] == 9
    np.testing.assert_array_equal(whence.read_outcomes("cheap").values[:5], before)
    assert vectors == {file.name: file.stat().st_mtime_ns for file in (folder / "cheap-vectors").iterdir()}


def test_estimates_made_otherwise_are_not_mixed(folder):
    document_of("estimate", "exp.py:problem", "--method", "merge", "-n", "5", "-o", "cheap")
    result = run("estimate", "exp.py:slower", "--method", "merge", "-n", "9", "-o", "cheap")
    assert result.exit_code == 2
    told = " ".join(result.stderr.split())
    assert "cheap: this run was begun with something else: merge (was sample × 1.0 of 4 runs of 6 steps, is " in told
    assert whence.read_outcomes("cheap").n_runs == 5


def test_true_runs_tune_and_check_the_estimator(folder):
    document_of("estimate", "exp.py:problem", "--method", "retrain", "-d", "all", "-o", "true")
    found = document_of("estimate", "exp.py:problem", "--method", "merge", "-n", "9", "-o", "cheap", "--truth", "true")
    truth = whence.read_outcomes("true")
    tuned = make_estimator(_problem_of(folder), "merge").tuned(truth)
    assert found["verdict"] == str(tuned.check(truth))
    table = whence.read_outcomes("cheap")
    np.testing.assert_allclose(table.values[:, 0], tuned.batch(table.subsets)["val/loss"], rtol=1e-5)
    truth.write(folder / "true.csv")
    again = document_of(
        "estimate", "exp.py:problem", "--method", "merge", "-n", "9", "-o", "again", "--truth", "true.csv"
    )
    assert again["verdict"] == found["verdict"]
    fused = document_of("fit", "true", "--estimates", "cheap")
    assert set(fused["slopes"]) == {"cheap"}


def test_several_methods_share_one_joint_run_and_are_fused(folder, monkeypatch):
    runs, train = [], trajectory.train
    monkeypatch.setattr(trajectory, "train", lambda *given, **named: runs.append(given[5]) or train(*given, **named))
    asked = ("estimate", "exp.py:problem", "-m", "influence", "-m", "trak-along", "-m", "one-step", "-n", "12")
    result = run(*asked, "-o", "cheap")
    assert result.exit_code == 0, result.output
    assert runs == [6]  # to the last point that either needs
    said = " ".join(result.stdout.split())
    folders = [f"cheap/{method}" for method in ("influence", "trak-along", "one-step")]
    assert " ".join(["whence fit TRUE_RUNS", *(f"--estimates {where}" for where in folders)]) in said
    for where, method in zip(folders, ("influence", "trak-along", "one-step"), strict=True):
        table = whence.read_outcomes(where)
        expected = make_estimator(_problem_of(folder), method, seed=0).batch(table.subsets)["val/loss"]
        np.testing.assert_allclose(table.values[:, 0], expected, rtol=1e-5)
    made = len(runs)
    found = document_of(*asked, "-o", "again", "--joint-run", "cheap-run", "--seed", "0")
    assert len(runs) == made
    assert [part["method"] for part in found["estimates"]] == ["influence", "trak-along", "one-step"]
    document_of("estimate", "exp.py:problem", "-m", "retrain", "-n", "6", "-o", "true", "--seed", "1")
    fused = document_of("fit", "true", *(f"--estimates={where}" for where in folders[:2]), "-O", "val/loss")
    assert set(fused["slopes"]) == {"influence", "trak-along"}
    other = run("estimate", "exp.py:longer", "-m", "trak", "-n", "5", "-o", "other", "--joint-run", "cheap-run")
    assert other.exit_code == 2
    assert not Path("other").exists()
    assert "The joint-run points in cheap-run are of something else: recipe" in " ".join(other.output.split())


def test_a_budget_has_the_commands_of_its_mix(folder, monkeypatch):
    """They are carried out as they are printed."""
    prices = {name: Price(name, SCORES[name], 0.0, run=1.0) for name in ("influence", "trak")} | PRICES
    monkeypatch.setattr(probes, "probe", lambda setup, n: prices)
    monkeypatch.setattr(probes, "price_of_runs", lambda setup, n: prices["retrain"])

    def commands(*asked):
        said = run("estimate", "exp.py:bent", *asked).stdout
        return [line.strip() for line in said.splitlines() if line.startswith("  whence ")]

    covered = ["whence estimate exp.py:bent --method retrain -n 5 -o true/"]
    assert commands("--budget", "6", "-n", "5") == covered  # all of them
    found = commands("--budget", "6", "-n", "12")
    assert found == [
        "whence estimate exp.py:bent --method influence --method trak -n 12 -o cheap/",
        "whence estimate exp.py:bent --method retrain -n 3 -o true/",
        "whence fit true/ --estimates cheap/influence --estimates cheap/trak",
    ]
    for line in found:
        result = run(*line.split()[1:])
        assert result.exit_code == 0, (line, result.output)


def test_a_design_and_a_file_of_subsets_are_taken(folder):
    document_of("estimate", "exp.py:problem", "--method", "one-step", "-d", "fixed:2", "-n", "4", "-o", "cheap")
    assert set(whence.read_outcomes("cheap").subsets.sum(1)) == {2.0}
    (folder / "mine.csv").write_text("news,law,math,code\n1,0,0,1\n0,1,1,0\n")
    document_of("estimate", "exp.py:problem", "--method", "one-step", "-d", "mine.csv", "-o", "mine")
    np.testing.assert_array_equal(whence.read_outcomes("mine").subsets, [[1, 0, 0, 1], [0, 1, 1, 0]])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["exp.py:problem", "--method", "merge"], "Say where the estimates go, as in -o cheap/."),
        (
            ["exp.py:without_recipe", "--method", "merge", "-o", "cheap"],
            "The method 'merge' needs a recipe to train with: return (problem, recipe).",
        ),
        (["exp.py:problem", "--method", "one-step", "-d", "fixed:9", "-o", "cheap"], "9"),
        (["exp.py:problem", "--method", "one-step", "-o", "cheap", "--truth", "none.csv"], "none.csv"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_leaves_nothing(arguments, sentence, folder):
    result = run("estimate", *arguments)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert not (folder / "cheap").exists()


def test_the_help_says_what_each_rung_costs_and_when_to_trust_it():
    text = " ".join(run("estimate", "--help").stdout.split())
    for method in METHODS:
        assert f"{method}:" in text
    assert "For short fine-tuning" in text
    assert "3 R + Q per subset" in text


# ---- the mix for a budget ------------------------------------------------------------------------------------


SCORES = {"influence": 4.0, "influence-along": 8.0, "trak": 2.0, "trak-along": 6.0}  # seconds; a true run takes 2


def test_a_budget_goes_to_scores_up_to_a_half_and_to_true_runs():
    prices = {**PRICES, **{name: Price(name, seconds, 0.0) for name, seconds in SCORES.items()}}
    assert default_mix(prices, WORK, 20) == ({"influence-along": 4.0, "trak-along": 3.0}, 13)
    assert default_mix(prices, WORK, 10) == ({"influence": 2.0, "trak-along": 3.0}, 5)
    assert default_mix(prices, WORK, 8) == ({"influence": 2.0, "trak": 1.0}, 5)
    assert default_mix(prices, WORK, 5) == ({"influence": 2.0}, 3)
    assert default_mix(prices, WORK, 4.5) == ({"trak": 1.0}, 3)
    assert default_mix(prices, WORK, 2) == ({}, 2)
    linear = replace(WORK, linear=True, exact=True)
    assert default_mix(prices, linear, 20) == ({"gradex": 4.0}, 16)


def test_a_mix_pays_for_its_joint_run_once():
    """Of 4 + 8 + 2 + 6 seconds, half a run takes 1 and a whole one 2; a true run takes 2 as well."""
    runs = {"influence": 1.0, "trak": 1.0, "influence-along": 2.0, "trak-along": 2.0}
    prices = {**PRICES, **{name: Price(name, SCORES[name], 0.0, run=runs[name]) for name in SCORES}}
    for mix, seconds in {
        ("influence-along", "trak-along"): (8.0, 6.0 - 2.0),
        ("influence", "trak-along"): (4.0, 6.0 - 1.0),  # which makes the second half of the run
        ("trak-along", "influence"): (6.0, 4.0 - 1.0),
        ("influence", "trak", "influence-along"): (4.0, 2.0 - 1.0, 8.0 - 1.0),
        ("influence", "one-step"): (4.0, 4.0),
    }.items():
        assert added_prices(prices, mix) == dict(zip(mix, np.array(seconds) / 2, strict=True))
    assert added_prices(prices, ("influence", "bif"))["bif"] == np.inf
    assert default_mix(prices, WORK, 12) == ({"influence-along": 4.0, "trak-along": 2.0}, 6)
    assert default_mix(prices, WORK, 11) == ({"influence": 2.0, "trak-along": 2.5}, 6)
    assert default_mix(prices, WORK, 6) == ({"influence": 2.0, "trak": 0.5}, 3)
    assert default_mix(prices, WORK, 12, share=0.25) == ({"influence": 2.0, "trak": 0.5}, 9)


def test_prices_tell_what_of_them_is_the_joint_run(monkeypatch):
    """Counted in passes of examples: half a run for influence functions, all of it along the quarters."""
    monkeypatch.setattr(probes, "seconds", counted_seconds)
    found = probe(small_problem(convolutions(), 80), 24)
    whole = found["tracin"].run
    assert 0 < whole < found["tracin"].once
    for method, share in (("influence", 0.5), ("trak", 0.5), ("influence-along", 1.0), ("trak-along", 1.0)):
        assert found[method].run == pytest.approx(share * whole, rel=0.1)
    assert all(price.run == 0 for name, price in found.items() if METHODS[name].kind != "scores")


def test_what_is_recommended_for_a_budget_is_the_mix():
    prices = {**PRICES, **{name: Price(name, seconds, 0.0) for name, seconds in SCORES.items()}}
    for budget in (3, 4.5, 5, 8, 10, 20, 60):
        spent, runs = default_mix(prices, WORK, budget)
        method, why = recommend(prices, WORK, 500, budget)
        assert method == next(iter(spent), "retrain")
        assert f"{runs} true runs" in why
        assert all(f"{other}, with other errors, for {price:.1f}" in why for other, price in [*spent.items()][1:])
    assert "exceed the budget" in recommend(prices, WORK, 500, 0.5)[1]


def test_every_method_has_its_price_and_its_evidence():
    assert list(probes.PROBES) == list(METHODS)
    assert set(EXPECTED) == set(METHODS)
    for low_high in EXPECTED.values():
        assert all(low <= mean <= high for mean, low, high in low_high)


def test_estimates_of_another_model_are_noted(tmp_path):
    group, recipe = (torch.randn(8, 4), torch.arange(8) % 2), whence.Recipe(steps=4, lr=0.1)

    def problem(seed):
        torch.manual_seed(seed)
        return whence.Problem(nn.Linear(4, 2), dict.fromkeys("abcd", group), group)

    how = {"n": 6, "engine": "inline", "progress": False}
    whence.measure(whence.Retrain(problem(0), recipe), whence.FixedSize(2), path=tmp_path / "true", **how)
    for name, seed in (("same", 0), ("other", 1)):
        whence.measure(whence.OneStep(problem(seed), recipe), whence.FixedSize(2), path=tmp_path / name, **how)
        said = run("fit", tmp_path / "true", "--estimates", tmp_path / name).stderr
        assert ("These differ: model." in " ".join(said.split())) == (name == "other"), said


def test_scores_of_a_run_that_learns_nothing_say_why_and_offer_nothing(tmp_path):
    (tmp_path / "exp.py").write_text(EXPERIMENT + SLOW, encoding="utf-8")
    done = run("estimate", tmp_path / "exp.py:slow", "--method", "influence", "-n", "6", "-o", tmp_path / "cheap")
    said = " ".join(done.stdout.split())
    assert done.exit_code == 1
    assert "6 of 6 rows failed and stay NaN" in said
    assert "The run on all tasks has learned nothing" in said
    assert "next:" not in said


class Placed(nn.Module):
    """A parameter of its own, as positions of tokens often are: EK-FAC knows no such layer."""

    def __init__(self):
        super().__init__()
        self.place, self.head = nn.Parameter(torch.randn(4)), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(x + self.place))


def test_scores_that_the_model_does_not_allow_are_left_out():
    group = (torch.randn(8, 4), torch.arange(8) % 2)
    setup = Setup(whence.Problem(Placed(), {"a": group, "b": group}, group), whence.Recipe(steps=4, lr=0.1))
    with pytest.warns(DataWarning, match="Without a price for influence and influence-along, which this model"):
        found = probe(setup, 4)
    assert set(METHODS) - set(found) == {"influence", "influence-along"}
    work = replace(workload(setup), exact=False)
    cheap = {name: Price(name, 0.0, 0.0) for name in found} | {"retrain": Price("retrain", 0.0, 1.0)}
    assert default_mix(cheap, work, 10) == ({"trak-along": 0.0}, 10)


def test_the_evidence_is_what_was_recorded():
    place = Path(__file__).parent.parent / "benchmarks" / "results" / "scores.json"
    recorded = json.loads(place.read_text(encoding="utf-8"))
    chosen_on = ("digits, perceptron", "digits, convolutions", "addition, 100 steps, small")
    large = ("newsgroups", *(f"{op}, {n} steps" for op in ("addition", "quadratic") for n in (100, 300)))
    large += ("LoRA, reviews", "LoRA, arithmetic")
    # Of runs with one seed, which agree with nothing, and of a model that is as small as it is fine-tuned, nothing.
    small = [name for name in recorded if name not in large and name != "CIFAR-10" and not name.endswith("small")]
    groups = ([recorded[name] for name in small], [recorded[name] for name in large])
    others = [recorded[name] for name in small if name not in chosen_on], groups[1]

    def of(values):
        return pytest.approx((np.mean(values), np.min(values), np.max(values)), abs=0.0051)

    for method in ("influence", "influence-along", "trak", "trak-along", "tracin"):
        for known, group in zip(EXPECTED[method], groups, strict=True):
            assert known == of([own["alone"][method]["lds"] for own in group if method in own["alone"]])
    assert set(MEASURED) == {(), *MIXES}
    for mix, measured in MEASURED.items():
        words = ", ".join(mix) or "true runs"
        for m, found in measured.items():
            for known, group in zip(found, others, strict=True):
                assert known == of([own["fused"][words]["lds"][str(m)] for own in group if words in own["fused"]])


def test_the_verb_prints_the_mix_for_budgets(folder):
    found = document_of("estimate", "exp.py:problem", "-n", "10")
    assert [row["budget"] for row in found["mixes"]] == ["5", "10", "20", "40"]
    for row in found["mixes"]:
        left = float(row["budget"]) - sum(row["estimates"].values()) - row["true_runs"]
        assert 0 <= left < 1, row
    assert "What to do with a budget of true runs" in run("estimate", "exp.py:problem", "-n", "10").stdout
