"""Problems of a table, all told at once with the parameters that fix them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whence.errors import InputError

MOST_PROBLEMS = 8


class Problems:
    """All that is wrong with a table, and the parameters that would fix it."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.named: dict[str, Any] = {}
        self.fix: dict[str, Any] = {}
        self.mendable = True  # whether parameters can put all of it right

    def add(self, sentence: str, fix: Mapping[str, Any] | None = None, **named: Any) -> None:
        """Add a sentence that refers to the parameters ``named``, and what would fix it."""
        for name, value in named.items():
            own = f"{name}:{len(self.sentences)}"
            sentence = sentence.replace(f"{{{name}}}", f"{{{own}}}")
            self.named[own] = value
        self.sentences.append(sentence)
        self.mendable &= any((fix or {}).values())
        for name, value in (fix or {}).items():
            if isinstance(value, list):
                known = self.fix.setdefault(name, [])
                known += [one for one in value if one not in known]
            elif isinstance(value, dict):
                self.fix.setdefault(name, {}).update(value)
            else:
                self.fix.setdefault(name, value)

    def check(self) -> None:
        """Raise if there are any."""
        if not self.sentences:
            return
        text = self.sentences[0]
        if len(self.sentences) > 1:
            shown = self.sentences[:MOST_PROBLEMS]
            more = len(self.sentences) - len(shown)
            text = "\n  ".join(
                [f"there are {len(self.sentences)} problems.", *(f"({n}) {s}" for n, s in enumerate(shown, 1))]
            )
            text += f" And {more} more." if more else ""
        raise InputError(text, fix=self.fix if self.mendable else None, **self.named)
