"""Outcomes: the table of runs that everything else reads. table.py is the type, files.py its formats on disk.

cells.py reads tables that are not runs from the same formats, columns.py says which columns of a file are tasks and
which outcomes, layouts.py brings tables to a row per run, checks.py refuses what cannot be meant, and concerns.py names
what deserves a look. A run under way is a
plan (plan.py) and a ledger (ledger.py), kept in a folder (runs.py). Everything that whence writes goes through
writing.py.
"""

from whence.outcomes.files import read_outcomes
from whence.outcomes.table import Outcomes, distinct_rows

__all__ = ["Outcomes", "distinct_rows", "read_outcomes"]
