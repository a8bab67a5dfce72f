"""The decision table: each row by itself, and what holds for every header."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.wire import batch as wire
from connectors.dataplane.batches import fetched_batches

PLAIN = wire.BatchHeader(100, 500, 4, 2, 0, 0, 9, 0, 0, -1, -1, -1, 10)


@pytest.mark.parametrize(
    ("changes", "position", "aborted", "expected"),
    [
        ({}, 100, False, fetched_batches.SHALLOW),
        ({"attributes": 4}, 100, False, fetched_batches.SHALLOW),
        ({"attributes": wire.DELETE_HORIZON}, 100, False, fetched_batches.SHALLOW),
        ({"attributes": wire.TRANSACTIONAL}, 100, False, fetched_batches.SHALLOW),
        ({"attributes": wire.TRANSACTIONAL}, 100, True, fetched_batches.ABORTED),
        ({}, 100, True, fetched_batches.SHALLOW),
        ({"attributes": wire.CONTROL | wire.TRANSACTIONAL}, 100, False, fetched_batches.CONTROL),
        ({"attributes": wire.CONTROL | wire.TRANSACTIONAL}, 100, True, fetched_batches.CONTROL),
        ({"record_count": 0}, 100, False, fetched_batches.EMPTY),
        ({"record_count": 9}, 100, False, fetched_batches.GAPS),
        ({}, 101, False, fetched_batches.TRIMMED),
        ({}, 109, False, fetched_batches.TRIMMED),
        ({}, 110, False, fetched_batches.BEHIND),
        ({"attributes": wire.LOG_APPEND_TIME}, 100, False, fetched_batches.APPEND_TIME),
        ({"attributes": wire.LOG_APPEND_TIME | 4}, 100, False, fetched_batches.APPEND_TIME),
        ({"length": 1000 - 12}, 100, False, fetched_batches.SHALLOW),
        ({"length": 1001 - 12}, 100, False, fetched_batches.TOO_LARGE),
    ],
)
def test_each_row(changes, position, aborted, expected):
    assert fetched_batches.decide(PLAIN._replace(**changes), position, aborted, 1000) is expected


@given(
    st.integers(0, 0x7F),
    st.integers(0, 50),
    st.integers(0, 51),
    st.integers(0, 2000),
    st.integers(80, 140),
    st.booleans(),
)
def test_what_goes_as_it_is_is_what_a_broker_takes(attributes, delta, count, length, position, aborted):
    header = PLAIN._replace(attributes=attributes, last_offset_delta=delta, record_count=count, length=length)
    decision = fetched_batches.decide(header, position, aborted, 1000)
    if decision is fetched_batches.SHALLOW:
        assert count == delta + 1
        assert not attributes & (wire.CONTROL | wire.LOG_APPEND_TIME)
        assert header.size_bytes <= 1000
        assert header.base_offset >= position
        assert not (aborted and attributes & wire.TRANSACTIONAL)
    if decision.kind is fetched_batches.BatchKind.DROPPED:
        nothing_to_copy = not count or header.last_offset < position
        assert attributes & wire.CONTROL or (aborted and attributes & wire.TRANSACTIONAL) or nothing_to_copy
