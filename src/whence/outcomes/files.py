"""Files of runs: csv, tsv, JSON Lines, Excel, Parquet and npz, read into `Outcomes` and written from it.

Where most users enter the flow: a table with a row per run, which may come from a spreadsheet, from pandas, from a
tracker of experiments or from an earlier `Outcomes.write`. A reader finds the cells (:mod:`.sheets`), gives each column
its role (:mod:`.columns`), and hands what is left to `Outcomes`; what does not fit is an `InputError` that names the
file, and the line where the format has lines.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from whence.errors import InputError, brief, needed, some_of
from whence.outcomes.checks import Directions, Floats, as_names, as_table, find_names, listed
from whence.outcomes.columns import Found, Wanted, choose, read_columns
from whence.outcomes.layouts import together
from whence.outcomes.runs import is_run, read_ledger
from whence.outcomes.sheets import NO_PYARROW, Sheet, frame_sheet, is_frame, parquet_table, read_sheet
from whence.outcomes.table import Outcomes
from whence.outcomes.text import WRITTEN, kind_of, write_text
from whence.outcomes.writing import whole_file

if TYPE_CHECKING:
    import pandas as pd

Path_ = str | os.PathLike[str]
DECLARED = ("run", "npz", "parquet of whence")


def read_outcomes(
    source: Path_ | Sequence[Path_] | pd.DataFrame,
    outcomes: str | Iterable[str] | None = None,
    *,
    tasks: str | Iterable[str] | None = None,
    ignore: str | Iterable[str] = (),
    maximize: Directions = (),
    subset_column: str | None = None,
    missing: str | None = None,
    sheet: str | None = None,
) -> Outcomes:
    r"""Table of runs from a file or a DataFrame, with a row per run.

    A cell of a task column is 0 or 1 (also yes and no, ✓ and ✗), or a weight of at least 0 (also 39.7%, 1/4, 1,234.5
    or 3.2 GB). An empty, ``nan`` or ``NA`` cell of an outcome column means not measured yet. Columns that are called or
    behave like a seed, an identifier, a date, hours, steps or a setting are set aside, with a warning that names them,
    and another one where they move the outcome. Runs that failed, were pruned or are still running, as a column of
    states says, count as not measured.
    What does not fit is an `InputError` that says where, for all of it at once.

    Parameters
    ----------
    source : DataFrame, path, or several paths
        Files end in .csv, .tsv, .jsonl (or these with .gz), .txt, .md, .json, .xlsx, .parquet or .npz; or a folder of
        `whence.measure`. An npz holds ``subsets`` and ``values`` (or ``X`` and ``y``), and may hold their names. A run
        folder can be read while it is being measured: rows that failed or are still to come are NaN. Several files are
        read as one table: more runs, or other columns of the same runs.
    outcomes : str or sequence of str, optional
        Columns that hold outcomes. Needed unless the file knows (npz; Parquet written by `Outcomes.write`; a run).
        Capitals and the prefix of a tracker do not matter (``loss`` finds ``summary.Loss``); ``*`` is anything.
    tasks : str or sequence of str, optional
        Columns that hold tasks, such as ``"config.mix.*"``; every other column that can be one where not given.
    ignore : str or sequence of str
        Columns that are neither.
    maximize : bool, sequence of target names, or sequence of bool
        For which targets higher is better; empty means as the file says, or none.
    subset_column : str, optional
        The column that lists the tasks of each run, as "web,code", "web/code", "all but web", or a JSON list.
    missing : {"drop", "zero"}, optional
        What an empty cell of a task column means: leave the run out, or a weight of 0. Refused where not given.
    sheet : str, optional
        The sheet of an Excel file to read, or several with ``*``. Where not given, the largest that has the outcomes,
        and those with the same columns.

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
    wanted = Wanted(
        outcomes=None if outcomes is None else listed(outcomes),
        tasks=None if tasks is None else listed(tasks),
        ignore=listed(ignore),
        subset_column=subset_column,
        missing=missing,
        sheet=sheet,
    )
    up: Any = maximize if isinstance(maximize, bool) else [maximize] if isinstance(maximize, str) else list(maximize)
    if is_frame(source):
        asked = [*(wanted.outcomes or ()), *(wanted.tasks or ()), *([subset_column] if subset_column else ())]
        return _built(read_columns(frame_sheet(source, asked), wanted), up, "DataFrame")
    given: Any = source
    paths = [Path(given)] if isinstance(given, str | os.PathLike) else [Path(each) for each in given]
    if not paths:
        raise InputError("There is no file to read. Give at least one.")
    kinds = [_kind(path) for path in paths]
    if any(kind in DECLARED for kind in kinds):
        parts = [_read_one(path, kind, wanted, up) for path, kind in zip(paths, kinds, strict=True)]
        return _stacked(parts, paths)
    sheets = {str(path): _sheet(path, wanted) for path in paths}
    with errors_name(some_of(sheets, 3)):
        return _from_sheets(sheets, wanted, up)


@contextmanager
def errors_name(place: object) -> Iterator[None]:
    """Let errors begin with the file that they are about."""
    try:
        yield
    except InputError as error:
        raise error.at(place) from error
    except OSError as error:
        raise InputError(f"{place}: cannot be read ({error.strerror or error}).") from error


def _kind(path: Path) -> str:
    if path.is_dir():
        return "run"
    with errors_name(path):
        if not path.suffix and not path.exists():
            raise InputError("there is no such file or folder.")
        kind = kind_of(path)
        if not path.exists():
            raise InputError("there is no such file.")
        ours = kind == "parquet" and (parquet_table(path).schema.metadata or {}).get(b"whence")
    return "parquet of whence" if ours else kind


def _sheet(path: Path, wanted: Wanted) -> Sheet:
    with errors_name(path):
        return read_sheet(path, wanted.sheet, wanted.outcomes or ())


def _from_sheets(sheets: Mapping[str, Sheet], wanted: Wanted, up: Any) -> Outcomes:
    found = read_columns(together(sheets), wanted)
    return _built(found, up, ", ".join(sheets))


def _read_one(path: Path, kind: str, wanted: Wanted, up: Any) -> Outcomes:
    with errors_name(path):
        if kind not in DECLARED:
            return _from_sheets({str(path): _sheet(path, wanted)}, wanted, up)
        if wanted.sheet is not None:
            raise InputError("is for Excel files: this one has no sheets.", parameter="sheet")
        reader = {"run": _read_run, "npz": _read_npz}.get(kind, _read_parquet)
        return _built(choose(reader(path), wanted), up, str(path))


def _built(found: Found, up: Any, source: str) -> Outcomes:
    """Table of what a reader found; directions may be named as columns are."""
    if found["provenance"] is None:
        found["provenance"] = {"source": source}
    if up != []:
        found["maximize"] = up
        if not isinstance(up, bool) and all(isinstance(name, str) for name in up):
            found["maximize"] = [name for asked in up for name in find_names(asked, found["target_names"]) or [asked]]
    return Outcomes(**found)


def _stacked(parts: Sequence[Outcomes], paths: Sequence[Path]) -> Outcomes:
    """Runs of several tables as one; they must have the same tasks and targets."""
    first = parts[0]
    for part, path in zip(parts, paths, strict=True):
        for kind, one, other in (
            ("task", first.task_names, part.task_names),
            ("outcome", first.target_names, part.target_names),
        ):
            if odd := sorted(set(one) ^ set(other)):
                raise InputError(f"{path}: the files must have the same {kind}s. Not in both: {some_of(odd)}.")
    if len(parts) == 1:
        return first
    frames = [part.to_frame() for part in parts]
    rows = np.vstack([frame[list(frames[0].columns)] for frame in frames])
    source = {"source": ", ".join(map(str, paths))}
    return replace(first, subsets=rows[:, : first.n_tasks], values=rows[:, first.n_tasks :], provenance=source)


def write_outcomes(runs: Outcomes, path: str | os.PathLike[str]) -> None:
    """Write a table to a file that `read_outcomes` reads; the file appears whole or not at all.

    Text has columns only; Parquet and npz also which are targets, their direction, and provenance.
    """
    path = Path(path)
    kind = next((kind for kind in WRITTEN if path.name.lower().endswith(f".{kind}")), None)
    if kind is None:
        raise InputError(f"A file of runs to write must end in .{', .'.join(WRITTEN)}. Got '{path.name}' instead.")
    with whole_file(path) as file:
        if kind == "npz":
            _write_npz(runs, file)
        elif kind == "parquet":
            _write_parquet(runs, file)
        else:
            write_text(runs, file, kind)


# ---- npz -------------------------------------------------------------------------------------------------


_KEYS = {  # of each array, and the shorter ones that may stand for it
    "subsets": ("subsets", "S", "X"),
    "values": ("values", "Y", "y"),
    "task_names": ("task_names", "S_names"),
    "target_names": ("target_names", "Y_names"),
    "maximize": ("maximize",),
    "provenance": ("provenance",),
}


def _read_npz(path: Path) -> Found:
    if not zipfile.is_zipfile(path):
        raise InputError("this is not an npz file (a zip archive of arrays), or it is cut short.")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            held = {name: archive[name] for name in archive.files}
        if "checksum" in held and str(held.pop("checksum")) != _checksum(held):  # that of others has none
            raise ValueError("its checksum does not match its contents")
        keys = {field: next((key for key in known if key in held), None) for field, known in _KEYS.items()}
        arrays: dict[str, Any] = {field: held[key] for field, key in keys.items() if key is not None}
        for field, kind in (("task_names", str), ("target_names", str), ("maximize", bool)):
            arrays[field] = arrays[field].astype(kind).ravel().tolist() if field in arrays else None
        provenance = dict(json.loads(str(arrays["provenance"]))) if "provenance" in arrays else None
    except Exception as error:  # a damaged archive makes numpy raise almost anything
        hint = " Save plain numbers and text: whence never unpickles." if "allow_pickle" in str(error) else ""
        raise InputError(f"this npz file cannot be read ({brief(error)}).{hint}") from error
    if not {"subsets", "values"} <= set(arrays):
        raise InputError(
            f"an npz file must hold 'subsets' and 'values' (or S and Y, or X and y). It holds: {some_of(held)}."
        )
    S, Y, *_ = as_table(arrays["subsets"], arrays["values"])
    return Found(
        subsets=S,
        values=Y,
        task_names=as_names(arrays["task_names"], "task", S.shape[1]),
        target_names=as_names(arrays["target_names"], "outcome", Y.shape[1]),
        maximize=arrays["maximize"] or (),
        provenance=provenance,
    )


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


# ---- run folders -----------------------------------------------------------------------------------------


def _read_run(path: Path) -> Found:
    if not is_run(path):
        raise InputError(
            "this is a folder, and a file of runs is needed (.csv, .tsv, .parquet or .npz), or a folder that "
            "whence.measure made."
        )
    return cast("Found", vars(read_ledger(path).outcomes(source=str(path))))


# ---- parquet ---------------------------------------------------------------------------------------------


def _read_parquet(path: Path) -> Found:
    """Arguments of `Outcomes` from a Parquet file that whence wrote."""
    table = parquet_table(path)
    try:
        note = json.loads(table.schema.metadata[b"whence"])
        told, columns = note.pop("checksum"), np.array([column.to_numpy() for column in table.columns])
        if told != _note_checksum(note, table.column_names, columns):
            raise ValueError("its checksum does not match its contents")
        if [*note["task_names"], *note["target_names"]] != [name.strip() for name in table.column_names]:
            raise ValueError("its columns are not those that whence wrote")
        cells, split = columns.T.astype(np.float64), len(note["task_names"])
        return cast("Found", note | {"subsets": cells[:, :split], "values": cells[:, split:]})
    except Exception as error:  # it was changed after whence wrote it
        raise InputError(f"this Parquet file cannot be read ({brief(error)}).") from error


def _note_checksum(note: dict[str, Any], names: Sequence[str], columns: Floats) -> str:
    return _checksum({"note": np.array(json.dumps([note, names])), "columns": columns})


def _write_parquet(runs: Outcomes, file: BinaryIO) -> None:
    pa, parquet = (needed(module, NO_PYARROW, "parquet") for module in ("pyarrow", "pyarrow.parquet"))
    fields = ("task_names", "target_names", "maximize", "provenance")
    note: dict[str, Any] = json.loads(json.dumps({field: getattr(runs, field) for field in fields}))
    columns = np.ascontiguousarray(np.hstack([runs.subsets, runs.values]).T)
    names = [*runs.task_names, *runs.target_names]
    note["checksum"] = _note_checksum(note, names, columns)
    table = pa.Table.from_arrays([pa.array(column) for column in columns], names)
    parquet.write_table(table.replace_schema_metadata({"whence": json.dumps(note)}), file)
