"""The status topic: Java's bytes, the fold, and when a safe write is left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core import status_and_offset_topics
from connect.core.model import Restarts, State, Status, TaskId
from connect.core.status_and_offset_topics import (
    StatusLog,
    TopicUse,
    may_write_safely,
    status_record,
    topic_record,
    topic_removal,
)

TASK = TaskId("a-b", 3)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def running(generation: int = 5, worker: str = "h:8083") -> Status:
    return Status(State.RUNNING, worker, generation, None, "4.3.1")


def unassigned(generation: int = 5, worker: str = "h:8083") -> Status:
    return Status(State.UNASSIGNED, worker, generation)


def folded(*records: status_and_offset_topics.Record) -> StatusLog:
    log = StatusLog()
    for key, value in records:
        assert log.apply(key, value) is None
    return log


def test_bytes_of_a_status() -> None:
    assert status_record("my c", running()) == (
        "status-connector-my c",
        b'{"state":"RUNNING","trace":null,"worker_id":"h:8083","generation":5,"version":"4.3.1"}',
    )
    failed = Status(State.FAILED, "h:8083", 5, "Exception: x\n\tat y", None)
    assert status_record(TASK, failed) == (
        "status-task-a-b-3",
        rb'{"state":"FAILED","trace":"Exception: x\n\tat y","worker_id":"h:8083","generation":5,"version":null}',
    )


def test_automatic_restarts_stand_behind_what_java_writes() -> None:
    status = Status(State.RUNNING, "h:8083", 5, restarts=Restarts(2, 1_700_000_000_000, "no more"))
    key, value = status_record(TASK, status)
    assert value is not None
    assert value.endswith(b'"version":null,"auto_restart":{"count":2,"at_ms":1700000000000,"given_up":"no more"}}')
    assert folded((key, value)).status(TASK) == status


def test_bytes_of_a_topic_in_use() -> None:
    use = TopicUse("orders", "c", 2, 1_700_000_000_000)
    assert topic_record(use) == (
        "status-topic-orders:connector-c",
        b'{"topic":{"name":"orders","connector":"c","task":2,"discoverTimestamp":1700000000000}}',
    )
    assert topic_removal("orders", "c") == ("status-topic-orders:connector-c", None)


@given(name=TEXT, task=st.integers(0, 2**31 - 1), trace=st.none() | TEXT, generation=st.integers(-1, 2**31 - 1))
def test_statuses_come_back(name: str, task: int, trace: str | None, generation: int) -> None:
    status = Status(State.FAILED, "h:8083", generation, trace, "4.3.1")
    log = folded(status_record(name, status), status_record(TaskId(name, task), status))
    assert log.status(name) == status
    assert log.tasks(name) == {task: status}
    assert log.connectors() == (name,)


@pytest.mark.parametrize(
    "value",
    [
        b'{"state":"PAUSED","trace":null,"worker_id":"h","generation":1}',
        b'{"generation":1,"worker_id":"h","state":"PAUSED"}',
        b'{"state":"PAUSED","trace":null,"worker_id":"h","generation":1,"version":null,"later":[]}',
    ],
)
def test_statuses_of_older_and_later_workers(value: bytes) -> None:
    assert folded(("status-connector-c", value)).status("c") == Status(State.PAUSED, "h", 1)


def test_each_tombstone_takes_away_one_status() -> None:
    log = folded(status_record("c", running()), *(status_record(TaskId("c", task), running()) for task in (10, 2, 1)))
    assert list(log.tasks("c")) == [1, 2, 10]
    assert log.apply("status-task-c-2", None) is None
    assert list(log.tasks("c")) == [1, 10]
    assert log.apply("status-connector-c", None) is None
    assert (log.status("c"), list(log.tasks("c"))) == (None, [1, 10])
    assert log.connectors() == ("c",), "so that the leader finds what is left of it"
    assert log.apply(*status_record(TaskId("c", 1), Status(State.DESTROYED, "h:8083", 5))) is None
    assert log.apply("status-task-c-10", None) is None
    assert log.connectors() == ()


def test_a_connector_that_was_made_anew_keeps_its_tasks_statuses_in_whichever_order_partitions_are_read() -> None:
    task, connector = status_record(TASK, running()), status_record("c", running())
    for records in ((task, ("status-connector-c", None), connector), (("status-connector-c", None), connector, task)):
        log = folded(*records)
        assert (log.status("c"), log.status(TASK)) == (running(), running())


@pytest.mark.parametrize(
    ("work", "before", "after", "is_heard"),
    [
        (TASK, running(5, "new:1"), unassigned(4, "old:1"), False),
        (TASK, running(5, "new:1"), unassigned(5, "old:1"), False),
        (TASK, running(5, "new:1"), unassigned(6, "old:1"), True),
        (TASK, Status(State.PAUSED, "new:1", 5), unassigned(4, "old:1"), True),
        ("c", running(5, "new:1"), unassigned(4, "old:1"), False),
        ("c", running(5, "new:1"), unassigned(5, "old:1"), True),
        ("c", running(5, "new:1"), unassigned(4, "new:1"), True),
    ],
)
def test_an_owner_that_releases_late_does_not_hide_the_new_one(
    work: str | TaskId, before: Status, after: Status, is_heard: bool
) -> None:
    log = folded(status_record(work, before), status_record(work, after))
    assert log.status(work) == (after if is_heard else before)


def test_topics_in_use() -> None:
    uses = [TopicUse("b", "x:connector-y", 0, 1), TopicUse("a", "x:connector-y", 1, 2)]
    log = folded(*(topic_record(use) for use in uses))
    assert log.topics("x:connector-y") == (uses[1], uses[0])
    assert log.has_topic("x:connector-y", "a")
    assert not log.has_topic("c", "a")
    key, tombstone = topic_removal("a", "x:connector-y")
    assert log.apply(key, tombstone) is None
    assert log.topics("x:connector-y") == (uses[0],)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        ("status-", b"{}"),
        ("status-connector-", b'{"state":"PAUSED","worker_id":"h","generation":1}'),
        ("status-connector-c", b"{"),
        ("status-connector-c", b"[]"),
        ("status-connector-c", b"{}"),
        ("status-connector-c", b'{"state":"DESTROYED","worker_id":"h","generation":1}'),
        ("status-connector-c", b'{"state":"SLEEPING","worker_id":"h","generation":1}'),
        ("status-connector-c", b'{"state":"PAUSED","worker_id":null,"generation":1}'),
        ("status-connector-c", b'{"state":"PAUSED","worker_id":"h","generation":"1"}'),
        ("status-connector-c", b'{"state":"PAUSED","worker_id":"h","generation":1,"trace":[]}'),
        ("status-task-c", b'{"state":"PAUSED","worker_id":"h","generation":1}'),
        ("status-task-c-x", None),
        ("status-topic-a", None),
        ("status-topic-:connector-c", None),
        ("status-topic-a:connector-", None),
        ("status-topic-a:connector-c", b'{"topic":{"name":"a"}}'),
    ],
)
def test_what_makes_no_sense_is_passed_over(key: str | None, value: bytes | None) -> None:
    log = folded(status_record("c", running()))
    assert log.apply(key, value) is not None
    assert log == folded(status_record("c", running()))


@given(
    key=st.none()
    | st.text()
    | st.sampled_from(["status-connector-c", "status-task-c-1", "status-topic-t:connector-c"]),
    value=st.none() | st.binary(),
)
def test_nothing_is_raised(key: str | None, value: bytes | None) -> None:
    StatusLog().apply(key, value)


@pytest.mark.parametrize(
    ("known", "may"),
    [
        (None, True),
        (running(9, "me:1"), True),
        (running(5, "other:1"), True),
        (running(4, "other:1"), True),
        (running(6, "other:1"), False),
    ],
)
def test_safe_writes_do_not_hide_a_newer_owner(known: Status | None, may: bool) -> None:
    assert may_write_safely(known, unassigned(5, "me:1")) is may
