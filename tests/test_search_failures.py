"""Searches that go wrong, or have nothing to find: failures from the first run on, failing subsets, equal outcomes."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import whence
from whence.errors import DataWarning, InputError
from whence.searching import page

TASKS = list("abcdef")


class Flaky:
    """An outcome function that fails until it is fixed."""

    broken = True
    calls = 0

    def __call__(self, subset, seed):
        self.calls += 1
        if self.broken:
            raise KeyError("web")
        return {"score": float("a" in subset) - 0.3 * float("b" in subset)}


def test_a_search_ends_where_every_run_fails_and_the_same_call_tries_them_again(tmp_path):
    flaky = Flaky()
    how = {"tasks": TASKS, "budget": 20, "engine": "inline", "maximize": True, "path": tmp_path / "run"}
    for calls in (5, 10):
        with pytest.raises(InputError, match=r"All 5 runs failed: KeyError: 'web'. See .*run/failures"):
            whence.search(flaky, **how)
        assert flaky.calls == calls
    Flaky.broken = False
    found = whence.search(flaky, **how)
    assert np.isfinite(found.runs.values).all()
    assert "a" in found.tasks
    assert "b" not in found.tasks


def test_why_runs_failed_is_in_the_notes():
    search = whence.Search(TASKS, budget=9, maximize=True, stop=False)
    while proposals := search.ask():
        for run in proposals:
            if "a" in run.subset:
                search.tell(run, failed="out of memory")
            else:
                search.tell(run, float(run.subset.sum()))
    assert re.search(r"of 9 runs failed.*Most often: out of memory\.", " ".join(search.result().notes))


def test_outcomes_that_are_all_alike_have_no_best_and_still_a_report(tmp_path):
    how = {"tasks": TASKS, "budget": 6, "engine": "inline", "path": tmp_path / "run"}
    found = whence.search(lambda subset, seed: 1.0, **how)
    assert found.subset is None
    assert "all 6 runs came out alike" in found.notes[0]
    assert (tmp_path / "run" / "report.html").exists()


def test_a_mixture_is_named_with_all_its_weights():
    sources = [f"s{k}" for k in range(7)]
    how = {"tasks": sources, "mixture": True, "budget": 7, "engine": "inline", "stop": False}
    found = whence.search(lambda weights, seed: float(((weights - 1 / 7) ** 2).sum()), **how)
    said = str(found).split("Best measured")[0]
    weights = [float(weight) for weight in re.findall(r"^s\d\s+(0\.\d{3})", said, re.MULTILINE)]
    assert len(weights) == (found.subset > 0).sum()
    np.testing.assert_allclose(sum(weights), 1, atol=0.01)


def test_repeats_of_a_subset_are_one_line_with_their_mean():
    search = whence.Search(3, budget=10, maximize=True, stop=False)
    for value in (1.0, 3.0):
        search.tell([1, 0, 1], value)
    for subset, value in (([1, 0, 0], 0.5), ([0, 1, 0], 2.5), ([0, 1, 1], 0.1)):
        search.tell(subset, value)
    lines = [re.split(r"\s{2,}", line.strip()) for line in str(search.result()).splitlines()]
    at = next(k for k, line in enumerate(lines) if line[0].startswith("Best measured"))
    best = lines[at + 3 : at + 5]
    assert [(line[0], line[1], float(line[2])) for line in best] == [("task_1", "1", 2.5), ("task_0, task_2", "2", 2.0)]


def test_a_direction_that_looks_wrong_is_said_after_the_first_run(tmp_path):
    def train(subset, seed):
        if subset.sum() < 6:  # any but the first run
            raise KeyboardInterrupt
        return {"accuracy": 0.5}

    how = {"tasks": TASKS, "budget": 8, "engine": "inline", "progress": True}
    with pytest.warns(DataWarning, match="Lower accuracy is assumed to be better"), pytest.raises(KeyboardInterrupt):
        whence.search(train, **how)


def test_the_page_has_pictures_with_numbers(tmp_path):
    how = {"tasks": TASKS, "budget": 8, "engine": "inline", "path": tmp_path / "run", "stop": False}
    found = whence.search(lambda subset, seed: {"loss": 2.0 - float(subset @ np.arange(6.0))}, **how)
    html = Path(tmp_path / "run" / "search.html").read_text(encoding="utf-8")
    curve, effects = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    values = found.runs.values[:, 0]
    for value in (values.min(), values.max()):
        assert f">{value:.4g}</text>" in curve
    heights = {float(y) for y in re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)"', curve)}
    assert len(heights) == len(np.unique(values))
    named = re.findall(r">(\w)</text>", effects)
    assert sorted(named) == TASKS
    assert set(named[:2]) & {"e", "f"}  # the largest effects
    assert set(named[-2:]) & {"a", "b"}


def test_the_page_and_python_agree_on_what_tasks_do(tmp_path):
    how = {"tasks": TASKS, "budget": 10, "engine": "inline", "path": tmp_path / "run", "stop": False}
    rng = np.random.default_rng(0)
    found = whence.search(lambda subset, seed: {"loss": float(subset @ np.arange(-2.0, 4.0) + rng.normal())}, **how)
    html = Path(tmp_path / "run" / "search.html").read_text(encoding="utf-8")
    told = re.search(r"What tasks do, after 10 runs(.*?)</table>", html, re.DOTALL)[1]
    cells = [re.findall(r"<span[^>]*>(.*?)</span>", row) for row in re.findall(r"<tr>(.*?)</tr>", told)[1:]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        frame = whence.attribute(found.model).to_frame()
    assert [cell[0] for cell in cells] == list(frame["task"])
    assert [cell[-1] for cell in cells] == list(frame["verdict"].replace("not distinguishable from zero", "unclear"))
    for (_, score, interval, _), row in zip(cells, frame.itertuples(), strict=True):
        ends = [float(end.replace("\u2212", "-")) for end in (score, *interval.split(" to "))]
        np.testing.assert_allclose(ends, [row.score, row.low, row.high], atol=0.06)


def test_the_page_is_fitted_again_only_after_nine_times_as_long(tmp_path, monkeypatch):
    clock, fits = iter(range(0, 10_000)), []
    monkeypatch.setattr(page.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(page, "_effects", lambda asking, ledger: fits.append(ledger.done) or "")
    view = page.View(whence.Search(TASKS, budget=8, path=tmp_path / "run"), progress=False)
    for done in range(40):
        view._effects_so_far(SimpleNamespace(done=done))
    assert fits == [0, 9, 18, 27, 36]
