"""The gap of a source topic that is gone begins behind what had arrived of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connectors.dataplane.plan import PartitionPlan, TopicPartition
from connectors.gaps import Gap, GapKind
from connectors.source import arrived
from connectors.source.arrived import narrow_gaps
from connectors.source.ledger import Entry, Pair, Passing
from connectors.source.store import Start
from tests.unit.source.test_trimming import position

ORDERS = TopicPartition("orders", 0)
#: A writer that may have left more than it stored: 100 is copied next.
UNCLEAN = replace(position(100), source_topic="orders", is_handed_over=False, is_atomic=False)


class Target:
    """A cluster that has the topic that was written to, or another one in its place, or none."""

    def __init__(self, topic_id: Any = UNCLEAN.target_topic_id, partitions: int = 1) -> None:
        self.topic = SimpleNamespace(topic_id=topic_id, partitions=dict.fromkeys(range(partitions)))

    async def metadata(self, names: set[str]) -> Any:
        return SimpleNamespace(topics=dict.fromkeys(names, self.topic))


async def begins_at(
    monkeypatch: pytest.MonkeyPatch,
    kind: GapKind,
    start: Start,
    target: Target,
    records: int = 37,
    *,
    waits: bool = False,
) -> int:
    entry = Entry(Pair(ORDERS, None, TopicPartition("us.orders.1c9bd204", 0), None))
    entry.passing = Passing(1, Gap(kind, first=100, go_on_at=0))
    if waits:
        entry.wait("its target has no leader")
    asked: list[PartitionPlan] = []

    class Resumer:
        def __init__(self, *_: object) -> None:
            pass

        async def arrived(self, plan: PartitionPlan) -> int:
            asked.append(plan)
            return records

    monkeypatch.setattr(arrived, "Resumer", Resumer)
    settings = cast("Any", SimpleNamespace(flow="us->eu"))
    await narrow_gaps(cast("Any", None), cast("Any", target), settings, [entry], {ORDERS: start})
    assert not (waits and asked), "the others of the task would wait with it"
    assert all(plan.target.topic == UNCLEAN.target_topic for plan in asked), "where it was written to"
    return entry.passing.gap.first


@pytest.mark.parametrize(
    ("kind", "start", "target", "first"),
    [
        (GapKind.SOURCE_RECREATED, Start(UNCLEAN, 99, False), Target(), 137),
        (GapKind.SOURCE_RECREATED, Start(replace(UNCLEAN, is_handed_over=True), 99, False), Target(), 100),
        (GapKind.SOURCE_RECREATED, Start(replace(UNCLEAN, is_atomic=True), 99, False), Target(), 100),
        (GapKind.SOURCE_RECREATED, Start(None, 99, False), Target(), 100),
        (GapKind.SOURCE_RECREATED, Start(UNCLEAN, 99, False), Target(topic_id=object()), 100),
        (GapKind.SOURCE_RECREATED, Start(UNCLEAN, 99, False), Target(partitions=0), 100),
        # Such a source can be asked.
        (GapKind.SOURCE_GAP, Start(UNCLEAN, 99, False), Target(), 100),
    ],
)
async def test_what_is_at_the_target_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, kind: GapKind, start: Start, target: Target, first: int
) -> None:
    assert await begins_at(monkeypatch, kind, start, target) == first


async def test_a_partition_that_waits_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Start(UNCLEAN, 99, False)
    assert await begins_at(monkeypatch, GapKind.SOURCE_RECREATED, start, Target(), waits=True) == 100


async def test_where_nothing_arrived_the_gap_begins_at_the_position(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = Start(UNCLEAN, 99, False)
    assert await begins_at(monkeypatch, GapKind.SOURCE_RECREATED, start, Target(), records=0) == 100
    assert not caplog.text
    await begins_at(monkeypatch, GapKind.SOURCE_RECREATED, start, Target())
    assert (
        "resumed us->eu orders-0: surplus=37 verified=false fallback=gap may_double=0 may_be_there=37 source_offset=137"
        in caplog.text
    )
