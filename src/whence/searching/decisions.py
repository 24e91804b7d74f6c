"""Decisions: the runs that a search has asked for, kept on disk (``search.json`` of the run folder)."""

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
    """A run that was asked for: its row (K,), why, and which earlier runs were not finished then."""

    row: tuple[float, ...]
    why: str
    running: tuple[int, ...] = ()


@dataclass(frozen=True)
class Proposal:
    """A run to make: which one it is, its subset, its seed, and why.

    Give it back to `Search.tell` with what came out.
    """

    number: int
    subset: Subset
    seed: int
    why: str


def read_decisions(folder: Path, settings: Mapping[str, object]) -> tuple[int, list[Asked]] | None:
    """Return how long the start is and what was asked for in a folder; None where nothing was.

    A search with other settings is refused.
    """
    place = folder / DECISIONS
    if not place.exists():
        return None
    found = read_document(place)
    if found.get("format") != FORMAT:
        raise InputError(f"{place} is of the format {found.get('format')!r}, and this version reads {FORMAT!r}.")
    refuse_other(f"The search in {folder} is", found["settings"], settings)
    asked = [Asked(tuple(each["row"]), each["why"], tuple(each["running"])) for each in found["asked"]]
    return found["n_start"], asked


def write_decisions(folder: Path, settings: Mapping[str, object], n_start: int, asked: Sequence[Asked]) -> None:
    """Write what was asked for, whole or not at all."""
    document = {"format": FORMAT, "settings": settings, "n_start": n_start, "asked": [asdict(each) for each in asked]}
    write_document(folder / DECISIONS, document)
