"""What an administrator is told of topics that a cluster refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from connect.core.errors import RetriableError
from connect.core.model import NewTopic
from connect.kafka.admin import Admin
from connect.kafka.cluster import ClusterMetadata
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
    row = SimpleNamespace(name="orders", error_code=38, error_message="1 broker")
    told = Admin(settings, "target", **words)._outcome("create", "CREATE on", row)
    assert str(told) == (
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
