"""Baselines: the methods that give every task one score, as additive surrogates with given coefficients.

Each is a function of a trained model, its tasks and its targets, and returns `Scores`: coefficients (K, T) in the
units of the measured loss, for the same evaluation, attribution and selection as any fitted surrogate.

    influence.py     influence functions: one Newton step (exact, conjugate gradients, LiSSA, EK-FAC)
    tracin.py        TracIn: gradient products at checkpoints, times learning rates
    trak.py          TRAK: the Newton step of the linearised margin, in a random projection
    source.py        SOURCE: unrolling in a few segments of the training
    bif.py           BIF: covariance of losses under a posterior around the trained weights

    slopes.py        gradients of tasks and targets       curvature.py     products with Hessian and Gauss–Newton
    krylov.py        systems and functions of a matrix of which only products are known
    ekfac.py         curvlinops' EK-FAC                    mixing.py        R-hat and effective draws
    scores.py        what comes out

Linear datamodels, tuned and untuned, are `whence.AdditiveSurrogate` itself, fitted to runs.
"""

from whence.baselines.bif import bif_scores
from whence.baselines.influence import influence_scores
from whence.baselines.scores import Scores
from whence.baselines.source import source_scores
from whence.baselines.tracin import tracin_scores
from whence.baselines.trak import trak_scores

__all__ = ["Scores", "bif_scores", "influence_scores", "source_scores", "tracin_scores", "trak_scores"]
