"""The dashboard before a worker whose names and texts are hostile, and whose rows move while a dialog is open."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Dialog, Page

from connect.core.config.rest_settings import RestListener
from connectors.verification.report import (
    Difference,
    DifferenceKind,
    ExplainedRange,
    PartitionResult,
    RangeReason,
    UndecidedReason,
)
from rest.rest_config import RestSettings
from rest.server import RestServer
from tests.kit.rest_herder import DictHerder
from tests.ui.stage import LAPTOP, PHONE

EVIL: Final = "<img src=x onerror=alert(1)>'\"; touch /tmp/x; 100%/->?a=b&c#d"
LONG: Final = "t" * 249
FLOW: Final = f"{EVIL}->eu"
#: What the verdict has, besides its sentence.
REMEDY: Final = {"about": EVIL, "remedy": EVIL, "command": "heliograph status --rest URL"}


def row(topic: str, partition: int, records: int) -> dict[str, Any]:
    stopped = {"state": "quarantined", "is_stopped": True, "reason": EVIL, "advice": EVIL, "since_ms": 1}
    place = {"topic": topic, "partition": partition, "target_topic": f"us.{topic}", "position": 5}
    return {**place, "records": records, "ms": 10, "task": 0, "worker_id": EVIL, **stopped}


def verified(topic: str) -> dict[str, Any]:
    difference = Difference(DifferenceKind.CHANGED, topic, 0, 3, None, EVIL)
    undecided = Difference(DifferenceKind.EXTRA, topic, 0, None, 4, EVIL, undecided=UndecidedReason.BEFORE_MAP)
    explained = ExplainedRange(topic, 0, 1, 2, RangeReason.GAP, detail=EVIL)
    result = PartitionResult(topic, 0, f"us.{topic}", 0, 5, 0, 0, 0, 9, 9, 2, (difference,), 7, (explained,))
    return replace(result, undecided=(undecided,), undecided_total=8).to_wire()


class HostileHerder(DictHerder):
    """A MirrorSource and a MirrorCheckpoint whose reports are full of markup."""

    def __init__(self) -> None:
        super().__init__()
        ends = {"source.cluster.alias": EVIL, "target.cluster.alias": "eu"}
        self.add(EVIL, **{"connector.class": "MirrorSourceConnector", **ends})
        self.add(f"{EVIL} too", **{"connector.class": "MirrorCheckpointConnector", **ends})
        self.rows = [row("first", 0, 9), row(LONG, 0, 8)]

    async def connector_report(self, name: str, kind: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        none: dict[str, Any] = {
            "at_ms": 1,
            "counts": {"create topic": 1},
            "matching": 1,
            "unknown": [EVIL],
            "notes": [EVIL],
        }
        lag = {"records": 1, "partitions": 2, "ms": 3, "furthest": [LONG, 0]}
        verdict = {
            "state": "behind",
            "urgency": "error",
            "sentence": EVIL,
            "also": [EVIL],
            "actions": [REMEDY],
            "failover": {"sentence": EVIL},
        }
        overview = {
            "verdict": verdict,
            "lag": lag,
            "rates": {"records_per_s": 1.0, "bytes_per_s": None, "is_whole": False},
            "stopped_count": 1,
            "oldest_problem": {"source": EVIL, "since_ms": 1},
            "tasks": {"here": 1, "all": 2},
            "spark": {"epoch": 1, "place": EVIL, "slots": None, "used": 0, "problem": EVIL},
        }
        history = {key: [1, 2] for key in ("at_ms", "records_per_s", "bytes_per_s", "lag_records", "lag_ms")}
        reports: dict[str, dict[str, Any]] = {
            "overview": overview,
            "details": {
                **overview,
                "workers": [{"worker_id": EVIL, "tasks": {"RUNNING": 1}}],
                "failed": [{"task": 1, "reason": EVIL}],
                "furthest": self.rows,
            },
            "rates": {
                "at_ms": 10_000,
                "records_per_s": 1.0,
                "bytes_per_s": 2.0,
                "history": history,
                "batches": [{"kind": EVIL, "reason": EVIL, "count": 1}],
                "spark": overview["spark"],
            },
            "search": {
                "partitions": self.rows,
                "found": 2,
                "all": 2,
                "states": {"quarantined": 1, "copying": 1},
                "cluster": EVIL,
                "is_known": True,
            },
            "verification": {
                "verified_ms": 1,
                "newest_ms": 2,
                "records": 5,
                "differences": 7,
                "undecided": 8,
                "all": 1,
                "partitions": [verified(LONG)],
                "recreated": [LONG],
            },
            "plan": {**none, "rows": [[EVIL] * 4], "command": EVIL},
            "drift": {**none, "rows": [[EVIL] * 4], "command": EVIL},
            "audit": {
                "enabled": True,
                "entries": [{"at_ms": 1, "who": EVIL, "what": EVIL, "how": EVIL, "status": 500, "action": "PUT"}],
                "searched": 1,
                "dropped": 1,
                "waiting": 1,
                "topic": EVIL,
            },
        }
        return reports[kind]


@pytest.fixture(scope="module")
def worker() -> Iterator[tuple[str, HostileHerder]]:
    herder, started, is_over = HostileHerder(), Future[str](), threading.Event()

    async def serve() -> None:
        server = RestServer(RestSettings((RestListener("http", "127.0.0.1", 0),)))
        await server.start()
        server.serve(herder)
        herder.worker_id = f"127.0.0.1:{server.ports[0]}"
        started.set_result(f"http://127.0.0.1:{server.ports[0]}")
        await asyncio.to_thread(is_over.wait)
        await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    yield started.result(), herder
    is_over.set()
    thread.join()


@pytest.fixture
def said(browser: Browser, worker: tuple[str, HostileHerder]) -> Iterator[tuple[Page, list[str]]]:
    """A page, and what it said that it should not: errors, dialogs of scripts, refused contents."""
    found: list[str] = []

    def refuse(dialog: Dialog) -> None:
        found.append(dialog.message)
        dialog.dismiss()

    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    page.on("dialog", refuse)
    yield page, found
    context.close()


def at(url: str, name: str) -> str:
    return f"{url}/ui#/flow/{quote(FLOW, safe='')}/{name}"


@pytest.mark.parametrize("name", ["", "flow", "partitions", "changes", "verify"])
def test_markup_in_names_and_texts_is_shown_as_text(
    said: tuple[Page, list[str]], worker: tuple[str, HostileHerder], name: str
) -> None:
    (page, found), (url, _) = said, worker
    page.goto(at(url, name) if name else f"{url}/ui")
    page.get_by_text(EVIL).first.wait_for()
    page.get_by_role("link", name="Partitions").first.wait_for()
    page.wait_for_timeout(500)
    assert page.locator("main img").count() == 0 and found == []
    for size in (LAPTOP, PHONE):
        page.set_viewport_size(size)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    if name == "changes":
        command = page.get_by_text("heliograph connectors audit").inner_text()
        quoted = EVIL.replace("'", "'\"'\"'")
        assert command == f"heliograph connectors audit '{quoted}' --rest {url}"


def test_an_address_that_is_not_well_formed_shows_a_page(
    said: tuple[Page, list[str]], worker: tuple[str, HostileHerder]
) -> None:
    (page, found), (url, _) = said, worker
    page.goto(f"{url}/ui#/flow/100%")
    page.get_by_text("This worker knows no flow 100%.").wait_for()
    assert found == []


def test_a_dialog_stays_about_its_row_while_rows_move(
    said: tuple[Page, list[str]], worker: tuple[str, HostileHerder]
) -> None:
    (page, found), (url, herder) = said, worker
    page.goto(at(url, "partitions"))
    page.get_by_role("button", name="Set position").first.click()
    before = herder.rows
    herder.rows = before[::-1]
    page.wait_for_timeout(7000)  # more than a refresh
    assert page.locator("dialog[open] h2").inner_text() == "Set the position of first-0?"
    page.locator("dialog[open]").get_by_role("button", name="Cancel").click()
    page.locator("tbody tr").first.get_by_text(f"{LONG}-0", exact=True).wait_for()
    herder.rows = before
    assert found == []


@pytest.mark.parametrize(("state", "after"), [("RUNNING", "resume"), ("PAUSED", "pause"), ("STOPPED", "stop")])
def test_a_set_position_returns_to_the_state_before(
    said: tuple[Page, list[str]], worker: tuple[str, HostileHerder], state: str, after: str
) -> None:
    (page, found), (url, _) = said, worker
    asked: list[str] = []
    states = iter([state, "STOPPED"])

    def status(route: Any) -> None:
        body = {"connector": {"state": next(states)}, "tasks": []}
        route.fulfill(status=200, content_type="application/json", body=json.dumps(body))

    def put(route: Any) -> None:
        asked.append(route.request.url.rpartition("/")[2])
        route.fulfill(status=202)

    page.route("**/connectors/*/status", status)
    for word in ("stop", "resume", "pause", "offsets"):
        page.route(f"**/connectors/*/{word}", put)
    page.goto(at(url, "partitions"))
    page.get_by_role("button", name="Set position").first.click()
    page.locator("dialog[open] input").fill("41")
    page.locator("dialog[open]").get_by_role("button", name="Set position").click()
    page.locator("dialog[open]").wait_for(state="detached")
    assert asked == ["stop", "offsets", after] and found == []


def test_a_page_that_is_not_seen_holds_no_connection(
    said: tuple[Page, list[str]], worker: tuple[str, HostileHerder]
) -> None:
    """A browser has six for all pages of a worker, and each open page would hold one."""
    (page, _), (url, _) = said, worker
    page.add_init_script(
        "window.streams = []; const Real = EventSource;"
        "window.EventSource = class extends Real { constructor(url) { super(url); window.streams.push(this); } }"
    )
    count = "window.streams.filter((each) => each.readyState !== EventSource.CLOSED).length"
    page.goto(f"{url}/ui")
    page.get_by_text(EVIL).first.wait_for()
    hide = "(hidden) => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
    page.evaluate(hide + "document.dispatchEvent(new Event('visibilitychange')); }", True)
    assert page.evaluate(count) == 0
    page.evaluate(hide + "document.dispatchEvent(new Event('visibilitychange')); }", False)
    assert page.evaluate(count) == 1
