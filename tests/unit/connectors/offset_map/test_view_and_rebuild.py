"""What cannot be rebuilt at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final, cast

import crc32c
import pytest

from connect.core.errors import ConfigError, PermanentError
from connect.kafka.cluster import Cluster
from connect.wire import fetch_produce, records
from connectors.config.client_config import FlowClients
from connectors.config.connector_configs import source_settings
from connectors.formats.types import TopicPartition
from connectors.offset_map import view_and_rebuild
from connectors.offset_map.view_and_rebuild import LogFeed, rebuild_maps

_CODEC_BYTE: Final = 22
_TRANSACTIONAL_CONTROL: Final = 0x30


@pytest.mark.parametrize(
    ("props", "key"),
    [
        ({"transform.sql": "SELECT upper(value) AS value FROM records"}, "transform.sql"),
        ({"transforms": "lean", "transforms.lean.type": "DropHeaders"}, "transforms"),
    ],
)
async def test_a_flow_whose_copies_are_unlike_their_sources_is_refused(props: dict[str, str], key: str) -> None:
    connector = {
        "name": "m",
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "source.cluster.alias": "us",
        "target.cluster.alias": "eu",
        **props,
    }
    settings = source_settings(connector, {"offset.storage.topic": "offsets"})
    with pytest.raises(ConfigError, match="cannot be rebuilt") as refused:
        await rebuild_maps(settings, cast(FlowClients, None), lambda _: True, lambda _: None)
    assert refused.value.key == key


async def test_a_batch_that_no_codec_opens_is_named() -> None:
    batch = bytearray(records.build([records.Record(7, 1, b"k", b"v" * 100, [])], 0, -1, -1, -1))
    batch[_CODEC_BYTE] |= 1  # it says gzip, and is not
    feed = LogFeed(
        cast(Cluster, SimpleNamespace(name="us")), TopicPartition("orders", 0), None, 8, read_committed=False
    )
    with pytest.raises(PermanentError, match="a batch cannot be decoded"):
        feed._items(memoryview(bytes(batch)), False)


class Log:
    """Answers fetches with the batches at or behind an offset, one at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, batches: list[tuple[int, bytes]], top: int) -> None:
        self.batches = batches  # the last offset of each, and its bytes
        self.fetched: list[int] = []

        async def begin(*_: object) -> int:
            return 3

        monkeypatch.setattr(view_and_rebuild, "list_offset", begin)
        cluster = cast(Cluster, SimpleNamespace(name="us"))
        self.feed = LogFeed(cluster, TopicPartition("orders", 0), None, top, read_committed=True)
        monkeypatch.setattr(self.feed, "_fetch", self.fetch)

    async def fetch(self, position: int) -> fetch_produce.FetchedPartition:
        self.fetched.append(position)
        found = next((batch for last, batch in self.batches if last >= position), b"")
        return fetch_produce.FetchedPartition(b"orders", 0, 0, 100, 100, 3, (), -1, memoryview(found), None, None)


def of_one(offset: int, *, last: int | None = None, attributes: int = 0) -> tuple[int, bytes]:
    """``last``: where the batch ends, of which compaction has left the first record."""
    ends = offset if last is None else last
    batch = records.build([records.Record(offset, 1, bytes(4), b"v", [])], 0, 7, 0, -1)
    batch[0:8] = offset.to_bytes(8, "big")
    batch[_CODEC_BYTE] |= attributes
    batch[23:27] = (ends - offset).to_bytes(4, "big")
    batch[17:21] = crc32c.crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return ends, bytes(batch)
