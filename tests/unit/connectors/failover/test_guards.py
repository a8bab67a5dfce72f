"""Where a failover would skip records, or leave something behind that nobody knows how to lift, it says so instead."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from connect.core.errors import PermanentError
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
from connectors.failover.drain import Behind, CopiedEnd
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
BEGIN = ReverseFlow([StartBefore("orders", 0, None, 36)], [])
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
    (why,) = why_several("MirrorSourceConnector", "us->eu", stored, frozenset())
    assert "connector paid also copies orders-0, into another topic" in why and why.endswith("use --retired paid")
    assert why_several("MirrorSourceConnector", "us->eu", stored, frozenset({"paid"})) == []
    (why, wrong) = why_several("MirrorSourceConnector", "us->eu", stored, frozenset({"piad"}))
    assert wrong == "no connector piad copies into the target of us->eu. Check --retired"


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


def in_orders(*offsets: int) -> dict[tuple[str, int], int]:
    """By partition."""
    return {("orders", index): offset for index, offset in enumerate(offsets)}


@pytest.fixture
def eu(monkeypatch: pytest.MonkeyPatch) -> Eu:
    return Eu(monkeypatch)


def held() -> Any:
    """A lease."""

    done = answers()
    record = SimpleNamespace(owner="ann", command="failover", since_ms=time.time_ns() // 1_000_000)
    return SimpleNamespace(check_not_lost=lambda: None, store=done, check=done, record=record, lanes=WRITERS)


def arrange(eu: Eu, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    def does(name: str, answer: Any) -> Any:
        async def call(*_: Any, **__: Any) -> Any:
            eu.done.append(name)
            return answer

        return call

    ran: dict[str, Any] = {"drain": None, "stop_flow": None, "store_starts": None, "prove": []}
    ran |= {"behind": Behind(FlowLag(())), "copied_ends": {ORDERS: CopiedEnd(37)}, "reverse_flow_check": BEGIN}
    looked = {"collect": Snapshot("us", "eu", groups=READERS), "groups_now": READERS}
    for module, by_name in ((execute, ran), (collect_snapshot, looked), (journal, {"read_runs": []})):
        for name, answer in by_name.items():
            monkeypatch.setattr(module, name, does(name, changes.get(name, answer)))


async def go(options: FailoverOptions | None = None) -> execute.FailoverResult:
    site = place()
    site.flow.read_committed = False
    steps = execute.Failover(site, options or FailoverOptions(), print)
    return await steps.run_under(held(), await steps.look())


async def test_the_flow_back_is_given_its_begin_before_any_group_moves(eu: Eu, monkeypatch: pytest.MonkeyPatch) -> None:
    arrange(eu, monkeypatch)
    done = await go()
    assert eu.done.index("store_starts") < eu.done.index("prove") < eu.done.index("move")
    assert eu.done.index("move") < eu.done.index("groups_now")
    assert [one.outcome for one in done.plan.groups] == [GroupOutcome.READY]


async def test_no_group_moves_if_the_flow_back_may_not_begin(eu: Eu, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = BEGIN._replace(objections=["only eu holds something"])
    arrange(eu, monkeypatch, reverse_flow_check=refused, groups_now=Groups())
    with pytest.raises(PermanentError, match="only eu holds something"):
        await go()
    assert "move" not in eu.done and "store_starts" not in eu.done


async def test_writes_after_the_drain_are_reported(eu: Eu, monkeypatch: pytest.MonkeyPatch) -> None:
    arrange(eu, monkeypatch)
    lags = iter([0, 5])

    async def behind(*_: Any) -> Behind:
        return Behind(FlowLag((lag_of("orders", 0, "us.orders", 30, 0, 30 + next(lags), -1),)))

    monkeypatch.setattr(execute, "behind", behind)
    assert "was written to after the drain: 5 records behind" in (await go()).late


def readers(**changes: Any) -> Groups:
    return Groups(("readers",), (replace(MOVE, **changes),))


#: A later look at the source finds a group that keeps its offset without what was wanted.
AHEAD = Snapshot("us", "eu", groups=readers(before=50))
OTHER_SAMPLE = SampleCheck("readers", "orders-0 at 40", "orders-0 at 37", 1, DIFFERS, "'a' against 'b'")
USED = "was used at the source while it was moved"


@pytest.mark.parametrize(
    ("changes", "why", "is_moved"),
    [
        ({"groups_now": readers(source_offset=45)}, USED, True),
        ({"prove": [OTHER_SAMPLE]}, "'a' against 'b'", False),
        ({"collect": AHEAD, "groups_now": readers(before=50)}, "", False),
        ({"collect": AHEAD, "groups_now": readers(before=50, source_offset=41)}, USED, False),
    ],
)
async def test_a_group_that_comes_to_life_or_whose_sample_differs_is_named(
    eu: Eu, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], why: str, is_moved: bool
) -> None:
    arrange(eu, monkeypatch, **changes)
    blocked = (await go(FailoverOptions(keeps=frozenset({"readers"})))).plan.blocked
    assert [why in one.reasons[0].why for one in blocked] == [True] * bool(why)
    assert ("move" in eu.done) == is_moved


def mover() -> tuple[execute.GroupMover, journal.Journal]:
    site = place()
    known = journal.Journal(site, held(), journal.FailoverRun("1", "us", "eu"))
    return execute.GroupMover(site, held(), known, print), known


#: What groups had stored on the target.
BEFORE = {"read": 10, "used": None, "idle": 10, "moved": None}


async def test_what_was_committed_since_the_look_stays(eu: Eu) -> None:
    """And the groups beside it move (D3, D6), once where the answer to a move was lost."""
    eu.offsets = {"read": in_orders(300), "used": {}, "idle": in_orders(10), "moved": in_orders(37)}
    eu.members = {"used"}
    moving, known = mover()
    moves = [replace(MOVE, group=name, before=before) for name, before in BEFORE.items()]
    found = {one.group: one for one in await moving.move_all([[one] for one in moves])}
    assert found.keys() == {"read", "used"}
    assert "has committed offset 300 on the target since" in found["read"].why
    assert found["used"].rule is GroupRule.USED_AT_TARGET
    assert eu.offsets == {"read": in_orders(300), "used": {}, "idle": in_orders(37), "moved": in_orders(37)}
    assert known.run.groups == {
        name: (GroupBefore(name, "orders", 0, BEFORE[name], "", 37),) for name in ("idle", "moved")
    }


async def test_an_operator_that_has_lost_the_lease_moves_nothing(eu: Eu) -> None:
    """A suspended laptop wakes up (D4)."""
    eu.is_claimed = True
    moving, _ = mover()
    with pytest.raises(clusters_and_lease.FailoverInProgress):
        await moving.move_all([[MOVE]])
    assert eu.done == []


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


WENT_ON = "group billing was not changed in any partition: it has committed 500 in orders-0, and it was moved to 10"


@pytest.mark.parametrize(
    ("changed", "is_used", "has", "left", "after"),
    [
        ([(None, 37)], False, [37], "", [-1]),
        ([(5, 37)], False, [37], "", [5]),
        ([(None, 10), (7, 20)], False, [10, 20], "", [-1, 7]),
        ([(5, 37)], True, [37], "has members", [37]),
        ([(None, 10), (None, 20)], False, [500, 20], WENT_ON, [500, 20]),
        ([(5, 10), (5, 20)], False, [500, 20], WENT_ON, [500, 20]),
    ],
)
async def test_an_undo_takes_a_group_back_in_all_partitions_or_in_none(
    eu: Eu, topics: set[str], changed: list[Any], is_used: bool, has: list[int], left: str, after: list[int]
) -> None:
    """``changed``: before and after its move. Else the quiet ones begin at auto.offset.reset (D1). In one transaction:
    a consumer that commits meanwhile wins (see :class:`connectors.failover.execute.Change`)."""
    eu.offsets = {"billing": in_orders(*has), "idle": in_orders(37)}
    eu.members = {"billing"} if is_used else set()
    of_billing = tuple(GroupBefore("billing", "orders", at, was, "", now) for at, (was, now) in enumerate(changed))
    groups = {"billing": of_billing, "idle": (GroupBefore("idle", "orders", 0, 5, "", 37),)}
    lines, _ = await roll_back(journal.FailoverRun("1", "us", "eu", groups=groups, denied=("a",)))
    assert [left in line for line in lines] == [True] * bool(left)
    assert eu.offsets == {"billing": in_orders(*after), "idle": in_orders(5)}
    assert (len(eu.done), topics) == (2 - bool(left), {"a"})


async def test_a_group_that_comes_to_life_while_taken_back_is_left(eu: Eu, monkeypatch: pytest.MonkeyPatch) -> None:
    eu.offsets = {"billing": in_orders(10)}
    looked = failback_and_undo.look

    async def look(*of: Any) -> Any:
        found = await looked(*of)
        eu.offsets["billing"]["orders", 0] = 11
        return found

    monkeypatch.setattr(failback_and_undo, "look", look)
    rows = (GroupBefore("billing", "orders", 0, None, "", 10),)
    (line,), _ = await roll_back(journal.FailoverRun("1", "us", "eu", groups={"billing": rows}))
    assert line.startswith("group billing: orders-0 has committed offset 11 on the target since the plan was made")
    assert eu.offsets == {"billing": in_orders(11)}


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


def test_partitions_that_the_failover_itself_has_stopped_are_not_in_the_way() -> None:
    stopped = {"a-0": "it is QUARANTINED", "b-1": "it is QUARANTINED"}
    assert still_stopped(stopped, {"a"}, str) == {"b-1": "it is QUARANTINED"}
