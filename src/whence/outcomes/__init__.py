"""Outcomes: the table of runs that everything else reads.

table.py, subset.py, simplex.py            the type; a row that knows its tasks; mixtures
files.py, cells.py                         read and write runs; read tables that are not runs
sheets.py, text.py, rows.py, values.py     cells of any file: its format, which rows are runs, cells as numbers
columns.py, bookkeeping.py, listed.py      which columns are tasks and outcomes, and which neither
layouts.py                                 tables that do not have a row per run
checks.py, concerns.py, sizes.py           what is refused, what deserves a look, what is too large
plan.py, ledger.py, runs.py                a run under way, and the folder it is kept in
writing.py                                 everything that whence writes: whole, and with a checksum
"""

from whence.outcomes.files import read_outcomes
from whence.outcomes.table import Outcomes, distinct_rows

__all__ = ["Outcomes", "distinct_rows", "read_outcomes"]
