"""What lies before the offset map, where retention passes the beginning while it is looked at."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connectors.checkpoint import beginnings
from connectors.checkpoint.beginnings import Beginnings
from connectors.offset_map import Pair

PAIR = Pair("orders", UUID(int=1), 0, "us.orders", UUID(int=2), 0)


class Consumer:
    """Of a log from ``start`` to ``end``; asked for what is deleted it is reset, as aiokafka's is."""

    def __init__(self, start: int, end: int, auto_offset_reset: str) -> None:
        self._start, self._end = start, end
        self._reset_to = {"earliest": start, "latest": end}[auto_offset_reset]
        self._at = 0

    def assign(self, _: Any) -> None: ...

    def seek(self, _: Any, offset: int) -> None:
        self._at = offset

    async def position(self, _: Any) -> int:
        return self._at

    async def getmany(self, place: Any, **_: Any) -> Any:
        if self._at < self._start:
            self._at = self._reset_to
            return {}
        if self._at >= self._end:
            return {}
        self._at += 1
        return {place: [SimpleNamespace(offset=self._at - 1)]}


@pytest.mark.parametrize(
    ("start_then", "is_bare"),
    [
        (0, False),
        (40, False),  # retention took some of what lies before the map, and not all
        (100, True),
        (120, True),
    ],
)
async def test_what_is_left_decides_where_retention_has_passed_the_beginning(
    monkeypatch: pytest.MonkeyPatch, start_then: int, is_bare: bool
) -> None:
    """The log began at 0 when that was asked for; the map begins at 100."""

    async def told_offsets(*_: Any) -> Any:
        return {("us.orders", 0): 0}, {}

    @asynccontextmanager
    async def reader(_: Any, *, read_committed: bool, auto_offset_reset: str = "latest") -> AsyncIterator[Consumer]:
        assert read_committed
        yield Consumer(start_then, 500, auto_offset_reset)

    monkeypatch.setattr(beginnings, "told_offsets", told_offsets)
    monkeypatch.setattr(beginnings, "reader", reader)
    found = Beginnings(cast(Any, SimpleNamespace(name="eu")))
    await found.follow([PAIR])
    assert await found.is_bare_before(PAIR, 100) == is_bare


async def test_a_leader_that_is_missing_for_a_moment_takes_no_beginning_away(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ("us.orders", 0)
    answers: list[Any] = [
        ({}, {place: "no leader"}),
        ({place: 900}, {}),
        ({}, {place: "no leader"}),
        ({place: 950}, {}),
    ]

    async def told_offsets(*_: Any) -> Any:
        return answers.pop(0)

    monkeypatch.setattr(beginnings, "told_offsets", told_offsets)
    found, seen = Beginnings(cast(Any, SimpleNamespace(name="eu"))), []
    while answers:
        await found.follow([PAIR])
        seen.append(found.readable(PAIR, 100))
    assert seen == [None, 900, 900, 950]
    answers = [({}, {place: "no leader"})]
    anew = replace(PAIR, target_topic_id=UUID(int=3))
    await found.follow([anew])
    assert found.readable(anew, 100) is None
