"""Results that notebooks show as tables: the one door from the library up to :mod:`whence.display`.

Everything else imports downwards only. A result cannot: notebooks ask the object itself for its HTML.
"""

from __future__ import annotations


class Shown:
    """Result with a table of its own in notebooks; see `whence.display.notebook.html_of`."""

    def _repr_html_(self) -> str:
        from whence.display.notebook import html_of

        return html_of(self)
