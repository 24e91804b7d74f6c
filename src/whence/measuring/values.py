"""What an outcome function returned, as names of targets and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from numbers import Number

import numpy as np

from whence.errors import InputError, some_of
from whence.outcomes.checks import Floats, unmasked
from whence.outcomes.ledger import ALONE
from whence.outcomes.sheets import flat_record


def flatten(returned: object) -> tuple[tuple[str, ...], list[float]]:
    """Target names and values of one row, from a number, an array, or a mapping of names to either.

    A number without a name is called ``outcome``; the numbers of an array ``name[0]``, ``name[1]``, … and those of a
    mapping within the mapping ``name.metric``. Text by name is left out: see `texts_of`.

    >>> flatten({"loss": 0.5, "acc": [0.25, 1.0]})
    (('loss', 'acc[0]', 'acc[1]'), [0.5, 0.25, 1.0])
    """
    names, columns = _columns(returned, 0)
    return names, columns.tolist()


def flatten_batch(returned: object, m: int) -> tuple[tuple[str, ...], list[list[float]]]:
    """Target names and values of ``m`` rows measured together, from arrays of shape (m,) or (m, T).

    >>> flatten_batch({"loss": [0.5, 0.7]}, 2)
    (('loss',), [[0.5], [0.7]])
    """
    names, columns = _columns(returned, 1)
    if len(columns) != m:
        raise InputError(f"A batch of {m} subsets must return {m} rows. It returned {len(columns)}.")
    return names, columns.tolist()


def texts_of(returned: object) -> tuple[str, ...]:
    """Names of the returned metrics that are text, such as the path of a checkpoint.

    >>> texts_of({"loss": 0.5, "checkpoint": "last.pt"})
    ('checkpoint',)
    """
    if not isinstance(returned, Mapping):
        return ()
    return tuple(name for name, value in flat_record(returned) if _is_text(value))


def _is_text(value: object) -> bool:
    if isinstance(value, list | tuple):
        return len(value) > 0 and all(isinstance(one, str | bytes) for one in value)
    return isinstance(value, str | bytes) or getattr(getattr(value, "dtype", None), "kind", "") in ("U", "S")


def _columns(returned: object, lead: int) -> tuple[tuple[str, ...], Floats]:
    """Names, and values with ``lead`` leading dimensions (0 for one row, 1 for a batch), shape (…, T)."""
    aside = texts_of(returned)
    given = dict(flat_record(returned if isinstance(returned, Mapping) else {ALONE: returned}))
    given = {name: value for name, value in given.items() if name not in aside}
    if not given:
        only = f", only text ({some_of(aside)})" if aside else ""
        raise InputError(f"The outcome function returned no metric at all{only}. It must return {{metric: value}}.")
    names: list[str] = []
    parts: list[Floats] = []
    for name, value in given.items():
        array = _numbers(value, str(name), lead)
        if array.ndim == lead:
            names.append(str(name))
            array = array[..., None]
        else:
            names += [f"{name}[{place}]" for place in range(array.shape[-1])]
        parts.append(array)
    if len({part.shape[:lead] for part in parts}) > 1:
        shapes = ", ".join(f"{name} {part.shape[0]}" for name, part in zip(given, parts, strict=True))
        raise InputError(f"All metrics of a batch must have the same number of rows. They have: {shapes}.")
    return tuple(names), np.concatenate(parts, axis=-1)


def _numbers(value: object, name: str, lead: int) -> Floats:
    real, detach = "complex" not in str(getattr(value, "dtype", "")), getattr(value, "detach", None)
    if real and callable(detach):  # a tensor, on any device and in any precision
        value = detach().double().cpu().numpy()
    try:
        array = np.asarray(unmasked(value))
    except ValueError as error:
        raise InputError(f"The '{name}' returned by the outcome function is not a regular array of numbers.") from error
    if array.dtype == object and all(isinstance(one, Number) for one in array.flat):
        with suppress(TypeError, OverflowError):  # exact numbers of Python, such as a large integer
            array = array.astype(np.float64)
    if array.dtype.kind not in "biuf":
        what = "nothing (None)" if value is None else f"a {type(value).__name__}"
        raise InputError(
            "An outcome function must return a number, an array of numbers, or {metric: number or array}. "
            f"'{name}' is {what}."
        )
    if not lead <= array.ndim <= lead + 1 or array.shape[-1:] == (0,):
        wanted = "one number per subset, or one row" if lead else "a number, or a 1-D array"
        raise InputError(f"The '{name}' returned by the outcome function must be {wanted}. It has shape {array.shape}.")
    return array.astype(np.float64)
