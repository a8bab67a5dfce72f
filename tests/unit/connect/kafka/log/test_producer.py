"""Where a key's record goes: vectors from Kafka's own ``UtilsTest.testMurmur2``."""

from __future__ import annotations

import pytest

from connect.kafka.log.producer import partition_of

MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    bytes((ord("a"), ord("b"), ord("c"))): 479470107,
}


@pytest.mark.parametrize(("key", "hashed"), MURMUR2.items())
@pytest.mark.parametrize("partitions", [1, 25, 2**31])
def test_partition_is_javas(key: bytes, hashed: int, partitions: int) -> None:
    assert partition_of(key, partitions) == (hashed & 0x7FFFFFFF) % partitions
