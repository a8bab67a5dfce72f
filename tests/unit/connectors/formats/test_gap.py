"""Gaps as data: on the link, in the store, under the policies."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.formats.gap import Gap, GapKind, GapPolicy, GapRecord, OnSourceGap, OnTopicRecreated, encode_gap
from connectors.formats.position import KeyKind, LaterFormat, decode_kind
from tests.kit.stored import decode_gap

OFFSETS = st.integers(-1, 2**63 - 1)
IDS = st.none() | st.uuids().filter(lambda value: value != UUID(int=0))
GAPS = st.builds(
    Gap, st.sampled_from(GapKind), OFFSETS, OFFSETS, OFFSETS, OFFSETS, OFFSETS, st.integers(-1, 2**31 - 1), IDS, IDS
)


@given(GAPS)
def test_a_gap_comes_back_from_link_and_store_as_it_was(gap: Gap) -> None:
    assert Gap.from_wire(gap.to_wire()) == gap
    record = GapRecord("MirrorSourceConnector", "orders", 3, 1_700_000_000_000, gap, "us.orders")
    key, value = encode_gap(record)
    assert decode_kind(key) is KeyKind.GAP
    assert decode_gap(key, value) == record


def test_a_later_version_is_refused() -> None:
    key, value = encode_gap(GapRecord("c", "orders", 0, 1, Gap(GapKind.SOURCE_GAP), "us.orders"))
    with pytest.raises(LaterFormat):
        decode_gap(key, b"\x02" + value[1:])


def test_what_is_lost_is_counted_once() -> None:
    assert Gap(GapKind.SOURCE_GAP, 20, 26).lost_offsets == 7
    assert Gap(GapKind.SOURCE_RECREATED, 20).lost_offsets == 0
    assert Gap(GapKind.SOURCE_TRUNCATED, 20, 26).lost_offsets == 0
    assert Gap(GapKind.TARGET_TRUNCATED, 20, 26).lost_offsets == 0


def test_the_safe_defaults_let_nothing_go_on_that_loses_something() -> None:
    for kind in GapKind:
        assert GapPolicy().goes_on(Gap(kind, 1, 2, go_on_at=3)) == (kind is GapKind.TARGET_TRUNCATED)


@pytest.mark.parametrize(
    ("policy", "kind", "go_on_at", "goes_on"),
    [
        (GapPolicy(on_source_gap=OnSourceGap.SKIP), GapKind.SOURCE_GAP, 3, True),
        (GapPolicy(on_source_gap=OnSourceGap.SKIP), GapKind.SOURCE_TRUNCATED, 3, True),
        (GapPolicy(on_source_gap=OnSourceGap.SKIP), GapKind.SOURCE_TRUNCATED, -1, False),  # nobody knows where
        (GapPolicy(on_source_gap=OnSourceGap.SKIP), GapKind.SOURCE_RECREATED, -1, False),
        (GapPolicy(on_topic_recreated=OnTopicRecreated.RESTART), GapKind.SOURCE_RECREATED, -1, True),
        (GapPolicy(on_topic_recreated=OnTopicRecreated.RESTART), GapKind.TARGET_RECREATED, -1, True),
        (GapPolicy(on_topic_recreated=OnTopicRecreated.RESTART), GapKind.SOURCE_DELETED, -1, False),
    ],
)
def test_what_a_policy_lets_go_on(policy: GapPolicy, kind: GapKind, go_on_at: int, goes_on: bool) -> None:
    assert policy.goes_on(Gap(kind, 1, 2, go_on_at=go_on_at)) == goes_on
