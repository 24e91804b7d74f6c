"""The experiments on fine-tuning, at their smallest: the study, and Trainer under measure and imported."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import whence
from finetuning import save_model, texts, write_jsonl

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import finetune_smollm  # noqa: E402
import trainer_sources  # noqa: E402

pytestmark = pytest.mark.slow


def test_the_study_at_its_smallest(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["finetune_smollm.py", "--quick", "--out", str(tmp_path)])
    finetune_smollm.main()
    printed = capsys.readouterr().out
    found = json.loads(printed[printed.index("{\n") :])
    assert found["bad sources"]["planted"] == ["noise0", "off0"]
    assert set(found["trained for real"]) >= {"fused", "all sources", "leave one out", "random"}
    for name, rows in found["lds"].items():
        for row in rows.values():
            assert -1 <= row["each query"] <= 1
            assert row["price"] > 0 or name == "true runs alone"
    truth = whence.read_outcomes(tmp_path / "truth.npz")
    np.testing.assert_array_equal(truth.subsets[:10], truth.subsets[10:])


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
