"""Fetch sessions against a broker's half of them: whatever changes in between, it fetches what is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core.errors import RetriableError
from connect.kafka.connection import Connection
from connect.wire import fetch_produce
from connectors.dataplane import fetch_api
from connectors.dataplane.fetch_api import FetchSession, Position, SessionRequest
from tests.kit.quotas import Mutable

SESSION_ID = 7


class Broker:
    """A broker's session (Kafka ``FetchSession``): a full request begins it, incremental ones amend it in turn."""

    def __init__(self) -> None:
        self.partitions: dict[str, Position] = {}
        self._epoch = 0

    def fetch(self, request: SessionRequest[str]) -> int:
        """The session id that it answers with."""
        if request.epoch == 0:
            self.partitions, self._epoch = {}, 0
        assert (request.session_id, request.epoch) == (SESSION_ID if self._epoch else 0, self._epoch)
        assert set(request.forgotten) <= self.partitions.keys()
        self._epoch += 1
        self.partitions.update(request.partitions)
        for key in request.forgotten:
            del self.partitions[key]
        return SESSION_ID


steps = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.sampled_from("abc"), st.integers(0, 2)),
        st.tuples(st.just("leave"), st.sampled_from("abc"), st.just(0)),
        st.tuples(st.sampled_from(["request", "lose"]), st.just(""), st.just(0)),
    ),
    max_size=30,
)


@given(steps)
def test_the_broker_fetches_what_is_wanted(plan: list[tuple[str, str, int]]) -> None:
    session, broker = FetchSession[str](), Broker()
    wanted: dict[str, Position] = {}
    for step, key, offset in [*plan, ("request", "", 0)]:
        match step:
            case "want":
                wanted[key] = (offset, 0, -1)
                session.want(key, wanted[key])
            case "leave":
                wanted.pop(key, None)
                session.leave(key)
            case "lose":
                session.request()
                session.lost()
            case _:
                session.answered(broker.fetch(session.request()))
                assert broker.partitions == wanted
        assert session.wants_any == bool(wanted)


def test_a_request_names_only_what_has_changed() -> None:
    session = FetchSession[int]()
    for key in range(1000):
        session.want(key, (0, 0, -1))
    assert len(session.request().partitions) == 1000
    session.answered(SESSION_ID)
    session.want(3, (5, 0, 0))
    session.want(4, (0, 0, -1))
    session.leave(8)
    request = session.request()
    assert (request.partitions, request.forgotten) == ({3: (5, 0, 0)}, (8,))


def test_a_partition_that_is_wanted_again_stays_in_the_session() -> None:
    session, broker = FetchSession[str](), Broker()
    session.want("a", (0, 0, -1))
    session.answered(broker.fetch(session.request()))
    session.leave("a")
    session.want("a", (5, 0, -1))
    request = session.request()
    assert (request.partitions, request.forgotten) == ({"a": (5, 0, -1)}, ())
    broker.fetch(request)
    assert broker.partitions == {"a": (5, 0, -1)}


def test_without_a_session_every_request_is_a_full_one() -> None:
    session = FetchSession[str]()
    session.want("a", (0, 0, -1))
    for _ in range(2):
        request = session.request()
        assert (request.session_id, request.epoch, list(request.partitions)) == (0, 0, ["a"])
        session.answered(0)


class Answering(Mutable):
    """A connection to a broker that answers fetches in order."""

    def __init__(self, *answers: bytes) -> None:
        super().__init__()
        self.versions = {1: (0, 17)}
        self.address = "broker:9092"
        self.request_timeout_ms = 30_000
        self._answers = list(answers)

    def send(self, *_: Any) -> Awaitable[memoryview]:
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        answer.set_result(memoryview(bytearray(self._answers.pop(0))))
        return answer

    async def answer(self, sent: Awaitable[memoryview], *_: object) -> memoryview:
        return await sent


def answer(*, throttle_ms: int = 0, error_code: int = 0, partition: bool = False) -> bytes:
    row = b"\x02" + UUID(int=1).bytes + b"\x02" + b"\x00" * 6 + b"\x00" * 24 + b"\x00" + b"\xff" * 4 + b"\x01\x00\x00"
    return throttle_ms.to_bytes(4) + error_code.to_bytes(2) + b"\x00" * 4 + (row if partition else b"\x01") + b"\x00"


def fetch_one(broker: Answering) -> Awaitable[fetch_produce.FetchedPartition]:
    limits = fetch_api.FetchLimits(0, 1, 1024, 1024, fetch_api.READ_UNCOMMITTED)
    topic = fetch_api.TopicOnWire("t", UUID(int=1))
    return fetch_api.fetch_one(cast(Connection, broker), topic, 0, (0, -1, -1), limits)


async def test_a_fetch_over_quota_is_put_again() -> None:
    broker = Answering(answer(throttle_ms=1), answer(throttle_ms=2), answer(partition=True))
    row = await fetch_one(broker)
    assert (row.partition, row.error_code, broker.muted_ms) == (0, 0, 3)


async def test_a_refused_fetch_is_an_error_that_says_so() -> None:
    with pytest.raises(RetriableError, match=r"broker:9092 refuses a fetch: .*\(56\)"):
        await fetch_one(Answering(answer(error_code=56)))
