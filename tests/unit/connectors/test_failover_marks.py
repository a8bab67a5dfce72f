"""What was appended is known once its headers are deleted, partition by partition."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from connect.kafka.producer import OutRecord, partition_of
from connectors.dataplane.plan import TopicPartition
from connectors.failover import lease, marks, stranded
from connectors.failover.appended import Appended
from connectors.failover.marks import Mark, Marks
from connectors.failover.own import Own
from connectors.failover.stranded import Stranded

ORDERS, MAIL = TopicPartition("orders", 0), TopicPartition("mail", 3)
NOW, OLD = UUID(int=1), UUID(int=2)
MARK = Mark(ORDERS, NOW, ORDERS, 40, 29)
ONE = Stranded(Own("orders", 0, 22, 29, 8), ORDERS, ((22, 30),), topic_id=NOW)


@pytest.mark.parametrize(
    ("mark", "first", "appended", "may_hold"),
    [
        (MARK, 20, Appended(is_cut=True, log_begin=41), True),
        (MARK, 20, Appended(is_cut=True, log_begin=40), False),
        (MARK, 20, Appended(log_begin=37), False),
        (MARK, 30, Appended(is_cut=True, log_begin=41), False),
        (MARK, 22, Appended(((20, 22),), is_cut=True, log_begin=41), True),
        (MARK, 20, Appended(((25, 27),), is_cut=True, log_begin=40), False),
        (MARK, 31, Appended(((33, 35),), is_cut=True, log_begin=41), True),
        (replace(MARK, topic_id=None), 20, Appended(is_cut=True, log_begin=41), True),
        (replace(MARK, topic_id=OLD), 20, Appended(is_cut=True, log_begin=41), False),
        (replace(MARK, target=MAIL), 20, Appended(is_cut=True, log_begin=41), False),
        (None, 20, Appended(is_cut=True, log_begin=41), False),
        (None, 20, Appended(((25, 27),), is_cut=True, log_begin=41), True),
    ],
)
def test_only_what_a_mark_names_is_doubtful_and_only_once_the_target_has_deleted_some(
    mark: Mark | None, first: int, appended: Appended, may_hold: bool
) -> None:
    """Else a partition that a run has not come to would never be appended to, after an error in another."""
    found = Marks(True, {} if mark is None else {ORDERS: mark})
    assert found.may_hold(ONE.mark(90), first, appended, 20) == may_hold
    older = Marks(False, {}).may_hold(ONE.mark(90), first, appended, 20)
    assert older == appended.is_cut, "an older version wrote none"


def test_a_mark_of_a_failover_before_says_nothing() -> None:
    """The flow has come back since, and copied on: none of what the mark names can be stranded any more."""
    known, cut = Marks(True, {ORDERS: MARK}), Appended(is_cut=True, log_begin=5100)
    assert known.before(ONE.mark(6000), cut, 20) == MARK
    assert known.may_hold(ONE.mark(6000), 29, cut, 29)
    assert known.before(ONE.mark(6000), cut, 30) is None
    assert not known.may_hold(ONE.mark(6000), 29, cut, 30)


def test_a_mark_of_a_run_that_appended_nothing_holds_no_later_one_back() -> None:
    """The log shows all that lies behind it, and there is no header."""
    known = Marks(True, {ORDERS: MARK})
    assert known.before(ONE.mark(90), Appended(log_begin=40), 20) is None
    assert known.before(ONE.mark(90), Appended(log_begin=41), 20) == MARK


def test_a_mark_keeps_what_was_appended_before() -> None:
    """A later run appends what an older one has left out, and the headers of the older one go first."""
    known = Marks(True, {ORDERS: MARK})
    before = known.before(ONE.mark(90), Appended(((50, 60),), first_at=70, log_begin=41), 20)
    assert before == replace(MARK, last=59)
    assert replace(ONE, before=before).mark(90) == replace(MARK, last=59)
    assert replace(ONE, before=before).mark(5).begin == 5, "the topic on the target was made anew"
    assert known.before(replace(ONE.mark(90), topic_id=OLD), Appended(log_begin=41), 20) is None
    by_hand = Marks(True, {}).before(ONE.mark(90), Appended(((20, 22),), first_at=70), 20)
    assert by_hand == replace(MARK, begin=70, last=21)


class Topic:
    """One partition, of which the last record by key counts."""

    def __init__(self) -> None:
        self.log: list[OutRecord] = []

    def writer(self, *_: Any, **__: Any) -> Any:
        async def opened() -> None: ...

        async def write(records: list[OutRecord]) -> None:
            self.log += records

        return SimpleNamespace(open=opened, write=write)

    async def read_to_end(self, _: Any, topic: str, take: Any, **how: Any) -> None:
        assert (topic, how) == ("map", {"partitions": {partition_of(b"failover", 8)}, "read_committed": True})
        for one in self.log:
            assert (one.topic, one.partition_key) == ("map", b"failover")
            take(SimpleNamespace(key=one.key, value=one.value))


async def test_marks_lie_beside_the_lease_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten thousand partitions none makes the record too large that is written every few seconds."""
    topic = Topic()

    async def metadata(_: Any) -> Any:
        return SimpleNamespace(topics={"map": SimpleNamespace(partitions=[0])})

    async def partition_count(*_: Any) -> int:
        return 8

    monkeypatch.setattr(lease, "TransactionalWriter", topic.writer)
    monkeypatch.setattr(lease, "read_to_end", topic.read_to_end)
    monkeypatch.setattr(lease, "partition_count", partition_count)
    eu: Any = SimpleNamespace(metadata=metadata)
    assert await marks.read_marks(eu, "map", "us->eu") == Marks(True, {})
    mine = lease.Record("ann@here", "here", 2**22, "append", 1, 0, marks=True)
    held = lease.Lease(eu, "map", "us->eu", mine)
    await held.claim()
    other = Mark(MAIL, None, TopicPartition("us.mail", 3), 5, 7)
    for one in (MARK, other, replace(MARK, last=35)):
        await marks.keep(held, one)
    await lease.Lease(eu, "map", "us->eu2", mine).store()
    assert len({one.key for one in topic.log}) == 4
    expected = {ORDERS: replace(MARK, last=35), MAIL: other}
    assert await marks.read_marks(eu, "map", "us->eu") == Marks(True, expected)
    assert await marks.read_marks(eu, "map", "eu->us") == Marks(True, {})
    held.record = replace(held.record, marks=False)
    await held.release(is_finished=True)
    assert await marks.read_marks(eu, "map", "us->eu") == Marks(False, expected)
    left = await lease.look(eu, "map", "us->eu")
    assert left is not None and left.until_ms == 0


async def test_a_look_asks_the_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_marks(*where: Any) -> Marks:
        assert where == ("eu", "map", "us->eu")
        return Marks(True, {ORDERS: MARK})

    monkeypatch.setattr(stranded, "read_marks", read_marks)
    site: Any = SimpleNamespace(target="eu", flow=SimpleNamespace(map_topic="map", flow="us->eu"))
    cut = Appended(((20, 22),), is_cut=True, log_begin=41, first_at=45)
    seen = [
        stranded._Seen(ORDERS, cut, ONE),
        stranded._Seen(MAIL, cut, replace(ONE, own=replace(ONE.own, topic="mail"))),
    ]
    here, there = (one.left for one in await stranded._doubting(site, seen))
    assert here is not None and here.may_be_appended and here.before == MARK
    assert there is not None and not there.may_be_appended, "of this one nobody has begun"
    assert await stranded._doubting(site, [stranded._Seen(ORDERS, cut, None)]) == [stranded._Seen(ORDERS, cut, None)]
