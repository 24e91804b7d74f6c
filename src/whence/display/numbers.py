"""Numbers as text: with as many digits as their uncertainty allows, and a dash for a missing one.

Shared by the terminal, notebooks and the report, so that the same number looks the same everywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

MISSING = "–"


def decimals(step: ArrayLike) -> int:
    """Return how many decimals show one or two digits of a typical step, such as the std of what is shown.

    Two where the step starts with 1, 2 or 3, and one where that is precise enough.

    >>> decimals([0.012, 0.034]), decimals(0.007), decimals(250.0)
    (3, 3, 0)
    """
    import numpy as np

    sizes = np.abs(np.asarray(step, dtype=np.float64)).ravel()
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    return int(np.clip(-np.floor(np.log10(np.median(sizes) / 3.55)), 0, 99)) if len(sizes) else 3


def number(value: float, places: int = 2, *, signed: bool = False) -> str:
    """Return a number with this many decimals; a dash for NaN, scientific notation where digits would run on.

    >>> number(0.12345, 3, signed=True), number(-0.001), number(float("nan")), number(2.5e-12, 14)
    ('+0.123', '0.00', '–', '2.50e-12')
    """
    if not math.isfinite(value):
        return MISSING
    value = value if round(value, places) else 0.0  # and not -0.00
    sign = "+" if signed else ""
    long = abs(value) >= 1e10 or places > 7
    return f"{value:{sign}.2e}" if long else f"{value:{sign}.{places}f}"


def span(low: float, high: float, places: int = 2, *, signed: bool = False) -> str:
    """Return an interval; an end that is signed keeps its sign where it is rounded to zero.

    >>> span(0.1, 0.25), span(-0.1, -0.001, signed=True)
    ('0.10 to 0.25', '-0.10 to -0.00')
    """
    ends = [number(end, places, signed=signed) for end in (low, high)]
    if signed:  # so that it is seen on which side of zero the interval ends
        ends = [
            f"-{text[1:]}" if end < 0 and text[0] == "+" else text for end, text in zip((low, high), ends, strict=True)
        ]
    return MISSING if MISSING in ends else " to ".join(ends)


def share(value: float) -> str:
    """Return a fraction in percent; a dash for NaN.

    >>> share(0.913)
    '91%'
    """
    return f"{value:.0%}" if math.isfinite(value) else MISSING


def to_json(document: Mapping[str, object]) -> str:
    """Return one JSON document, with null for NaN and infinity.

    >>> print(to_json({"lds": float("nan")}))
    {
      "lds": null
    }
    """
    return json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False)


def plain(value: object) -> object:
    """Return a value that JSON can hold: arrays become lists, NaN and infinity become None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # arrays and numbers of numpy
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
