"""What becomes of statuses whose writing fails: tried again, replaced by newer ones, or given up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

from connect.core.errors import PermanentError, RetriableError
from connect.core.model import NewTopic, State, Status, TaskId
from connect.core.status_and_offset_topics import Record, status_record
from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import LogRecord
from connect.kafka.log.producer import OutRecord
from connect.kafka.log.topic_admin import Admin
from connect.runtime.herder import config_and_status_topics as module
from connect.runtime.herder.config_and_status_topics import StatusStore
from tests.kit.members import until
from tests.kit.work import MemoryLog


class Log(MemoryLog):
    """Each write is answered by the next of ``answers``: what it raises, or None; then all succeed."""

    def __init__(self, on_record: Callable[[LogRecord], None], on_reset: Callable[[], None]) -> None:
        super().__init__(on_record, on_reset)
        self.answers: list[BaseException | None] = []
        self.tries = 0
        self.written: list[Record] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        #: What others say before a reader has come to the end.
        self.unread: Callable[[], None] = lambda: None

    async def read_to_end(self, timeout_s: float, *, committed_only: bool = False) -> None:
        unread, self.unread = self.unread, lambda: None
        unread()

    async def write(self, records: Iterable[OutRecord]) -> None:
        wanted = list(records)
        self.tries += bool(wanted)
        await self.may_go_on.wait()
        if wanted and self.answers and (error := self.answers.pop(0)) is not None:
            raise error
        for record in wanted:
            self.say((record.key.decode(), record.value))

    def say(self, record: Record) -> None:
        """Append a record of another worker."""
        self.written.append(record)
        self.put(record[0].encode(), record[1])


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> StatusStore:
    async def ensure(*_: object, **__: object) -> None:
        return

    monkeypatch.setattr(module, "CompactedLog", lambda cluster, topic, *reported: Log(*reported))
    monkeypatch.setattr(module, "ensure_compacted_topic", ensure)
    monkeypatch.setattr(module, "_RETRY_FIRST_MS", 1)
    return StatusStore(cast(Cluster, None), cast(Admin, None), NewTopic("statuses", 5, 1, {}))


def log_of(store: StatusStore) -> Log:
    return cast(Any, store).followed  # type: ignore[no-any-return]


def running(generation: int, worker: str = "me:1") -> Status:
    return Status(State.RUNNING, worker, generation)


FAILED = RetriableError("no answer")


async def test_a_topic_made_anew_is_told_our_statuses_and_no_others(store: StatusStore) -> None:
    await store.start()
    log = log_of(store)
    log.say(status_record("gone", running(1, "other:1")))
    store.put("c", running(2))
    store.put(TaskId("c", 0), running(2))
    await until(lambda: store.log.status(TaskId("c", 0)), "all is written and read back")
    log.written.clear()
    log.reset_log()
    assert store.log.connectors() == ()
    await store.stop()
    assert log.written == [status_record("c", running(2)), status_record(TaskId("c", 0), running(2))]
    assert (store.log.connectors(), store.log.status(TaskId("c", 0))) == (("c",), running(2))


OURS, NEWER = status_record("c", running(1)), status_record("c", running(2))
BEFORE, SAME, AFTER = (status_record("c", running(generation, "other:1")) for generation in (0, 1, 2))
DELETED: Record = ("status-connector-c", None)


@pytest.mark.parametrize(
    ("answers", "newer", "said", "written"),
    [
        # A newer status takes the place of one that fails, and is written behind one that is being written.
        ([FAILED], True, None, [NEWER]),
        ([], True, None, [OURS, NEWER]),
        # A repeat is left out where a newer owner has spoken, and does not bring back what was deleted.
        ([FAILED], False, BEFORE, [BEFORE, OURS]),
        ([FAILED], False, SAME, [SAME, OURS]),
        ([FAILED], False, AFTER, [AFTER]),
        ([FAILED], False, DELETED, [DELETED]),
    ],
)
async def test_what_comes_while_a_status_is_written_decides_what_is_written_then(
    store: StatusStore, answers: list[BaseException | None], newer: bool, said: Record | None, written: list[Record]
) -> None:
    log = log_of(store)
    log.answers = list(answers)
    log.may_go_on.clear()
    store.put("c", running(1))
    await store.start()
    await asyncio.sleep(0)
    assert log.tries == 1
    if newer:
        store.put("c", running(2))
    if said:
        log.say(said)
    log.may_go_on.set()
    await store.stop()
    assert log.written == written


async def test_a_first_write_is_made_whoever_has_spoken_unless_it_is_safe(store: StatusStore) -> None:
    log = log_of(store)
    newer = [status_record(work, running(9, "other:1")) for work in ("c", "d")]
    for record in newer:
        log.say(record)
    store.put("c", running(1))
    store.put("d", running(1), safe=True)
    await store.start()
    await store.stop()
    assert log.written == [*newer, status_record("c", running(1))]


def unassigned(generation: int, worker: str = "me:1") -> Status:
    return Status(State.UNASSIGNED, worker, generation)


async def test_a_newer_status_that_comes_while_others_are_read_is_not_left_out(store: StatusStore) -> None:
    log = log_of(store)
    others, newer = status_record("c", unassigned(7, "other:1")), running(8)

    def unread() -> None:
        log.say(others)
        store.put("c", newer)

    log.unread = unread
    store.put("c", unassigned(5), safe=True)
    await store.start()
    await store.stop()
    assert log.written == [others, status_record("c", newer)]


async def test_one_that_others_delete_while_they_are_read_is_not_written_again(store: StatusStore) -> None:
    log = log_of(store)
    log.answers = [FAILED]
    log.may_go_on.clear()
    store.put("c", unassigned(5), safe=True)
    store.put("d", running(5))
    await store.start()
    await asyncio.sleep(0)
    others = [("status-connector-c", None), status_record("c", running(9, "other:1"))]

    def unread() -> None:
        for record in others:
            log.say(record)

    log.unread = unread
    log.may_go_on.set()
    await store.stop()
    assert log.written == [*others, status_record("d", running(5))]


async def test_what_may_not_be_written_is_given_up(store: StatusStore, caplog: pytest.LogCaptureFixture) -> None:
    log = log_of(store)
    log.answers = [PermanentError("grant WRITE on topic statuses")]
    store.put("c", running(1))
    await store.start()
    await store.stop()
    assert log.written == []
    assert "1 statuses could not be written to statuses: grant WRITE on topic statuses" in caplog.text


async def test_one_that_may_not_be_written_does_not_keep_the_others_back(
    store: StatusStore, caplog: pytest.LogCaptureFixture
) -> None:
    log = log_of(store)
    log.answers = [PermanentError("too large"), None, PermanentError("too large")]
    for work in ("a", "b", "c"):
        store.put(work, running(1))
    await store.start()
    await store.stop()
    assert log.written == [status_record(work, running(1)) for work in ("a", "c")]
    assert "1 statuses could not be written to statuses: too large" in caplog.text


async def test_the_end_does_not_wait_for_ever(
    store: StatusStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_FLUSH_TIMEOUT_S", 0.01)
    log_of(store).may_go_on.clear()
    store.put("c", running(1))
    await store.start()
    await store.stop()
    assert "1 statuses were not written to statuses before the stop" in caplog.text


async def test_a_defect_is_not_kept_quiet(store: StatusStore, caplog: pytest.LogCaptureFixture) -> None:
    log_of(store).answers = [ZeroDivisionError("what")]
    store.put("c", running(1))
    with caplog.at_level(logging.CRITICAL):
        await store.start()
        await until(lambda: "statuses are no longer written" in caplog.text, "it is said")
    await store.stop()
