"""Selection against trying every allowed subset, in every combination of constraints."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import oracles
import whence.answers.search as search_module
import whence.designs.mixtures as mixtures
from conformance import ANY, FOREST, outcomes_of, subsets, table
from whence.answers.selection import select
from whence.designs.mixtures import mixtures_like
from whence.errors import DataWarning, InputError
from whence.outcomes import Outcomes
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.fit import fit
from whence.surrogates.kernel import KernelSurrogate

GIVEN = KernelSurrogate(alpha=0.1, gamma=0.3)
NAMES = tuple("abcdefgh")


def model_of(K, *, surrogate=GIVEN, seed=0, maximize=(False, False), m=20):
    """Two targets on K named tasks, without cross-validation."""
    rng = np.random.default_rng(seed)
    S = subsets(m, K, seed=seed)
    S = np.vstack([S, np.ones(K), np.zeros(K), np.eye(K)])  # so that there are at least three runs of any K
    runs = Outcomes(S, rng.normal(size=(len(S), 2)), NAMES[:K], ["x", "y"], maximize=maximize)
    return fit(runs, surrogate=surrogate, n_folds=None)


def goodness_of(model, target, risk):
    """What is to be maximised, as a function of one row."""
    columns = [0, 1] if target is None else [model.target_names.index(target)]
    sign = 1 if model.maximize[columns[0]] else -1

    def goodness(row):
        mean, std = model.predict(row[None], return_std=True)
        return sign * mean[0, columns].mean() - (risk * std[0, columns].mean() if risk else 0.0)

    return goodness, columns, sign


def named(constraints):
    """The constraints of the oracle, with task names instead of indices."""
    words = {key: constraints[key] for key in ("size", "max_size", "budget") if key in constraints}
    if "costs" in constraints:
        words["costs"] = {NAMES[k]: cost for k, cost in constraints["costs"].items()}
    for key in ("include", "exclude"):
        words[key] = [NAMES[k] for k in constraints.get(key, ())]
    return words


def members(subset):
    return tuple(int(k) for k in np.flatnonzero(subset))


@st.composite
def questions(draw, most_tasks=6):
    """The number of tasks, constraints as the oracle takes them, and the objective."""
    K = draw(st.integers(1, most_tasks))
    tasks = st.integers(0, K - 1)
    constraints = {}
    which = draw(st.sampled_from(["size", "max_size", "neither"]))
    if which != "neither":
        constraints[which] = draw(st.integers(1, K))
    if draw(st.booleans()):
        constraints["costs"] = draw(st.dictionaries(tasks, st.integers(0, 4)))
        constraints["budget"] = draw(st.integers(0, 8))
    constraints["include"] = draw(st.sets(tasks, max_size=2))
    constraints["exclude"] = draw(st.sets(tasks, max_size=3)) - constraints["include"]
    objective = {
        "target": draw(st.sampled_from([None, "x", "y"])),
        "risk": draw(st.sampled_from([0.0, 0.0, 0.5, 2.0])),
    }
    maximize = draw(st.tuples(st.booleans(), st.booleans()))
    assume(objective["target"] is not None or maximize[0] == maximize[1])
    return K, constraints, objective, maximize, draw(st.integers(0, 3))


def check_against_brute_force(question, *, exact):
    K, constraints, objective, maximize, seed = question
    model = model_of(K, seed=seed, maximize=maximize)
    goodness, columns, sign = goodness_of(model, objective["target"], objective["risk"])
    best = oracles.best_subset(goodness, K, **constraints)
    if best is None:
        with pytest.raises(InputError, match="No subset meets the constraints: "):
            select(model, **named(constraints), **objective)
        return None
    found = select(model, **named(constraints), **objective)
    assert oracles.allowed(members(found.subset), **constraints)
    assert found.tasks == tuple(NAMES[k] for k in members(found.subset))
    reached = goodness(found.subset)
    np.testing.assert_allclose(sign * found.value, reached, rtol=1e-9, atol=1e-12)
    for one, other in zip(
        (found.predicted, found.std), model.predict(found.subset[None], return_std=True), strict=True
    ):
        np.testing.assert_allclose(one, other[0])
    runs = model.outcomes
    allowed_runs = [
        sign * value[columns].mean()
        for row, value in zip(runs.subsets, runs.values, strict=True)
        if oracles.allowed(members(row), **constraints)
    ]
    if allowed_runs:
        np.testing.assert_allclose(sign * found.best_run, max(allowed_runs))
    else:
        assert np.isnan(found.best_run)
    if exact:
        np.testing.assert_allclose(reached, best[0], rtol=1e-9, atol=1e-12)
    return bool(reached >= best[0] - 1e-9 * abs(best[0]))


@settings(max_examples=120, deadline=None)
@given(questions())
def test_the_best_of_all_subsets_is_that_of_brute_force(question):
    check_against_brute_force(question, exact=True)


@settings(max_examples=60, deadline=None)
@given(questions())
def test_greedy_search_never_breaks_a_constraint(question):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "EXHAUSTIVE_SUBSETS", 0)
        check_against_brute_force(question, exact=False)


def test_greedy_search_mostly_finds_the_best_of_all(monkeypatch):
    """At least 27 of 30: eight tasks, four shapes of constraints. (30 of 30 when this was written.)"""
    monkeypatch.setattr(search_module, "EXHAUSTIVE_SUBSETS", 0)
    shapes = [
        {"size": 4},
        {"max_size": 3},
        {"costs": {k: k % 3 + 1 for k in range(8)}, "budget": 7},
        {"include": {1}, "exclude": {2}},
    ]
    reached = [
        check_against_brute_force((8, shapes[i % 4], {"target": "x", "risk": 0.0}, (True, True), i), exact=False)
        for i in range(30)
    ]
    assert sum(reached) >= 27


@pytest.mark.parametrize("name", ANY)
def test_every_surrogate_is_searched_exactly(name):
    model = fit(table(30, 5, task_names=list("abcde")), surrogate=ANY[name], n_folds=None)
    best = oracles.best_subset(lambda row: -model.predict(row[None])[0].mean(), 5, max_size=3)
    found = select(model, max_size=3)
    np.testing.assert_allclose(found.value, -best[0], atol=1e-10)
    assert found.how == "best of all 25 allowed subsets"


def test_the_greedy_search_says_so_and_is_seeded(monkeypatch):
    monkeypatch.setattr(search_module, "EXHAUSTIVE_SUBSETS", 0)
    model = model_of(8)
    first, again = select(model, size=4, target="x", seed=5), select(model, size=4, target="x", seed=5)
    assert first.how.startswith("greedy with swaps, best of 8 starts (7.0e+01 allowed subsets are too many to try)")
    assert first.tasks == again.tasks


def test_greedy_search_of_many_tasks_is_as_good_as_the_best_run():
    S = subsets(60, 40)
    runs = Outcomes(S, outcomes_of(S, noise=0.01), maximize=True)
    model = fit(runs, surrogate=KernelSurrogate(), n_folds=None)
    found = select(model, size=20)
    assert found.subset.sum() == 20
    of_size = S[S.sum(1) == 20]
    assert found.value >= model.predict(of_size).max()
    assert found.value > np.median(model.predict(of_size)) + 1


def test_included_tasks_alone_may_be_the_answer():
    runs = Outcomes(oracles.all_subsets(3), oracles.all_subsets(3) @ [-1.0, 2.0, 3.0], list("abc"))
    assert select(fit(runs, surrogate=GIVEN, n_folds=None), include=["a"]).tasks == ("a",)


# ---- additive surrogates: an integer program -------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(questions(most_tasks=7), st.sampled_from(["ridge", "ols"]))
def test_the_integer_program_is_brute_force(question, penalty):
    K, constraints, objective, maximize, seed = question
    model = model_of(
        K,
        surrogate=AdditiveSurrogate(penalty, **({"alpha": 1.0} if penalty == "ridge" else {})),
        seed=seed,
        maximize=maximize,
    )
    goodness, _, sign = goodness_of(model, objective["target"], 0.0)
    best = oracles.best_subset(goodness, K, **constraints)
    assume(best is not None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "EXHAUSTIVE_SUBSETS", 0)
        found = select(model, **named(constraints), target=objective["target"])
    assert found.how == "exact: the best sum of additive effects"
    assert oracles.allowed(members(found.subset), **constraints)
    np.testing.assert_allclose(sign * found.value, best[0], rtol=1e-6, atol=1e-8)


def test_the_integer_program_of_two_hundred_tasks_is_sorting():
    rng = np.random.default_rng(0)
    S = (rng.random((250, 200)) < 0.5).astype(float)
    effects = rng.normal(size=200)
    model = fit(Outcomes(S, S @ effects), surrogate=AdditiveSurrogate("ols"), n_folds=None)
    with pytest.warns(DataWarning, match=r"it has 30 tasks, and the runs \d+ to \d+"):
        found = select(model, size=30)
    assert set(members(found.subset)) == set(np.argsort(effects)[:30])


@pytest.mark.parametrize("target", ["outcome_0", "outcome_1", None])
def test_the_integer_program_reads_targets_of_different_runs(monkeypatch, target):
    monkeypatch.setattr(search_module, "EXHAUSTIVE_SUBSETS", 0)
    runs = table(30, 6)
    values = runs.values.copy()
    values[:5, 0] = np.nan
    with pytest.warns(DataWarning, match="Targets not measured in every run"):
        model = fit(Outcomes(runs.subsets, values), surrogate=AdditiveSurrogate("ols"), n_folds=None)
    columns = [0, 1] if target is None else [model.target_names.index(target)]
    best = oracles.best_subset(lambda row: -model.predict(row[None])[0, columns].mean(), 6, max_size=3)
    np.testing.assert_allclose(select(model, max_size=3, target=target).value, -best[0])


# ---- by attribution --------------------------------------------------------------------------------------


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("target", [None, "x"])
@pytest.mark.parametrize(("include", "exclude"), [((), ()), ((3,), (0, 1))])
def test_by_attribution_takes_the_tasks_of_best_inclusion_score(maximize, target, include, exclude):
    model = model_of(6, maximize=(maximize, maximize), m=30)
    scores = oracles.inclusion(oracles.table_of(model.predict, 6), model.outcomes.subsets.mean())
    score = scores.mean(1) if target is None else scores[:, 0]
    order = sorted(range(6), key=lambda k: -score[k] if maximize else score[k])
    free = [k for k in order if k not in include and k not in exclude]
    expected = sorted([*include, *free[: 3 - len(include)]])
    found = select(
        model, size=3, by="attribution", target=target,
        include=[NAMES[k] for k in include], exclude=[NAMES[k] for k in exclude],
    )  # fmt: skip
    assert list(members(found.subset)) == expected
    assert found.how == "the tasks of best inclusion score"


# ---- words -----------------------------------------------------------------------------------------------


def test_words_say_what_was_optimised_found_and_compared():
    model = model_of(5)
    one, both = select(model, size=2, target="y"), select(model, size=2)
    assert one.objective == "predicted y"
    assert both.objective == "mean prediction over 2 targets"
    assert select(model, size=2, target="y", risk=1.5).objective == "predicted y less 1.5 std"
    text = str(one)
    assert text.splitlines()[0] == ", ".join(one.tasks)
    assert f"predicted y: {one.value:.6g}; best of all 10 allowed subsets" in text
    assert f"best measured run that meets the constraints: {one.best_run:.6g}" in text
    expected = f"expect {one.expected[0]:.6g} (90% of runs {one.low[0]:.6g} to {one.high[0]:.6g})"
    assert f"  x: predicted {one.predicted[0]:.6g}; {expected}" in text
    nothing = select(model, size=5, exclude=[]).best_run
    assert not np.isnan(nothing)
    S = subsets(20, 4)
    alone = fit(Outcomes(S, S[:, 0]), surrogate=GIVEN, n_folds=None)
    assert "best measured run" not in str(select(alone, size=4)), "no run has all four tasks"


def test_runs_that_were_not_measured_are_not_the_best_run():
    S = np.vstack([np.eye(4), 1 - np.eye(4)])
    values = np.array([1.0, np.nan, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    with pytest.warns(DataWarning, match="Targets not measured"):
        model = fit(Outcomes(S, values, list("abcd")), surrogate=GIVEN, n_folds=None)
    assert select(model, size=1).best_run == 1.0


# ---- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, r"The 'size' parameter of select must be .*from 1 to 4, the number of tasks. Got 0 instead."),
        ({"size": 5}, r"The 'size' parameter of select must be .*from 1 to 4, the number of tasks. Got 5 instead."),
        (
            {"max_size": 0},
            r"The 'max_size' parameter of select must be .*from 1 to 4, the number of tasks. Got 0 instead.",
        ),
        ({"costs": {"a": 1}}, r"Costs and a budget go together. Give both, or neither."),
        ({"budget": 1}, r"Costs and a budget go together. Give both, or neither."),
        ({"costs": {"a": -1}, "budget": 2}, r"The cost of task 'a' must be zero or more.* Got -1 instead."),
        ({"costs": {"e": 1}, "budget": 2}, r"There is no task 'e'"),
        ({"include": ["a"], "exclude": ["a", "b"]}, r"A task cannot be both included and excluded. Got a."),
        ({"include": ["z"]}, r"There is no task 'z'"),
        ({"exclude": "z"}, r"There is no task 'z'"),
        ({"target": "z"}, r"There is no target 'z'. There are: x, y."),
        ({}, r"Some targets are to be maximised and some minimised. Name the one to optimise with 'target'"),
        ({"target": "x", "risk": -1}, r"The 'risk' parameter of select must be zero or more. Got -1 instead."),
        ({"target": "x", "risk": np.nan}, r"The 'risk' parameter of select must be zero or more. Got nan instead."),
        (
            {"target": "x", "by": "magic"},
            r"The 'by' parameter of select must be 'prediction' or 'attribution'. Got 'magic' instead.",
        ),
        (
            {"target": "x", "by": "attribution"},
            r"Selecting by attribution takes the best tasks up to a size: give 'size', and no 'budget'.",
        ),
        (
            {"target": "x", "by": "attribution", "size": 2, "costs": {"a": 1}, "budget": 1},
            r"Selecting by attribution takes the best tasks up to a size: give 'size', and no 'budget'.",
        ),
        (
            {"target": "x", "size": 3, "exclude": ["a", "b"]},
            r"No subset meets the constraints: 0 tasks must be in, 2 are free, 3 to 3 are wanted, "
            r"and the cheapest such subset costs 0.",
        ),
        (
            {"target": "x", "max_size": 1, "include": ["a", "b"]},
            r"No subset meets the constraints: 2 tasks must be in, 2 are free, 1 to 1 are wanted",
        ),
        (
            {"target": "x", "size": 2, "costs": dict.fromkeys("abcd", 2), "budget": 3},
            r"the cheapest such subset costs 4 of a budget of 3.",
        ),
        ({"target": "x", "exclude": list("abcd")}, r"No subset meets the constraints: 0 tasks must be in, 0 are free"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, message):
    model = model_of(4, maximize=(False, True))
    if "target" not in arguments and arguments:
        arguments = {"target": "x", **arguments}
    with pytest.raises(InputError, match=message):
        select(model, **arguments)


def test_a_single_name_is_one_task_and_not_its_letters():
    model = fit(table(20, 3, task_names=["code", "math", "law"]), surrogate=GIVEN, n_folds=None)
    assert "math" in select(model, size=2, include="math").tasks
    assert "math" not in select(model, size=2, exclude="math").tasks


# ---- mixtures --------------------------------------------------------------------------------------------


def mixture_model(*, K=4, total=1.0, maximize=False, surrogate=None, seed=0):
    W = total * np.random.default_rng(seed).dirichlet(np.ones(K), 60)
    Y = -((W / total - np.linspace(0.1, 0.4, K)) ** 2).sum(1)
    return fit(
        Outcomes(W, Y if maximize else -Y, maximize=maximize),
        surrogate=CombinedSurrogate() if surrogate is None else surrogate,
        n_folds=None,
    )


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("total", [1.0, 20.0])
def test_a_mixture_has_weights_of_the_right_total_and_beats_every_run(maximize, total):
    model = mixture_model(total=total, maximize=maximize)
    found = select(model)
    assert (found.subset >= 0).all()
    np.testing.assert_allclose(found.subset.sum(), total)
    sign = 1 if maximize else -1
    assert sign * found.value >= (sign * model.predict(model.outcomes.subsets)).max()
    np.testing.assert_allclose(found.value, model.predict(found.subset[None])[0, 0])
    np.testing.assert_allclose(sign * found.best_run, (sign * model.outcomes.values).max())
    # The truth has its optimum at these shares.
    np.testing.assert_allclose(found.subset / total, np.linspace(0.1, 0.4, 4), atol=0.1)
    assert "mixtures, improved by transfers of weight" in found.how


def test_a_mixture_cannot_be_improved_by_moving_a_hundredth(monkeypatch):
    monkeypatch.setattr(mixtures, "DRAWS", 10)
    model = mixture_model()
    found = select(model)
    for giver in range(4):
        for taker in range(4):
            moved = found.subset.copy()
            weight = min(0.01, moved[giver])
            moved[giver] -= weight
            moved[taker] += weight
            assert model.predict(moved[None])[0, 0] >= found.value - 1e-8 * abs(found.value)


@pytest.mark.parametrize("total", [1.0, 20.0])
def test_excluded_tasks_get_no_weight(total):
    model = mixture_model(total=total)
    found = select(model, exclude=["task_3"])
    assert found.subset[3] == 0
    np.testing.assert_allclose(found.subset.sum(), total)
    assert "task_3" not in found.tasks
    assert np.isnan(found.best_run), "no run does without it"
    alone = select(model, exclude=["task_0", "task_1", "task_3"])
    np.testing.assert_allclose(alone.subset, [0, 0, total, 0])


def two_targets(K=4, **arguments):
    rng = np.random.default_rng(0)
    W = rng.dirichlet(np.ones(K), 60) if K > 1 else rng.random((60, 1))
    Y = np.column_stack([W[:, 0] ** 2, 100 - W[:, 0]])
    return fit(Outcomes(W, Y, target_names=["x", "y"], **arguments), surrogate=GIVEN, n_folds=None)


def test_a_mixture_is_compared_with_the_best_run_of_the_target_it_is_for():
    model = two_targets()
    assert select(model, target="x").best_run == model.outcomes.values[:, 0].min()


def test_a_mixture_for_one_of_targets_in_different_directions():
    model = two_targets(maximize=["y"])
    found = select(model, target="y")
    np.testing.assert_allclose(found.value, model.predict(found.subset[None])[0, 1])
    assert found.best_run == model.outcomes.values[:, 1].max()


def test_a_mixture_of_one_task():
    found = select(two_targets(K=1), target="x")
    assert found.tasks == ("task_0",)


def test_mixtures_are_seeded():
    model = mixture_model()
    np.testing.assert_array_equal(select(model, seed=3).subset, select(model, seed=3).subset)


def test_a_risky_mixture_is_avoided():
    W = np.random.default_rng(0).dirichlet([8, 8, 8], 40)  # all near the middle
    model = fit(Outcomes(W, -W[:, 0]), surrogate=KernelSurrogate(alpha=0.01, gamma=2.0), n_folds=None)
    with pytest.warns(DataWarning, match="outside the range of the runs"):
        bold, careful = select(model, extrapolate=True), select(model, risk=5.0, extrapolate=True)
    assert careful.std[0] < 0.8 * bold.std[0]
    assert careful.predicted[0] > bold.predicted[0]
    np.testing.assert_allclose(careful.value, careful.predicted[0] + 5 * careful.std[0])


def test_attribution_is_about_tasks_in_or_out():
    with pytest.raises(InputError, match="Selecting with by='attribution' is for tasks that are in or out"):
        select(mixture_model(surrogate=GIVEN), by="attribution")


def test_no_task_left_is_refused():
    with pytest.raises(InputError, match=r"Every task is excluded\. Leave at least one in\."):
        select(mixture_model(surrogate=GIVEN), exclude=[f"task_{k}" for k in range(4)])


def test_mixtures_like_the_runs_have_their_totals_and_no_new_task():
    rng = np.random.default_rng(0)
    runs = rng.dirichlet(np.ones(4), 30) * rng.uniform(1, 3, (30, 1))
    runs[:, 2] = 0
    found = mixtures_like(runs, 500, rng)
    assert found.shape == (500, 4)
    assert (found >= 0).all()
    assert (found[:, 2] == 0).all()
    totals = found.sum(1)
    assert runs.sum(1).min() - 1e-9 <= totals.min() <= totals.max() <= runs.sum(1).max() + 1e-9
    assert len(np.unique(found, axis=0)) == 500


def test_a_forest_selects_mixtures_too():
    found = select(mixture_model(surrogate=FOREST))
    assert (found.subset >= 0).all()
    np.testing.assert_allclose(found.subset.sum(), 1.0)
