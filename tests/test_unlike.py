"""Runs that did not finish, and runs of several kinds: neither is passed over in silence."""

import warnings

import numpy as np
import pandas as pd
import pytest

import whence
from whence.errors import DataWarning
from whence.outcomes import read_outcomes

# A test looks at the notes it is about.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Columns set aside:whence.errors.DataWarning", "ignore:Targets not measured:whence.errors.DataWarning"
)
TASKS = ["web", "code", "math", "law", "news", "chat"]


def sweep(n=40, seed=0):
    """Runs of an additive metric with a little noise."""
    rng = np.random.default_rng(seed)
    S = rng.integers(0, 2, (n, 6))
    return pd.DataFrame(S, columns=TASKS).assign(loss=2 - S @ [0.3, 0.1, 0, -0.2, 0, 0] + 0.02 * rng.normal(size=n))


@pytest.mark.parametrize(
    ("column", "good", "bad"),
    [("State", "finished", "crashed"), ("params.status", "COMPLETE", "PRUNED"), ("Job State", "COMPLETED", "TIMEOUT")],
)
def test_runs_that_did_not_finish_count_as_not_measured(column, good, bad):
    frame = sweep()
    frame[column] = [bad if at in (3, 8) else good for at in range(40)]
    frame.loc[[3, 8], "loss"] = 99.0
    with pytest.warns(DataWarning, match=f"did not finish, as '{column}' says \\({bad}: 2\\), count as not measured"):
        runs = read_outcomes(frame, "loss")
    assert np.flatnonzero(np.isnan(runs.values[:, 0])).tolist() == [3, 8]
    kept = read_outcomes(frame, "loss", ignore=column)  # whoever knows better may use them
    assert np.isfinite(kept.values).all()


def test_states_that_are_all_alike_say_nothing():
    frame = sweep().assign(state="running")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        runs = read_outcomes(frame, "loss")
    assert np.isfinite(runs.values).all()
    assert not any("did not finish" in str(each.message) for each in told)


def told_of_kinds(frame, **reading):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        read_outcomes(frame, "loss", **reading)
    return [str(each.message) for each in told if "differ by" in str(each.message)]


def test_a_setting_that_moves_the_outcome_is_named():
    frame = sweep().assign(model=["small", "large"] * 20, batch_size=[8, 8, 32, 32] * 10)
    frame["loss"] -= np.tile([0.0, 0.5], 20)
    (note,) = told_of_kinds(frame)
    assert "'model' (small, large: 9" in note
    assert "batch_size" not in note


def test_steps_of_one_run_are_not_its_replicates():
    frame = pd.concat([sweep().assign(run_id=range(40), step=step) for step in (1, 10, 100)])
    frame["loss"] += 1 / frame["step"]
    assert "'step' (1, 10, 100: " in told_of_kinds(frame)[0]


def test_settings_that_change_nothing_are_not_named():
    """Over 60 sweeps with two settings by chance: a note that came by chance would be a false alarm."""
    alarms = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        frame = sweep(seed=seed).assign(lr=rng.choice([1e-4, 3e-4, 1e-3], 40), gpu=rng.choice(["a", "b"], 40))
        alarms += len(told_of_kinds(frame))
    assert alarms <= 1


def test_a_setting_that_follows_from_the_tasks_is_not_named():
    frame = sweep()
    frame["model"] = np.where(frame["web"] == 1, "with web", "plain")
    assert told_of_kinds(frame) == []


def test_a_fit_of_a_frame_hears_of_it_too():
    frame = sweep().assign(State=["finished"] * 38 + ["failed"] * 2)
    with pytest.warns(DataWarning, match="did not finish"):
        model = whence.fit(frame, outcomes="loss")
    assert np.isnan(model.outcomes.values).sum() == 2
