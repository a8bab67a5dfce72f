"""What is not there, and what cannot be seen."""

from __future__ import annotations

from typing import Any, cast

import pytest

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, ClusterMetadata, NotAuthorized, TopicMetadata
from connect.kafka.log.topic_admin import known_topic


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


async def test_a_topic_that_is_there() -> None:
    assert await known_topic(cast(Any, Eu(0)), "orders") == TopicMetadata("orders", None, 0, {})


async def test_a_topic_that_cannot_be_seen_is_not_missing() -> None:
    with pytest.raises(NotAuthorized, match="grant DESCRIBE on topic orders"):
        await known_topic(cast(Any, Eu(29)), "orders")
    with pytest.raises(RetriableError, match=r"LEADER_NOT_AVAILABLE"):
        await known_topic(cast(Any, Eu(5)), "orders")
