"""Decisions of a search, kept on disk (``search.json`` of the run folder)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from whence.errors import InputError
from whence.outcomes.subset import Subset
from whence.outcomes.writing import read_document, refuse_other, write_document

DECISIONS = "search.json"
FORMAT = "whence search 1"


@dataclass(frozen=True)
class Asked:
    """A chosen run: its row (K,), why, and which earlier runs were unfinished at the time."""

    row: tuple[float, ...]
    why: str
    running: tuple[int, ...] = ()


@dataclass(frozen=True)
class Proposal:
    """A run to make: its number, its subset, its seed, and why.

    Pass it to `Search.tell` with its outcome.
    """

    number: int
    subset: Subset
    seed: int
    why: str


def read_decisions(folder: Path, settings: Mapping[str, object]) -> tuple[int, list[Asked]] | None:
    """Return the length of the start and the decisions of a folder; None if it has none.

    A search with other settings is refused.
    """
    place = folder / DECISIONS
    if not place.exists():
        return None
    found = read_document(place)
    if found.get("format") != FORMAT:
        raise InputError(f"{place} has the format {found.get('format')!r}, and this version reads {FORMAT!r}.")
    refuse_other(f"The search in {folder} is", found["settings"], settings)
    asked = [Asked(tuple(each["row"]), each["why"], tuple(each["running"])) for each in found["asked"]]
    return found["n_start"], asked


def write_decisions(folder: Path, settings: Mapping[str, object], n_start: int, asked: Sequence[Asked]) -> None:
    """Write the decisions, whole or not at all."""
    document = {"format": FORMAT, "settings": settings, "n_start": n_start, "asked": [asdict(each) for each in asked]}
    write_document(folder / DECISIONS, document)
