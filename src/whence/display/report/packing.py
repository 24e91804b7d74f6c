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

from whence.cli.console import plain

Packed = dict[str, Any]
TYPES = {"f64": "<f8", "f32": "<f4", "u32": "<u4", "u8": "u1", "i16": "<i2", "i32": "<i4"}
NONE = {"i16": -(2**15), "i32": -(2**31)}  # stands for NaN


def pack(values: ArrayLike, kind: str = "f64") -> Packed:
    """Return numbers as text.

    Parameters
    ----------
    values : array-like
    kind : {"f64", "f32", "u32", "u8", "i16", "i32", "bits"}
        How each number is stored; "bits" is for arrays of zeros and ones.

    Examples
    --------
    >>> pack([[1, 0, 1]], "bits")
    {'type': 'bits', 'shape': [1, 3], 'data': 'oA=='}
    """
    array = np.asarray(values)
    raw = np.packbits(array != 0) if kind == "bits" else array.astype(TYPES[kind])
    text = base64.b64encode(np.ascontiguousarray(raw).tobytes()).decode("ascii")
    return {"type": kind, "shape": list(array.shape), "data": text}


def pack_shown(values: ArrayLike, places: int) -> Packed:
    """Return numbers as text with the decimals they are shown with: what is shown is exact, and nothing more is sent.

    Examples
    --------
    >>> pack_shown([0.1234, -0.5], 2)
    {'type': 'i16', 'shape': [2], 'data': 'DADO/w==', 'places': 2}
    """
    array = np.asarray(values, dtype=np.float64)
    units = np.round(array * 10.0**places)
    largest = float(np.abs(units[np.isfinite(units)]).max(initial=0.0))
    if places > 7 or largest >= 2**31 or np.isinf(array).any():
        return pack(array, "f32")  # shown as a power of ten
    kind = "i16" if largest < 2**15 else "i32"
    return pack(np.where(np.isnan(units), NONE[kind], units), kind) | {"places": places}


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


def deflated(document: Mapping[str, Any]) -> str:
    """Return a document as the base64 text of its deflated JSON: no name in it can be taken for markup."""
    text = json.dumps(plain(document), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")


def inflated(text: str) -> dict[str, Any]:
    """Return the document again.

    Examples
    --------
    >>> inflated(deflated({"lds": [0.5, float("nan")]}))
    {'lds': [0.5, None]}
    """
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    return found
