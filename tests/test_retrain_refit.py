"""Refitting scikit-learn estimators on groups of examples, held against fitting by hand."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import whence
from whence import InputError, Refit

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 3)), RNG.integers(2, size=60)
TASKS = {"a": (X[:10], Y[:10]), "b": (X[10:25], Y[10:25]), "c": (X[25:40], Y[25:40])}
TARGET = (X[40:], Y[40:])


def pooled(*names):
    return tuple(np.concatenate(parts) for parts in zip(*(TASKS[name] for name in names), strict=True))


def test_a_subset_is_a_fit_on_its_groups():
    outcome = Refit(LogisticRegression(), TASKS, TARGET, ["accuracy", "neg_log_loss"])
    by_hand = LogisticRegression().fit(*pooled("a", "c"))
    found = outcome([1, 0, 1], seed=3)
    assert found["accuracy"] == accuracy_score(TARGET[1], by_hand.predict(TARGET[0]))
    assert found["neg_log_loss"] == pytest.approx(-log_loss(TARGET[1], by_hand.predict_proba(TARGET[0])))
    assert outcome(["a", "c"]) == found
    assert outcome.maximize == ("accuracy", "neg_log_loss")


def test_several_targets_have_names():
    targets = {"x": TARGET, "y": TASKS["a"]}
    found = Refit(LogisticRegression(), TASKS, targets)([0, 1, 0])
    assert list(found) == ["x/accuracy", "y/accuracy"]


def test_a_metric_may_be_a_function():
    def errors(model, inputs, labels):
        return -np.sum(model.predict(inputs) != labels)

    found = Refit(LogisticRegression(), TASKS, TARGET, errors)([1, 1, 1])
    assert found == {"errors": -np.sum(LogisticRegression().fit(*pooled(*"abc")).predict(TARGET[0]) != TARGET[1])}
    assert list(Refit(LogisticRegression(), TASKS, TARGET, {"mine": errors})([1, 1, 1])) == ["mine"]


def test_regressors_are_scored_by_r2():
    tasks = {name: (inputs, inputs @ [1.0, 2.0, 3.0]) for name, (inputs, _) in TASKS.items()}
    found = Refit(LinearRegression(), tasks, (TARGET[0], TARGET[0] @ [1.0, 2.0, 3.0]))([0, 1, 0])
    assert found == {"r2": pytest.approx(1.0)}


@pytest.mark.parametrize("estimator", [LogisticRegression(), KNeighborsClassifier(1), RandomForestClassifier(3)])
def test_one_class_only_is_the_constant_answer(estimator):
    tasks = {**TASKS, "ones": (X[:5], np.ones(5, dtype=int))}
    outcome = Refit(estimator, tasks, TARGET, ["accuracy", "roc_auc", "neg_log_loss"])
    found = outcome(["ones"])
    assert found["accuracy"] == np.mean(TARGET[1] == 1)
    assert found["roc_auc"] == 0.5
    assert found["neg_log_loss"] == pytest.approx(-log_loss(TARGET[1], np.tile([0.0, 1.0], (20, 1))))


def test_the_empty_subset_is_what_one_says():
    assert np.isnan(Refit(LogisticRegression(), TASKS, TARGET)([0, 0, 0])["accuracy"])
    assert Refit(LogisticRegression(), TASKS, TARGET, empty=0.5)([0, 0, 0]) == {"accuracy": 0.5}


def test_the_seed_reaches_every_random_state():
    outcome = Refit(make_pipeline(StandardScaler(), RandomForestClassifier(5)), TASKS, TARGET, "roc_auc")
    by_hand = make_pipeline(StandardScaler(), RandomForestClassifier(5, random_state=7)).fit(*pooled("b", "c"))
    assert outcome([0, 1, 1], 7)["roc_auc"] == roc_auc_score(TARGET[1], by_hand.predict_proba(TARGET[0])[:, 1])
    assert len({outcome([0, 1, 1], seed)["roc_auc"] for seed in range(6)}) > 1
    assert outcome([0, 1, 1], 2**40)["roc_auc"] == outcome([0, 1, 1], 0)["roc_auc"]


def test_weights_are_sample_weights():
    outcome = Refit(Ridge(), {k: (x, x[:, 0] ** 2) for k, (x, _) in TASKS.items()}, (TARGET[0], TARGET[0][:, 0] ** 2))
    inputs = pooled("a", "b")[0]
    by_hand = Ridge().fit(inputs, inputs[:, 0] ** 2, sample_weight=np.repeat([0.5, 2.0], [10, 15]))
    expected = by_hand.score(TARGET[0], TARGET[0][:, 0] ** 2)
    assert outcome([0.5, 2.0, 0.0])["r2"] == pytest.approx(expected)
    with pytest.raises(InputError, match=r"KNeighborsClassifier takes no sample_weight.*weight of 0.5"):
        Refit(KNeighborsClassifier(), TASKS, TARGET)([0.5, 1, 0])


def test_frames_sparse_matrices_and_text():
    expected = Refit(LogisticRegression(), TASKS, TARGET)([1, 1, 0])
    frames = {k: (pd.DataFrame(x, columns=list("uvw")), pd.Series(y)) for k, (x, y) in TASKS.items()}
    target = (pd.DataFrame(TARGET[0], columns=list("uvw")), TARGET[1])
    assert Refit(LogisticRegression(), frames, target)([1, 1, 0]) == expected
    sparse = {k: (csr_array(x), y) for k, (x, y) in TASKS.items()}
    assert Refit(LogisticRegression(), sparse, (csr_array(TARGET[0]), TARGET[1]))([1, 1, 0]) == expected
    text = {"x": (["good day", "bad day"], ["up", "down"]), "y": (["good night"], ["up"])}
    outcome = Refit(make_pipeline(CountVectorizer(), MultinomialNB()), text, (["good", "bad"], ["up", "down"]))
    assert outcome(["x", "y"]) == {"accuracy": 1.0}
    assert outcome(["y"]) == {"accuracy": 0.5}


def test_the_estimator_that_is_given_is_not_fitted():
    estimator = LogisticRegression()
    Refit(estimator, TASKS, TARGET)([1, 1, 1])
    assert not hasattr(estimator, "coef_")
    assert clone(estimator).get_params() == estimator.get_params()


def test_measured_it_is_a_table_with_every_row():
    outcome = Refit(LogisticRegression(), {**TASKS, "ones": (X[:5], np.ones(5, dtype=int))}, TARGET, empty=0.5)
    runs = whence.measure(outcome, whence.Exhaustive(allow_empty=True))
    assert runs.n_runs == 16
    assert np.isfinite(runs.values).all()
    assert runs.maximize == (True,)
    assert runs.provenance["estimator"] == "LogisticRegression()"


def test_bad_input_is_refused():
    with pytest.raises(InputError, match=r"no scorer 'acuracy'. Did you mean 'accuracy'"):
        Refit(LogisticRegression(), TASKS, TARGET, "acuracy")
    with pytest.raises(InputError, match="at least one task"):
        Refit(LogisticRegression(), {}, TARGET)
    with pytest.raises(InputError, match=r"tasks\['a'\] must have as many labels as inputs.*10 inputs and 9 labels"):
        Refit(LogisticRegression(), {"a": (X[:10], Y[:9])}, TARGET)
    with pytest.raises(InputError, match=r"target\['target'\] must be a pair"):
        Refit(LogisticRegression(), TASKS, X)
    with pytest.raises(InputError, match="no task 'd'"):
        Refit(LogisticRegression(), TASKS, TARGET)(["d"])


def test_it_needs_no_torch():
    code = "import sys, whence; print(whence.Refit.__name__, whence.Recipe(steps=1), 'torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "Refit 1 step of adamw, lr 0.001, batches of 32 False"
