"""Mixtures: recognised in shares and percent, kept on the simplex, chosen under constraints, traded off."""

import itertools
import json
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linprog
from typer.testing import CliRunner

import whence
from whence.cli import app
from whence.designs import extended, parse_design, with_bounds
from whence.designs.mixtures import Polytope
from whence.errors import DataWarning, InputError
from whence.outcomes.simplex import is_mixture

SOURCES = ("web", "code", "math")
BEST = np.array([0.5, 0.3, 0.2])


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments], prog_name="whence")


def document(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def sweep(n=40, seed=0):
    """Shares of three sources, the loss (least at BEST) and an accuracy that wants math."""
    W = np.random.default_rng(seed).dirichlet([1.5, 1.5, 1.5], n).round(3)
    loss = 1 + 2 * ((W - BEST) ** 2).sum(1)
    return whence.Outcomes(W, np.column_stack([loss, 0.2 + 0.6 * W[:, 2]]), SOURCES, ("loss", "acc"), ["acc"])


@pytest.fixture(scope="module")
def model():
    return whence.fit(sweep(), surrogate="kernel", n_folds=None)


@pytest.fixture(scope="module")
def grid():
    """All mixtures of three sources in steps of a hundredth."""
    parts = [(a, b, 100 - a - b) for a in range(101) for b in range(101 - a)]
    return np.array(parts) / 100


# ---- recognised, and on the simplex ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[33.3, 33.3, 33.2], [50.0, 25.1, 25.0]], True),  # 99.8 and 100.1
        ([[0.333, 0.333, 0.333], [0.5, 0.251, 0.25]], True),
        ([[50, 50, 0], [0.5, 0.25, 0.25]], True),  # some rows in percent, some in shares
        ([[1, 0, 0], [0, 1, 0]], False),
        ([[0.5, 0.2, 0.1], [0.5, 0.5, 0.5]], False),
        ([[2.0, 3.0, 5.0], [4.0, 4.0, 2.0]], True),  # amounts of one total
        ([[2.0, 3.0, 5.0], [4.0, 4.0, 9.0]], False),
        ([[1e308, 1e308], [1e308, 9e307]], False),
    ],
)
def test_mixtures_are_recognised(rows, expected):
    assert is_mixture(np.array(rows, dtype=float)) is expected


def test_shares_and_percent_give_the_same_answers(model):
    shares = sweep()
    percent = whence.Outcomes(100 * shares.subsets, shares.values, SOURCES, ("loss", "acc"), ["acc"])
    for surrogate in ("kernel", whence.KernelSurrogate(settings="paper"), whence.AdditiveSurrogate()):
        one, other = (whence.fit(runs, surrogate=surrogate, n_folds=None) for runs in (shares, percent))
        query = {"web": 0.2, "code": 0.3, "math": 0.5}
        np.testing.assert_allclose(one.predict(query), other.predict(query), rtol=1e-7)
        np.testing.assert_allclose(other.predict({"web": 20, "code": 30, "math": 50}), one.predict(query), rtol=1e-7)
        for answer in (whence.attribute, whence.interactions):
            np.testing.assert_allclose(answer(one).scores, answer(other).scores, rtol=1e-5, atol=1e-9)


def test_evaluation_does_not_depend_on_the_unit(tmp_path):
    shares = sweep(14)
    found = []
    for unit in (1, 100):
        path = tmp_path / f"in-{unit}.csv"
        pd.DataFrame(unit * shares.subsets, columns=SOURCES).assign(loss=shares.values[:, 0]).to_csv(path, index=False)
        scores = document("evaluate", path, "-O", "loss", "--splits", 2, "--methods", "paper kernel")
        found.append({row["method"]: row["lds"] for row in scores["scores"]})
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_python_refuses_what_the_command_line_refuses(model):
    for refused, message in [
        ([["web", "code"]], "This table has mixture weights: give them"),
        ("web", "This table has mixture weights"),
        ([[0.5, -0.1, 0.6]], "a weight must be at least 0"),
        (np.array([[0.5, np.nan, 0.5]]), "a task column cannot be empty"),
        (np.zeros((1, 3)), "must not all be 0"),
    ]:
        with pytest.raises(InputError, match=message):
            model.predict(refused)
    with pytest.warns(DataWarning, match="sum to 2, and are scaled to sum to 1"):
        np.testing.assert_allclose(model.predict([[1.0, 0.6, 0.4]]), model.predict([BEST.tolist()]))


def test_what_was_measured_is_found_again_in_percent(model):
    row = model.outcomes.subsets[3]
    found = whence.predictions(model, 100 * row[None])
    np.testing.assert_allclose(found.measured[0], model.outcomes.values[3])


# ---- which mixture to use --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        ({}, lambda W: np.ones(len(W), dtype=bool)),
        ({"bounds": {"web": (0.1, 0.3)}}, lambda W: (W[:, 0] >= 0.1) & (W[:, 0] <= 0.3)),
        ({"bounds": {"web": (10, 30)}}, lambda W: (W[:, 0] >= 0.1) & (W[:, 0] <= 0.3)),
        ({"costs": {"web": 4.0, "code": 1.0}, "budget": 1.5}, lambda W: 4 * W[:, 0] + W[:, 1] <= 1.5 + 1e-9),
        ({"total": 1e9, "available": {"web": 2e8, "math": 5e8}}, lambda W: (W[:, 0] <= 0.2) & (W[:, 2] <= 0.5)),
        ({"max_size": 2}, lambda W: (W > 0).sum(1) <= 2),
        ({"exclude": ["math"]}, lambda W: W[:, 2] == 0),
        ({"exclude": ["web"], "include": ["math"]}, lambda W: (W[:, 0] == 0) & (W[:, 2] >= 0.01)),
    ],
)
def test_the_best_allowed_mixture_is_at_least_that_of_a_grid(model, grid, arguments, allowed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # some of these lie outside the runs
        found = whence.select(model, target="loss", extrapolate=True, **arguments)
    best = model.predict_quietly(grid[allowed(grid)])[:, 0].min()
    assert allowed(found.subset[None].round(9))[0]
    np.testing.assert_allclose(found.subset.sum(), 1)
    assert found.value <= best + 2e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bounds": {"web": (0.6, 1), "code": (0.6, 1)}}, "the least weights sum to 1.2"),
        ({"bounds": {"web": (0, 0.2), "code": (0, 0.2), "math": (0, 0.3)}}, "the most weights sum to 0.7"),
        ({"bounds": {"web": (0.5, 0.2)}}, "a least and a most"),
        ({"costs": {"web": 2.0, "code": 2.0, "math": 2.0}, "budget": 1.0}, "the cheapest costs 2, and the budget is 1"),
        ({"available": {"web": 5.0}}, "give 'total' too"),
        ({"exclude": SOURCES}, "Every task is excluded"),
        ({"bounds": {"wiki": (0, 1)}}, "There is no task 'wiki'"),
        ({"weights": {"loss": -1.0}}, "must be above 0"),
        ({"target": "loss", "worst": True}, "Give .target. for one outcome"),
    ],
)
def test_impossible_mixtures_are_refused(model, arguments, message):
    with pytest.raises(InputError, match=message):
        whence.select(model, **({"target": "loss"} | arguments if "weights" not in arguments else arguments))


def test_bounds_are_for_mixtures_only():
    S = whence.Exhaustive().draw(3)
    with pytest.raises(InputError, match="in these runs tasks are in or out"):
        whence.select(whence.fit(whence.Outcomes(S, S[:, 0])), bounds={"task_0": (0, 1)})


def test_several_targets_by_weights_or_the_worst(model, grid):
    """Against the same objective, written down again, on a grid."""
    values = model.outcomes.values
    z = (model.predict_quietly(grid) - values.mean(0)) / values.std(0) * [-1, 1]
    weighted = whence.select(model, weights={"loss": 2, "acc": 1}, extrapolate=True)
    assert weighted.value >= (z @ [2 / 3, 1 / 3]).max() - 1e-3
    worst = whence.select(model, worst=True, extrapolate=True)
    assert worst.value >= z.min(1).max() - 1e-3
    assert "the worst of loss, acc, in standard deviations" in worst.objective
    first, weight = str(worst).split(",")[0].split()
    assert float(weight) == pytest.approx(worst.subset.max(), rel=0.01)
    assert first == SOURCES[worst.subset.argmax()]
    with pytest.raises(InputError, match="Some targets are to be maximised and some minimised"):
        whence.select(model, target="mean")
    single = whence.fit(sweep().targets(["loss"]), surrogate="kernel", n_folds=None)
    np.testing.assert_array_equal(whence.select(single, target="mean").subset, whence.select(single).subset)


def test_the_front_is_of_mixtures_that_nothing_beats_in_both(model, grid):
    front = whence.pareto(model, extrapolate=True)
    good = front.predicted * [-1, 1]
    for one, other in itertools.permutations(good, 2):
        assert not ((one >= other).all() and (one > other).any())
    assert (np.diff(good[:, 0]) <= 0).all()
    assert (np.diff(good[:, 1]) >= 0).all()
    assert len(front.subsets) >= 4
    # No mixture of the grid is much better than the whole front.
    z = model.predict_quietly(grid) * [-1, 1]
    scale = model.outcomes.values.std(0)
    beaten = ((z[:, None] - good[None]) / scale > 0.2).all(2).all(1)
    assert not beaten.any()
    with pytest.raises(InputError, match="needs at least two targets"):
        whence.pareto(model, targets="loss")
    with pytest.raises(InputError, match="There is no parameter 'sizes'"):
        whence.pareto(model, sizes=3)


def test_the_front_of_subsets_is_that_of_all_of_them():
    S = whence.Exhaustive().draw(5)
    Y = np.column_stack([S @ [1, 2, -1, 0.5, 0], S @ [-1, 0.5, 2, -0.2, 0.3]])
    model = whence.fit(whence.Outcomes(S, Y, maximize=True), surrogate=whence.AdditiveSurrogate("ols"), n_folds=None)
    front = whence.pareto(model)
    exact = model.predict_quietly(S)
    for point in front.predicted:
        assert not ((exact >= point - 1e-9).all(1) & (exact > point + 1e-9).any(1)).any()


def test_without_extrapolation_a_mixture_is_between_the_runs(model):
    """In their convex hull, by a linear program; a smooth kernel promises wonders at its corners."""
    for target in ("loss", "acc"):
        chosen = whence.select(model, target=target).subset
        runs = model.outcomes.subsets
        inside = linprog(np.zeros(len(runs)), A_eq=np.vstack([runs.T, np.ones(len(runs))]), b_eq=[*chosen, 1])
        assert inside.status == 0


# ---- shift is the rule of mixtures, for pairs too --------------------------------------------------------


def test_pairs_of_sources_are_second_differences(model):
    found = whence.interactions(model)
    assert (found.rule.name, whence.attribute(model).rule.name) == ("shift", "shift")
    average = model.subsets.mean(0)
    steps = 0.1 * (np.eye(3) - average)
    for k, j in itertools.combinations(range(3), 2):
        points = [average + steps[k] + steps[j], average + steps[k], average + steps[j], average]
        both, one, other, neither = model.predict_quietly(np.array(points))
        np.testing.assert_allclose(found.scores[k, j], both - one - other + neither, atol=1e-12)
        np.testing.assert_array_equal(found.scores[k, j], found.scores[j, k])
    assert (found.std[0, 1] > 0).all()
    linear = whence.fit(sweep(), surrogate=whence.AdditiveSurrogate(), n_folds=None)
    np.testing.assert_allclose(whence.interactions(linear).scores, 0, atol=1e-10)
    S = whence.Exhaustive().draw(3)
    assert whence.attribute(whence.fit(whence.Outcomes(S, S[:, 0]))).rule.name == "shapley"


# ---- designs ---------------------------------------------------------------------------------------------


def test_dirichlet_designs_stay_within_bounds():
    bounds = [(0.1, 0.4), (0.0, 0.3), (0.2, 1.0), (0.0, 0.05)]
    W = whence.Dirichlet(0.5, bounds).draw(4, 200, seed=3)
    low, high = np.array(bounds).T
    np.testing.assert_allclose(W.sum(1), 1)
    assert ((low - 1e-9 <= W) & (high + 1e-9 >= W)).all()
    assert W.std(0).min() > 0
    np.testing.assert_array_equal(whence.Dirichlet(0.5, bounds).draw(4, 50, seed=3), W[:50])
    free = whence.Dirichlet(2.0).draw(5, 4000, seed=0)
    np.testing.assert_allclose(free.mean(0), 0.2, atol=0.01)
    np.testing.assert_allclose(free.var(0), 0.2 * 0.8 / (2 * 5 + 1), rtol=0.15)  # of the distribution
    assert parse_design("dirichlet:0.5") == whence.Dirichlet(0.5)
    with pytest.raises(InputError, match="Bounds are for weights of mixtures"):
        with_bounds(parse_design("fixed:2"), {"a": (0, 1)}, ["a"])


def test_projection_is_the_nearest_point():
    rng = np.random.default_rng(0)
    polytope = Polytope(np.array([0.1, 0, 0, 0.2]), np.array([0.5, 0.3, 1, 0.4]))
    rows = rng.normal(0.3, 0.5, (20, 4))
    found = polytope.nearest(rows)
    np.testing.assert_allclose(found.sum(1), 1)
    others = polytope.nearest(rng.normal(0.3, 0.5, (500, 4)))
    for row, point in zip(rows, found, strict=True):  # by the angle with every other allowed point
        assert ((others - point) @ (row - point)).max() <= 1e-6


def test_designs_are_extended_by_new_rows_only():
    known = whence.FixedSize(2).draw(5, 6, seed=1)
    more = extended(whence.FixedSize(2), 5, 4, known=known, seed=1)
    assert len(np.unique(np.vstack([known, more]), axis=0)) == 10
    with pytest.raises(InputError, match=r"Only 4 subsets of .* are not there yet"):
        extended(whence.FixedSize(2), 5, 5, known=known, seed=1)
    assert len(extended(whence.Exhaustive(), 3, None, known=np.eye(3))) == 4


def test_design_writes_subsets_that_fit_reads_when_they_are_filled(tmp_path):
    path, more = tmp_path / "subsets.csv", tmp_path / "more.csv"
    first = run("design", "--tasks", "a,b,c,d", "--design", "fixed:2", "-n", 4, "-O", "loss", "-o", path)
    assert first.exit_code == 0, first.output
    assert "whence fit" in first.stdout
    frame = pd.read_csv(path)
    assert list(frame.columns) == ["a", "b", "c", "d", "loss"]
    assert (frame[list("abcd")].sum(axis=1) == 2).all()
    assert run("design", "--extend", path, "--design", "fixed:2", "-n", 2, "-o", more).exit_code == 0
    both = pd.concat([frame, pd.read_csv(more)])[list("abcd")]
    assert len(both.drop_duplicates()) == 6
    both.assign(loss=both @ [1.0, 2, 3, 4]).to_csv(path, index=False)
    assert run("fit", path, "-O", "loss").exit_code == 0
    refused = run("design", "--extend", path, "--design", "fixed:2", "-n", 2, "-o", path)
    assert (refused.exit_code, "itself" in refused.stderr) == (2, True)
    assert run("design", "--design", "fixed:2", "-n", 2).exit_code == 2
    of_file = run(
        "design", "--tasks", "a,b,c,d", "--design", path
    )  # which measure takes, and design does not draw from
    assert of_file.exit_code == 2
    assert "A design must be bernoulli:P" in of_file.stderr
    drawn = document("design", "--tasks", "a,b", "-d", "dirichlet", "-n", 5, "--bounds", "a=10%:30%")
    assert all(0.1 <= row[0] <= 0.3 and sum(row) == pytest.approx(1) for row in drawn["subsets"])


# ---- from a sweep to the recipe --------------------------------------------------------------------------


def test_a_sweep_in_rounded_percent_to_the_recipe(tmp_path):
    runs = sweep(20)
    path, saved = tmp_path / "sweep.csv", tmp_path / "model.whence"
    frame = pd.DataFrame((100 * runs.subsets).round(1), columns=SOURCES)
    frame.assign(loss=runs.values[:, 0], acc=runs.values[:, 1]).to_csv(path, index=False)
    columns = ["-O", "loss,acc", "--maximize", "acc"]
    fitted = run("fit", path, *columns, "--save", saved)
    assert fitted.exit_code == 0, fitted.output
    asked = ["--target", "loss", "--total", "100B", "--available", "web=40B"]
    result = run("select", "--model", saved, *asked)
    assert result.exit_code == 0, result.output
    assert "tokens" in result.stdout
    found = document("select", "--model", saved, *asked)["selected"]
    assert sum(found.values()) == pytest.approx(1)
    assert found["web"] <= 0.4 + 1e-6
    front = document("select", "--model", saved, "--pareto")["front"]
    assert len(front) > 2
    worst = document("select", "--model", saved, "--worst", "--bounds", "code=0.1:0.5")
    assert 0.1 - 1e-6 <= worst["selected"]["code"] <= 0.5
    weighted = document("select", "--model", saved, "--weights", "loss=2,acc=1")
    assert weighted["objective"].startswith("the weighted mean of 2 × loss, 1 × acc")
    assert run("suggest", path, *columns, "-n", 2, "-o", tmp_path / "next.csv").exit_code == 0
    np.testing.assert_allclose(pd.read_csv(tmp_path / "next.csv")[list(SOURCES)].sum(axis=1), 100, rtol=0.01)


def test_names_may_be_in_other_capitals_in_every_option(model):
    asked = {"bounds": {"WEB": (0.3, 0.5)}, "include": ["Math"], "costs": {"Code": 2.0}, "budget": 1.4}
    plain = {"bounds": {"web": (0.3, 0.5)}, "include": ["math"], "costs": {"code": 2.0}, "budget": 1.4}
    found = whence.select(model, target="LOSS", **asked)
    np.testing.assert_array_equal(found.subset, whence.select(model, target="loss", **plain).subset)
    np.testing.assert_array_equal(model.predict({"Web": 0.5, "CODE": 0.5}), model.predict({"web": 0.5, "code": 0.5}))
    weighted = whence.select(model, weights={"Loss": 2, "ACC": 1})
    np.testing.assert_array_equal(weighted.subset, whence.select(model, weights={"loss": 2, "acc": 1}).subset)
    assert list(whence.pareto(model, targets=["Acc", "LOSS"]).to_frame().columns)[-2:] == [
        "predicted acc",
        "predicted loss",
    ]
    with pytest.raises(InputError, match=r"There is no task 'wab'. Did you mean 'web'"):
        model.predict({"wab": 1.0})


def test_an_array_of_targets_is_optimised_by_its_name():
    runs = sweep()
    numbered = whence.Outcomes(
        runs.subsets, runs.values[:, [0, 0, 1]] * [1, 3, 1], SOURCES, ["err[0]", "err[1]", "acc"], ["acc"]
    )
    fitted = whence.fit(numbered, surrogate=whence.AdditiveSurrogate(), n_folds=None)
    found = whence.select(fitted, target="err")
    predicted = fitted.predict([found.subset])[0]
    assert found.value == pytest.approx(predicted[:2].mean())
    with pytest.raises(
        InputError, match="optimise with 'target', or optimise all of them with worst=True or 'weights'"
    ):
        whence.select(fitted)
