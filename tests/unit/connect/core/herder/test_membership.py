"""The group protocol's bytes: by hand, as Java reads them, and as we read what Java or anybody else writes."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core.herder.membership import (
    COMPATIBLE,
    CONFIG_MISMATCH,
    EAGER,
    MAX_STRING_BYTES,
    NO_ERROR,
    NOTHING,
    SESSIONED,
    VERSIONS,
    Allocation,
    Assignment,
    MalformedMembership,
    WorkerMetadata,
    decode_assignment,
    decode_metadata,
    encode_assignment,
    encode_metadata,
    fits,
    held_by,
    work_held,
)
from connect.core.model import TaskId

URL = "http://h:8083/"
WORK = Allocation(("a",), (TaskId("a", 0), TaskId("b", 2), TaskId("a", 1)))

ASSIGNMENT = Assignment(NO_ERROR, "m-1", URL, 7, WORK, WORK, 300_000)

URL_BYTES = b"\x00\x0ehttp://h:8083/"
OFFSET_7 = b"\x00\x00\x00\x00\x00\x00\x00\x07"
#: a with its connector and tasks 0 and 1, b with task 2.
WORK_BYTES = (
    b"\x00\x00\x00\x02"
    b"\x00\x01a\x00\x00\x00\x03\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x01"
    b"\x00\x01b\x00\x00\x00\x01\x00\x00\x00\x02"
)
TAIL_BYTES = b"HGLE\x00\x01\x00\x00\x13\x88"

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INT16, INT32, INT64 = (st.integers(-(2**bits), 2**bits - 1) for bits in (15, 31, 63))


@st.composite
def allocations(draw: st.DrawFn) -> Allocation:
    """Grouped by connector, as they come out of the bytes."""
    grouped = draw(st.dictionaries(NAMES, st.tuples(st.booleans(), st.lists(st.integers(0, 2**31 - 1), max_size=4))))
    connectors = tuple(name for name, (instance, _) in grouped.items() if instance)
    order = [*connectors, *(name for name in grouped if name not in connectors)]
    return Allocation(connectors, tuple(TaskId(name, task) for name in order for task in grouped[name][1]))


def test_metadata_of_the_eager_protocol_ends_with_the_offset_and_a_lease() -> None:
    for nothing in (None, Allocation()):
        metadata = WorkerMetadata(URL, 7, nothing)
        assert encode_metadata(EAGER, metadata) == b"\x00\x00" + URL_BYTES + OFFSET_7
        leased = WorkerMetadata(URL, 7, nothing, lease_ms=5000)
        assert decode_metadata(encode_metadata(EAGER, leased)) == WorkerMetadata(URL, 7, lease_ms=5000)


def test_work_that_a_cooperative_protocol_left_is_told_with_the_eager_one() -> None:
    metadata = WorkerMetadata(URL, 7, WORK, lease_ms=5000)
    encoded = encode_metadata(EAGER, metadata)
    assert encoded.startswith(b"\x00\x00" + URL_BYTES + OFFSET_7)
    read = decode_metadata(encoded).allocation
    assert read is not None
    assert (set(read.connectors), set(read.tasks)) == (set(WORK.connectors), set(WORK.tasks))


@pytest.mark.parametrize(("protocol", "version"), [(COMPATIBLE, b"\x00\x01"), (SESSIONED, b"\x00\x02")])
def test_metadata_with_nothing_held(protocol: str, version: bytes) -> None:
    encoded = encode_metadata(protocol, WorkerMetadata(URL, 7))
    assert encoded == version + URL_BYTES + OFFSET_7 + b"\xff\xff\xff\xff"


def test_metadata_with_what_is_held_and_a_lease() -> None:
    metadata = WorkerMetadata(URL, 7, WORK, lease_ms=5000)
    held = b"\x00\x02\x00\x00\x00\x00" + URL_BYTES + OFFSET_7 + WORK_BYTES + b"\x00\x00\x00\x00" + b"\x00\x00\x00\x00"
    encoded = encode_metadata(SESSIONED, metadata)
    assert encoded == b"\x00\x02" + URL_BYTES + OFFSET_7 + struct.pack(">i", len(held)) + held + TAIL_BYTES
    # Tasks come out by connector.
    by_connector = Allocation(("a",), (TaskId("a", 0), TaskId("a", 1), TaskId("b", 2)))
    assert decode_metadata(encoded) == WorkerMetadata(URL, 7, by_connector, 5000)


def test_metadata_of_java_has_no_lease() -> None:
    held = b"\x00\x02\x00\x00\x00\x01m" + URL_BYTES + OFFSET_7 + WORK_BYTES + b"\x00\x00\x00\x00" + b"\x00\x00\x00\x00"
    java = b"\x00\x02" + URL_BYTES + OFFSET_7 + struct.pack(">i", len(held)) + held
    read = decode_metadata(java)
    assert read.lease_ms is None
    assert read.allocation is not None
    assert read.allocation.connectors == ("a",)


@pytest.mark.parametrize(
    ("tail", "lease_ms"),
    [
        (TAIL_BYTES, 5000),
        (b"HGLE\x00\x02\x00\x00\x13\x88more", 5000),
        (b"HGLE\x00\x00\x00\x00\x13\x88", None),
        (TAIL_BYTES[:-1], None),
        (b"\x00\x00\x00\x01\x02", None),
    ],
    ids=["ours", "a later one of ours", "one that there never was", "cut off", "a later Java's"],
)
def test_what_follows_the_metadata(tail: bytes, lease_ms: int | None) -> None:
    encoded = encode_metadata(COMPATIBLE, WorkerMetadata(URL, 7)) + tail
    assert decode_metadata(encoded) == WorkerMetadata(URL, 7, None, lease_ms)


def test_assignment_of_the_eager_protocol() -> None:
    assignment = Assignment(NO_ERROR, "m-1", URL, 7, WORK)
    encoded = encode_assignment(EAGER, assignment)
    assert encoded == b"\x00\x00\x00\x00\x00\x03m-1" + URL_BYTES + OFFSET_7 + WORK_BYTES
    read = decode_assignment(encoded)
    assert (read.version, read.revoked, read.delay_ms) == (0, NOTHING, 0)


def test_assignment_with_revocations_and_a_delay() -> None:
    assignment = Assignment(CONFIG_MISMATCH, "m-1", URL, 7, NOTHING, Allocation((), (TaskId("b", 2),)), 300_000)
    encoded = encode_assignment(SESSIONED, assignment)
    assert encoded == (
        b"\x00\x02\x00\x01\x00\x03m-1" + URL_BYTES + OFFSET_7 + b"\x00\x00\x00\x00"
        b"\x00\x00\x00\x01\x00\x01b\x00\x00\x00\x01\x00\x00\x00\x02"
        b"\x00\x04\x93\xe0"
    )
    assert decode_assignment(encoded) == assignment


NULL = b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        NULL,
        NULL + NULL + b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x01\x00\x01a" + NULL,  # a connector whose tasks are null
        b"\x00\x00\x00\x01\x00\x01a\x00\x00\x00\x00",
    ],
)
def test_what_is_missing_or_null_in_an_assignment_is_nothing(rest: bytes) -> None:
    encoded = b"\x00\x01\x00\x00\x00\x01m" + URL_BYTES + OFFSET_7 + rest
    assert decode_assignment(encoded) == Assignment(NO_ERROR, "m", URL, 7, version=1)


@given(protocol=st.sampled_from([COMPATIBLE, SESSIONED]), url=NAMES, offset=INT64, held=st.none() | allocations())
def test_metadata_comes_back(protocol: str, url: str, offset: int, held: Allocation | None) -> None:
    metadata = WorkerMetadata(url, offset, held, 5000)
    assert decode_metadata(encode_metadata(protocol, metadata)) == metadata


@given(
    protocol=st.sampled_from(list(VERSIONS)),
    error=INT16,
    leader=NAMES,
    offset=INT64,
    assigned=allocations(),
    revoked=allocations(),
    delay_ms=INT32,
)
def test_assignments_come_back(
    protocol: str, error: int, leader: str, offset: int, assigned: Allocation, revoked: Allocation, delay_ms: int
) -> None:
    reported = Assignment(error, leader, URL, offset, assigned, revoked, delay_ms, VERSIONS[protocol])
    if protocol == EAGER:
        reported = Assignment(error, leader, URL, offset, assigned, version=0)
    assert decode_assignment(encode_assignment(protocol, reported)) == reported


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Right bytes with a few of them changed, or the rest cut off."""
    right = encode_metadata(SESSIONED, WorkerMetadata(URL, 7, WORK, 5000)), encode_assignment(SESSIONED, ASSIGNMENT)
    data = bytearray(draw(st.sampled_from(right)))
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


@given(data=st.binary(max_size=60) | damaged())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_metadata, decode_assignment):
        with suppress(MalformedMembership):
            decode(data)
    held_by({"m": data})


def test_numbers_of_entries_that_are_not_there_take_no_memory() -> None:
    most = b"\x7f\xff\xff\xff"
    front = b"\x00\x02\x00\x00\x00\x01m" + URL_BYTES + OFFSET_7
    tracemalloc.start()
    try:
        for data in (front + most, front + b"\x00\x00\x00\x01\x00\x01a" + most):
            with pytest.raises(MalformedMembership):
                decode_assignment(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(at=st.integers(2, 70))
def test_metadata_that_is_cut_off_is_refused(at: int) -> None:
    encoded = encode_metadata(SESSIONED, WorkerMetadata(URL, 7, WORK))
    whole_without_held = 2 + len(URL_BYTES) + len(OFFSET_7)
    if at >= len(encoded) or at == whole_without_held:
        return
    with pytest.raises(MalformedMembership):
        decode_metadata(encoded[:at])


def test_held_work_of_no_bytes_is_refused() -> None:
    with pytest.raises(MalformedMembership):
        decode_metadata(b"\x00\x01" + URL_BYTES + OFFSET_7 + b"\x00\x00\x00\x00")


def test_connectors_are_held_by_the_members_of_which_they_have_work() -> None:
    held = [Allocation(("a",)), Allocation((), (TaskId("b", 2),)), None]
    members = {str(at): encode_metadata(SESSIONED, WorkerMetadata(URL, 7, one)) for at, one in enumerate(held)}
    assert held_by({"malformed": b"", **members}) == {"a", "b"}


def test_a_version_that_there_is_not_is_refused() -> None:
    with pytest.raises(MalformedMembership, match="version -1"):
        decode_metadata(b"\xff\xff" + URL_BYTES + OFFSET_7)


def test_a_name_that_is_too_long_for_the_protocol_is_said_so() -> None:
    longest, longer = "x" * MAX_STRING_BYTES, "x" * (MAX_STRING_BYTES + 1)
    reported = Assignment(NO_ERROR, "m", URL, 7, Allocation((longest,)))
    assert decode_assignment(encode_assignment(SESSIONED, reported)) == reported
    with pytest.raises(MalformedMembership, match="32768 bytes"):
        encode_assignment(SESSIONED, replace(reported, assigned=Allocation((longer,))))
    assert (fits(longest), fits(longer), fits("\ud800")) == (True, False, False)


def test_a_member_holds_what_it_brought_and_what_it_was_given_without_what_was_revoked() -> None:
    first, second, third = (TaskId("c", number) for number in range(3))
    metadata = encode_metadata(SESSIONED, WorkerMetadata("http://a/", 1, Allocation(("c",), (first, second))))
    given = Assignment(0, "leader", "http://a/", 1, Allocation((), (third,)), Allocation(("c",), (second,)))
    assert work_held(metadata, encode_assignment(SESSIONED, given)) == Allocation((), (first, third))
