"""What lies before the offset map, where retention passes the beginning while it is looked at."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connectors.checkpoint import offset_translation
from connectors.checkpoint.offset_translation import Beginnings
from connectors.offset_map.runs_and_chunks import MapPair

PAIR = MapPair("orders", UUID(int=1), 0, "us.orders", UUID(int=2), 0)


@pytest.mark.parametrize("has_some", [False, True])
async def test_what_lies_before_the_map_is_asked_for_once(monkeypatch: pytest.MonkeyPatch, has_some: bool) -> None:
    """Whatever is written later goes to the end; a transaction that is open there may still bring some."""
    asked: list[Any] = []

    async def known_offsets(*_: Any) -> Any:
        return {("us.orders", 0): 0}, {}

    async def has_records(_: Any, *wanted: Any, is_decided: bool) -> bool:
        assert is_decided
        asked.append(wanted)
        return has_some

    monkeypatch.setattr(offset_translation, "known_offsets", known_offsets)
    monkeypatch.setattr(offset_translation, "has_records", has_records)
    found = Beginnings(cast(Any, SimpleNamespace(name="eu")))
    assert not await found.is_bare_before(PAIR, 0), "nobody knows where the log begins"
    await found.follow([PAIR])
    assert await found.is_bare_before(PAIR, 0)
    for _ in range(2):
        assert await found.is_bare_before(PAIR, 100) == (not has_some)
    assert await found.is_bare_before(PAIR, 1) == (not has_some)
    place = ("us.orders", 0)
    assert asked == [(place, 0, 100), (place, 0, 1)], "another offset is another question"
    await found.follow([])
    await found.follow([PAIR])
    await found.is_bare_before(PAIR, 1)
    assert asked[2:] == [(place, 0, 1)]


async def test_a_leader_that_is_missing_for_a_moment_takes_no_beginning_away(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ("us.orders", 0)
    answers: list[Any] = [
        ({}, {place: "no leader"}),
        ({place: 900}, {}),
        ({}, {place: "no leader"}),
        ({place: 950}, {}),
    ]

    async def known_offsets(*_: Any) -> Any:
        return answers.pop(0)

    monkeypatch.setattr(offset_translation, "known_offsets", known_offsets)
    found, seen = Beginnings(cast(Any, SimpleNamespace(name="eu"))), []
    while answers:
        await found.follow([PAIR])
        seen.append(found.readable(PAIR, 100))
    assert seen == [None, 900, 900, 950]
    answers = [({}, {place: "no leader"})]
    anew = replace(PAIR, target_topic_id=UUID(int=3))
    await found.follow([anew])
    assert found.readable(anew, 100) is None
