"""Numbers as text: arrays that arrive in the browser bit by bit, and the whole document deflated.

A packed array is ``{"type": …, "shape": …, "data": base64}``, little-endian, row by row; ``unpack`` in ``core.js`` is
its counterpart. What the page computes with stays float64. What it only shows is sent as float32 (seven digits), or,
where there are very many numbers, with the decimals it is shown with.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from whence.display.numbers import plain

Document = dict[str, Any]  # plain values, arrays and documents
Packed = Document
TYPES = {"f64": "<f8", "f32": "<f4", "u32": "<u4", "u8": "u1"}
MOST_STEPS = 500_000  # that a character stands for


def pack(values: ArrayLike, kind: str = "f64") -> Packed:
    """Return numbers as text, stored as one of `TYPES`, or as "bits" for zeros and ones.

    >>> pack([[1, 0, 1]], "bits")
    {'type': 'bits', 'shape': [1, 3], 'data': 'oA=='}
    """
    array = np.asarray(values)
    raw = np.packbits(array != 0) if kind == "bits" else array.astype(TYPES[kind])
    text = base64.b64encode(np.ascontiguousarray(raw).tobytes()).decode("ascii")
    return {"type": kind, "shape": list(array.shape), "data": text}


def pack_shown(values: ArrayLike, places: int) -> Packed:
    """Return numbers as text with the decimals they are shown with: what is shown is exact, and nothing more is sent.

    Each is a character, so the deflated document spends few bits on numbers that come often. The n-th from "#" on
    is n steps above the least number, or where some are negative 0, −1, 1, −2, 2 and so on; a blank is a missing one.

    >>> pack_shown([0.12, np.nan, 0.1], 2)
    {'type': 'shown', 'shape': [3], 'data': '% #', 'places': 2, 'least': 10}
    >>> pack_shown([0.01, -0.01], 2)
    {'type': 'shown', 'shape': [2], 'data': '%$', 'places': 2, 'least': None}
    """
    array = np.asarray(values, dtype=np.float64)
    steps = np.round(array * 10.0**places)
    known = steps[np.isfinite(steps)]
    if places > 7 or np.isinf(array).any() or np.abs(known).max(initial=0.0) > MOST_STEPS:
        widest = np.abs(array[np.isfinite(array)]).max(initial=0.0)
        return pack(array, "f32" if widest <= np.finfo(np.float32).max else "f64")  # shown as a power of ten
    least = None if (known < 0).any() else int(known.min(initial=MOST_STEPS))
    codes = np.where(steps < 0, -2 * steps - 1, 2 * steps) if least is None else steps - least
    text = "".join(" " if np.isnan(code) else _character(int(code)) for code in codes.ravel())
    return {"type": "shown", "shape": list(array.shape), "data": text, "places": places, "least": least}


def _character(n: int) -> str:
    """The n-th character from "#" on, without the backslash and the codes that are halves of others."""
    code = 0x23 + n
    code += code >= 0x5C
    return chr(code + (0x800 if code >= 0xD800 else 0))


def pack_intervals(middle: ArrayLike, low: ArrayLike, high: ArrayLike, places: int) -> dict[str, Packed]:
    """Return numbers and their intervals with the decimals they are shown with.

    How far an interval reaches down, and how much farther up, are small numbers that take little room.
    """
    shown, least, most = (np.round(np.asarray(array, np.float64), places) for array in (middle, low, high))
    return {
        "middle": pack_shown(shown, places),
        "below": pack_shown(shown - least, places),
        "skew": pack_shown((most - shown) - (shown - least), places),
    }


def deflated(document: Mapping[str, object]) -> str:
    """Return a document as deflated JSON, as text in which nothing can be taken for markup."""
    return deflated_text(json.dumps(plain(document), ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def deflated_text(text: str) -> str:
    """Return deflated text, five characters for four bytes; ``inflated`` in ``load.js`` is its counterpart."""
    return base64.b85encode(zlib.compress(text.encode(), 9)).decode("ascii").replace("<", ",")
