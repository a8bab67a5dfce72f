"""What a failover reads of groups: of every kind, by offset and by time, with a source and without."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.cli.commands.failover import FailoverArguments, options_of
from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.log.committed_offsets import CLASSIC, SHARE, STREAMS, Committed, GroupListing
from connect.kafka.log.offsets import EARLIEST, LATEST, READ_COMMITTED
from connectors.failover import collect_snapshot, drain, failback_and_undo, group_offsets, offset_lookup
from connectors.failover.group_offsets import GroupsLook
from connectors.failover.plan import FailoverOptions, is_blocking, plan
from connectors.failover.snapshot import GroupMove, GroupRule, Groups, How, Snapshot, TargetOffset
from connectors.formats.mirror_records import Checkpoint
from connectors.formats.types import TopicPartition
from connectors.internal_topics import PartitionState
from connectors.policy import DefaultReplicationPolicy
from tests.kit.answers import answers, put
from tests.kit.virtual_time import in_virtual_time

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


@in_virtual_time
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

    listed = dict.fromkeys(("mute", "led", "leaderless", "slow"), GroupListing(CLASSIC, "consumer", "Empty"))
    known: Any = SimpleNamespace(of=where)
    groups = await look(monkeypatch, listed, committed, known, SimpleNamespace(target="eu"), reported)
    planned = plan(Snapshot("us", "eu", groups=groups), FailoverOptions())
    assert [one.group for one in planned.ready] == ["led"]
    reasons = {one.group: one.reasons[0].why for one in planned.blocked}
    assert reasons == {
        "mute": "could not be read: its coordinator does not answer",
        "slow": "could not be read within 30 s",
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
async def test_a_reader_of_a_third_cluster_has_to_be_accepted(monkeypatch: pytest.MonkeyPatch, accepts: bool) -> None:
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
async def test_a_checkpoint_of_a_deleted_topic_moves_nobody(monkeypatch: pytest.MonkeyPatch, at_ms: int | None) -> None:
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
async def test_failback_restarts_what_it_stopped(monkeypatch: pytest.MonkeyPatch, refused: str, stops: bool) -> None:
    done: list[str] = []

    def does(name: str, answer: Any = None) -> Any:
        async def call(*_: Any, **__: Any) -> Any:
            done.append(name)
            return answer

        return call

    state = PartitionState("QUARANTINED", "refused", refused, 0)
    monkeypatch.setattr(drain, "allow_writes", does("allow"))
    monkeypatch.setattr(failback_and_undo, "read_states", does("look", {ORDERS: state}))
    monkeypatch.setattr(failback_and_undo, "record_settings", lambda _: None)
    monkeypatch.setattr(drain, "stop_flow", does("stop"))
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


#: On the target; of us.orders-2 nobody has written a record.
TOPICS = {"us.orders": 3, "us.mail": 2, "local": 1}
EMPTY = ("us.orders", 2)
AT_MS = 5
#: The first record of that time or a later one, where it is not at 7: all are later, all are earlier.
FIRST = {("us.orders", 1): 0, ("us.mail", 0): -1}
END = 90


@pytest.fixture
def eu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``readers`` has a checkpoint of one partition; both have stored something on the target."""
    stored = {
        "readers": {("us.mail", 1): Committed(4, "note"), ("local", 0): Committed(9)},
        "moved": {("us.mail", 0): Committed(3), ("local", 0): Committed(9)},
    }

    async def metadata(names: Collection[str]) -> Any:
        topics = {name: SimpleNamespace(error_code=0, exists=True, partitions=dict.fromkeys(range(count)))
                  for name, count in TOPICS.items() if name in names}  # fmt: skip
        return SimpleNamespace(topics=topics)

    async def committed(_: Any, group: str) -> dict[Any, Committed]:
        return stored.get(group, {})

    async def offsets(_: Any, partitions: Collection[Any], at: int, *__: Any) -> dict[Any, int]:
        if at == AT_MS:
            return {one: FIRST.get(one, 7) for one in partitions}
        return {one: 0 if one == EMPTY else END if at == LATEST else 0 for one in partitions}

    async def reported(*arguments: Any, **_: Any) -> Any:
        return await offsets(*arguments), {}

    async def checkpoints(look: GroupsLook) -> Any:
        one = Checkpoint("readers", "us.orders", 0, 40, 37, "")
        return {("readers", ("us.orders", 0)): one} if look._options.takes("readers") else {}

    monkeypatch.setattr(group_offsets, "committed", committed)
    monkeypatch.setattr(group_offsets, "known_offsets", reported)
    put(monkeypatch, group_offsets, list_groups={}, read_live={})
    monkeypatch.setattr(offset_lookup, "known_offsets", reported)
    monkeypatch.setattr(GroupsLook, "_checkpoints", checkpoints)
    return SimpleNamespace(name="eu", metadata=metadata)


async def planned(eu: Any, at_ms: int | None, *named: str) -> Groups:
    places: Any = SimpleNamespace(
        by_checkpoint=answers(), filled=lambda: {"us.orders", "us.mail"}, copied_from=lambda _: None,
    )  # fmt: skip
    flow = SimpleNamespace(map_topic="map", flow="us->eu", remote_topic=lambda topic: f"us.{topic}")
    site: Any = SimpleNamespace(flow=flow, target=eu)
    failover_options = FailoverOptions(named.__contains__, named=frozenset(named), at_ms=at_ms)
    return await GroupsLook(site, failover_options, None, places).groups()


def places_of(found: Groups) -> dict[tuple[str, tuple[str, int]], int]:
    assert all(one.how is How.TIME for one in found.moves)
    return {(one.group, one.target): one.after for one in found.moves}


async def test_all_partitions_of_what_a_group_reads_are_set_by_time(eu: Any) -> None:
    """Of a checkpoint's topic, and of what it has stored of copies: else they began at auto.offset.reset."""
    found = await planned(eu, AT_MS, "readers")
    offsets = {("us.orders", 0): 7, ("us.orders", 1): 0, EMPTY: 7, ("us.mail", 0): END, ("us.mail", 1): 7}
    assert places_of(found) == {("readers", one): offset for one, offset in offsets.items()}
    assert {one.target: one.before for one in found.moves if one.before} == {("us.mail", 1): 4}
    assert found.findings == ()


async def test_a_group_without_a_checkpoint_is_set_by_time_where_it_is_named(eu: Any) -> None:
    found = await planned(eu, AT_MS, "moved")
    assert places_of(found) == {("moved", ("us.mail", 0)): END, ("moved", ("us.mail", 1)): 7}


async def test_a_group_that_nobody_knows_is_in_the_way(eu: Any) -> None:
    for at_ms in (AT_MS, None):
        found = await planned(eu, at_ms, "readers", "new")
        (left,) = [one for one in found.findings if is_blocking(one)]
        assert (left.group, left.rule) == ("new", GroupRule.NO_CHECKPOINT)


async def test_what_no_checkpoint_tells_of_is_named(eu: Any) -> None:
    """By offset it is blocked; what is empty, or committed already, needs nothing."""
    found = await planned(eu, None, "readers", "moved")
    assert [one.target for one in found.moves] == [("us.orders", 0)]
    reported = {one.group: one for one in found.findings}
    said = "no checkpoint of us.mail-0, us.orders-1: it begins there by its auto.offset.reset"
    assert said in reported["readers"].why
    assert [one.group for one in found.findings if is_blocking(one)] == ["moved"]


@pytest.mark.parametrize("accepts", [False, True])
async def test_a_time_of_copying_is_none_of_the_source(monkeypatch: pytest.MonkeyPatch, accepts: bool) -> None:
    async def topic_values(_: Any, topics: Collection[str], key: str) -> dict[str, str]:
        assert (set(topics), key) == ({"us.a", "us.b", "us.c"}, "message.timestamp.type"), "by offset no clock counts"
        return {"us.a": "LogAppendTime", "us.b": "CreateTime"}

    monkeypatch.setattr(collect_snapshot, "topic_values", topic_values)
    moves = [GroupMove("readers", (one, 0), 1, (one, 0), None, "", 1, "", How.TIME) for one in ("us.a", "us.b", "us.c")]
    exact = GroupMove("readers", ("us.d", 0), 1, ("us.d", 0), None, "", 1, "", How.EXACT)
    site: Any = SimpleNamespace(target=SimpleNamespace(name="eu"))
    options = FailoverOptions(accepts={GroupRule.COPY_TIME: frozenset({"readers"} if accepts else ())})
    found, notes = await collect_snapshot._with_clocks(site, Groups(("readers",), (*moves, exact)))
    (stamped,) = found.findings
    assert (stamped.group, stamped.rule) == ("readers", GroupRule.COPY_TIME) and "us.a has" in stamped.why
    assert [line for line in notes if line.startswith("us.c may have LogAppendTime")] != []
    assert is_blocking(stamped, options) != accepts


def test_a_group_is_named_by_what_is_no_pattern() -> None:
    groups = ("orders-.*", "orders.billing", r"mail\.out", "a|b", r"x\d", "plain_1")
    arguments = FailoverArguments(Path("f"), "us", "eu", groups=groups, gone="us", at="2026-01-01T00:00Z")
    config: Any = None
    failover_options = options_of(arguments, config)
    assert sorted(failover_options.named) == ["mail.out", "orders.billing", "plain_1"]
