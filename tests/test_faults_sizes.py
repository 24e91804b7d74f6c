"""Tables and questions of any size: answered in bounded time and memory, or refused with the size that would do."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import whence
import whence.display.report.findings as findings
import whence.surrogates.fit as fit_module
import whence.surrogates.inducing as inducing
from conformance import outcomes_of, subsets
from whence.answers.suggestion import _Planned
from whence.cli import app
from whence.errors import DataWarning, InputError
from whence.outcomes import sizes

GIVEN = whence.KernelSurrogate(alpha=0.1, gamma=0.3)


def model_of(n_runs=30, n_tasks=5, n_targets=1, surrogate=GIVEN):
    S = subsets(n_runs, n_tasks)
    return whence.fit(whence.Outcomes(S, outcomes_of(S, n_targets)), surrogate=surrogate)


def test_more_runs_than_a_matrix_holds_are_fitted_through_points(monkeypatch):
    monkeypatch.setattr(inducing, "EXACT_RUNS", 50)
    monkeypatch.setattr(inducing, "n_points", lambda n: 40)
    monkeypatch.setattr(sizes, "free_memory", lambda: 2e5)  # less than a matrix of all runs
    S = subsets(120, 8)
    runs = whence.Outcomes(S, outcomes_of(S))
    model = whence.fit(runs)
    assert whence.lds(model, runs).mean > 0.9
    assert whence.select(model, size=3).subset.sum() == 3
    for surrogate in (GIVEN, whence.KernelSurrogate()):
        with pytest.raises(InputError, match=r"A fit by a KernelSurrogate of 120 distinct subsets takes about 346 kB"):
            whence.fit(runs, surrogate=surrogate)


def test_of_very_many_runs_some_are_drawn_and_the_note_says_so(monkeypatch):
    monkeypatch.setattr(fit_module, "MOST_RUNS", 40)
    S = subsets(90, 8)
    with pytest.warns(DataWarning, match="The fit uses a random 40 of 90 runs"):
        model = whence.fit(whence.Outcomes(S, outcomes_of(S)), seed=3)
    assert model.outcomes.n_runs == 40
    rows = {row.tobytes() for row in S}
    assert all(row.tobytes() in rows for row in model.outcomes.subsets)


def test_a_table_that_memory_cannot_hold_several_times_is_refused(monkeypatch):
    S = subsets(20, 5)
    monkeypatch.setattr(sizes, "free_memory", lambda: 64.0 * 6 * 10)
    with pytest.raises(InputError, match=r"A fit of 20 runs takes about 7.68 kB of memory.* at most 10 would do"):
        whence.fit(whence.Outcomes(S, outcomes_of(S)))


def test_estimates_of_more_runs_than_memory_holds_are_refused(monkeypatch):
    S = subsets(20, 5)
    runs = whence.Outcomes(S, outcomes_of(S))
    monkeypatch.setattr(sizes, "free_memory", lambda: 24.0 * 18**2)
    monkeypatch.setattr(fit_module, "learn_rungs", lambda *_, **__: pytest.fail("work before the refusal"))
    with pytest.raises(InputError, match=r"A fit with estimates of 20 distinct subsets .* at most 18 would do"):
        whence.fit(runs, estimates=runs)


@pytest.mark.parametrize("n_tasks", [2000, 20_000])
def test_thousands_of_tasks_have_more_subsets_than_a_float_can_count(n_tasks):
    model = whence.AdditiveSurrogate.from_coefficients(np.linspace(-1, 1, n_tasks))
    found = whence.select(model, max_size=n_tasks // 2, risk=0)
    assert found.subset.sum() in (1, n_tasks // 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")
def test_a_greedy_search_of_two_thousand_tasks_ends():
    rng = np.random.default_rng(0)
    S = (rng.random((24, 2000)) < 0.5).astype(float)
    model = whence.fit(whence.Outcomes(S, S[:, 0]), surrogate=GIVEN, n_folds=None)
    found = whence.select(model)
    assert found.how.startswith("greedy with swaps")
    assert found.value <= model.predict(S).min() + 1e-9


@pytest.mark.parametrize("risk", [np.inf, 1e300])
def test_a_risk_beside_which_no_prediction_counts_is_refused(risk):
    with pytest.raises(InputError, match=r"'risk' parameter of select must be at most 1e\+06"):
        whence.select(model_of(), risk=risk)


def test_planned_runs_take_from_the_covariance_what_measuring_them_would():
    """Column by column as matrix by matrix."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(30, 40))
    covariance, noise, order = A @ A.T / 40, 0.3, [3, 17, 3, 29, 0]
    planned, dense = _Planned(covariance.copy(), noise, len(order)), covariance.copy()
    for pick in order:
        planned.add(pick)
        column = dense[:, pick].copy()
        dense -= np.outer(column, column) / (dense[pick, pick] + noise)
        np.testing.assert_allclose(planned.variance, np.diag(dense), atol=1e-12)
        np.testing.assert_allclose(planned.squares, (dense**2).sum(0), atol=1e-11)


def test_suggestions_by_the_hundred_thousand_are_refused():
    with pytest.raises(InputError, match=r"'n' parameter of suggest must be at most 5,000. Got 100,000 instead"):
        whence.suggest(model_of(), n=100_000)


@pytest.mark.slow
def test_a_page_of_many_targets_has_those_that_are_predicted_best(monkeypatch, tmp_path):
    monkeypatch.setattr(findings, "PAGE_TARGETS", 2)
    S = subsets(30, 4)
    noise = np.random.default_rng(0).normal(size=(len(S), 3))
    values = np.column_stack([noise[:, 0], S @ [1.0, 2, 3, 4], noise[:, 1], S @ [4.0, 3, 2, 1], noise[:, 2]])
    runs = whence.Outcomes(S, values, target_names=list("vwxyz"))
    with pytest.warns(DataWarning, match="The page has 2 of 5 targets, those whose held-out runs are predicted best"):
        fewer = findings._best_predicted(whence.fit(runs), 0)
    assert fewer.target_names == ("w", "y")
    runs.write(tmp_path / "runs.npz")
    page = str(tmp_path / "report.html")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "runs.npz"), "-o", page, "--json"])
    assert result.exit_code == 0, result.output
    assert list(json.loads(result.stdout)["answers"]) == ["w", "y", "mean"]


def test_a_page_of_too_many_runs_is_refused_with_the_number_that_would_do(monkeypatch):
    model = model_of()
    monkeypatch.setattr(findings, "PAGE_BYTES", 100.0)
    with pytest.raises(InputError, match=r"A page of 29 runs takes about 250 bytes of a page.*at most 11 would do"):
        findings.collect(model)
