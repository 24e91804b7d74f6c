"""All numbers of a page, collected from a model into one document of plain values and packed arrays.

The middle of the report: :mod:`whence.display.report.page` writes this document into the page, whose scripts draw it.
All fits and searches happen here, once.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

import whence
from whence.answers.attribution import UNCLEAR, Attribution
from whence.answers.interactions import pair_work
from whence.answers.rules import Rule
from whence.display.layout import UNCLEAR as UNCLEAR_WORD
from whence.display.layout import direction
from whence.display.numbers import decimals
from whence.display.pages import SCORES
from whence.display.report.answer import CURVE_RUNS, Facts, answer, facts_of, next_in_words
from whence.display.report.export import exported
from whence.display.report.goal import MeanOfTargets, goal_of, selection_for_goal, with_goal
from whence.display.report.packing import Document, pack, pack_intervals, pack_shown
from whence.errors import DataWarning, InputError, counted, some_of
from whence.evaluation import Ceiling, LearningCurve, learning_curve, noise_ceiling
from whence.evaluation.statistics import Floats, rounding
from whence.outcomes import Outcomes
from whence.outcomes.sizes import refuse_too_large
from whence.outcomes.text import write_text
from whence.progress import track
from whence.surrogates.averaged import AVERAGE
from whence.surrogates.model import DESCRIPTIONS, SIZE_ONLY, TRUE_RUNS, Model, Part
from whence.surrogates.posterior import HALF_WIDTH
from whence.surrogates.trust import trust_in_estimates

SUGGESTIONS = 10
CURVE_SPLITS = 3
MATRIX_TASKS = 60  # tasks of an interaction matrix that a person can still read
PARTNERS = 3  # kept of each task beyond the matrix
PAIR_WORK = 2e11  # multiplications that all pairs may cost: about half a minute
PAGE_TARGETS = 300  # targets that a page shows: of more, those that are predicted best
PAGE_BYTES = 30e6  # that the runs may take of a page
PAIR_TARGETS = 40  # targets whose pairs are in the page
SAME_TOTAL = 0.01  # rounded weights add up to the same within this share of it
TRIAL_SCORES = ("lds", "residual_error", "coverage")
SEARCHING = "Searching for the best subsets"
METHODS = {"additive": "tuned linear", SIZE_ONLY: "subset size alone"}


def collect(
    model: Model, *, rule: str | Rule | None = None, weights: Mapping[str, float] | None = None, seed: int = 0
) -> Document:
    """Return the document of the page of a model; see `whence.report`.

    The page also shows a mean of the targets: with ``weights``, or plain.
    """
    if not model.outcomes.n_runs:
        raise InputError("A report needs the runs that the model was fitted to. Give a model made by whence.fit.")
    refuse_too_large(
        "A page",
        model.outcomes.n_runs,
        "runs",
        lambda n: n * (model.outcomes.n_tasks / 8 + 8 * min(model.outcomes.n_targets, PAGE_TARGETS)),
        free=PAGE_BYTES,
        of="a page",
    )
    steps = track(range(7), "Writing the report")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        model = _best_predicted(model, seed)
        goal = goal_of(model, weights)
        shown = model if goal is None else with_goal(model, goal)
        next(steps)
        scores = whence.attribute(shown, rule, seed=seed)
        next(steps)
        pairs = _pairs(shown, seed)
        next(steps)
        ceiling, curve = noise_ceiling(shown.outcomes, seed=seed), _curve(model, seed)
        next(steps)
        found = [whence.select(model, target=name, seed=seed) for name in track(model.target_names, SEARCHING)]
        found += [] if goal is None else [selection_for_goal(model, shown, weights, seed)]
        known = [facts_of(shown, t, each, ceiling=ceiling, curve=curve) for t, each in enumerate(found)]
        next(steps)
        to_measure = _next(model, shown, known[0], seed)
        next(steps)
        surrogates = exported(shown, seed=seed)
        next(steps)
        next(steps, None)
    told = []
    for warning in caught:
        if issubclass(warning.category, DataWarning):
            told.append(str(warning.message))  # said in the page
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return {
        "runs": _runs(model) | {"values": pack(shown.outcomes.values.T)},
        "targets": [
            _target(facts, model.outcomes, scores) | {"bounds": [end if np.isfinite(end) else None for end in ends]}
            for facts, ends in zip(known, shown.outcomes.bounds, strict=True)
        ],
        "attribution": _attribution(scores),
        "pairs": pairs,
        "trust": _trust(shown, known, ceiling, curve) | {"estimates": trust_in_estimates(model) if model.rungs else ""},
        "next": to_measure,
        "surrogates": surrogates,
        "concerns": list(dict.fromkeys([*model.outcomes.concerns(), *told])),
    }


def _best_predicted(model: Model, seed: int) -> Model:
    """The model, reduced to the targets that it predicts best if there are very many."""
    runs = model.outcomes
    if runs.n_targets <= PAGE_TARGETS:
        return model
    if model.rungs:
        raise InputError(
            f"A page shows at most {PAGE_TARGETS} targets with estimates. Got {runs.n_targets:,}: choose some with "
            "--outcome."
        )
    skill = np.full(runs.n_targets, -np.inf)
    for part in model.parts:
        if part.chosen is not None:
            skill[part.targets] = np.nan_to_num(part.chosen.lds, nan=-np.inf)
    best = np.sort(np.argsort(-skill, kind="stable")[:PAGE_TARGETS])
    warnings.warn(
        f"The page has {PAGE_TARGETS} of {runs.n_targets:,} targets, those whose held-out runs are predicted best. "
        "Choose others with --outcome.",
        DataWarning,
        stacklevel=2,
    )
    custom = next((part for part in model.parts if part.name not in DESCRIPTIONS), None)
    surrogate = None if custom is None else clone(custom.surrogate)
    return whence.fit(runs.targets([runs.target_names[t] for t in best]), surrogate=surrogate, seed=seed)


def _runs(model: Model) -> Document:
    runs = model.outcomes
    rungs = [f"{rung.name} ({counted(rung.model.outcomes.n_runs, 'subset')})" for rung in model.rungs]
    return {
        "version": whence.__version__,
        "source": runs.provenance.get("source", ""),
        "description": repr(runs).removeprefix("Outcomes: ") + (f"; with estimates: {some_of(rungs)}" if rungs else ""),
        "count": runs.n_runs,
        "binary": runs.is_binary,
        "total": _total(runs),
        "tasks": list(runs.task_names),
        "subsets": pack(runs.subsets, "bits" if runs.is_binary else "f64"),
    }


def _total(runs: Outcomes) -> float | None:
    """Common sum of the weights of every run, up to rounding (99.8 to 100.1); None for 0/1 tasks and free weights."""
    totals = runs.subsets.sum(1)
    if runs.is_binary or np.ptp(totals) > SAME_TOTAL * np.median(totals):
        return None
    return float(np.median(totals))


# ---- what tasks and pairs do -----------------------------------------------------------------------------


def _attribution(scores: Attribution) -> Document:
    n_targets, numbers = len(scores.target_names), (scores.scores, *scores.interval())
    return {
        "heading": scores.rule.heading,
        "what": scores.rule.words,
        "how": scores.how,
        "words": [*scores.words, UNCLEAR_WORD],
        "places": [_places(scores.scores[:, t], scores.std[:, t]) for t in range(n_targets)],
        **{name: pack(array.T, "f32") for name, array in zip(("score", "low", "high"), numbers, strict=True)},
        "verdict": pack(_codes(scores).T, "u8"),
    }


def _codes(found: Attribution) -> Floats:
    """Verdicts as numbers: 0 good, 1 bad, 2 unclear."""
    words = found.verdicts()
    return np.where(words == UNCLEAR, 2, np.where(words == found.words[0], 0, 1))


def _places(scores: Floats, std: Floats) -> int:
    return decimals(std if np.isfinite(std).any() else scores)


def _pairs(model: Model, seed: int) -> Document:
    runs = model.outcomes
    if runs.n_tasks < 2:
        return {"reason": "With a single task there are no pairs."}
    if runs.n_tasks**2 * pair_work(model) > PAIR_WORK:
        return {
            "reason": "All pairs of this many tasks would take long to compute. "
            "Ask for one target at a time: whence interactions FILE --outcome NAME."
        }
    pairs = whence.interactions(model, seed=seed)
    return {
        "heading": pairs.rule.heading,
        "what": f"what the two do beyond the sum of each, {pairs.rule.others}",
        "how": pairs.how,
        "words": [*pairs.words, UNCLEAR_WORD],
        "targets": _pairs_of_targets(pairs),
    }


def _pairs_of_targets(pairs: Attribution) -> list[Document]:
    """For each target, scores and intervals of pairs with the decimals they are shown with."""
    (low, high), codes = pairs.interval(), _codes(pairs)
    found = []
    for target in range(min(len(pairs.target_names), PAIR_TARGETS)):
        order, at = _readable(pairs, target)
        places = _places(pairs.scores[at], pairs.std[at])
        listed = {"a": pack(at[0], "u32"), "b": pack(at[1], "u32")} if len(order) < len(pairs.task_names) else {}
        found.append(
            {
                **listed,  # all pairs, row by row, where they are not given
                "order": order,
                "places": places,
                **pack_intervals(pairs.scores[at], low[at], high[at], places),
                "verdict": pack(codes[at], "u8"),
            }
        )
    return found


def _readable(pairs: Attribution, target: int) -> tuple[list[int], tuple[NDArray[np.intp], NDArray[np.intp], int]]:
    """The tasks of the matrix in order, and the pairs to send: all, or the strongest if there are many tasks.

    Every task beyond the matrix keeps its strongest partners.
    """
    scores = pairs.scores[:, :, target]
    n_tasks = len(scores)
    order = [int(k) for k in pairs.clustered(target)]
    first, second = np.triu_indices(n_tasks, 1)
    if n_tasks <= MATRIX_TASKS:
        return order, (first, second, target)
    strongest = np.argsort(-np.abs(scores[first, second]), kind="stable")
    in_order = dict.fromkeys(np.column_stack([first[strongest], second[strongest]]).ravel().tolist())
    members = set(list(in_order)[:MATRIX_TASKS])
    inside = np.isin(np.arange(n_tasks), list(members))
    partners = np.argsort(-np.abs(scores), axis=1, kind="stable")[:, :PARTNERS]
    wanted = np.zeros((n_tasks, n_tasks), dtype=bool)
    wanted[np.repeat(np.arange(n_tasks), PARTNERS), partners.ravel()] = True
    kept = (inside[first] & inside[second]) | wanted[first, second] | wanted[second, first]
    return [k for k in order if k in members], (first[kept], second[kept], target)


# ---- targets, trust, what next ---------------------------------------------------------------------------


def _target(facts: Facts, runs: Outcomes, scores: Attribution) -> Document:
    return {
        "name": facts.target,
        "up": facts.up,
        "direction": direction(facts.up),
        "measured": facts.target in runs.target_names,
        "answer": answer(facts, runs, scores),
    }


def _held_out(model: Model, known: list[Facts]) -> list[Document]:
    """For each target, the held-out runs, their predictions, and the errors in stds."""
    predicted, std = model.held_out()
    least = rounding(model.outcomes.values)
    found = []
    for t, facts in enumerate(known):
        runs = np.flatnonzero(np.isfinite(predicted[:, t]))
        mean, spread = predicted[runs, t], std[runs, t]
        low, high = np.clip([mean - HALF_WIDTH * spread, mean + HALF_WIDTH * spread], *model.outcomes.bounds[t])
        off = np.abs(model.outcomes.values[runs, t] - mean) / np.maximum(spread, max(least[t], 1e-300))
        found.append(
            {
                "runs": pack(runs, "u32"),
                **pack_intervals(mean, low, high, facts.places),
                "off": pack_shown(off, 1),
                "outside": pack(off > HALF_WIDTH, "bits"),
                "widest": float(np.fmax.reduce(spread, initial=0.0)),
            }
        )
    return found


def _trust(model: Model, known: list[Facts], ceiling: Ceiling, curve: LearningCurve | None) -> Document:
    return {
        "held_out": _held_out(model, known),
        "methods": _methods(model),
        "legend": SCORES,
        "ceiling": {"value": ceiling.per_target, "low": ceiling.low, "high": ceiling.high, "reason": ceiling.reason},
        "curve": None
        if curve is None
        else {"sizes": curve.sizes, "mean": curve.mean, "low": curve.lds.min(axis=1), "high": curve.lds.max(axis=1)},
    }


def _methods(model: Model) -> list[Document]:
    """Every surrogate tried, with its weight and cross-validated scores per target; the used ones first."""
    rows: dict[str, Document] = {}
    for part in model.parts:
        for trial in part.trials:
            shown = METHODS.get(trial.name, trial.name)
            row = rows.setdefault(
                trial.name,
                {
                    "name": shown,
                    "what": DESCRIPTIONS.get(trial.name, ""),
                    "used": np.zeros(len(model.target_names), dtype=bool),
                    "weight": np.full(len(model.target_names), np.nan),
                    **{score: np.full(len(model.target_names), np.nan) for score in (*TRIAL_SCORES, "low", "high")},
                },
            )
            row["used"][part.targets] = trial.name == part.name
            row["weight"][part.targets] = _weight(part, trial.name)
            for score in TRIAL_SCORES:
                row[score][part.targets] = getattr(trial, score)
            row["low"][part.targets], row["high"][part.targets] = trial.interval.low, trial.interval.high
    return sorted(rows.values(), key=lambda row: (not row["used"].any(), -np.nan_to_num(row["lds"], nan=-1).mean()))


def _weight(part: Part, name: str) -> Floats | float:
    """Weight of a surrogate for the targets of a part: 0 if it was left out, NaN if weights do not apply."""
    without = name in (AVERAGE, SIZE_ONLY, TRUE_RUNS) or isinstance(part.surrogate, MeanOfTargets)
    return np.nan if without else part.weights.get(name, 0.0)


def _curve(model: Model, seed: int) -> LearningCurve | None:
    """The learning curve of the surrogate chosen for most targets; None with too few runs, or very many."""
    if model.outcomes.n_runs > CURVE_RUNS:
        return None
    surrogate = max(model.parts, key=lambda part: len(part.targets)).surrogate

    def method(train: Outcomes) -> Model:
        return whence.fit(train, surrogate=clone(surrogate), n_folds=None).unseen()

    try:
        # Of parts of the runs, when all of them have been spoken of.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            return learning_curve(model.outcomes, method, n_splits=CURVE_SPLITS, seed=seed)
    except InputError:
        return None


def _next(model: Model, shown: Model, facts: Facts, seed: int) -> Document:
    """Runs worth making, as a table and as a file of runs to fill in."""
    reason = ""
    for n in (SUGGESTIONS, 5, 2, 1):
        try:
            found = whence.suggest(model, n, seed=seed)
        except InputError as error:
            reason = str(error)
            continue
        runs = model.outcomes
        file = BytesIO()
        write_text(replace(runs, subsets=found.subsets, values=np.full((n, runs.n_targets), np.nan)), file, "csv")
        predicted, std = shown.predict_quietly(found.subsets, return_std=True)
        return {
            "words": next_in_words(facts, n),
            "subsets": pack(found.subsets, "bits" if runs.is_binary else "f64"),
            "predicted": pack(predicted.T, "f32"),
            "std": pack(std.T, "f32"),
            "csv": file.getvalue().decode(),
        }
    return {"reason": reason}
