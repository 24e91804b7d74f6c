"""Pictures on the page of a search: what every run gave with the best so far, and the effects of tasks as intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

import numpy as np

from whence.answers.attribution import Attribution
from whence.errors import safe_text
from whence.surrogates.kernels import Array

WIDE, HIGH = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 14, 34  # margins
LINE = 22  # height of the line of a task
TICKS = 3
TEXT = 'font-size="12" fill="var(--soft)"'


def best_so_far(goodness: Array, budget: int, show: Callable[[float], str], label: str) -> str:
    """Return a picture of the goodness of every run (n,), NaN if it has none; empty for fewer than two runs."""
    at = np.flatnonzero(np.isfinite(goodness))
    if len(at) < 2:
        return ""
    values = goodness[at]
    low, high = float(values.min()), float(values.max())
    right, bottom = WIDE - RIGHT, HIGH - BOTTOM
    x = LEFT + (right - LEFT) * (at + 1) / max(budget, 1)
    y = bottom - (bottom - TOP) * (values - low) / (high - low or 1)
    parts = []
    for value in np.linspace(low, high, TICKS) if high > low else [low]:
        height = bottom - (bottom - TOP) * (value - low) / (high - low or 1)
        parts += [_line(LEFT, height, right, height), _text(LEFT - 8, height + 4, show(float(value)), "end")]
    for number in sorted({1, budget // 2, budget} - {0}):
        parts.append(_text(LEFT + (right - LEFT) * number / budget, bottom + 16, str(number), "middle"))
    parts.append(_text((LEFT + right) / 2, HIGH - 2, label, "middle"))
    steps = [f"M{x[0]:.1f},{y[0]:.1f}"]
    for place, top in zip(x[1:], np.minimum.accumulate(y)[1:], strict=True):
        steps.append(f"H{place:.1f}V{top:.1f}")
    parts.append(f'<path d="{"".join(steps)}H{x[-1]:.1f}" fill="none" stroke="var(--good)" stroke-width="2"/>')
    parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="var(--dim)"/>' for a, b in zip(x, y, strict=True)]
    return _picture(HIGH, "What every run gave, and the best so far", parts)


def intervals(found: Attribution, target: int) -> str:
    """Return a picture of the effects of tasks on a target, the best first: intervals about a line at zero."""
    scores, (low, high) = found.scores[:, target], (end[:, target] for end in found.interval())
    order = np.argsort(-scores if found.maximize[target] else scores, kind="stable")
    verdicts = found.verdicts()[:, target]
    reach = float(np.abs([low, high]).max(initial=0.0))
    if not reach > 0 or not np.isfinite(reach):
        return ""
    longest = max(len(name) for name in found.task_names)
    left = min(LEFT + 7 * longest, WIDE // 2)
    middle, scale = (left + WIDE - RIGHT) / 2, (WIDE - RIGHT - left) / 2 / reach
    parts = [_line(middle, 0, middle, LINE * len(order))]
    for at, task in enumerate(order):
        y, x1, x, x2 = LINE * (at + 0.5), *(middle + scale * end[task] for end in (low, scores, high))
        colour = dict(zip(found.words, ("--good", "--bad"), strict=True)).get(str(verdicts[task]), "--dim")
        line = f'x1="{x1:.1f}" x2="{x2:.1f}" y1="{y}" y2="{y}" stroke="var({colour})" stroke-width="2"'
        parts += [f"<line {line}/>", f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="var({colour})"/>']
        parts.append(_text(left - 10, y + 4, found.task_names[task], "end"))
    return _picture(LINE * len(order), "Effect of each task with its 90% interval", parts)


def _picture(high: float, label: str, parts: Sequence[str]) -> str:
    style = f"max-width:{WIDE}px;width:100%;margin:1rem 0"
    return f'<svg viewBox="0 0 {WIDE} {high}" role="img" aria-label="{label}" style="{style}">{"".join(parts)}</svg>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="var(--line)"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {TEXT}>{escape(safe_text(text))}</text>'
