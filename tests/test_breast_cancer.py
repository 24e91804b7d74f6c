"""The experiment on breast cancer, at its smallest."""

import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import breast_cancer  # noqa: E402

pytestmark = pytest.mark.slow


def test_training_is_the_penalised_logistic_regression_of_scikit_learn():
    X, y, x_test, y_test = breast_cancer.data(50, seed=0)
    subset = np.arange(50) % 3 > 0
    w = breast_cancer.Regression(X, y, x_test, y_test).weights(subset[None].astype(float))[0]
    n = subset.sum()
    other = LogisticRegression(C=1 / (n * breast_cancer.L2), fit_intercept=False, tol=1e-10, max_iter=10_000)
    np.testing.assert_allclose(w, other.fit(X[subset], y[subset]).coef_[0], rtol=1e-4, atol=1e-6)


def test_the_smallest_setting(tmp_path, monkeypatch, capsys):
    picture = tmp_path / "out.png"
    arguments = ["--points", "40", "--subsets", "120", "--size", "36", "--picture", str(picture)]
    monkeypatch.setattr(sys, "argv", ["breast_cancer.py", *arguments])
    breast_cancer.main()
    lines = capsys.readouterr().out.splitlines()
    found = {line.split(":")[0]: float(line.split(":")[1]) for line in lines[:3]}
    assert list(found) == ["LOO / linear surrogate", "LOO / IF", "IF / linear surrogate"]
    assert min(found.values()) > 0.8
    assert picture.stat().st_size > 10_000
