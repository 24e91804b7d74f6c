"""Each concern by its sentence, and silence where there is none."""

import numpy as np
import pandas as pd
import pytest

from whence.designs import FixedSize
from whence.outcomes import Outcomes


class TestConcerns:
    @staticmethod
    def of(subsets, values=None, **names):
        subsets = np.asarray(subsets)
        values = np.random.default_rng(1).random(len(subsets)) if values is None else values
        return Outcomes(subsets, values, **names).concerns()

    @pytest.fixture
    def plain(self):
        return (np.random.default_rng(0).random((40, 6)) < 0.5).astype(float)

    def test_nothing_to_say(self, plain):
        assert self.of(plain) == []

    def test_fixed_size_and_mixtures_are_fine(self):
        assert self.of(FixedSize(3).draw(8, 40)) == []
        assert self.of(np.random.default_rng(0).dirichlet(np.ones(7), size=50)) == []

    def test_constant_columns(self, plain):
        plain[:, 1], plain[:, [2, 4]] = 1, 0
        assert self.of(plain) == [
            "Tasks with the same weight in every run, so that their effect cannot be seen: task_1.",
            "Tasks in no run, so that their effect cannot be seen: task_2, task_4.",
        ]

    def test_identical_columns_are_named_in_groups(self, plain):
        plain[:, 3], plain[:, [4, 5]] = plain[:, 0], plain[:, [1]]
        message = "Identical task columns, whose effects cannot be separated: "
        assert self.of(plain) == [message + "(task_0, task_3), (task_1, task_4, task_5)."]

    def test_the_papers_repeated_columns(self, plain):
        (repeats, few) = self.of(np.repeat(plain, 20, axis=1))
        assert "(task_0, task_1, task_2, task_3 and 16 more), (task_20, " in repeats
        assert repeats.endswith(" and 2 more.")
        distinct = len({tuple(row) for row in plain.tolist()})
        assert few.startswith(f"There are {distinct} distinct subsets for 120 tasks: with fewer subsets than")

    def test_dependent_columns(self, plain):
        plain[:, 5] = 1 - plain[:, 2]
        message = "Task columns follow from each other (1 relation), so that their effects cannot be separated; "
        assert self.of(plain) == [message + "the shortest: task_2, task_5."]

    def test_dependent_columns_within_a_fixed_size(self):
        halves = [FixedSize(2).draw(5, 10, seed=seed) for seed in range(2)]
        both = np.array([[*a, *b] for a in halves[0] for b in halves[1]])
        (found,) = self.of(both)
        assert "(1 relation)" in found
        assert "task_0, task_1, task_2, task_3, task_4." in found or "task_5, task_6, task_7, task_8, task_9." in found

    def test_dependence_that_only_late_rows_break_is_none(self, plain):
        early = np.vstack([plain, plain])
        early[:, 5] = early[:, 4]
        late = plain[:4].copy()
        late[:, 5] = 1 - late[:, 4]
        assert self.of(np.vstack([early, late])) == []

    def test_odd_columns(self, plain):
        frame = pd.DataFrame(plain, columns=list("abcdef"))
        frame["run_id"], frame["seed"] = np.arange(40) + 100, np.random.default_rng(0).integers(50, size=40)
        assert self.of(plain, task_names=list("abcdef")) == []
        found = Outcomes(frame, np.arange(40.0)).concerns()
        assert found == [
            "Columns that count the rows; ignore them if they are not tasks: run_id.",
            "Columns that are not 0/1 while most are; ignore them if they are not tasks: seed.",
        ]

    def test_targets(self, plain):
        values = np.random.default_rng(0).random((40, 4))
        values[:, 1], values[:3, 2], values[:, 3] = 0.5, np.nan, np.nan
        assert self.of(plain, values, target_names=["loss", "acc", "f1", "late"]) == [
            "Targets not measured in every run: f1 (3 of 40 missing), late (40 of 40 missing).",
            "Targets with the same value in every run, so that no effect can be seen: acc.",
        ]

    def test_few_runs(self, plain):
        assert self.of(plain[:2]) == ["The table has only 2 runs; a surrogate needs at least 3."]
        assert self.of(plain[:4])[-1].startswith("There are 4 distinct subsets for 6 tasks")

    def test_many_columns(self):
        wide = np.random.default_rng(0).random((12, 20_000)) < 0.5
        found = self.of(wide)  # 2^12 patterns for 20,000 columns: every one is repeated
        assert [sentence.split()[0] for sentence in found] == ["Tasks", "Tasks", "Identical", "There"]

    @pytest.mark.parametrize("total", [1, 100])
    def test_a_mixture_of_another_total_is_named(self, total):
        W = total * np.random.default_rng(0).dirichlet(np.ones(4), size=20)
        W[5, 0] += total / 2
        said = f"Weights sum to {total} in nearly all runs, but not in all (counted from 1): run 6 to {1.5 * total:g}."
        assert self.of(W) == [said]
        assert self.of(W * np.linspace(1, 2, 20)[:, None]) == []  # totals of many sizes are amounts of data

    @pytest.mark.parametrize("odd", [-1.0, 9999.0])
    def test_numbers_that_stand_for_a_failed_run_are_named(self, plain, odd):
        values = np.random.default_rng(1).uniform(2, 2.5, 40)
        assert self.of(plain, values) == []
        values[[3, 9]] = odd
        low, high = np.sort(values)[[0 if odd > 0 else 2, -3 if odd > 0 else -1]]
        said = "Outcomes far from all others, to leave empty if they stand for runs that failed: "
        assert self.of(plain, values, target_names=["loss"]) == [
            f"{said}loss ({odd:g} in 2 runs, else {low:.4g} to {high:.4g})."
        ]

    def test_a_far_measurement_is_no_such_number(self, plain):
        values = np.random.default_rng(1).uniform(2, 2.5, 40)
        values[3] = 47.318
        assert self.of(plain, values) == []
        assert self.of(plain, np.where(np.arange(40) == 3, 20.0, np.arange(40) % 4)) == []  # all are whole
