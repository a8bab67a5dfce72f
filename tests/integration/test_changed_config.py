"""What a worker keeps of a connector whose config changes: nothing of the config before counts any more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from connect.api.source import ConnectorHere, TaskReport
from connect.embedded.brokers import KafkaCluster
from connect.kafka.concurrency import wall_ms
from connectors.formats.types import RUNNING, ProducerIdAndEpoch, TopicPartition
from connectors.inspection.changes_report import changes_report
from connectors.source.lag_watch import LagWatch
from connectors.source.plugin import MirrorSource
from connectors.source.positions.ledger import Ledger
from connectors.source.positions.partition_pairs import PartitionPair, position_of
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

    def props(self, topic: str, **more: str) -> dict[str, str]:
        return {**PROPS, **self.clusters, "topics": topic, **more}

    def runs_at_rest(self, source: TopicPartition) -> None:
        """Add a task that has copied the whole of an empty partition, and fetches from it."""
        ledger = Ledger([pair := PartitionPair(source, None, source, None)])
        task = SimpleNamespace(ledger=ledger, news=ledger.reader(), state="running")
        task.meters = SimpleNamespace(fetched_ms=wall_ms() + 3_600_000)
        entry = ledger.entries[source]
        plan = pair.plan(0, -1, 0, pipelined=False)
        entry.position, entry.high_watermark = position_of(plan, "", ProducerIdAndEpoch(7, 0)), 0
        entry.become(RUNNING)
        self.host.running[NAME, 0] = cast(Any, task)


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


async def test_the_lag_names_the_remote_topics_of_now_even_of_partitions_at_rest(changed: Changed) -> None:
    watch, topic = LagWatch(changed.host, dict), changed.topics[0]
    changed.runs_at_rest(TopicPartition(topic, 0))

    async def sees(separator: str) -> bool:
        props = changed.props(topic, **{"replication.policy.separator": separator})
        report = TaskReport(0, "RUNNING", "", {"task.assigned.partitions": f"{topic}-0"})
        await watch._look(NAME, lambda: ConnectorHere(props, [report]))
        seen = changed.host.seen.get(NAME)
        return seen is not None and [one.target_topic for one in seen.lags.values()] == [f"us{separator}{topic}"]

    await until(partial(sees, "."), "the source answers")
    assert await sees("-")
    await watch.stop()


async def test_a_plan_is_that_of_the_topics_selected_now(changed: Changed) -> None:
    connector = MirrorSource(changed.host, changes_report)
    for topic in changed.topics:
        found = await connector.report("plan", changed.props(topic), [], {}, cast(Any, None))
        assert found is not None
        assert [row for row in found["rows"] if f"us.{topic}" in row], found["rows"]
