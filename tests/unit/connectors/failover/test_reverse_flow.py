"""Where the flow back begins: behind Java's copies, and if an old primary came back with another tail of a log."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from connect.core import status_and_offset_topics
from connect.core.errors import PermanentError
from connect.core.status_and_offset_topics import SourceOffsets
from connect.kafka.cluster import NotAuthorized
from connect.kafka.log.offsets import EARLIEST
from connectors.failover import collect_snapshot, failback_and_undo, reverse_flow
from connectors.failover.drain import CopiedEnd
from connectors.failover.journal import StartBefore
from connectors.failover.log_comparison import Fate, Log, UnreplicatedRecords
from connectors.failover.plan import FailoverOptions, GroupOutcome, plan
from connectors.failover.reverse_flow import CopiedPartition, comes_back, copied
from connectors.failover.snapshot import GroupMove, GroupRule, Groups, How, Snapshot
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.offset_map.runs_and_chunks import MapPair, MappedOffset, MapRun, RunList
from tests.kit.answers import fails, put

ORDERS, MAIL = TopicPartition("orders", 0), TopicPartition("mail", 0)
_NAME = "MirrorSourceConnector"


def stored(alias: str, *offsets: tuple[str, int]) -> SourceOffsets:
    found = SourceOffsets()
    for topic, offset in offsets:
        key = status_and_offset_topics.mirror_key(_NAME, alias, topic, 0)
        status_and_offset_topics.apply(found, key, status_and_offset_topics.mirror_value(offset))
    return found


def flow(alias: str, prefix: str = "", *, enabled: bool = True) -> Any:
    def remote_topic(topic: str) -> str:
        if topic == "nameless":
            raise PermanentError("it has no name there")
        return prefix + topic

    return SimpleNamespace(
        flow=f"{alias}->", name=_NAME, source_alias=alias, target_alias=f"not {alias}", offsets_topic=f"of {alias}",
        offsets_topics=(f"of {alias}",),
        enabled=enabled, remote_topic=remote_topic, should_mirror=lambda topic: topic != "kept",
    )  # fmt: skip


def test_only_copies_that_would_come_back_to_where_they_came_from_count() -> None:
    offsets = stored("us", ("orders", 40), ("nameless", 40), ("kept", 40))
    key = status_and_offset_topics.encode_key(_NAME, {"filename": "a"})
    status_and_offset_topics.apply(offsets, key, b'{"position": 3}')
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
    flows = {"flow": flow("us"), "back": flow("eu", enabled=is_enabled)}
    site: Any = SimpleNamespace(**flows, source=Cluster(us), target=Cluster(eu))
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
    monkeypatch.setattr(reverse_flow, "comes_back", why)
    flows: Any = SimpleNamespace(map_topic="map", name=_NAME, offsets_topic="offsets", source_alias="us")
    site: Any = SimpleNamespace(flow=flows, back=flows, source=None, target=None)
    site.turned = lambda: site
    assert await reverse_flow.starts_due(site, {}) == ([], ["they would come back"], {})
    failback = failback_and_undo.Failback(site, FailoverOptions(lambda _: True), print)
    assert await failback._keeps_names(), "else nobody looks at where the flow begins"


ID = UUID(int=1)
#: Source offset 0 of each lies at 7 of the target; 30 were copied.
POSITIONS = {one: Position(one.topic, 0, ID, 30, 4, one.topic, 0, ID, 37, "w", 7, 0, 30) for one in (ORDERS, MAIL)}
CUT, SAME = Log(Fate.CUT, ID, 0, 20, 12), Log(Fate.SAME, ID, 0, 40, 30)


class Copies:
    """The offset map of each flow; a map without ``runs`` tells of nothing."""

    runs: Collection[MapRun] = (MapRun(0, 7, 30),)

    def __init__(self, *_: Any, **__: Any) -> None: ...

    async def follow(self) -> None: ...

    def current(self, source: TopicPartition) -> MapPair:
        return MapPair.of(POSITIONS[source])

    async def forward(self, _: MapPair, offset: int) -> MappedOffset | None:
        return RunList([*self.runs]).forward(offset) if self.runs else None


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Any:
    """us has lost the end of orders, and written 8 records of its own there; mail is as it was."""

    async def logs_now(_: Any, positions: Mapping[TopicPartition, Position], **__: Any) -> dict[TopicPartition, Log]:
        return {one: CUT if one == ORDERS else SAME for one in positions}

    own = SimpleNamespace(source=ORDERS, own=UnreplicatedRecords("orders", 0, 12, 19, 8))
    put(monkeypatch, reverse_flow, read_positions=POSITIONS, read_copied={}, comes_back=[], find=[own])
    monkeypatch.setattr(reverse_flow, "logs_now", logs_now)
    monkeypatch.setattr(reverse_flow, "MapReader", Copies)
    flow, back = (
        SimpleNamespace(flow=f"{source}->{target}", source_alias=source, target_alias=target, map_topic="map", name="m",
                        enabled=True, should_mirror=lambda _: True, remote_topic=lambda topic: topic)
        for source, target in (("us", "eu"), ("eu", "us"))
    )  # fmt: skip
    return SimpleNamespace(flow=flow, back=back, source="us", target="eu")


ENDS = dict.fromkeys(POSITIONS, CopiedEnd(37))


async def test_the_flow_back_begins_where_the_logs_part(site: Any) -> None:
    """Behind that us lacks what eu has, and before it both have the same."""
    due = await reverse_flow.starts_due(site, ENDS)
    assert due == ([StartBefore("mail", 0, None, 36), StartBefore("orders", 0, None, 7 + 12 - 1)], [], {ORDERS: CUT})


async def test_a_flow_back_is_refused_where_no_parting_is_known(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Copies, "runs", ())
    starts, (why,), _ = await reverse_flow.starts_due(site, ENDS)
    assert [one.topic for one in starts] == ["mail"]
    assert why.startswith("cluster us has lost the end of orders-0") and "eu->us.topics.exclude = orders" in why


async def test_what_only_the_old_primary_has_is_named(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await reverse_flow.find_diverged(site) == {
        ORDERS: "cluster us has lost the end of orders-0, which cluster eu has: they are the same up to offset 12 of "
        "30, and from there cluster us holds 8 other records, offsets 12 to 19"
    }

    monkeypatch.setattr(reverse_flow, "read_positions", fails(NotAuthorized("grant DESCRIBE on topic map")))
    site.flow.enabled = False
    assert await reverse_flow.find_diverged(site) == {}, "a one-way mirror has no rights there"


@pytest.mark.parametrize("accepts", [False, True])
def test_only_groups_that_read_it_are_blocked(accepts: bool) -> None:
    moves = tuple(
        GroupMove(group, (one.topic, 0), 40, (one.topic, 0), None, "", 33, "", How.EXACT)
        for group, one in (("billing", ORDERS), ("mailer", MAIL), ("mailer2", MAIL))
    )
    lost = {ORDERS: "cluster us has lost it"}
    groups = collect_snapshot._with_diverged(Groups(tuple(one.group for one in moves), moves), lost)
    options = FailoverOptions(accepts={GroupRule.DIVERGED: frozenset({"billing"} if accepts else ())})
    found = plan(Snapshot("eu", "us", groups=groups), options)
    outcomes = {one.group: one.outcome for one in found.groups}
    expected = GroupOutcome.READY if accepts else GroupOutcome.BLOCKED
    assert outcomes == {"billing": expected, "mailer": GroupOutcome.READY, "mailer2": GroupOutcome.READY}
    for one in found.blocked:
        assert "heliograph unreplicated" in one.reasons[0].remedy and "diverged=billing" in one.reasons[0].remedy
