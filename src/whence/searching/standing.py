"""Progress of a search: what is settled, whether to stop before the budget is spent, and what more runs would add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from whence.errors import counted
from whence.outcomes.ledger import DONE, Ledger
from whence.searching.belief import FEWEST, Belief
from whence.searching.certainty import Best, best_row, prediction_error, share_settled

if TYPE_CHECKING:
    from whence.searching.ask import Search

SURE = 0.9  # how sure an answer must be to stop before the budget is spent
SETTLED_ERROR = 0.1  # of the std of outcomes, at which predictions are good enough
FEWEST_BEYOND = 5  # runs beyond the start before a search may stop
LATEST = 2  # runs without which an answer must be settled too


@dataclass(frozen=True)
class Standing:
    """Progress of a search: the best row so far (goal "best"), how much is settled, whether to stop, and this in words.

    ``more`` says what more runs would add.
    """

    best: Best | None
    settled: float
    stop: bool
    words: str
    more: str = ""


def standing_of(asking: Search, ledger: Ledger) -> Standing:
    """Return how far the search is, from the finished runs."""
    belief, rng = asking.belief(ledger, alone=True), asking.rng(len(asking.asked))
    done = len(belief.known.rows)
    if done < FEWEST or not ledger.targets:
        return Standing(None, 0.0, False, f"{counted(done, 'run')} finished, too few to say anything")
    early = done < asking.n_start + FEWEST_BEYOND or not asking.stop
    if np.ptp(belief.goodness, axis=0).max() == 0:
        return Standing(None, 0.0, False, f"all {counted(done, 'run')} came out alike")
    if asking.goal == "best":
        return _standing_of_best(asking, ledger, belief, early=early)
    if asking.goal == "effects" and early and ledger.done + ledger.failed < asking.budget:
        return Standing(None, 0.0, False, f"{counted(done, 'run')} finished")
    if asking.goal == "effects":
        share, doubled, count = share_settled(asking.model(ledger), asking.space, rng)
        words = f"{round(share * count)} of {counted(count, 'effect')} of tasks and pairs settled"
        more = f"twice the runs would settle about {round(doubled * count)}"
        return Standing(None, share, not early and share == 1, words, more)
    error = prediction_error(asking.space, belief, rng)
    words = f"predictions are off by {error:.0%} of the spread of outcomes"
    more = f"the goal is {SETTLED_ERROR:.0%}, and a larger budget continues from here"
    return Standing(None, 1 - error, not early and error <= SETTLED_ERROR, words, more)


def _standing_of_best(asking: Search, ledger: Ledger, belief: Belief, *, early: bool) -> Standing:
    rng = asking.rng(len(asking.asked))
    best = best_row(asking.space, belief, asking.within, rng)
    words = f"{best.sure:.0%} sure to be within {best.within:.2g} of the best"
    if best.sure < SURE:
        gain = f"{best.gain:.2g} on average"
        return Standing(best, best.sure, False, f"{words}; more runs may gain {gain}")
    if not early:  # and was, before the last runs
        latest = np.flatnonzero(ledger.status[0] == DONE)[-LATEST:]
        before = best_row(asking.space, asking.belief(ledger, latest, alone=True), asking.within, rng)
        early = before.sure < SURE
    return Standing(best, best.sure, not early, words, f"it was less sure before the last {LATEST} runs")
