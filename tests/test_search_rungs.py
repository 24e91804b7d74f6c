"""Searches that begin with cheap estimates: of a table, and of a problem, whose ladder makes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import whence
from whence.errors import InputError
from whence.ladder.probes import Price
from whence.searching import rungs

trajectory = pytest.importorskip("whence.estimators.trajectory")

NAMES = tuple("abcdefgh")
WEIGHTS = np.array([1.0, -0.6, 0.5, 0.4, -0.3, 0.2, -0.2, 0.1])


def truth(row):
    row = np.asarray(row, float)
    return float(row @ WEIGHTS + 0.3 * row[0] * row[2])


def asked_until_found(estimates):
    """How many runs a search makes until the best subset is the one that it names."""
    best = {name for name, weight in zip(NAMES, WEIGHTS, strict=True) if weight > 0}
    search = whence.Search(NAMES, budget=25, maximize=True, stop=False, estimates=estimates)
    while runs := search.ask():
        search.tell(runs[0], {"score": truth(runs[0].subset)})
        standing = search.standing(search.ledger())
        if standing.best and {NAMES[k] for k in np.flatnonzero(standing.best.row)} == best:
            break
    return len(search.asked)


def test_good_estimates_save_runs_and_useless_ones_cost_few():
    S = whence.Bernoulli(0.5).draw(8, 120, seed=0)
    good = whence.Outcomes(S, 0.5 * np.array([truth(row) for row in S]) + 3, NAMES, ["score"], True)
    noise = np.random.default_rng(0).normal(size=len(S))
    assert asked_until_found(good) <= 6
    assert asked_until_found(good) <= asked_until_found(None)
    useless = whence.Outcomes(S, noise, NAMES, ["score"], True)
    assert asked_until_found(useless) < 25
    assert asked_until_found({"good": good, "useless": useless}) <= 6


torch = pytest.importorskip("torch")


def problem():
    from torch import nn

    torch.manual_seed(0)
    centers = torch.randn(4, 5)

    def group(k, n=12, wrong=0):
        inputs = centers[k] + torch.randn(n, 5)
        return inputs, (inputs.sum(1) > 0).long() ^ wrong

    tasks = {name: group(k, wrong=int(name == "law")) for k, name in enumerate(["code", "math", "law", "news"])}
    made = whence.Problem(nn.Linear(5, 2), tasks, {"val": group(0, 30)}, metrics=["loss"])
    return made, whence.Recipe(steps=20, lr=0.1, batch_size=4)


@pytest.mark.slow
def test_a_problem_gets_its_cheap_rung_first_and_keeps_it(tmp_path, monkeypatch):
    chosen = {"methods": ["influence", "trak"], "n": 12, "words": "Estimates: 12 by 'influence' and 'trak'."}
    monkeypatch.setattr(rungs, "_chosen", lambda setup, budget: chosen)
    joint_runs, train = [], trajectory.train
    monkeypatch.setattr(trajectory, "train", lambda *given, **named: joint_runs.append(1) or train(*given, **named))
    found = whence.search(problem(), budget=6, path=tmp_path / "run", stop=False)
    for method in ("influence", "trak"):
        assert len(whence.read_outcomes(tmp_path / "run-estimates" / method)) == 12
    assert len(joint_runs) == 1
    assert len(found.runs) == 6
    assert [rung.name for rung in found.model.rungs] == ["influence", "trak"]
    assert chosen["words"] in found.notes
    # What was chosen by the clock is not chosen again.
    monkeypatch.setattr(rungs, "_chosen", lambda setup, budget: pytest.fail("chosen twice"))
    again = whence.search(problem(), budget=6, path=tmp_path / "run", stop=False)
    np.testing.assert_array_equal(again.runs.values, found.runs.values)
    assert len(joint_runs) == 1


@pytest.mark.parametrize(
    ("each", "method", "n"),
    [
        ({"one-step": 0.001, "gradex": 0.01}, "one-step", 15),  # alike in what to expect: the cheaper
        ({"one-step": 100.0, "gradex": 100.0}, "one-step", 0),
    ],
)
def test_the_rung_is_the_nearest_to_the_truth_that_a_quarter_of_the_budget_buys(monkeypatch, each, method, n):
    from whence.ladder import advice, probes
    from whence.ladder.methods import Setup

    prices = {name: Price(name, 0.0, cost) for name, cost in each.items()} | {"retrain": Price("retrain", 0.0, 1.0)}
    monkeypatch.setattr(probes, "probe", lambda setup, n: {**prices, "retrain": Price("retrain", 0.0, 0.01)})
    monkeypatch.setattr(probes, "price_of_runs", lambda setup, n: replace(prices["retrain"], each=1.0 / n))
    monkeypatch.setattr(advice.Workload, "expected", lambda self, name: 0.5)
    found = rungs._chosen(Setup.of(problem()), 40)
    assert (found["methods"], found["n"]) == ([method] if n else [], n)
    assert ("No estimates" in found["words"]) == (n == 0)


def test_the_rung_is_the_default_mix_at_the_price_of_one_joint_run(monkeypatch):
    from whence.ladder import advice, probes
    from whence.ladder.methods import Setup

    prices = {name: Price(name, 4.0, 0.0, run=2.0) for name in ("influence-along", "trak-along")}
    prices |= {name: Price(name, 2.5, 0.0, run=1.0) for name in ("influence", "trak")}
    prices |= {"one-step": Price("one-step", 0.1, 0.0), "retrain": Price("retrain", 0.0, 1.0)}
    monkeypatch.setattr(probes, "probe", lambda setup, n: {**prices, "retrain": Price("retrain", 0.0, 0.01)})
    monkeypatch.setattr(probes, "price_of_runs", lambda setup, n: replace(prices["retrain"], each=1.0 / n))
    monkeypatch.setattr(advice, "workload", lambda setup: advice.Workload(4, 48, 30, 12, 12))
    made, recipe = problem()
    for budget, methods, cost in (
        (40, ["influence-along", "trak-along"], 6.0),
        (24, ["influence-along", "trak-along"], 6.0),
        (23, ["influence", "trak-along"], 5.5),
        (16, ["influence", "trak"], 4.0),
    ):
        found = rungs._chosen(Setup(made, recipe), budget)
        assert (found["methods"], found["n"]) == (methods, 15)
        assert f"for the price of {cost} true runs" in found["words"]
    assert rungs._chosen(Setup(made, recipe), 8)["methods"] == ["one-step"]  # where scores cost too much
    made.metrics["accuracy"] = made.loss  # of which there are no scores
    assert rungs._chosen(Setup(made, recipe), 40)["methods"] == ["one-step"]


def test_a_problem_without_a_recipe_cannot_be_searched():
    with pytest.raises(InputError, match=r"needs a recipe for them: give \(problem, recipe\)"):
        whence.search(problem()[0])
