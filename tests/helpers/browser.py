"""A real, headless browser for tests of HTML pages.

Without one, tests that need it are skipped with a reason. With the environment variable
ONEPASS_BROWSER=required, as in `.ci/run`, they fail instead.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NEEDED = "the Debian packages chromium and chromium-driver, and selenium"


def find() -> tuple[str, str] | None:
    """Returns the paths of browser and driver, or None if one of them, or selenium, is missing."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    selenium = importlib.util.find_spec("selenium")
    return (browser, driver) if browser and driver and selenium else None


def required() -> tuple[str, str]:
    """Returns what `find` does; without a browser, skips the test or fails it if required."""
    here = find()
    if here is None:
        told = f"no browser was found: this test needs {NEEDED}"
        if os.environ.get("ONEPASS_BROWSER") == "required":
            pytest.fail(told)
        pytest.skip(told)
    return here


@contextmanager
def opened(width: int = 1280, height: int = 900, *, dark: bool = False) -> Iterator[Any]:
    """Opens a browser with a viewport of this size, which logs its console and every request.

    A window cannot be narrower than 500 pixels, so the size is emulated.
    """
    binary, driver = required()
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        yield browser
    finally:
        browser.quit()


def console(browser: Any) -> list[str]:
    """Returns the messages in the console since the last call: errors, violations of the policy."""
    return [entry["message"] for entry in browser.get_log("browser")]


def requests(browser: Any) -> list[str]:
    """Returns the URLs that were requested since the last call."""
    entries = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    return [
        entry["params"]["request"]["url"]
        for entry in entries
        if entry["method"] == "Network.requestWillBeSent"
    ]


def screenshot(browser: Any, path: Path) -> None:
    """Saves a picture of the whole page, including what lies below the window."""
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    path.write_bytes(base64.b64decode(taken["data"]))


def as_pdf(browser: Any, path: Path) -> bytes:
    """Prints the page into a PDF file and returns its content."""
    content = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    path.write_bytes(content)
    return content
