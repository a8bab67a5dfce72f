"""What the members of a group were given, as bytes that any client may have written."""

from __future__ import annotations

import struct
from typing import Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.kafka.cluster import Cluster
from connect.kafka.log import committed_offsets
from connect.kafka.log.committed_offsets import Partition, _assigned, owners

#: Version 0: one topic, its partitions 1 and 2, no user data (Kafka ``ConsumerPartitionAssignor.Assignment``).
WHOLE: Final = struct.pack(">hih", 0, 1, 6) + b"orders" + struct.pack(">iiii", 2, 1, 2, 0)
NULL_TOPICS: Final = struct.pack(">hii", 0, -1, -1)
NULL_PARTITIONS: Final = struct.pack(">hih", 0, 1, 6) + b"orders" + struct.pack(">ii", -1, 0)


class Member:
    def __init__(self, name: str, assignment: bytes) -> None:
        self.client_id, self.client_host, self.member_assignment = name, "/10.0.0.1", assignment


class Group:
    protocol_type = "consumer"

    def __init__(self, *assignments: bytes) -> None:
        self.members = [Member(f"m{at}", one) for at, one in enumerate(assignments)]


async def test_whose_bytes_nobody_can_read_keeps_the_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def described(*_: object) -> Group:
        return Group(WHOLE[:9], WHOLE, b"", NULL_TOPICS, NULL_PARTITIONS)

    monkeypatch.setattr(committed_offsets, "described_group", described)
    assert await owners(cast("Cluster", None), "readers") == {
        ("orders", 1): "m1/10.0.0.1",
        ("orders", 2): "m1/10.0.0.1",
    }


@given(end=st.integers(0, len(WHOLE) - 1), behind=st.binary(max_size=20))
def test_bytes_of_no_known_format_are_nobodys(end: int, behind: bytes) -> None:
    found: list[Partition] = list(_assigned(WHOLE[:end]))
    assert not found
    list(_assigned(WHOLE[:end] + behind))  # whatever it makes of them, it is no error
