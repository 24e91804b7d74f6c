"""The ladder of estimators, its prices, and the verb that climbs it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import whence
from whence.cli import app
from whence.errors import InputError
from whence.estimators.ladder import METHODS, Workload, checked_problem, make_estimator, prices, recommend, workload
from whence.models.problem import Problem

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
    return {
        "model": nn.Linear(5, 2),
        "tasks": {name: group(k) for k, name in enumerate(["code", "math", "law", "news"])},
        "targets": {"val": group(0, 8), "test": group(1, 8)},
        "recipe": whence.Recipe(steps=6, lr=0.05, batch_size=4),
        "metrics": ["loss", "accuracy"],
    }

def without_recipe():
    given = problem()
    del given["recipe"]
    return given

def nothing():
    return None

def no_targets():
    return {"model": nn.Linear(5, 2), "tasks": {}}

def misspelt():
    return {**problem(), "metric": "loss"}

def broken():
    raise RuntimeError("no data here")

def slower():
    return {**problem(), "merge": {"early": 0.5}}
"""
WORK = Workload(25, 5000, 900, 100, n_params=400_000, n_trained=400_000, run_examples=100 * 128, steps=100)


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


def counted_problem():
    generator = torch.Generator().manual_seed(0)

    def group(n):
        return torch.randn(n, 3, generator=generator), torch.randint(0, 2, (n,), generator=generator)

    return {
        "model": Counting(3, 2),
        "tasks": {"a": group(10), "b": group(6), "c": group(8)},
        "targets": group(7),
        "recipe": whence.Recipe(steps=5, batch_size=4),
    }


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
    problem = counted_problem()
    each = prices(workload(problem))[method].each
    assert passes(make_estimator(problem, method, batched=False), 4) == 4 * (each - 3)  # less the sum of three vectors


def test_a_true_run_takes_its_batches_and_the_queries():
    problem = counted_problem()
    price = prices(workload(problem))["retrain"]
    forward = passes(make_estimator(problem, "retrain", batched=False), 4) / 4
    assert forward == 5 * 4 + 7
    assert price.each == 3 * 5 * 4 + 7
    assert price.once == 0


def test_merging_takes_a_run_for_each_task():
    problem = counted_problem()
    vectors = make_estimator(problem, "merge", batched=False)
    before = Counting.passed
    _ = vectors.vectors
    assert 3 * (Counting.passed - before) == prices(workload(problem))["merge"].once == 3 * 3 * 5 * 4


def test_merging_outputs_of_short_runs_takes_the_queries_once_for_each_run():
    problem = {**counted_problem(), "merge": {"merge": "outputs", "early": 0.4}}
    vectors, price = make_estimator(problem, "merge", batched=False), prices(workload(problem))["merge"]
    before = Counting.passed
    _ = vectors.vectors
    trained = Counting.passed - before
    assert trained == 3 * 2 * 4
    vectors._outputs_of_runs(vectors.problem.targets)
    assert Counting.passed - before - trained == 4 * 7
    assert price.once == pytest.approx(3 * trained + 4 * 7)
    assert passes(vectors, 4) == 0
    assert price.each == 4 * 7 * 2 / 8  # a sum of four numbers for each output, beside a model of eight parameters


def test_gradex_along_takes_a_run_and_the_gradients_on_its_way():
    """What is left of its price are the features, of every example at three points along every direction."""
    problem = {**counted_problem(), "gradex_along": {"rank": 12}}

    def forward_of(make):
        before = Counting.passed
        make()
        return Counting.passed - before

    checks = forward_of(lambda: Problem(problem["model"], problem["tasks"], problem["targets"], batched=False))
    forward = forward_of(lambda: make_estimator(problem, "gradex-along")) - 2 * checks  # of the run, and of the points
    run, ways, loss = 5 * 4, 3 * 24, 24  # W₀ and two points: 12 directions of 3 tasks, plain and as AdamW scales them
    assert forward == run + ways + loss
    features = 3 * (24 + 7) * (1 + 2 * 12)
    assert prices(workload(problem))["gradex-along"].once == 3 * (run + ways) + loss + features


def test_the_workload_is_that_of_the_problem():
    problem = counted_problem()
    expected = Workload(3, 24, 7, 2, n_params=8, n_trained=8, rank=8, along_rank=8, run_examples=20, steps=5)
    assert workload(problem) == expected
    full_batches = {**problem, "recipe": whence.Recipe(steps=5, batch_size=None), "params": "bias"}
    found = workload(full_batches)
    assert (found.run_examples, found.n_trained) == (5 * 24, 2)
    assert workload({**problem, "gradex": {"rank": 4}}).rank == 4
    assert workload({**problem, "gradex_along": {"rank": 5}}).along_rank == 5


def test_the_ladder_goes_from_cheap_to_dear():
    found = prices(WORK)
    assert list(found) == list(METHODS)
    totals = [found[method].total(500) for method in ("one-step", "merge", "retrain")]
    assert totals == sorted(totals)


def test_only_methods_that_can_be_carried_out_have_a_price():
    assert list(prices(replace(WORK, run_examples=None, steps=None))) == ["one-step", "gradex"]


@pytest.mark.parametrize(
    ("n", "budget", "method"),
    [
        (500, None, "merge"),
        (40, None, "retrain"),  # fewer than two for each of 25 tasks
        (500, 600, "retrain"),
        (500, 100, "merge"),
        (500, 10, "merge"),  # of a quarter of the steps
        (500, 5, "gradex"),
        (500, 0.1, "one-step"),
    ],
)
def test_what_is_recommended_fits_the_budget(n, budget, method):
    work = replace(WORK, n_queries=100, n_outputs=2, rank=64, n_examples=2000, steps=200)
    found = prices(work)
    chosen, why = recommend(work, n, budget)
    assert chosen == method, why
    if budget and method != "one-step":
        told = prices(replace(work, early=0.25, merge="outputs")) if "a quarter of the steps" in why else found
        assert told[chosen].total(n) <= budget * found["retrain"].each
    assert ("a quarter of the steps" in why) == (budget == 10)


def test_along_a_run_is_for_runs_so_long_that_merging_costs_more():
    """500 times as many examples as there are, where the features along 64 directions cost a few runs."""
    work = replace(WORK, n_queries=100, n_outputs=2, rank=64, along_rank=64, run_examples=500 * 5000, steps=20_000)
    cost = {method: price.total(500) / prices(work)["retrain"].each for method, price in prices(work).items()}
    assert cost["gradex"] < cost["gradex-along"] < cost["merge"]
    assert recommend(work, 500, cost["gradex-along"] + 0.1)[0] == "gradex-along"
    assert recommend(work, 500, cost["gradex-along"] - 0.1)[0] == "gradex"
    assert recommend(work, 500, cost["merge"] + 0.1)[0] == "merge"


def test_short_runs_are_left_to_one_step_and_nothing_is_trained_without_a_recipe():
    work = replace(WORK, n_queries=100, n_outputs=2, rank=64, n_examples=2000)
    run_price = prices(work)["retrain"].each
    budget = max(prices(work)[method].total(500) for method in ("one-step", "gradex")) / run_price + 1
    assert budget * run_price < prices(work)["merge"].total(500)
    assert recommend(work, 500, budget)[0] == "one-step"
    assert recommend(replace(work, steps=101), 500, budget)[0] == "gradex"
    method, why = recommend(replace(work, run_examples=None, steps=None), 500)
    assert method == "one-step"
    assert "without a recipe" in why


# ---- problems --------------------------------------------------------------------------------------------


def test_options_of_a_method_reach_its_estimator():
    problem = checked_problem({**counted_problem(), "merge": {"early": 0.4}, "one_step": {"preconditioner": "none"}})
    assert make_estimator(problem, "merge").steps == 2
    assert make_estimator(problem, "one-step").preconditioner == "none"
    with pytest.raises(InputError, match=r"There is no method 'merging'\. Did you mean 'merge'\?"):
        make_estimator(problem, "merging")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nothing", "exp.py:nothing: The function must return a mapping with 'model', 'tasks', 'targets'"),
        ("no_targets", "The problem must have 'model', 'tasks' and 'targets'. There is no 'targets'."),
        ("misspelt", "A problem has no 'metric'. Did you mean 'metrics'?"),
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
    assert "4 tasks, 48 examples; 16 queries; 12 of 12 parameters are trained." in result.stdout
    for method, words in METHODS.items():
        assert method in result.stdout
        assert words.split()[0] in result.stdout
    found = document_of("estimate", "exp.py:problem", "-n", "10", "--budget", "8")
    assert f"Recommended: {found['recommended']}." in result.stdout
    assert f"--method {found['recommended']} -n 10" in " ".join(result.stdout.split())
    by_method = {row["method"]: row for row in found["prices"]}
    assert by_method["retrain"]["total"] == 10 * (3 * 6 * 4 + 16)


def test_without_a_number_of_subsets_it_takes_as_many_as_there_are(folder):
    assert document_of("estimate", "exp.py:problem")["n"] == 2**4 - 1
    found = document_of("estimate", "exp.py:problem", "--method", "one-step", "-o", "cheap")
    assert found["rows"] == 2**4 - 1


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_fills_a_table_that_can_be_fused(method, folder):
    found = document_of("estimate", "exp.py:problem", "--method", method, "-n", "12", "-o", "cheap", "--seed", "3")
    assert (found["measured"], found["failed"]) == (12, 0)
    table = whence.read_outcomes("cheap")
    assert table.task_names == ("code", "math", "law", "news")
    assert table.target_names == ("val/loss", "test/loss", "val/accuracy", "test/accuracy")
    assert dict(zip(table.target_names, table.maximize, strict=True))["val/accuracy"]
    estimator = make_estimator(_problem_of(folder), method, **({} if method == "retrain" else {"seed": 3}))
    assert table.provenance["outcomes"] == estimator.provenance["outcomes"]
    if method != "retrain":
        expected = estimator.batch(table.subsets)
        np.testing.assert_allclose(table.values[:, 0], expected["val/loss"], rtol=1e-5)


def _problem_of(folder):
    space: dict = {}
    exec((folder / "exp.py").read_text(), space)
    return space["problem"]()


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
            "The method 'merge' trains: the problem must have a 'recipe', a whence.Recipe.",
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
    assert "3 R + Q for each subset" in text
