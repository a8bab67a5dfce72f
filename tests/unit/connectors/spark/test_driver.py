"""What the Spark driver process tells of a session that ends."""

import io
import os
import threading

import pytest

from connectors.spark import driver_process
from connectors.spark.sessions import ClassicSession


class Session(ClassicSession):
    """Answers until it is closed or lost; to close it takes until ``closed`` is set."""

    def __init__(self) -> None:
        self.is_there = True
        self.asked_in_vain = threading.Event()
        self.closed = threading.Event()

    def open(self, conf: object, properties: object, lost: object) -> list[str]:
        return []

    def version(self) -> str:
        return "4.1"

    def wake(self) -> None:
        pass

    def ask(self) -> None:
        if not self.is_there:
            self.asked_in_vain.set()
            raise RuntimeError("no JVM answers")

    def close(self) -> None:
        self.is_there = False
        assert self.closed.wait(20)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set where the process would have ended; the thread that ends it stands still instead."""
    event = threading.Event()

    def end(code: int) -> None:
        event.set()
        threading.Event().wait()

    monkeypatch.setattr(driver_process, "ALIVE_EVERY_S", 0.01)
    monkeypatch.setattr(os, "_exit", end)
    return event


def opened(session: Session) -> driver_process.SparkDriver:
    made = driver_process.SparkDriver(session, io.StringIO())
    made.open({}, "", "")
    return made


def test_a_session_that_is_lost_ends_the_process(ended: threading.Event) -> None:
    session = Session()
    opened(session)
    session.is_there = False
    assert ended.wait(20)


def test_a_jvm_that_takes_its_time_to_end_is_not_lost(ended: threading.Event) -> None:
    """It may be writing the archive of its classes, and would be killed in the midst of it."""
    session = Session()
    closing = threading.Thread(target=opened(session).close)
    closing.start()
    assert session.asked_in_vain.wait(20)
    session.closed.set()
    closing.join(20)
    assert not ended.is_set()
