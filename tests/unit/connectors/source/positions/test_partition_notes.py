"""What the log says of a partition that was taken over."""

import logging

import pytest

from connectors.dataplane.resume import Resumed
from connectors.formats.types import TopicPartition
from connectors.source.positions.partition_notes import log_late_records, log_resumed
from tests.kit.logs import plan
from tests.kit.resumed import resumed


@pytest.mark.parametrize(
    ("one", "said", "may_double"),
    [
        (Resumed(plan(), arrived=3), "(3 records of the source were there already)", 0),
        (Resumed(plan(), arrived=3, fallback="other records", may_double=3), "verified=false", 3),
        (Resumed(plan(), arrived=3, may_double=2), "verified=true fallback=at-least-once", 2),
    ],
)
def test_the_log_says_how_many_records_may_appear_twice(
    caplog: pytest.LogCaptureFixture, one: Resumed, said: str, may_double: int
) -> None:
    caplog.set_level(logging.INFO)
    log_resumed("us->eu", one)
    assert said in caplog.text
    assert [line.may_double for line in resumed(caplog.messages)] == [may_double]


def test_late_batches_of_an_unfenced_predecessor_are_announced(caplog: pytest.LogCaptureFixture) -> None:
    log_late_records("us->eu", TopicPartition("orders", 0), 7)
    assert [(line.partition, line.may_double) for line in resumed(caplog.messages)] == [("orders-0", 7)]
