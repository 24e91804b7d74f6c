"""The report: everything a model says, as one HTML page that opens from disk and predicts in the browser.

    export.py      the surrogate as plain arrays     findings.py   every number of the page, in one document
    answer.py      the answer in two sentences       page.py       template + styles + scripts + document → one file
    packing.py     arrays as text                    assets/       the page itself, in plain JavaScript

``Model.report(path)`` and ``whence report`` end here.
"""

from whence.display.report.findings import collect
from whence.display.report.page import check_place, write_page, write_report

__all__ = ["check_place", "collect", "write_page", "write_report"]
