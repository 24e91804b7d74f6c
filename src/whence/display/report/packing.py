"""Arrays as text: what a page holds of numbers that must arrive in the browser bit by bit.

A packed array is ``{"type": …, "shape": …, "data": base64}``, little-endian, row by row; ``unpack`` in ``core.js`` is
its counterpart. Everything that is only shown may be rounded to float32; what is computed with stays float64.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Packed = dict[str, Any]
TYPES = {"f64": "<f8", "f32": "<f4", "u32": "<u4", "u8": "u1"}


def pack(values: ArrayLike, kind: str = "f64") -> Packed:
    """Return numbers as text.

    Parameters
    ----------
    values : array-like
    kind : {"f64", "f32", "u32", "u8", "bits"}
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
