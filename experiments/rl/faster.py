"""Two parts of Meta-World that take half of the time of a step, written anew with the same results.

Meta-World goes through all contacts one by one, twice in each step, and makes scipy's general rotations out of single
matrices. What is patched is the environment at hand and the name ``Rotation`` in its module.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import numpy as np

PADS = ("leftpad_geom", "rightpad_geom")


def faster(env: Any) -> Any:
    """Return the environment of Meta-World, which steps faster from now on."""
    env.touching_object = functools.partial(touching_object, env)
    module = sys.modules[type(env).__module__]
    if hasattr(module, "Rotation"):
        module.Rotation = Rotation  # type: ignore[attr-defined]
    return env


def touching_object(env: Any, object_geom_id: int) -> bool:
    """Whether both pads of the gripper press on an object."""
    contact, force = env.data.contact, env.data.efc_force
    pairs = contact.geom
    on_object = (pairs == object_geom_id).any(1)
    if not on_object.any():
        return False
    rows = (on_object & (pairs == env.data.geom(pad).id).any(1) for pad in PADS)
    return all(force[contact.efc_address[row]].sum() > 0 for row in rows)


class Rotation:
    """One rotation, of what ``scipy.spatial.transform.Rotation`` can do."""

    def __init__(self, quaternion: np.ndarray) -> None:
        self._quaternion = quaternion

    @classmethod
    def from_matrix(cls, matrix: np.ndarray) -> Rotation:
        m = matrix.tolist()
        trace = m[0][0] + m[1][1] + m[2][2]
        largest = max(m[0][0], m[1][1], m[2][2], trace)
        if largest == trace:
            q = [m[2][1] - m[1][2], m[0][2] - m[2][0], m[1][0] - m[0][1], 1 + trace]
        else:
            i = next(axis for axis in range(3) if m[axis][axis] == largest)
            j, k = (i + 1) % 3, (i + 2) % 3
            q = [0.0] * 4
            q[i], q[j], q[k] = 1 - trace + 2 * m[i][i], m[j][i] + m[i][j], m[k][i] + m[i][k]
            q[3] = m[k][j] - m[j][k]
        length = math.sqrt(sum(part * part for part in q))
        return cls(np.array([part / length for part in q]))

    def as_quat(self) -> np.ndarray:
        """The quaternion, its real part last."""
        return self._quaternion
