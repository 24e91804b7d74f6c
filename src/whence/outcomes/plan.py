"""The plan of a run: which subsets, how often, with which seeds, by what. A later start has to agree with all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whence.errors import InputError, counted, some_of
from whence.outcomes.checks import Floats, as_directions
from whence.outcomes.writing import differences

VARIES = "varies"  # stands for what changes as rows are measured, such as a counter
FUNCTION = "outcome function"
ORIGIN = {"model": "model", "examples of ": "examples", "target ": "targets"}  # of a problem: how its digests begin


class Job(NamedTuple):
    """A row to measure: which subset, which replicate of it, and with what."""

    row: int
    replicate: int
    weights: Floats
    seed: int


@dataclass(frozen=True, eq=False)
class Plan:
    """Subsets of shape (n, K), each to be measured ``seeds`` times.

    Replicate r of subset i gets the seed ``SeedSequence([seed, r]).generate_state(n)[i] >> 1`` of numpy: an integer
    below 2^31 that depends on nothing else, so that it stays when there are more subsets, replicates or workers.

    >>> plan = Plan("train", "LeaveOneOut()", np.ones((2, 3)), ("a", "b", "c"), seed=0, seeds=2)
    >>> plan.run_seeds().shape, [(job.row, job.replicate) for job in plan.jobs(np.ones((2, 2), dtype=bool))]
    ((2, 2), [(0, 0), (1, 0), (0, 1), (1, 1)])
    """

    outcome_fn: str  # what it is called
    design: str
    subsets: Floats
    task_names: tuple[str, ...]
    seed: int = 0
    seeds: int = 1
    maximize: Any = ()  # bool or names of targets; empty where nobody has said
    provenance: dict[str, str] = field(default_factory=dict)  # how the outcomes are made
    fingerprint: dict[str, str] = field(default_factory=dict)  # what they depend on, as digests or short texts
    changes: tuple[str, ...] = ()  # that were accepted during the run

    @property
    def shape(self) -> tuple[int, int]:
        """Number of replicates and of subsets."""
        return self.seeds, len(self.subsets)

    @property
    def origin(self) -> dict[str, str]:
        """Digests of the model, the examples and the targets; empty where outcomes are not those of a problem.

        >>> made = {"model": "1f", "examples of a": "2e", "target b": "3d", "loss": "squared"}
        >>> sorted(Plan("train", "", np.ones((2, 1)), ("a",), fingerprint=made).origin)
        ['examples', 'model', 'targets']
        """
        if not any(name.startswith("examples of ") for name in self.fingerprint):
            return {}
        told = sorted(self.fingerprint.items())
        parts = {part: [own for own in told if own[0].startswith(of)] for of, part in ORIGIN.items()}
        return {part: hashlib.sha256(repr(found).encode()).hexdigest()[:16] for part, found in parts.items()}

    def run_seeds(self) -> NDArray[np.int64]:
        """Seed of every replicate of every subset, shape (seeds, n)."""
        n = len(self.subsets)
        words = [np.random.SeedSequence([self.seed, r]).generate_state(n) >> 1 for r in range(self.seeds)]
        return np.array(words, dtype=np.int64).reshape(self.shape)

    def jobs(self, wanted: NDArray[np.bool_]) -> Iterator[Job]:
        """Rows to measure, the first replicate of every subset before the second of any."""
        seeds = self.run_seeds()
        for replicate, row in np.argwhere(wanted).tolist():
            yield Job(row, replicate, self.subsets[row], int(seeds[replicate, row]))

    def continued(self, now: Plan, targets: tuple[str, ...], done: int, *, accept: bool | None) -> Plan:
        """Plan to resume, where ``now`` is asked for in the folder of this one; what would mix two runs is refused.

        ``now`` is this plan again, or with more subsets or replicates. So far the run has these targets, and rows that
        are done. With ``accept``, another function, data or direction is accepted, and recorded as a change; None is
        for callers that have no such option to offer.
        """
        self._refuse_other_rows(now)
        if not done:  # there is nothing to mix with
            return replace(now, maximize=now.maximize or self.maximize, changes=self.changes)
        up = _said(now.maximize, targets)
        try:
            before = _said(self.maximize, targets)
        except InputError:  # of targets that do not exist, and so of none
            before = None
        now = replace(now, maximize=self.maximize if up is None else now.maximize, changes=self.changes)
        found = differences({FUNCTION: self.outcome_fn}, {FUNCTION: now.outcome_fn})
        found += differences(self.provenance, now.provenance)
        found += differences(*_comparable(self.fingerprint, now.fingerprint))
        if up is not None and before is not None and up != before:
            was, is_now = (some_of(map(str, names), 4) for names in (before, up))
            found.append(f"what to maximise (was {was}, is {is_now})")
        if not found:
            varying = {name: VARIES for name, value in self.fingerprint.items() if value == VARIES}
            return replace(now, fingerprint={name: varying.get(name, v) for name, v in now.fingerprint.items()})
        if not accept:
            offer = "" if accept is None else " To resume anyway, and record it in the table: {accept_change}."
            raise InputError(
                f"this run was begun with something else: {some_of(found, 4)}. Resume it as it was begun, or use "
                f"another folder.{offer}",
                accept_change=True,
            )
        return replace(now, changes=(*self.changes, f"after {counted(done, 'row')}: {', '.join(found)}"))

    def _refuse_other_rows(self, now: Plan) -> None:
        """Raise where ``now`` has other rows than this plan, apart from more of them."""
        for what, was, given in (
            ("design", self.design, now.design),
            ("seed", self.seed, now.seed),
            ("list of tasks", some_of(self.task_names), some_of(now.task_names)),
        ):
            if was != given:
                raise _begun(f"the {what} {was}, and now it is {given}")
        if self.task_names != now.task_names:
            raise _begun(f"{counted(len(self.task_names), 'task')} of other names or in another order")
        n, more = len(self.subsets), len(now.subsets)
        if now.seeds < self.seeds:
            raise _begun(f"seeds={self.seeds}, and now it is {now.seeds}")
        if more < n:
            raise _begun(f"n={n}, and now it is {more}")
        differ = np.flatnonzero((self.subsets != now.subsets[:n]).any(axis=1))
        if len(differ):
            raise _begun(f"other subsets (from row {differ[0]} on; n was {n} and is {more})")


def _begun(what: str) -> InputError:
    return InputError(f"this run was begun with {what}. Resume it as it was begun, or use another folder.")


def _said(maximize: Any, targets: tuple[str, ...]) -> tuple[Any, ...] | None:
    """Directions that were given, by target where those are known; None where none were."""
    if not isinstance(maximize, bool) and not len(maximize):
        return None
    if not targets:
        return (maximize,) if isinstance(maximize, bool) else tuple(maximize)
    return tuple(name for name, up in zip(targets, as_directions(maximize, targets), strict=True) if up)


def _comparable(was: Mapping[str, str], now: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Fingerprints without what varies by itself."""
    varies = {name for side in (was, now) for name, value in side.items() if value == VARIES}
    first, second = ({name: value for name, value in side.items() if name not in varies} for side in (was, now))
    return first, second
