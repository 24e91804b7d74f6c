"""Questions outside the range of the runs: predictions say so, and selection stays inside."""

from __future__ import annotations

import time

import numpy as np
import pytest

import whence
from whence.errors import DataWarning
from whence.surrogates.range import Range, outside


def binary_model(n_tasks=40, n=60, keep=0.3, seed=0, surrogate=None):
    rng = np.random.default_rng(seed)
    S = (rng.random((n, n_tasks)) < keep).astype(float)
    y = S @ np.linspace(-1, 1, n_tasks) + 0.1 * rng.normal(size=n)
    surrogate = surrogate or whence.AdditiveSurrogate("ridge")
    return whence.fit(whence.Outcomes(S, y, maximize=True), surrogate=surrogate)


def mixture_model(n_tasks=4, n=40, seed=0):
    rng = np.random.default_rng(seed)
    W = rng.dirichlet(np.full(n_tasks, 4.0), n)
    return whence.fit(whence.Outcomes(W, W[:, 0] + 0.01 * rng.normal(size=n), maximize=True))


def test_prediction_far_from_the_sizes_of_the_runs_warns_once_and_names_rows():
    model = binary_model()
    sizes = model.outcomes.subsets.sum(1)
    rows = np.zeros((5, 40))
    rows[0], rows[2, :12], rows[4, 0] = 1, 1, 1
    rows[1] = rows[3] = model.outcomes.subsets[0]
    with pytest.warns(DataWarning) as caught:
        model.predict(rows)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert text.startswith("2 of 5 subsets are outside the range of the runs (row 0: it has 40 tasks, and the runs ")
    assert f"{sizes.min():g} to {sizes.max():g}; row 4: it has 1 task" in text
    assert caught[0].filename == __file__


def test_new_subsets_of_the_design_are_inside():
    rng = np.random.default_rng(5)
    model = binary_model()
    model.predict((rng.random((300, 40)) < 0.3).astype(float), return_std=True)
    mixtures = mixture_model()
    mixtures.predict(rng.dirichlet(np.full(4, 4.0), 300), return_std=True)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ([0.97, 0.01, 0.01, 0.01], r"it has 0\.97 of task_0, and the runs 0\.0\d* to 0\.\d+\)"),
    ],
)
def test_mixtures_unlike_the_runs_say_why(weights, reason):
    with pytest.warns(DataWarning, match=rf"^The subset is outside the range of the runs \({reason}"):
        mixture_model().predict(np.array([weights]))


def test_a_mixture_is_scaled_to_the_budget_of_the_runs():
    model = mixture_model()
    expected = model.predict(np.full((1, 4), 0.25))
    with pytest.warns(DataWarning, match=r"The weights of the mixture sum to 1\.8, and are scaled to sum to 1"):
        np.testing.assert_allclose(model.predict(np.full((1, 4), 0.45)), expected)
    np.testing.assert_allclose(model.predict(np.full((1, 4), 25.0)), expected)  # percent


def test_shares_are_no_amounts_of_data():
    """Half a token each is far below runs of 1 to 6 billion, however much these differ."""
    rng = np.random.default_rng(3)
    tokens = rng.dirichlet(np.ones(4), 30) * rng.uniform(1e9, 6e9, 30)[:, None]
    span = Range.of(tokens)
    names = ("web", "code", "math", "law")
    (reason,) = span.reasons(np.array([[0.5, 0.5, 0.0, 0.0]]), names)
    assert reason.startswith("its weights sum to 1, and those of the runs to 1.4")
    assert span.reasons(tokens * 0.9, names) == [""] * 30


def test_tasks_that_never_varied_say_so():
    S = whence.Exhaustive().draw(4)
    S = np.hstack([S, np.ones((len(S), 1)), np.zeros((len(S), 1))])
    runs = whence.Outcomes(S, S[:, 0], task_names=list("abcdef"))
    with pytest.warns(DataWarning, match="whose effect cannot be seen|so that their effect cannot be seen"):
        model = whence.fit(runs, surrogate=whence.AdditiveSurrogate())
    with pytest.warns(DataWarning, match="row 0: every run had e; row 1: no run had f"):
        model.predict([["a"], ["a", "e", "f"], ["a", "e"]])
    assert {"e"} <= set(whence.select(model).tasks) <= set("abcde")
    with pytest.warns(DataWarning, match="no run had f"):
        assert "f" in whence.select(model, include=["f"]).tasks
    with pytest.warns(DataWarning, match="every run had e"):
        assert "e" not in whence.select(model, exclude=["e"]).tasks


def test_a_subset_of_the_right_size_can_be_far_from_every_run():
    """Runs are one task away from the first ten tasks, and two from each other."""
    first = np.repeat([1.0, 0.0], 10)
    runs = np.abs(first - np.eye(20))
    near, far = first.copy(), first.copy()
    near[[0, 10]], far[[0, 1, 2, 10, 11, 12]] = [0, 1], [0, 0, 0, 1, 1, 1]
    assert Range.of(runs).reasons(np.array([near, far]), tuple(map(str, range(20)))) == ["", "it is far from every run"]


def two_blocks(n=40):
    """Runs of tasks of one block or of the other, and never of both."""
    rng = np.random.default_rng(0)
    S = (rng.random((n, 12)) < 0.5).astype(float)
    S[: n // 2, :6] = 0
    S[n // 2 :, 6:] = 0
    return whence.Outcomes(
        S, S @ np.linspace(-1, 1, 12) + 0.1 * rng.normal(size=n), list("abcdefghijkl"), maximize=True
    )


def test_tasks_that_the_runs_keep_apart_are_not_mixed_silently():
    model = whence.fit(two_blocks(), surrogate="additive")
    both, one = list("abcghi"), list("abc")
    with pytest.warns(
        DataWarning, match=r"1 of 2 subsets are outside .* \(row 1: no run had [abc] together with [ghi]\)"
    ):
        model.predict([one, both])
    with pytest.warns(DataWarning, match=r"no run had \w together with \w\). This is extrapolation"):
        whence.select(model, include=list("abcgh"), size=5)


@pytest.mark.parametrize(
    "design", [whence.Bernoulli(0.5), whence.Bernoulli(0.1), whence.FixedSize(2), whence.FixedSize(5)]
)
@pytest.mark.parametrize(("n_tasks", "n"), [(8, 6), (12, 20), (30, 40), (100, 60)])
def test_pairs_that_chance_left_out_are_inside(design, n_tasks, n):
    runs, new = design.draw(n_tasks, n, seed=1), design.draw(n_tasks, min(200, n_tasks * (n_tasks - 1) // 2), seed=2)
    reasons = Range.of(runs).reasons(new, tuple(map(str, range(n_tasks))))
    assert np.mean(["together" in reason for reason in reasons]) <= 0.02


def test_what_the_runs_do_not_determine_is_outside_by_its_std():
    """Two tasks always go together: one alone is one step from a run, and undetermined all the same."""
    rng = np.random.default_rng(0)
    S = (rng.random((40, 6)) < 0.5).astype(float)
    S[:, 1] = S[:, 0]
    y = 5 * S[:, 0] + 0.02 * rng.normal(size=40)
    with pytest.warns(DataWarning, match="Identical task columns"):
        model = whence.fit(whence.Outcomes(S, y), surrogate=whence.KernelSurrogate("poly", degree=1, coef0=1.0))
    alone = S[[0]] * [1, 0, 1, 1, 1, 1] + np.eye(6)[[0]] * (1 - S[0, 0])
    std = model.predict_quietly(alone, return_std=True)[1]
    assert outside(model, alone) == [""]
    assert outside(model, alone, std) == ["the runs do not determine it"]
    with pytest.warns(DataWarning, match=r"outside the range of the runs \(the runs do not determine it\)"):
        model.predict(alone, return_std=True)


def test_a_regressor_without_runs_has_no_range():
    surrogate = whence.AdditiveSurrogate("ols").fit(np.eye(4), np.arange(4.0))
    assert len(whence.select(surrogate).tasks) >= 1


# ---- selection -------------------------------------------------------------------------------------------


def test_selection_stays_among_sizes_of_the_runs_unless_told_otherwise():
    """Half of the tasks help: without a limit, the best sum takes them all."""
    model = binary_model(keep=0.2)
    sizes = model.outcomes.subsets.sum(1)
    found = whence.select(model)
    assert len(found.tasks) == sizes.max() < 20
    with pytest.warns(DataWarning, match="it has 20 tasks|it has 2. tasks|it has 1. tasks"):
        free = whence.select(model, extrapolate=True)
    assert len(free.tasks) > sizes.max()
    assert free.value > found.value


def test_a_size_that_is_asked_for_is_obeyed_with_a_warning():
    model = binary_model()
    with pytest.warns(DataWarning, match="it has 2 tasks, and the runs"):
        assert len(whence.select(model, size=2).tasks) == 2
    with pytest.warns(DataWarning, match="it has [123] tasks?, and the runs"):
        assert len(whence.select(model, costs=dict.fromkeys(model.task_names, 1.0), budget=3).tasks) <= 3


def test_mixtures_stay_within_the_weights_of_the_runs():
    model = mixture_model()
    W = model.outcomes.subsets
    found = whence.select(model).subset
    assert (found >= W.min(0) - 1e-12).all()
    assert (found <= W.max(0) + 1e-12).all()
    np.testing.assert_allclose(found.sum(), 1)
    np.testing.assert_allclose(found[0], W[:, 0].max(), rtol=0.02)  # the only task that helps, as much as was tried
    with pytest.warns(DataWarning, match="of task_0, and the runs"):
        assert whence.select(model, extrapolate=True).subset[0] > W[:, 0].max() + 0.1


def test_two_hundred_tasks_are_searched_in_seconds():
    """Seven times faster than the bound when this was written; trying every swap took minutes."""
    rng = np.random.default_rng(0)
    S = (rng.random((120, 200)) < 0.3).astype(float)
    y = S @ rng.normal(size=200) + S[:, 0] * S[:, 1] + 0.5 * rng.normal(size=120)
    with pytest.warns(DataWarning, match="with fewer subsets than tasks"):
        model = whence.fit(whence.Outcomes(S, y, maximize=True), surrogate=whence.KernelSurrogate(), n_folds=None)
    began = time.process_time()
    found = whence.select(model)
    assert time.process_time() - began < 20
    neighbours = np.abs(found.subset - np.eye(200))
    sizes = model.outcomes.subsets.sum(1)
    neighbours = neighbours[(neighbours.sum(1) >= sizes.min()) & (neighbours.sum(1) <= sizes.max())]
    assert found.value >= model.predict_quietly(neighbours).max() - 1e-9
