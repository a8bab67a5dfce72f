"""Claims of transactional ids, and the partition of a key."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.core.errors import PermanentError
from connect.kafka.cluster import Cluster
from connect.kafka.log import transactions
from connect.kafka.log.producer import partition_of
from connect.kafka.log.transactions import ProducerIdentity, claim

INVALID_TRANSACTION_TIMEOUT = 50


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of a cluster whose transaction.max.timeout.ms is five seconds."""
    found: list[int] = []

    async def ask(_cluster: Cluster, _id: str, request: Any, _at_most: int | None) -> Any:
        found.append(request.transaction_timeout_ms)
        code = INVALID_TRANSACTION_TIMEOUT if request.transaction_timeout_ms > 5_000 else 0
        return SimpleNamespace(error_code=code, producer_id=7, producer_epoch=1)

    monkeypatch.setattr(transactions, "_ask", ask)
    return found


async def test_who_asks_for_no_time_takes_what_the_cluster_allows(asked: list[int]) -> None:
    assert await claim(cast(Cluster, None), "id") == ProducerIdentity(7, 1)
    assert asked == [60_000, 10_000, 1_000]


async def test_a_time_that_was_asked_for_is_not_shortened(asked: list[int]) -> None:
    cluster = cast(Cluster, SimpleNamespace(name="eu"))
    with pytest.raises(PermanentError, match=r"rejects transaction\.timeout\.ms=6000; lower it"):
        await claim(cluster, "id", timeout_ms=6_000)
    assert asked == [6_000]


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
