"""Committed offsets while a transaction is about to change them, and the owners of partitions."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core.errors import RetriableError
from connect.kafka import concurrency
from connect.kafka.cluster import Cluster
from connect.kafka.log import committed_offsets
from connect.kafka.log.committed_offsets import Committed, Partition, _assigned, committed, move, owners
from tests.kit.virtual_time import in_virtual_time

UNSTABLE = 88


class Coordinator:
    """Answers with an error code a time, then with the offset."""

    name = "us"
    request_timeout_ms = 30_000

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.asked: list[bool] = []
        self.topics: list[tuple[str, list[int]]] | None = []

    async def coordinator(self, *_: Any) -> Coordinator:
        return self

    def forget_coordinator(self, *_: Any) -> None:
        pass

    async def call(self, request: Any, **_: Any) -> Any:
        self.asked.append(request.require_stable)
        self.topics = request.topics and [(topic.name, topic.partition_indexes) for topic in request.topics]
        code = self.codes.pop(0) if self.codes else 0
        row = SimpleNamespace(partition_index=0, error_code=code, committed_offset=-1 if code else 40, metadata="note")
        return SimpleNamespace(error_code=0, topics=[SimpleNamespace(name="orders", partitions=[row])])


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "_FIRST_PAUSE_S", 0.0)


@pytest.mark.parametrize("stable", [False, True])
async def test_offsets_of_an_open_transaction_are_waited_for_where_that_is_asked(stable: bool) -> None:
    us: Any = Coordinator(*([UNSTABLE, UNSTABLE] if stable else []))
    assert await committed(us, "readers", stable=stable) == {("orders", 0): Committed(40, "note")}
    assert us.asked == ([True] * 3 if stable else [False])


@in_virtual_time
async def test_a_transaction_that_does_not_end_is_told_with_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "_FIRST_PAUSE_S", 0.02)
    us: Any = Coordinator(*[UNSTABLE] * 100_000)
    with pytest.raises(RetriableError, match=r"an open transaction holds the offset of group readers in orders-0"):
        await committed(us, "readers", stable=True)


async def test_a_coordinator_that_does_not_answer_is_waited_for_as_long_as_was_said() -> None:
    class Silent(Coordinator):
        async def call(self, *_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

    us: Any = Silent()
    for once, line in ((True, "no answer within 0.01 s"), (False, "not done within 0.01 s; no answer")):
        with pytest.raises(RetriableError, match=f"^asking cluster us for the offsets of group readers: {line}"):
            await committed(us, "readers", timeout_s=0.01, once=once)


async def test_a_commit_that_is_a_partitions_first_is_asked_for_by_name() -> None:
    """Asked for all, brokers tell of those partitions only that have an offset that is not pending."""
    us: Any = Coordinator()
    await committed(us, "readers", stable=True)
    assert us.topics is None
    await committed(us, "readers", [("orders", 1), ("bills", 0), ("orders", 0)], stable=True)
    assert us.topics == [("bills", [0]), ("orders", [0, 1])]


@pytest.mark.parametrize("once", [False, True])
async def test_a_group_is_moved_again_only_by_who_compares_nothing(once: bool) -> None:
    """Between two attempts somebody may have moved it further."""

    class Moving(Coordinator):
        async def call(self, *_: Any, **__: Any) -> Any:
            self.asked.append(True)
            rows = [SimpleNamespace(partition_index=0, error_code=self.codes.pop(0))]
            return SimpleNamespace(topics=[SimpleNamespace(name="orders", partitions=rows)])

    not_coordinator = 16
    us: Any = Moving(not_coordinator, 0)
    moving = move(us, "readers", {("orders", 0): Committed(40)}, once=once)
    if once:
        with pytest.raises(RetriableError, match="NOT_COORDINATOR"):
            await moving
    else:
        assert await moving == {}
    assert len(us.asked) == (1 if once else 2)


@pytest.mark.parametrize(
    ("timeout_s", "request_timeout_ms", "waits_s"), [(5.0, 30_000, 4.75), (5.0, 2_000, 2.0), (None, 30_000, 28.5)]
)
@in_virtual_time
async def test_a_silent_connection_is_dropped(timeout_s: float | None, request_timeout_ms: int, waits_s: float) -> None:
    """Cut off from outside, a call leaves it open, and the next one is sent where nobody answers again."""

    class Silent(Coordinator):
        """As a connection, closes itself at its own limit; the next that is opened answers."""

        is_silent = True

        async def call(self, *_: Any, **of_call: Any) -> Any:
            if self.is_silent:
                await asyncio.sleep(of_call["timeout_ms"] / 1000)
                self.is_silent = False
                raise RetriableError("did not answer")
            return SimpleNamespace(error_code=0, topics=[])

    clock = asyncio.get_running_loop().time
    for asking in (
        lambda us: committed(us, "readers", timeout_s=timeout_s, once=True),
        lambda us: move(us, "readers", {("orders", 0): Committed(40)}, timeout_s=timeout_s, once=True),
    ):
        us: Any = Silent()
        us.request_timeout_ms = request_timeout_ms
        began_s = clock()
        with pytest.raises(RetriableError, match="did not answer"):
            await asking(us)
        assert clock() - began_s == pytest.approx(waits_s)
        assert await asking(us) == {}


@in_virtual_time
async def test_an_attempt_that_comes_late_gives_no_connection_up() -> None:
    """That it has little time left is none of the connection's fault."""
    given: list[int] = []

    class Unstable(Coordinator):
        async def call(self, request: Any, **of_call: Any) -> Any:
            given.append(of_call["timeout_ms"])
            await asyncio.sleep(3 if len(given) == 1 else 0)
            return await super().call(request)

    us: Any = Unstable(UNSTABLE)
    await committed(us, "readers", stable=True, timeout_s=5)
    assert given == [4750, 30_000]


#: Version 0: one topic, its partitions 1 and 2, no user data (Kafka ``ConsumerPartitionAssignor.Assignment``).
WHOLE: Final = struct.pack(">hih", 0, 1, 6) + b"orders" + struct.pack(">iiii", 2, 1, 2, 0)
NULL_TOPICS: Final = struct.pack(">hii", 0, -1, -1)
NULL_PARTITIONS: Final = struct.pack(">hih", 0, 1, 6) + b"orders" + struct.pack(">ii", -1, 0)


class Member:
    def __init__(self, name: str, assignment: bytes) -> None:
        self.client_id, self.client_host, self.member_assignment = name, "/10.0.0.1", assignment


class DescribedGroup:
    protocol_type = "consumer"

    def __init__(self, *assignments: bytes) -> None:
        self.members = [Member(f"m{at}", one) for at, one in enumerate(assignments)]


async def test_whose_bytes_nobody_can_read_keeps_the_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def described(*_: object) -> DescribedGroup:
        return DescribedGroup(WHOLE[:9], WHOLE, b"", NULL_TOPICS, NULL_PARTITIONS)

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
