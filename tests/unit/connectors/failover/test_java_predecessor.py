"""Copies of Java's MirrorMaker 2 under names that are kept: nothing of ours tells where they end."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from connect.core import status_and_offset_topics
from connect.core.errors import PermanentError
from connect.core.status_and_offset_topics import SourceOffsets
from connect.kafka.log.offsets import EARLIEST
from connectors.failover import failback_and_undo, reverse_flow
from connectors.failover.plan import FailoverOptions
from connectors.failover.reverse_flow import CopiedPartition, comes_back, copied
from connectors.formats.types import TopicPartition
from tests.kit.answers import put

ORDERS = TopicPartition("orders", 0)
_NAME = "MirrorSourceConnector"


def stored(alias: str, *offsets: tuple[str, int]) -> SourceOffsets:
    found = SourceOffsets()
    for topic, offset in offsets:
        status_and_offset_topics.apply(
            found,
            status_and_offset_topics.mirror_key(_NAME, alias, topic, 0),
            status_and_offset_topics.mirror_value(offset),
        )
    return found


def flow(alias: str, prefix: str = "", *, enabled: bool = True) -> Any:
    def remote_topic(topic: str) -> str:
        if topic == "nameless":
            raise PermanentError("it has no name there")
        return prefix + topic

    return SimpleNamespace(
        flow=f"{alias}->", name=_NAME, source_alias=alias, target_alias=f"not {alias}", offsets_topic=f"of {alias}",
        enabled=enabled, remote_topic=remote_topic, should_mirror=lambda topic: topic != "kept",
    )  # fmt: skip


def test_only_copies_that_would_come_back_to_where_they_came_from_count() -> None:
    offsets = stored("us", ("orders", 40), ("nameless", 40), ("kept", 40))
    status_and_offset_topics.apply(
        offsets, status_and_offset_topics.encode_key(_NAME, {"filename": "a"}), b'{"position": 3}'
    )
    assert copied(flow("us"), flow("eu"), offsets) == [CopiedPartition(ORDERS, ORDERS, 40)]
    assert copied(flow("us", "us."), flow("eu", "eu."), offsets) == []


@pytest.mark.parametrize(
    ("ours", "begun", "us", "eu", "is_enabled", "is_reported"),
    [
        ((), stored("eu"), (0, 41), (0, 41), True, True),
        ((ORDERS,), stored("eu"), (0, 41), (0, 41), True, False),
        ((), stored("eu", ("orders", 40)), (0, 41), (0, 41), True, False),  # somebody has said where it begins
        ((), stored("eu"), (0, 40), (0, 41), True, False),  # recreated since
        ((), stored("eu"), None, (0, 41), True, False),
        ((), stored("eu"), (0, 41), (41, 41), True, False),
        ((), stored("eu"), (0, 41), None, True, False),
        ((), stored("eu"), (0, 41), (0, 41), False, False),
    ],
)
async def test_what_java_copied_does_not_come_back_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
    ours: Collection[TopicPartition],
    begun: SourceOffsets,
    us: tuple[int, int] | None,
    eu: tuple[int, int] | None,
    is_enabled: bool,
    is_reported: bool,
) -> None:
    class Cluster:
        def __init__(self, log: tuple[int, int] | None) -> None:
            self.log = log

        async def metadata(self, topics: set[str]) -> Any:
            partitions = {} if self.log is None else {0: None}
            return SimpleNamespace(topics={name: SimpleNamespace(partitions=partitions) for name in topics})

    async def read(_: Any, topic: str) -> SourceOffsets:
        return {"of us": stored("us", ("orders", 40)), "of eu": begun}[topic]

    async def offsets(cluster: Cluster, partitions: Collection[Any], at: int) -> dict[Any, int]:
        assert cluster.log is not None or not partitions, "what is not there is not asked for"
        return {} if cluster.log is None else dict.fromkeys(partitions, cluster.log[at != EARLIEST])

    monkeypatch.setattr(reverse_flow, "read_stored_offsets", read)
    monkeypatch.setattr(reverse_flow, "list_offsets", offsets)
    site: Any = SimpleNamespace(
        flow=flow("us"), back=flow("eu", enabled=is_enabled), source=Cluster(us), target=Cluster(eu)
    )
    reported = await comes_back(site, ours)
    assert len(reported) == is_reported
    for why in reported:
        assert "eu-> would copy them all back" in why and "set the offset of eu-> for orders-0" in why


async def test_it_is_asked_where_nothing_of_ours_is_stored_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def why(_: Any, ours: Collection[TopicPartition]) -> list[str]:
        assert not ours
        return ["they would come back"]

    for module in (reverse_flow, failback_and_undo):
        put(monkeypatch, module, read_positions={})
        monkeypatch.setattr(module, "comes_back", why)
    flows: Any = SimpleNamespace(map_topic="map", name=_NAME, offsets_topic="offsets", source_alias="us")
    site: Any = SimpleNamespace(flow=flows, back=flows, source=None, target=None)
    site.turned = lambda: site
    assert await reverse_flow.starts_due(site, {}) == ([], ["they would come back"], {})
    failback = failback_and_undo.Failback(site, FailoverOptions(lambda _: True), print)
    assert await failback._keeps_names(), "else nobody looks at where the flow begins"
