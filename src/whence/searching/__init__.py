"""Searching: from a budget of runs to an answer.

Between what it shows (:mod:`whence.display`) and the command line. `search` makes runs with an outcome function
(loop.py) through the journal and the engines of :mod:`whence.measuring`; `Search` asks for them and is told what came
out (ask.py; decisions.py is what it keeps). What may be run is a space (space.py); what the runs say of the rest of it,
a belief (belief.py); which run comes next, the rule of a goal (goals.py) about an objective (objective.py). A problem
has a cheap rung (rungs.py), and runs that report on their way may be stopped (pruning.py). The answer (result.py) is
shown in the terminal, in notebooks and on a page that is written again after each run (page.py).
"""

from whence.searching.ask import Search
from whence.searching.loop import search

__all__ = ["Search", "search"]
