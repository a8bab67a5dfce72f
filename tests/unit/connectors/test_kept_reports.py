"""Reports that take long are found outside the loop, shared, and given again for a few seconds."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from connect.core.errors import ConfigError, RetriableError
from connectors import kept_reports
from connectors.kept_reports import KeptReports, rows_asked


async def test_callers_share_an_answer_that_is_new_and_old_ones_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, reads = 100.0, 0
    monkeypatch.setattr(kept_reports, "time", SimpleNamespace(monotonic=lambda: now_s))
    reports = KeptReports()

    async def find() -> int:
        nonlocal reads
        assert threading.current_thread() is not threading.main_thread()
        reads += 1
        await asyncio.sleep(0.01)
        return reads

    assert await asyncio.gather(*(reports.get("a", 5, find) for _ in range(3))) == [1, 1, 1]
    assert await reports.get("b", 5, find) == 2
    now_s += 5
    assert await reports.get("a", 5, find) == 3
    assert list(reports._kept) == ["a"]


async def test_a_cluster_that_hangs_fails_one_report_and_delays_neither_others_nor_the_end_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_reports, "_WITHIN_S", 0.2)
    reports, threads = KeptReports(), list[threading.Thread]()

    async def hang() -> None:
        threads.append(threading.current_thread())
        await asyncio.Event().wait()

    async def find() -> str:
        return "found"

    hanging = asyncio.ensure_future(reports.get("a", 5, hang))
    assert await reports.get("b", 5, find) == "found"
    with pytest.raises(RetriableError, match="no answer within"):
        await hanging
    # An executor's thread is joined at the end of the loop.
    assert threads[0].daemon
    assert await reports.get("a", 5, find) == "found"


def test_the_rows_of_a_query_are_bounded() -> None:
    assert [rows_asked(text) for text in ("0", "20", "9" * 5000)] == [0, 20, 1000]
    with pytest.raises(ConfigError, match="number of rows"):
        rows_asked("-1")
