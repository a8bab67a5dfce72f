"""Of which partitions the map was lost, and the line that names them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.core.errors import RetriableError
from connectors.dataplane.plan import TopicPartition
from connectors.map_alignment import Side
from connectors.source import lost_maps
from connectors.source.ledger import Ledger, Pair
from connectors.source.store import PositionStore
from tests.unit.source.test_trimming import position

#: By partition: where the map begins in source and target, where the target's log begins, and the source's.
CASES = {
    "whole": ((0, 0), 0, 0),
    "java": ((900, 880), 0, 100),
    "only a marker before": ((0, 1), 0, 0),
    "begun at the latest": ((900, 0), 0, 100),
    "trimmed": ((900, 880), 881, 100),
    "gone at the source": ((900, 880), 0, 900),
    "not stored yet": ((1000, 1000), 0, 0),
    "compacted behind a fence": ((900, 2), 0, 0),
    "compacted since": ((900, 880), 0, 0),
    "unreadable": ((900, 880), 0, 0),
}
#: Of those, which have no record below the map's beginning, though there are offsets.
EMPTY = {("us.compacted behind a fence", 2), ("compacted since", 900)}


class Feed:
    """Of a log that is known by its name."""

    def __init__(self, _: object, partition: TopicPartition, __: object, top: int, **___: object) -> None:
        self.topic, self.top = partition.topic, top

    async def has_records(self) -> bool:
        if self.topic == "unreadable":
            raise RetriableError("cluster us: unreadable-0 has no leader now")
        return (self.topic, self.top) not in EMPTY


async def test_it_names_those_of_which_both_logs_have_earlier_records(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sources = {name: TopicPartition(name, 0) for name in CASES}
    ledger = Ledger([Pair(one, None, TopicPartition(f"us.{one.topic}", 0), None) for one in sources.values()])
    for name, source in sources.items():
        ledger.begin(source, replace(position(1000), source_topic=name))
        ledger.entries[source].target_log_start = CASES[name][1]
    ledger.entries[sources["not stored yet"]].runs.append((0, 0, 1000))
    store = SimpleNamespace(map_begin=lambda of: CASES[of.source_topic][0])

    async def starts(_: object, partitions: Collection[TopicPartition], __: int) -> dict[Any, int]:
        return {one: CASES[one.topic][2] for one in partitions}

    monkeypatch.setattr(lost_maps, "list_offsets", starts)
    monkeypatch.setattr(lost_maps, "LogFeed", Feed)
    clusters = dict.fromkeys(Side, cast("Any", None))
    lost = await lost_maps.lost_maps(clusters, cast("PositionStore", store), ledger.going(), read_committed=True)
    lost_maps.tell("us->eu task 0", lost, 0)
    assert caplog.text.count("lacks what was copied first") == 1
    assert "of java-0 (below 900), unreadable-0 (below 900): such source offsets" in caplog.text
    assert "--rebuild" in caplog.text
