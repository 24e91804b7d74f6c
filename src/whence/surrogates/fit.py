"""``whence.fit``: average surrogates by how they cross-validate, say how good that is, and hand back a :class:`Model`.

Targets measured in different runs are different tables: each such group gets its own surrogate. All weights look at the
training runs only. Beside true runs, ``fit`` takes estimates of many more subsets (:mod:`.rungs`, :mod:`.fused`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from whence.errors import DataWarning, InputError, some_of
from whence.evaluation import SizeOnly
from whence.outcomes import Outcomes, distinct_rows, read_outcomes
from whence.outcomes.sizes import refuse_extreme, refuse_too_large
from whence.progress import track
from whence.surrogates.additive import AdditiveSurrogate
from whence.surrogates.averaged import (
    AVERAGE,
    OUTRIGHT,
    AveragedSurrogate,
    fitted_average,
    power,
    power_beside_estimates,
)
from whence.surrogates.combined import CombinedSurrogate
from whence.surrogates.components import ComponentsSurrogate
from whence.surrogates.crossvalidation import (
    FEWEST_TO_CHECK,
    SMALL,
    Held,
    Trial,
    averaged_trial,
    cross_validated,
    fitted,
    held_runs,
    shared_trial,
)
from whence.surrogates.features import task_features
from whence.surrogates.kernel import KernelSurrogate
from whence.surrogates.kernels import Array
from whence.surrogates.model import COMPONENTS, SIZE_ONLY, TRUE_RUNS, Model, Part
from whence.surrogates.protocol import Surrogate
from whence.surrogates.rank_fused import ESTIMATES, FUSED, RANK_FUSED, fusion_candidates
from whence.surrogates.rungs import Rung, learn_rungs
from whence.surrogates.trust import FEWEST_TO_FUSE

if TYPE_CHECKING:
    import pandas as pd

CANDIDATES: Mapping[str, Any] = {
    "additive": AdditiveSurrogate("ridge"),
    "kernel": CombinedSurrogate("raw"),
    "kernel on ranks": CombinedSurrogate("rank"),
}
# Weights before any run. The kernels contain "additive" and predict better than it on most tables. The fused surrogates
# contain "estimates" and "kernel": they learn by themselves what estimates are worth, and a few held-out runs are a
# worse judge of that. On ranks, one run that is far off does not decide what estimates are worth.
PRIOR = {"additive": 0.25, FUSED: 5.0, RANK_FUSED: 60.0, ESTIMATES: 20.0}
FEWEST_RUNS = 3
# This many targets can help each other while runs are few; with many runs, each target has enough of its own.
FEWEST_TO_SHARE = 10
COPIES = 8  # of the table that are held at the same time
MOST_RUNS = 100_000  # that surrogates are averaged over: about three minutes of a processor
LARGE = "Without it, large tables are fitted through inducing points."


def fit(
    runs: Outcomes | pd.DataFrame | str | os.PathLike[str],
    *,
    estimates: Any = None,
    features: Any = None,
    surrogate: Any = None,
    n_folds: int | Literal["auto"] | None = "auto",
    seed: int = 0,
    **reading: Any,
) -> Model:
    """Return a :class:`Model` of the outcomes: surrogates averaged by how well each predicts held-out runs.

    Parameters
    ----------
    runs : Outcomes, DataFrame or path
        Rows with a missing outcome are used for the targets they have. Mixture weights, as shares or percent, are
        scaled to sum to 1.
    estimates : Outcomes, Model, outcome function, or mapping of names to these, optional
        Cheap estimates of the same targets for many more subsets. The runs are then the truth that estimates are
        compared with; a few are enough, and none is possible. A Model must be fitted to estimates; an outcome function
        (`whence.TaskVectors`, `whence.OneStep`, …) is called at the subsets of the runs and at others like them.
    features : DataFrame, optional
        Descriptions of the tasks: a row per task (named by the index or a column "task") with labels, sizes, embeddings
        or other numbers. Tasks with similar features are expected to have similar effects, unless the runs disagree.
    surrogate : str or scikit-learn regressor, optional
        Use this one instead of an average: "additive", "kernel", "kernel on ranks", or your own regressor. It is still
        cross-validated.
    n_folds : int, "auto" or None
        Folds of the cross-validation, split by distinct subset. "auto": leave-one-out up to 12 subsets, 10
        folds up to 60, 5 for more. None fits the given surrogate without cross-validation.
    seed : int
        Of the folds.
    **reading
        How to read a DataFrame or a file: ``outcomes``, ``tasks``, ``ignore``, ``maximize`` and the others of
        `whence.read_outcomes`.

    Examples
    --------
    >>> import whence
    >>> S = whence.Exhaustive().draw(5)
    >>> runs = whence.Outcomes(subsets=S, values=S[:, 0] - S[:, 1] * S[:, 2], task_names=list("abcde"))
    >>> model = whence.fit(runs)
    >>> model.predict([["a"], ["a", "b", "c"]]).round(1).ravel().tolist()
    [1.0, 0.0]

    With four true runs, and estimates of all subsets that are half as large as the truth:

    >>> true_runs = whence.Outcomes(S[::8], 2 * runs.values[::8], task_names=list("abcde"))
    >>> whence.fit(true_runs, estimates=runs).predict([["a"], ["b", "c"]]).round(0).ravel().tolist()
    [2.0, -2.0]
    """
    if n_folds is None and surrogate is None and estimates is None:
        raise InputError("Without cross-validation (n_folds=None) surrogates cannot be weighted. Give one.")
    if n_folds not in ("auto", None) and not (isinstance(n_folds, int) and n_folds >= 2):
        raise InputError(f"must be at least 2, 'auto' or None. Got {n_folds!r} instead.", parameter="n_folds", of="fit")
    if surrogate is not None and estimates is not None:
        raise InputError("With estimates, the surrogate is the fused one: give 'estimates' or 'surrogate', not both.")
    outcomes = _table(runs, reading).on_simplex()
    measured = ~np.isnan(outcomes.values)
    refuse_extreme(outcomes.values, outcomes.target_names)
    candidates = _candidates(surrogate)
    width = outcomes.n_tasks + outcomes.n_targets
    refuse_too_large("A fit", outcomes.n_runs, "runs", lambda n: 8.0 * COPIES * width * n)
    if estimates is not None or any(isinstance(one, KernelSurrogate) for one in candidates.values()):
        n_subsets = len(distinct_rows(outcomes.subsets)[0])
        kind = "with estimates" if surrogate is None else "by a KernelSurrogate"
        refuse_too_large(f"A fit {kind}", n_subsets, "distinct subsets", lambda n: 24.0 * n * n, remedy=LARGE)
    if surrogate is None and outcomes.n_runs > MOST_RUNS:
        outcomes = _sampled(outcomes, seed)
        measured = ~np.isnan(outcomes.values)
    rungs: tuple[Rung, ...] = ()
    if estimates is None:
        _refuse_unanswerable(outcomes, measured)
        for sentence in outcomes.concerns():
            warnings.warn(sentence, DataWarning, stacklevel=2)
    else:
        rungs = learn_rungs(estimates, outcomes, seed=seed)
    if features is not None:
        candidates = _with_features(candidates, task_features(features, outcomes.task_names))
    patterns, which = np.unique(measured.T, axis=0, return_inverse=True)
    parts = []
    for index in track(range(len(patterns)), "Fitting targets"):
        targets = np.flatnonzero(which.ravel() == index)
        table = outcomes.rows(patterns[index]).targets([outcomes.target_names[t] for t in targets])
        fusion = fusion_candidates(rungs, targets) if rungs else {}
        parts.append(_fit_part(table, targets, candidates, fusion, n_folds, seed))
    return Model(outcomes, tuple(parts), rungs)


def _sampled(runs: Outcomes, seed: int) -> Outcomes:
    """Return a random sample of a table that is too large to fit in minutes."""
    warnings.warn(
        f"The fit uses a random {MOST_RUNS:,} of {runs.n_runs:,} runs: all of them would take hours and add little.",
        DataWarning,
        stacklevel=3,
    )
    return runs.rows(np.sort(np.random.default_rng(seed).choice(runs.n_runs, MOST_RUNS, replace=False)))


def _table(runs: Any, reading: Mapping[str, Any]) -> Outcomes:
    """The table itself, or that of a DataFrame or a file, read as was asked for."""
    if not isinstance(runs, Outcomes):
        return read_outcomes(runs, **reading)
    if reading:
        raise InputError(f"Options for reading files do not apply to a table: leave out {some_of(reading)}.")
    return runs


def _candidates(surrogate: Any) -> dict[str, Any]:
    """What to average, by name: all candidates, or the one that was asked for."""
    if surrogate is None:
        return dict(CANDIDATES)
    if not isinstance(surrogate, str):
        return {type(surrogate).__name__: surrogate}
    if surrogate not in CANDIDATES:
        raise InputError(
            f"must be a regressor or one of {', '.join(map(repr, CANDIDATES))}. Got {surrogate!r} instead.",
            parameter="surrogate",
            of="fit",
        )
    return {surrogate: CANDIDATES[surrogate]}


def _with_features(candidates: Mapping[str, Any], features: Array) -> dict[str, Any]:
    """The candidates, with task features for the additive ones."""
    if not any(isinstance(each, AdditiveSurrogate) for each in candidates.values()):
        raise InputError("The 'features' of fit go with its own average, or with surrogate='additive'.")
    return {
        name: clone(each).set_params(features=features) if isinstance(each, AdditiveSurrogate) else each
        for name, each in candidates.items()
    }


def _fit_part(
    table: Outcomes,
    targets: NDArray[np.intp],
    candidates: Mapping[str, Any],
    fusion: Mapping[str, Any],
    n_folds: int | str | None,
    seed: int,
) -> Part:
    """Fit the candidates to complete runs and average them by how they cross-validate."""
    held = (
        None
        if n_folds is None
        else held_runs(table, n_folds, seed, fewest=FEWEST_TO_FUSE if fusion else FEWEST_TO_CHECK, alone=not fusion)
    )
    if held is None:
        name, candidate = _unchecked(candidates, fusion, len(targets))
        return Part(targets, fitted(candidate, table), name, ())
    tuned: dict[str, Any] = {}
    if held.n_subsets > SMALL:
        # Fitted to all runs first: in every fold, tuning begins with their hyperparameters, which is faster.
        tuned = {name: fitted(each, table) for name, each in candidates.items() if isinstance(each, CombinedSurrogate)}
        starts = {name: clone(candidates[name]).set_params(start=each.tuned_) for name, each in tuned.items()}
        candidates = {**candidates, **starts}
    every = {**fusion, **candidates}
    makers: dict[str, Callable[[Outcomes], Any]] = {SIZE_ONLY: SizeOnly.fit}
    makers.update({name: partial(_fitted_unseen, each) for name, each in every.items()})
    trials = {name: cross_validated(name, make, held) for name, make in track(list(makers.items()), "Cross-validating")}
    weights = np.ones((1, len(targets)))
    if len(every) > 1:
        trials[AVERAGE], weights = _averaged(AVERAGE, every, trials, held)
    if fusion:
        trials[TRUE_RUNS], _ = _averaged(TRUE_RUNS, candidates, trials, held)
    elif len(every) > 1 and len(targets) >= FEWEST_TO_SHARE and held.n_subsets <= SMALL:
        every = {**every, COMPONENTS: ComponentsSurrogate()}
        trials[COMPONENTS] = cross_validated(COMPONENTS, partial(fitted, every[COMPONENTS]), held)
        trials[AVERAGE], share = shared_trial(AVERAGE, trials[AVERAGE], trials[COMPONENTS], held)
        weights = np.vstack([(1 - share) * weights, np.full(len(targets), share)])
    name, surrogate = fitted_average(
        list(every), weights, lambda member: tuned.get(member) or fitted(every[member], table)
    )
    return Part(targets, surrogate, name, tuple(trials.values()))


def _unchecked(candidates: Mapping[str, Any], fusion: Mapping[str, Any], n_targets: int) -> tuple[str, Any]:
    """What to fit where nothing can be held out: estimates if there are any, else all candidates."""
    if fusion:
        return ESTIMATES, fusion[ESTIMATES]
    if len(candidates) == 1:
        return next(iter(candidates.items()))
    return AVERAGE, AveragedSurrogate(candidates, np.repeat(_prior(candidates)[:, None], n_targets, axis=1))


def _prior(members: Mapping[str, Any]) -> Array:
    """The weights (C,) of members before any run; what is known of the tasks is known to the additive one alone."""
    weights = [
        1.0 if getattr(member, "features", None) is not None else PRIOR.get(name, 1.0)
        for name, member in members.items()
    ]
    return np.array(weights) / sum(weights)


def _averaged(name: str, members: Mapping[str, Any], trials: Mapping[str, Trial], held: Held) -> tuple[Trial, Array]:
    own = [trials[member] for member in members]
    if ESTIMATES in members:
        return averaged_trial(name, own, _prior(members), power_beside_estimates, held)
    return averaged_trial(name, own, _prior(members), power, held, OUTRIGHT)


def _fitted_unseen(candidate: Any, table: Outcomes) -> Any:
    """The candidate fitted to the table, for subsets that it must not know the estimates of either."""
    surrogate = fitted(candidate, table)
    return surrogate.unseen() if isinstance(surrogate, Surrogate) else surrogate


def _refuse_unanswerable(outcomes: Outcomes, measured: NDArray[np.bool_]) -> None:
    counts = measured.sum(0)
    empty = [name for name, count in zip(outcomes.target_names, counts, strict=True) if count == 0]
    if empty:
        raise InputError(f"No run has a measured value of {some_of(empty)}. Leave the target out, or measure it.")
    few = [name for name, count in zip(outcomes.target_names, counts, strict=True) if count < FEWEST_RUNS]
    if few:
        raise InputError(f"At least {FEWEST_RUNS} measured runs are needed. Got fewer for {some_of(few)}.")
    if len(distinct_rows(outcomes.subsets)[0]) < 2:
        raise InputError("All runs have the same subset of tasks: nothing can be said about any task. Vary the tasks.")
