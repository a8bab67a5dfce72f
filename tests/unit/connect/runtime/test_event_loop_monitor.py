"""A blocked loop is reported once, with the task that blocks it; a running loop never is."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import threading
import time

import pytest

from connect.kafka.threads import LeaseThread
from connect.runtime.event_loop_monitor import LoopWatch, collect_rarely, culprit
from tests.kit.members import until

_DEADLINE_S = 60.0


async def block_until_reported(watch: LoopWatch) -> None:
    """What a careless plugin does."""
    deadline_s = time.monotonic() + _DEADLINE_S
    while not watch.stalls and time.monotonic() < deadline_s:
        time.sleep(0.01)  # noqa: ASYNC251


async def test_who_holds_up_the_loop_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    leases = LeaseThread(30.0)
    leases.start()
    watch = LoopWatch(leases)
    watch.start()
    try:
        await asyncio.create_task(block_until_reported(watch), name="task lines-0")
        await until(lambda: "runs again" in caplog.text, "that it runs again")
    finally:
        await leases.stop()
    assert watch.stalled_s > 1.0
    assert leases.longest_stall_s > 0.5
    reported = [each.getMessage() for each in caplog.records if "has been blocked" in each.getMessage()]
    assert len(reported) == watch.stalls, "once each; a busy machine may hold it up again"
    assert "task lines-0 blocks it in" in reported[0]
    assert "block_until_reported" in reported[0].splitlines()[0]
    await until(lambda: "leases" not in [each.name for each in threading.enumerate()], "its thread has ended")


async def test_what_the_loop_did_is_told_each_time_that_it_is_later_than_ever(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    leases = LeaseThread(30.0)
    leases.start()
    LoopWatch(leases).start()

    def reported() -> list[str]:
        return [each.getMessage() for each in caplog.records if "the longest delay" in each.getMessage()]

    try:
        await asyncio.create_task(busy_for(0.9), name="task lines-0")
        await until(reported, "that it was late")
        count = len(reported())
        await busy_for(0.6)
        await asyncio.sleep(0.6)
    finally:
        await leases.stop()
    assert "task lines-0 was in " in reported()[0] and "busy_for" in reported()[0]
    late_ms, used_ms = (int(found) for found in re.findall(r"(\d+) ms", reported()[0]))
    assert late_ms > 400 and used_ms > 0
    assert len(reported()) == count or leases.longest_stall_s > 0.9, "the delay was not longer than before"


async def busy_for(seconds: float) -> None:
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        pass


def test_the_innermost_frame_of_a_plugin_is_the_culprit() -> None:
    frames = [
        ("time", "sleep"),
        ("plugin.io", "read"),
        ("plugin", "poll"),
        ("connect.runtime.task.source_task", "_poll"),
    ]
    assert culprit(frames) == "read"
    assert culprit([("selectors", "select"), ("asyncio.base_events", "run")]) == "select"


def test_a_garbage_collection_scans_few_objects() -> None:
    """100,000 take 20 ms, during which nothing else runs."""
    before, scanned = gc.get_threshold(), list[int]()

    def collecting(phase: str, details: dict[str, int]) -> None:
        if phase == "start":
            scanned.append(len(gc.get_objects(details["generation"])))

    try:
        collect_rarely()
        gc.callbacks.append(collecting)
        kept = [[index] for index in range(50_000)]
    finally:
        gc.callbacks.remove(collecting)
        gc.set_threshold(*before)
        gc.unfreeze()
    assert len(kept) == 50_000
    assert scanned and max(scanned) < 20_000
