"""Baselines: the methods that give every task one score, as additive surrogates with given coefficients.

Each is a function of a `whence.Problem` whose model is trained, and returns `Scores`: coefficients (K, T) in the
units of the measured loss, for the same evaluation, attribution and selection as any fitted surrogate.

    influence.py     influence functions: one Newton step (exact, conjugate gradients, LiSSA, EK-FAC)
    tracin.py        TracIn: gradient products at checkpoints, times learning rates
    trak.py          TRAK: the Newton step of the linearised margin, in a random projection
    source.py        SOURCE: unrolling in a few segments of the training
    bif.py           BIF: covariance of losses under a posterior around the trained weights
    joint.py         any of them along one run on all tasks (run.py), as an outcome function to be fused with true runs

    solvers.py       of influence functions               curvature.py     products with Hessian and Gauss–Newton
    krylov.py        systems and functions of a matrix of which only products are known
    ekfac.py         factors of the curvature of layers   mixing.py        R-hat and effective draws
    scores.py        what comes out

Common parameters:

    problem : Problem
        With the model trained on all tasks. Scores are always about the loss.
    weighting : {"sample", "task"}
        Whether all examples of the tasks count equally in the loss, as in a `whence.Recipe` by default, or all tasks
        do, as in the paper. It should be the same as in training.
    normalized : bool
        Whether the weight of a task that is left out goes to the others, as in a mean of losses (True), or not, as in a
        sum. TRAK, as published, does not have it.
    seed : int
        For projections, sketches, batches and chains.

Linear datamodels, tuned and untuned, are `whence.AdditiveSurrogate` itself, fitted to runs.
"""

from whence.baselines.bif import Langevin, bif_scores
from whence.baselines.influence import influence_scores
from whence.baselines.scores import Scores
from whence.baselines.solvers import CG, EKFAC, Exact, LiSSA
from whence.baselines.source import source_scores
from whence.baselines.tracin import tracin_scores
from whence.baselines.trak import trak_scores

__all__ = [
    "CG",
    "EKFAC",
    "Exact",
    "Langevin",
    "LiSSA",
    "Scores",
    "bif_scores",
    "influence_scores",
    "source_scores",
    "tracin_scores",
    "trak_scores",
]
