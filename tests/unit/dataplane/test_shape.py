"""The decision table: each row by itself, and what holds for every header."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.wire import batch as wire
from connectors.dataplane import shape

PLAIN = wire.BatchHeader(100, 500, 4, 2, 0, 0, 9, 0, 0, -1, -1, -1, 10)


@pytest.mark.parametrize(
    ("changes", "position", "aborted", "expected"),
    [
        ({}, 100, False, shape.SHALLOW),
        ({"attributes": 4}, 100, False, shape.SHALLOW),
        ({"attributes": wire.DELETE_HORIZON}, 100, False, shape.SHALLOW),
        ({"attributes": wire.TRANSACTIONAL}, 100, False, shape.SHALLOW),
        ({"attributes": wire.TRANSACTIONAL}, 100, True, shape.ABORTED),
        ({}, 100, True, shape.SHALLOW),
        ({"attributes": wire.CONTROL | wire.TRANSACTIONAL}, 100, False, shape.CONTROL),
        ({"attributes": wire.CONTROL | wire.TRANSACTIONAL}, 100, True, shape.CONTROL),
        ({"record_count": 0}, 100, False, shape.EMPTY),
        ({"record_count": 9}, 100, False, shape.GAPS),
        ({}, 101, False, shape.TRIMMED),
        ({}, 109, False, shape.TRIMMED),
        ({}, 110, False, shape.BEHIND),
        ({"attributes": wire.LOG_APPEND_TIME}, 100, False, shape.APPEND_TIME),
        ({"attributes": wire.LOG_APPEND_TIME | 4}, 100, False, shape.APPEND_TIME),
        ({"length": 1000 - 12}, 100, False, shape.SHALLOW),
        ({"length": 1001 - 12}, 100, False, shape.TOO_LARGE),
    ],
)
def test_each_row(changes, position, aborted, expected):
    assert shape.decide(PLAIN._replace(**changes), position, aborted, 1000) is expected


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
    decision = shape.decide(header, position, aborted, 1000)
    if decision is shape.SHALLOW:
        assert count == delta + 1
        assert not attributes & (wire.CONTROL | wire.LOG_APPEND_TIME)
        assert header.size_bytes <= 1000
        assert header.base_offset >= position
        assert not (aborted and attributes & wire.TRANSACTIONAL)
    if decision.kind is shape.Kind.DROPPED:
        nothing_to_copy = not count or header.last_offset < position
        assert attributes & wire.CONTROL or (aborted and attributes & wire.TRANSACTIONAL) or nothing_to_copy
