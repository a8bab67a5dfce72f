"""A topic that grew, or a new one, while the mirror was down: only the old primary holds all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.core.errors import PermanentError
from connect.kafka.concurrency import gather_limited
from connect.kafka.log.log_ranges import Range
from connect.kafka.log.offsets import EARLIEST, READ_COMMITTED
from connectors.failover import unreplicated
from connectors.failover.clusters_and_lease import Site
from connectors.failover.drain import CopiedEnd
from connectors.failover.log_comparison import Fate, Log, UnreplicatedRecords
from connectors.failover.unreplicated import Mark
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.policy import DefaultReplicationPolicy
from tests.kit.answers import answers, put

ORDERS, GREW = (TopicPartition("orders", number) for number in range(2))
NEW, JAVAS = TopicPartition("payments", 0), TopicPartition("mail", 0)
POSITION = Position("orders", 0, UUID(int=1), 30, 4, "orders", 0, UUID(int=1), 37, "writer", 7, 0, 30)
#: Where they begin and end at the source; the flow back has brought the first five of payments.
LOGS = {GREW: (0, 10), NEW: (3, 9), JAVAS: (0, 50), ORDERS: (0, 30)}
BROUGHT = unreplicated._brought


class Target:
    def __init__(self, topics: dict[str, int], topic_id: UUID | None = None) -> None:
        self._topics, self._id = topics, topic_id

    async def metadata(self, names: set[str]) -> Any:
        there = {name: dict.fromkeys(range(count)) for name, count in self._topics.items() if name in names}
        topics = {name: SimpleNamespace(topic_id=self._id, partitions=one) for name, one in there.items()}
        return SimpleNamespace(topics=topics)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    """Of flows that keep names; the target has one partition of orders, and nobody has appended anything."""
    names = {"orders": 2, "payments": 1, "mail": 1, "heartbeats": 1, "nameless": 1, "others": 1}
    topics = {
        name: SimpleNamespace(name=name, topic_id=None, error_code=0, partitions=dict.fromkeys(range(count)))
        for name, count in names.items()
    }

    async def offsets(_: Any, partitions: Collection[Any], at: int, isolation: int = READ_COMMITTED) -> dict[Any, int]:
        assert isolation == READ_COMMITTED, "what is not decided is nobody's yet"
        return {one: LOGS[one][at != EARLIEST] for one in partitions}

    async def unreplicated_ranges(_: Any, log: TopicPartition, __: Any, begin: int, end: int) -> list[Range]:
        return [(max(begin, 5), end)] if log == NEW else [(begin, end)]

    async def count(_: Any, log: TopicPartition, ranges: Sequence[Range]) -> UnreplicatedRecords | None:
        records = sum(end - begin for begin, end in ranges)
        return UnreplicatedRecords(*log, ranges[0][0], ranges[-1][1] - 1, records) if records else None

    for name, fake in (("list_offsets", offsets), ("unreplicated_ranges", unreplicated_ranges), ("count", count)):
        monkeypatch.setattr(unreplicated, name, fake)
    put(monkeypatch, unreplicated, read_copied={JAVAS: 39, NEW: 500})
    flow = SimpleNamespace(
        flow="us->eu", name="m", enabled=True, changing_key="", source_alias="us", target_alias="eu",
        offsets_topic="offsets", map_topic="map", policy=DefaultReplicationPolicy(), remote_topic=str,
        names=SimpleNamespace(find=lambda topic: None if topic == "nameless" else topic),
        should_mirror=lambda topic: topic != "others",
    )  # fmt: skip
    back = SimpleNamespace(flow="eu->us", name="m", map_topic="map", remote_topic=str, should_mirror=lambda _: True)
    source = SimpleNamespace(metadata=answers(SimpleNamespace(topics=topics)))
    return cast(Site, SimpleNamespace(flow=flow, back=back, source=source, target=Target({"orders": 1})))


class Copies:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    async def follow(self) -> None: ...


def arrange(monkeypatch: pytest.MonkeyPatch, marks: dict[TopicPartition, Mark] | None = None) -> None:
    """One partition has a position, and nothing unreplicated."""
    put(monkeypatch, unreplicated, read_positions={ORDERS: POSITION}, logs_now={ORDERS: Log(Fate.GONE)})
    put(monkeypatch, unreplicated, copied_ends={}, _brought={}, read_marks=marks or {})
    monkeypatch.setattr(unreplicated, "MapReader", Copies)


async def test_what_the_flow_takes_and_never_copied_is_stranded(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    arrange(monkeypatch)
    mail, *others = await unreplicated.find(site)
    assert (mail.own, mail.ranges, mail.is_missing) == (UnreplicatedRecords("mail", 0, 40, 49, 10), ((40, 50),), True)
    assert mail.doubt.startswith("only a stored source offset")
    assert [(one.own, one.ranges, one.is_missing, one.doubt) for one in others] == [
        (UnreplicatedRecords("orders", 1, 0, 9, 10), ((0, 10),), True, ""),
        (UnreplicatedRecords("payments", 0, 5, 8, 4), ((5, 9),), True, ""),
    ]


@pytest.mark.parametrize(("appended", "left"), [(4, ((5, 9),)), (6, ((7, 9),)), (8, ())])
async def test_what_was_appended_of_it_is_named_no_more(
    monkeypatch: pytest.MonkeyPatch, site: Site, appended: int, left: tuple[Range, ...]
) -> None:
    """Unless the target has no such topic any more."""
    arrange(monkeypatch, {NEW: Mark("payments-0 None payments-0 None copied up to -1", appended)})
    monkeypatch.setattr(site, "target", Target({"orders": 1, "payments": 1}))
    found = [one for one in await unreplicated.find(site) if one.source == NEW]
    assert [one.ranges for one in found] == ([left] if left else [])
    monkeypatch.setattr(site, "target", Target({"orders": 1}))
    found = [one for one in await unreplicated.find(site) if one.source == NEW]
    assert [one.ranges for one in found] == [((5, 9),)]


async def test_a_flow_that_is_not_enabled_takes_nothing(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    arrange(monkeypatch)
    monkeypatch.setattr(site.flow, "enabled", False)
    assert await unreplicated.find(site) == []


KEPT = Mark("orders-0 None orders-0 None copied up to 30")


@pytest.mark.parametrize(
    ("mark", "surplus", "proven", "left", "doubt"),
    [
        (None, 0, True, [(30, 40)], ""),
        (None, 3, True, [(33, 40)], ""),
        (None, 3, False, [(30, 40)], "3 of them were copied"),
        (KEPT._replace(appended=34), 0, True, [(35, 40)], ""),
        # What the flow wrote and did not store was told apart before anything was appended.
        (KEPT._replace(appended=34), 3, False, [(35, 40)], ""),
        (KEPT._replace(appended=39), 3, False, [], ""),
        # Of a failover before: the flow has copied on since.
        (KEPT._replace(of="copied up to 20", appended=29), 0, True, [(30, 40)], ""),
        (KEPT._replace(of="copied up to 20", appended=34), 0, True, [(30, 40)], "may have been appended before"),
    ],
)
async def test_what_is_stranded_of_a_partition_that_was_copied(
    monkeypatch: pytest.MonkeyPatch,
    site: Site,
    mark: Mark | None,
    surplus: int,
    proven: bool,
    left: list[Range],
    doubt: str,
) -> None:
    """Of 30 to 39, of which the flow wrote the first ``surplus`` and did not store that."""
    arrange(monkeypatch, {ORDERS: mark} if mark else None)
    monkeypatch.setattr(site.flow, "enabled", False)
    put(monkeypatch, unreplicated, logs_now={ORDERS: Log(Fate.SAME, None, 0, 40, 30)}, list_offsets={ORDERS: 40})
    put(monkeypatch, unreplicated, copied_ends={ORDERS: CopiedEnd(37 + surplus, surplus)})
    put(monkeypatch, unreplicated, _arrived=30 + surplus if proven else 0)
    found = await unreplicated.find(site)
    assert [list(one.ranges) for one in found] == ([left] if left else [])
    assert [doubt in one.doubt and bool(doubt) == bool(one.doubt) for one in found] == [True for _ in found]


async def test_all_is_stranded_if_the_target_topic_was_recreated(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    """The flow has copied nothing into it; what was appended to the one before is looked at by hand."""
    arrange(monkeypatch, {ORDERS: KEPT._replace(appended=34)})
    monkeypatch.setattr(site.flow, "enabled", False)
    put(monkeypatch, unreplicated, logs_now={ORDERS: Log(Fate.SAME, None, 5, 40, 30)})
    put(monkeypatch, unreplicated, copied_ends={ORDERS: CopiedEnd(0)}, list_offsets={ORDERS: 40})
    monkeypatch.setattr(site, "target", Target({"orders": 1}, UUID(int=2)))
    (found,) = await unreplicated.find(site)
    assert found.ranges == ((5, 40),)
    assert "may have been appended before, to another topic" in found.doubt


@pytest.mark.parametrize(("brought", "left"), [((), 10), (((30, 34),), 6), (((28, 40),), 0)])
async def test_what_a_flow_back_that_runs_has_just_brought_is_not_stranded(
    brought: tuple[Range, ...], left: int, monkeypatch: pytest.MonkeyPatch, site: Site
) -> None:
    arrange(monkeypatch)
    turned = SimpleNamespace(target="us", flow=SimpleNamespace(map_topic="m", name="b"))
    monkeypatch.setattr(site, "turned", lambda: turned, raising=False)
    monkeypatch.setattr(site.flow, "enabled", False)

    async def ends(asked: Any, *, among: Any = None) -> Any:
        assert among == ({ORDERS} if asked is turned else None)
        return {ORDERS: CopiedEnd(40, 0, brought)} if asked is turned else {ORDERS: CopiedEnd(37)}

    async def decided(_: Any, partitions: Collection[Any], at: int, isolation: int) -> dict[Any, int]:
        assert (at != EARLIEST, isolation) == (True, READ_COMMITTED)
        return dict.fromkeys(partitions, 40)

    put(monkeypatch, unreplicated, logs_now={ORDERS: Log(Fate.SAME, None, 0, 40, 30)}, unreplicated_ranges=[(30, 40)])
    for name, fake in (("list_offsets", decided), ("copied_ends", ends), ("_brought", BROUGHT)):
        monkeypatch.setattr(unreplicated, name, fake)
    assert sum(each.own.records for each in await unreplicated.find(site)) == left


async def test_heartbeats_behind_a_failover_are_not_stranded(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    """The worker of the flow back emits them for ever, and one of them would hold up every failback."""
    arrange(monkeypatch)
    monkeypatch.setattr(site.flow, "enabled", False)
    beats = TopicPartition("heartbeats", 0)

    position = replace(POSITION, source_topic="heartbeats", target_topic="us.heartbeats")

    async def logs(_: Any, of: Any) -> Any:
        return dict.fromkeys(of, Log(Fate.SAME, None, 0, 40, 30))

    monkeypatch.setattr(unreplicated, "logs_now", logs)
    put(monkeypatch, unreplicated, read_positions={beats: position}, list_offsets={beats: 40})
    put(monkeypatch, unreplicated, copied_ends={beats: CopiedEnd(37)}, unreplicated_ranges=[(30, 40)])
    assert await unreplicated.find(site) == []


async def test_partitions_are_looked_at_a_few_at_once(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    """Each is read on its own, and one after the other thousands would take hours."""
    arrange(monkeypatch)
    monkeypatch.setattr(site.flow, "enabled", False)
    all_of_it = [TopicPartition("orders", at) for at in range(60)]
    running, most = 0, 0

    async def unreplicated_ranges(*_: Any) -> list[Range]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return [(30, 40)]

    positions = {one: replace(POSITION, target_partition=one.partition) for one in reversed(all_of_it)}
    put(monkeypatch, unreplicated, read_positions=positions, list_offsets=dict.fromkeys(all_of_it, 40))
    put(monkeypatch, unreplicated, logs_now=dict.fromkeys(all_of_it, Log(Fate.SAME, None, 0, 40, 30)))
    put(monkeypatch, unreplicated, copied_ends=dict.fromkeys(all_of_it, CopiedEnd(37)))
    monkeypatch.setattr(unreplicated, "unreplicated_ranges", unreplicated_ranges)
    monkeypatch.setattr(site, "target", Target({}))
    assert [one.source for one in await unreplicated.find(site)] == all_of_it
    assert most == 16


async def test_what_one_look_fails_by_ends_the_others_beside_it() -> None:
    ended: list[int] = []

    async def look(one: int) -> None:
        if one == 3:
            raise PermanentError("three")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(one)

    with pytest.raises(PermanentError, match="three"):
        await gather_limited(look, range(100))
    assert {*range(3), *range(4, 16)} <= {*ended} <= {*range(20)}, "and the rest never begin"
