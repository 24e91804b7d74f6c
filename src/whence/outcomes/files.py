"""Files of runs: csv, parquet and npz, read into `Outcomes` and written from it.

Where most users enter the flow: a file with a row per run, which may come from a spreadsheet, from pandas or
from an earlier `Outcomes.write`. A reader finds the columns, gives each its role, and hands what is left to
`Outcomes`; what does not fit is an `InputError` that names the file, and the line where the format has lines.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from whence.errors import InputError, some_of
from whence.outcomes.checks import (
    Directions,
    Floats,
    as_directions,
    as_names,
    as_table,
    listed,
)
from whence.outcomes.columns import Wanted, choose
from whence.outcomes.runs import is_run, read_ledger
from whence.outcomes.table import Outcomes
from whence.outcomes.text import kind_of, read_text, write_text
from whence.outcomes.writing import whole_file


def read_outcomes(
    path: str | os.PathLike[str],
    outcomes: str | Iterable[str] | None = None,
    *,
    tasks: str | Iterable[str] | None = None,
    ignore: str | Iterable[str] = (),
    maximize: Directions = (),
) -> Outcomes:
    r"""Table of runs from a file, with a row per run.

    A cell of a task column is 0 or 1 (or False, True), or a weight of at least 0. An empty, ``nan`` or ``NA``
    cell of an outcome column means not measured yet. What does not fit is an `InputError` that says where.

    Parameters
    ----------
    path : path ending in .csv, .tsv (or either with .gz), .parquet or .npz; or a folder of `whence.measure`
        An npz holds ``subsets`` and ``values``, or ``S`` and ``Y``, and may hold their names. A run folder can be
        read while it is being measured: rows that failed or are still to come are NaN.
    outcomes : str or sequence of str, optional
        Columns that hold outcomes. Needed unless the file knows (npz; Parquet written by `Outcomes.write`; a run).
    tasks : str or sequence of str, optional
        Columns that hold tasks; every other column where not given.
    ignore : str or sequence of str
        Columns that are neither.
    maximize : bool, sequence of target names, or sequence of bool
        For which targets higher is better; empty means as the file says, or none.

    Returns
    -------
    Outcomes

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "runs.csv")
    ...     _ = file.write_text("run,code,math,acc\nx,1,0,0.4\ny,1,1,0.7\n")
    ...     read_outcomes(file, ["acc"], ignore=["run"], maximize=["acc"])
    Outcomes: 2 runs × 2 tasks → acc (higher is better); 2 distinct subsets
    """
    path = Path(path)
    up: Any = maximize if isinstance(maximize, bool | str) else list(maximize)
    wanted = Wanted(
        outcomes=None if outcomes is None else listed(outcomes),
        tasks=None if tasks is None else listed(tasks),
        ignore=listed(ignore),
    )
    try:
        kind = "run" if path.is_dir() else kind_of(path)
        read = {"run": _read_run, "npz": _read_npz, "parquet": _read_parquet}.get(kind, read_text)
        if not path.exists():
            raise InputError("there is no such file.")
        found = read(path, wanted)
        if found["provenance"] is None:
            found["provenance"] = {"source": str(path)}
        if up != []:
            found["maximize"] = up
        return Outcomes(**found)
    except InputError as error:
        raise error.at(path) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error


def write_outcomes(runs: Outcomes, path: str | os.PathLike[str]) -> None:
    """Write a table to a file that `read_outcomes` reads; the file appears whole or not at all.

    Parameters
    ----------
    runs : Outcomes
    path : path ending in .csv, .tsv (or either with .gz), .parquet or .npz
        CSV carries columns only; Parquet and npz also which are targets, their direction, and provenance.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_outcomes(Outcomes([[1, 0]], [0.9]), f"{folder}/runs.npz")
    ...     read_outcomes(f"{folder}/runs.npz")
    Outcomes: 1 run × 2 tasks → outcome_0 (lower is better); 1 distinct subset
    """
    path = Path(path)
    kind = kind_of(path)
    with whole_file(path) as file:
        if kind == "npz":
            _write_npz(runs, file)
        elif kind == "parquet":
            _write_parquet(runs, file)
        else:
            write_text(runs, file, kind)


# ---- npz -------------------------------------------------------------------------------------------------


_KEYS = {  # and the short one that may stand for each
    "subsets": "S",
    "values": "Y",
    "task_names": "S_names",
    "target_names": "Y_names",
    "maximize": "maximize",
    "provenance": "provenance",
}


def _read_npz(path: Path, wanted: Wanted) -> dict[str, Any]:
    if not zipfile.is_zipfile(path):
        raise InputError("this is not an npz file (a zip archive of arrays), or it is cut short.")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            held = archive.files
            keys = {field: field if field in held else short for field, short in _KEYS.items()}
            arrays = {field: archive[key] for field, key in keys.items() if key in held}
            _check_sum(archive)
        for field, kind in (("task_names", str), ("target_names", str), ("maximize", bool)):
            arrays[field] = arrays[field].astype(kind).ravel().tolist() if field in arrays else None
        provenance = dict(json.loads(str(arrays["provenance"]))) if "provenance" in arrays else None
    except Exception as error:  # a damaged archive makes numpy raise almost anything
        hint = " Save plain numbers and text: whence never unpickles." if "allow_pickle" in str(error) else ""
        raise InputError(f"this npz file cannot be read ({_brief(error)}).{hint}") from error
    if not {"subsets", "values"} <= set(arrays):
        raise InputError(f"an npz file must hold 'subsets' and 'values' (or S and Y). It holds: {some_of(held)}.")
    S, Y, *_ = as_table(arrays["subsets"], arrays["values"])
    tasks = as_names(arrays["task_names"], "task", S.shape[1])
    targets = as_names(arrays["target_names"], "outcome", Y.shape[1])
    chosen = choose([*tasks, *targets], wanted, targets)
    up = dict(zip(targets, as_directions(arrays["maximize"], targets), strict=True))
    return chosen.arguments(np.hstack([S, Y])[:, chosen.places], up, provenance)


def _write_npz(runs: Outcomes, file: BinaryIO) -> None:
    arrays: dict[str, Any] = {
        "subsets": runs.subsets.astype(np.uint8) if runs.is_binary else runs.subsets,
        "values": runs.values,
        "task_names": np.array(runs.task_names),
        "target_names": np.array(runs.target_names),
        "maximize": np.array(runs.maximize),
        "provenance": np.array(json.dumps(runs.provenance)),
    }
    np.savez_compressed(file, checksum=np.array(_checksum(arrays)), **arrays)


def _checksum(arrays: Mapping[str, Any]) -> str:
    """Checksum of arrays by name: a zip archive has one of each, but none of which there are."""
    found = 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes(), found)
    return f"{found:08x}"


def _check_sum(archive: Any) -> None:
    """Refuse an archive of ours that was changed; one of somebody else has no checksum."""
    arrays = {name: archive[name] for name in archive.files}
    if "checksum" in arrays and str(arrays.pop("checksum")) != _checksum(arrays):
        raise ValueError("its checksum does not match its contents")


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


# ---- run folders -----------------------------------------------------------------------------------------


def _read_run(path: Path, wanted: Wanted) -> dict[str, Any]:
    if not is_run(path):
        raise InputError(
            "this is a folder, and a file of runs is needed (.csv, .tsv, .parquet or .npz), or a folder that "
            "whence.measure made."
        )
    runs = read_ledger(path).outcomes(source=str(path))
    chosen = choose([*runs.task_names, *runs.target_names], wanted, runs.target_names)
    up = dict(zip(runs.target_names, runs.maximize, strict=True))
    return chosen.arguments(np.hstack([runs.subsets, runs.values])[:, chosen.places], up, dict(runs.provenance))


# ---- parquet ---------------------------------------------------------------------------------------------


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise InputError('Parquet files need pyarrow: pip install "whence[parquet]".') from error
    return pyarrow


def parquet_table(path: Path) -> tuple[Any, list[str]]:
    """Table of a Parquet file, and the names of its columns."""
    pa = _pyarrow()
    try:
        with pa.parquet.ParquetFile(path) as file:
            table = file.read(use_threads=False)
        return table, [name.strip() for name in table.column_names]
    except Exception as error:  # a damaged file makes pyarrow raise almost anything
        raise InputError(f"this Parquet file cannot be read ({_brief(error)}).") from error


def _read_parquet(path: Path, wanted: Wanted) -> dict[str, Any]:
    table, names = parquet_table(path)
    try:
        note = json.loads((table.schema.metadata or {}).get(b"whence", b"{}"))
        if note:
            _check_parquet(table, note)
        targets = [str(name) for name in note.get("target_names", ())]
        up = dict(zip(targets, map(bool, note.get("maximize", ())), strict=True))
        provenance = dict(note["provenance"]) if note else None
        if note and names != [*note["task_names"], *targets]:
            raise ValueError("its columns are not those that whence wrote")
    except Exception as error:  # somebody else has changed what whence wrote
        raise InputError(f"this Parquet file cannot be read ({_brief(error)}).") from error
    chosen = choose(names, wanted, targets)
    columns = [_floats(_pyarrow(), table.column(place), names[place]) for place in chosen.places]
    return chosen.arguments(np.column_stack(columns), up, provenance)


def _floats(pa: Any, column: Any, name: str) -> Floats:
    is_a = pa.types
    tests = (is_a.is_integer, is_a.is_floating, is_a.is_boolean, is_a.is_decimal, is_a.is_null)
    if not any(test(column.type) for test in tests):
        raise InputError(
            f"column '{name}' holds {column.type} and not numbers. "
            "If it is neither a task nor an outcome, leave it out with {ignore}.",
            ignore=[name],
        )
    return np.asarray(column.cast("double", safe=False).to_numpy(), dtype=np.float64)


def _check_parquet(table: Any, note: dict[str, Any]) -> None:
    """Refuse a file of ours that was changed."""
    told = note.pop("checksum")
    columns = np.array([column.to_numpy() for column in table.columns])
    if told != _checksum({"note": np.array(json.dumps([note, table.column_names])), "columns": columns}):
        raise ValueError("its checksum does not match its contents")


def _write_parquet(runs: Outcomes, file: BinaryIO) -> None:
    pa = _pyarrow()
    fields = ("task_names", "target_names", "maximize", "provenance")
    note: dict[str, Any] = json.loads(json.dumps({field: getattr(runs, field) for field in fields}))
    columns = np.ascontiguousarray(np.hstack([runs.subsets, runs.values]).T)
    names = [*runs.task_names, *runs.target_names]
    note["checksum"] = _checksum({"note": np.array(json.dumps([note, names])), "columns": columns})
    table = pa.Table.from_arrays([pa.array(column) for column in columns], names)
    pa.parquet.write_table(table.replace_schema_metadata({"whence": json.dumps(note)}), file)
