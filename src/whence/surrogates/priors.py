"""What runs usually look like: the prior of the hyperparameters of the combined kernel, learned over real tables.

``python benchmarks/priors.py`` tunes the kernel on many runs of every table, and states what is added to the means that
it finds: tuned on few runs, so many hyperparameters find more signal and less noise than there is. The prior starts
with less linear signal, fewer pairs, more noise, and a larger but smoother effect of size than many runs have. A few
runs start from here, many overrule it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

# Mean and std over tables of the logarithm, for outcomes of unit variance.
LEARNED: Mapping[str, tuple[float, float]] = {
    "linear": (-0.3, 0.9),
    "pairs": (-2.6, 1.0),
    "rbf": (-0.3, 1.1),
    "size": (0.0, 2.0),
    "noise": (-0.3, 1.5),
    "rbf rate": (0.5, 0.5),
    "size rate": (-1.2, 0.6),
    "relevance": (0.0, 1.0),
}
# Variance of the size effect where all runs have one size: what it is on average over tables.
UNSEEN_SIZE = math.exp(LEARNED["size"][0] + LEARNED["size"][1] ** 2 / 2)
# Where the search for the best rate of the size effect begins: from a wiggly effect it finds a smooth one, but not the
# other way round.
SIZE_RATE_START = 0.0
# By how much a target's own hyperparameters differ from those that fit all targets best.
OWN = 1.0
# By how much more log evidence per target mixture weights as they are, or beside their logarithms, must have to be
# preferred to their root or logarithm: what a little of a task does first is usually most of what it does.
WEIGHT_SCALES: Mapping[str, float] = {"identity": 0.3, "sqrt": 0.0, "log": 0.0, "both": 0.3}
