"""UNKNOWN_SERVER_ERROR, which a broker says of whatever it has no code for: what only reads may ask again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.core.errors import PermanentError, RetriableError
from connect.kafka import concurrency
from connect.kafka.authorization import AclBinding, create_acls, describe_acls
from connect.kafka.cluster import Cluster
from connect.kafka.log import topic_admin
from connect.kafka.log.active_producers import ActiveProducer, active_producers
from connect.kafka.log.committed_offsets import Committed, committed, list_groups
from connect.kafka.log.offsets import LATEST, list_offset

UNEXPLAINED = -1
ORDERS = "orders", 0
RULE = AclBinding("TOPIC", "orders", "LITERAL", "User:a", "*", "READ", "ALLOW")


class Broker:
    """A cluster of one, whose first answer is the error."""

    name = "eu"
    brokers = (1,)
    _lookup_timeout_ms = request_timeout_ms = 1

    def __init__(self) -> None:
        self._codes = [UNEXPLAINED]

    def leader(self, *_: object) -> int:
        return 1

    async def connection(self, *_: object) -> Broker:
        return self

    def forget_coordinator(self, *_: object) -> None:
        pass

    any_connection = coordinator = metadata = topics = connection

    def leader_epoch(self, *_: object) -> int:
        return 5

    def version_of(self, _: object) -> int:
        return 3

    async def call(self, request: Any, *_: object, **__: object) -> Any:
        code = self._codes.pop() if self._codes else 0
        state = SimpleNamespace(producer_id=7, producer_epoch=1, last_sequence=3, current_txn_start_offset=-1)
        row = SimpleNamespace(
            error_code=code, error_message="", partition_index=0, offset=40, committed_offset=40, metadata="",
            active_producers=[state], resource_name="orders", configs=[],
        )  # fmt: skip
        topic = SimpleNamespace(name="orders", partitions=[row])
        reported: Mapping[str, Mapping[str, Any]] = {
            "ListOffsets": {"topics": [topic]},
            "DescribeProducers": {"topics": [topic]},
            "OffsetFetch": {"error_code": 0, "topics": [topic]},
            "ListGroups": {"error_code": code, "groups": []},
            "DescribeConfigs": {"results": [row]},
            "IncrementalAlterConfigs": {"responses": [row]},
            "DescribeAcls": {"error_code": code, "error_message": "", "resources": []},
            "CreateAcls": {"results": [row]},
            "FindCoordinator": {"error_code": code, "node_id": 1, "host": "", "port": 0},
        }
        return SimpleNamespace(**reported[type(request).__name__.removesuffix("Request")])


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "_FIRST_PAUSE_S", 0.0)


async def test_what_only_reads_asks_again() -> None:
    asked: list[tuple[Callable[[Any], Awaitable[object]], object]] = [
        (lambda one: committed(one, "readers"), {ORDERS: Committed(40, "")}),
        (list_groups, {}),
        (lambda one: active_producers(one, [ORDERS]), {ORDERS: {7: ActiveProducer(1, 3, -1)}}),
    ]
    for ask, found in asked:
        assert await ask(Broker()) == found


async def test_what_only_reads_is_for_its_caller_to_ask_again() -> None:
    with pytest.raises(RetriableError, match="orders-0: the broker refuses to list offsets"):
        await list_offset(cast(Cluster, Broker()), ORDERS, LATEST)
    with pytest.raises(RetriableError, match="cannot describe ACLs"):
        await describe_acls(cast(Cluster, Broker()))
    with pytest.raises(RetriableError, match="no coordinator for group readers"):
        await Cluster.find_coordinator(cast(Any, Broker()), "readers", "group")
    assert isinstance((await topic_admin.describe(cast(Cluster, Broker()), ["orders"]))["orders"], RetriableError)


async def test_what_changes_something_does_not() -> None:
    outcomes = await topic_admin.alter(cast(Cluster, Broker()), {"orders": {"retention.ms": "1"}})
    assert isinstance(outcomes["orders"], PermanentError)
    assert isinstance((await create_acls(cast(Cluster, Broker()), [RULE]))[RULE], PermanentError)
