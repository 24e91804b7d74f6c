"""Slots: demonstrations of different lengths brought to the same places, so that one can stand for another.

Between tokens and the estimate. A slot is as wide as the longest demonstration, or narrower where that is asked for.
What all demonstrations begin with (the words of the template before the text; at least the first token) stands at the
start of the slot, and the rest at its end, so that label words meet label words. Places between the two, where a
demonstration is too short to have a token, are its padding; of one that is too long, the first tokens of its text are
cut off.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from whence.errors import InputError
from whence.icl.prompts import Tokens


def align(demos: Sequence[Tokens], width: int | None = None) -> tuple[Tokens, NDArray[np.bool_]]:
    """Tokens (K, w) of demonstrations in a slot, and where they have one; 0 where they have none.

    Parameters
    ----------
    demos : sequence of ndarray
        Tokens of each demonstration.
    width : int, optional
        Of the slot; that of the longest demonstration where not given or wider.

    Examples
    --------
    >>> tokens, has = align([np.array([1, 5, 6, 9]), np.array([1, 7, 9])])
    >>> tokens.tolist(), has[1].tolist()
    ([[1, 5, 6, 9], [1, 0, 7, 9]], [True, False, True, True])
    >>> align([np.array([1, 5, 6, 9]), np.array([1, 7, 9])], width=2)[0].tolist()
    [[1, 9], [1, 9]]
    """
    shortest, longest = min(map(len, demos)), max(map(len, demos))
    if width is not None and width < 1:
        raise InputError(f"The slot must have a width of at least one token. Got {width}.")
    wide = longest if width is None else min(width, longest)
    # The last token is never part of what all begin with: where there is one demonstration, it would be all of it.
    begin = np.stack([row[: shortest - 1] for row in demos])
    same = (begin == begin[0]).all(0)
    shared = int(np.argmin(same)) if not same.all() else len(same)
    shared = min(max(shared, 1), shortest - 1, wide - 1)
    tokens, has = np.zeros((len(demos), wide), dtype=np.int64), np.zeros((len(demos), wide), dtype=bool)
    for k, row in enumerate(demos):
        rest = row[shared:][-(wide - shared) :]
        tokens[k, :shared], has[k, :shared] = row[:shared], True
        tokens[k, wide - len(rest) :], has[k, wide - len(rest) :] = rest, True
    return tokens, has
