"""10,000 partitions in the browser (``make ui``): how soon the page is painted, how long an update keeps it busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from connect.core.config.rest_settings import RestListener
from connectors.flow_facts import FlowFacts, Trend
from connectors.flow_progress import furthest
from connectors.flow_verdict import judge
from connectors.formats.types import FlowName
from connectors.source.mirror_reports import RATES, SEARCH, Asked, details, overview, rates_report, rows_of, search
from rest.rest_config import RestSettings
from rest.server import RestServer
from tests.kit.rest_herder import DictHerder
from tests.ui.stage import LAPTOP
from tests.unit.connectors.source.test_mirror_reports import PARTITIONS, ten_thousand

FIRST_PAINT_MS = 1000
UPDATE_MS = 100


class LargeHerder(DictHerder):
    def __init__(self) -> None:
        super().__init__()
        config = {"source.cluster.alias": "us", "target.cluster.alias": "eu"}
        self.add("m", **{"connector.class": "MirrorSourceConnector", **config})
        self._asked_of: Asked = ten_thousand()
        trend = Trend()
        lag = self._asked_of.look.lag
        facts = FlowFacts(FlowName("us", "eu"), 0, "m", lag=trend.lag_facts(lag))
        self._verdict = {"verdict": judge(facts).to_wire(), "facts": facts.to_wire()}

    async def connector_report(self, name: str, kind: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        if kind == RATES:
            return rates_report(self._asked_of.host, name)
        if kind == SEARCH:
            return await asyncio.to_thread(search, self._asked_of, query)
        shown = overview(self._asked_of, self._verdict)
        most = rows_of(self._asked_of, furthest(self._asked_of.look.lag.partitions, 20))
        return {**shown, **details(self._asked_of.tasks, self._verdict), "furthest": most}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    loop, served = asyncio.new_event_loop(), RestServer(RestSettings((RestListener("http", "127.0.0.1", 0),)))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(served.start(), loop).result()
    herder = LargeHerder()
    herder.worker_id = f"127.0.0.1:{served.ports[0]}"
    loop.call_soon_threadsafe(served.serve, herder)
    yield f"http://{herder.worker_id}/ui"
    asyncio.run_coroutine_threadsafe(served.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport=LAPTOP)
    page = context.new_page()
    page.add_init_script(
        "window.busy = [];"
        "new PerformanceObserver((list) => busy.push(...list.getEntries().map((one) => one.duration)))"
        ".observe({ type: 'longtask', buffered: true });"
    )
    yield page
    context.close()


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("", "us->eu"),
        ("#/flow/us-%3Eeu", "Slots in use"),
        ("#/flow/us-%3Eeu/partitions", f"of {PARTITIONS:,} partitions"),
    ],
)
def test_a_page_is_painted_and_updated_soon(url: str, page: Page, address: str, text: str) -> None:
    page.goto(url + address)
    page.get_by_text(text).first.wait_for()
    painted_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.evaluate("busy.length = 0")
    page.wait_for_timeout(7000)  # some events, and a refresh of what the page has read
    longest_ms = page.evaluate("Math.max(0, ...busy)")
    print(f"{address or '#/'}: first paint {painted_ms:.0f} ms, longest task of an update {longest_ms:.0f} ms")
    assert painted_ms < FIRST_PAINT_MS and longest_ms < UPDATE_MS
