"""The experiments on fine-tuning, at their smallest: the study, and Trainer under measure and imported."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

import whence
from finetuning import save_model, texts, write_jsonl
from whence.datasets import recorded

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import finetune_smollm  # noqa: E402
import finetune_tables  # noqa: E402
import trainer_sources  # noqa: E402

pytestmark = pytest.mark.slow


def test_the_study_at_its_smallest(tmp_path, monkeypatch):
    """Runs are recorded, and what is said of them is what a plain loop finds."""
    monkeypatch.setattr(recorded, "FOLDER", tmp_path / "sets")
    for module, name, value in [
        (finetune_smollm, "RECORDED", tmp_path / "kept"), (finetune_tables, "JUDGED", 4),
        (finetune_tables, "SPLITS", 2), (finetune_tables, "TRUE_RUNS", (3, 5)),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(sys, "argv", ["finetune_smollm.py", "--quick", "--record", "--out", str(tmp_path / "run")])
    finetune_smollm.main()
    truth = whence.datasets.load("smollm_arithmetic")
    np.testing.assert_array_equal(truth.subsets[:10], truth.subsets[10:])
    assert not np.array_equal(truth.values[:10], truth.values[10:])
    found = finetune_tables.Recorded("arithmetic", tmp_path / "kept")
    rung = whence.read_outcomes(tmp_path / "run" / "rung_trak.npz")
    for (learn, judge), score in zip(found.splits, found.scores["trak"][0]["each query"], strict=True):
        assert not set(learn) & set(judge)
        rows = [int(np.flatnonzero((rung.subsets == truth.subsets[at]).all(1))[0]) for at in judge]
        true = (truth.values[judge] + truth.values[judge + 10]) / 2
        each = [spearmanr(rung.values[rows, t], true[:, t])[0] for t in range(truth.n_targets)]
        assert score == pytest.approx(np.mean(each), abs=0.15)  # kept in half precision, which makes ties
    assert found.price("influence")[0] == pytest.approx(found.prices["influence"][0] + found.prices["joint run"][0])
    assert 0 < found.prices["joint run"][0] < found.prices["trak"][0]
    text = "\n".join(found.tables())
    assert "of 1, " in text  # one source has swapped answers
    for way in ("fused", "all sources", "leave one out", "random"):
        assert f"| {way} |" in text


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    save_model(tmp_path / "model")
    for name, answer in (("yes_a", "yes"), ("no_a", "no"), ("val", "yes")):
        rows = [{"prompt": f"Text: {row['text']} Label: ", "completion": answer} for row in texts(8, len(name))]
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    for name, value in {"MODEL_DIR": tmp_path / "model", "DATA_DIR": tmp_path, "OUTPUT_DIR": tmp_path / "out"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(trainer_sources, "STEPS", 6)
    return tmp_path


def test_trainer_is_measured(trainer):
    tasks = ["yes_a", "no_a"]
    runs = whence.measure(trainer_sources.train, [[1, 0], [0, 1], [0, 0]], tasks=tasks, engine="inline")
    assert runs.target_names == ("loss",)
    assert np.isfinite(runs.values).all()
    assert len(np.unique(runs.values)) == 3
    seed = int(np.random.SeedSequence([0, 0]).generate_state(3)[0] >> 1)
    again = trainer_sources.train(whence.Subset([1.0, 0.0], tasks), seed)
    assert again["loss"] == pytest.approx(runs.values[0, 0], rel=1e-5)


def test_runs_made_elsewhere_are_imported(tmp_path):
    for at, (sources, losses) in enumerate([(["a"], [3.0, 1.0]), (["a", "b"], [2.5, 0.5]), (["b"], [2.0, 1.5])]):
        folder = tmp_path / f"run{at}"
        folder.mkdir()
        (folder / "sources.json").write_text(json.dumps(sources))
        history = [{"step": step, "eval_loss": loss} for step, loss in enumerate(losses)] + [{"train_runtime": 1.0}]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    frame = trainer_sources.imported(tmp_path)
    frame.to_csv(tmp_path / "runs.csv", index=False)
    runs = whence.read_outcomes(tmp_path / "runs.csv", outcomes=["eval_loss"])
    assert runs.task_names == ("a", "b")
    np.testing.assert_array_equal(runs.subsets, [[1, 0], [1, 1], [0, 1]])
    np.testing.assert_array_equal(runs.values[:, 0], [1.0, 0.5, 1.5])
