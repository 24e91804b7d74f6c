"""Files under attack: damage is found or harmless, links are not followed, and nothing in a name is obeyed."""

from __future__ import annotations

import os
import stat
import sys
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

import whence
from whence.cli import app
from whence.errors import DataWarning, InputError, safe_text
from whence.measuring.journal import Lock
from whence.outcomes.runs import read_ledger
from whence.outcomes.writing import as_line, read_document, whole_file, write_document

ALL = whence.Exhaustive().draw(3)
HOSTILE = ["=cmd|' /C calc'!A0", "+1", "-lr", "@sum", "'=quoted", "plain", "\u202egnp.exe", "''=x"]


def train(subset, seed):
    return {"loss": float(subset @ np.arange(3.0)) + seed / 2**31, "acc": 0.5}


def same(runs, others):
    return (
        runs.values.tobytes() == others.values.tobytes()
        and runs.subsets.tobytes() == others.subsets.tobytes()
        and (runs.task_names, runs.target_names, runs.maximize)
        == (others.task_names, others.target_names, others.maximize)
    )


def damaged(data, rng, n):
    """The same bytes with one bit flipped, at n places, and cut at n others."""
    for place in rng.integers(0, 8 * len(data), n):
        found = bytearray(data)
        found[place // 8] ^= 1 << (place % 8)
        yield bytes(found)
    for cut in rng.integers(0, len(data), n // 4):
        yield data[:cut]


def outcome_of(read):
    """What comes of a damaged file: it is read, or it is refused in a sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read()
    except InputError:
        return None


@pytest.mark.parametrize("name", ["runs.npz", "runs.parquet", "runs.csv.gz"])
def test_a_flipped_bit_of_a_table_is_found_or_harmless(runs, tmp_path, name):
    path = tmp_path / name
    runs.write(path)
    outcomes = None if "csv" not in name else list(runs.target_names)
    truth, whole = whence.read_outcomes(path, outcomes), path.read_bytes()
    for data in damaged(whole, np.random.default_rng(0), 300):
        path.write_bytes(data)
        found = outcome_of(lambda: whence.read_outcomes(path, outcomes))
        assert found is None or same(found, truth)


def test_a_flipped_bit_of_a_run_never_gives_another_value(tmp_path):
    folder = tmp_path / "run"
    truth = whence.measure(train, ALL, tasks=list("abc"), path=folder, engine="inline", maximize=["acc"])
    for name in ("run.json", "journal.jsonl"):
        whole = (folder / name).read_bytes()
        for data in damaged(whole, np.random.default_rng(1), 200):
            (folder / name).write_bytes(data)
            found = outcome_of(lambda: whence.read_outcomes(folder))
            if found is not None:
                known = ~np.isnan(found.values).any(axis=1)
                assert name == "journal.jsonl"
                assert same(found.rows(known), truth.rows(known)) or not known.any()
        (folder / name).write_bytes(whole)


def test_a_flipped_bit_of_a_task_vector_is_found(tmp_path):
    torch = pytest.importorskip("torch")
    from whence.estimators.deltas import DeltaFolder

    like = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2)}
    folder = DeltaFolder(tmp_path / "v", {"seed": 0}, {"a": "x"})
    folder.save("a", like)
    path = folder.file("a")
    whole = path.read_bytes()
    for data in damaged(whole, np.random.default_rng(2), 200):
        path.write_bytes(data)
        found = outcome_of(lambda: folder.load("a", like))
        assert found is None or all(torch.equal(found[key], like[key]) for key in like)


def test_a_document_is_refused_once_it_is_edited(tmp_path):
    path = tmp_path / "run.json"
    write_document(path, {"n": 3, "names": ["ä", "b"]})
    assert read_document(path) == {"n": 3, "names": ["ä", "b"]}
    path.write_text(path.read_text().replace("3", "4"))
    with pytest.raises(InputError, match=r"run.json is damaged: its checksum does not match its contents"):
        read_document(path)


ODD_VALUES = [None, 3, -1, 1e300, 10**30, True, "x", [], [None], [[1]], {}, {"a": [1]}]
ODD_LINES = [
    {"row": 10**9, "replicate": 0, "of": "x", "values": [1.0]}, {"row": -1, "replicate": 0, "failed": "x"},
    {"row": "a", "replicate": None}, {"row": 0, "replicate": 0, "values": [1.0]}, {"row": True, "replicate": 0},
    {"row": 1.5, "replicate": 0, "failed": "x"}, {"row": [0], "replicate": 0, "failed": "x"}, {"targets": 3},
    {"targets": []}, {"row": 0, "replicate": 0, "of": [1], "values": [1.0]}, {},
]  # fmt: skip


@pytest.mark.slow
def test_a_folder_that_somebody_else_wrote_is_read_or_refused_in_a_sentence(tmp_path):
    """With checksums that are right: they say that a file is whole, and not that it makes sense."""
    folder = tmp_path / "run"
    truth = whence.measure(train, ALL, tasks=list("abc"), path=folder, engine="inline")
    plan = read_document(folder / "run.json")
    for name in plan:
        for value in ODD_VALUES:
            write_document(folder / "run.json", plan | {name: value})
            outcome_of(lambda: whence.read_outcomes(folder))
            outcome_of(lambda: whence.measure(train, ALL, tasks=list("abc"), path=folder, engine="inline"))
            write_document(folder / "run.json", plan)
    with open(folder / "journal.jsonl", "ab") as file:
        file.writelines(map(as_line, ODD_LINES))
    with pytest.warns(DataWarning, match=r"\d lines of .*journal.jsonl cannot be read"):
        assert same(whence.read_outcomes(folder), truth)


# ---- links -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [".lock", "journal.jsonl", "failures"])
def test_planted_links_are_not_followed(tmp_path, name):
    folder, victim = tmp_path / "run", tmp_path / "victim"
    folder.mkdir()
    if name == "failures":
        victim.mkdir()
    else:
        victim.write_text("precious")
    (folder / name).symlink_to(victim)
    with pytest.raises(InputError, match=rf"'{name}' is a symbolic link, which is not followed"):
        whence.measure(train, ALL, tasks=list("abc"), path=folder, engine="inline")
    assert victim.is_dir() or victim.read_text() == "precious"
    assert not victim.is_dir() or not list(victim.iterdir())


def test_a_table_replaces_a_link_and_leaves_what_it_points_at(runs, tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "runs.csv").symlink_to(tmp_path / "victim")
    runs.write(tmp_path / "runs.csv")
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "runs.csv").is_symlink()


def test_what_is_no_file_is_not_replaced_by_one(runs, tmp_path):
    """As root, a device would be gone for everybody."""
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "null.csv").symlink_to("/dev/null")
    (tmp_path / "out.csv").symlink_to("/proc/self/fd/1")  # as /dev/stdout is
    for name in ("pipe.csv", "null.csv", "out.csv"):
        before = (tmp_path / name).lstat()
        with pytest.raises(InputError, match=rf"{name}: this is a device or a pipe, and not a file"):
            runs.write(tmp_path / name)
        assert (tmp_path / name).lstat() == before
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="this is a folder, and not a file"):
        runs.write(tmp_path / "folder.csv")


def test_new_files_have_the_usual_permissions_and_no_partial_file_stays(tmp_path):
    before = os.umask(0o027)
    try:
        with whole_file(tmp_path / "x") as file:
            file.write(b"1")
        with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "y"):
            _ = 1 / 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_two_writers_are_one_and_a_refusal(tmp_path):
    lock = Lock(tmp_path)
    with pytest.raises(InputError, match="another process is measuring here"):
        whence.measure(train, ALL, tasks=list("abc"), path=tmp_path, engine="inline")
    lock.close()


# ---- what a name could do --------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz"])
def test_no_cell_of_a_table_is_a_formula_and_every_name_comes_back(tmp_path, ending):
    S = np.eye(len(HOSTILE))
    runs = whence.Outcomes(S, -np.arange(len(S), dtype=float), task_names=HOSTILE, target_names=["=loss"])
    path = tmp_path / f"runs.{ending}"
    runs.write(path)
    assert same(whence.read_outcomes(path, ["=loss"]), runs)
    if ending != "csv.gz":
        header = path.read_text().splitlines()[0].split("\t" if ending == "tsv" else ",")
        assert not [cell for cell in header if cell.strip('"')[:1] in "=+-@"]


def test_names_and_messages_are_shown_and_not_obeyed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    S = (np.random.default_rng(0).random((12, 3)) < 0.5).astype(float)
    whence.Outcomes(S, S @ [1.0, 2, 3], ["a", "b\u202ec", "d"], ["loss"]).write("runs.csv")
    result = CliRunner().invoke(app, ["attribute", "runs.csv", "-O", "loss"])
    assert result.exit_code == 0, result.output
    assert "\u202e" not in result.output
    assert r"b\u202ec" in result.output
    (tmp_path / "exp.py").write_text("TASKS = ['a']\ndef train(subset, seed):\n    raise ValueError('\\x1b]0;owned')\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = CliRunner().invoke(app, ["measure", "exp.py:train", "-d", "loo", "-o", "run", "--engine", "inline"])
    sys.modules.pop("exp", None)
    assert result.exit_code == 1, result.output
    assert "\x1b]0" not in result.output
    assert r"\x1b]0;owned" in result.output
    assert r"\x1b]0;owned" in read_ledger(tmp_path / "run").reasons[0, 0]


def test_safe_text_spells_out_what_would_be_obeyed():
    assert safe_text("tab\tline\nünïcödé 数") == "tab\tline\nünïcödé 数"
    assert safe_text("\x1b[2J\x07\u2066\ud800") == r"\x1b[2J\x07\u2066\ud800"


# ---- what cannot be meant --------------------------------------------------------------------------------

ODD = {
    "newline in an option": (["fit", "runs.csv", "-O", "lo\nss"], "on one line"),
    "no mixture": (["predict", "mixed.csv", "-O", "loss", "--subset", ""], "give them, as in --subset a=0.7"),
    "edited run": (["fit", "run"], "is damaged: its checksum does not match"),
    "long integer": (["fit", "long.csv", "-O", "loss"], "an outcome must be finite"),
    "no such rule": (["fit", "folder"], "this is a folder, and a file of runs is needed"),
}


@pytest.mark.parametrize("case", ODD)
def test_what_cannot_be_meant_is_one_sentence(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whence.Outcomes(ALL, ALL.sum(1), list("abc"), ["loss"]).write("runs.csv")
    whence.Outcomes(ALL / 3, ALL.sum(1), list("abc"), ["loss"]).write("mixed.csv")
    whence.measure(train, ALL, tasks=list("abc"), path="run", engine="inline")
    plan = tmp_path / "run" / "run.json"
    plan.write_text(plan.read_text().replace('"seed": 0', '"seed": 1'))
    (tmp_path / "long.csv").write_text("a,b,loss\n1,0," + "9" * 6000 + "\n")
    (tmp_path / "folder").mkdir()
    arguments, sentence = ODD[case]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert sentence in " ".join(result.stderr.split())


def test_examples_of_a_prompt_are_lines_of_json_whatever_is_in_them(tmp_path):
    pytest.importorskip("torch")
    from whence.icl.examples import read_examples

    path = tmp_path / "d.jsonl"
    path.write_text('{"text": "a\u2028b", "label": "x"}\r\n{"text": "c", "label": "y"}\n', encoding="utf-8")
    assert [example.text for example in read_examples(path)] == ["a\u2028b", "c"]
    for line in ("[" * 100_000, '{"text": ' + "9" * 5000 + ', "label": "x"}', "{"):
        path.write_text(line)
        with pytest.raises(InputError, match="this is not JSON"):
            read_examples(path)
    path.write_text("".join(f'{{"text": "t", "label": "x", "id": {i}}}\n' for i in range(40_000)))
    assert len(read_examples(path)) == 40_000


def test_a_model_that_brings_code_is_not_run(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    import io
    import json

    from whence.icl.language import LanguageModel

    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'w')\nclass C: pass\n")
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.C"}})
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["evil.C", None]}}))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\ny\ny\n"))
    with pytest.raises(InputError):
        LanguageModel.load(tmp_path, device="cpu")
    assert not (tmp_path / "owned").exists()
