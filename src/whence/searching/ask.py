"""Ask and tell: which run to make next, given the outcomes so far.

`Search` does everything in a search except making the runs. Its decisions, with the runs that were unfinished at the
time, are in ``search.json`` of the run folder, next to the plan and the journal of :mod:`whence.measuring`. Each
decision is on disk before its run begins, and depends only on the finished runs, the running ones and the seed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whence.errors import DataWarning, InputError, counted, did_you_mean
from whence.measuring.journal import Books, open_journal
from whence.measuring.plan import whole
from whence.measuring.values import flatten
from whence.outcomes import Outcomes
from whence.outcomes.checks import Directions, as_names, listed
from whence.outcomes.ledger import DONE, FAILED, OPEN, Ledger, Reply, Result
from whence.outcomes.plan import Job, Plan
from whence.outcomes.runs import is_run, read_ledger
from whence.outcomes.subset import Subset
from whence.searching.belief import FEWEST, LITTLE_NOISE, Belief, Known
from whence.searching.decisions import Asked, Proposal, read_decisions, write_decisions
from whence.searching.goals import GOALS, next_row
from whence.searching.objective import Objective
from whence.searching.pruning import Pruned, carried_on, curves_in
from whence.searching.space import Space, balanced_start, make_space
from whence.searching.standing import Standing, standing_of
from whence.surrogates.fit import fit
from whence.surrogates.kernels import Array
from whence.surrogates.model import Model
from whence.surrogates.rungs import Rung

if TYPE_CHECKING:
    from whence.searching.result import SearchResult

START = "balanced start"
TOLD = "told, not asked for"


@dataclass
class Search:
    """A search whose runs you make yourself: `ask` for runs, and `tell` their outcomes.

    Parameters
    ----------
    tasks : sequence of str, or int
        Names of the tasks, or their number.
    goal : {"best", "effects", "prediction"}
        What to find: the best subset or mixture, who helps and who hurts, or predictions for all allowed subsets.
    budget : int
        Largest number of runs.
    target : str, optional
        The target to use; by default all of them.
    weights : mapping of str to float, optional
        Value of one unit of each target, in its good direction. Needed if some targets are to be maximised and others
        minimised.
    maximize : bool, or sequence of target names
        For which targets higher is better.
    size, max_size, include, exclude, costs, max_cost
        Which subsets are allowed, as in `whence.select`, where ``max_cost`` is called ``budget``.
    mixture : bool
        Whether runs have weights that add up to 1, instead of tasks that are in or out.
    bounds : mapping of str to (float, float), optional
        Smallest and largest weight of a source of a mixture.
    candidates : array (n, K), optional
        The only rows that can be run.
    within : float, optional
        Difference from the best that does not matter; by default a tenth of the std of predicted outcomes.
    stop : bool
        Whether to stop before the budget is spent once the answer is settled.
    path : path, optional
        Run folder, created, or resumed if it exists. Any process may ask or tell in turn.
    seed : int
    estimates : Outcomes or mapping of names to these, optional
        Cheap estimates of the same targets for many subsets, of one kind or several.

    Examples
    --------
    >>> import whence
    >>> search = whence.Search(["a", "b", "c", "d"], budget=12, maximize=True)
    >>> while proposals := search.ask():
    ...     for run in proposals:
    ...         search.tell(run, 1.0 * ("a" in run.subset) - 0.5 * ("b" in run.subset) + 0.2 * ("c" in run.subset))
    >>> search.result().tasks[:1]
    ('a',)
    """

    tasks: Iterable[str] | int
    goal: str = "best"
    budget: int = 40
    target: str | None = None
    weights: Mapping[str, float] | None = None
    maximize: Directions = ()
    size: int | None = None
    max_size: int | None = None
    include: Iterable[str] = ()
    exclude: Iterable[str] = ()
    costs: Mapping[str, float] | None = None
    max_cost: float | None = None
    mixture: bool = False
    bounds: Mapping[str, tuple[float, float]] | None = None
    candidates: Outcomes | ArrayLike | None = None
    within: float | None = None
    stop: bool = True
    path: str | os.PathLike[str] | None = None
    seed: int = 0
    estimates: Outcomes | Mapping[str, Outcomes] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.goal not in GOALS:
            raise InputError(
                f"must be one of {', '.join(map(repr, GOALS))}. {did_you_mean(str(self.goal), GOALS)}",
                parameter="goal",
                of="search",
            )
        count = self.tasks if isinstance(self.tasks, int) else len(listed(self.tasks))
        names = as_names(None if isinstance(self.tasks, int) else listed(self.tasks), "task", count)
        self.task_names: tuple[str, ...] = names
        whole(self.seed, "seed", 0)
        if self.within is not None and not self.within >= 0:
            raise InputError(f"must be zero or more. Got {self.within!r}.", parameter="within", of="search")
        limits = ("size", "max_size", "include", "exclude", "costs", "max_cost", "mixture", "bounds", "candidates")
        given = {name: getattr(self, name) for name in limits}
        self.space: Space = make_space(names, **given)
        self._check_budget()
        self.folder = None if self.path is None else Path(self.path)
        self._settings = {
            "goal": self.goal,
            "seed": self.seed,
            "tasks": list(names),
            **{name: repr(value) for name, value in given.items() if name != "candidates"},
        }
        # A longer start does not find the best row sooner (benchmarks/results/search.md).
        self.n_start = FEWEST if self.goal == "best" else min(3 + len(names) // 4, max(FEWEST, self.budget // 2))
        self.asked: list[Asked] = []
        self.outcome_fn, self.rung_words = "ask and tell", ""
        self.curves: Path | None = None
        self._memory: Books | None = None
        self._belief: Belief | None = None
        self._believed = b""
        self._learned: tuple[Rung, ...] = ()
        self._fitted: tuple[int, Model] | None = None
        self.load()

    def _check_budget(self) -> None:
        n_tasks, budget = len(self.task_names), whole(self.budget, "budget", 1)
        least = {"best": FEWEST + 1, "effects": n_tasks + 2, "prediction": n_tasks + 2}[self.goal]
        if budget < least:
            most = "nothing" if budget < FEWEST + 1 else "which of the runs made is the best (goal 'best')"
            raise InputError(
                f"must be at least {least} to find {GOALS[self.goal]} among {counted(n_tasks, 'task')}: "
                f"{counted(budget, 'run')} can tell {most}. Got {budget} instead.",
                parameter="budget",
                of="search",
            )

    # ---- decisions so far --------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the decisions in the folder, if there is one."""
        if self.folder and (found := read_decisions(self.folder, self._settings)):
            self.n_start, self.asked = found

    def plan(self) -> Plan:
        """Return the plan of all runs so far."""
        rows = np.array([each.row for each in self.asked]).reshape(-1, len(self.task_names))
        up = [self.maximize] if isinstance(self.maximize, str) else self.maximize
        return Plan(
            self.outcome_fn,
            f"search for {GOALS[self.goal]}",
            rows,
            self.task_names,
            seed=self.seed,
            maximize=up if isinstance(up, bool) else list(up),
        )

    @contextmanager
    def _books(self) -> Iterator[Books]:
        """Open the journal of the folder, or the books in memory."""
        if self.folder is None:
            self._memory = self._memory or Books(self.plan())
            yield self._memory
            return
        self.load()
        with open_journal(self.folder, self.plan()) as journal:
            yield journal

    def ledger(self) -> Ledger:
        """Return the state of every run."""
        if self.folder is not None and is_run(self.folder):
            return read_ledger(self.folder)
        return self._memory.ledger if self._memory else Ledger(self.plan())

    # ---- deciding ----------------------------------------------------------------------------------------

    def belief(self, ledger: Ledger, running: Iterable[int] = (), *, alone: bool = False) -> Belief:
        """Return the belief from the finished runs; the ``running`` ones count as unfinished, even if they are not.

        Unfinished runs count with their predicted outcome, or not at all with ``alone``.
        """
        status = ledger.status[0].copy()
        status[list(running)] = OPEN
        stopped = self.stopped(ledger) & (status == FAILED)
        done, failed = status == DONE, (status == FAILED) & ~stopped
        rows = ledger.plan.subsets
        values = ledger.values[0][done] if ledger.targets else np.zeros((int(done.sum()), 0))
        known = Known(rows[done], values, rows[failed], rows[(status == OPEN) & (not alone)])
        key = b"".join(part.tobytes() for part in (status, rows, values, known.running))
        if self._belief is None or key != self._believed:
            belief = Belief(known, self.goodness(ledger, values), self._rungs(ledger))
            if self.goal == "best":
                belief = replace(belief, noise_prior=LITTLE_NOISE)
            if stopped.any() and self.curves is not None and self.goal == "best":
                seeds = ledger.plan.run_seeds()[0]
                guessed = carried_on(curves_in(self.curves), seeds[done], belief.goodness[:, 0], seeds[stopped])
                belief = belief.with_guesses(rows[stopped], guessed)
            self._believed, self._belief = key, belief
        return self._belief

    def stopped(self, ledger: Ledger) -> NDArray[np.bool_]:
        """Return which runs were stopped early, (n,)."""
        found = np.zeros(ledger.plan.shape[1], dtype=bool)
        if self.curves is not None:
            found[[row for (row, _), reason in ledger.reasons.items() if reason.startswith(Pruned.__name__)]] = True
        return found

    def _rungs(self, ledger: Ledger) -> tuple[Rung, ...]:
        """Return the estimates in the units of the goal, kind by kind."""
        if self.estimates is None or not ledger.targets:
            return ()
        if not self._learned:
            given = self.estimates if isinstance(self.estimates, Mapping) else {"estimates": self.estimates}
            learned = []
            for name, one in given.items():
                table = one.targets(ledger.targets)
                goodness = self.goodness(ledger, table.values)
                model = fit(Outcomes(table.subsets, goodness, table.task_names), seed=self.seed)
                learned.append(Rung.of(name, model, np.arange(goodness.shape[1])))
            self._learned = tuple(learned)
        return self._learned

    @property
    def objective(self) -> Objective:
        """What is maximised."""
        return Objective(self.goal, self.target, self.weights)

    def goodness(self, ledger: Ledger, values: Array | None = None) -> Array:
        """Return the objective of every run, (n, 1), or for other goals its targets (n, T)."""
        found = ledger.values[0] if values is None else values
        return self.objective.goodness(found, ledger.targets, ledger.plan.maximize)

    def rng(self, number: int) -> np.random.Generator:
        """Return the generator of a decision."""
        return np.random.default_rng([self.seed, number])

    def choose(self, ledger: Ledger, number: int, running: Iterable[int] = ()) -> tuple[Array, str] | None:
        """Return the row of a decision and why; None if no run would be informative."""
        belief = self.belief(ledger, running)
        if number < self.n_start and not len(belief.known.failed):
            start = balanced_start(self.space, self.n_start, np.random.default_rng(self.seed))
            if number < len(start):
                return start[number], START
        found = next_row(
            self.goal,
            self.space,
            belief,
            self.rng(number),
            lambda goodness: self.objective.shown(goodness, ledger.targets, ledger.plan.maximize),
        )
        return None if found is None else (found.row, found.why)

    def model(self, ledger: Ledger) -> Model:
        """Return the model fitted to the finished runs."""
        if self._fitted is None or self._fitted[0] != ledger.done:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # the search chose this design on purpose
                self._fitted = (
                    ledger.done,
                    fit(ledger.outcomes("whence.search"), estimates=self.estimates, seed=self.seed),
                )
        return self._fitted[1]

    def standing(self, ledger: Ledger) -> Standing:
        """Return how far the search is, from the finished runs."""
        return standing_of(self, ledger)

    def decide(self, books: Books) -> Job | None:
        """Add a run to the plan (and to disk), and return its job; None if there is nothing to add."""
        number, ledger = len(self.asked), books.ledger
        if number >= self.budget:
            return None
        found = self.choose(ledger, number)
        if found is None:
            return None
        open_rows = tuple(np.flatnonzero(ledger.status[0] == OPEN).tolist())
        return self._add(books, Asked(tuple(found[0].tolist()), found[1], open_rows))

    def _add(self, books: Books, asked: Asked) -> Job:
        self.asked.append(asked)
        if self.folder:
            write_decisions(self.folder, self._settings, self.n_start, self.asked)
        plan = books.ledger.plan
        plan = replace(plan, subsets=np.vstack([plan.subsets, np.array(asked.row)[None]]))
        books.extend(plan)
        row = len(plan.subsets) - 1
        return Job(row, 0, plan.subsets[row], int(plan.run_seeds()[0, row]))

    # ---- for those who make the runs themselves ----------------------------------------------------------

    def ask(self, n: int = 1) -> list[Proposal]:
        """Return the next n runs to make; fewer at the end of the budget, none once the answer is settled."""
        with self._books() as books:
            if self.stop and self.standing(books.ledger).stop:
                return []
            jobs = [job for _ in range(n) if (job := self.decide(books)) is not None]
        return [Proposal(job.row, Subset(job.weights, self.task_names), job.seed, self.asked[job.row].why)
                for job in jobs]  # fmt: skip

    def tell(
        self,
        run: Proposal | Iterable[str] | Mapping[str, float] | ArrayLike,
        values: object = None,
        *,
        failed: str = "",
    ) -> None:
        """Record the outcome of a run.

        Parameters
        ----------
        run : Proposal, or subset
            A proposal; or any other subset, given as task names, weights by name, or a row.
        values : number, or mapping of target names to numbers
        failed : str
            Why there are no values.
        """
        if (values is None) == (not failed):
            raise InputError("Give either the values of a run, or why it failed.")
        targets, numbers = flatten(values) if not failed else ((), None)
        names = Outcomes(np.zeros((0, len(self.task_names))), np.zeros((0, 1)), self.task_names, ["outcome of a run"])
        with self._books() as books:
            job = self._job_of(run if isinstance(run, Proposal) else names.subset(run), books)
            books.book([Result(job, Reply(targets, numbers, failed))])

    def _job_of(self, run: Proposal | Array, books: Books) -> Job:
        """Return the job of a run: the proposed one, the first open one of its subset, or a new one."""
        plan, status = books.ledger.plan, books.ledger.status[0]
        if isinstance(run, Proposal):
            if run.number >= len(status) or (plan.subsets[run.number] != np.asarray(run.subset)).any():
                raise InputError(f"This search has not proposed run {run.number}.")
            return Job(run.number, 0, plan.subsets[run.number], run.seed)
        same = np.flatnonzero((plan.subsets == run).all(1) & (status != DONE))
        if not len(same):
            return self._add(books, Asked(tuple(run.tolist()), TOLD))
        return Job(int(same[0]), 0, run, int(plan.run_seeds()[0, same[0]]))

    def result(self) -> SearchResult:
        """Return the answer from the finished runs."""
        from whence.searching.result import result_of

        return result_of(self, self.ledger())
