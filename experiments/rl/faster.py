"""Parts of Meta-World that take more than half of the time of a step, written anew with the same results.

Meta-World goes through all contacts one by one, twice in each step, makes scipy's general rotations out of single
matrices, and puts observations and rewards together from many arrays of three numbers. What is patched is the
environment at hand, the name ``Rotation`` in its module, and ``tolerance`` of Meta-World's rewards.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import numpy as np

TAIL = math.sqrt(1 / 0.1 - 1)  # 0.1 is the value at the margin
PADS = ("leftpad_geom", "rightpad_geom")


def faster(env: Any) -> Any:
    """Return the environment of Meta-World, which steps faster from now on."""
    from metaworld.utils import reward_utils

    env.touching_object = functools.partial(touching_object, env)
    bodies = [env.model.body(name).id for name in ("hand", "rightclaw", "leftclaw")]
    env._get_curr_obs_combined_no_goal = functools.partial(seen_now, env, *bodies)
    if not isinstance(reward_utils.tolerance, functools.partial):
        reward_utils.tolerance = functools.partial(tolerance, reward_utils.tolerance)
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


def faster_resets(env: Any) -> None:
    """Let an environment of Meta-World put the hand at its start, instead of simulating 50 steps that bring it there.

    The simulation always ends in nearly the same place: the first one is kept. Observations differ by less than 0.001
    from those of usual resets.
    """
    import mujoco

    usual, kind = env._reset_hand, mujoco.mjtState.mjSTATE_INTEGRATION
    kept = np.empty(mujoco.mj_stateSize(env.model, kind))
    mujoco.mj_resetData(env.model, env.data)
    usual()
    mujoco.mj_getState(env.model, env.data, kept, kind)

    def reset_hand(steps: int = 50) -> None:
        mujoco.mj_setState(env.model, env.data, kept, kind)
        mujoco.mj_forward(env.model, env.data)
        env.init_tcp = env.tcp_center

    env._reset_hand = reset_hand


def seen_now(env: Any, hand: int, right: int, left: int) -> np.ndarray:
    """Place of the hand, how far its fingers are apart, and place and rotation of each object, (18,)."""
    places = env.data.xpos
    found = np.zeros(4 + env._obs_obj_max_len)
    found[:3] = places[hand]
    apart = places[right] - places[left]
    found[3] = min(max(math.sqrt(apart @ apart) / 0.1, 0.0), 1.0)
    objects, rotations = env._get_pos_objects(), env._get_quat_objects()
    for i in range(len(objects) // 3):
        start = 4 + 7 * i
        found[start : start + 3] = objects[3 * i : 3 * i + 3]
        found[start + 3 : start + 7] = rotations[4 * i : 4 * i + 4]
    return found


def tolerance(usual: Any, x: Any, bounds: Any = (0.0, 0.0), margin: Any = 0.0, sigmoid: str = "gaussian") -> Any:
    """1 within the bounds and less beyond them: Meta-World's long tail for single numbers, anything else as usual."""
    if sigmoid != "long_tail" or not margin > 0 or np.ndim(x):
        return usual(x, bounds=bounds, margin=margin, sigmoid=sigmoid)
    lower, upper = bounds
    if lower <= x <= upper:
        return 1.0
    beyond = (lower - x if x < lower else x - upper) / margin
    return 1 / ((beyond * TAIL) ** 2 + 1)


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
