import logging
from collections.abc import Iterator
from typing import Any

import pytest

from connectors.control_link.protocol import LogForwarder, forwarding_logs


class Heard:
    """A logger that tells into a list, and its clock."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.now_s = 100.0
        self.log_forwarder = LogForwarder(self.messages.append, every_s=5.0, clock=lambda: self.now_s)
        self.log = logging.Logger("slice")
        self.log.addHandler(self.log_forwarder)

    @property
    def texts(self) -> list[str]:
        return [message["text"] for message in self.messages]


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_warnings_and_errors_are_told_with_their_level_and_nothing_below(heard: Heard) -> None:
    heard.log.info("all is well")
    heard.log.warning("%s: gone", "node 1")
    heard.log.error("failed", exc_info=ValueError("no value"))
    assert heard.messages == [
        {"type": "log", "level": logging.WARNING, "text": "node 1: gone", "cause": None},
        {"type": "log", "level": logging.ERROR, "text": "failed: ValueError: no value", "cause": ["no value", []]},
    ]


def test_one_of_each_kind_is_told_in_a_while_and_the_others_counted(heard: Heard) -> None:
    for partition in range(3):
        heard.log.warning("partition %d waits", partition)
        heard.log.warning("partition %d burns", partition)
    heard.now_s += 4.9
    heard.log.warning("partition %d waits", 3)
    assert heard.texts == ["partition 0 waits", "partition 0 burns"]
    heard.now_s += 0.1
    heard.log.warning("partition %d waits", 4)
    assert heard.texts[2:] == ["partition 4 waits (and 3 more like it)"]
    heard.now_s += 5.0
    heard.log.warning("partition %d waits", 5)
    assert heard.texts[3:] == ["partition 5 waits"]


@pytest.fixture
def ours() -> Iterator[logging.Logger]:
    log = logging.getLogger("connectors.dataplane.producer")
    before = log.level
    log.setLevel(logging.WARNING)
    yield log
    log.setLevel(before)


def test_it_is_told_only_while_the_slice_runs(ours: logging.Logger) -> None:
    messages: list[dict[str, Any]] = []
    ours.warning("before")
    with forwarding_logs(messages.append):
        ours.warning("meanwhile")
        logging.getLogger("kafka.conn").warning("a library's")
    ours.warning("after")
    assert [message["text"] for message in messages] == ["meanwhile"]
