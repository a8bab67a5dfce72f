"""The browser and the mirror that all tests of the dashboard share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.ui.stage import CHROMIUM, Stage, staged


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def stage(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(browser, tmp_path_factory.mktemp("ui")) as stage:
        yield stage
        assert stage.foreign == [], "pages load nothing from elsewhere"
