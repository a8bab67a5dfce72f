"""Groups that stand before all that the offset map knows: they begin with the copy, and no record is skipped unsaid."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.kafka.log.offsets import EARLIEST
from connectors.failover import offset_lookup
from connectors.failover.offset_lookup import TargetOffsets
from connectors.failover.plan import is_blocking
from connectors.failover.snapshot import GroupFinding, GroupMove, GroupRule, How, TargetOffset
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.offset_map.runs_and_chunks import MapPair, MappedOffset, MapRun, RunList
from connectors.offset_map.runs_and_chunks import OffsetLocation as Lies
from connectors.policy import DefaultReplicationPolicy
from tests.kit.answers import answers

SOURCE, TARGET = TopicPartition("orders", 0), TopicPartition("us.orders", 0)
IDS = {"orders": UUID(int=1), "us.orders": UUID(int=2)}
POSITION = Position("orders", 0, IDS["orders"], 1500, 2, "us.orders", 0, IDS["us.orders"], 500, "", -1, -1, 0)


class Cluster:
    def __init__(self, name: str, start: int, end: int, holes: Collection[range] = ()) -> None:
        self.name, self.start, self.end = name, start, end
        self._holes = holes

    async def metadata(self, topics: set[str]) -> Any:
        there = {one: SimpleNamespace(topic_id=IDS[one], partitions={0: 1}) for one in topics if one in IDS}
        return SimpleNamespace(topics=there)

    async def read(self, begin: int, end: int) -> AsyncGenerator[int, None]:
        for offset in range(max(begin, self.start), min(end, self.end)):
            if not any(offset in hole for hole in self._holes):
                yield offset


class Maps:
    """Of one flow; the flow back has copied nothing."""

    is_whole = True

    def __init__(self, runs: list[MapRun], position: Position | None) -> None:
        self._runs, self._position = RunList(runs), position

    async def follow(self) -> None: ...

    def sources(self) -> list[TopicPartition]:
        return [SOURCE] if self._position else []

    def positions(self, source: TopicPartition) -> list[Position]:
        return [self._position] if self._position and source == SOURCE else []

    def position(self, source: TopicPartition) -> Position | None:
        return next(iter(self.positions(source)), None)

    def current(self, source: TopicPartition) -> MapPair | None:
        position = self.position(source)
        return None if position is None else MapPair.of(position)

    def pairs_to(self, target: TopicPartition) -> list[MapPair]:
        return [MapPair.of(self._position)] if self._position and target == TARGET else []

    async def forward(self, _: MapPair, offset: int) -> MappedOffset | None:
        return self._runs.forward(offset)

    async def reverse(self, _: MapPair, offset: int) -> MappedOffset | None:
        return self._runs.reverse(offset)


class NoSyncs:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.store = SimpleNamespace(translate=lambda *_: None)

    async def follow(self) -> None: ...


async def look(
    monkeypatch: pytest.MonkeyPatch,
    us: Cluster,
    eu: Cluster,
    runs: list[MapRun],
    offset: int,
    position: Position = POSITION,
    *,
    is_bare: bool = True,
    **of_flow: Any,
) -> tuple[TargetOffset | None, list[GroupFinding]]:
    """Where a group at ``offset`` of us goes by the real :class:`TargetOffsets`, and what is said of it."""

    async def reported(cluster: Cluster, partitions: Collection[Any], at: int, **_: Any) -> Any:
        return dict.fromkeys(partitions, cluster.start if at == EARLIEST else cluster.end), {}

    async def start(cluster: Cluster, *_: Any) -> int:
        return cluster.start

    async def has_records(cluster: Cluster, _: Any, begin: int, end: int) -> bool:
        return bool([one async for one in cluster.read(begin, end)])

    maps = {"there": Maps(runs, position), "back": Maps([], None)}
    monkeypatch.setattr(offset_lookup, "MapReader", lambda _, topic, **__: maps[topic])
    monkeypatch.setattr(offset_lookup, "OffsetSyncReader", NoSyncs)
    monkeypatch.setattr(offset_lookup, "list_offset", start)
    monkeypatch.setattr("connectors.checkpoint.offset_translation.known_offsets", reported)
    monkeypatch.setattr("connectors.checkpoint.offset_translation.has_records", answers(not is_bare))
    monkeypatch.setattr(offset_lookup, "known_offsets", reported)
    monkeypatch.setattr(offset_lookup, "has_records", has_records)
    plain = {
        "changing_key": "", "skips_refused": False, "auto_offset_reset": "earliest", "initial_offsets_group": "",
        "name": "MirrorSourceConnector", "enabled": True, "source_alias": "us", **of_flow,
    }  # fmt: skip
    flow, back = (cast(Any, SimpleNamespace(flow=one, map_topic=one, **plain)) for one in maps)
    clusters = cast(Any, us), cast(Any, eu)
    settings: Any = SimpleNamespace(
        syncs_on_source=True, offset_syncs_topic="syncs", flow="us->eu", source_alias="us", target_alias="eu",
        policy=DefaultReplicationPolicy(),
    )  # fmt: skip
    parts = {"flow": flow, "back": back, "checkpoints": settings}
    site: Any = SimpleNamespace(**parts, target=clusters[1], maps=offset_lookup.Maps())
    found = TargetOffsets(site, clusters[0])
    await found.begin()
    place = await found.of("orders", 0, offset)
    if place is None:
        return None, []
    move = GroupMove("g", ("orders", 0), offset, place[:2], None, "", place.offset, "", place.how)
    (moved,), left = await offset_lookup.readable([move], *clusters, found)
    return place._replace(offset=moved.after), left


async def test_a_flow_that_began_at_the_end_lacks_what_a_group_has_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    us, eu = Cluster("us", 0, 1500), Cluster("eu", 0, 500)
    place, (left,) = await look(monkeypatch, us, eu, [MapRun(1000, 0, 500)], 600)
    assert place == TargetOffset("us.orders", 0, 0, How.BEGIN)
    assert is_blocking(left) and "from offset 600 the group would skip" in left.why


async def test_nor_has_one_that_has_copied_nothing_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    us, eu = Cluster("us", 0, 1000), Cluster("eu", 0, 0)
    begun = replace(POSITION, next_source_offset=1000, target_end=0)
    for offset, count in ((600, 1), (999, 1), (1000, 0)):
        place, left = await look(monkeypatch, us, eu, [], offset, begun)
        assert place == TargetOffset("us.orders", 0, 0, How.BEGIN)
        assert [is_blocking(one) for one in left] == [True] * count, offset


async def test_what_the_target_has_deleted_off_the_map_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    us, eu = Cluster("us", 0, 1500), Cluster("eu", 500, 1500)
    place, (left,) = await look(monkeypatch, us, eu, [MapRun(480, 480, 1020)], 300)
    assert place == TargetOffset("us.orders", 0, 500, How.BEGIN)
    assert is_blocking(left)


@pytest.mark.parametrize(("us_start", "obstacles"), [(700, 1), (1000, 0)])
async def test_only_what_the_source_has_counts(monkeypatch: pytest.MonkeyPatch, us_start: int, obstacles: int) -> None:
    """From there to where the copy begins, which is at 1000."""
    us, eu = Cluster("us", us_start, 1500), Cluster("eu", 0, 500)
    _, left = await look(monkeypatch, us, eu, [MapRun(1000, 0, 500)], 600)
    assert len(left) == obstacles


@pytest.mark.parametrize(
    ("of_flow", "eu_start", "is_obstacle"),
    [
        ({"changing_key": "transform.sql"}, 0, False),
        ({"changing_key": "transforms"}, 0, False),
        # Single records perhaps, and nobody knows which.
        ({"skips_refused": True}, 0, True),
        ({}, 0, True),
        # Some of what was copied is deleted there, and the group has not read it.
        ({"changing_key": "transforms"}, 3, True),
        # What it never saw it did not leave out.
        ({"changing_key": "transforms", "auto_offset_reset": "latest"}, 0, True),
        ({"changing_key": "transforms", "initial_offsets_group": "readers"}, 0, True),
    ],
)
async def test_what_the_flow_leaves_out_on_purpose_is_in_nobodys_way(
    monkeypatch: pytest.MonkeyPatch, of_flow: dict[str, Any], eu_start: int, is_obstacle: bool
) -> None:
    us, eu = Cluster("us", 0, 1500), Cluster("eu", eu_start, 500)
    place, (left,) = await look(monkeypatch, us, eu, [MapRun(1000, 0, 500)], 0, **of_flow)
    assert place == TargetOffset("us.orders", 0, eu_start, How.BEGIN)
    assert is_blocking(left) == is_obstacle
    assert is_obstacle or f"{of_flow.get('changing_key', 'errors.tolerance')} may leave records out" in left.why


async def test_holes_before_the_first_record_are_nothing_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compacted topic whose first records have newer values: the group stands at its beginning."""
    us, eu = Cluster("us", 0, 1500, [range(7)]), Cluster("eu", 0, 1493)
    place, left = await look(monkeypatch, us, eu, [MapRun(7, 0, 1493)], 0)
    assert (place, left) == (TargetOffset("us.orders", 0, 0, How.BEGIN), [])


async def test_by_copies_that_the_map_does_not_know_nobody_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    us, eu = Cluster("us", 0, 1500), Cluster("eu", 0, 700)
    place, (left,) = await look(monkeypatch, us, eu, [MapRun(1000, 200, 500)], 600, is_bare=False)
    assert place == TargetOffset("us.orders", 0, 0, How.BEGIN)
    assert left.rule is GroupRule.NOT_COPIED


async def test_inside_the_map_places_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    us, eu = Cluster("us", 0, 1500), Cluster("eu", 0, 500)
    exact = TargetOffset("us.orders", 0, 200, How.EXACT)
    assert await look(monkeypatch, us, eu, [MapRun(1000, 0, 500)], 1200) == (exact, [])


@pytest.mark.parametrize(
    ("copied", "back", "first"),
    [
        ((60, Lies.INSIDE), (1000, Lies.BELOW), 60),
        ((1000, Lies.BELOW), (57, Lies.INSIDE), 57),
        ((1000, Lies.GAP), (1057, Lies.INSIDE), 1057),  # it came from there: both maps know of what lies beside it
        ((1000, Lies.BELOW), None, 1000),
        (None, None, None),
    ],
)
def test_of_two_maps_the_one_that_reaches_so_far_tells(
    copied: tuple[int, Lies] | None, back: tuple[int, Lies] | None, first: int | None
) -> None:
    assert offset_lookup.first_of([one and MappedOffset(*one) for one in (copied, back)]) == first
