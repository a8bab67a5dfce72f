"""What an administrator is told of topics that a cluster refuses."""

from __future__ import annotations

from typing import Any

import kafka.errors
import pytest

from connect.core.errors import RetriableError
from connect.kafka.admin import Admin, NewTopic
from connect.kafka.settings import connection_settings


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ({}, "set replication.factor and offset.storage.replication.factor lower"),
        (
            {"fewer_replicas": "set their default.replication.factor lower"},
            "set their default.replication.factor lower",
        ),
    ],
)
def test_too_many_replicas_are_told_in_the_words_of_who_asks(words: dict[str, Any], advice: str) -> None:
    settings = connection_settings({"bootstrap.servers": "a:9092"}, client_id="c", where="the target")
    row = {"name": "orders", "error_code": 38, "error_message": "1 broker"}
    told = Admin(settings, "target", **words)._outcome("create", "CREATE on", row)
    assert str(told) == (
        "cluster target (a:9092): cannot create topic orders: INVALID_REPLICATION_FACTOR (38): 1 broker; "
        f"start more brokers, or {advice}"
    )


class _KnowsNoBroker:
    """As kafka-python's client when the controller is a broker that its metadata does not list."""

    def __init__(self) -> None:
        self.is_closed = False

    def create_topics(self, *_: Any, **__: Any) -> None:
        raise kafka.errors.UnknownBrokerIdError(2)

    def close(self) -> None:
        self.is_closed = True


async def test_a_broker_unknown_to_the_clients_metadata_is_asked_for_again_with_fresh_metadata() -> None:
    settings = connection_settings({"bootstrap.servers": "a:9092"}, client_id="c", where="the target")
    admin = Admin(settings, "target")
    admin._client = client = _KnowsNoBroker()
    with pytest.raises(RetriableError, match="cannot create topics"):
        await admin.create_topics([NewTopic("orders")])
    assert client.is_closed and admin._client is None
