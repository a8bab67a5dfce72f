"""The mirror that the tests of this folder share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.integration.flows.prepare import prepare_shapes
from tests.kit.brokers import KafkaCluster
from tests.kit.shared_mirror import LIVE_PARTITIONS, LIVE_TOPIC, REST_TOPIC, SharedMirror, start_shared
from tests.kit.topics import make_topics


@pytest.fixture(scope="package")
def shared(us: KafkaCluster, eu: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedMirror]:
    asyncio.run(prepare_shapes(us, eu))
    asyncio.run(make_topics(us.bootstrap, {LIVE_TOPIC: LIVE_PARTITIONS, REST_TOPIC: 1}))
    with start_shared(us, eu, tmp_path_factory.mktemp("flows")) as running:
        yield running
