"""The journal of moves: read on another machine it says what was written, whatever runs were there before."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from connect.core.errors import PermanentError, UnreadableRecord
from connect.kafka.log.producer import OutRecord
from connectors.failover import journal
from connectors.failover.failback_and_undo import newest
from connectors.failover.journal import FailoverRun, GroupBefore, Journal, RunState, StartBefore, before_of, decode_runs
from connectors.failover.snapshot import GroupMove, How

MOVE = GroupMove("readers", ("orders", 0), 40, ("us.orders", 0), None, "", 37, "note", How.EXACT)


class Topic:
    """Compacted, as the partition of the lease is."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.record = SimpleNamespace(owner="ann@here", command="heliograph failover")

    async def store(self, *, records: Any = ()) -> None:
        self.put(records)

    def put(self, records: list[OutRecord]) -> None:
        for one in records:
            if one.value is None:
                self.values.pop(one.key, None)
            else:
                self.values[one.key] = one.value

    def runs(self) -> list[FailoverRun]:
        return decode_runs(self.values.values())


@pytest.fixture
def topic() -> Topic:
    return Topic()


def written(topic: Any, run: FailoverRun, known: list[FailoverRun] | None = None) -> Journal:
    site: Any = SimpleNamespace(flow=SimpleNamespace(flow="us->eu", map_topic="map"))
    return Journal(site, topic, run, known or [])


async def test_what_was_written_is_read_on_another_machine(topic: Topic) -> None:
    one = written(topic, FailoverRun("1", "us", "eu"))
    starts = [StartBefore("orders", index, None, index) for index in range(5)]
    await one.store(starts=starts, denied=("orders",))
    rows = [GroupBefore("readers", "us.orders", index, index or None, "note", 9) for index in range(3)]
    topic.put([one.of_group("readers", rows)])
    one.changed("readers", rows)
    (run,) = topic.runs()
    assert (run.starts, run.groups, run.denied) == (tuple(starts), {"readers": tuple(rows)}, ("orders",))
    assert (run.owner, run.state, one.denied) == ("ann@here", RunState.OPEN, frozenset({"orders"}))
    topic.put([one.of_group("readers", ())])
    one.changed("readers", ())
    await one.store(starts=starts[:1], denied=(), state=RunState.UNDONE)
    (run,) = topic.runs()
    assert (run.starts, run.groups, run.denied, run.state) == (tuple(starts[:1]), {}, (), RunState.UNDONE)


def test_a_record_of_ten_thousand_partitions_is_not_too_large(topic: Topic) -> None:
    one = written(topic, FailoverRun("1", "us", "eu"))
    rows = [GroupBefore("readers", f"us.orders-{at % 50}", at, at * 977, "", at * 1009) for at in range(10_000)]
    record = one.of_group("readers", rows)
    assert record.value is not None and len(record.value) < 300_000


async def test_a_run_has_what_it_alone_has_changed(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an undo would take back what another operator did in the morning."""

    async def read_runs(_: Any) -> list[FailoverRun]:
        return topic.runs()

    monkeypatch.setattr(journal, "read_runs", read_runs)
    monkeypatch.setattr(journal, "wall_ms", lambda: 1000)
    names = {"flow": "us->eu", "map_topic": "map", "source_alias": "us", "target_alias": "eu"}
    site: Any = SimpleNamespace(flow=SimpleNamespace(**names))
    lease: Any = topic
    ids = []
    for move in (MOVE, replace(MOVE, before=37, after=50), replace(MOVE, group="mail")):
        one = await Journal.begin(site, lease)
        await one.store()
        topic.put([one.of_group(move.group, before_of([move]))])
        ids.append(one.run.id)
    assert [run.groups for run in topic.runs()] == [
        {"readers": (GroupBefore("readers", "us.orders", 0, None, "", 37),)},
        {"readers": (GroupBefore("readers", "us.orders", 0, 37, "", 50),)},
        {"mail": (GroupBefore("mail", "us.orders", 0, None, "", 37),)},
    ]
    assert len(set(ids)) == len(ids)
    place = ("us.orders", 0)
    assert await journal.moved(site) == {("readers", place): 50, ("mail", place): 37}, "none has come to its end"
    await one.store(state=RunState.DONE)
    assert await journal.moved(site) == {("readers", place): 50}


async def test_old_runs_are_forgotten_with_all_that_they_had(topic: Topic) -> None:
    for number in range(20):
        one = written(topic, FailoverRun(f"{number:03}", "us", "eu"), topic.runs())
        await one.store(starts=[StartBefore("orders", 0, None, 36)], state=RunState.DONE)
        topic.put([one.of_group("readers", before_of([MOVE]))])
    runs = topic.runs()
    assert [run.id for run in runs] == [f"{number:03}" for number in range(9, 20)]
    assert len(topic.values) == 2 * len(runs)


async def test_writers_that_a_run_lets_in_are_refused_by_none_before(topic: Topic) -> None:
    await written(topic, FailoverRun("1", "us", "eu")).store(denied=("orders",), state=RunState.DONE)
    second = written(topic, FailoverRun("2", "us", "eu"), topic.runs())
    await second.store(denied=("mail",))
    assert second.denied == {"orders", "mail"}
    await second.store(denied=())
    assert [(run.denied, run.state) for run in topic.runs()] == [((), RunState.DONE), ((), RunState.OPEN)]


def test_an_undo_takes_back_the_newest_that_has_changed_anything() -> None:
    changed = FailoverRun("1", "us", "eu", state=RunState.DONE, denied=("orders",))
    nothing = FailoverRun("2", "us", "eu", state=RunState.DONE)
    undone = FailoverRun("3", "us", "eu", state=RunState.UNDONE, denied=("orders",))
    assert newest([changed, nothing, undone]) == changed
    assert newest([nothing, undone]) is None


def test_only_a_run_that_was_interrupted_lately_is_open() -> None:
    run = FailoverRun("1", "us", "eu", updated_ms=1000)
    assert journal.is_open(run, 1000 + journal.OLD_MS - 1)
    assert not journal.is_open(run, 1000 + journal.OLD_MS)
    assert not journal.is_open(FailoverRun("1", "us", "eu", updated_ms=1000, state=RunState.DONE), 1000)


def test_a_journal_of_a_later_version_is_not_read_in_part() -> None:
    with pytest.raises(PermanentError, match="another version"):
        decode_runs([b'{"format": 3, "run": "1"}'])


def test_a_damaged_or_expanding_record_is_refused_and_not_opened() -> None:
    right: dict[str, Any] = {"format": journal.FORMAT, "run": "1", "rows": journal._packed([[], []])}
    bomb = base64.b64encode(zlib.compress(bytes(1 << 28))).decode()
    for rows in (bomb, "", "!", 7, None, right["rows"][:-9], journal._packed([1]), base64.b64encode(b"[").decode()):
        with pytest.raises(UnreadableRecord, match="journal of this failover"):
            decode_runs([json.dumps({**right, "rows": rows}).encode()])
