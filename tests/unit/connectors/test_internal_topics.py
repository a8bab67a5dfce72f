"""Topics of our own: a right that is missing does not make them empty; states of partitions as they are stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core.errors import SecurityError
from connect.kafka.cluster import Cluster, ClusterMetadata, TopicMetadata
from connectors.checkpoint.offset_translation import OffsetSyncReader
from connectors.client import MirrorClient
from connectors.formats.gap import Gap, GapKind
from connectors.formats.position import KeyKind, LaterFormat, decode_kind
from connectors.formats.types import TopicPartition
from connectors.internal_topics import PARTITION_STATES as STATES
from connectors.internal_topics import PartitionState, read_positions, read_stored_offsets
from connectors.offset_map.reader import MapReader

TOPIC = "mm2-offset-map.us.internal"


class Eu:
    name = "eu"

    async def metadata(self, names: set[str]) -> ClusterMetadata:
        return ClusterMetadata(None, 0, {}, {name: TopicMetadata(name, None, 29, {}) for name in names})

    async def topics(self, names: set[str]) -> ClusterMetadata:
        return await Cluster.topics(cast(Any, self), names)


@pytest.mark.parametrize(
    "read",
    [
        lambda eu: MapReader(eu, TOPIC).follow(),
        lambda eu: OffsetSyncReader(eu, TOPIC, only_last=False).follow(),
        lambda eu: read_stored_offsets(eu, TOPIC),
        lambda eu: read_positions(eu, TOPIC, "MirrorSourceConnector"),
    ],
)
async def test_a_topic_that_cannot_be_seen_does_not_count_as_empty(read: Callable[[Any], Awaitable[Any]]) -> None:
    with pytest.raises(SecurityError, match=rf"grant DESCRIBE on topic {TOPIC}"):
        await read(Eu())


async def test_a_client_tells_that_it_may_not_see_the_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without places would let a group begin anew."""
    eu = Eu()
    monkeypatch.setattr("connectors.client._cluster", lambda *_: eu)
    with pytest.raises(SecurityError, match=r"grant DESCRIBE on topic us\.checkpoints\.internal"):
        await MirrorClient({}).remote_consumer_offsets("readers", "us", 5)


GAP = Gap(GapKind.SOURCE_GAP, 20, 26, go_on_at=27)
STATE = PartitionState("source-gap", "it begins at 27", "us.orders", 1_700_000_000_000, GAP)


@given(st.text(max_size=50), st.integers(0, 2**31 - 1), st.booleans())
def test_what_is_stored_comes_back(reason: str, index: int, has_gap: bool) -> None:
    partition = TopicPartition("orders", index)
    state = replace(STATE, reason=reason, gap=GAP if has_gap else None)
    key = STATES.encode_key("mirror", partition)
    assert decode_kind(key) is KeyKind.STATE
    assert STATES.decode_key(key) == ("mirror", partition)
    assert STATES.decode_value(STATES.encode_value(state)) == state


def test_a_later_version_is_refused_and_a_long_reason_is_cut() -> None:
    value = STATES.encode_value(replace(STATE, reason="x" * 40_000))
    assert STATES.decode_value(value).reason == "x" * 4_000
    with pytest.raises(LaterFormat):
        STATES.decode_value(b"\x02" + value[1:])


def test_the_time_makes_no_difference() -> None:
    assert STATE.is_as(replace(STATE, since_ms=1))
    assert not STATE.is_as(replace(STATE, gap=None))
    assert not STATE.is_as(None)


def test_the_lost_range_is_named() -> None:
    reported = STATE.to_json()["gap"]
    told = reported["kind"], reported["first"], reported["last"], reported["lost_offsets"]
    assert told == ("source-gap", 20, 26, 7)
