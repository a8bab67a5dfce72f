"""An old primary that came back with another tail of a log: it is named, and holds up the groups that read it alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from connect.kafka.cluster import NotAuthorized
from connectors.failover import collect_snapshot, reverse_flow
from connectors.failover.drain import CopiedEnd
from connectors.failover.journal import StartBefore
from connectors.failover.log_comparison import Fate, Log, UnreplicatedRecords
from connectors.failover.plan import FailoverOptions, GroupOutcome, plan
from connectors.failover.snapshot import GroupMove, GroupRule, Groups, How, Snapshot
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.offset_map.runs_and_chunks import MapPair, MappedOffset, MapRun, RunList
from tests.kit.answers import put

ORDERS, MAIL = TopicPartition("orders", 0), TopicPartition("mail", 0)
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


async def test_a_flow_back_is_refused_where_it_is_not_known_where_the_logs_part(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Copies, "runs", ())
    starts, (why,), _ = await reverse_flow.starts_due(site, ENDS)
    assert [one.topic for one in starts] == ["mail"]
    assert why.startswith("cluster us has lost the end of orders-0") and "eu->us.topics.exclude = orders" in why


async def test_what_only_the_old_primary_has_is_named(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await reverse_flow.find_diverged(site) == {
        ORDERS: "cluster us has lost the end of orders-0, which cluster eu has: they are the same up to offset 12 of "
        "30, and from there cluster us holds 8 other records, offsets 12 to 19"
    }

    async def refused(*_: Any) -> Any:
        raise NotAuthorized("grant DESCRIBE on topic map")

    monkeypatch.setattr(reverse_flow, "read_positions", refused)
    site.flow.enabled = False
    assert await reverse_flow.find_diverged(site) == {}, "a one-way mirror has no rights there"


@pytest.mark.parametrize("accepts", [False, True])
def test_only_groups_that_read_it_are_blocked(accepts: bool) -> None:
    moves = tuple(
        GroupMove(group, (one.topic, 0), 40, (one.topic, 0), None, "", 33, "", How.EXACT)
        for group, one in (("billing", ORDERS), ("mailer", MAIL), ("mailer2", MAIL))
    )
    groups = collect_snapshot._with_diverged(
        Groups(tuple(one.group for one in moves), moves), {ORDERS: "cluster us has lost it"}
    )
    options = FailoverOptions(accepts={GroupRule.DIVERGED: frozenset({"billing"} if accepts else ())})
    found = plan(Snapshot("eu", "us", groups=groups), options)
    outcomes = {one.group: one.outcome for one in found.groups}
    expected = GroupOutcome.READY if accepts else GroupOutcome.BLOCKED
    assert outcomes == {"billing": expected, "mailer": GroupOutcome.READY, "mailer2": GroupOutcome.READY}
    for one in found.blocked:
        assert "heliograph unreplicated" in one.reasons[0].remedy and "diverged=billing" in one.reasons[0].remedy
