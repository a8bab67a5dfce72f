"""What a stream of MirrorMaker 1 tells of topics that are wanted and not copied."""

from __future__ import annotations

import logging
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.kafka.group_requests import CONSUMER, GroupSettings
from connectors.mirror_maker_1.lent import Lent
from connectors.mirror_maker_1.stream import Stream
from connectors.mirror_maker_1.topics import takes
from tests.kit.one_loop import OneLoop


class Source:
    """Has these topics, each of one partition."""

    name = "source"

    def __init__(self, *topics: str) -> None:
        self.topics = topics

    def seen_by(self, client_id: str) -> Source:
        del client_id
        return self

    async def metadata(self, topics: Collection[str] | None) -> Any:
        del topics
        found = {name: SimpleNamespace(name=name, error_code=0, partitions={0: None}) for name in self.topics}
        return SimpleNamespace(topics=found)


def a_stream(source: Source, number: int) -> Stream:
    group = GroupSettings("g", "c", protocol_type=CONSUMER)
    lent = SimpleNamespace(
        leases=OneLoop(),
        name=f"stream {number}",
        number=number,
        clusters=SimpleNamespace(source=source, target=source),
        source=SimpleNamespace(flow="source->target", group=group, group_settings=lambda _: group),
        settings=SimpleNamespace(options=SimpleNamespace(takes=takes("orders.*", None))),
    )
    return Stream(cast(Lent, lent), None)


async def test_wanted_topics_that_are_taken_for_internal_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = Source("orders", "orders-internal")
    streams = [a_stream(source, number) for number in range(2)]
    for _ in range(2):
        for stream in streams:
            assert list((await stream._look()).here) == ["orders"]
    assert caplog.text.count("whatever the command line says: orders-internal") == 1
    source.topics = (*source.topics, "orders.internal")
    await streams[0]._look()
    assert caplog.text.count("whatever the command line says: orders.internal") == 1
