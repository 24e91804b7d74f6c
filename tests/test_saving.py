"""Models in files: the same answers to the last bit, and clear refusals of what is not such a file."""

import json
import zipfile
import zlib

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from typer.testing import CliRunner

import whence
from whence.cli import app
from whence.errors import InputError
from whence.surrogates.saving import TREE


def table(n=40, K=6, T=2, seed=0):
    rng = np.random.default_rng(seed)
    S = whence.Bernoulli(0.5).draw(K, n, seed=seed)
    return whence.Outcomes(S, S @ rng.normal(size=(K, T)) + S[:, :1] * S[:, 1:2] + 0.1 * rng.normal(size=(n, T)))


def models():
    runs = table()
    gaps = runs.values.copy()
    gaps[3, 1] = np.nan
    return {
        "average": lambda: whence.fit(runs),
        "two parts": lambda: whence.fit(whence.Outcomes(runs.subsets, gaps)),
        "additive": lambda: whence.fit(runs, surrogate="additive"),
        "unchecked": lambda: whence.fit(runs, surrogate=whence.KernelSurrogate(), n_folds=None),
        "fused": lambda: whence.fit(runs.rows(np.arange(8)), estimates={"cheap": runs}),
        "mixtures": lambda: whence.fit(whence.Outcomes(whence.Dirichlet().draw(3, 20), np.arange(20.0))),
    }


@pytest.mark.filterwarnings("ignore::whence.DataWarning")
@pytest.mark.parametrize("kind", models())
def test_a_loaded_model_says_the_same_to_the_last_bit(kind, tmp_path):
    model = models()[kind]()
    model.save(tmp_path / "m.whence")
    again = whence.load(tmp_path / "m.whence")
    S = model.outcomes.subsets
    for one, other in zip(model.predict(S, return_std=True), again.predict(S, return_std=True), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(whence.attribute(model).scores, whence.attribute(again).scores)
    np.testing.assert_array_equal(whence.attribute(model).std, whence.attribute(again).std)
    np.testing.assert_array_equal(model.held_out()[0], again.held_out()[0])
    assert str(again) == str(model)
    assert again.quality() == pytest.approx(model.quality(), nan_ok=True, rel=0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "m.whence"
    whence.fit(table(), surrogate="additive").save(path)
    return path


def rewritten(source, path, change):
    """The archive with another text of its tree, whose checksum is right."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            if name != TREE:
                new.writestr(name, old.read(name))
        text = json.dumps(change(json.loads(old.read(TREE)[8:])))
        new.writestr(TREE, f"{zlib.crc32(text.encode()):08x}{text}")
    return path


def test_another_version_is_refused(saved, tmp_path):
    path = rewritten(saved, tmp_path / "old.whence", lambda tree: tree | {"version": "0.1.0"})
    with pytest.raises(InputError, match=r"saved by whence 0\.1\.0, and this is .* Fit the runs again"):
        whence.load(path)


def test_only_classes_of_whence_are_made(saved, tmp_path):
    for name in ("os:system", "subprocess:Popen", "whence.cli:main", "whence.errors:some_of"):
        changed = {"class": name, "state": {}}
        path = rewritten(saved, tmp_path / "evil.whence", lambda tree, changed=changed: tree | {"model": changed})
        with pytest.raises(InputError, match=r"damaged|and not a model"):
            whence.load(path)


@pytest.mark.parametrize("place", np.linspace(0.02, 0.98, 12))
def test_damage_is_refused_and_never_another_answer(saved, tmp_path, place):
    content = bytearray(saved.read_bytes())
    content[int(place * len(content))] ^= 0x55
    path = tmp_path / "damaged.whence"
    path.write_bytes(content)
    S = table().subsets
    try:
        again = whence.load(path)
    except InputError:
        return
    np.testing.assert_array_equal(again.predict(S), whence.load(saved).predict(S))  # a byte that says nothing


def test_what_is_no_model_is_refused(saved, tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        whence.load(tmp_path / "none.whence")
    (tmp_path / "text.whence").write_text("hello")
    with pytest.raises(InputError, match="not a model that whence saved"):
        whence.load(tmp_path / "text.whence")
    (tmp_path / "half.whence").write_bytes(saved.read_bytes()[:500])
    with pytest.raises(InputError, match="or it is cut short"):
        whence.load(tmp_path / "half.whence")
    table().write(tmp_path / "runs.npz")
    with pytest.raises(InputError, match=r"runs.npz: this model is damaged"):
        whence.load(tmp_path / "runs.npz")


def test_regressors_of_others_are_not_pickled(tmp_path):
    model = whence.fit(table(), surrogate=LinearRegression(), n_folds=None)
    with pytest.raises(InputError, match=r"has LinearRegression of sklearn.* Save the runs instead"):
        model.save(tmp_path / "m.whence")
    assert list(tmp_path.iterdir()) == []


def test_every_verb_takes_a_saved_model(saved, tmp_path):
    def run(*arguments):
        return CliRunner().invoke(app, [str(each) for each in arguments], prog_name="whence")

    asked = {
        "fit": [],
        "attribute": [],
        "interactions": [],
        "predict": ["--subset", "task_0"],
        "select": ["--size", 2],
        "suggest": ["-n", 1],
        "report": ["-o", tmp_path / "r.html"],
        "evaluate": ["--splits", 2, "--methods", "size only"],
    }
    for verb, more in asked.items():
        result = run(verb, "--model", saved, *more)
        assert result.exit_code == 0, (verb, result.output)
        assert "40 runs × 6 tasks" in result.stdout
    refused = run("fit", "runs.csv", "--model", saved)
    assert (refused.exit_code, "give --model alone" in refused.stderr) == (2, True)
    assert "Give a file of runs, or --model FILE" in run("fit").stderr
    assert "leave --estimates and --features out" in run("fit", "--model", saved, "-e", "cheap.csv").stderr
