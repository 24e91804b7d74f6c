"""The recommended prompt: estimates and a few true prompts, fused into a surrogate, and what follows from it.

The whole flow in one call. Estimates of many prompts are fused with prompts that are run; the surrogate says which
demonstrations help and picks a subset; its orders are run where they are few; and the chosen prompt is judged on
queries that it was not chosen by.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from whence.answers.attribution import Attribution, attribute
from whence.answers.interactions import interactions
from whence.answers.prediction import predictions
from whence.answers.rules import Rule
from whence.answers.selection import select
from whence.arrays import Floats
from whence.designs import FixedSize
from whence.errors import InputError, counted
from whence.icl.choice import Judged, explain, judge
from whence.icl.doubts import Doubts, doubts
from whence.icl.estimate import AnchoredPrompts
from whence.icl.language import LanguageModel
from whence.icl.order import best_order
from whence.icl.outcomes import Prompted, PromptOutcomes, Scorer
from whence.icl.prompts import Example, Prompts
from whence.measuring import measure
from whence.surrogates.fit import fit
from whence.surrogates.mixture import Mixture
from whence.surrogates.model import Model

MOST_ORDERS = 24  # that are all run


@dataclass(frozen=True, eq=False)
class Recommendation:
    """The prompt to use, and the evidence for it.

    Attributes
    ----------
    prompts : Prompts
        The candidates, and the queries that the prompt was chosen by.
    sequence : ndarray of shape (shots,)
        The demonstrations of the prompt, as places among the candidates, in their order.
    how : str
        How the order was found.
    loss, low, high : float
        Loss that the surrogate predicts for the prompt, and its 90% interval.
    model : Model
        The surrogate, fitted to estimates and true prompts.
    attribution : Attribution
        What each demonstration does to the loss ("inclusion").
    pairs : Attribution
        What pairs do beyond the sum of each, in prompts of this size.
    judged : Judged
        The prompt compared with others, on queries that it was not chosen by.
    estimate : AnchoredPrompts
        What the estimates were made by; see `explain`.
    doubts : Doubts or None
        What the model says of the labels of the candidates; None where answers are open.
    answers : dict of str to ndarray
        What the chosen prompt gives for each of the queries that it was judged on: loss and accuracy, (Q,).
    held_out : tuple of Example
        These queries.
    """

    prompts: Prompts
    sequence: NDArray[np.intp]
    how: str
    loss: float
    low: float
    high: float
    model: Model
    attribution: Attribution
    pairs: Attribution
    judged: Judged
    estimate: AnchoredPrompts
    doubts: Doubts | None
    answers: dict[str, Floats]
    held_out: tuple[Example, ...]

    @property
    def names(self) -> list[str]:
        """Names of the demonstrations, in their order."""
        return [self.prompts.names[k] for k in self.sequence]

    @property
    def text(self) -> str:
        """The prompt, without a query."""
        return self.prompts.text(self.sequence)

    @property
    def n_run(self) -> int:
        """Number of true prompts that the surrogate was fitted to."""
        return self.model.outcomes.n_runs if self.model.rungs else 0

    def __repr__(self) -> str:
        loss = f"expected loss {self.loss:.4g} (90% interval {self.low:.4g} to {self.high:.4g})"
        return f"Prompt: {', '.join(self.names)}; {loss}; order: {self.how}\n{self.judged}"

    def to_frame(self) -> pd.DataFrame:
        """Return one row per demonstration, the most helpful first, with its text and label."""
        frame = self.attribution.to_frame().drop(columns="target").rename(columns={"task": "name"})
        demos = [self.prompts.demos[self.prompts.names.index(name)] for name in frame["name"]]
        frame.insert(2, "text", [demo.text for demo in demos])
        frame.insert(3, "label", [demo.label for demo in demos])
        return frame

    def explain(self, query: int, *, top: int = 3) -> list[dict[str, Any]]:
        """Return the demonstrations that help one query most and least; see `whence.icl.explain`."""
        return explain(self.estimate, len(self.sequence), query, top=top)


def recommend(
    language: LanguageModel,
    prompts: Prompts,
    held_out: Sequence[Example],
    *,
    shots: int = 4,
    n_true: int = 30,
    n_estimates: int = 500,
    anchors: int = 8,
    path: str | os.PathLike[str] | None = None,
    scorer: Scorer | None = None,
    seed: int = 0,
) -> Recommendation:
    """Return the best prompt with this many demonstrations, and the evidence for it.

    Parameters
    ----------
    language : LanguageModel
    prompts : Prompts
        The candidate demonstrations, and labelled queries to choose by.
    held_out : sequence of Example
        Labelled queries to judge by.
    shots : int
        Demonstrations in a prompt.
    n_true : int
        Prompts to run; 0 for estimates only.
    n_estimates : int
        Prompts to estimate.
    anchors : int
        Anchor prompts of the estimates; each takes a forward and a backward pass per query.
    path : path, optional
        Run folder for the true prompts; created, or resumed if it exists.
    scorer : callable, optional
        ``scorer(generated, answer)`` for open answers; see `Prompted`.
    seed : int
    """
    if len(prompts.demos) <= shots:
        found = counted(len(prompts.demos), "demonstration")
        raise InputError(f"must be less than the number of candidates. Got {shots}, and {found}.", parameter="shots")
    judging = prompts.asking(held_out)
    # Before anything is run: to `measure`, a prompt that is too long is one failed row among others.
    language.check_length(max(prompts.longest(shots), judging.longest(shots)), shots)
    design, total = FixedSize(shots), math.comb(len(prompts.demos), shots)
    estimate = AnchoredPrompts(language, prompts, anchors=anchors, seed=seed)
    estimated = measure(estimate, design, min(n_estimates, total), seed=seed, progress=False)
    truth = Prompted(language, prompts)
    if n_true:
        runs = measure(truth, design, min(n_true, total), path=path, seed=seed + 1, progress=True)
        model = fit(runs, estimates=estimated, seed=seed)
    else:
        model = fit(estimated, seed=seed)
    sequence, how = _chosen(model, truth, estimate, shots, seed)
    top = np.flatnonzero(select(model, size=shots, by="attribution", seed=seed).subset)
    ways = {"chosen": sequence, "top by attribution": top}
    judging_by = Prompted(language, judging, metrics=["loss", "accuracy"], scorer=scorer)
    judged = judge(judging_by, ways, shots=shots, seed=seed)
    subset = np.zeros((1, len(prompts.demos)))
    subset[0, sequence] = 1
    predicted = predictions(model, subset)
    low, high = predicted.interval()
    return Recommendation(
        prompts=prompts,
        sequence=sequence,
        how=how,
        loss=float(predicted.predicted[0, 0]),
        low=float(low[0, 0]),
        high=float(high[0, 0]),
        model=model,
        attribution=attribute(model, "inclusion", seed=seed),
        pairs=_pairs(model, shots, seed),
        judged=judged,
        estimate=estimate,
        doubts=None if prompts.open else doubts(truth, shots=shots, seed=seed),
        answers={"loss": judged.loss["chosen"], "accuracy": judged.accuracy["chosen"]},
        held_out=tuple(held_out),
    )


def _chosen(
    model: Model, truth: Prompted, estimate: AnchoredPrompts, shots: int, seed: int
) -> tuple[NDArray[np.intp], str]:
    """The prompt to use, and how it was found.

    All orders of a few demonstrations are run, since estimates of order are rough; and where a prompt that was run did
    better than the best of these, it is taken: the best prediction of many is often too good to be true.
    """
    listed = np.flatnonzero(select(model, size=shots, seed=seed).subset)
    if not model.rungs:
        return listed, "as listed"
    if math.factorial(len(listed)) <= MOST_ORDERS:
        sequence, loss, how = best_order(_loss_of(truth), listed, seed=seed)
        how += ", by running them"
    else:
        pair = [listed, best_order(_loss_of(estimate), listed, seed=seed)[0]]
        losses = _loss_of(truth)(pair)
        sequence, loss = pair[int(losses.argmin())], float(losses.min())
        how = "as listed or as estimates say, whichever did better when run"
    runs = model.outcomes
    best = int(np.nanargmin(runs.values[:, 0]))
    if runs.values[best, 0] < loss:
        return np.flatnonzero(runs.subsets[best]), f"the best of {counted(runs.n_runs, 'prompt')} that were run"
    return sequence, how


def _loss_of(outcome: PromptOutcomes) -> Any:
    """Mean loss over queries, as a function of prompts."""
    return lambda sequences: outcome.values(sequences)["loss"].mean(1)


def _pairs(model: Model, shots: int, seed: int) -> Attribution:
    """What pairs do beyond the sum of each, in prompts of the size at hand."""
    mixture = Mixture.over([shots / model.outcomes.n_tasks], [1.0])
    prompts = Rule("prompts", "Prompts", "", "in prompts of this size", lambda subsets, keep_prob: mixture)
    return interactions(model, prompts, seed=seed)
