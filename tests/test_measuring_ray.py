"""Ray: the same table as from local workers, and a worker that dies takes only its own row along."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import pytest

import whence
from clock import overdue_once
from whence.errors import DataWarning, InputError
from whence.outcomes.runs import read_ledger

pytestmark = pytest.mark.slow

ray = pytest.importorskip("ray", reason="Ray is not installed")

TASKS = ["a", "b", "c"]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """A cluster of two CPUs that is there before the run, as a user's is; starting one takes seconds."""
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


def train(subset, seed):
    rng = np.random.default_rng(seed)
    return {"loss": subset @ [1.0, 2.0, 3.0] + rng.normal(), "acc": np.random.rand(2)}  # noqa: NPY002


def test_the_table_is_that_of_local_workers(tmp_path):
    of = {"design": "all", "tasks": TASKS, "seeds": 2, "seed": 3}
    local = whence.measure(train, **of, engine="inline")
    runs = whence.measure(train, **of, jobs=2, engine="ray", path=tmp_path / "run")
    assert runs.values.tobytes() == local.values.tobytes()
    assert ray.is_initialized(), "a cluster that was there stays"
    assert whence.read_outcomes(tmp_path / "run").values.tobytes() == local.values.tobytes()


def misbehave(subset, seed):
    print("about to", ", ".join(subset.tasks))
    if subset.tasks == ("a",):
        os._exit(3)
    if subset.tasks == ("b",):
        time.sleep(600)
    if subset.tasks == ("c",):
        raise ValueError("diverged")
    return {"loss": float(seed), "threads": int(os.environ["OMP_NUM_THREADS"])}


def test_a_worker_killed_mid_run_a_timeout_and_an_error_are_failed_rows(tmp_path, monkeypatch):
    journal = tmp_path / "run" / "journal.jsonl"
    overdue_once(monkeypatch, lambda: journal.exists() and journal.read_bytes().count(b'"row"') == 6)
    with pytest.warns(DataWarning, match="3 of 7 rows failed"):
        runs = whence.measure(
            misbehave, "all", tasks=TASKS, jobs=2, engine="ray", timeout=600, threads=2, path=tmp_path / "run"
        )
    reasons = {
        runs.names_of(runs.subsets[row])[0]: text for (row, _), text in read_ledger(tmp_path / "run").reasons.items()
    }
    assert reasons == {
        "a": "its Ray worker died (ActorDiedError)",
        "b": "it took longer than 600 s",
        "c": "ValueError: diverged",
    }
    fine = ~np.isnan(runs.values[:, 0])
    assert fine.sum() == 4
    np.testing.assert_array_equal(runs.values[fine, 0], (np.random.SeedSequence([0, 0]).generate_state(7) >> 1)[fine])
    assert (runs.values[fine, 1] == 2).all()
    row = int(np.flatnonzero((runs.subsets == [0, 0, 1]).all(1))[0])
    report = (tmp_path / "run" / "failures" / f"row-{row}-replicate-0.txt").read_text()
    assert "about to c" in report
    assert "in misbehave" in report


def test_more_than_the_cluster_has_is_refused():
    with pytest.raises(InputError, match=r"A worker needs 1 GPU and the Ray cluster has 0"):
        whence.measure(train, "all", tasks=TASKS, engine="ray", gpus_per_task=1)


def test_without_ray_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r'needs Ray: pip install "whence\[ray\]"'):
        whence.measure(train, "all", tasks=TASKS, engine="ray")
