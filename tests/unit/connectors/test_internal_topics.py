"""Topics of our own that a right is missing for: none of their readers takes them for empty."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from connect.core.errors import SecurityError
from connect.kafka.cluster import Cluster, ClusterMetadata, TopicMetadata
from connectors.checkpoint.offset_translation import OffsetSyncReader
from connectors.client import MirrorClient
from connectors.internal_topics import read_positions, read_stored_offsets
from connectors.offset_map.reader import MapReader

TOPIC = "mm2-offset-map.us.internal"


class Eu:
    name = "eu"

    async def metadata(self, names: set[str]) -> ClusterMetadata:
        return ClusterMetadata(None, 0, {}, {name: TopicMetadata(name, None, 29, {}) for name in names})

    async def topics(self, names: set[str]) -> ClusterMetadata:
        return await Cluster.topics(cast(Any, self), names)


@pytest.mark.parametrize(
    "read",
    [
        lambda eu: MapReader(eu, TOPIC).follow(),
        lambda eu: OffsetSyncReader(eu, TOPIC, only_last=False).follow(),
        lambda eu: read_stored_offsets(eu, TOPIC),
        lambda eu: read_positions(eu, TOPIC, "MirrorSourceConnector"),
    ],
)
async def test_a_topic_that_cannot_be_seen_does_not_count_as_empty(read: Callable[[Any], Awaitable[Any]]) -> None:
    with pytest.raises(SecurityError, match=rf"grant DESCRIBE on topic {TOPIC}"):
        await read(Eu())


async def test_a_client_tells_that_it_may_not_see_the_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without places would let a group begin anew."""
    eu = Eu()
    monkeypatch.setattr("connectors.client._cluster", lambda *_: eu)
    with pytest.raises(SecurityError, match=r"grant DESCRIBE on topic us\.checkpoints\.internal"):
        await MirrorClient({}).remote_consumer_offsets("readers", "us", 5)
