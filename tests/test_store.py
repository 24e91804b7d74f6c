import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from torch_models import made
from whence.errors import InputError
from whence.gradients import store as stores
from whence.gradients.linearize import linearize
from whence.gradients.projections import CountSketch, Gaussian
from whence.gradients.store import Store
from whence.models.examples import Examples
from whence.models.functional import functional
from whence.outcomes.writing import read_document


@pytest.fixture
def problem():
    model, inputs, labels = made("perceptron", n=20)
    return *functional(model), Examples.of({"a": (inputs[:8], labels[:8]), "b": (inputs[8:], labels[8:])})


def test_a_store_holds_what_memory_would(problem, tmp_path):
    memory = linearize(*problem, Gaussian(5), batch_size=6)
    disk = linearize(*problem, Gaussian(5), batch_size=6, store=tmp_path / "s")
    assert torch.equal(memory.features, disk.features)
    assert torch.equal(memory.outputs, disk.outputs)
    assert (tmp_path / "s" / "features.f32").stat().st_size == 20 * 3 * 5 * 4
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    assert (manifest["rows"], manifest["outputs"], manifest["rank"]) == (20, 3, 5)


def test_a_complete_store_is_read_and_not_made_again(problem, tmp_path):
    first = linearize(*problem, Gaussian(5), batch_size=6, store=tmp_path / "s")
    about = read_document(tmp_path / "s" / "manifest.json")
    again = Store(tmp_path / "s", (20, 3, 5), 6, {k: v for k, v in about.items() if k not in _SIZES})
    assert again.done == {0, 6, 12, 18}
    assert np.array_equal(again.features, first.features.numpy())


_SIZES = {"format", "rows", "outputs", "rank", "block"}


@pytest.mark.parametrize("cut", range(0, 75, 5))
def test_whatever_is_left_of_the_list_the_rest_is_made(problem, tmp_path, cut):
    whole = linearize(*problem, Gaussian(5), batch_size=6, store=tmp_path / "s")
    expected = whole.features.clone()
    listing = tmp_path / "s" / "blocks.jsonl"
    text = listing.read_text()
    listing.write_text(text[: len(text) - cut])
    again = linearize(*problem, Gaussian(5), batch_size=6, store=tmp_path / "s")
    assert torch.equal(again.features, expected)
    assert {json.loads(line)["start"] for line in listing.read_text().splitlines() if _is_json(line)} == {0, 6, 12, 18}


def _is_json(line):
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


_SLOW = """
import sys, time, torch
sys.path.insert(0, {tests!r})
from torch_models import made
from whence.models.examples import Examples
from whence.models.functional import functional
from whence.gradients.linearize import linearize
from whence.gradients.projections import Gaussian
model, inputs, labels = made("perceptron", n=20)
output_fn, params = functional(model)
def slow(at, x):
    time.sleep(0.05)
    return output_fn(at, x)
examples = Examples.of({{"a": (inputs[:8], labels[:8]), "b": (inputs[8:], labels[8:])}})
linearize(slow, params, examples, Gaussian(5), batch_size=2, store={path!r}, route="forward")
"""


@pytest.mark.slow
def test_a_killed_run_is_taken_up_and_ends_the_same(problem, tmp_path):
    output_fn, params, examples = problem
    expected = linearize(lambda at, x: output_fn(at, x), params, examples, Gaussian(5), route="forward", batch_size=2)
    path = tmp_path / "s"
    script = _SLOW.format(tests=os.path.dirname(__file__), path=str(path))
    kept = []
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", script])
        listing, until = path / "blocks.jsonl", time.monotonic() + 120
        before = len(kept)
        while time.monotonic() < until and process.poll() is None:
            kept = listing.read_text().splitlines() if listing.exists() else []
            if len(kept) >= before + 2:
                break
            time.sleep(0.01)
        process.kill()
        process.wait()
    assert len(kept) >= 4  # each run went on where the one before was killed
    again = linearize(
        lambda at, x: output_fn(at, x), params, examples, Gaussian(5), route="forward", batch_size=2, store=path
    )
    assert torch.equal(again.features, expected.features)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("model", "model"),
        ("data", "data"),
        ("rank", "rank"),
        ("seed", "projection"),
        ("kind", "projection"),
        ("route", "route"),
        ("of", "of"),
    ],
)
def test_a_store_of_something_else_is_refused(problem, tmp_path, change, named):
    output_fn, params, examples = problem
    linearize(*problem, Gaussian(5), store=tmp_path / "s", route="forward")
    settings = {"route": "reverse" if change == "route" else "forward", "of": "margin" if change == "of" else "outputs"}
    projection = {"rank": Gaussian(6), "seed": Gaussian(5, 1), "kind": CountSketch(5)}.get(change, Gaussian(5))
    if change == "model":
        params = {name: value + 1e-6 for name, value in params.items()}
    if change == "data":
        examples = Examples(examples.inputs * 1.001, examples.labels, examples.owner, examples.names)
    with pytest.raises(InputError, match=rf"is of something else: .*{named} \("):
        linearize(output_fn, params, examples, projection, store=tmp_path / "s", **settings)


def test_a_store_that_was_altered_or_cut_is_refused(problem, tmp_path):
    linearize(*problem, Gaussian(5), batch_size=6, store=tmp_path / "s")
    file = tmp_path / "s" / "features.f32"
    good = file.read_bytes()
    bad = bytearray(good)
    bad[4 * 3 * 5 * 7] ^= 1  # in row 7
    file.write_bytes(bad)
    with pytest.raises(InputError, match="was altered: rows 6 to 11 do not match"):
        linearize(*problem, Gaussian(5), batch_size=6, store=tmp_path / "s")
    file.write_bytes(good[:-4])
    with pytest.raises(InputError, match=r"damaged \(features.f32 is cut short\)"):
        linearize(*problem, Gaussian(5), batch_size=6, store=tmp_path / "s")
    (tmp_path / "s" / "manifest.json").write_text("{")
    with pytest.raises(InputError, match=r"manifest.json is damaged: its checksum"):
        linearize(*problem, Gaussian(5), batch_size=6, store=tmp_path / "s")


def test_a_folder_with_other_things_is_left_alone(problem, tmp_path):
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(InputError, match=r"holds other things \('thesis.tex'\) and no feature store"):
        linearize(*problem, Gaussian(5), store=tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "..."


def test_a_disk_that_is_too_small_is_told_before_the_work_begins(problem, tmp_path, monkeypatch):
    usage = type("usage", (), {"free": 1000})
    monkeypatch.setattr(stores.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(InputError, match=r"The features take 1.44 kB and .* has 1 kB free"):
        linearize(*problem, Gaussian(5), store=tmp_path / "s")


def test_a_disk_that_is_full_is_one_sentence(problem, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stores.os, "posix_fallocate", full)
    with pytest.raises(InputError, match="cannot be made: the disk is full"):
        linearize(*problem, Gaussian(5), store=tmp_path / "s")
