"""Measuring: which rows, with which seeds and names, what comes back, and what is refused, whatever the engine."""

from __future__ import annotations

import functools
import itertools
import json
import os
import pickle
import sys
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import whence
from whence.errors import DataWarning, InputError
from whence.measuring import display as shown
from whence.measuring import inline
from whence.measuring.display import Display, duration
from whence.measuring.outcome_fn import OutcomeFn
from whence.measuring.rows import Job, Reply, Result
from whence.measuring.values import flatten, flatten_batch
from whence.outcomes.ledger import Ledger
from whence.outcomes.plan import Plan
from whence.outcomes.runs import read_ledger

TASKS = ["code", "math", "law", "news"]
EFFECTS = np.array([-1.0, 0.5, 0.25, 0.0])


def train(subset, seed):
    """A loss with noise from the seed, and two accuracies."""
    noise = np.random.default_rng(seed).normal()
    return {"loss": 2.0 + subset @ EFFECTS + 0.1 * noise, "acc": [0.5 * ("code" in subset), seed / 2**31]}


def expected(subsets, seeds):
    """The table of `train`, computed from subsets (m, K) and seeds (m,) without any of the machinery."""
    noise = [np.random.default_rng(seed).normal() for seed in seeds]
    return np.column_stack([2.0 + subsets @ EFFECTS + 0.1 * np.array(noise), 0.5 * subsets[:, 0], seeds / 2**31])


class Batched:
    """The same in batches."""

    task_names = TASKS
    batch_size = 5
    provenance = {"estimator": "GradEx", "rank": 512}  # noqa: RUF012
    maximize = ("acc[0]",)

    def __init__(self):
        self.sizes = []

    def batch(self, subsets, seeds):
        self.sizes.append(len(subsets))
        assert seeds.dtype.kind == "i"
        table = expected(subsets, seeds)
        return {"loss": table[:, 0], "acc": table[:, 1:]}


class Empty(Batched):
    batch_size = 0


class Halves:
    """A user's own design, without a repr."""

    def draw(self, n_tasks, n=None, *, seed=0):
        return np.tile(np.arange(n_tasks) % 2, (n, 1))


def seeds_of(seed, seeds, n):
    """The documented rule."""
    words = [np.random.SeedSequence([seed, r]).generate_state(n)[i] >> 1 for r in range(seeds) for i in range(n)]
    return np.array(words, dtype=np.int64)


# ---- the subset ------------------------------------------------------------------------------------------


def test_a_subset_is_an_array_that_knows_names():
    subset = whence.Subset([1, 0, 0.5, 0], TASKS)
    assert subset.tasks == ("code", "law")
    assert "code" in subset
    assert "math" not in subset
    assert subset["law"] == 0.5
    assert subset[2] == 0.5
    assert subset.shape == (4,)
    assert subset @ EFFECTS == pytest.approx(-0.875)
    assert repr(subset) == "Subset(code, law=0.5)"
    for plain in (subset * 2, subset[:2], subset > 0, np.asarray(subset), np.add(subset, 1)):
        assert type(plain) is np.ndarray
    assert subset.copy().tasks == subset.tasks
    with pytest.raises(ValueError, match="read-only"):
        subset[0] = 0


def test_a_name_that_is_no_task_is_an_error_and_not_a_task_that_is_never_in():
    subset = whence.Subset([1, 0, 1, 0], TASKS)
    with pytest.raises(InputError, match=r"There is no task 'cod'\. Did you mean 'code'\?"):
        _ = "cod" in subset
    with pytest.raises(InputError, match="There is no task 'maths'"):
        subset["maths"]


def test_a_subset_survives_the_way_to_another_process():
    subset = pickle.loads(pickle.dumps(whence.Subset([1, 0, 1, 0], TASKS)))
    assert subset.tasks == ("code", "law")
    assert not subset.flags.writeable


# ---- values ----------------------------------------------------------------------------------------------


class Tensor:
    """What torch gives: no array before it is detached."""

    def __array__(self, *_, **__):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    def detach(self):
        return self

    double = cpu = detach

    def numpy(self):
        return np.array([1.0, 2.0])


@pytest.mark.parametrize(
    ("returned", "names", "values"),
    [
        (0.5, ("outcome",), [0.5]),
        (np.float32(0.5), ("outcome",), [0.5]),
        (True, ("outcome",), [1.0]),
        ([1, 2], ("outcome[0]", "outcome[1]"), [1.0, 2.0]),
        ({"loss": np.array(3), "acc": (0.5,)}, ("loss", "acc[0]"), [3.0, 0.5]),
        ({"eval": {"loss": 2, "mmlu": {"acc": 0.5}}, "n": 3}, ("eval.loss", "eval.mmlu.acc", "n"), [2.0, 0.5, 3.0]),
        ({"loss": Tensor()}, ("loss[0]", "loss[1]"), [1.0, 2.0]),
        ({"flops": 6 * 10**20, "acc": Fraction(1, 4)}, ("flops", "acc"), [6e20, 0.25]),
    ],
)
def test_what_an_outcome_function_may_return(returned, names, values):
    assert flatten(returned) == (names, values)


def test_what_is_masked_is_not_measured():
    """Beneath the mask of numpy's own constant lies a 0."""
    assert np.isnan(flatten({"loss": np.ma.masked})[1][0])
    masked = np.ma.array([0.5, 9.0], mask=[False, True])
    np.testing.assert_array_equal(flatten(masked)[1], [0.5, np.nan])
    np.testing.assert_array_equal(whence.Outcomes(np.eye(2), masked).values.ravel(), [0.5, np.nan])


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (None, "'outcome' is nothing"),
        ("0.5", "'outcome' is a str"),
        ({}, "returned no metric at all"),
        ({"loss": None}, "'loss' is nothing"),
        ({"loss": 1j}, "'loss' is a complex"),
        ({"loss": 10**400}, "'loss' is a int"),
        ({"loss": [1, None]}, "'loss' is a list"),
        ({"loss": np.zeros((2, 2))}, r"must be a number, or a 1-D array. It has shape \(2, 2\)"),
        ({"loss": []}, "must be a number, or a 1-D array"),
        ({"loss": [[1], [1, 2]]}, "not a regular array"),
    ],
)
def test_what_it_may_not_return(returned, sentence):
    with pytest.raises(InputError, match=sentence):
        flatten(returned)


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        ({"loss": [1.0, 2.0]}, "A batch of 3 subsets must return 3 rows. It returned 2"),
        ({"loss": np.zeros((3, 2, 2))}, "one number per subset, or one row"),
        ({"loss": 1.0}, "one number per subset, or one row"),
        ({"loss": np.zeros(3), "acc": np.zeros(2)}, "same number of rows. They have: loss 3, acc 2"),
    ],
)
def test_what_a_batch_may_not_return(returned, sentence):
    with pytest.raises(InputError, match=sentence):
        flatten_batch(returned, 3)


# ---- the table -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("design", [whence.Bernoulli(0.5), whence.FixedSize(2), whence.Balanced(2), "lto", "all"])
def test_rows_are_those_of_the_design_with_the_seeds_of_the_rule(design):
    n = None if isinstance(design, str) else 6
    runs = whence.measure(train, design, n, tasks=TASKS, seed=3, seeds=2, engine="inline", maximize="acc[0]")
    drawn = whence.designs.parse_design(design) if isinstance(design, str) else design
    subsets = np.tile(drawn.draw(4, n, seed=3), (2, 1))
    np.testing.assert_array_equal(runs.subsets, subsets)
    np.testing.assert_array_equal(runs.values, expected(subsets, seeds_of(3, 2, len(subsets) // 2)))
    assert runs.task_names == tuple(TASKS)
    assert runs.target_names == ("loss", "acc[0]", "acc[1]")
    assert runs.maximize == (False, True, False)


@pytest.mark.slow
def test_engines_and_numbers_of_workers_make_no_difference(tmp_path):
    of = {"design": whence.FixedSize(2), "n": 6, "tasks": TASKS, "seed": 5, "seeds": 2}
    inline = whence.measure(train, **of, engine="inline")
    batched = whence.measure(Batched(), whence.FixedSize(2), 6, seed=5, seeds=2)
    others = [whence.measure(train, **of), whence.measure(train, **of, jobs=3, path=tmp_path / "run")]
    for runs in (batched, *others, whence.read_outcomes(tmp_path / "run")):
        np.testing.assert_array_equal(runs.values, inline.values)
        np.testing.assert_array_equal(runs.subsets, inline.subsets)


def careless(subset, seed):
    """Draws from generators that nobody seeded, in an order that depends on hashes of text."""
    import random

    order = [ord(letter) for letter in {"a", "b", "c", "d", "e", "f"}]
    return {"own": random.random(), "numpys": np.random.rand(), "order": order[0]}  # noqa: NPY002


def test_what_forgets_its_seed_still_depends_on_nothing_else():
    of = {"design": "all", "tasks": 3, "seeds": 2}
    one = whence.measure(careless, **of)
    np.testing.assert_array_equal(one.values, whence.measure(careless, **of, jobs=2).values)
    assert len(np.unique(one.values[:, 0])) == one.n_runs
    inline = whence.measure(careless, **of, engine="inline")
    np.testing.assert_array_equal(one.values[:, :2], inline.values[:, :2])


def test_measuring_in_this_process_leaves_its_generators_alone():
    np.random.seed(0)  # noqa: NPY002
    untouched = np.random.rand()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    whence.measure(careless, "all", tasks=2, engine="inline")
    assert np.random.rand() == untouched  # noqa: NPY002


def threads_of(subset, seed):
    from threadpoolctl import threadpool_info

    np.ones((2, 2)) @ np.ones((2, 2))
    return {
        "threads": max(pool["num_threads"] for pool in threadpool_info()),
        "set": int(os.environ["OMP_NUM_THREADS"]),
    }


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_of_workers_are_explicit(threads):
    runs = whence.measure(threads_of, np.ones((1, 2)), threads=threads)
    assert runs.values[0, 1] == threads
    assert runs.values[0, 0] <= threads


def test_tasks_come_from_where_they_are_known():
    subsets = np.eye(4)
    known = functools.partial(train)
    known.task_names = TASKS
    for given, more in (
        (subsets, {"tasks": TASKS}),
        (pd.DataFrame(subsets, columns=TASKS), {}),
        (whence.Outcomes(subsets, np.full(4, np.nan), TASKS), {}),
        (pd.DataFrame(subsets, columns=TASKS)[TASKS[::-1]], {"tasks": TASKS}),
        ("loo", {"outcome_fn": known}),
    ):
        runs = whence.measure(more.pop("outcome_fn", train), given, engine="inline", **more)
        assert runs.task_names == tuple(TASKS)
        if not isinstance(given, str):
            np.testing.assert_array_equal(runs.subsets, subsets)
    counted = whence.measure(lambda subset, seed: subset.sum(), "loo", tasks=2, engine="inline")
    assert counted.task_names == ("task_0", "task_1")
    assert whence.measure(train, subsets, 2, tasks=TASKS, engine="inline").n_runs == 2


def test_suggestions_can_be_measured_as_they_are():
    runs = whence.measure(train, "all", tasks=TASKS, engine="inline").targets("loss").rows(np.arange(10))
    suggested = whence.suggest(whence.fit(runs), n=3)
    more = whence.measure(train, suggested, engine="inline")
    np.testing.assert_array_equal(more.subsets, suggested.subsets)
    assert more.task_names == runs.task_names


def test_mixtures_are_subsets_too():
    weights = np.array([[0.5, 0.5, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4]])
    runs = whence.measure(train, weights, tasks=TASKS, engine="inline")
    np.testing.assert_array_equal(runs.subsets, weights)
    np.testing.assert_array_equal(runs.values[:, 0], expected(weights, seeds_of(0, 1, 2))[:, 0])


def test_batches_come_in_chunks_with_what_their_function_says_of_itself():
    function = Batched()
    runs = whence.measure(function, "all", seeds=1)
    assert function.sizes == [5, 5, 5]
    assert runs.provenance["estimator"] == "GradEx"
    assert runs.provenance["rank"] == "512"
    assert runs.provenance["outcome_fn"] == "Batched"
    assert runs.provenance["design"] == "Exhaustive(allow_empty=False)"
    assert runs.maximize == (False, True, False)


def test_a_bad_row_of_a_batch_costs_no_other_row():
    class Fragile(Batched):
        def batch(self, subsets, seeds):
            if (subsets.sum(1) == 4).any():
                raise MemoryError("too many")
            table = super().batch(subsets, seeds)
            table["loss"][subsets.sum(1) == 1] = np.nan
            return table

    with pytest.warns(
        DataWarning, match=r"5 of 15 rows failed and stay NaN\. The first, row 0: MemoryError: too many\."
    ):
        runs = whence.measure(Fragile(), "all", keep_going=True)
    bad = np.isin(runs.subsets.sum(1), (1, 4))
    assert np.isnan(runs.values[bad]).all()
    np.testing.assert_array_equal(runs.values[~bad], expected(runs.subsets, seeds_of(0, 1, 15))[~bad])


def test_the_first_finished_row_says_which_targets_there_are():
    def changing(subset, seed):
        return {4: {"b": 1.0, "a": 2.0}, 3: {"a": 3.0, "b": 4.0}}.get(int(subset.sum()), {"a": 5.0})

    with pytest.warns(DataWarning, match=r"6 of 11 rows failed.*it returned a where row 0 returned b, a"):
        runs = whence.measure(changing, "lto", tasks=TASKS, engine="inline")
    assert runs.target_names == ("b", "a")
    np.testing.assert_array_equal(runs.values[:5], [[1.0, 2.0]] + [[4.0, 3.0]] * 4)
    assert np.isnan(runs.values[5:]).all()


def test_where_every_row_fails_there_is_still_a_table():
    with pytest.warns(DataWarning, match=r"3 of 3 rows failed.*ZeroDivisionError: division by zero"):
        runs = whence.measure(
            lambda subset, seed: 1 / 0, "loo", tasks=2, engine="inline", maximize=["acc"], keep_going=True
        )
    assert runs.target_names == ("outcome",)
    assert np.isnan(runs.values).all()


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_a_first_row_that_fails_stops_the_run_and_the_same_call_tries_again(tmp_path, engine):
    def fails(subset, seed):
        return {"loss": "low"}

    def passes(subset, seed):
        return {"loss": float(subset.sum())}

    how = {"tasks": TASKS, "path": tmp_path / "run", "engine": engine}
    with pytest.raises(InputError, match=r"row 0 failed after .* only text \(loss\).* keep_going=True"):
        whence.measure(fails, "loo", **how)
    kept = read_ledger(tmp_path / "run")
    assert (kept.failed, kept.done, kept.open) == (1, 0, 4)
    assert len(list((tmp_path / "run/failures").iterdir())) == 1
    runs = whence.measure(passes, "loo", **how)  # nothing was measured, so that there is nothing to mix with
    np.testing.assert_array_equal(runs.values[:, 0], [4, 3, 3, 3, 3])
    assert "accepted changes" not in runs.provenance


def test_a_later_row_that_fails_does_not_stop_the_run():
    with pytest.warns(DataWarning, match="1 of 5 rows failed"):
        runs = whence.measure(
            lambda subset, seed: float(subset.sum()) if subset[0] else 1 / 0, "loo", tasks=4, engine="inline"
        )
    assert np.isnan(runs.values[:, 0]).tolist() == [False, True, False, False, False]


@pytest.mark.parametrize("batched", [False, True])
def test_text_among_the_numbers_is_set_aside_and_an_array_is_maximised_by_its_name(batched):
    class Both(OutcomeFn):
        task_names = ("a", "b")

        def __call__(self, subset, seed):
            return {"checkpoint": "last.pt", "success": [subset.sum(), 1.0], "loss": 0.5, "stages": ["a", "b"]}

    if batched:
        Both.batch = lambda self, subsets, seeds: {
            "checkpoint": ["last.pt"] * len(subsets),
            "success": np.stack([subsets.sum(1), np.ones(len(subsets))], 1),
            "loss": np.full(len(subsets), 0.5),
            "stages": np.array(["a"] * len(subsets)),
        }
    with pytest.warns(DataWarning, match="text and not a number: 'checkpoint', 'stages'"):
        runs = whence.measure(Both(), "loo", maximize="success", engine="inline")
    assert runs.target_names == ("success[0]", "success[1]", "loss")
    assert runs.maximize == (True, True, False)
    np.testing.assert_array_equal(runs.values[:, 0], [2, 1, 1])
    with pytest.raises(InputError, match=r"no target 'succes'\. Did you mean 'success"):
        whence.measure(Both(), "loo", maximize="succes", engine="inline")


def test_nothing_is_written_without_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whence.measure(train, "loo", tasks=TASKS)
    assert list(tmp_path.iterdir()) == []


def test_functions_of_a_script_and_of_another_function_reach_the_workers():
    scale = 3.0

    def local(subset, seed):
        return scale * subset.sum()

    np.testing.assert_array_equal(whence.measure(local, np.eye(2)).values, [[3.0], [3.0]])


def test_a_design_of_your_own_is_any_object_that_draws(tmp_path):
    for _ in range(2):  # again as in another process, where the object is another one
        runs = whence.measure(train, Halves(), 2, tasks=TASKS, engine="inline", path=tmp_path / "run")
    np.testing.assert_array_equal(runs.subsets, [[0, 1, 0, 1]] * 2)
    assert runs.provenance["design"] == "Halves"


# ---- refusals --------------------------------------------------------------------------------------------

REFUSED = {
    "no tasks": ({"design": "loo", "tasks": None}, "The tasks must be known to draw subsets of them"),
    "other tasks": (
        {"design": pd.DataFrame(np.eye(2), columns=["a", "b"])}, "must name the same tasks. They differ in: a, b, code"
    ),
    "no task": ({"tasks": []}, "must name at least one task"),
    "same task twice": ({"tasks": ["a", "a"]}, "must be unique"),
    "unknown design": ({"design": "best"}, "A design must be bernoulli:P"),
    "no number of subsets": ({"design": "fixed:2", "n": None}, "The 'n' parameter of FixedSize.draw must"),
    "too many": ({"design": np.eye(4), "n": 5}, "There are 4 subsets to measure, fewer than the n=5 asked for"),
    "negative weight": ({"design": -np.eye(4)}, "a weight must be at least 0"),
    "no subset": ({"design": np.zeros((0, 4))}, r"Got shape \(0, 4\) instead"),
    "one row": ({"design": np.ones(4)}, r"Got shape \(4,\) instead"),
    "no seeds": ({"seeds": 0}, "The 'seeds' parameter of measure must be an integer of at least 1. Got 0"),
    "negative seed": ({"seed": -1}, "The 'seed' parameter of measure must be an integer of at least 0"),
    "odd n": ({"n": 2.5}, "The 'n' parameter of measure must be an integer"),
    "no jobs": ({"jobs": 0}, "The 'jobs' parameter of measure must be an integer of at least 1"),
    "no threads": ({"threads": 0}, "The 'threads' parameter of measure must be"),
    "no time": ({"timeout": 0}, "The 'timeout' parameter of measure must be a number of seconds above 0"),
    "unknown engine": ({"engine": "dask"}, "must be 'local', 'ray' or 'inline'. Got 'dask' instead"),
    "timeout without workers": ({"engine": "inline", "timeout": 5}, "which has neither workers nor a timeout"),
    "workers for batches": ({"outcome_fn": Batched(), "jobs": 2}, "Batched measures in this process"),
    "batches of nothing": ({"outcome_fn": Empty()}, "The 'batch_size' of the outcome function Empty must be"),
    "cluster for batches": ({"outcome_fn": Batched(), "engine": "ray"}, "leave out engine='ray'"),
    "no function": ({"outcome_fn": 3}, r"must be a function of \(subset, seed\), or an object with a method batch"),
    "one argument": ({"outcome_fn": lambda subset: 1.0}, r"must take a subset and a seed.*It takes \(subset\)"),
    "unknown target": ({"maximize": ["f1"]}, "There is no target 'f1'"),
    "target named as a task": ({"outcome_fn": lambda subset, seed: {"code": 1.0}}, "share a name. Both have: code"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("folder", [False, True])
def test_what_cannot_be_meant_is_refused(case, folder, tmp_path):
    given, sentence = REFUSED[case]
    arguments = {"outcome_fn": train, "design": "loo", "tasks": TASKS, "engine": "inline"} | given
    if isinstance(arguments["outcome_fn"], Batched):
        arguments["engine"] = given.get("engine", "local")
    if folder:
        arguments["path"] = tmp_path / "run"
    with pytest.raises(InputError, match=sentence):
        whence.measure(**arguments)
    if folder and (tmp_path / "run").exists():
        # What only the first outcome could show is refused then, and that outcome is kept.
        lines = (tmp_path / "run" / "journal.jsonl").read_bytes().splitlines()
        assert sum(b'"row"' in line for line in lines) <= (case in ("unknown target", "target named as a task"))


def test_what_cannot_travel_to_another_process_is_said_to():
    lock = __import__("threading").Lock()
    with pytest.raises(InputError, match=r"cannot be sent to another process.*engine='inline'"):
        whence.measure(lambda subset, seed: bool(lock), "loo", tasks=2)


class Untransportable:
    """Arrives as something that cannot be loaded."""

    def __call__(self, subset, seed):
        return 0.0

    def __reduce__(self):
        return __import__, ("no_such_module_anywhere",)


def test_what_cannot_be_loaded_there_ends_the_run_with_one_sentence():
    with pytest.raises(InputError, match=r"cannot be loaded in another process \(ModuleNotFoundError: No module named"):
        whence.measure(Untransportable(), "loo", tasks=2)


# ---- progress --------------------------------------------------------------------------------------------


class Screen:
    """A stream that keeps what is written to it."""

    encoding = "utf-8"

    def __init__(self, terminal):
        self.text, self.terminal = "", terminal

    def isatty(self):
        return self.terminal

    def write(self, piece):
        self.text += piece
        return len(piece)

    def flush(self):
        pass


def displayed(monkeypatch, *, terminal, seconds=1.0, **how):
    """What is shown of three rows, some seconds apart, the last of them failed."""
    screen = Screen(terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    clock = itertools.count(0.0, seconds)
    monkeypatch.setattr(shown, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    ledger = Ledger(Plan("train", "given subsets", np.eye(4), tuple(TASKS)))
    jobs = [Job(row, 0, np.eye(4)[row], 0) for row in range(4)]
    ledger.book([Result(jobs[0], Reply(("loss",), [0.25]))])
    with Display(ledger, 3, " with 1 worker", **how) as display:
        for row in (1, 2):
            done = [Result(jobs[row], Reply(("loss",), [0.5]))]
            ledger.book(done)
            display.show(done)
        failed = [Result(jobs[3], Reply(reason="no"))]
        ledger.book(failed)
        display.show(failed)
    return screen.text


def test_lines_are_plain_and_sparse_where_nobody_watches(monkeypatch):
    assert displayed(monkeypatch, terminal=False) == ""
    assert displayed(monkeypatch, terminal=False, progress=False) == ""
    first, *lines = displayed(monkeypatch, terminal=False, progress=True).splitlines()
    assert first == "Measuring 3 rows (1 of 4 are already measured) with 1 worker."
    assert lines == []  # all within ten seconds
    _, *lines = displayed(monkeypatch, terminal=False, progress=True, seconds=20.0).splitlines()
    assert len(lines) == 3
    assert "\x1b" not in "".join(lines)
    assert lines[1].startswith("measured 3 of 4 · ")
    assert lines[1].endswith(" to go · loss 0.5")
    assert "1 failed" in lines[2]


def test_a_terminal_gets_a_bar_with_the_latest_values(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    shown = displayed(monkeypatch, terminal=True)
    assert "Measuring" in shown
    assert "4 of 4" in shown
    assert "1 failed" in shown
    assert displayed(monkeypatch, terminal=True, progress=False) == ""


def test_durations_have_at_most_two_units():
    assert [duration(seconds) for seconds in (0.004, 9.5, 59, 61, 3600, 90_000)] == [
        "0.004 s", "9.5 s", "59 s", "1 min 1 s", "1 h 0 min", "1 d 1 h",
    ]  # fmt: skip


def sizes_of_batches(monkeypatch, seconds, n=400, most=256):
    """How many items are worked on together, if a batch of so many takes so many seconds."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(inline, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    sizes = []
    for part in inline.growing(n, most):
        sizes.append(part.stop - part.start)
        clock.now += seconds(sizes[-1])
    assert sum(sizes) == n
    return sizes


def test_batches_are_as_large_as_gains_time_and_otherwise_take_ten_seconds(monkeypatch):
    sizes = functools.partial(sizes_of_batches, monkeypatch)
    assert sizes(lambda n: 2.0 * n) == [8, 16] + [5] * 75 + [1]  # a processor, which gains nothing
    assert sizes(lambda n: 20.0) == [8, 16, 256, 120]  # a card with much room, however long it takes
    assert sizes(lambda n: 30 + 1.5 * n, most=40) == [8, 16] + [40] * 9 + [16]
    assert sizes(lambda n: max(20.0, 0.8 * n), most=64) == [8, 16] + [64] * 5 + [56]
    assert sizes(lambda n: max(6.0, 0.5 * n)) == [8, 16, 256] + [20] * 6  # one that 16 keep busy
    assert sizes(lambda n: 9 * n**0.8, n=150) == [8, 16, 32, 64, 30]
    assert sizes(lambda n: 1e-3 * n) == [8, 16, 256, 120]


# ---- what is in a run folder -----------------------------------------------------------------------------


def test_a_run_folder_says_what_was_planned_and_reads_as_a_table(tmp_path):
    runs = whence.measure(train, "loo", tasks=TASKS, seeds=2, seed=9, path=tmp_path / "run", maximize=["acc[0]"])
    plan = json.loads((tmp_path / "run" / "run.json").read_text())
    assert plan["design"] == "LeaveOneOut()"
    assert (plan["n"], plan["seed"], plan["seeds"], plan["outcome_fn"]) == (5, 9, 2, "train")
    assert plan["task_names"] == TASKS
    assert plan["subsets"][:2] == ["1111", "0111"]
    assert plan["versions"]["whence"] == whence.__version__
    read = whence.read_outcomes(tmp_path / "run")
    np.testing.assert_array_equal(read.values, runs.values)
    assert (read.target_names, read.maximize) == (runs.target_names, runs.maximize)
    assert read.provenance == runs.provenance
    one = whence.read_outcomes(tmp_path / "run", "loss", ignore=["news"], maximize=["loss"])
    assert one.target_names == ("loss",)
    assert one.task_names == ("code", "math", "law")
    assert one.maximize == (True,)
    np.testing.assert_array_equal(one.values[:, 0], runs.values[:, 0])


def test_mixtures_keep_every_bit(tmp_path):
    weights = np.random.default_rng(0).dirichlet(np.ones(4), 5)
    whence.measure(train, weights, tasks=TASKS, path=tmp_path / "run", engine="inline")
    np.testing.assert_array_equal(whence.read_outcomes(tmp_path / "run").subsets, weights)


class Positional(whence.measuring.outcome_fn.OutcomeFn):
    """A function of the places of tasks, which it names: 1 for a, 10 for b, 100 for c."""

    task_names = ("a", "b", "c")

    def __call__(self, subset, seed):
        return {"loss": float(np.asarray(subset) @ [1, 10, 100])}


def test_a_function_gets_tasks_in_its_own_order_whatever_the_order_asked_for():
    for design in ("loo", np.eye(3), pd.DataFrame(np.eye(3), columns=list("cab"))):
        runs = whence.measure(Positional(), design, tasks=["c", "a", "b"], engine="inline")
        assert runs.task_names == ("a", "b", "c")
        np.testing.assert_array_equal(runs.values[:, 0], runs.subsets @ [1, 10, 100])
    np.testing.assert_array_equal(
        whence.measure(Positional(), np.eye(3), tasks=list("cab"), engine="inline").values[0], 100
    )
    assert whence.measure(Positional(), "loo", tasks=3, engine="inline").task_names == ("a", "b", "c")
    for other in (["a", "b"], ["a", "b", "d"], 4):
        with pytest.raises(InputError, match="'tasks' and the outcome function must name the same tasks"):
            whence.measure(Positional(), "loo", tasks=other, engine="inline")
    with pytest.raises(InputError, match="'tasks' parameter of search must be those of the outcome function"):
        whence.search(Positional(), tasks=["c", "a", "b"], budget=8, engine="inline")
