"""What the best of many is worth: intervals at the selected subset, against new runs of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

import whence
from whence.answers.optimism import ALIKE_RUNS, FURTHEST, TAIL, _curve, _measured, _noise, _tails, expected_of_chosen

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from calibration_worlds import World, draw_subsets

TABLES = 16
NEW_RUNS = 100


def coverage_at_the_choice(shape, outcome, replicates):
    """Shares of new runs of the selected subset in its own interval, and in that of any subset."""
    own, plain = [], []
    for seed in range(TABLES):
        rng = np.random.default_rng([seed, 7])
        world = World.draw(shape, outcome, 8, 1, rng)
        S = draw_subsets("coin flips", 8, 40, replicates, rng)
        found = whence.select(whence.fit(whence.Outcomes(S, world.run(S, rng), maximize=True)))
        again = world.run(np.repeat(found.subset[None], NEW_RUNS, axis=0), rng)
        own.append(((found.low <= again) & (again <= found.high)).mean())
        plain.append((np.abs(again - found.predicted) <= 1.645 * found.std).mean())
    return np.mean(own), np.mean(plain)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "outcome", "replicates"),
    [
        ("pairs", "gaussian", 2),
        ("threshold", "gaussian", 1),
        ("pairs", "skewed", 1),
        ("pairs", "success rates", 2),
        ("product", "gaussian", 1),
        ("saturating", "gaussian", 1),
    ],
)
def test_the_interval_of_the_recommended_subset_holds(shape, outcome, replicates):
    own, plain = coverage_at_the_choice(shape, outcome, replicates)
    assert 0.82 <= own <= 1.0
    assert own > plain


@pytest.mark.filterwarnings("ignore:There are .* distinct subsets", "ignore:.*outside the range")
@pytest.mark.parametrize("exact", [True, False])
def test_what_was_run_twice_without_noise_is_known(exact):
    S = np.vstack([whence.Bernoulli(0.5).draw(6, 16, seed=2), np.ones((2, 6)), [[1, 1, 1, 1, 1, 0]]])
    values = np.exp(S @ [0.91, -0.37, 0.53, -0.71, 0.23, -0.13])
    if not exact:  # outcomes on so coarse a scale that a repeat may come out the same by chance
        values = np.round(values)
    model = whence.fit(whence.Outcomes(S, values, maximize=True))
    expected, low, high = expected_of_chosen(model, np.ones(6))
    assert (expected == low == high == values[16]) == exact
    assert (low < high) != exact
    other = expected_of_chosen(model, S[-1])  # run once, and as exact
    assert (other[0] == values[-1]) == exact
    _, low, high = expected_of_chosen(model, np.zeros(6))
    assert low < high  # never run


@pytest.mark.filterwarnings("ignore:There are .* distinct subsets")
def test_a_handful_of_subsets_does_not_lead_the_expected_outcome_astray():
    """Ten subsets, each run three times: tails of so few are chance, and must not bend what is expected."""
    off = []
    for seed in range(8):
        rng = np.random.default_rng([seed, 30])
        world = World.draw("pairs", "gaussian", 12, 1, rng)
        S = draw_subsets("coin flips", 12, 30, 3, rng)
        found = whence.select(whence.fit(whence.Outcomes(S, world.run(S, rng), maximize=True)))
        truth = world.mean(found.subset[None])[0, 0]
        off.append([abs(found.expected[0] - truth), abs(found.predicted[0] - truth)])
    expected, predicted = np.mean(off, axis=0)
    assert expected < 1.2 * predicted


def test_errors_that_grow_with_the_prediction_are_seen():
    """Predictions are too high by a tenth of their height, and twice as uncertain two deviations up."""
    rng = np.random.default_rng(0)
    heights = rng.normal(size=4000)
    errors = -0.1 * heights + np.exp(0.35 * heights) * rng.normal(size=4000)
    mean, std, freedom = _curve(errors, np.append(heights, 2.0), np.ones(4000))
    np.testing.assert_allclose([mean, std], [-0.2, np.hypot(np.exp(0.7), 0.2)], atol=0.1)
    assert freedom > 100


def test_few_errors_say_little():
    errors, heights = np.array([0.1, -1.0, 0.6, 0.3]), np.array([-1.0, 0.0, 0.5, 0.5, 4.0])
    mean, std, freedom = _curve(errors, heights, np.ones(4))
    assert abs(mean) < 0.5
    assert std > 1
    assert freedom < 10
    repeated = _curve(np.repeat(errors, 3), np.append(np.repeat(heights[:-1], 3), 4.0), np.full(12, 1 / 3))
    np.testing.assert_allclose(repeated, (mean, std, freedom))  # runs of one subset count as one


def test_an_interval_reaches_further_on_the_side_of_a_long_tail():
    """Of a power of uniform numbers the quantiles are known; few runs tell little of tails, and none everything."""
    n = 2001
    values = ((np.arange(n) + 0.5) / n) ** 1.5
    ratio = ((1 - TAIL) ** 1.5 - 0.5**1.5) / (0.5**1.5 - TAIL**1.5)
    lower, upper = _tails(values)
    assert lower == 1.0
    np.testing.assert_allclose(upper, ratio ** (n / (n + ALIKE_RUNS)), rtol=1e-3)
    np.testing.assert_allclose(_tails(-values), [upper, 1.0])
    assert 1 < _tails(values[::200])[1] < np.sqrt(upper) + 0.1
    assert _tails(values**8) == (1.0, FURTHEST)
    assert _tails(np.zeros(5)) == (1.0, 1.0)


def test_an_interval_reaches_further_on_both_sides_where_outcomes_are_not_normal():
    normal = norm.ppf((np.arange(2000) + 0.5) / 2000)
    np.testing.assert_allclose(_tails(normal), 1.0, atol=0.01)
    power = norm.ppf([0.75, 1 - TAIL]) ** 1.5
    longer = power[1] / power[0] / (norm.ppf(1 - TAIL) / norm.ppf(0.75))
    np.testing.assert_allclose(_tails(np.sign(normal) * np.abs(normal) ** 1.5), longer, rtol=0.02)


@pytest.mark.parametrize("up", [True, False])
def test_an_interval_reaches_further_on_the_better_side_where_high_predictions_were_too_low(up):
    """A product of effects, as a sum of them sees it: the best is better than predicted, and the worst not worse."""
    rng = np.random.default_rng(3)
    S = rng.integers(0, 2, (60, 10)).astype(float)
    y = np.exp(S @ rng.normal(size=10) * 0.6) * (1 if up else -1)
    model = whence.fit(whence.Outcomes(S, y, maximize=up), surrogate=whence.AdditiveSurrogate())
    subset = whence.select(model).subset
    expected, low, high = expected_of_chosen(model, subset)
    turned = replace(model, outcomes=replace(model.outcomes, maximize=(not up,)))
    _, other_low, other_high = expected_of_chosen(turned, subset)
    better, worse = (high, low) if up else (low, high)
    other_better, other_worse = (other_high, other_low) if up else (other_low, other_high)
    assert abs(better - expected)[0] > abs(other_better - expected)[0]
    np.testing.assert_allclose(worse, other_worse)


def test_a_run_of_the_subset_counts_for_as_much_as_its_noise_allows():
    lucky = np.array([3.0])
    once, _, others = _measured(lucky, 0.0, 1.0, (0.0, 0))
    assert others == 1  # without replicates, other predictions say how wide the interval is
    np.testing.assert_allclose(once, 1.5)  # nothing is known of the noise: half way
    noisy, std, much = _measured(lucky, 0.0, 1.0, (50 * 0.9, 50))
    exact, exact_std, little = _measured(lucky, 0.0, 1.0, (0.0, 50))
    assert noisy < 0.6 < 2.7 < exact
    assert exact_std < 0.4 < 0.9 < std
    often, _, less = _measured(np.full(10, 3.0), 0.0, 1.0, (50 * 0.9, 50))
    assert noisy < often < exact
    assert little < 0.15 < less < 0.5 < 0.8 < much


def test_a_subset_that_was_run_again_and_again_has_an_interval_of_its_noise():
    """Outcomes have a long tail of bad subsets, as those of a search: it says nothing of one that was run ten times."""
    rng = np.random.default_rng(0)
    S = np.array([row for row in product((0.0, 1.0), repeat=5) if any(row)])[rng.permutation(31)[:12]]
    best = np.array([1.0, 1, 0, 1, 0])
    S = np.vstack([S, np.tile(best, (10, 1))])
    values = np.exp(-(S @ [1.0, 0.8, 0, 0.6, -0.9])) + 0.02 * rng.normal(size=len(S))
    model = whence.fit(whence.Outcomes(S, values), surrogate="kernel")
    expected, low, high = (float(end[0]) for end in expected_of_chosen(model, best))
    np.testing.assert_allclose(expected, values[-10:].mean(), atol=0.03)
    assert high - low < 0.4


@pytest.mark.parametrize("maximize", [True, False])
def test_an_interval_is_in_proportion_to_the_outcomes(maximize):
    """Two of twelve runs are far off: their ranks say that anything may be, but that is of no use to anybody."""
    rng = np.random.default_rng(0)
    S = (rng.random((12, 8)) < 0.5).astype(float)
    values = S @ rng.normal(size=8) + 0.1 * rng.normal(size=12) + 20 * rng.normal(size=12) * (np.arange(12) < 2)
    model = whence.fit(whence.Outcomes(S, values if maximize else -values, maximize=maximize))
    found = whence.select(model)
    apart = np.ptp(values)
    worse, better = (found.low, found.high) if maximize else (-found.high, -found.low)
    expected = found.expected if maximize else -found.expected
    np.testing.assert_allclose(worse, np.minimum(values.min(), expected) - 0.25 * apart)
    np.testing.assert_allclose(better, expected + 3 * apart)


def test_the_noise_is_that_of_replicates():
    S = np.array([[0.0, 1], [0, 1], [1, 0], [1, 1], [1, 1], [1, 1]])
    values = np.array([1.0, 3, 9, 0, 0, 3])
    assert _noise(S, values) == (2 + 6, 3)


def test_a_lucky_run_is_not_believed():
    """No task does anything: the best run is luck, and what to expect is the mean."""
    rng = np.random.default_rng(3)
    S = np.repeat(whence.FixedSize(3).draw(7, 20, seed=1), 2, axis=0)
    y = rng.normal(size=40)
    model = whence.fit(whence.Outcomes(S, y, maximize=True), surrogate=whence.KernelSurrogate(alpha=1e-3, gamma=5.0))
    found = whence.select(model, size=3)
    assert found.predicted[0] > y.mean() + 1
    assert found.expected[0] < y.mean() + 0.6 * (found.predicted[0] - y.mean())
    assert found.low[0] < y.mean() < found.high[0]


def test_without_held_out_runs_the_prediction_stands_with_a_wider_interval():
    S = whence.Exhaustive().draw(3)[:5]
    model = whence.fit(whence.Outcomes(S, S.sum(1), maximize=True), surrogate=whence.KernelSurrogate())
    subset = S[0]
    expected, low, high = expected_of_chosen(model, subset)
    mean, std = model.predict(subset[None], return_std=True)
    np.testing.assert_allclose(expected, mean[0])
    np.testing.assert_allclose(high - low, 2 * 2.353363 * std[0], rtol=1e-6)


def test_a_surrogate_without_std_has_no_interval():
    from sklearn.linear_model import LinearRegression

    rng = np.random.default_rng(0)
    S = (rng.random((30, 5)) < 0.5).astype(float)
    found = whence.select(whence.fit(whence.Outcomes(S, S @ np.arange(5.0)), surrogate=LinearRegression()))
    np.testing.assert_allclose(found.expected, found.predicted)
    assert np.isnan(found.low).all()
    assert np.isnan(found.high).all()
