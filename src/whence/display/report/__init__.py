"""The report: everything a model says, as one HTML page that opens from disk and predicts in the browser.

    export.py      the surrogate as plain arrays     findings.py   every number of the page, in one document
    answer.py      facts, and the answer in words      page.py       template + styles + scripts + document → one file
    packing.py     arrays as text                    assets/       the page itself, in plain JavaScript

``whence.report(model, path)`` and the verb ``whence report`` end here.
"""

from whence.display.report.findings import collect
from whence.display.report.page import check_place, report, write_page

__all__ = ["check_place", "collect", "report", "write_page"]
