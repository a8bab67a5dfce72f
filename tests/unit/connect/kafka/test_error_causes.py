"""Warnings by their causes: one of each in a minute, whichever part of the process meets it first."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from connect.core.errors import ClusterUnreachable, RetriableError
from connect.kafka.connection import RequestTimedOut
from connect.kafka.error_causes import CAUSE, Cause, Causes, OneOfEachCause

US = frozenset({"a:1", "b:1"})
LOST = ClusterUnreachable("no broker answers", US)


class FakeCluster:
    addresses = US


class Kept(logging.Handler):
    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)


class Log:
    """A logger with such a filter, and its clock; ``warnings`` are what is left of them."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.causes = Causes(lambda: self.now_s)
        self.records: list[logging.LogRecord] = []
        self.log = logging.getLogger("tests.causes")
        self.log.setLevel(logging.INFO)
        self.handler = Kept(self.records)
        self.handler.addFilter(OneOfEachCause(self.causes))
        self.log.addHandler(self.handler)

    @property
    def warnings(self) -> list[str]:
        return [record.getMessage() for record in self.records if record.levelno == logging.WARNING]


@pytest.fixture
def told() -> Iterator[Log]:
    log = Log()
    yield log
    log.log.removeHandler(log.handler)
    log.log.setLevel(logging.NOTSET)


def test_an_error_is_warned_of_once_a_minute_whoever_shows_it(told: Log) -> None:
    for number in range(125):
        told.log.warning("%s: %s", f"part {number % 3}", RetriableError("the disk is full"))
        told.now_s += 1
    told.log.warning("%s: %s", "part 0", RetriableError("the disk is broken"))
    told.log.warning("no error is shown")
    told.log.warning("no error is shown")
    assert told.warnings == [
        "part 0: the disk is full",
        "part 0: the disk is full",
        "part 0: the disk is full",
        "part 0: the disk is broken",
        "no error is shown",
        "no error is shown",
    ]
    assert len(told.records) == 128, "the others are still there, at INFO"
    told.log.error("%s", RetriableError("the disk is full"))
    assert told.records[-1].levelno == logging.ERROR


def test_a_warning_that_is_not_due_is_dropped_where_information_is_not_wanted(told: Log) -> None:
    told.log.setLevel(logging.WARNING)
    for _ in range(2):
        told.log.warning("%s", RetriableError("again"))
    assert len(told.records) == 1


def test_brokers_that_do_not_answer_are_one_cause_whatever_was_asked(told: Log) -> None:
    told.log.warning("reading: %s", LOST)
    told.log.warning("writing: %s", ClusterUnreachable("cluster us: no broker answers: a:1 and b:1", US))
    try:
        raise RetriableError("the group cannot be joined") from LOST
    except RetriableError as error:
        told.log.warning("%s; joining again", error)
    told.log.warning("%s", "of a slice", extra={CAUSE: Cause("no answer", US)})
    told.log.warning("fetching: %s", RequestTimedOut("a:1 did not answer Fetch within 30 s", ("a:1",)))
    assert told.warnings == ["reading: no broker answers", "fetching: a:1 did not answer Fetch within 30 s"]


def test_a_watch_alone_says_that_its_cluster_does_not_answer(told: Log) -> None:
    watched = told.causes.watch(FakeCluster())
    told.causes.asked(watched, answers=True)
    told.now_s += 1
    one = RequestTimedOut("connection to a:1 lost", ("a:1",))
    told.log.warning("fetching: %s", one)  # before the watch can know
    told.now_s += 1
    told.log.warning("fetching: %s", one)
    told.causes.asked(watched, answers=False)
    for _ in range(70):
        told.now_s += 1
        told.log.warning("fetching: %s", one)
        told.log.warning("reading: %s", LOST)
    told.causes.asked(watched, answers=True)
    told.log.warning("fetching: %s", one)  # an answer that was late
    assert told.warnings == []
    told.causes.unwatch(watched)
    told.log.warning("reading: %s", LOST)
    assert told.warnings == ["reading: no broker answers"]


def test_a_broker_that_does_not_answer_while_others_do_is_warned_of(told: Log) -> None:
    watched = told.causes.watch(FakeCluster())
    for second in range(130):
        if second % 2 == 0:
            told.causes.asked(watched, answers=True)
        told.now_s += 1
        told.log.warning("node 1 at %d: %s", second, RequestTimedOut("no answer", ("b:1",)))
        told.log.warning("elsewhere at %d: %s", second, RequestTimedOut("no answer", ("c:1",)))
    of_node = [line for line in told.warnings if line.startswith("node")]
    assert of_node == [f"node 1 at {second}: no answer" for second in (2, 62, 122)]
    assert len(told.warnings) - len(of_node) == 3, "of another cluster, which is not watched"


def test_a_cause_that_is_over_is_news_again(told: Log) -> None:
    assert told.causes.is_news("us") and not told.causes.is_news("us")
    told.causes.over("us")
    assert told.causes.is_news("us")
