"""What cannot be rebuilt at all."""

from types import SimpleNamespace
from typing import Final, cast

import pytest

from connect.core.errors import ConfigError, PermanentError
from connect.kafka.cluster import Cluster
from connect.wire import records
from connectors.config.client_config import FlowClients
from connectors.config.connector_configs import source_settings
from connectors.formats.types import TopicPartition
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
