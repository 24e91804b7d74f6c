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
    ekfac.py         factors of the curvature of layers   mixing.py        R-hat and effective draws
    scores.py        what comes out

What all of them take; the docstring of each has what is its own:

    model : nn.Module
        As trained on all tasks. It is never changed.
    tasks : mapping of str to (inputs, labels) or Dataset
    targets : (inputs, labels), Dataset, or mapping of str to those
    loss : {"cross_entropy", "logistic", "squared"} or Loss
    per_query : bool
        Whether every query is a target of its own, instead of their mean.
    params : str, iterable of str or callable, optional
        Which parameters move; those that require a gradient where not given.
    weighting : {"task", "sample"}
        Whether tasks count equally in the loss, as in the paper, or their examples do.
    normalized : bool
        Whether a task that is left out leaves its weight to the others, as in a mean of losses; not so in a sum.
        (Not of TRAK, whose publication does not ask.)
    seed : int
        Of what is random: projections, sketches, batches, chains.
    device : str or device, optional
        Where to work; that of the model where not given.

Linear datamodels, tuned and untuned, are `whence.AdditiveSurrogate` itself, fitted to runs.
"""

from whence.baselines.bif import bif_scores
from whence.baselines.influence import influence_scores
from whence.baselines.scores import Scores
from whence.baselines.source import source_scores
from whence.baselines.tracin import tracin_scores
from whence.baselines.trak import trak_scores

__all__ = ["Scores", "bif_scores", "influence_scores", "source_scores", "tracin_scores", "trak_scores"]
