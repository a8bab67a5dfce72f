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
def reported() -> Iterator[Log]:
    log = Log()
    yield log
    log.log.removeHandler(log.handler)
    log.log.setLevel(logging.NOTSET)


def test_an_error_is_warned_of_once_a_minute_whoever_shows_it(reported: Log) -> None:
    for number in range(125):
        reported.log.warning("%s: %s", f"part {number % 3}", RetriableError("the disk is full"))
        reported.now_s += 1
    reported.log.warning("%s: %s", "part 0", RetriableError("the disk is broken"))
    reported.log.warning("no error is shown")
    reported.log.warning("no error is shown")
    full = ["part 0: the disk is full"] * 3
    assert reported.warnings == [*full, "part 0: the disk is broken", *["no error is shown"] * 2]
    assert len(reported.records) == 128, "the others are still there, at INFO"
    reported.log.error("%s", RetriableError("the disk is full"))
    assert reported.records[-1].levelno == logging.ERROR


def test_a_warning_that_is_not_due_is_dropped_where_information_is_not_wanted(reported: Log) -> None:
    reported.log.setLevel(logging.WARNING)
    for _ in range(2):
        reported.log.warning("%s", RetriableError("again"))
    assert len(reported.records) == 1


def test_brokers_that_do_not_answer_are_one_cause_whatever_was_asked(reported: Log) -> None:
    reported.log.warning("reading: %s", LOST)
    reported.log.warning("writing: %s", ClusterUnreachable("cluster us: no broker answers: a:1 and b:1", US))
    try:
        raise RetriableError("the group cannot be joined") from LOST
    except RetriableError as error:
        reported.log.warning("%s; joining again", error)
    reported.log.warning("%s", "of a slice", extra={CAUSE: Cause("no answer", US)})
    reported.log.warning("fetching: %s", RequestTimedOut("a:1 did not answer Fetch within 30 s", ("a:1",)))
    assert reported.warnings == ["reading: no broker answers", "fetching: a:1 did not answer Fetch within 30 s"]


def test_a_watch_alone_says_that_its_cluster_does_not_answer(reported: Log) -> None:
    watched = reported.causes.watch(FakeCluster())
    reported.causes.asked(watched, answers=True)
    reported.now_s += 1
    one = RequestTimedOut("connection to a:1 lost", ("a:1",))
    reported.log.warning("fetching: %s", one)  # before the watch can know
    reported.now_s += 1
    reported.log.warning("fetching: %s", one)
    reported.causes.asked(watched, answers=False)
    for _ in range(70):
        reported.now_s += 1
        reported.log.warning("fetching: %s", one)
        reported.log.warning("reading: %s", LOST)
    reported.causes.asked(watched, answers=True)
    reported.log.warning("fetching: %s", one)  # an answer that was late
    assert reported.warnings == []
    reported.causes.unwatch(watched)
    reported.log.warning("reading: %s", LOST)
    assert reported.warnings == ["reading: no broker answers"]


def test_a_broker_that_does_not_answer_while_others_do_is_warned_of(reported: Log) -> None:
    watched = reported.causes.watch(FakeCluster())
    for second in range(130):
        if second % 2 == 0:
            reported.causes.asked(watched, answers=True)
        reported.now_s += 1
        reported.log.warning("node 1 at %d: %s", second, RequestTimedOut("no answer", ("b:1",)))
        reported.log.warning("elsewhere at %d: %s", second, RequestTimedOut("no answer", ("c:1",)))
    of_node = [line for line in reported.warnings if line.startswith("node")]
    assert of_node == [f"node 1 at {second}: no answer" for second in (2, 62, 122)]
    assert len(reported.warnings) - len(of_node) == 3, "of another cluster, which is not watched"


def test_a_cause_that_is_over_is_news_again(reported: Log) -> None:
    assert reported.causes.is_news("us") and not reported.causes.is_news("us")
    reported.causes.over("us")
    assert reported.causes.is_news("us")
