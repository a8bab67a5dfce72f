"""Where a failover would skip records, or leave something behind that nobody knows how to lift, it says so instead."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.cli.failover import Arguments, show_outcome
from connect.core.acls import AclBinding
from connect.core.errors import PermanentError, RetriableError
from connect.kafka.group_offsets import GroupInUse
from connect.kafka.offsets import EARLIEST, LATEST
from connect.kafka.transactions import Superseded
from connectors.dataplane.plan import TopicPartition
from connectors.failover import (
    appending,
    denying,
    draining,
    lease,
    preflight,
    steps,
    stranded,
    taking_back,
    undo,
)
from connectors.failover.appending import HEADER
from connectors.failover.behind import Behind, still_open, without_heartbeats
from connectors.failover.draining import CopiedEnd
from connectors.failover.group_look import why_doubted, why_not_mirrored
from connectors.failover.logs import Fate, Log, became
from connectors.failover.model import GroupMove, GroupsPlan, How, Left, Preflight, gone_on, with_rewinds
from connectors.failover.own import merged, own_ranges
from connectors.failover.preflight import Wish, why_several
from connectors.failover.returning import still_stopped
from connectors.failover.starting import why_no_start
from connectors.failover.stranded import is_same
from connectors.failover.undo import StartBefore
from connectors.failover.way_back import WayBack
from connectors.lag import FlowLag, lag_of
from connectors.mirror_records import Checkpoint
from connectors.policy import DefaultReplicationPolicy
from connectors.positions import Position

ONE, OTHER = UUID(int=1), UUID(int=2)
ORDERS = TopicPartition("orders", 0)
MOVE = GroupMove("readers", ("orders", 0), 40, ("orders", 0), None, "", 37, "note", How.EXACT)
POSITION = Position("orders", 0, ONE, 30, 4, "orders", 0, ONE, 37, "writer", 7, 0, 30)


def place(**back: Any) -> Any:
    """Of flows that keep names, both ways."""
    flow = SimpleNamespace(
        flow="us->eu", source_alias="us", target_alias="eu", name="MirrorSourceConnector", changing_key="",
        policy=DefaultReplicationPolicy(), map_topic="map",
    )  # fmt: skip
    other = SimpleNamespace(flow="eu->us", should_mirror=lambda _: True, remote_topic=lambda topic: topic, **back)
    return SimpleNamespace(flow=flow, back=other, source="us", target="eu", flow_workers="workers")


# -- what was copied is not there any more --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic_id", "end", "epoch_end", "fate", "same_to"),
    [
        (ONE, 50, 30, Fate.SAME, 30),
        (ONE, 50, -1, Fate.SAME, 30),
        (None, 30, 30, Fate.SAME, 30),
        (OTHER, 50, 50, Fate.ANEW, 0),
        (ONE, 12, 12, Fate.CUT, 12),
        (ONE, 50, 12, Fate.CUT, 12),
    ],
)
def test_a_log_that_was_made_anew_or_lost_its_end_is_told(
    topic_id: UUID | None, end: int, epoch_end: int, fate: Fate, same_to: int
) -> None:
    found = became(POSITION, topic_id, 0, end, epoch_end)
    assert (found.fate, found.same_to) == (fate, same_to)


def test_the_flow_back_never_begins_behind_what_the_old_primary_lost() -> None:
    cut = why_no_start(place(), ORDERS, POSITION, Log(Fate.CUT, ONE, 0, 12, 12), None)
    assert "up to 12 only" in cut and "delete the topic" in cut
    anew = Log(Fate.ANEW, OTHER, 0, 0)
    assert why_no_start(place(), ORDERS, POSITION, anew, None) == "", "it begins at the beginning"
    assert "reset its offsets" in why_no_start(place(), ORDERS, POSITION, anew, 36)


async def test_a_map_of_a_topic_that_was_there_before_hides_no_record() -> None:
    old, now = (SimpleNamespace(target_topic_id=one) for one in (OTHER, ONE))

    async def runs(pair: Any, _: Any) -> Any:
        first, behind = (0, 50) if pair is old else (10, 20)
        return [SimpleNamespace(downstream=first, downstream_end=behind)]

    copies: Any = SimpleNamespace(pairs_to=lambda _: [old, now], chunks=lambda _: [0], runs=runs)
    assert await own_ranges(copies, ORDERS, ONE, 0, 50) == [(0, 10), (20, 50)]
    assert merged([(7, 9), (1, 3), (3, 5), (4, 4)]) == [(1, 5), (7, 9)]


async def test_what_a_writer_left_is_looked_for_where_the_log_still_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ends(_: Any, partitions: Any, at: int) -> dict[Any, int]:
        assert at in (EARLIEST, LATEST)
        return dict.fromkeys(partitions, 50)

    monkeypatch.setattr(draining, "list_offsets", ends)
    target: Any = None  # nobody has to be asked for records
    topic: Any = SimpleNamespace(topic_id=ONE, partitions={0: None})
    assert await draining._end_of(target, POSITION, topic) == CopiedEnd(37)
    assert await draining._end_of(target, POSITION, None) == CopiedEnd(0)
    topic.topic_id = OTHER
    assert await draining._end_of(target, POSITION, topic) == CopiedEnd(0)


# -- drained ---------------------------------------------------------------------------------------------------


def test_heartbeats_are_not_waited_for_and_open_transactions_are() -> None:
    lags = [lag_of("orders", 0, "us.orders", 30, 0, 30, -1), lag_of("heartbeats", 0, "us.heartbeats", 5, 0, 9, -1)]
    kept = without_heartbeats(lags, DefaultReplicationPolicy())
    assert [one.topic for one in kept] == ["orders"]
    assert still_open(kept, {("orders", 0): 30}) == ()
    held = Behind(FlowLag(tuple(kept)), still_open(kept, {("orders", 0): 33}))
    assert not held.is_copied and "transaction is open in orders-0" in str(held)
    assert Behind(FlowLag(tuple(kept))).is_copied


# -- groups ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("upstream", "downstream", "end", "copied", "words"),
    [
        (30, 37, 37, 30, ""),
        (20, 27, 37, None, ""),
        (30, 38, 37, 30, "which ends at 37"),
        (31, 37, 37, 30, "copied up to 30 only"),
        (30, 37, None, 30, "does not tell"),
    ],
)
def test_a_checkpoint_of_a_topic_that_was_there_before_is_doubted(
    upstream: int, downstream: int, end: int | None, copied: int | None, words: str
) -> None:
    why = why_doubted(Checkpoint("readers", "orders", 0, upstream, downstream, ""), end, copied)
    assert words in why and bool(why) == bool(words)


@pytest.mark.parametrize("is_enabled", [True, False])
async def test_topics_whose_readers_stood_in_copies_on_the_lost_source_are_named(is_enabled: bool) -> None:
    names = ("payments", "us.orders", "orders", "heartbeats", *(f"t{at}" for at in range(9)))
    of_others = ("ap.orders", "xx.orders", "ap.heartbeats", "ap.checkpoints.internal")
    there = dict.fromkeys((*names, *of_others))

    async def metadata(_: None) -> Any:
        return SimpleNamespace(topics=there)

    site = place(enabled=is_enabled, policy=DefaultReplicationPolicy())
    site.back.should_mirror = lambda name: "." not in name
    site.others = ("ap",)
    site.target = SimpleNamespace(metadata=metadata)
    places: Any = SimpleNamespace(filled=lambda: {"orders"})
    notes = await preflight._not_in_checkpoints(site, places)
    *own, of_ap = notes
    assert of_ap.startswith("cluster us may have copies of ap.orders: no checkpoint has the offsets of groups")
    assert len(own) == is_enabled
    for note in own:
        assert note.startswith("eu->us mirrors payments, t0, t1, t2, t3 and 5 more: no checkpoint has the offsets")


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("mail", ["reads mail, which us->eu does not mirror", "--accept not-mirrored"]),
        ("xx.mail", ["reads xx.mail, which us->eu does not mirror", "--accept not-mirrored"]),
        (
            "ap.mail",
            [
                "reads ap.mail, which ap->us copies",
                "(heliograph map FILE --topic mail --partition 3 --flow 'ap->us' --offset 41 --reverse)",
                "(heliograph map FILE --topic mail --partition 3 --flow 'ap->eu' --offset ANSWER)",
                "--accept not-mirrored",
            ],
        ),
    ],
)
def test_a_topic_of_a_third_cluster_is_refused_with_the_two_look_ups(topic: str, words: list[str]) -> None:
    why = why_not_mirrored(topic, 3, 41, place().flow, ("ap",))
    assert all(one in why for one in words), why


def test_connectors_that_share_a_topic_out_are_not_moved_by_halves() -> None:
    both = [("MirrorSourceConnector", ORDERS), ("paid", ORDERS), ("others", TopicPartition("mail", 0))]
    (why,) = why_several("MirrorSourceConnector", "us->eu", both)
    assert "connector paid" in why and "delete its offsets" in why


def test_a_group_that_reads_on_while_it_is_moved_is_seen() -> None:
    before = GroupsPlan(("readers",), (MOVE,), (Left("mail", "", "is a share group"),))
    assert gone_on(before, before) == []
    (why,) = gone_on(before, replace(before, moves=(replace(MOVE, source_offset=41),)))
    assert "group readers" in why
    woken = Left("late", "", "still has members", is_of_source=True)
    assert len(gone_on(before, replace(before, left=(*before.left, woken)))) == 1


# -- stranded --------------------------------------------------------------------------------------------------


def record(offset: int, value: bytes = b"v", at_ms: int = 5, headers: Any = ()) -> Any:
    return SimpleNamespace(offset=offset, key=None, value=value, timestamp=at_ms, timestamp_type=0, headers=headers)


@pytest.mark.parametrize(
    ("last_there", "arrived"),
    [(b"second", 32), (b"something else", 0), (None, 0)],
)
async def test_records_are_only_passed_over_where_the_last_of_them_is_proven(
    monkeypatch: pytest.MonkeyPatch, last_there: bytes | None, arrived: int
) -> None:
    async def read(cluster: str, *_: Any, **__: Any) -> AsyncIterator[Any]:
        if cluster == "us":
            for offset, value in enumerate((b"first", b"second", b"third")):
                yield record(30 + offset, value)
        elif last_there is not None:
            yield record(38, last_there)

    monkeypatch.setattr(stranded, "read_ranges", read)
    written = CopiedEnd(39, 2, ((37, 39),))
    assert await stranded._arrived(place(), ORDERS, [(30, 33)], ORDERS, written) == arrived


def test_a_copy_is_told_by_content_and_time() -> None:
    assert is_same(record(1), record(9))
    assert not is_same(record(1), record(9, b"w"))
    assert not is_same(record(1), record(9, at_ms=6))
    assert not is_same(record(1), record(9, headers=[(HEADER, b"")]))
    stamped = record(9, at_ms=6)
    stamped.timestamp_type = 1
    assert is_same(record(1), stamped), "the log's own time says nothing"


async def test_nothing_is_appended_beside_a_flow_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def runs(*_: Any) -> str:
        return "its connector is RUNNING"

    monkeypatch.setattr(appending, "why_running", runs)
    with pytest.raises(PermanentError, match=r"us->eu runs .* stop it first"):
        await appending.append_all(place(), cast(Any, None), None, print)


# -- order, and what takes it back -----------------------------------------------------------------------------


def arrange(monkeypatch: pytest.MonkeyPatch, objections: list[str], now: GroupsPlan) -> list[str]:
    done: list[str] = []

    def does(name: str, answer: Any = None) -> Any:
        async def call(*_: Any, **__: Any) -> Any:
            done.append(name)
            return answer

        return call

    looked = Preflight("us", "eu", groups=GroupsPlan(("readers",), (MOVE,)))
    monkeypatch.setattr(steps, "LagReader", lambda *_: None)
    answers: dict[str, Any] = {
        "drain": None,
        "stop_flow": None,
        "behind": Behind(FlowLag(())),
        "copied_ends": {ORDERS: CopiedEnd(37)},
        "way_back": WayBack([StartBefore("orders", 0, None, 36)], objections),
        "store_starts": None,
        "move": {},
        "committed": {("orders", 0): SimpleNamespace(offset=37)},
        "prove": [],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(steps, name, does(name, answer))
    monkeypatch.setattr(preflight, "look", does("look", looked))
    monkeypatch.setattr(preflight, "groups_now", does("look at the source", now))
    return done


async def go(
    tmp_path: Path, accepts: frozenset[str] = frozenset(), others: tuple[str, ...] = (), tell: draining.Tell = print
) -> steps.Outcome:
    async def store(**_: Any) -> None: ...

    site = place()
    site.flow.read_committed = False
    lease: Any = SimpleNamespace(
        lost=None, store=store, record=SimpleNamespace(denied=()), other_undo_files=lambda _: others
    )
    return await steps.Failover(site, Wish(lambda _: True, accepts=accepts), tmp_path / "undo.json", tell).run_under(
        lease
    )


async def test_the_flow_back_is_told_where_to_begin_before_any_group_moves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = arrange(monkeypatch, [], GroupsPlan(("readers",), (MOVE,)))
    await go(tmp_path)
    assert done.index("store_starts") < done.index("move") < done.index("look at the source")


async def test_no_group_moves_where_the_flow_back_may_not_begin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = arrange(monkeypatch, ["only eu holds something"], GroupsPlan())
    with pytest.raises(PermanentError, match="only eu holds something"):
        await go(tmp_path)
    assert "move" not in done and "store_starts" not in done


async def test_a_consumer_that_comes_to_life_between_look_and_move_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arrange(monkeypatch, [], GroupsPlan(("readers",), (replace(MOVE, source_offset=45),)))
    with pytest.raises(RetriableError, match="group readers was used at the source"):
        await go(tmp_path)


@pytest.mark.parametrize(("at_source", "is_used"), [(40, False), (41, True)])
async def test_a_group_that_keeps_its_place_ahead_is_watched_and_not_taken_for_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at_source: int, is_used: bool
) -> None:
    """Whoever looks again at the source finds the group without what was accepted."""
    ahead = replace(MOVE, before=50)
    now = GroupsPlan(("readers",), (replace(ahead, source_offset=at_source),))
    done = arrange(monkeypatch, [], now)
    looked = with_rewinds(GroupsPlan(("readers",), (ahead,)), allowed=False, keeps=True)

    async def look(*_: Any) -> Preflight:
        return Preflight("us", "eu", groups=looked)

    monkeypatch.setattr(preflight, "look", look)
    refused = pytest.raises(RetriableError, match="group readers was used") if is_used else contextlib.nullcontext()
    with refused:
        await go(tmp_path, frozenset({preflight.AHEAD}))
    assert "move" not in done
    assert undo.read(tmp_path / "undo.json").is_finished != is_used


def let_in(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Topics whose writers an undo lets in."""
    found: set[str] = set()

    async def allow(_: Any, topics: Any) -> None:
        found.update(topics)

    monkeypatch.setattr(taking_back, "allow_writes", allow)
    return found


async def test_an_undo_lets_in_whom_either_it_or_the_lease_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topics = let_in(monkeypatch)
    record = undo.Undo("us", "eu", denied=("a",), file=tmp_path / "undo.json")
    assert await taking_back.take_back(place(), record, print, (None, None), ("b",)) == []
    assert topics == {"a", "b"}


@pytest.mark.parametrize("before", [None, 5])
async def test_an_undo_leaves_the_group_that_is_used_and_takes_back_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: int | None
) -> None:
    topics = let_in(monkeypatch)
    changed: list[str] = []

    async def stored(*_: Any) -> Any:
        return {("orders", 0): SimpleNamespace(offset=37)}

    async def change(_: Any, group: str, __: Any) -> dict[Any, str]:
        if group == "busy":
            raise GroupInUse("group busy has members on cluster eu")
        changed.append(group)
        return {}

    for name, fake in (("committed", stored), ("move", change), ("forget", change)):
        monkeypatch.setattr(taking_back, name, fake)
    moves = [replace(MOVE, group=group, before=before) for group in ("busy", "idle")]
    record = undo.begin(tmp_path / "undo.json", "us", "eu").with_moves(moves).with_denied(["a"])
    record.write()
    (line,) = await taking_back.take_back(place(), record, print, (None, None), ())
    assert "group busy has members" in line
    assert (changed, topics) == (["idle"], {"a"})
    assert [one.group for one in undo.read(record.file).groups] == ["busy"], "the next undo takes back the rest"


async def test_a_run_that_was_taken_back_is_not_gone_on_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its old offsets, begins and rules are not what a later run finds."""

    async def moved_on(_: Any, starts: Any) -> Any:
        return starts[1:]

    async def stopped(*_: Any) -> str:
        return ""

    let_in(monkeypatch)
    monkeypatch.setattr(taking_back, "undo_starts", moved_on)
    monkeypatch.setattr(taking_back, "why_back_runs", stopped)
    file = tmp_path / "undo.json"
    starts = [StartBefore("orders", index, None, 36) for index in range(2)]
    undo.begin(file, "us", "eu").with_starts(starts).with_denied(["a"]).write()
    (line,) = await taking_back.take_back(place(), undo.read(file), print, (None, None), ())
    assert line == "orders-1: eu->us has gone on since"
    left = undo.read(file)
    assert (left.starts, left.denied, left.is_finished) == ((starts[1],), (), True)
    assert not undo.begin(file, "us", "eu").changes


def test_an_undo_file_that_takes_nothing_back_any_more_is_not_put_aside(tmp_path: Path) -> None:
    file = tmp_path / "undo.json"
    undo.Undo("us", "eu", file=file).finish()
    undo.begin(file, "us", "eu").with_moves([MOVE]).write()
    assert [one.group for one in undo.read(file).groups] == ["readers"]
    assert [one.name for one in tmp_path.iterdir()] == ["undo.json"]


async def test_a_rule_that_an_operator_has_made_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async def there(*_: Any) -> list[AclBinding]:
        return denying.rules(["a"])

    monkeypatch.setattr(denying, "describe_acls", there)
    cluster: Any = None
    assert await denying.denied_already(cluster, {"a", "b"}) == {"a"}


def test_begins_of_a_failback_are_in_the_undo_file_and_an_old_file_is_put_aside(tmp_path: Path) -> None:
    file = tmp_path / "undo.json"
    undo.begin(file, "eu", "us").with_begins([StartBefore("orders", 0, None, 36)]).write()
    assert undo.begin(file, "eu", "us").begins == (StartBefore("orders", 0, None, 36),)
    old_s = file.stat().st_mtime - undo.OLD_S - 1
    os.utime(file, (old_s, old_s))
    other = undo.begin(file, "eu", "us")
    assert other.begins == ()
    other.with_begins([StartBefore("payments", 0, None, 1)]).write()
    assert undo.read(tmp_path / "undo.1.json").begins


# -- one at a time ---------------------------------------------------------------------------------------------


async def test_a_lease_counts_as_long_as_it_is_renewed_whatever_the_clocks_say() -> None:
    mine = lease.Record("ann@here", "here", 1, "failover", 1, 0)
    theirs = lease.Record("bob@there", "there", 2, "failover", 2, 5)
    renewed = iter((theirs, theirs, replace(theirs, until_ms=6)))
    silent = iter([theirs] * 1000)

    async def living() -> lease.Record | None:
        return next(renewed)

    async def dead() -> lease.Record | None:
        return next(silent)

    with pytest.raises(lease.InHand, match="bob@there"):
        await lease.await_free(living, mine, watch_s=60, look_s=0.001)
    assert await lease.await_free(dead, mine, watch_s=0.05, look_s=0.001) == theirs
    assert not replace(theirs, until_ms=10**9).is_held(0), "by another clock than ours"


async def test_a_failover_the_other_way_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its lease on the source; a source that is gone is not asked."""
    now_ms = time.time_ns() // 1_000_000
    theirs = lease.Record("bob@there", "there", 2, "failover", 2, now_ms + 10_000)
    renewed = iter(range(1, 100))
    asked: list[Any] = []

    async def look(cluster: str, map_topic: str, flow: str) -> lease.Record | None:
        asked.append((cluster, map_topic, flow))
        return replace(theirs, until_ms=theirs.until_ms + next(renewed)) if cluster == "us" else None

    monkeypatch.setattr(lease, "look", look)
    monkeypatch.setattr(lease.await_free, "__kwdefaults__", {"watch_s": 60.0, "look_s": 0.001})
    site = place(map_topic="map back")
    with pytest.raises(lease.InHand, match="bob@there"):
        await lease.await_no_way_back(site, lease.Record("ann@here", "here", 1, "failover", 1, 0))
    assert set(asked) == {("us", "map back", "eu->us")}
    (line,) = await preflight._in_hand(site, has_source=True)
    assert "bob@there is at it" in line
    assert await preflight._in_hand(site, has_source=False) == []


async def test_a_run_finds_another_in_its_way_and_not_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Itself by its last look, which the JSON is of: a success used to say no-go. Another may have the same number on a
    host of the same name, as containers have."""
    ours, site = lease_after([], is_finished=True), place(map_topic="map back")
    ours.record = lease.Record("ann@here", platform.node(), os.getpid(), "heliograph failback", 1, 0)
    monkeypatch.setattr(lease, "Lease", lambda *_: ours)
    monkeypatch.setattr(lease, "record_settings", lambda _: SimpleNamespace(make_topic=made))
    site.target_admin = None
    looked: list[list[str]] = []
    async with lease.hold(site, "failback"):
        for record in (ours.record, replace(ours.record, since_ms=2)):

            async def look(*_: Any, found: lease.Record = record) -> lease.Record:
                return found

            monkeypatch.setattr(lease, "look", look)
            looked.append(await preflight._in_hand(site, has_source=True))
    assert looked[0] == []
    assert len(looked[1]) == 2 and "ann@here is at it" in looked[1][0]


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_failover_looks_for_one_the_other_way_once_it_holds_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_gone: bool
) -> None:
    done: list[str] = []

    @contextlib.asynccontextmanager
    async def hold(*_: Any) -> AsyncIterator[Any]:
        done.append("hold")
        yield SimpleNamespace(record=None)

    async def await_no_way_back(*_: Any) -> None:
        done.append("look")

    async def run_under(*_: Any) -> None:
        done.append("run")

    monkeypatch.setattr(steps, "hold", hold)
    monkeypatch.setattr(steps, "await_no_way_back", await_no_way_back)
    monkeypatch.setattr(steps.Failover, "run_under", run_under)
    wish = Wish(lambda _: True, is_gone=is_gone)
    await steps.Failover(place(), wish, tmp_path / "undo.json", print).run("failover")
    assert done == (["hold", "run"] if is_gone else ["hold", "look", "run"])


async def test_whoever_finishes_an_interrupted_run_elsewhere_is_told_of_its_undo_file(tmp_path: Path) -> None:
    """Of one machine after the other, until a run comes to its end."""
    stored: list[bytes] = []

    async def look() -> lease.Record | None:
        return lease.decode(stored[-1]) if stored else None

    async def write() -> None:
        stored.append(lease.encode(one.record))

    async def opened() -> None: ...

    eu: Any = SimpleNamespace(name="eu")
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    told = []
    for at, (host, file) in enumerate((("here", first), ("there", first), ("there", second), ("there", second))):
        one = lease.Lease(eu, "map", "us->eu", lease.Record(f"ann@{host}", host, 2**22, "failover", at, 0))
        one._look, one._write, one._writer.open = look, write, opened  # type: ignore[method-assign]
        await one.claim()
        told.append(one.other_undo_files(file))
        await one.store(undo_file=file)
        await one.release(is_finished=at == 2)
    assert told == [(), (f"here:{first}",), (f"here:{first}", f"there:{first}"), ()]
    older = json.loads(stored[0])
    del older["undo_files"]
    assert lease.decode(json.dumps(older).encode()).undo_files == ()


class Coordinator:
    """One transactional id: who opened it last writes, and everybody else is shut out."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.owner: Any = None

    def writer(self, *_: Any, **__: Any) -> Any:
        async def opened() -> None:
            self.owner = one

        async def write(records: list[Any]) -> None:
            if self.owner is not one:
                raise Superseded("another one has it")
            self.log.append(records[0].value)

        one = SimpleNamespace(open=opened, write=write)
        return one

    async def look(self, *_: Any) -> lease.Record | None:
        return lease.decode(self.log[-1]) if self.log else None


@pytest.mark.parametrize("is_second_too_early", [True, False])
async def test_of_two_who_begin_at_the_same_time_one_goes_on(
    monkeypatch: pytest.MonkeyPatch, is_second_too_early: bool
) -> None:
    """The second has looked before the first had written, and shuts it out; or it has written too, and has it."""
    there, eu = Coordinator(), cast(Any, None)
    monkeypatch.setattr(lease, "TransactionalWriter", there.writer)
    monkeypatch.setattr(lease, "look", there.look)
    first, second = (
        lease.Lease(eu, "map", "us->eu", lease.Record(f"{name}@there", name, 1, "failover", 1, 0))
        for name in ("ann", "bob")
    )
    await first.claim()
    if is_second_too_early:

        async def free(*_: Any) -> None:
            return None

        monkeypatch.setattr(lease, "await_free", free)
        with pytest.raises(lease.InHand, match="ann@there is at it"):
            await second.claim()
        await first.store(step="drain")
    else:
        await second._writer.open()
        await second.store()
        with pytest.raises(lease.InHand, match="taken the failover us->eu over"):
            await first.store(step="drain")
        await second.store(step="drain")
    record = lease.decode(there.log[-1])
    assert (record.owner, record.step) == ("ann@there" if is_second_too_early else "bob@there", "drain")


async def test_who_fails_to_take_a_lease_back_does_not_take_it_from_another_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next renewal would claim the id without a look, and write over whoever has it by right since."""
    there, eu = Coordinator(), cast(Any, None)
    monkeypatch.setattr(lease, "TransactionalWriter", there.writer)
    monkeypatch.setattr(lease, "look", there.look)
    first, second = (
        lease.Lease(eu, "map", "us->eu", lease.Record(f"{name}@there", name, 1, "failover", 1, 0))
        for name in ("ann", "bob")
    )
    await first.claim()
    await second._writer.open()

    def unopened(*_: Any, **__: Any) -> Any:
        async def opened() -> None:
            raise RetriableError("no coordinator")

        async def write(records: list[Any]) -> None:
            there.log.append(records[0].value)  # the first write of one that was never opened claims the id

        return SimpleNamespace(open=opened, write=write)

    monkeypatch.setattr(lease, "TransactionalWriter", unopened)
    with pytest.raises(RetriableError, match="no coordinator"):
        await first.store(step="drain")
    await second.store(step="drain")
    with pytest.raises(lease.InHand, match="taken the failover us->eu over"):
        await first.store(step="move")
    assert lease.decode(there.log[-1]).owner == "bob@there"


async def test_who_stood_still_learns_that_a_lease_is_lost_before_a_renewal_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, eu = Coordinator(), cast(Any, None)
    now_ms = 0
    monkeypatch.setattr(lease, "TransactionalWriter", there.writer)
    monkeypatch.setattr(lease, "look", there.look)
    monkeypatch.setattr(lease, "_now_ms", lambda: now_ms)
    first, second = (
        lease.Lease(eu, "map", "us->eu", lease.Record(f"{name}@there", name, 1, "failover", 1, 0))
        for name in ("ann", "bob")
    )
    await first.claim()
    await first.check()
    assert len(there.log) == 1, "there is time left"
    now_ms += int(lease.LEASE_S * 1000)
    await first.check()
    assert len(there.log) == 2, "it ran out, and nobody has it"
    await second._writer.open()
    await second.store()
    await first.check()
    now_ms += int(lease.LEASE_S * 1000)
    with pytest.raises(lease.InHand, match="taken the failover us->eu over"):
        await first.check()
    first.lost = RetriableError("lost")
    with pytest.raises(RetriableError, match="lost"):
        await first.check()


def lease_after(stored: list[bytes], *, is_finished: bool) -> lease.Lease:
    """A lease of ``here`` that reads and writes ``stored``, which begins with the one of an earlier run."""
    eu: Any = SimpleNamespace(name="eu")
    one = lease.Lease(eu, "map", "us->eu", lease.Record("ann@here", "here", 2**22, "failover", 1, 0))
    files = ("here:/undo.json",)
    stored.append(lease.encode(replace(one.record, since_ms=0, is_finished=is_finished, undo_files=files)))

    async def look() -> lease.Record | None:
        return lease.decode(stored[-1])

    async def write() -> None:
        stored.append(lease.encode(one.record))

    async def opened() -> None: ...

    one._look, one._write, one._writer.open = look, write, opened  # type: ignore[method-assign]
    return one


@pytest.mark.parametrize("is_finished", [False, True])
async def test_an_undo_file_that_is_put_aside_is_named_where_its_run_was_interrupted(is_finished: bool) -> None:
    stored: list[bytes] = []
    one = lease_after(stored, is_finished=is_finished)
    await one.claim()
    await one.store(undo_file=Path("/undo.json"), kept_as=Path("/undo.1.json"))
    await one.store(undo_file=Path("/undo.json"))
    assert one.other_undo_files(Path("/undo.json")) == (() if is_finished else ("here:/undo.1.json",))


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("was_finished", [False, True])
async def test_who_appends_leaves_an_interrupted_failover_interrupted(
    monkeypatch: pytest.MonkeyPatch, ends: bool, was_finished: bool
) -> None:
    stored: list[bytes] = []
    one = lease_after(stored, is_finished=was_finished)
    monkeypatch.setattr(lease, "Lease", lambda *_: one)
    monkeypatch.setattr(lease, "record_settings", lambda _: SimpleNamespace(make_topic=made))
    site = place()
    site.target_admin = None
    async with lease.hold(site, "append", ends=ends):
        pass
    left = lease.decode(stored[-1])
    assert left.is_finished == (ends or was_finished)
    assert left.undo_files == (() if was_finished else ("here:/undo.json",))


@pytest.mark.parametrize(("before", "marks"), [(None, True), (True, True), (False, False), ("older", False)])
async def test_marks_are_complete_as_long_as_no_older_version_has_held_the_lease(
    monkeypatch: pytest.MonkeyPatch, before: bool | str | None, marks: bool
) -> None:
    """One may have appended without, and what it has not said is not known."""
    stored: list[bytes] = []
    one = lease_after(stored, is_finished=True)
    if before is None:
        stored.clear()
    else:
        document = {**json.loads(stored[-1]), "has_appended": False, "marks": before}
        if before == "older":
            del document["marks"]
        stored[-1] = json.dumps(document).encode()

    async def look() -> lease.Record | None:
        return lease.decode(stored[-1]) if stored else None

    def made_lease(*arguments: Any) -> lease.Lease:
        one.record = arguments[-1]
        return one

    one._look = look  # type: ignore[method-assign]
    monkeypatch.setattr(lease, "Lease", made_lease)
    monkeypatch.setattr(lease, "record_settings", lambda _: SimpleNamespace(make_topic=made))
    site = place()
    site.target_admin = None
    async with lease.hold(site, "append", ends=False):
        pass
    assert lease.decode(stored[-1]).marks == marks


async def made(_: Any) -> None: ...


async def test_a_run_says_as_what_it_keeps_the_undo_file_of_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arrange(monkeypatch, [], GroupsPlan(("readers",), (MOVE,)))
    file = tmp_path / "undo.json"
    undo.begin(file, "us", "eu").with_denied(["a"]).write()
    old_s = file.stat().st_mtime - undo.OLD_S - 1
    os.utime(file, (old_s, old_s))
    said: list[str] = []
    await go(tmp_path, tell=said.append)
    assert [line for line in said if line.endswith(f"it is kept as {tmp_path / 'undo.1.json'}")] != []
    assert undo.read(tmp_path / "undo.1.json").denied == ("a",)


async def test_a_run_that_goes_on_with_another_names_its_undo_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrange(monkeypatch, [], GroupsPlan(("readers",), (MOVE,)))
    said: list[str] = []
    outcome = await go(tmp_path, others=("here:/first.json",), tell=said.append)
    assert "here:/first.json" in said[0]
    assert show_outcome(outcome, Arguments(Path("mm2.properties"), "us", "eu"), tmp_path / "undo.json") == 0
    assert capsys.readouterr().out.endswith("what was done before the interruption: here:/first.json\n")


def test_partitions_that_the_failover_itself_has_stopped_are_not_in_the_way() -> None:
    stopped = {"a-0": "it is QUARANTINED", "b-1": "it is QUARANTINED"}
    assert still_stopped(stopped, {"a"}, str) == {"b-1": "it is QUARANTINED"}
