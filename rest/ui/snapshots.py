"""Takes snapshots of all flows of a process, and sends them to the dashboard's pages as server-sent events.

A slow flow shows what was last known of it. One snapshot is taken in an interval, whatever the number of pages, and
none while no page is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import orjson
from starlette.types import Receive, Send

from connect.core.herder_api import HerderApi, NotFound
from connect.core.model import State
from connect.kafka.concurrency import Scope, first_of, gather_limited, wall_ms
from rest.errors import RestError
from rest.rest_config import Flows
from rest.ui.flows_and_workers import SOURCE, FlowWorkers, KeptAnswers, UiFlow, flows_of, problems, rates_together

log = logging.getLogger(__name__)

OVERVIEW: Final = "overview"
#: How long a snapshot waits for a flow.
_WITHIN_S: Final = 5.0
#: With more flows, their cards do not have the rates of other workers: that would be too many requests.
_MOST_SUMMED: Final = 20
#: Failed tasks whose errors a snapshot contains.
_MOST_ERRORS: Final = 3


class Snapshots:
    """Takes snapshots of a process's flows."""

    def __init__(self, answers: KeptAnswers, workers: FlowWorkers) -> None:
        self._answers, self._workers = answers, workers

    async def take(self, herders: Flows) -> dict[str, Any]:
        """Return all flows by name: each its overview report and the states of its connectors."""
        flows = await flows_of(herders)
        are_summed = len(flows) <= _MOST_SUMMED
        shown = await gather_limited(lambda flow: self._shown(flow, is_summed=are_summed), flows.values())
        starting = [herder.stage() or "..." for herder in herders.values() if not herder.is_ready()]
        return {"flows": dict(zip(flows, shown, strict=True)), "starting": starting}

    async def _shown(self, flow: UiFlow, *, is_summed: bool) -> dict[str, Any]:
        """Return a flow of the snapshot; ``error`` says why its overview is old, or that there is none."""
        name = flow.connectors[SOURCE]
        answer = await self._answers.get(
            (OVERVIEW, flow.prefix, name), lambda: flow.herder.connector_report(name, OVERVIEW, {}), within_s=_WITHIN_S
        )
        overview, error, now_s = answer.data, answer.problem, asyncio.get_running_loop().time()
        if answer.asking is not None:
            error = f"{flow.name} has given no overview for {now_s - answer.began_s:.0f} s."
        if overview is not None and error is not None:
            error = f"{error} What you see is {now_s - answer.found_s:.0f} s old."
        if overview is not None and is_summed:
            overview = await self._summed(flow, overview)
        states = {part: _state(flow.herder, name) for part, name in flow.connectors.items()}
        return {**flow.to_json(), "states": states, OVERVIEW: overview, "error": error}

    async def _summed(self, flow: UiFlow, overview: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an overview with the rates of all workers of the flow; those of stored positions if one is silent."""
        rates = overview.get("rates")
        if not rates or rates["is_whole"]:
            return overview
        reports = await self._workers.reports(flow)
        silent = problems(reports)
        found = {} if silent or not reports else {**rates_together(reports), "is_whole": True}
        return {**overview, "rates": {**rates, **found, "silent": silent}}


def _state(herder: HerderApi, name: str) -> dict[str, Any] | None:
    """Return the state of a connector, how many of its tasks are in which, and why some failed; None without one."""
    try:
        info = herder.connector_status(name)
    except NotFound:
        return None
    parts = [("connector", info.connector), *((f"task {number}", status) for number, status in info.tasks.items())]
    failed = [(of, status) for of, status in parts if status.state == State.FAILED]
    return {
        "state": str(info.connector.state),
        "tasks": Counter(str(status.state) for status in info.tasks.values()),
        "errors": [
            {"of": of, "reason": (status.trace or "").strip().partition("\n")[0]}
            for of, status in failed[:_MOST_ERRORS]
        ],
    }


#: A snapshot takes at most this share of the time: after a slow one the next is delayed.
_SHARE: Final = 1 / 3
#: The browser connects again after that, so that a user who may no longer read is refused.
_LONGEST_S: Final = 900.0
#: The last one makes nginx pass on each event at once.
_HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class LiveFeed:
    """The events of a process: snapshots that ``look`` takes. ``most_clients`` bounds the open streams, which also
    count as connections of the server."""

    def __init__(
        self, look: Callable[[], Awaitable[dict[str, Any]]], interval_s: float = 2.0, most_clients: int = 64
    ) -> None:
        self._look = look
        self._interval_s = interval_s
        self._most_clients = most_clients
        self._clients = 0
        self._scope = Scope("dashboard")
        self._event = b""
        #: Set once there is a newer event; then replaced.
        self._news = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    async def close(self) -> None:
        self._closed.set()
        await self._scope.close()

    async def stream(self, receive: Receive, send: Send) -> None:
        """Answer a request with events until its client leaves. Raises RestError (503) if there are too many."""
        if self._clients >= self._most_clients or self._closed.is_set():
            raise RestError(503, f"{self._clients} pages are open, which is the most that this worker serves.")
        self._clients += 1
        try:
            if self._looking is None or self._looking.done():
                self._event = b""
                self._looking = self._scope.spawn(self._look_while_seen(), "snapshots of flows")
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            ends = (_left(receive), self._closed.wait(), asyncio.sleep(_LONGEST_S))
            await first_of("a page", self._send_events(send), *ends)
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._clients -= 1

    async def _send_events(self, send: Send) -> None:
        # The first bytes tell the browser that the stream is open.
        event = self._event or b": waiting for the first snapshot\n\n"
        while True:
            news = self._news
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await news.wait()
            event = self._event

    async def _look_while_seen(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._clients:
            began_s = clock()
            try:
                event = orjson.dumps({"at_ms": wall_ms(), **await self._look()})
            except Exception as error:  # a bug must not end the stream of all pages
                log.error("the flows could not be read for the dashboard", exc_info=error)
                problem = "The flows cannot be read because of a bug; the worker's log says more."
                event = orjson.dumps({"at_ms": wall_ms(), "flows": {}, "starting": [], "error": problem})
            self._event = b"data: " + event + b"\n\n"
            news, self._news = self._news, asyncio.Event()
            news.set()
            await asyncio.sleep(max(self._interval_s, (clock() - began_s) / _SHARE) - (clock() - began_s))


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
