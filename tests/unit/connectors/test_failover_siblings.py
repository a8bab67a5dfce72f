"""A third cluster's topic that is copied to both sides: groups go from one copy to the other, or are told why not."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import UUID

import pytest

from connect.core.errors import SecurityError
from connect.core.properties import parse_properties
from connect.kafka.group_offsets import CLASSIC, Committed, GroupListing
from connect.kafka.offsets import EARLIEST
from connectors.checkpoint import beginnings
from connectors.checkpoint.beginnings import Beginnings
from connectors.dataplane.plan import TopicPartition
from connectors.failover import group_look, log_starts, preflight, siblings
from connectors.failover.group_look import GroupsLook
from connectors.failover.model import How
from connectors.failover.places import Places
from connectors.failover.siblings import Siblings, beside_the_lost
from connectors.failover.site import Site
from connectors.failover.third import third_clusters
from connectors.flows import MirrorMakerConfig
from connectors.offset_map import Pair, Run, RunList, Translation
from connectors.positions import Position

AP, US, EU, NEW = (UUID(int=at) for at in range(1, 5))
ORDERS: Final = TopicPartition("orders", 0)
THREE: Final = """
clusters = us, eu, ap
us.bootstrap.servers = us:9092
eu.bootstrap.servers = eu:9092
ap.bootstrap.servers = ap:9092
topics = orders
""" + "".join(
    f"{one}->{other}.enabled = true\n" for one in ("us", "eu", "ap") for other in ("us", "eu", "ap") if one != other
)


def position(copied: int, end: int, topic_id: UUID = US) -> Position:
    return Position("orders", 0, AP, copied, 0, "ap.orders", 0, topic_id, end, "", -1, -1, 0)


class Cluster:
    """``holes``: offsets of ap.orders without a record."""

    def __init__(self, name: str, topic_id: UUID, begin: int = 0, end: int = 0, holes: Collection[int] = ()) -> None:
        self.name, self.begin, self.end, self.holes = name, begin, end, holes
        self.topics: dict[str, UUID] = {"ap.orders": topic_id}

    async def metadata(self, topics: Collection[str] | None) -> Any:
        wanted = self.topics if topics is None else topics
        known = {
            one: SimpleNamespace(topic_id=self.topics[one], partitions={0: 1}) for one in wanted if one in self.topics
        }
        return SimpleNamespace(topics=known)


class Map:
    """Of ap's flow to one cluster."""

    is_whole = True

    def __init__(self, runs: Collection[Run], position: Position | None) -> None:
        self.runs, self.of = RunList(runs), position
        self.error: Exception | None = None

    async def follow(self) -> None:
        if self.error is not None:
            raise self.error

    def sources(self) -> list[TopicPartition]:
        return [ORDERS] if self.of else []

    def positions(self, source: TopicPartition) -> list[Position]:
        return [self.of] if self.of and source == ORDERS else []

    def position(self, source: TopicPartition) -> Position | None:
        return self.of if source == ORDERS else None

    def current(self, source: TopicPartition) -> Pair | None:
        known = self.position(source)
        return None if known is None else Pair.of(known)

    def pairs_to(self, _: TopicPartition) -> list[Pair]:
        return [] if self.of is None else [Pair.of(self.of)]

    async def forward(self, _: Pair, offset: int) -> Translation | None:
        return self.runs.forward(offset)

    async def reverse(self, _: Pair, offset: int) -> Translation | None:
        return self.runs.reverse(offset)


class NoSyncs:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.store = SimpleNamespace(translate=lambda *_: None)

    async def follow(self) -> None: ...


class Stage:
    """us got ap's records 100 to 199 at 0, and after a marker 200 to 299 at 101; eu all from 0 on, at 1000."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.us, self.eu = Cluster("us", US, 0, 201, [100]), Cluster("eu", EU, 1000, 1300)
        self.here = Map([Run(100, 0, 100), Run(200, 101, 100)], position(300, 201))
        self.there = Map([Run(0, 1000, 300)], position(300, 1300, EU))
        self.file = THREE
        of = {"us": self.here, "eu": self.there}
        monkeypatch.setattr(siblings, "MapReader", lambda cluster, *_, **__: of[cluster.name])
        monkeypatch.setattr(siblings, "read_ranges", _read)
        monkeypatch.setattr(beginnings, "told_offsets", _told)
        monkeypatch.setattr(Beginnings, "_has_nothing", _has_nothing)

    def find(self) -> Siblings:
        thirds, _ = third_clusters(MirrorMakerConfig(parse_properties(self.file)), "us", "eu")
        return Siblings(thirds, cast(Any, self.us), cast(Any, self.eu))

    async def place(self, offset: int) -> tuple[int, How] | None:
        found = await self.find().find("ap.orders", 0, offset)
        assert found is not None and found.target == ("ap.orders", 0)
        assert (found.place is None) == bool(found.why)
        return found.place and (found.place.offset, found.place.how)

    async def why(self, offset: int) -> str:
        found = await self.find().find("ap.orders", 0, offset)
        assert found is not None and found.place is None
        return found.why


async def _read(cluster: Cluster, _: Any, ranges: list[tuple[int, int]]) -> AsyncGenerator[int, None]:
    ((begin, end),) = ranges
    for offset in range(max(begin, cluster.begin), min(end, cluster.end)):
        if offset not in cluster.holes:
            yield offset


async def _told(cluster: Cluster, partitions: Collection[Any], at: int) -> Any:
    return dict.fromkeys(partitions, cluster.begin if at == EARLIEST else cluster.end), {}


async def _has_nothing(of: Any, _: Pair, begin: int, end: int) -> bool:
    return not [one async for one in _read(of._target, None, [(begin, end)])]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


@pytest.mark.parametrize(
    ("offset", "place", "how"),
    [
        (0, 1100, How.EXACT),
        (50, 1150, How.EXACT),
        (100, 1200, How.GAP),  # a marker
        (101, 1200, How.EXACT),
        (200, 1299, How.EXACT),
        (201, 1300, How.EXACT),
    ],
)
async def test_a_group_goes_on_with_the_same_record(stage: Stage, offset: int, place: int, how: How) -> None:
    assert await stage.place(offset) == (place, how)


async def test_behind_the_marker_of_the_last_transaction_nothing_is_missing(stage: Stage) -> None:
    stage.us.end = 203
    stage.us.holes = [100, 201]
    assert await stage.place(202) == (1300, How.EXACT)
    assert "ap->us has not stored yet" in await stage.why(203)


async def test_what_the_target_has_not_got_yet_is_not_read_twice(stage: Stage) -> None:
    stage.there.runs, stage.there.of = RunList([Run(0, 1000, 250)]), position(250, 1250, EU)
    assert await stage.place(150) == (1249, How.EXACT)
    assert await stage.place(151) == (1250, How.EXACT), "the next one is the next one there"
    why = await stage.why(161)
    assert (
        "ap->eu has still to copy what the group has read, 10 offsets" in why
        and "the end of the copy on, 1250" in why
        and "look again" in why
    )
    stage.there.of = position(260, 1250, EU)
    assert await stage.place(161) == (1250, How.EXACT), "those were markers"
    assert "has read, 1 offsets" in await stage.why(162)


async def test_before_all_that_the_target_got_a_group_begins_with_the_copy(stage: Stage) -> None:
    stage.there.runs = RunList([Run(180, 1000, 120)])
    assert await stage.place(50) == (1000, How.BEGIN)
    stage.eu.begin = 900
    assert "ap->eu knows nothing of what ap.orders-0 of cluster eu holds before offset 1000" in await stage.why(50)
    assert await stage.place(80) == (1000, How.EXACT)


async def test_before_all_that_the_source_got_a_group_goes_on_with_its_first_record(stage: Stage) -> None:
    stage.here.runs, stage.us.begin = RunList([Run(100, 40, 100)]), 40
    assert await stage.place(10) == (1100, How.GAP)
    stage.us.begin = 0
    assert "ap->us knows nothing of what ap.orders-0 of cluster us holds before offset 40" in await stage.why(10)


async def test_flows_that_have_copied_nothing_yet_tell_what_they_copy_first(stage: Stage) -> None:
    stage.here.runs, stage.here.of, stage.us.end = RunList(), position(100, 0), 0
    assert await stage.place(0) == (1100, How.EXACT)
    stage.there.runs, stage.there.of = RunList(), position(100, 1000, EU)
    assert await stage.place(0) == (1000, How.BEGIN)
    stage.there.of = position(99, 1000, EU)
    assert await stage.place(0) == (1000, How.BEGIN)
    stage.here.runs, stage.here.of, stage.us.end = RunList([Run(100, 0, 5)]), position(105, 5), 5
    assert "has read, 4 offsets" in await stage.why(3)


async def test_what_neither_side_will_get_is_not_waited_for(stage: Stage) -> None:
    """Aborted records lie between what the group has read and what it would read next."""
    stage.here.runs = RunList([Run(100, 0, 100), Run(220, 100, 80)])
    stage.there.runs, stage.there.of = RunList([Run(0, 1000, 200)]), position(205, 1200, EU)
    assert await stage.place(100) == (1200, How.END)
    assert "has read, 16 offsets" in await stage.why(101)


async def test_nothing_is_told_of_topics_that_were_made_anew(stage: Stage) -> None:
    stage.there.of = replace(position(300, 1300, EU), source_topic_id=NEW)
    assert "orders of cluster ap was made anew" in await stage.why(50)
    stage.there.of = replace(position(300, 1300, EU), source_topic_id=None)
    assert await stage.place(50) == (1150, How.EXACT), "brokers without ids cannot tell"
    stage.eu.topics["ap.orders"] = NEW
    assert "ap.orders of cluster eu was made anew since ap->eu copied to it" in await stage.why(50)
    stage.us.topics["ap.orders"] = NEW
    assert "ap.orders of cluster us was made anew since ap->us copied to it" in await stage.why(50)


async def test_a_flow_without_a_map_is_named_and_the_topic_that_is_there(stage: Stage) -> None:
    by = "reads ap.orders-0, of which cluster eu has ap.orders by ap->eu; its place there cannot be told: "
    stage.there.of = None
    assert f"{by}the offset map of ap->eu on cluster eu does not know orders-0 of cluster ap" in await stage.why(50)
    stage.here.of = None
    why = await stage.why(50)
    assert f"{by}the offset map of ap->us on cluster us does not know ap.orders-0" in why
    assert "by hand" in why and "--accept not-mirrored" in why
    stage.here.error = SecurityError("READ is missing")
    assert f"{by}the offset map of ap->us cannot be read: READ is missing" in await stage.why(50)


async def test_what_the_target_does_not_have_is_of_no_third_cluster(stage: Stage) -> None:
    assert await stage.find().find("jp.orders", 0, 50) is None
    assert await stage.find().find("ap.orders", 1, 50) is None
    stage.here.of = stage.there.of = None
    for lines in ("ap->eu.topics = mail\n", "ap->us.topics = mail\n"):
        stage.file = THREE + lines
        assert await stage.find().find("ap.orders", 0, 50) is None
    stage.file = THREE
    del stage.eu.topics["ap.orders"]
    assert await stage.find().find("ap.orders", 0, 50) is None


async def test_of_two_flows_into_one_topic_neither_counts(stage: Stage) -> None:
    stage.file = THREE.replace("eu, ap", "eu, ap, jp")
    found = await stage.find().find("ap.orders", 0, 50)
    assert found is not None and found.place is None and "several flows fill" in found.why


async def test_which_records_lie_before_a_place_is_found_by_the_same_way_back(stage: Stage) -> None:
    log = target = ("ap.orders", 0)
    for offset, first in ((1150, 50), (1250, 151), (1300, 201), (900, 0)):
        assert await stage.find().first_there(log, target, offset) == first
    assert await stage.find().first_there(log, ("us.orders", 0), 5) is None
    stage.there.of = replace(position(300, 1300, EU), source_topic_id=NEW)
    assert await stage.find().first_there(log, target, 1150) is None


def _copied(chance: random.Random, records: Collection[int], end: int) -> dict[int, int]:
    """Upstream to target: a copy of some of ``records`` up to ``end``, with markers between them."""
    at, found = chance.randrange(5), dict[int, int]()
    for upstream in records:
        if upstream < end and chance.random() < 0.9:
            at += chance.choice((0, 0, 0, 0, 1, 2))
            found[upstream] = at
            at += 1
    return found


@pytest.mark.parametrize("seed", range(40))
async def test_no_record_is_read_twice_or_skipped_whatever_the_copies_hold(stage: Stage, seed: int) -> None:
    """Each lacks others of ap's records, and has come less far."""
    chance = random.Random(seed)
    records = sorted(chance.sample(range(100), 60))
    ends = chance.randrange(1, 101), chance.randrange(1, 101)
    copies = [_copied(chance, records, end) for end in ends]
    for side, copy, end, topic_id in zip((stage.here, stage.there), copies, ends, (US, EU), strict=True):
        side.runs = RunList([Run(upstream, at, 1) for upstream, at in copy.items()])
        side.of = position(end, max(copy.values(), default=-1) + 1, topic_id)
    here, there = copies
    stage.us.begin, stage.us.end, stage.us.holes = 0, 300, set(range(300)) - set(here.values())
    stage.eu.begin, stage.eu.end, stage.eu.holes = 0, 300, set(range(300)) - set(there.values())
    told = 0
    for offset in range(max(here.values(), default=0) + 2):
        found = await stage.find().find("ap.orders", 0, offset)
        assert found is not None
        seen = {upstream for upstream, at in here.items() if at < offset}
        if found.place is None:
            assert max(seen) >= ends[1], "some were read that eu does not have yet"
            continue
        told += 1
        to_read = {upstream for upstream, at in there.items() if at >= found.place.offset}
        to_read |= {upstream for upstream in records if upstream >= ends[1]}
        assert not to_read & seen, offset
        assert {one for one in here.keys() - seen if one in there or one >= ends[1]} <= to_read, offset
    assert told


# -- in a failover ---------------------------------------------------------------------------------------------


async def look(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, offsets: dict[tuple[str, int], int], **wish: Any
) -> tuple[dict[str, tuple[int, How]], list[Any], tuple[str, ...]]:
    """What becomes of a group of us that no other flow leads anywhere."""

    async def list_groups(cluster: Any) -> Any:
        return {"readers": GroupListing(CLASSIC, "consumer", "Empty")} if cluster is stage.us else {}

    async def committed(cluster: Any, _: str, *, stable: bool = False) -> Any:
        return {one: Committed(at) for one, at in offsets.items()} if cluster is stage.us else {}

    async def ends(cluster: Cluster, partitions: Collection[Any], at: int) -> Any:
        return dict.fromkeys(partitions, 1111 if at > 0 else cluster.end)

    for name, fake in (("list_groups", list_groups), ("committed", committed), ("list_offsets", ends)):
        monkeypatch.setattr(group_look, name, fake)
    monkeypatch.setattr(log_starts, "told_offsets", _told)
    monkeypatch.setattr(log_starts, "read_ranges", _read)
    monkeypatch.setattr("connectors.failover.places.MapReader", lambda *_, **__: Map([], None))
    monkeypatch.setattr("connectors.failover.places.OffsetSyncs", NoSyncs)
    config = MirrorMakerConfig(parse_properties(stage.file))
    thirds, _ = third_clusters(config, "us", "eu")
    us, eu = cast(Any, stage.us), cast(Any, stage.eu)
    flow: Any = SimpleNamespace(
        flow="us->eu", map_topic="map", name="MirrorSourceConnector", enabled=True,
        should_mirror=lambda one: one == "orders",
    )  # fmt: skip
    checkpoints: Any = SimpleNamespace(
        syncs_on_source=True, offset_syncs_topic="syncs", flow="us->eu", source_alias="us", target_alias="eu",
        policy=thirds[0].to_source.policy,
    )  # fmt: skip
    places = Places(flow, flow, checkpoints, us, eu, thirds)
    await places.begin()
    plan, lost = await GroupsLook(lambda _: True, us, eu, places, "checkpoints", **wish).plan()
    return {one.source[0]: (one.after, one.how) for one in plan.moves}, list(plan.left), lost


async def test_readers_of_a_third_clusters_topic_move_with_the_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves, left, lost = await look(stage, monkeypatch, {("ap.orders", 0): 50})
    assert (moves, left, lost) == ({"ap.orders": (1150, How.EXACT)}, [], ())
    stage.eu.begin = 1190
    moves, (held,), _ = await look(stage, monkeypatch, {("ap.orders", 0): 50})
    assert moves == {"ap.orders": (1190, How.BEGIN)}
    assert held.is_obstacle and "it would skip records that cluster us still has" in held.why
    stage.us.begin = 90
    _, (told,), _ = await look(stage, monkeypatch, {("ap.orders", 0): 50})
    assert not told.is_obstacle, "neither has them"


async def test_a_place_that_is_not_told_is_in_the_way_until_somebody_sees_to_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.there.of = None
    offsets = {("ap.orders", 0): 50, ("jp.orders", 0): 7}
    for accepts in (False, True):
        moves, left, lost = await look(stage, monkeypatch, offsets, leaves_topics=accepts)
        assert (moves, lost) == ({}, ("jp.orders",))
        assert [one.is_obstacle for one in left] == [not accepts] * 2
        ap, jp = (one.why for one in left)
        assert "which cluster eu has" in ap.replace("of which", "which") and "jp.orders" in jp
        assert "not mirrored from cluster us to eu" in jp


async def test_by_time_readers_go_to_the_copy_that_is_there(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.there.of = None
    moves, left, _ = await look(stage, monkeypatch, {("ap.orders", 0): 50}, at_ms=5)
    assert (moves, left) == ({"ap.orders": (1111, How.TIME)}, [])


async def test_copies_beside_those_on_a_lost_source_are_named(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    config = MirrorMakerConfig(parse_properties(THREE))
    thirds, _ = third_clusters(config, "us", "eu")
    eu = cast(Any, stage.eu)
    site: Any = SimpleNamespace(thirds=thirds, target=eu, flow=SimpleNamespace(source_alias="us"))
    (note,) = await preflight._not_in_siblings(site)
    assert "sent to cluster us, too, what ap.orders holds" in note
    assert await beside_the_lost(thirds, eu) == ["ap.orders"]
    assert await beside_the_lost([replace(thirds[0], to_source=replace(thirds[0].to_source, enabled=False))], eu) == []


def test_a_third_cluster_that_the_file_is_wrong_about_is_in_nobodys_way() -> None:
    config = MirrorMakerConfig(parse_properties(THREE + "ap->us.tasks.max = none\n"))
    thirds, (why,) = third_clusters(config, "us", "eu")
    assert thirds == () and "topics of cluster ap" in why and "tasks.max" in why


def test_who_goes_back_reads_the_maps_the_other_way() -> None:
    (third,), _ = third_clusters(MirrorMakerConfig(parse_properties(THREE)), "us", "eu")
    assert (third.to_source.flow, third.to_target.flow) == ("ap->us", "ap->eu")
    ends: Any = dict.fromkeys(
        (
            "flow",
            "back",
            "checkpoints",
            "source",
            "target",
            "target_admin",
            "source_admin",
            "flow_workers",
            "back_workers",
        )
    )
    (turned,) = Site(**ends, thirds=(third,)).turned().thirds
    assert (turned.alias, turned.to_source.flow, turned.to_target.flow) == ("ap", "ap->eu", "ap->us")
