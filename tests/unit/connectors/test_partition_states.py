"""States of partitions as they are stored."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.formats.gap import Gap, GapKind
from connectors.formats.position import KeyKind, LaterFormat, decode_kind
from connectors.formats.types import TopicPartition
from connectors.internal_topics import PARTITION_STATES as STATES
from connectors.internal_topics import PartitionState

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
    assert (reported["kind"], reported["first"], reported["last"], reported["lost_offsets"]) == (
        "source-gap",
        20,
        26,
        7,
    )
