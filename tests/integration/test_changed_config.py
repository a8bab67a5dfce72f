"""What a worker keeps of a connector whose config changes: nothing of the config before counts any more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, cast
from uuid import uuid4

import pytest

from connect.api.source import ConnectorHere
from connect.embedded.brokers import KafkaCluster
from connectors.inspection.changes_report import changes_report
from connectors.source.lag_watch import LagWatch
from connectors.source.plugin import MirrorSource
from connectors.source.worker_context import MirrorHost
from tests.kit.members import until
from tests.kit.topics import make_topics

pytestmark = pytest.mark.integration

NAME = "MirrorSourceConnector"


class Changed:
    """Two topics of the source, of which the config selects one after the other."""

    def __init__(self, us: KafkaCluster, eu: KafkaCluster) -> None:
        self.topics = [f"changed-{uuid4().hex}" for _ in range(2)]
        self.host = MirrorHost({**WORKER, "bootstrap.servers": eu.bootstrap}, *cast(Any, [None] * 3))
        self.clusters = {
            "source.cluster.bootstrap.servers": us.bootstrap,
            "target.cluster.bootstrap.servers": eu.bootstrap,
        }

    def props(self, topic: str) -> dict[str, str]:
        return {**PROPS, **self.clusters, "topics": topic}


WORKER = {"group.id": "changed", "client.id": "", "offset.storage.topic": f"offsets-{uuid4().hex}"}
PROPS = {"name": NAME, "connector.class": NAME, "source.cluster.alias": "us", "target.cluster.alias": "eu"}


@pytest.fixture
async def changed(us: KafkaCluster, eu: KafkaCluster) -> AsyncIterator[Changed]:
    made = Changed(us, eu)
    await make_topics(us.bootstrap, dict.fromkeys(made.topics, 1))
    yield made
    await made.host.kept.close()


async def test_the_lag_is_that_of_the_topics_selected_now(changed: Changed) -> None:
    watch = LagWatch(changed.host, dict)

    async def sees(topic: str) -> bool:
        await watch._look(NAME, lambda: ConnectorHere(changed.props(topic), [], is_stopped=True))
        seen = {one.topic for one in changed.host.seen[NAME].lags}
        return seen.intersection(changed.topics) == {topic}  # heartbeats of other tests are selected too

    for topic in changed.topics:  # the watch does not know at once that the source answers
        await until(partial(sees, topic), f"the lag is that of {topic}")
    await watch.stop()


async def test_a_plan_is_that_of_the_topics_selected_now(changed: Changed) -> None:
    connector = MirrorSource(changed.host, changes_report)
    for topic in changed.topics:
        found = await connector.report("plan", changed.props(topic), [], {}, cast(Any, None))
        assert found is not None
        assert [row for row in found["rows"] if f"us.{topic}" in row], found["rows"]
