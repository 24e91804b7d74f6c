"""A real browser for tests of pages: chromium driven by playwright; tests that need it skip where there is none."""

from __future__ import annotations

import base64
import json
import os
import shutil
import zlib
from contextlib import contextmanager

import pytest

PATIENCE = 120  # seconds, for a busy machine; what is waited for mostly comes at once
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def launched():
    """A browser; the test is skipped where chromium or playwright is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine (apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=1000 * PATIENCE)
        yield browser
        browser.close()


@contextmanager
def opened(browser, path, fragment="", *, width=1200, height=900, **more):
    """A page from disk, at rest; whatever it complains about, asks for or tries to show is a failure."""
    context = browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True, **more)
    context.set_default_timeout(1000 * PATIENCE)
    page = context.new_page()
    trouble = []
    page.on("console", lambda message: trouble.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("dialog", lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on(
        "request",
        lambda request: None if request.url.startswith(("file:", "data:", "blob:")) else trouble.append(request.url),
    )
    page.goto(f"file://{path}{fragment}")
    at_rest(page)
    yield page
    context.close()
    assert trouble == []


def until(page, expression, seconds=PATIENCE):
    """Wait for an expression to become true; playwright's own way is what a page's policy forbids."""
    for _ in range(int(seconds * 50)):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"not true after {seconds} s: {expression}")


def watch(page, selector):
    """Keep every text that an element shows from now on in ``seen``, also one that is soon replaced."""
    page.evaluate(
        """(selector) => {
          const [node, seen] = [document.querySelector(selector), (window.seen = [])];
          new MutationObserver(() => seen.push(node.textContent)).observe(node, { childList: true });
        }""",
        selector,
    )


def at_rest(page):
    """Wait until the interval of the shown target has been computed."""
    until(page, "page !== null && !document.querySelector('#interval')?.textContent.includes('computing')")


def shown_prediction(page):
    """The predicted mean and std in the explorer, with all their digits."""
    return tuple(float(page.get_attribute("#predicted", f"data-{name}")) for name in ("mean", "std"))


def inflated(text):
    """The document of a page, as its script reads it."""
    return json.loads(inflated_text(text))


def inflated_text(text):
    """Deflated text of a page, as its script reads it."""
    return zlib.decompress(base64.b85decode(text.replace(",", "<"))).decode()
