"""Sources of text: named groups of examples, for training or evaluation, read from files.

A source is a JSONL file, one object per line, or the rows of a dataset that share the value of a column. Errors in it
are reported here, with file and line, before any model is loaded.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whence.errors import DataWarning, InputError, counted, did_you_mean, some_of
from whence.icl.examples import read_records

# Fields of each format; a record has the first format all of whose fields it has.
FORMATS = {
    "messages": ("messages",),
    "completion": ("prompt", "completion"),
    "label": ("text", "label"),
    "text": ("text",),
}
ASSISTANT = "assistant"  # the role of turns that are learned
EXPECTED = "'messages', 'prompt' and 'completion', 'text' and 'label', or 'text'"
SHINGLE = 3  # words in a row, of which texts are compared
UNDIVIDED = re.compile(
    "[\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
)  # signs of Thai, Khmer, Japanese, Chinese
FEW = 4  # examples of targets that may have a run of words in common by chance
ALIKE = 0.8  # share of these that two texts have in common, from which on one is nearly the other


@dataclass(frozen=True)
class Record:
    """One example as it was read: its fields, and its place in a file."""

    fields: Mapping[str, Any]
    place: str

    @property
    def text(self) -> str:
        """Its text without labels and turns of the system, in lower case and with single spaces, to find duplicates."""
        parts: list[str] = []
        for name, value in self.fields.items():
            if isinstance(value, list):
                parts += [turn["content"] for turn in value if turn["role"] != "system"]
            elif name != "label":
                parts.append(str(value))
        return " ".join(" ".join(parts).lower().split())


@dataclass(frozen=True)
class Source:
    """A named group of examples of one format.

    Attributes
    ----------
    name : str
    format : {"messages", "completion", "label", "text"}
        A chat; a prompt with its completion; a text with its label; a text.
    records : tuple of Record
    """

    name: str
    format: str
    records: tuple[Record, ...]

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True)
class Leak:
    """An example of a target that is also in a source, exactly or nearly."""

    source: str
    target: str
    source_place: str
    target_place: str
    similarity: float


def read_sources(paths: Iterable[str | os.PathLike[str]], *, column: str | None = None) -> list[Source]:
    """Sources of JSONL files, each named after its file; or after the values of a column in them.

    Parameters
    ----------
    paths : iterable of path
    column : str, optional
        Field whose value names the source of an example.
    """
    files = [Path(path) for path in paths]
    if not files:
        raise InputError("There are no sources: give at least one JSONL file.")
    records = [(file.stem, place, fields) for file in files for place, fields in read_records(file)]
    if column is not None:
        return sources_of(((place, fields) for _, place, fields in records), column=column)
    names = Counter(file.stem for file in files)
    if twice := [name for name, times in names.items() if times > 1]:
        raise InputError(f"Sources are named after their files, which must differ. Given twice: {some_of(twice)}.")
    return _grouped({file.stem: str(file) for file in files}, records)


def sources_of(
    dataset: Iterable[Mapping[str, object] | tuple[str, Mapping[str, object]]], *, column: str = "source"
) -> list[Source]:
    """Sources of a dataset of rows, such as one of Hugging Face, by the value of a column.

    Parameters
    ----------
    dataset : iterable of mapping, or of (place, mapping)
    column : str
        Field whose value names the source of a row.

    Examples
    --------
    >>> rows = [{"text": "a", "source": "x"}, {"text": "b", "source": "y"}, {"text": "c", "source": "x"}]
    >>> [(source.name, len(source)) for source in sources_of(rows)]
    [('x', 2), ('y', 1)]
    """
    records = []
    for at, row in enumerate(dataset):
        place, fields = row if isinstance(row, tuple) else (f"row {at}", row)
        if not isinstance(fields, Mapping):
            raise InputError(f"{place}: there must be a mapping of names to values. Got {type(fields).__name__}.")
        if column not in fields:
            raise InputError(f"{place}: there is no {column!r}, which names its source. {did_you_mean(column, fields)}")
        records.append((str(fields[column]), place, {k: v for k, v in fields.items() if k != column}))
    if not records:
        raise InputError("The dataset has no rows: give at least one.")
    return _grouped({name: name for name, _, _ in records}, records)


def _grouped(where: Mapping[str, str], records: Sequence[tuple[str, str, Mapping[str, object]]]) -> list[Source]:
    """Sources of records that are given with the name of each."""
    members: dict[str, list[Record]] = defaultdict(list)
    formats: dict[str, dict[str, str]] = defaultdict(dict)
    for name, place, fields in records:
        found = _format(fields, place)
        formats[name].setdefault(found, place)
        members[name].append(Record({field: fields[field] for field in FORMATS[found]}, place))
    for name, place in where.items():
        if not members[name]:
            raise InputError(f"{place}: there is nothing in it. Give one JSON object per line, with {EXPECTED}.")
        if len(formats[name]) > 1:
            (one, first), (other, second), *_ = formats[name].items()
            raise InputError(
                f"{second}: the fields are {_named(other)}, and at {first} they are {_named(one)}. A source has one "
                "format: make two of it."
            )
    return [Source(name, next(iter(formats[name])), tuple(members[name])) for name in where]


def _format(fields: Mapping[str, Any], place: str) -> str:
    """The format of a record, all of whose fields are as they must be."""
    found = next((name for name, needed in FORMATS.items() if all(field in fields for field in needed)), None)
    if found is None:
        raise InputError(f"{place}: the fields must be {EXPECTED}. Got {some_of(map(repr, fields))}.")
    for field in FORMATS[found]:
        value = fields[field]
        chat = isinstance(value, list) and field in ("messages", "prompt", "completion")
        if chat:
            _check_turns(value, f"{place}: {field!r}")
        elif field == "label" and isinstance(value, int | float | str) and str(value).strip() and value == value:
            continue  # NaN, of a table with gaps, is no label
        elif field == "messages" or not isinstance(value, str):
            wanted = "a list of turns" if field == "messages" else "text"
            given = "null" if value is None else type(value).__name__
            raise InputError(f"{place}: the field {field!r} must be {wanted}. Got {given}.")
        elif not value.strip() and field != "prompt":
            raise InputError(f"{place}: the field {field!r} is empty. Fill it in, or leave the line out.")
    learned = fields[FORMATS[found][-1]]
    if isinstance(learned, list) and learned[-1]["role"] != ASSISTANT:
        raise InputError(f"{place}: the last turn must be of the role 'assistant', which is what is learned.")
    if found == "completion" and isinstance(fields["prompt"], list) != isinstance(fields["completion"], list):
        raise InputError(f"{place}: 'prompt' and 'completion' must be both text, or both lists of turns.")
    return found


def _check_turns(turns: list[object], where: str) -> None:
    for turn in turns:
        if not (
            isinstance(turn, Mapping) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str)
        ):
            raise InputError(f'{where} must hold turns such as {{"role": "user", "content": "…"}}. Got {turn!r:.80}.')
    if not turns:
        raise InputError(f"{where} is empty. Fill it in, or leave the line out.")


def find_leaks(sources: Iterable[Source], targets: Iterable[Source]) -> list[Leak]:
    """Examples of targets that are also in a source, exactly or nearly: once per source and target example.

    Two texts are nearly the same if they share at least 0.8 of their runs of three words, or of three characters where
    words are not divided by spaces. What most examples of the targets have, such as an instruction, does not count.

    Examples
    --------
    >>> rows = [{"text": "one two three four five six", "source": "s"}]
    >>> [leak.similarity for leak in find_leaks(sources_of(rows), sources_of(rows))]
    [1.0]
    """
    asked = [(target.name, record, record.text) for target in targets for record in target.records]
    exact: dict[str, list[int]] = defaultdict(list)
    holders: dict[str, list[int]] = defaultdict(list)  # of each shingle, the target examples that have it
    shingles = [_shingles(text) for _, _, text in asked]
    for at, (_, _, text) in enumerate(asked):
        exact[text].append(at)
        for shingle in shingles[at]:
            holders[shingle].append(at)
    usual = {shingle for shingle, having in holders.items() if len(having) > max(FEW, len(asked) / 2)}
    shingles = [own - usual for own in shingles]
    found: dict[tuple[str, int], Leak] = {}
    for source in sources:
        for record in source.records:
            text = record.text
            alike = dict.fromkeys(exact.get(text, ()), 1.0)
            own = _shingles(text) - usual
            for at, shared in Counter(at for shingle in own for at in holders.get(shingle, ())).items():
                likeness = shared / (len(own) + len(shingles[at]) - shared)
                if likeness >= ALIKE:
                    alike.setdefault(at, likeness)
            for at, likeness in alike.items():
                name, target, _ = asked[at]
                leak = Leak(source.name, name, record.place, target.place, likeness)
                known = found.get((source.name, at))
                if known is None or likeness > known.similarity:
                    found[source.name, at] = leak
    return list(found.values())


def warn_of_leaks(leaks: Sequence[Leak]) -> None:
    """Warn of sources that contain examples of the targets, which makes them look better than they are."""
    for source, number in Counter(leak.source for leak in leaks).items():
        first = next(leak for leak in leaks if leak.source == source)
        how = "is" if first.similarity == 1 else f"is nearly ({first.similarity:.0%})"
        warnings.warn(
            f"The source '{source}' holds {counted(number, 'example')} of the targets, which will make it look better "
            f"than it is: {first.source_place} {how} {first.target_place}.",
            DataWarning,
            stacklevel=3,
        )


def _shingles(text: str) -> set[str]:
    words = UNDIVIDED.sub(r" \g<0> ", text).split()
    return {" ".join(words[at : at + SHINGLE]) for at in range(len(words) - SHINGLE + 1)}


def _named(format_: str) -> str:
    return " and ".join(map(repr, FORMATS[format_]))
