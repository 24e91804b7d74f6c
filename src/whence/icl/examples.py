"""Examples from files: JSON Lines, a JSON list, CSV or TSV, with fields as people call them, or chats of two turns."""

from __future__ import annotations

import csv
import io
import json
import os
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whence.errors import DataWarning, InputError, did_you_mean, some_of
from whence.icl.prompts import Example
from whence.outcomes.files import errors_name
from whence.outcomes.text import decoded, separator

TEXT = ("text", "question", "input", "prompt", "sentence", "query", "instruction", "review", "content", "premise")
LABEL = ("label", "answer", "output", "completion", "target", "response", "class", "category", "sentiment", "intent")


def read_examples(
    path: str | os.PathLike[str], *, text: str | None = None, label: str | None = None, prefix: str = "d"
) -> list[Example]:
    r"""Examples of a file with a record for each: JSON Lines, a JSON list, CSV or TSV.

    Parameters
    ----------
    path : path
    text, label : str, optional
        Fields of the records. By default ``text`` and ``label``, or other usual names such as ``question`` and
        ``answer``; or the two turns of a chat, in ``messages``. If there is a field ``id``, it is the name of the
        example.
    prefix : str
        Without ``id``, names are this and a number.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "demos.csv")
    ...     _ = file.write_text("text,label\nwhat a film,good\n")
    ...     read_examples(file)
    [Example(text='what a film', label='good', name='d1')]
    """
    where = Path(path)
    records = [(place, _turns(record, place)) for place, record in read_records(where)]
    if not records:
        raise InputError(f"{where}: the file is empty. Give a record for each example, with 'text' and 'label'.")
    fields = [_known(records[0][1], name, usual) for name, usual in ((text, TEXT), (label, LABEL))]
    if odd := [
        name for name, asked in zip(fields, ((text, "text"), (label, "label")), strict=True) if name not in asked
    ]:
        warnings.warn(DataWarning(f"{where.name}: fields taken: {some_of(odd)}."), stacklevel=2)
    found: list[Example] = []
    for place, record in records:
        content, answer = (_field(record, name, place) for name in fields)
        name = record.get("id")
        found.append(Example(content, answer, str(f"{prefix}{len(found) + 1}" if name in (None, "") else name)))
    times = Counter(example.name for example in found)
    if twice := sorted(name for name, number in times.items() if number > 1):
        raise InputError(f"{where}: the ids must differ. Given more than once: {some_of(twice)}.")
    return found


def read_records(path: str | os.PathLike[str]) -> list[tuple[str, dict[str, Any]]]:
    """Records of a file, each with its place: "reviews.jsonl, line 3"."""
    where = Path(path)
    with errors_name(where):
        text = decoded(where)
    ending = where.suffix.lower()
    if ending in (".csv", ".tsv"):
        return _rows(text, where, "\t" if ending == ".tsv" else ",")
    if text.lstrip().startswith("["):
        records = _parsed(text, str(where))
        return [
            (f"{where}, record {n}", _checked(record, f"{where}, record {n}")) for n, record in enumerate(records, 1)
        ]
    lines = text.split("\n")  # splitlines would break text at other signs too
    places = ((f"{where}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip())
    return [(place, _checked(_parsed(line, place), place)) for place, line in places]


def _rows(text: str, where: Path, usual: str) -> list[tuple[str, dict[str, Any]]]:
    """Records of a text table, whose first line names the fields."""
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator(text, usual), strict=True)
    found: list[tuple[str, dict[str, Any]]] = []
    try:
        for row in reader:
            place = f"{where}, line {reader.line_num}"
            if None in row or None in row.values():
                raise InputError(f"{place}: there must be {len(reader.fieldnames or ())} cells, as in the first line.")
            found.append((place, {str(name).strip(): cell for name, cell in row.items()}))
    except csv.Error as error:
        raise InputError(f"{where}, line {reader.line_num}: this is not a text table ({error}).") from error
    return found


def _parsed(text: str, where: str) -> Any:
    try:
        found = json.loads(text)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: \\u{ord(error.object[error.start]):x} is half of a character. Mend it.") from error
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and objects that deep
        reason = getattr(error, "msg", None) or type(error).__name__
        raise InputError(f"{where}: this is not JSON ({reason}). Give one object per line.") from error


def _checked(record: Any, where: str) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise InputError(f"{where}: there must be an object with its fields. Got {type(record).__name__}.")
    return record


def _turns(record: dict[str, Any], where: str) -> dict[str, Any]:
    """The record; of a chat of a question and its answer, these as ``text`` and ``label``."""
    turns = record.get("messages")
    if not isinstance(turns, list) or "text" in record:
        return record
    said = [(turn.get("role"), turn.get("content")) for turn in turns if isinstance(turn, dict)]
    if [role for role, _ in said] != ["user", "assistant"]:
        raise InputError(f"{where}: 'messages' must be a turn of the user and one of the assistant.")
    return {**record, "text": said[0][1], "label": said[1][1]}


def _known(record: Mapping[str, Any], asked: str | None, usual: tuple[str, ...]) -> str:
    """The field that was asked for, or the first usual one that the record has."""
    if asked is not None:
        return asked
    lower = {name.lower(): name for name in reversed(list(record))}
    return next((lower[name] for name in usual if name in lower), usual[0])


def _field(record: Mapping[str, Any], name: str, where: str) -> str:
    value = record.get(name)
    if value is None or (isinstance(value, str) and not value.strip()):
        if name in record:
            raise InputError(f"{where}: the field {name!r} is empty. Fill it in, or leave the line out.")
        raise InputError(f"{where}: there is no field {name!r}. {did_you_mean(name, record)}")
    if isinstance(value, dict | list):
        raise InputError(f"{where}: the field {name!r} must be text or a number. Got {type(value).__name__}.")
    return str(value)
