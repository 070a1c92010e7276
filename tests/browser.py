"""Pages in headless Chromium: the system's own, driven by playwright, which downloads nothing."""

import shutil
from contextlib import contextmanager

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="install Debian's Chromium with `apt-get install chromium`"
)


@contextmanager
def open_page(width=1000, height=800, dark=False, expected=()):
    """A page of its own; an error in its console, or an uncaught one, fails the test.

    expected: parts of messages that belong to what is tested.
    """
    from playwright.sync_api import sync_playwright

    errors = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        try:
            yield page
        finally:
            browser.close()
    assert [error for error in errors if not any(part in error for part in expected)] == []
