"""Whatever stands in an internal topic: readers raise errors of two kinds, and folds none."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core import status_and_offset_topics
from connect.core.config_topic import ConfigLog
from connect.core.errors import UnreadableRecord
from connect.core.status_and_offset_topics import StatusLog
from connect.kafka.log.compacted_topic import pass_over
from connectors.checkpoint.offset_translation import OffsetSyncStore
from connectors.failover.clusters_and_lease import decode_object
from connectors.formats.gap import Gap, GapKind, GapRecord, encode_gap
from connectors.formats.mirror_records import OffsetSync
from connectors.formats.position import (
    KeyKind,
    LaterFormat,
    Position,
    PositionKey,
    decode_kind,
    decode_position_key,
    encode_position,
    encode_progress,
    fold_position,
)
from connectors.formats.types import TopicPartition
from connectors.internal_topics import PARTITION_STATES, PartitionState
from connectors.offset_map.runs_and_chunks import MapRun, decode_chunk, decode_chunk_key, first_downstream
from connectors.topic_sync.acl_sync import ACLS
from connectors.topic_sync.topic_deletion import GONE
from tests.kit.stored import decode_gap, encode_chunk

_POSITION = Position("t", 0, None, 5, 1, "us.t", 0, None, 7, "id", 1, 2, 3)
_KEY = PositionKey("c", "t", 0)
_FULL = fold_position(None, KeyKind.POSITION, _KEY, encode_position(_POSITION), ())
_GAP = GapRecord("c", "t", 0, 1, Gap(GapKind.SOURCE_GAP), "us.t")
_STATE = PartitionState("QUARANTINED", "why", "us.t", 1, Gap(GapKind.SOURCE_GAP))

#: Values that are right, to be damaged.
_RIGHT = [
    encode_position(_POSITION),
    encode_progress(_POSITION, None),
    encode_chunk([MapRun(5, 2, 300), MapRun(306, 302, 1)]),
    *encode_gap(_GAP),
    PARTITION_STATES.encode_value(_STATE),
    b"\x01",
]


def _with_header(name: str, data: bytes) -> object:
    return fold_position(None, KeyKind.POSITION, _KEY, encode_position(_POSITION), [(name, data)])


_READERS: dict[str, Callable[[bytes], object]] = {
    "kind": decode_kind,
    "position key": decode_position_key,
    "position": lambda data: fold_position(None, KeyKind.POSITION, _KEY, data, ()),
    "run": lambda data: _with_header("heliograph.run", data),
    "claimant": lambda data: _with_header("heliograph.claimant", data),
    "progress": lambda data: fold_position(_FULL, KeyKind.PROGRESS, _KEY, data, ()),
    "chunk key": decode_chunk_key,
    "chunk": lambda data: decode_chunk(0, data),
    "chunk's beginning": first_downstream,
    "gap": lambda data: decode_gap(encode_gap(_GAP)[0], data),
    "gap's key": lambda data: decode_gap(data, encode_gap(_GAP)[1]),
    "state": PARTITION_STATES.decode_value,
    "state's key": PARTITION_STATES.decode_key,
    "gone": GONE.decode_value,
    "gone's key": GONE.decode_key,
    "rule": ACLS.decode_value,
    "rule's key": ACLS.decode_key,
    "failover": decode_object,
}


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(_RIGHT)))
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


@pytest.mark.parametrize("reader", _READERS)
@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: b"\x01" + data) | damaged())
def test_bytes_are_read_or_refused_in_one_way(reader: str, data: bytes) -> None:
    with suppress(UnreadableRecord, LaterFormat):
        _READERS[reader](data)


_NUMBERS = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(_NUMBERS | st.integers(0, 300), _NUMBERS), max_size=30), _NUMBERS)
def test_offset_syncs_of_any_order_are_taken(syncs: list[tuple[int, int]], asked: int) -> None:
    store = OffsetSyncStore(only_last=False)
    for upstream, downstream in syncs:
        store.take(OffsetSync("t", 0, upstream, downstream))
    store.read_to_end()
    store.translate(TopicPartition("t", 0), asked)


_FIELDS = st.sampled_from(
    ["properties", "tasks", "state", "worker_id", "generation", "topic", "key", "task-count", "a"]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["RUNNING", "x", "\ud800", "9" * 5000]),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(_FIELDS, each, max_size=4),
    max_leaves=8,
)
_KEYS = st.sampled_from(
    [
        None,
        *(f"{kind}-{name}" for kind in ("connector", "target-state", "commit", "tasks-fencing") for name in ("c", "")),
        *(f"task-c-{number}" for number in ("0", "-1", "9" * 5000, "x", "²")),
        *("session-key", "restart-connector-c", "logger-cluster-x", "status-connector-c", "status-task-c-0"),
        *("status-task-c-" + "9" * 5000, "status-topic-t:connector-c", "status-topic-", "[" * 500, ""),
    ]
)
_TEXTS = _JSON.map(lambda value: json.dumps(value).encode())
_VALUES = st.none() | _TEXTS | st.binary(max_size=20) | st.just(b"[" * 100_000)


@given(st.lists(st.tuples(_KEYS, _VALUES), max_size=8))
def test_no_record_ends_the_folds_of_a_worker(records: list[tuple[str | None, bytes | None]]) -> None:
    configs, statuses, offsets = ConfigLog(), StatusLog(), status_and_offset_topics.SourceOffsets()
    for offset, (key, value) in enumerate(records):
        configs.apply(offset, key, value)
        statuses.apply(key, value)
        status_and_offset_topics.apply(offsets, None if key is None else key.encode(), value)


@pytest.mark.parametrize("poison", [b"[" * 100_000, b'{"a":' * 100_000, b"[" + b"{}," * 200_000, b"\xff", b""])
def test_records_of_many_levels_are_passed_over(poison: bytes) -> None:
    offsets = status_and_offset_topics.SourceOffsets()
    reported = [
        status_and_offset_topics.apply(offsets, poison, b"{}"),
        status_and_offset_topics.apply(offsets, b'["c",{}]', poison),
        StatusLog().apply("status-connector-c", poison),
        *(change.why for change in ConfigLog().apply(0, "connector-c", poison)),  # type: ignore[attr-defined]
    ]
    assert all(each is not None and len(each) < 400 for each in reported), reported
    with pytest.raises(UnreadableRecord):
        decode_object(poison)


def test_a_record_is_named_once_and_a_hundred_of_a_topic(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    where = "topic of this test"
    for _ in range(2):
        pass_over(where, 3, 17, "x" * 5000)
    (line,) = caplog.messages
    assert line.startswith("topic of this test, partition 3, offset 17 is skipped: xxx")
    assert len(line) < 400
    for offset in range(300):
        pass_over(where, 0, offset, "why")
    assert len(caplog.messages) == 101
    assert "further ones are not logged" in caplog.messages[-1]
