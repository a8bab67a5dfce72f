"""Topics that a cluster refuses, lacks or hides."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.core.errors import HeliographError, RetriableError
from connect.core.model import FACTOR_KEYS, NewTopic
from connect.kafka.cluster import Cluster, ClusterMetadata, NotAuthorized, TopicMetadata
from connect.kafka.connection import RequestTimedOut
from connect.kafka.framing_and_sasl import ConnectionLost
from connect.kafka.log import topic_admin as module
from connect.kafka.log.topic_admin import Admin, known_topic
from connect.kafka.security.connection_settings import connection_settings


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ({}, f"set {', '.join(FACTOR_KEYS)} lower"),
        (
            {"fewer_replicas": "set their default.replication.factor lower"},
            "set their default.replication.factor lower",
        ),
    ],
)
def test_too_many_replicas_are_told_in_the_words_of_who_asks(words: dict[str, Any], advice: str) -> None:
    settings = connection_settings({"bootstrap.servers": "a:9092"}, client_id="c", where="the target")
    row = SimpleNamespace(name="orders", error_code=38, error_message="1 broker")
    reported = Admin(settings, "target", **words)._outcomes("create", "CREATE", [row])["orders"]
    assert str(reported) == (
        "cluster target (a:9092): cannot create topic orders: INVALID_REPLICATION_FACTOR (38): 1 broker; "
        f"start more brokers, or {advice}"
    )


async def test_a_controller_that_has_just_left_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = connection_settings({"bootstrap.servers": "a:9092"}, client_id="c", where="the target")
    admin = Admin(settings, "target")

    async def metadata(_: object) -> ClusterMetadata:
        return ClusterMetadata(None, 2, {}, {})

    monkeypatch.setattr(admin._cluster, "metadata", metadata)
    with pytest.raises(RetriableError, match="has no broker 2 at the moment"):
        await admin.create_topics([NewTopic("orders")])


class Brokers:
    """A cluster whose metadata names each of ``controllers`` in turn, then the last one again; a controller answers
    every topic with its code in ``codes``, or raises it. ``asked`` has who was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, controllers: list[int], codes: dict[int, Any]) -> None:
        settings = connection_settings({"bootstrap.servers": "a:9092"}, client_id="c", where="the target")
        self.admin = Admin(settings, "target")
        self.asked: list[int] = []

        async def metadata(_: object) -> ClusterMetadata:
            return ClusterMetadata(None, controllers.pop(0) if len(controllers) > 1 else controllers[0], {}, {})

        async def connection(node_id: int, *_: object) -> Any:
            async def call(*_: object, **__: object) -> Any:
                self.asked.append(node_id)
                if isinstance(codes[node_id], Exception):
                    raise codes[node_id]
                rows = [SimpleNamespace(name="orders", error_code=codes[node_id])]
                return SimpleNamespace(topics=rows, results=rows, responses=rows)

            return SimpleNamespace(call=call)

        monkeypatch.setattr(self.admin._cluster, "metadata", metadata)
        monkeypatch.setattr(self.admin._cluster, "connection", connection)

    async def ask(self, verb: str) -> dict[str, HeliographError | None]:
        if verb == "create":
            return await self.admin.create_topics([NewTopic("orders")])
        if verb == "grow":
            return await self.admin.create_partitions({"orders": 2})
        return await self.admin.delete_topics(["orders"])


@pytest.mark.parametrize("verb", ["create", "grow", "delete"])
async def test_the_next_controller_is_asked_if_one_has_handed_over(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    brokers = Brokers(monkeypatch, [0, 0, 1], {0: 41, 1: 0})
    assert await brokers.ask(verb) == {"orders": None}
    assert brokers.asked == [0, 0, 1]


async def test_a_cluster_that_finds_no_controller_is_not_asked_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NOT_CONTROLLER_PAUSES_S", (0.0, 0.0, 0.0))
    brokers = Brokers(monkeypatch, [0], {0: 41})
    assert isinstance((await brokers.ask("create"))["orders"], RetriableError)
    assert brokers.asked == [0, 0, 0, 0]


@pytest.mark.parametrize("error", [RequestTimedOut("late"), ConnectionLost("closed")])
async def test_a_request_without_an_answer_is_not_repeated(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The controller may have carried it out."""
    brokers = Brokers(monkeypatch, [0], {0: error})
    with pytest.raises(type(error)):
        await brokers.ask("delete")
    assert brokers.asked == [0]


async def test_a_slow_request_to_the_controller_holds_up_no_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection answers in order, and is closed by a look-up that is not answered in time."""
    brokers = Brokers(monkeypatch, [0], {0: 0})
    purposes: list[tuple[object, ...]] = []
    connection = brokers.admin._cluster.connection

    async def noted(node_id: int, *purpose: str) -> Any:
        purposes.append(purpose)
        return await connection(node_id)

    monkeypatch.setattr(brokers.admin._cluster, "connection", noted)
    for verb in ("create", "grow", "delete"):
        await brokers.ask(verb)
    assert purposes == [("controller",)] * 3


class Eu:
    """Tells a code for the topic, or nothing; ``topics`` judges it as a cluster does."""

    name = "eu"

    def __init__(self, code: int | None) -> None:
        self._code = code

    async def metadata(self, names: set[str]) -> ClusterMetadata:
        topics = {} if self._code is None else {name: TopicMetadata(name, None, self._code, {}) for name in names}
        return ClusterMetadata(None, 0, {}, topics)

    async def topics(self, names: set[str]) -> ClusterMetadata:
        return await Cluster.topics(cast(Any, self), names)


@pytest.mark.parametrize("code", [None, 3])
async def test_a_topic_that_is_missing_is_none(code: int | None) -> None:
    assert await known_topic(cast(Any, Eu(code)), "orders") is None


async def test_a_topic_that_cannot_be_seen_is_not_missing() -> None:
    with pytest.raises(NotAuthorized, match="grant DESCRIBE on topic orders"):
        await known_topic(cast(Any, Eu(29)), "orders")
    with pytest.raises(RetriableError, match=r"LEADER_NOT_AVAILABLE"):
        await known_topic(cast(Any, Eu(5)), "orders")
