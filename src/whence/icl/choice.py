"""Choice: what each demonstration does for a query, and a chosen prompt compared with its rivals.

The end of the flow. A prompt is chosen on some queries and judged on others, by running it: compared with random
prompts, with the nearest demonstrations of each query by sentence embedding, and with none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch.nn.utils.rnn import pad_sequence

from whence.arrays import Floats
from whence.errors import InputError
from whence.icl.estimate import AnchoredPrompts
from whence.icl.outcomes import Prompted

DRAWS = 2000  # resamples of the queries for an interval


def explain(estimate: AnchoredPrompts, shots: int, query: int, *, top: int = 3) -> list[dict[str, Any]]:
    """Demonstrations that help a query most, and those that hurt it most, as in the paper's qualitative table.

    Parameters
    ----------
    estimate : AnchoredPrompts
    shots : int
        How many demonstrations a prompt has.
    query : int
        Its place among the queries.
    top : int
        How many at either end.

    Returns
    -------
    list of dict
        The most helpful first: ``demo``, ``text``, ``label``, and ``score``, the change of the margin of the right
        label when this demonstration stands in the place of an average one.
    """
    prompts = estimate.prompts
    if not 0 <= query < len(prompts.queries):
        raise InputError(f"There is no query {query}. They are counted from 0 to {len(prompts.queries) - 1}.")
    scores = estimate.effects(shots)[:, query]
    order = np.argsort(-scores, kind="stable")
    ends = order if len(order) <= 2 * top else np.concatenate([order[:top], order[-top:]])
    return [
        {"demo": demo.name, "text": demo.text, "label": demo.label, "score": float(scores[k])}
        for k, demo in ((k, prompts.demos[k]) for k in ends)
    ]


def sentence_vectors(encoder: Any, tokenizer: Any, texts: Sequence[str], *, batch_size: int = 64) -> Floats:
    """Unit vectors (n, d) of texts: the mean over tokens of the last hidden states of an encoder.

    Parameters
    ----------
    encoder : transformers.PreTrainedModel
        Such as all-MiniLM-L6-v2; a causal model will do where there is none.
    tokenizer : transformers tokenizer
    texts : sequence of str
    batch_size : int
    """
    found = []
    device = next(encoder.parameters()).device
    rows = [torch.as_tensor(tokenizer(text).input_ids, device=device) for text in texts]
    for start in range(0, len(rows), batch_size):
        part = rows[start : start + batch_size]
        tokens = pad_sequence(part, batch_first=True)
        mask = pad_sequence([torch.ones_like(row) for row in part], batch_first=True)
        with torch.inference_mode():
            hidden = encoder(input_ids=tokens, attention_mask=mask).last_hidden_state.float()
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        found.append(torch.nn.functional.normalize(mean, dim=1).double().cpu().numpy())
    return np.concatenate(found)


def nearest(demos: ArrayLike, queries: ArrayLike, shots: int) -> list[NDArray[np.intp]]:
    """Demonstrations nearest to each query by the cosine of their vectors, the nearest last (Liu et al., 2022).

    Parameters
    ----------
    demos, queries : array-like of shape (K, d) and (Q, d)
    shots : int

    Examples
    --------
    >>> [row.tolist() for row in nearest([[1, 0], [0, 1], [1, 1]], [[1, 0.1]], 2)]
    [[2, 0]]
    """
    first, second = (np.asarray(rows, dtype=np.float64) for rows in (demos, queries))
    cosine = (second @ first.T) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)[:, None]
    return list(np.argsort(cosine, axis=1, kind="stable")[:, -shots:])


@dataclass(frozen=True, eq=False)
class Judged:
    """What prompts did on queries that they were not chosen by.

    Attributes
    ----------
    loss, accuracy : dict of str to ndarray of shape (Q,)
        Of every way to choose; the mean over prompts where they are random.
    """

    loss: dict[str, Floats]
    accuracy: dict[str, Floats]

    def __str__(self) -> str:
        return self.to_frame().round(4).to_string(index=False)

    def to_frame(self, *, level: float = 0.95, seed: int = 0) -> pd.DataFrame:
        """Return one row per way: loss, accuracy, and by how much its loss exceeds that of the first way.

        The interval is over queries, which are resampled in pairs.
        """
        first = next(iter(self.loss.values()))
        draws = np.random.default_rng(seed).integers(len(first), size=(DRAWS, len(first)))
        rows = []
        for way, loss in self.loss.items():
            gap = loss - first
            low, high = np.quantile(gap[draws].mean(1), [(1 - level) / 2, (1 + level) / 2])
            row = {"prompt": way, "loss": float(loss.mean()), "accuracy": float(self.accuracy[way].mean())}
            rows.append(row | {"more_loss": float(gap.mean()), "low": float(low), "high": float(high)})
        return pd.DataFrame(rows)


def judge(
    truth: Prompted,
    chosen: Mapping[str, ArrayLike],
    *,
    shots: int,
    neighbours: Sequence[ArrayLike] | None = None,
    n_random: int = 10,
    seed: int = 0,
) -> Judged:
    """Run chosen prompts and random ones on the queries of ``truth``, which should not be those they were chosen by.

    Parameters
    ----------
    truth : Prompted
        With the candidates, and queries to judge by.
    chosen : mapping of str to sequence of int
        Prompts by the way they were chosen; the first is what the others are compared with.
    shots : int
        Demonstrations of random prompts.
    neighbours : sequence of prompts, optional
        One for each query, as from `nearest`.
    n_random : int
        Random prompts, over which that row is averaged.
    seed : int
        Of the random prompts.
    """
    if not chosen:
        raise InputError("There must be at least one prompt to judge. Got none.")
    prompts = {way: [sequence] for way, sequence in chosen.items()}
    if n_random:
        rng = np.random.default_rng(seed)
        drawn: list[ArrayLike] = [rng.choice(len(truth.task_names), shots, replace=False) for _ in range(n_random)]
        prompts[f"random ({n_random} prompts)"] = drawn
    prompts["no demonstration"] = [[]]
    found = {way: truth.values(rows) for way, rows in prompts.items()}
    if neighbours is not None:
        found["nearest to each query"] = truth.each(neighbours)

    def mean(metric: str) -> dict[str, Floats]:
        return {way: np.atleast_2d(values[metric]).mean(0) for way, values in found.items()}

    return Judged(mean("loss"), mean("accuracy"))
