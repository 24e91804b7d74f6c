"""Intervals and printed quality against worlds of known truth: a small version of benchmarks/calibration.py."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import oracles

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import calibration
import calibration_worlds

pytestmark = pytest.mark.slow

REPEATS = 6


@pytest.mark.parametrize("rule", ["shapley", "banzhaf"])
def test_the_truth_of_effects_is_that_of_the_definition(rule):
    world = calibration_worlds.World.draw("threshold", "skewed", 5, 2, np.random.default_rng(0))
    values, pairs = calibration_worlds.effects_and_pairs(world, rule)
    table = oracles.table_of(world.mean, 5)
    np.testing.assert_allclose(values, oracles.attribution(table, rule))
    np.testing.assert_allclose(pairs, oracles.interaction(table, rule), atol=1e-12)


def test_the_truth_of_inclusion_compares_subsets_of_one_size():
    world = calibration_worlds.World.draw("coverage", "gaussian", 5, 1, np.random.default_rng(0))
    _, contrasts = oracles.fixed_size_weights(5, 2)
    np.testing.assert_allclose(
        calibration_worlds.inclusion(world, 2), contrasts @ world.mean(np.array(oracles.all_subsets(5), float))
    )


@pytest.mark.parametrize("outcome", calibration_worlds.OUTCOMES)
def test_the_mean_of_a_world_is_that_of_its_runs(outcome):
    rng = np.random.default_rng(1)
    world = calibration_worlds.World.draw("pairs", outcome, 6, 1, rng)
    S = np.repeat(rng.integers(0, 2, (1, 6)).astype(float), 20_000, axis=0)
    runs = world.run(S, rng)
    assert abs(runs.mean() - world.mean(S[:1])[0, 0]) <= 4 * runs.std() / np.sqrt(len(runs)) + 1e-12


@pytest.fixture(scope="module")
def scores():
    """Means over repeats of a few settings."""
    chosen = [
        calibration.Setting("shapes", shape="pairs", runs=20),
        calibration.Setting("shapes", shape="threshold", runs=40),
        calibration.Setting("outcomes", outcome="skewed", runs=40),
        calibration.Setting("designs", outcome="success rates", runs=40, replicates=2),
    ]
    rows = [
        {"setting": setting.name, **calibration.judge(setting, repeat, calibration.TABLES)}
        for setting in chosen
        for repeat in range(REPEATS)
    ]
    return pd.DataFrame(rows).groupby("setting").mean()


def test_effects_over_all_sizes_are_uncertain_where_runs_have_one():
    """That every task adds something is not to be seen in subsets of one size."""
    setting = calibration.Setting("designs", shape="saturating", design="fixed size", runs=100)
    found = pd.DataFrame([calibration.judge(setting, repeat, calibration.TABLES) for repeat in range(REPEATS)]).mean()
    assert found["Shapley values"] >= 0.75  # 0.6 where the effect of size is taken to be none
    assert found["new runs"] >= 0.8


@pytest.mark.parametrize(("design", "runs"), [("coin flips", 40), ("coin flips", 100), ("fixed size", 40)])
def test_effects_hold_where_the_first_tasks_change_most(design, runs):
    """What the smallest subsets are like cannot be seen in others: the default rule does not ask."""
    settings = [calibration.Setting("shapes", shape=shape, design=design, runs=runs) for shape in ("best", "coverage")]
    scores = [calibration.judge(each, repeat, calibration.TABLES) for each in settings for repeat in range(REPEATS)]
    found = pd.DataFrame(scores).mean()
    assert found["effects"] >= 0.85
    assert found["pairs"] >= 0.75


def test_intervals_of_new_runs_hold(scores):
    assert (scores["new runs"] >= 0.75).all()
    assert 0.85 <= scores["new runs"].mean() <= 0.99


def test_printed_coverage_is_true(scores):
    np.testing.assert_allclose(scores["printed"], scores["new runs"], atol=0.15)


def test_printed_quality_is_not_better_than_the_truth(scores):
    assert (scores["printed LDS"] <= scores["LDS"] + 0.15).all()
    assert (scores["printed error"] >= scores["error"] - 0.3).all()
