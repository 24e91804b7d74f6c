"""Recorded runs: tables of true outcomes that we made ourselves, each with the command that made it.

For trying things out, and for comparing methods on the same runs: `load` reads one, `available` lists them, and
`leaderboard` scores methods on all. ``experiments/record.py`` makes them.
"""

from whence.datasets.leaderboard import Leaderboard, leaderboard
from whence.datasets.recorded import Recorded, available, load

__all__ = ["Leaderboard", "Recorded", "available", "leaderboard", "load"]
