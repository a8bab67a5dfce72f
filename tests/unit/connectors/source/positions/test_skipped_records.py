"""What the log says of records that were left out: each, or one line now and then."""

import pytest

from connectors.formats.types import TopicPartition
from connectors.source.positions.partition_notes import EVERY_S, SkipLog

ORDERS, CLICKS = TopicPartition("orders", 3), TopicPartition("clicks", 0)


def test_each_record_has_a_line_where_it_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    log = SkipLog("us->eu", each=True)
    log.add(ORDERS, [(7, 8, 87), (20, 20, 10)])
    log.report(0.0, is_last=True)
    begin = "us->eu: skipped the record of topic orders partition 3 at offset"
    assert caplog.messages == [
        f"{begin} 7: the target refuses it: INVALID_RECORD (87)",
        f"{begin} 8: the target refuses it: INVALID_RECORD (87)",
        f"{begin} 20: the target refuses it: MESSAGE_TOO_LARGE (10)",
    ]


def test_else_one_line_tells_of_all_since_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    log = SkipLog("us->eu", each=False)
    log.report(0.0)
    log.add(ORDERS, [(7, 8, 87)])
    log.report(1.0)
    log.add(ORDERS, [(9, 9, 87)])
    log.add(CLICKS, [(1, 100, 32)])
    log.report(1.0 + EVERY_S / 2)
    log.add(ORDERS, [(11, 11, 87)])
    log.report(1.0 + EVERY_S)
    log.add(CLICKS, [(101, 101, 32)])
    log.report(2.0 + EVERY_S, is_last=True)
    counts = [line.split(" skipped ")[1].split(" ")[0] for line in caplog.messages]
    assert counts == ["2", "102", "1"]
    assert "2 of orders-3, the last at offset 11: the target refuses it: INVALID_RECORD (87)" in caplog.messages[1]
    assert (
        "100 of clicks-0, the last at offset 100: the target refuses it: INVALID_TIMESTAMP (32)" in caplog.messages[1]
    )


def test_a_line_names_a_few_partitions_at_most(caplog: pytest.LogCaptureFixture) -> None:
    log = SkipLog("us->eu", each=False)
    for index in range(20):
        log.add(TopicPartition("orders", index), [(1, 1, 87)])
    log.report(0.0)
    (line,) = caplog.messages
    assert line.count("the last at offset") == 5
    assert line.endswith("and 15 more partitions")
