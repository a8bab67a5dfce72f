"""What a failover reads of the clusters: groups of every kind, and logs with gaps."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.log.committed_offsets import CLASSIC, SHARE, STREAMS, Committed, GroupListing
from connect.kafka.log.offsets import EARLIEST, LATEST, READ_COMMITTED
from connectors.failover import failback_and_undo, group_offsets, offset_lookup
from connectors.failover.plan import FailoverOptions, is_blocking, plan
from connectors.failover.snapshot import GroupMove, GroupRule, Groups, How, Snapshot, TargetOffset
from connectors.formats.mirror_records import Checkpoint
from connectors.formats.types import TopicPartition
from connectors.internal_topics import PartitionState
from connectors.policy import DefaultReplicationPolicy
from tests.kit.answers import answers, put

ORDERS = TopicPartition("orders", 0)
MOVE = GroupMove("readers", ("orders", 0), 40, ("orders", 0), None, "", 37, "note", How.EXACT)


class Us(Cluster):
    """A source that is compared with its name."""

    def __init__(self) -> None:
        self.name = "us"

    def __eq__(self, other: object) -> bool:
        return other == "us"

    def __hash__(self) -> int:
        return hash("us")

    async def metadata(self, topics: Any) -> Any:
        del topics
        return SimpleNamespace(topics={})


async def look(
    monkeypatch: pytest.MonkeyPatch,
    listed: dict[str, GroupListing],
    committed: Any,
    known: Any,
    site: Any,
    known_offsets: Any = answers(({}, {})),  # noqa: B008
) -> Groups:
    """What is found of the groups that are ``listed`` at the source; the target has none."""

    async def list_groups(cluster: Any) -> dict[str, GroupListing]:
        return listed if cluster == "us" else {}

    monkeypatch.setattr(group_offsets, "list_groups", list_groups)
    monkeypatch.setattr(group_offsets, "committed", committed)
    monkeypatch.setattr(offset_lookup, "known_offsets", known_offsets)
    return await group_offsets.GroupsLook(site, FailoverOptions(), Us(), known).groups()


def test_a_streams_application_with_state_is_warned_of_and_moved() -> None:
    topics = ["orders", "app-counts-changelog", "app2-counts-changelog", "app-repartition"]
    (found,) = group_offsets.streams_state(["app", "plain"], topics)
    assert found.group == "app" and "app-counts-changelog" in found.why and not is_blocking(found)


async def test_what_concerns_one_group_or_partition_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that does not answer, and a target partition without a leader (D5)."""

    async def committed(cluster: Any, group: str, *, stable: bool = False) -> dict[Any, Committed]:
        if group == "mute":
            raise RetriableError("its coordinator does not answer")
        if group == "slow":
            await asyncio.Event().wait()
        return {("orders", int(group == "leaderless")): Committed(40)} if cluster == "us" else {}

    async def reported(_: Any, partitions: Collection[Any], *__: Any, **___: Any) -> Any:
        return {one: 0 for one in partitions if one[1] == 0}, {
            one: f"{one[0]}-1 has no leader now" for one in partitions if one[1] == 1
        }

    async def where(topic: str, partition: int, _: int) -> TargetOffset:
        return TargetOffset(f"us.{topic}", partition, 37, How.EXACT)

    monkeypatch.setattr(group_offsets, "_GROUP_S", 0.05)
    listed = dict.fromkeys(("mute", "led", "leaderless", "slow"), GroupListing(CLASSIC, "consumer", "Empty"))
    known: Any = SimpleNamespace(of=where)
    groups = await look(monkeypatch, listed, committed, known, SimpleNamespace(target="eu"), reported)
    planned = plan(Snapshot("us", "eu", groups=groups), FailoverOptions())
    assert [one.group for one in planned.ready] == ["led"]
    reasons = {one.group: one.reasons[0].why for one in planned.blocked}
    assert reasons == {
        "mute": "could not be read: its coordinator does not answer",
        "slow": "could not be read within 0.05 s",
        "leaderless": "us.orders-1 could not be read: us.orders-1 has no leader now",
    }


async def test_groups_whose_state_a_mirror_cannot_carry_are_left_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether somebody is in them or not; a Streams application of the classic protocol is a group like any other."""
    listed = {
        "classic": GroupListing(CLASSIC, "consumer", "Empty"),
        "streams": GroupListing(STREAMS, "streams", "Stable"),
        "shared": GroupListing(SHARE, "share", "Empty"),
    }

    async def committed(cluster: str, group: str, *, stable: bool = False) -> dict[Any, Committed]:
        assert group == "classic", "nobody asks the others for offsets"
        assert stable == (cluster == "us"), "what a transaction is about to store counts at the source"
        return {("orders", 0): Committed(40)} if cluster == "us" else {}

    known: Any = SimpleNamespace(of=answers(TargetOffset("orders", 0, 37, How.EXACT)))
    found = await look(monkeypatch, listed, committed, known, SimpleNamespace(target="eu"))
    assert ([one.group for one in found.moves], found.not_mirrored) == (["classic"], ())
    reported = {one.group: one for one in found.findings}
    assert "is a streams group" in reported["streams"].why and "is a share group" in reported["shared"].why
    assert not any(is_blocking(one) for one in found.findings)


@pytest.mark.parametrize("accepts", [False, True])
async def test_a_group_that_reads_a_third_clusters_topic_is_in_the_way_until_that_is_accepted(
    monkeypatch: pytest.MonkeyPatch, accepts: bool
) -> None:
    """It is named once, however many partitions the topic has, and moved in its other topics."""

    async def committed(cluster: str, *_: Any, stable: bool = False) -> dict[Any, Committed]:
        stored = {("ap.mail", 3): Committed(41), ("ap.mail", 7): Committed(5), ("orders", 0): Committed(40)}
        return stored if cluster == "us" else {}

    async def where(topic: str, *_: Any) -> TargetOffset | None:
        return TargetOffset("orders", 0, 37, How.EXACT) if topic == "orders" else None

    flow = SimpleNamespace(flow="us->eu", source_alias="us", target_alias="eu", policy=DefaultReplicationPolicy())
    known: Any = SimpleNamespace(of=where, is_mirrored=lambda _: False)
    listed = {"readers": GroupListing(CLASSIC, "consumer", "Empty")}
    site = SimpleNamespace(flow=flow, target="eu", others=("ap",))
    found = await look(monkeypatch, listed, committed, known, site)
    assert ([one.source for one in found.moves], found.not_mirrored) == ([("orders", 0)], ("ap.mail",))
    (left,) = found.findings
    options = FailoverOptions(accepts={GroupRule.NOT_MIRRORED: frozenset({"readers"} if accepts else {"others"})})
    assert is_blocking(left, options) == (not accepts)
    assert "heliograph map FILE --topic mail --partition 3 --flow 'ap->us' --offset 41 --reverse" in left.why


@pytest.mark.parametrize(
    ("begin", "end", "accepts", "obstacles"),
    [
        (0, 90, False, 1),
        (0, 90, True, 0),
        (45, 90, False, 1),
        (60, 90, False, 0),
        (0, 40, False, None),
        (None, None, False, 1),
    ],
)
async def test_a_place_that_the_target_has_deleted_is_told_and_never_skips_what_the_source_has(
    monkeypatch: pytest.MonkeyPatch, begin: int | None, end: int | None, accepts: bool, obstacles: int | None
) -> None:
    """The group stands at 40, the target begins with the copy of 60."""

    async def known_offsets(cluster: Any, partitions: Any, at: int, **_: Any) -> Any:
        offset = 57 if cluster is eu else begin if at == EARLIEST else end
        return ({} if offset is None else dict.fromkeys(partitions, offset)), {}

    async def where(topic: str, partition: int, offset: int) -> TargetOffset:
        return TargetOffset(topic, partition, offset - 3, How.EXACT)

    async def has_records(_: Any, log: Any, *wanted: int) -> bool:
        if (begin or 0) < 60:
            assert (log, wanted) == (ORDERS, (max(begin or 0, 40), 60)), "from the group's place, or where it begins"
        return wanted[0] < wanted[1]

    us, eu = (cast(Any, SimpleNamespace(name=name)) for name in ("us", "eu"))
    monkeypatch.setattr(offset_lookup, "known_offsets", known_offsets)
    monkeypatch.setattr(offset_lookup, "has_records", has_records)
    known: Any = SimpleNamespace(of=where, first_there=answers(60), flow=SimpleNamespace(source_alias="us"))
    options = FailoverOptions(accepts={GroupRule.DELETED: frozenset({"*"} if accepts else ())})
    (move,), left = await offset_lookup.readable([MOVE], us, eu, known)
    assert (move.after, move.how) == (57, How.BEGIN)
    if obstacles is None:
        assert not left, "it has read all there is"
    else:
        assert [is_blocking(one, options) for one in left] == [bool(obstacles)]
    (same,), left = await offset_lookup.readable([replace(MOVE, after=57)], us, eu, known)
    assert (same.how, left) == (How.EXACT, [])
    _, (reported,) = await offset_lookup.readable([MOVE], None, eu, known)
    assert reported.rule is GroupRule.LOG_BEGIN and "deleted" in reported.why


@pytest.mark.parametrize("at_ms", [None, 5])
async def test_a_checkpoint_of_a_topic_that_is_gone_moves_nobody_and_is_in_nobody_s_way(
    monkeypatch: pytest.MonkeyPatch, at_ms: int | None
) -> None:
    """A topic that may not be seen, or has no leader, is not gone."""
    topics = {
        "us.old": SimpleNamespace(error_code=3, exists=False, partitions={}),
        "us.fewer": SimpleNamespace(error_code=0, exists=True, partitions={0: None}),
        "us.secret": SimpleNamespace(error_code=29, exists=True, partitions={}),
        "us.orders": SimpleNamespace(error_code=0, exists=True, partitions={0: None}),
    }
    kept = {("us.secret", 0), ("us.orders", 0)}

    async def metadata(names: Collection[str]) -> Any:
        return SimpleNamespace(topics={name: topics[name] for name in names if name in topics})

    async def ends(_: Any, partitions: Collection[Any], *__: Any) -> Any:
        assert set(partitions) <= kept, "a broker refuses to tell of what is gone"
        return dict.fromkeys(partitions, 90)

    async def reported(*arguments: Any, **_: Any) -> Any:
        return await ends(*arguments), {}

    of = [("us.old", 0), ("us.fewer", 1), ("us.never", 0), *kept]
    checkpoints = {("readers", one): Checkpoint("readers", *one, 40, 37, "") for one in of}
    put(monkeypatch, group_offsets, list_groups={}, committed={}, read_live={})
    for module in (group_offsets, offset_lookup):
        monkeypatch.setattr(module, "known_offsets", reported)
    monkeypatch.setattr(group_offsets.GroupsLook, "_checkpoints", answers(checkpoints))
    eu: Any = SimpleNamespace(metadata=metadata)
    flow = SimpleNamespace(map_topic="map", flow="us->eu")
    known: Any = SimpleNamespace(by_checkpoint=answers(), filled=set, copied_from=lambda _: None)
    site: Any = SimpleNamespace(flow=flow, target=eu)
    found = await group_offsets.GroupsLook(site, FailoverOptions(lambda _: True, at_ms=at_ms), None, known).groups()
    assert {one.target for one in found.moves} == kept
    gone = [one for one in found.findings if one.rule is GroupRule.TOPIC_GONE]
    assert {one.what for one in gone} == {"us.old-0 ", "us.fewer-1 ", "us.never-0 "}
    assert not any(is_blocking(one) for one in gone)


@pytest.mark.parametrize(("refused", "stops"), [("orders", True), ("mail", False)])
async def test_a_failback_starts_a_flow_anew_that_its_own_rule_has_stopped(
    monkeypatch: pytest.MonkeyPatch, refused: str, stops: bool
) -> None:
    done: list[str] = []

    def does(name: str, answer: Any = None) -> Any:
        async def call(*_: Any, **__: Any) -> Any:
            done.append(name)
            return answer

        return call

    state = PartitionState("QUARANTINED", "refused", refused, 0)
    monkeypatch.setattr(failback_and_undo, "allow_writes", does("allow"))
    monkeypatch.setattr(failback_and_undo, "read_states", does("look", {ORDERS: state}))
    monkeypatch.setattr(failback_and_undo, "record_settings", lambda _: None)
    monkeypatch.setattr(failback_and_undo, "stop_flow", does("stop"))
    flow = SimpleNamespace(flow="eu->us", target_alias="us")
    site: Any = SimpleNamespace(flow=flow, target="us", turned=lambda: None)
    said: list[str] = []
    back = failback_and_undo.Failback(site, FailoverOptions(lambda _: True), said.append)
    await back._let_in(("orders",))
    assert done == ["allow", "look", *(["stop"] if stops else [])], "the run starts it again afterwards"
    assert any("is restarted" in line for line in said) == stops


@pytest.mark.parametrize(
    ("before", "records", "after"),
    [(37, 0, 37), (None, 0, 37), (36, 0, 37), (38, 0, 38), (38, 1, 37), (52, 1, 37), (53, 0, 37), (38, None, 37)],
)
async def test_a_group_behind_a_marker_is_not_taken_back_by_it(
    before: int | None, records: int | None, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is open behind 52, or not there, may be anything; nor does a log tell that cannot be read."""

    async def known_offsets(_: str, partitions: Collection[Any], at: int, isolation: int, **__: Any) -> Any:
        assert (at, isolation) == (LATEST, READ_COMMITTED)
        return dict.fromkeys(partitions, 52), {}

    async def has_records(*asked: Any) -> bool:
        assert asked == ("eu", ORDERS, 37, before)
        if records is None:
            raise RetriableError("no leader")
        return bool(records)

    monkeypatch.setattr(offset_lookup, "known_offsets", known_offsets)
    monkeypatch.setattr(offset_lookup, "has_records", has_records)
    (move,) = await offset_lookup.without_empty_steps([replace(MOVE, before=before)], cast(Any, "eu"))
    assert (move.before, move.after) == (before, after)
