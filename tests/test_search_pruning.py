"""Runs that report on their way: which are stopped, and what they still tell."""

from __future__ import annotations

import numpy as np
import pytest

import whence
from whence.searching.pruning import Pruned, Report, carried_on, curves_in, takes_report

TASKS = list("abcdef")
WEIGHTS = np.array([1.0, -0.6, 0.4, 0.3, -0.2, 0.1])


def train(subset, seed, report):
    """A curve that comes nearer to the final score with every step."""
    final = float(np.asarray(subset) @ WEIGHTS)
    for step in range(10):
        report(step, final * (step + 1) / 10)
    return {"score": final}


def test_a_run_below_the_median_of_four_finished_ones_is_stopped(tmp_path):
    for seed in range(4):
        report = Report(tmp_path, seed, True)
        for step in range(3):
            report(step, float(seed))
        report.keep(finished=True)
    Report(tmp_path, 9, True)(0, 1.5)  # the median itself
    with pytest.raises(Pruned, match=r"stopped at step 1 with 1.4, where the median of finished runs is 1.5"):
        Report(tmp_path, 8, True)(1, 1.4)
    Report(tmp_path, 7, False)(1, 1.4)
    Report(tmp_path, 6, True)(5, -9.0)  # nobody else was there
    assert len(curves_in(tmp_path, finished=True)) == 4
    assert curves_in(tmp_path)[8] == {1: 1.4}


def test_a_damaged_curve_is_left_out_and_one_of_numbers_that_are_none_is_kept_without_them(tmp_path):
    for seed in range(3):
        report = Report(tmp_path, seed, True)
        report(0, float(seed))
        report(1, float("nan"))
    place = tmp_path / "1.json"
    whole = place.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        place.write_bytes(damaged)
        found = curves_in(tmp_path)
        assert found | {1: {0: 1.0}} == {0: {0: 0.0}, 1: {0: 1.0}, 2: {0: 2.0}}
    place.write_bytes(whole)
    elsewhere = tmp_path / "elsewhere.txt"
    elsewhere.write_text("mine")
    place.unlink()
    place.symlink_to(elsewhere)
    Report(tmp_path, 1, True)(0, 1.0)
    assert elsewhere.read_text() == "mine"
    assert curves_in(tmp_path)[1] == {0: 1.0}


def test_what_a_stopped_run_would_have_come_to_is_on_the_line_of_the_others():
    curves = {seed: {0: float(seed), 1: 0.0} for seed in range(5)} | {9: {0: 1.5}, 8: {7: 1.0}}
    found = carried_on(curves, np.arange(5), 10 + 2 * np.arange(5.0), np.array([9, 8, 3]))
    np.testing.assert_allclose(found[0], 13.0)
    assert np.isnan(found[1])


def test_the_search_stops_runs_and_finds_the_best_all_the_same(tmp_path):
    assert takes_report(train)
    assert not takes_report(lambda subset, seed: 0.0)
    how = {"tasks": TASKS, "maximize": True, "engine": "inline", "stop": False}
    found = whence.search(train, budget=18, path=tmp_path / "run", **how)
    stopped = np.isnan(found.runs.values[:, 0])
    assert stopped.any()
    assert not stopped[:4].any()
    assert set(found.tasks) == {"a", "c", "d", "f"}
    assert any("stopped early, which saved about" in note for note in found.notes)
    assert not any("failed" in note for note in found.notes)
    assert "stopped early" in (tmp_path / "run" / "search.html").read_text(encoding="utf-8")
    again = whence.search(train, budget=18, path=tmp_path / "run", **how)
    np.testing.assert_array_equal(again.runs.subsets, found.runs.subsets)


@pytest.mark.slow
def test_workers_report_too(tmp_path):
    found = whence.search(train, tasks=TASKS, budget=10, maximize=True, jobs=2, path=tmp_path / "run", stop=False)
    assert len(curves_in(tmp_path / "run-curves")) == 10
    assert np.isfinite(found.runs.values).sum() >= 4
