"""Where a failover would skip records, or leave something behind that nobody knows how to lift, it says so instead."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock
from uuid import UUID

import pytest

from connect.core.errors import PermanentError, RetriableError
from connect.kafka import authorization
from connect.kafka.cluster import PartitionMetadata, TopicMetadata
from connect.kafka.log.committed_offsets import CLASSIC, Committed, GroupListing
from connect.kafka.log.log_ranges import merged
from connect.kafka.log.transactions import Superseded
from connectors.failover import (
    clusters_and_lease,
    collect_snapshot,
    drain,
    execute,
    failback_and_undo,
    journal,
    reverse_flow,
    unreplicated,
)
from connectors.failover.collect_snapshot import why_several
from connectors.failover.drain import Behind, CopiedEnd, still_open, without_heartbeats
from connectors.failover.failback_and_undo import still_stopped
from connectors.failover.group_offsets import why_not_mirrored, why_stale
from connectors.failover.journal import GroupBefore, StartBefore
from connectors.failover.log_comparison import Fate, became, is_kept, unreplicated_ranges
from connectors.failover.plan import FailoverOptions, GroupOutcome, Plan, plan, used_meanwhile
from connectors.failover.reverse_flow import ReverseFlow
from connectors.failover.snapshot import DIFFERS, GroupFinding, GroupMove, GroupRule, Groups, How, SampleCheck, Snapshot
from connectors.failover.unreplicated import HEADER, is_same
from connectors.flow_progress import FlowLag, lag_of
from connectors.formats.mirror_records import Checkpoint
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.policy import DefaultReplicationPolicy
from tests.kit.answers import answers, put

ONE, OTHER = UUID(int=1), UUID(int=2)
ORDERS = TopicPartition("orders", 0)
MOVE = GroupMove("readers", ("orders", 0), 40, ("orders", 0), None, "", 37, "note", How.EXACT)
READERS = Groups(("readers",), (MOVE,))
POSITION = Position("orders", 0, ONE, 30, 4, "orders", 0, ONE, 37, "writer", 7, 0, 30)


def place(**back: Any) -> Any:
    """Of flows that keep names, both ways."""
    flow = SimpleNamespace(
        flow="us->eu", source_alias="us", target_alias="eu", name="MirrorSourceConnector", changing_key="",
        policy=DefaultReplicationPolicy(), map_topic="map",
    )  # fmt: skip
    other = SimpleNamespace(flow="eu->us", should_mirror=lambda _: True, remote_topic=lambda topic: topic, **back)
    return SimpleNamespace(flow=flow, back=other, source="us", target="eu", flow_workers="workers", held=set())


@pytest.mark.parametrize(
    ("topic_id", "end", "epoch_end", "fate", "same_to"),
    [
        (ONE, 50, 30, Fate.SAME, 30),
        (ONE, 50, -1, Fate.SAME, 30),
        (None, 30, 30, Fate.SAME, 30),
        (OTHER, 50, 50, Fate.RECREATED, 0),
        (ONE, 12, 12, Fate.CUT, 12),
        (ONE, 50, 12, Fate.CUT, 12),
    ],
)
def test_recreated_and_cut_logs(topic_id: UUID | None, end: int, epoch_end: int, fate: Fate, same_to: int) -> None:
    found = became(POSITION, topic_id, 0, end, epoch_end)
    assert (found.fate, found.same_to) == (fate, same_to)


@pytest.mark.parametrize(
    ("topic_id", "partition", "kept"), [(ONE, 0, True), (None, 0, True), (OTHER, 0, False), (ONE, 1, False)]
)
def test_a_target_topic_is_kept_if_it_has_the_partition(topic_id: UUID | None, partition: int, kept: bool) -> None:
    known = TopicMetadata("orders", topic_id, 0, {partition: PartitionMetadata(1, 0, (1,), 0)})
    assert is_kept(POSITION, known) is kept
    assert not is_kept(POSITION, None)


async def test_a_map_of_a_topic_that_was_there_before_hides_no_record() -> None:
    old, now = (SimpleNamespace(target_topic_id=one) for one in (OTHER, ONE))

    async def runs(pair: Any, _: Any) -> Any:
        first, behind = (0, 50) if pair is old else (10, 20)
        return [SimpleNamespace(downstream=first, downstream_end=behind)]

    copies: Any = SimpleNamespace(pairs_to=lambda _: [old, now], chunks=lambda _: [0], runs=runs)
    assert await unreplicated_ranges(copies, ORDERS, ONE, 0, 50) == [(0, 10), (20, 50)]
    assert merged([(7, 9), (1, 3), (3, 5), (4, 4)]) == [(1, 5), (7, 9)]


async def test_what_a_writer_left_is_looked_for_where_the_log_still_is(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, drain, list_offsets={ORDERS: 50})
    target: Any = None  # nobody has to be asked for records
    topic: Any = SimpleNamespace(topic_id=ONE, partitions={0: None})
    assert await drain._end_of(target, POSITION, topic) == CopiedEnd(37)
    assert await drain._end_of(target, POSITION, None) == CopiedEnd(0)
    topic.topic_id = OTHER
    assert await drain._end_of(target, POSITION, topic) == CopiedEnd(0)


def test_heartbeats_are_not_waited_for_and_open_transactions_are() -> None:
    lags = [lag_of("orders", 0, "us.orders", 30, 0, 30, -1), lag_of("heartbeats", 0, "us.heartbeats", 5, 0, 9, -1)]
    kept = without_heartbeats(lags, DefaultReplicationPolicy())
    assert [one.topic for one in kept] == ["orders"]
    assert still_open(kept, {("orders", 0): 30}) == ()
    held = Behind(FlowLag(tuple(kept)), still_open(kept, {("orders", 0): 33}))
    assert not held.is_copied and "transaction is open in orders-0" in str(held)
    assert Behind(FlowLag(tuple(kept))).is_copied


@pytest.mark.parametrize(
    ("upstream", "downstream", "end", "copied", "words"),
    [
        (30, 37, 37, 30, ""),
        (20, 27, 37, None, ""),
        (30, 38, 37, 30, "which ends at 37"),
        (31, 37, 37, 30, "copied only up to 30"),
    ],
)
def test_a_checkpoint_of_a_topic_that_was_there_before_is_stale(
    upstream: int, downstream: int, end: int | None, copied: int | None, words: str
) -> None:
    why = why_stale(Checkpoint("readers", "orders", 0, upstream, downstream, ""), end, copied)
    assert words in why and bool(why) == bool(words)


@pytest.mark.parametrize("is_enabled", [True, False])
async def test_topics_whose_readers_stood_in_copies_on_the_lost_source_are_named(is_enabled: bool) -> None:
    names = ("payments", "us.orders", "orders", "heartbeats", *(f"t{at}" for at in range(9)))
    of_others = ("ap.orders", "xx.orders", "ap.heartbeats", "ap.checkpoints.internal")
    site = place(enabled=is_enabled, policy=DefaultReplicationPolicy())
    site.back.should_mirror = lambda name: "." not in name
    site.others = ("ap",)
    site.target = SimpleNamespace(metadata=answers(SimpleNamespace(topics=dict.fromkeys((*names, *of_others)))))
    places: Any = SimpleNamespace(filled=lambda: {"orders"})
    notes = await collect_snapshot._not_in_checkpoints(site, places)
    *own, of_ap = notes
    assert of_ap.startswith("cluster us may have copies of ap.orders: no checkpoint has the offsets that groups")
    assert len(own) == is_enabled
    for note in own:
        assert note.startswith("eu->us mirrors payments, t0, t1, t2, t3 and 5 more: no checkpoint has the offsets")


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("mail", ["reads mail, which us->eu does not mirror"]),
        ("xx.mail", ["reads xx.mail, which us->eu does not mirror"]),
        (
            "ap.mail",
            [
                "reads ap.mail, which ap->us copies",
                "(heliograph map FILE --topic mail --partition 3 --flow 'ap->us' --offset 41 --reverse)",
                "(heliograph map FILE --topic mail --partition 3 --flow 'ap->eu' --offset ANSWER)",
            ],
        ),
    ],
)
def test_a_topic_of_a_third_cluster_is_refused_with_the_two_look_ups(topic: str, words: list[str]) -> None:
    why = why_not_mirrored(topic, 3, 41, place().flow, ("ap",))
    assert all(one in why for one in words), why


def test_connectors_that_share_a_topic_out_are_not_moved_by_halves() -> None:
    paid, before = replace(POSITION, target_topic="us.paid"), replace(POSITION, producer_id=6)
    stored = {
        ("MirrorSourceConnector", ORDERS): POSITION,
        ("paid", ORDERS): paid,
        ("others", TopicPartition("mail", 0)): paid,
        ("named otherwise before", ORDERS): before,
    }
    (why,) = why_several("MirrorSourceConnector", "us->eu", stored)
    assert "connector paid also copies orders-0, into another topic" in why


def planned(*moves: GroupMove, findings: tuple[GroupFinding, ...] = (), **options: Any) -> Plan:
    names = tuple(sorted({one.group for one in moves}))
    return plan(Snapshot("us", "eu", groups=Groups(names, moves, findings)), FailoverOptions(**options))


def test_a_group_that_reads_on_while_it_is_moved_is_seen() -> None:
    before = planned(MOVE, replace(MOVE, group="mail"))
    now = before.snapshot.groups
    assert used_meanwhile(before, now) == []
    (found,) = used_meanwhile(before, replace(now, moves=(replace(MOVE, source_offset=41), now.moves[1])))
    assert (found.group, found.rule) == ("readers", GroupRule.USED_MEANWHILE)
    woken = GroupFinding("mail", GroupRule.USED_AT_SOURCE, "has members")
    assert [one.group for one in used_meanwhile(before, replace(now, findings=(woken,)))] == ["mail"]
    blocked = planned(MOVE, replace(MOVE, group="mail"), findings=(woken,))
    assert used_meanwhile(blocked, replace(now, findings=(woken,))) == [], "it was not moved"


def record(offset: int, value: bytes = b"v", at_ms: int = 5, headers: Any = ()) -> Any:
    return SimpleNamespace(offset=offset, key=None, value=value, timestamp=at_ms, timestamp_type=0, headers=headers)


@pytest.mark.parametrize(
    ("last_there", "changing_key", "arrived"),
    [(b"second", "", 32), (b"second", "transforms", 0), (b"something else", "", 0), (None, "", 0)],
)
async def test_records_are_only_passed_over_where_the_last_of_them_is_proven(
    monkeypatch: pytest.MonkeyPatch, last_there: bytes | None, changing_key: str, arrived: int
) -> None:
    async def read(cluster: str, *_: Any, **__: Any) -> AsyncIterator[Any]:
        if cluster == "us":
            for offset, value in enumerate((b"first", b"second", b"third")):
                yield record(30 + offset, value)
        elif last_there is not None:
            yield record(38, last_there)

    monkeypatch.setattr(unreplicated, "read_ranges", read)
    site, written = place(), CopiedEnd(39, 2, ((37, 39),))
    site.flow.changing_key = changing_key
    assert await unreplicated._arrived(site, ORDERS, [(30, 33)], ORDERS, written) == arrived


def test_a_copy_is_told_by_content_and_time() -> None:
    assert is_same(record(1), record(9))
    assert not is_same(record(1), record(9, b"w"))
    assert not is_same(record(1), record(9, at_ms=6))
    assert not is_same(record(1), record(9, headers=[(HEADER, b"")]))
    stamped = record(9, at_ms=6)
    stamped.timestamp_type = 1
    assert is_same(record(1), stamped), "the log's own time says nothing"


#: Those of leases: the last :class:`Eu`.
WRITERS: list[Any] = []


class Eu:
    """Groups of the target, with one transaction at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offsets: dict[str, dict[tuple[str, int], int]] = {}
        self.members: set[str] = set()
        self.done: list[str] = []
        self.is_claimed = False
        WRITERS[:] = [self]

        async def committed(_: Any, group: str, *__: Any, **___: Any) -> dict[tuple[str, int], Committed]:
            return {one: Committed(offset) for one, offset in self.offsets.get(group, {}).items() if offset >= 0}

        async def listed(_: Any, group: str) -> GroupListing:
            return GroupListing(CLASSIC, "consumer", "Stable" if group in self.members else "Empty")

        monkeypatch.setattr(execute, "listed_group", listed)
        for module in (execute, failback_and_undo):
            monkeypatch.setattr(module, "committed", committed)

    async def write(self, records: Any, may_commit: Any, offsets: Any) -> bool:
        if self.is_claimed:
            raise Superseded("another one has it")
        if not await may_commit({}):
            return False
        for group, wanted in offsets.items():
            self.done.append("move")
            self.offsets.setdefault(group, {}).update({one: place.offset for one, place in wanted.items()})
        return True


@pytest.fixture
def eu(monkeypatch: pytest.MonkeyPatch) -> Eu:
    return Eu(monkeypatch)


def held() -> Any:
    """A lease."""

    done = answers()
    record = SimpleNamespace(owner="ann", command="failover", since_ms=time.time_ns() // 1_000_000)
    return SimpleNamespace(check_not_lost=lambda: None, store=done, check=done, record=record, lanes=WRITERS)


def arrange(eu: Eu, monkeypatch: pytest.MonkeyPatch, objections: Sequence[str] = (), now: Groups = READERS) -> None:
    def does(name: str, answer: Any = None) -> Any:
        async def call(*_: Any, **__: Any) -> Any:
            eu.done.append(name)
            return answer

        return call

    looked = Snapshot("us", "eu", groups=READERS)
    answers: dict[str, Any] = {
        "drain": None,
        "stop_flow": None,
        "behind": Behind(FlowLag(())),
        "copied_ends": {ORDERS: CopiedEnd(37)},
        "reverse_flow_check": ReverseFlow([StartBefore("orders", 0, None, 36)], list(objections)),
        "store_starts": None,
        "prove": [],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(execute, name, does(name, answer))
    monkeypatch.setattr(journal, "read_runs", does("read the journal", []))
    monkeypatch.setattr(collect_snapshot, "collect", does("look", looked))
    monkeypatch.setattr(collect_snapshot, "groups_now", does("look at the source", now))


async def go(options: FailoverOptions | None = None) -> execute.FailoverResult:
    site = place()
    site.flow.read_committed = False
    steps = execute.Failover(site, options or FailoverOptions(), print)
    return await steps.run_under(held(), await steps.look())


async def test_the_flow_back_is_given_its_begin_before_any_group_moves(eu: Eu, monkeypatch: pytest.MonkeyPatch) -> None:
    arrange(eu, monkeypatch)
    done = await go()
    assert eu.done.index("store_starts") < eu.done.index("prove") < eu.done.index("move")
    assert eu.done.index("move") < eu.done.index("look at the source")
    assert [one.outcome for one in done.plan.groups] == [GroupOutcome.READY]


async def test_no_group_moves_if_the_flow_back_may_not_begin(eu: Eu, monkeypatch: pytest.MonkeyPatch) -> None:
    arrange(eu, monkeypatch, ["only eu holds something"], Groups())
    with pytest.raises(PermanentError, match="only eu holds something"):
        await go()
    assert "move" not in eu.done and "store_starts" not in eu.done


async def test_a_consumer_that_comes_to_life_before_the_move_is_named(eu: Eu, monkeypatch: pytest.MonkeyPatch) -> None:
    arrange(eu, monkeypatch, now=Groups(("readers",), (replace(MOVE, source_offset=45),)))
    (blocked,) = (await go()).plan.blocked
    assert "was used at the source while it was moved" in blocked.reasons[0].why


async def test_a_group_whose_sample_differs_is_not_moved(eu: Eu, monkeypatch: pytest.MonkeyPatch) -> None:
    arrange(eu, monkeypatch)
    proof = SampleCheck("readers", "orders-0 at 40", "orders-0 at 37", 1, DIFFERS, "'a' against 'b'")
    put(monkeypatch, execute, prove=[proof])
    (blocked,) = (await go()).plan.blocked
    assert "'a' against 'b'" in blocked.reasons[0].why
    assert "move" not in eu.done


async def test_writes_after_the_drain_are_reported(eu: Eu, monkeypatch: pytest.MonkeyPatch) -> None:
    arrange(eu, monkeypatch)
    lags = iter([0, 5])

    async def behind(*_: Any) -> Behind:
        return Behind(FlowLag((lag_of("orders", 0, "us.orders", 30, 0, 30 + next(lags), -1),)))

    monkeypatch.setattr(execute, "behind", behind)
    assert "was written to after the drain: 5 records behind" in (await go()).late


@pytest.mark.parametrize(("at_source", "is_used"), [(40, False), (41, True)])
async def test_a_group_that_keeps_its_offset_ahead_is_watched(
    eu: Eu, monkeypatch: pytest.MonkeyPatch, at_source: int, is_used: bool
) -> None:
    """A later look at the source finds the group without what was wanted."""
    ahead = replace(MOVE, before=50)
    arrange(eu, monkeypatch, now=Groups(("readers",), (replace(ahead, source_offset=at_source),)))
    put(monkeypatch, collect_snapshot, collect=Snapshot("us", "eu", groups=Groups(("readers",), (ahead,))))
    done = await go(FailoverOptions(keeps=frozenset({"readers"})))
    assert "move" not in eu.done
    assert bool(done.plan.blocked) == is_used


def mover() -> tuple[execute.GroupMover, journal.Journal]:
    site = place()
    known = journal.Journal(site, held(), journal.FailoverRun("1", "us", "eu"))
    return execute.GroupMover(site, held(), known, print), known


async def test_what_was_committed_since_the_look_stays(eu: Eu) -> None:
    """And the groups beside it move (D3, D6)."""
    eu.offsets = {"read": {("orders", 0): 300}, "used": {}, "idle": {("orders", 0): 10}}
    eu.members = {"used"}
    moving, known = mover()
    moves = [replace(MOVE, group=name, before=before) for name, before in (("read", 10), ("used", None), ("idle", 10))]
    found = {one.group: one for one in await moving.move_all([[one] for one in moves])}
    assert found.keys() == {"read", "used"}
    assert "has committed offset 300 on the target since" in found["read"].why
    assert found["used"].rule is GroupRule.USED_AT_TARGET
    assert eu.offsets == {"read": {("orders", 0): 300}, "used": {}, "idle": {("orders", 0): 37}}
    assert known.run.groups == {"idle": (GroupBefore("idle", "orders", 0, 10, "", 37),)}


async def test_an_operator_that_has_lost_the_lease_moves_nothing(eu: Eu) -> None:
    """A suspended laptop wakes up (D4)."""
    eu.is_claimed = True
    moving, _ = mover()
    with pytest.raises(clusters_and_lease.FailoverInProgress):
        await moving.move_all([[MOVE]])
    assert eu.done == []


async def test_a_move_whose_answer_was_lost_is_made_once(eu: Eu) -> None:
    eu.offsets = {"readers": {("orders", 0): 37}}
    moving, known = mover()
    assert await moving.move_all([[MOVE]]) == []
    assert known.run.groups["readers"][0].before is None


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Those whose writers an undo lets in."""
    found: set[str] = set()

    async def allow(_: Any, topics: Any) -> None:
        found.update(topics)

    monkeypatch.setattr(drain, "allow_writes", allow)
    return found


async def roll_back(run: journal.FailoverRun, *others: journal.FailoverRun) -> tuple[list[str], list[Any]]:
    """What is left, and what was stored."""
    stored: list[Any] = []

    async def store(*, records: Any) -> None:
        stored.extend(json.loads(one.value) for one in records)

    of = held()
    of.store = store
    with pytest.MonkeyPatch.context() as patched:
        put(patched, failback_and_undo, read_runs=[run, *others])
        return await failback_and_undo.roll_back(place(), run, of, print, (None, None)), stored


@pytest.mark.usefixtures("eu")
async def test_an_undo_lets_in_whom_any_run_has_refused(topics: set[str]) -> None:
    runs = [journal.FailoverRun(name, "us", "eu", denied=(topic,)) for name, topic in (("1", "a"), ("2", "b"))]
    left, stored = await roll_back(*runs)
    assert (left, topics, {one["run"]: one["denied"] for one in stored}) == ([], {"a", "b"}, {"1": [], "2": []})


@pytest.mark.parametrize("before", [None, 5])
async def test_an_undo_takes_back_groups_that_are_not_used(eu: Eu, topics: set[str], before: int | None) -> None:
    eu.offsets = {group: {("orders", 0): 37} for group in ("busy", "idle")}
    eu.members = {"busy"}
    groups = {group: (GroupBefore(group, "orders", 0, before, "", 37),) for group in eu.offsets}
    (line,), _ = await roll_back(journal.FailoverRun("1", "us", "eu", groups=groups, denied=("a",)))
    assert "group busy" in line and "has members" in line
    assert eu.offsets == {"busy": {("orders", 0): 37}, "idle": {("orders", 0): -1 if before is None else before}}
    assert topics == {"a"}


@pytest.mark.parametrize("before", [None, 5])
async def test_a_group_that_went_on_in_one_partition_is_left_in_all(eu: Eu, before: int | None) -> None:
    """Else its quiet partitions begin at auto.offset.reset (D1)."""
    eu.offsets = {"billing": {("orders", 0): 500, ("orders", 1): 20}}
    rows = tuple(GroupBefore("billing", "orders", index, before, "", after) for index, after in ((0, 10), (1, 20)))
    (line,), _ = await roll_back(journal.FailoverRun("1", "us", "eu", groups={"billing": rows}))
    went_on = "it has committed 500 in orders-0, and it was moved to 10"
    assert line == f"group billing was not changed in any partition: {went_on}"
    assert eu.offsets == {"billing": {("orders", 0): 500, ("orders", 1): 20}}


async def test_a_group_gets_back_what_it_had_and_in_other_partitions_nothing(eu: Eu) -> None:
    """In one transaction: a consumer that commits meanwhile wins (see :class:`connectors.failover.execute.Change`)."""
    eu.offsets = {"billing": {("orders", 0): 10, ("orders", 1): 20}}
    rows = (GroupBefore("billing", "orders", 0, None, "", 10), GroupBefore("billing", "orders", 1, 7, "", 20))
    left, _ = await roll_back(journal.FailoverRun("1", "us", "eu", groups={"billing": rows}))
    assert (left, eu.offsets, eu.done) == ([], {"billing": {("orders", 0): -1, ("orders", 1): 7}}, ["move"])


async def test_a_group_that_comes_to_life_while_taken_back_is_left(eu: Eu, monkeypatch: pytest.MonkeyPatch) -> None:
    eu.offsets = {"billing": {("orders", 0): 10}}
    looked = failback_and_undo.look

    async def look(*of: Any) -> Any:
        found = await looked(*of)
        eu.offsets["billing"]["orders", 0] = 11
        return found

    monkeypatch.setattr(failback_and_undo, "look", look)
    rows = (GroupBefore("billing", "orders", 0, None, "", 10),)
    (line,), _ = await roll_back(journal.FailoverRun("1", "us", "eu", groups={"billing": rows}))
    assert line.startswith("group billing: orders-0 has committed offset 11 on the target since the plan was made")
    assert eu.offsets == {"billing": {("orders", 0): 11}}


@pytest.mark.parametrize(
    ("names", "why"), [(("1", "2"), ""), (("1", "2", "3"), "has since changed something"), (("1",), "has been undone")]
)
async def test_an_undo_is_of_the_run_seen(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], why: str) -> None:
    runs = [journal.FailoverRun(name, "us", "eu", "ann@there", denied=("a",)) for name in names]

    looked = journal.FailoverRun("2", "us", "eu", denied=("a",))
    put(monkeypatch, failback_and_undo, read_runs=runs)
    if not why:
        assert (await failback_and_undo.read_again(place(), looked)).owner == "ann@there"
        return
    with pytest.raises(PermanentError, match=why):
        await failback_and_undo.read_again(place(), looked)


@pytest.mark.usefixtures("eu")
async def test_begins_of_flows_that_went_on_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def moved_on(_: Any, starts: Any) -> Any:
        return starts[1:]

    monkeypatch.setattr(reverse_flow, "undo_starts", moved_on)
    put(monkeypatch, drain, why_back_runs="")
    starts = tuple(StartBefore("orders", index, None, 36) for index in range(2))
    (line,), _ = await roll_back(journal.FailoverRun("1", "us", "eu", starts=starts))
    assert line == "orders-1: eu->us has copied more since"


async def test_a_rule_that_an_operator_has_made_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, authorization, describe_acls=drain.rules(["a"]))
    cluster: Any = None
    assert await drain.denied_already(cluster, {"a", "b"}) == {"a"}


def record_of(name: str, **more: Any) -> clusters_and_lease.LeaseRecord:
    return clusters_and_lease.LeaseRecord(f"{name}@there", name, 1, "failover", 1, 5, run=name, **more)


async def test_a_lease_counts_as_long_as_it_is_renewed_whatever_the_clocks_say() -> None:
    mine, theirs = record_of("ann"), record_of("bob")
    renewed = iter((theirs, theirs, replace(theirs, until_ms=6)))
    silent = iter([theirs] * 1000)

    def each(records: Iterator[clusters_and_lease.LeaseRecord]) -> Any:
        return AsyncMock(side_effect=lambda: next(records))

    with pytest.raises(clusters_and_lease.FailoverInProgress, match="bob@there"):
        await clusters_and_lease.await_free(each(renewed), mine, watch_s=60, look_s=0.001)
    await clusters_and_lease.await_free(each(silent), mine, watch_s=0.05, look_s=0.001)
    assert not replace(theirs, until_ms=10**9).is_held(0), "by another clock than ours"


async def test_a_failover_the_other_way_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its lease on the source; a source that is gone is not asked."""
    now_ms = time.time_ns() // 1_000_000
    theirs = replace(record_of("bob"), until_ms=now_ms + 10_000)
    renewed = iter(range(1, 100))
    asked: list[Any] = []

    async def look(cluster: str, map_topic: str, flow: str) -> clusters_and_lease.LeaseRecord | None:
        asked.append((cluster, map_topic, flow))
        return replace(theirs, until_ms=theirs.until_ms + next(renewed)) if cluster == "us" else None

    monkeypatch.setattr(clusters_and_lease, "look", look)
    monkeypatch.setattr(clusters_and_lease.await_free, "__kwdefaults__", {"watch_s": 60.0, "look_s": 0.001})
    site = place(map_topic="map back")
    with pytest.raises(clusters_and_lease.FailoverInProgress, match="bob@there"):
        await clusters_and_lease.await_no_failback(site, record_of("ann"))
    assert set(asked) == {("us", "map back", "eu->us")}
    (line,) = await collect_snapshot._operators(site, has_source=True)
    assert "bob@there is working on this failover" in line
    assert await collect_snapshot._operators(site, has_source=False) == []


async def test_a_run_finds_another_in_its_way_and_not_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Itself by its last look, which the JSON is of: a success used to say no-go."""
    there, site = Coordinator(), place(map_topic="map back")
    monkeypatch.setattr(clusters_and_lease, "TransactionalWriter", there.writer)
    monkeypatch.setattr(clusters_and_lease, "look", there.look)
    made = SimpleNamespace(make_topic=answers())
    monkeypatch.setattr("connectors.internal_topics.record_settings", lambda _: made)
    site.target_admin = None
    async with clusters_and_lease.hold(site, "failback"):
        assert await collect_snapshot._operators(site, has_source=True) == []
        other = place(map_topic="map back")
        (line, _) = await collect_snapshot._operators(other, has_source=True)
        assert "is working on this failover" in line and "failback" in line
    assert await collect_snapshot._operators(other, has_source=True) == [], "it is given back"


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_failover_looks_for_a_failback_under_its_lease(monkeypatch: pytest.MonkeyPatch, is_gone: bool) -> None:
    done: list[str] = []

    @contextlib.asynccontextmanager
    async def hold(*_: Any) -> AsyncIterator[Any]:
        done.append("hold")
        yield SimpleNamespace(record=None)

    monkeypatch.setattr(execute, "hold", hold)
    monkeypatch.setattr(execute, "await_no_failback", AsyncMock(side_effect=lambda *_: done.append("look")))
    monkeypatch.setattr(execute.Failover, "run_under", AsyncMock(side_effect=lambda *_: done.append("run")))
    failover_options = FailoverOptions(lambda _: True, is_gone=is_gone)
    await execute.Failover(place(), failover_options, print).run("failover", Plan(Snapshot("us", "eu")))
    assert done == (["hold", "run"] if is_gone else ["hold", "look", "run"])


class Coordinator:
    """Transactional ids: who opened one last writes, and all others are shut out."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.owners: dict[str, Any] = {}

    def writer(self, _: Any, name: str, **__: Any) -> Any:
        async def opened() -> None:
            self.owners[name] = one

        async def write(records: list[Any], *_: Any) -> None:
            if self.owners.get(name) is not one:
                raise Superseded("another one has it")
            self.log += [each.value for each in records]

        one = SimpleNamespace(open=opened, write=write)
        return one

    async def look(self, *_: Any) -> clusters_and_lease.LeaseRecord | None:
        return clusters_and_lease.decode(self.log[-1]) if self.log else None


def leases(monkeypatch: pytest.MonkeyPatch) -> tuple[Coordinator, clusters_and_lease.Lease, clusters_and_lease.Lease]:
    """Of two operators, of whom neither finds the other at work."""
    there, eu = Coordinator(), cast(Any, None)
    monkeypatch.setattr(clusters_and_lease, "TransactionalWriter", there.writer)
    put(monkeypatch, clusters_and_lease, await_free=None)
    first, second = (clusters_and_lease.Lease(eu, "map", "us->eu", record_of(name)) for name in ("ann", "bob"))
    return there, first, second


async def test_of_two_who_begin_at_the_same_time_the_later_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    there, first, second = leases(monkeypatch)
    await first.claim()
    await second.claim()
    with pytest.raises(clusters_and_lease.FailoverInProgress, match="taken over the failover us->eu"):
        await first.store(step="drain")
    for lane in first.lanes:
        with pytest.raises(Superseded):
            await lane.write([])
    await second.store(step="drain")
    record = clusters_and_lease.decode(there.log[-1])
    assert (record.owner, record.step) == ("bob@there", "drain")


async def test_who_is_overtaken_while_it_claims_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writers of groups may be the ones that count by then: it must not come through."""
    _, first, second = leases(monkeypatch)
    (lane, *_), opened = first.lanes, first.lanes[0].open

    async def overtaken() -> None:
        await second.claim()
        await opened()

    lane.open = overtaken  # type: ignore[method-assign]
    with pytest.raises(clusters_and_lease.FailoverInProgress):
        await first.claim()


async def test_who_stood_still_learns_of_a_lost_lease_before_a_renewal_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    _, first, second = leases(monkeypatch)
    await first.claim()
    await first.check()
    await second.claim()
    with pytest.raises(clusters_and_lease.FailoverInProgress, match="taken over the failover us->eu"):
        await first.check()
    first.lost = RetriableError("lost")
    with pytest.raises(RetriableError, match="lost"):
        first.check_not_lost()


def test_partitions_that_the_failover_itself_has_stopped_are_not_in_the_way() -> None:
    stopped = {"a-0": "it is QUARANTINED", "b-1": "it is QUARANTINED"}
    assert still_stopped(stopped, {"a"}, str) == {"b-1": "it is QUARANTINED"}
