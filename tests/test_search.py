"""The search: spaces, rules, asking and telling, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import whence
from whence.errors import InputError
from whence.searching.ask import START
from whence.searching.belief import Belief, Known
from whence.searching.certainty import best_row, named_row
from whence.searching.goals import contrasts_of, next_row
from whence.searching.space import Listed, Mixtures, Subsets, balanced_start, make_space

NAMES = tuple("abcdef")
NOTHING = np.zeros((0, 6))


def effects(subset):
    """What tasks do: a and the pair c, d help; b hurts."""
    row = np.asarray(subset, float)
    return float(row @ [1.0, -0.6, 0.2, 0.2, 0.0, 0.05] + 0.8 * row[2] * row[3])


def told(search, function, noise=0.0, seed=0):
    """The search, once all that it asked for was run."""
    rng = np.random.default_rng(seed)
    while runs := search.ask():
        for run in runs:
            search.tell(run, {"score": function(run.subset) + noise * rng.normal()})
    return search


SPACES = {
    "all": {},
    "size": {"size": 3},
    "at most": {"max_size": 2, "exclude": ["b"]},
    "include": {"include": ["a", "f"], "exclude": ["c"]},
    "cost": {"costs": {"a": 3, "b": 1, "c": 1}, "max_cost": 3, "include": ["b"]},
    "mixture": {"mixture": True},
    "bounds": {"mixture": True, "bounds": {"a": (0.1, 0.3), "b": (0, 0.2)}, "exclude": ["f"], "include": ["c"]},
    "mixture cost": {"mixture": True, "costs": {"a": 2.0, "b": 1.0}, "max_cost": 0.5},
}


def meets(
    rows, *, size=None, max_size=6, include=(), exclude=(), costs=None, max_cost=np.inf, mixture=False, bounds=None
):
    """Whether rows meet constraints, said once more in plain words."""
    for row in rows:
        weight = dict(zip(NAMES, row, strict=True))
        if mixture:
            assert abs(row.sum() - 1) < 1e-6
            assert all(low - 1e-9 <= weight[name] <= high + 1e-9 for name, (low, high) in (bounds or {}).items())
            assert row.min() > -1e-9
        else:
            assert set(row) <= {0.0, 1.0}
            assert 1 <= row.sum() <= max_size
            assert size is None or row.sum() == size
        assert all(weight[name] > 0 for name in include)
        assert all(weight[name] < 1e-9 for name in exclude)
        assert sum(cost * weight[name] for name, cost in (costs or {}).items()) <= max_cost + 1e-9
    return True


@pytest.mark.parametrize("given", SPACES.values(), ids=SPACES)
def test_what_is_drawn_found_nearby_and_started_with_is_allowed(given):
    space, rng = make_space(NAMES, **given), np.random.default_rng(0)
    drawn = space.draw(200, rng)
    assert len(drawn) > 3
    assert meets(drawn, **given)
    assert meets(space.near(drawn[-1], rng), **given)
    assert meets(balanced_start(space, 5, rng), **given)
    assert space.allow(drawn).all()


def test_a_small_space_is_drawn_whole_and_a_large_one_at_random():
    assert len(make_space(NAMES).draw(10, np.random.default_rng(0))) == 63
    assert len(make_space(NAMES, size=2).draw(10, np.random.default_rng(0))) == 15
    many = make_space(tuple(f"t{k}" for k in range(40)), size=7)
    drawn = many.draw(50, np.random.default_rng(0))
    assert len(drawn) == 50
    assert (drawn.sum(1) == 7).all()


def test_the_start_has_every_task_in_and_out():
    start = balanced_start(make_space(NAMES), 6, np.random.default_rng(0))
    assert len(np.unique(start, axis=0)) == 6
    assert (start[0] == 1).all()
    assert ((start.mean(0) > 0.2) & (start.mean(0) < 0.9)).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 9}, "from 1 to 6"),
        ({"include": ["a"], "exclude": ["a"]}, "both included and excluded"),
        ({"include": ["zz"]}, "zz"),
        ({"costs": {"a": 1}}, "Costs need a limit, and a limit needs costs"),
        ({"costs": {"a": 5}, "max_cost": 1, "include": ["a"]}, "No subset meets the constraints"),
        ({"bounds": {"a": (0, 1)}}, "give mixture=True too"),
        ({"mixture": True, "size": 2}, "tasks that are in or out"),
        ({"mixture": True, "bounds": {"a": (0.6, 1), "b": (0.6, 1)}}, "the bounds allow 1.2 to"),
        ({"mixture": True, "bounds": {"a": (0.6, 0.2)}}, "lower first"),
        ({"mixture": True, "bounds": {"a": 3}}, "two weights"),
        ({"mixture": True, "include": ["a"], "exclude": ["a"]}, "is excluded"),
        ({"mixture": True, "costs": dict.fromkeys(NAMES, 2.0), "max_cost": 1}, "the cheapest costs 2"),
        ({"candidates": [[1, 0]]}, "a column per task"),
        ({"candidates": [[1, 0, 0, 0, 0, 0]], "exclude": ["a"]}, "None of the 1 candidates"),
        ({"goal": "worst"}, "must be one of 'best'"),
        ({"budget": 2}, "2 runs can tell nothing"),
        ({"budget": 5, "goal": "effects"}, "5 runs can tell which of the runs made is the best"),
        ({"budget": 0}, "at least 1"),
        ({"within": -1}, "zero or more"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_a_sentence(given, message):
    with pytest.raises(InputError, match=message):
        whence.Search(NAMES, **given)


# ---- rules -----------------------------------------------------------------------------------------------


def test_effects_of_a_pool_are_those_of_least_squares():
    pool = np.vstack([np.zeros(5), whence.Exhaustive().draw(5)])
    contrasts, pairs = contrasts_of(pool)
    weights = np.arange(1.0, 6)
    outcome = pool @ weights + 2 * (pool[:, 0] - 0.5) * (pool[:, 1] - 0.5)
    found = contrasts @ outcome
    np.testing.assert_allclose(found[:5], weights, atol=1e-9)
    np.testing.assert_allclose(found[5:], [2.0 if pair == (0, 1) else 0.0 for pair in pairs], atol=1e-9)


def test_the_improvement_that_is_expected_is_that_of_draws():
    from whence.searching.goals import _expected_improvement

    ahead, std = np.array([-1.0, 0.0, 0.5]), np.array([0.5, 1.0, 0.1])
    drawn = ahead + std * np.random.default_rng(0).standard_normal((200_000, 3))
    np.testing.assert_allclose(_expected_improvement(ahead, std), np.maximum(drawn, 0).mean(0), atol=0.005)


def test_what_is_running_is_not_asked_for_again():
    S = whence.Exhaustive().draw(6)[1::5]
    values = np.array([[effects(row)] for row in S])
    asked = next_row("best", Subsets(make_space(NAMES).constraints), Belief(Known(S, values, NOTHING, NOTHING), values),
                     np.random.default_rng(0))  # fmt: skip
    running = asked.row[None]
    again = next_row("best", make_space(NAMES), Belief(Known(S, values, NOTHING, running), values),
                     np.random.default_rng(0))  # fmt: skip
    assert (again.row != asked.row).any()


def test_how_sure_is_the_share_of_draws_and_grows_with_tolerance():
    S = whence.Exhaustive().draw(6)[1::4]
    values = np.array([[effects(row)] for row in S])
    belief = Belief(Known(S, values, NOTHING, NOTHING), values)
    found = [best_row(make_space(NAMES), belief, within, np.random.default_rng(0)) for within in (0.0, 0.1, 10.0)]
    assert found[0].sure <= found[1].sure <= found[2].sure == 1.0
    assert found[0].gain == found[2].gain >= 0


def test_one_scale_is_that_of_ranks_which_only_the_order_of_outcomes_matters_to():
    S = whence.Exhaustive().draw(6)[1::5]
    values = np.array([[effects(row)] for row in S])
    plain, bent = (Belief(Known(S, y, NOTHING, NOTHING), y).scales for y in (values, np.exp(5 * values)))
    np.testing.assert_allclose(plain[1].goodness, bent[1].goodness)
    assert abs(plain[0].goodness - bent[0].goodness).max() > 0.5
    for scale in (*plain, *bent):
        values = scale.standardized(scale.goodness)
        np.testing.assert_allclose([values.mean(), values.std()], [0, 1], atol=1e-12)


def test_disasters_do_not_hide_what_makes_the_best_better():
    """Two tasks together cost a hundred times what any other difference is worth; one search of six may miss."""

    def better_rows(seed):
        rng = np.random.default_rng(seed)
        worth, bad = rng.normal(size=8), rng.choice(8, 2, replace=False)

        def outcome(rows):
            return rows @ worth - 300 * rows[..., bad].prod(-1)

        search = told(
            whence.Search(8, budget=20, maximize=True, stop=False, seed=seed), lambda row: outcome(np.asarray(row))
        )
        every = outcome(whence.Exhaustive().draw(8)[1:])
        return (every > search.result().runs.values.max() + 1e-9).sum()

    assert sorted(better_rows(seed) for seed in range(6))[-2] <= 1


@pytest.mark.parametrize("goal", ["best", "effects", "prediction"])
def test_every_goal_is_served_under_constraints(goal):
    limits = {"max_size": 4, "exclude": ["e"]}
    search = told(whence.Search(NAMES, goal, 14, maximize=True, stop=False, **limits), effects)
    result = search.result()
    assert len(result.runs) == 14
    assert meets(result.runs.subsets, **limits)
    assert str(result)
    assert f"{len(result.runs)} runs of 14 made" in result._repr_html_()
    assert list(result.to_frame().columns) == [*NAMES, "score", "why"]
    if goal == "best":
        assert result.tasks == ("a", "c", "d", "f")
        assert result.low[0] <= 2.25 <= result.high[0]
    if goal == "effects":
        verdicts = dict(zip(NAMES, result.attribution.verdicts()[:, 0], strict=True))
        assert (verdicts["a"], verdicts["b"]) == ("helps", "hurts")
    if goal == "prediction":
        S = make_space(NAMES, **limits).draw(100, np.random.default_rng(0))
        errors = result.model.predict_quietly(S)[:, 0] - [effects(row) for row in S]
        assert errors.std() < 0.2 * np.std([effects(row) for row in S])


def test_with_good_estimates_a_few_noisy_runs_are_enough_to_be_sure():
    S = whence.Exhaustive().draw(6)
    cheap = np.array([[0.7 * effects(row) + 0.3 * row[4]] for row in S])
    estimates = whence.Outcomes(S, cheap, NAMES, ["score"], maximize=True)
    result = told(whence.Search(NAMES, budget=8, maximize=True, estimates=estimates, stop=False), effects, 0.1).result()
    assert set(result.tasks) - {"e"} == {"a", "c", "d", "f"}  # e does nothing
    assert result.sure > 0.8


def test_tasks_that_are_never_in_have_no_effect_to_settle():
    search = whence.Search(NAMES, goal="effects", exclude=["d", "e"], include=["f"], budget=8, maximize=True)
    result = told(search, lambda row: 3 * row[0] - 2 * row[1] + row[2]).result()
    assert " of 6 effects of tasks and pairs settled" in result.notes[0]
    assert len(result.runs) <= 8


def test_the_start_does_not_depend_on_the_order_of_equally_large_candidates():
    rows = whence.FixedSize(3).draw(6, n=20, seed=0)
    firsts = {tuple(whence.Search(6, candidates=rows, seed=seed).ask()[0].subset) for seed in range(40)}
    assert len(firsts) > len(rows) / 2


def test_the_best_mixture_is_found_within_its_bounds():
    best = np.array([0.3, 0.5, 0.2, 0, 0, 0])
    search = whence.Search(NAMES, mixture=True, bounds={"a": (0.0, 0.4)}, budget=25, maximize=True, stop=False)
    result = told(search, lambda row: -float(((np.asarray(row) - best) ** 2).sum())).result()
    assert abs(result.subset - best).max() < 0.1


def test_lower_is_better_unless_said_and_weights_join_targets():
    def both(search):
        while runs := search.ask():
            for run in runs:
                search.tell(run, {"loss": effects(run.subset), "acc": float(run.subset[1])})
        return search.result().tasks

    assert set(both(whence.Search(NAMES, budget=14, target="loss"))) <= {"b", "e"}
    assert "b" not in both(whence.Search(NAMES, budget=14, maximize=["loss"], target="loss"))
    heavy = whence.Search(NAMES, budget=14, maximize=["loss", "acc"], weights={"loss": 1, "acc": 100}, stop=False)
    assert "b" in both(heavy)
    with pytest.raises(InputError, match="Weight them with 'weights'"):
        both(whence.Search(NAMES, maximize=["acc"]))
    with pytest.raises(InputError, match=r"There is no target 'los'\. Did you mean 'loss'"):
        both(whence.Search(NAMES, target="los"))


def test_rows_that_fail_are_learned_and_avoided():
    search = whence.Search(NAMES, budget=24, maximize=True, stop=False)
    while runs := search.ask():
        for run in runs:
            if "d" in run.subset:
                search.tell(run, failed="out of memory")
            else:
                search.tell(run, effects(run.subset))
    result = search.result()
    failed = np.isnan(result.runs.values[:, 0])
    assert failed.sum() <= 6
    assert not failed[-10:].any()
    assert "d" not in result.tasks
    assert any("every run with d, and no other" in note for note in result.notes)


def test_rows_are_repeated_where_noise_asks_and_never_without_noise():
    quiet = told(whence.Search(NAMES, budget=20, maximize=True, stop=False), effects).result().runs
    noisy = told(whence.Search(NAMES, budget=40, maximize=True, stop=False), effects, noise=1.0).result().runs
    assert len(np.unique(quiet.subsets, axis=0)) >= 19  # a single repeat shows that there is no noise
    assert len(np.unique(noisy.subsets, axis=0)) < 40


def test_it_stops_when_settled_or_when_everything_was_run():
    result = told(whence.Search(NAMES, budget=60, maximize=True), effects).result()
    assert result.settled
    assert result.sure >= 0.9
    assert len(result.runs) < 40
    assert any("not needed" in note for note in result.notes)
    few = whence.Search(["a", "b"], budget=30, maximize=True, stop=False)
    assert len(told(few, lambda row: float(row[0])).result().runs) <= 7


def test_all_alike_and_all_failed_are_said():
    alike = told(whence.Search(NAMES, budget=8), lambda row: 1.0).result()
    assert "came out alike" in alike.notes[0]
    search = whence.Search(NAMES, budget=6)
    while runs := search.ask():
        search.tell(runs[0], failed="no")
    result = search.result()
    assert result.model is None
    assert "6 of 6 runs failed" in result.notes[-1]
    assert str(result)


# ---- asking and telling ----------------------------------------------------------------------------------


def test_asking_for_several_gives_different_runs_with_seeds_of_measure():
    search = whence.Search(NAMES, budget=30, seed=3)
    runs = search.ask(5)
    assert len({run.subset.tobytes() for run in runs}) == 5
    assert [run.seed for run in runs] == (np.random.SeedSequence([3, 0]).generate_state(5) >> 1).tolist()
    assert all(run.why == START for run in runs[: search.n_start])
    for run in runs:
        search.tell(run, effects(run.subset))
    assert len({run.subset.tobytes() for run in search.ask(4)}) == 4


def test_runs_of_ones_own_are_told_by_name_and_learned_from():
    search = whence.Search(NAMES, budget=20, maximize=True)
    search.tell(["a", "c"], 5.0)
    search.tell({"b": 1}, {"outcome": 1.0})
    assert len(search.ledger().outcomes()) == 2
    with pytest.raises(InputError, match="either the values of a run, or why it failed"):
        search.tell(["a"])
    with pytest.raises(InputError, match="has not proposed run 9"):
        search.tell(whence.searching.decisions.Proposal(9, np.ones(6), 0, ""), 1.0)


def test_processes_ask_and_tell_in_turn_through_a_folder(tmp_path):
    def opened(**more):
        return whence.Search(NAMES, budget=10, maximize=True, path=tmp_path / "run", stop=False, **more)

    (first,) = opened().ask()
    (second,) = opened().ask()
    assert (second.number, first.number) == (1, 0)
    opened().tell(second, effects(second.subset))
    opened().tell(first, effects(first.subset))
    alone = whence.Search(NAMES, budget=10, maximize=True, stop=False)
    for run in alone.ask(2):
        alone.tell(run, effects(run.subset))
    for _ in range(6):
        (run,) = opened().ask()
        (same,) = alone.ask()
        assert run.subset.tobytes() == same.subset.tobytes()
        opened().tell(run, effects(run.subset))
        alone.tell(same, effects(same.subset))
    assert len(whence.read_outcomes(tmp_path / "run")) == 8
    with pytest.raises(InputError, match="of something else: goal"):
        opened(goal="effects")


def test_a_list_of_candidates_is_all_that_is_run():
    rows = whence.Exhaustive().draw(6)[5:40]
    search = told(whence.Search(NAMES, budget=20, maximize=True, candidates=rows, stop=False), effects)
    known = {row.tobytes() for row in rows}
    assert all(row.tobytes() in known for row in search.result().runs.subsets)
    assert isinstance(search.space, Listed)
    assert isinstance(make_space(NAMES, mixture=True), Mixtures)


def test_a_repeated_run_that_comes_out_the_same_makes_the_best_outcome_the_one_named():
    S = np.random.default_rng(0).permutation(whence.Exhaustive().draw(6))[:24]
    y = S @ np.arange(6.0)
    outlier = int(np.argsort(y)[5])
    y[outlier] = y.max() + 0.1  # better than all, unlike what its tasks say
    space = make_space(NAMES)
    repeated = np.append(np.arange(24), 0)

    def named(values):
        known = Known(S[repeated], values[:, None], NOTHING, NOTHING)
        return named_row(space, Belief(known, known.values), np.random.default_rng(0))

    exact = y[repeated]
    noisy = exact + np.append(np.zeros(24), 3.0)
    assert (named(exact) == S[outlier]).all()
    assert (named(noisy) != S[outlier]).any()
