"""Searching: from a budget of runs to an answer.

`search` makes runs with an outcome function (loop.py) through the journal and engines of :mod:`whence.measuring`.
`Search` chooses the runs and takes their outcomes (ask.py; decisions.py keeps its decisions on disk). The allowed rows
are a space (space.py); predictions for all of them are a belief (belief.py); each goal has a rule that chooses the next
run (goals.py) for an objective (objective.py). How sure the answer is (certainty.py) says when to stop (standing.py).
A problem gets cheap estimates first (rungs.py), and runs that report while they train may be stopped early
(pruning.py). The answer (result.py) is shown in the terminal, in notebooks and on a page that is updated after each
run (page.py).
"""

from whence.searching.ask import Search
from whence.searching.loop import search

__all__ = ["Search", "search"]
