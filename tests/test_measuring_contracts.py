"""What every outcome function and every engine has to keep, over the tables of conformance_measuring.py."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import tempfile
import time

import numpy as np
import pytest

import whence
from conformance_measuring import ENGINES, OUTCOME_FNS, TASKS, Called, plain
from whence.errors import DataWarning, InputError
from whence.measuring import engine as engines
from whence.measuring.fingerprint import fingerprint_of
from whence.measuring.outcome_fn import as_outcome_fn
from whence.outcomes.runs import read_ledger

MIXED = whence.Exhaustive().draw(3)


@pytest.fixture(params=OUTCOME_FNS)
def make(request):
    if request.param in ("retraining", "task vectors", "GradEx"):
        pytest.importorskip("torch")
    return OUTCOME_FNS[request.param]


def measured(function, subsets=MIXED, **more):
    return whence.measure(function, subsets, tasks=TASKS, engine="inline", **more).values


# ---- outcome functions -----------------------------------------------------------------------------------


def test_an_outcome_function_says_what_the_contract_names(make):
    found = as_outcome_fn(make())
    assert found.task_names is None or tuple(found.task_names) == TASKS
    assert all(isinstance(text, str) for item in found.provenance.items() for text in item)
    assert found.batch is None or callable(found.batch)
    assert found.tuned is not None
    assert found.check is not None
    assert as_outcome_fn(found) is found


def test_values_depend_on_the_subset_and_the_seed_alone(make):
    values = measured(make())
    order = np.random.default_rng(0).permutation(len(MIXED))
    seeds = np.random.SeedSequence([0, 0]).generate_state(len(MIXED)) >> 1
    function = as_outcome_fn(make())
    for row in order:
        one = function(whence.Subset(MIXED[row], TASKS), int(seeds[row]))
        np.testing.assert_allclose(np.ravel(list(one.values())), values[row], rtol=1e-4, atol=1e-6)


def test_the_same_function_made_again_has_the_same_fingerprint(make):
    first, second = (fingerprint_of(as_outcome_fn(make())) for _ in range(2))
    assert first
    assert first == second


def test_a_run_goes_on_with_the_same_function_made_again(make, tmp_path):
    measured(make(), MIXED[:3], path=tmp_path / "run")
    grown = measured(make(), path=tmp_path / "run")
    np.testing.assert_allclose(grown, measured(make()), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("attribute", "value", "wanted"),
    [
        ("batch_size", 0, "an integer of at least 1"),
        ("provenance", "by hand", "a mapping of names to text"),
        ("tuned", 1, "a method"),
    ],
)
def test_what_the_contract_does_not_allow_is_named(attribute, value, wanted):
    odd = Called()
    setattr(odd, attribute, value)
    with pytest.raises(InputError, match=f"The '{attribute}' of the outcome function Called must be {wanted}"):
        as_outcome_fn(odd)


def test_a_fingerprint_that_is_none_is_named(tmp_path):
    odd = Called()
    odd.fingerprint = 3
    with pytest.raises(InputError, match="The 'fingerprint' of the outcome function Called must be a mapping"):
        measured(odd, path=tmp_path / "run")


# ---- engines ---------------------------------------------------------------------------------------------


@pytest.fixture(params=ENGINES)
def how(request):
    if request.param == "ray" and not importlib.util.find_spec("ray"):
        pytest.skip("Ray is not installed")
    return {"engine": request.param, **ENGINES[request.param]}


def test_every_engine_is_in_the_table():
    assert set(ENGINES) == set(engines.ENGINES)


def troublesome(subset, seed):
    if subset.tasks == ("a", "b"):
        raise RuntimeError("diverged \ud800")
    if subset.tasks == ("b",) and os.fork() == 0:
        sys.exit(0)
    return plain(subset, seed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # Python 3.12, of the fork
def test_every_job_comes_back_once_and_trouble_stays_with_its_row(how, tmp_path):
    with pytest.warns(DataWarning, match="1 of 7 rows failed"):
        runs = whence.measure(troublesome, MIXED, tasks=TASKS, path=tmp_path / "run", **how)
    seeds = np.random.SeedSequence([0, 0]).generate_state(len(MIXED)) >> 1
    for row, seed, value in zip(MIXED, seeds, runs.values[:, 0], strict=True):
        if tuple(np.flatnonzero(row)) == (0, 1):
            assert np.isnan(value)
        else:
            assert value == plain(row, seed)["loss"]
    assert (tmp_path / "run" / "journal.jsonl").read_bytes().count(b'"row"') == 7
    assert list(read_ledger(tmp_path / "run").reasons.values()) == [r"RuntimeError: diverged \ud800"]


def untidy(subset, seed):
    """One row leaves its process without a folder, without output and with next to no stack; all others need them."""
    if subset.tasks == ("b",):
        os.chdir(tempfile.mkdtemp())
        os.rmdir(os.getcwd())
        if sys.stdout is not sys.__stdout__:  # somebody else's, as in tests
            sys.stdout = io.StringIO()
        sys.stdout.close()
        sys.setrecursionlimit(sys.getrecursionlimit() // 2)
        return 0.0
    print("in", os.getcwd())
    return float(sys.getrecursionlimit())


@pytest.mark.slow
def test_the_process_of_a_row_is_as_before_for_the_next_one(how):
    rows = whence.measure(untidy, np.eye(3)[[0, 1, 2, 1, 0, 2]], tasks=TASKS, **how).values.ravel()
    assert (rows == [rows[0], 0, rows[0], 0, rows[0], rows[0]]).all()


def slow_first(subset, seed):
    if subset.tasks == ("a",):
        time.sleep(0.5)
        return {"loss": 1.0, "acc": 0.5}
    return {"acc": 0.25, "loss": 2.0} if subset.tasks == ("b",) else {"loss": 3.0}


@pytest.mark.slow
def test_which_rows_fit_does_not_depend_on_which_was_first_finished(how):
    order = np.eye(3)
    with pytest.warns(DataWarning, match="1 of 3 rows failed and stay NaN. The first, row 2: it returned loss where"):
        runs = whence.measure(slow_first, order, tasks=TASKS, **how)
    assert runs.target_names == ("loss", "acc")
    np.testing.assert_array_equal(runs.values, [[1.0, 0.5], [2.0, 0.25], [np.nan, np.nan]])
