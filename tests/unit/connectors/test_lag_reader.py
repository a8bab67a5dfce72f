"""How far a flow is copied as whoever runs no worker reads it: by its positions, unless its offsets were altered."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.core import offsetlog
from connect.kafka.cluster import Cluster
from connectors import lag_reader
from connectors.dataplane.plan import TopicPartition
from connectors.lag_reader import LagReader
from connectors.positions import Position, StoredPosition

ORDERS = TopicPartition("orders", 0)
FULL = Position("orders", 0, None, 10, 1, "us.orders", 0, None, 10, "txn", 7, 0, 10)
NEWEST = replace(FULL, next_source_offset=90, target_end=90, next_sequence=90)


@pytest.mark.parametrize(
    ("full", "java", "found"),
    [(10, 9, {ORDERS: 90}), (10, 49, {ORDERS: 50}), (10, None, {}), (0, None, {ORDERS: 90})],
)
async def test_positions_are_newer_than_javas_offsets(
    monkeypatch: pytest.MonkeyPatch, full: int, java: int | None, found: dict[TopicPartition, int]
) -> None:
    async def offsets(*_: object) -> offsetlog.SourceOffsets:
        state = offsetlog.SourceOffsets()
        if java is not None:
            offsetlog.apply(state, offsetlog.mirror_key("mirror", "us", *ORDERS), offsetlog.mirror_value(java))
        return state

    async def positions(*_: object) -> dict[TopicPartition, StoredPosition]:
        return {ORDERS: StoredPosition(NEWEST, replace(FULL, next_source_offset=full))}

    monkeypatch.setattr(lag_reader, "read_stored_offsets", offsets)
    monkeypatch.setattr(lag_reader, "read_stored_positions", positions)
    settings: Any = SimpleNamespace(name="mirror", source_alias="us", offsets_topic="offsets", map_topic="map")
    target = cast(Cluster, None)
    assert await LagReader(settings, target, target).stored([ORDERS]) == found
