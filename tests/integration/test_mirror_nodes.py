"""A dedicated mirror on two or three nodes: one flow, one file, and what each does for the others."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.kit.brokers import KafkaCluster
from tests.kit.flow_group import SOURCE
from tests.kit.flow_nodes import DEADLINE_S, FlowNodes
from tests.kit.moving import COMPACTED, KINDS, Feed, Processed, end_of, not_once, read
from tests.kit.processes import wait_until
from tests.kit.stock import Stock
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_INTERNAL: Final = {"dedicated.mode.enable.internal.rest": "true"}
_PUBLIC: Final = {"dedicated.mode.enable.public.rest": "true"}
_EXACTLY_ONCE: Final = {
    **_INTERNAL,
    "eu.exactly.once.source.support": "enabled",
    "sync.topic.configs.enabled": "true",
    "sync.topic.configs.interval.seconds": "1",
    "tasks.max": "3",
}
#: Between two rounds of records and transactions at the source.
_FEED_PAUSE_S: Final = 0.1
#: The session ends after six seconds; a machine of two cores is busy with all processes at once.
_STANDS_IN_WITHIN_S: Final = 6.0 + 24.0


@pytest.mark.long
def test_two_nodes_share_a_flow_and_stand_in_for_each_other(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    with FlowNodes(us, eu, tmp_path, properties=_INTERNAL) as flow:
        flow.start("a", "b")
        shared = flow.await_shared("a", "b")
        flow.await_copying("a", "b")
        assert flow.compare().total("markers") == 0, "tasks move by handing over"

        # the one with the connector is killed
        struck = shared[SOURCE]
        (other,) = {"a", "b"} - {struck}
        killed_s = time.monotonic()
        flow.nodes[struck].kill()
        flow.await_shared(other)
        flow.await_copying(other)
        taken_s = time.monotonic() - killed_s
        assert taken_s < _STANDS_IN_WITHIN_S, f"{other} stood in after {taken_s:.1f} s"
        proven = flow.nodes[other].resumed()
        assert proven, "what it had in flight is proven"
        assert not [one for one in proven if one.at_least_once]

        # it comes back, gets its share, and the other one hands the rest over as it goes
        flow.start(struck)
        flow.await_shared("a", "b")
        flow.await_copying("a", "b")
        markers = flow.compare().total("markers")
        back = flow.nodes[struck].log_end()
        assert flow.nodes[other].stop() == 0
        flow.await_shared(struck)
        flow.await_copying(struck)
        assert flow.nodes[struck].resumed(back) == [], "what was handed over needs no proof"
        flow.writer.stop()
        report = flow.compare()
        assert report.is_exact, report.summary()
        assert report.total("markers") == markers, "what is handed over is not fenced"
        assert flow.nodes[struck].stop() == 0
        for node in flow.nodes.values():
            node.assert_gone()


@pytest.mark.long
def test_who_does_not_lead_tells_the_leader_and_a_new_leader_reads_its_file(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path
) -> None:
    with FlowNodes(us, eu, tmp_path, records_per_s=50, properties=_PUBLIC) as flow:
        flow.make_source_follow()
        flow.start("a")
        flow.await_shared("a")
        flow.start("b")
        assert flow.await_shared("a", "b")[SOURCE] == "b"
        assert flow.leader() == "a"
        late = f"late-{flow.alias}"
        flow.make_topic(late)
        wait_until(lambda: f"{late}-0" in flow.assigned(), DEADLINE_S, "b has told a of a new topic")

        # what users change over REST stands until another node leads
        config = flow.ask("b", "GET", f"/connectors/{SOURCE}/config")
        flow.ask("b", "PUT", f"/connectors/{SOURCE}/config", {**config, "tasks.max": "1"})
        wait_until(lambda: flow.group.configs().task_count(SOURCE) == 1, DEADLINE_S, "there is one task")
        assert flow.nodes["a"].stop() == 0
        flow.await_shared("b")
        assert flow.group.configs().task_count(SOURCE) == 2
        assert flow.nodes["b"].stop() == 0

        # the same file touches nothing, another one what it changes
        generation = flow.group.configs().task_generation(SOURCE)
        flow.start("b")
        flow.await_shared("b")
        assert flow.nodes["b"].stop() == 0
        assert flow.group.configs().task_generation(SOURCE) == generation
        flow.configure({"tasks.max": "3"})
        flow.start("b")
        flow.await_shared("b", tasks=3)
        assert flow.nodes["b"].stop() == 0


@pytest.mark.long
def test_nodes_that_cannot_ask_each_other_name_the_setting(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    with FlowNodes(us, eu, tmp_path, records_per_s=50, properties={}) as flow:
        flow.make_source_follow()
        flow.start("a")
        wait_until(lambda: len(flow.group.running()) == 3, DEADLINE_S, "a runs the flow")
        flow.start("b")
        flow.group.await_round(2, DEADLINE_S)
        wait_until(lambda: len(set(flow.group.running().values())) == 2, DEADLINE_S, "both have work")
        flow.make_topic(f"late-{flow.alias}")
        sentence = ("Failed to configure the tasks of MirrorSourceConnector", "dedicated.mode.enable.internal.rest")
        flow.nodes["b"].await_line(0, sentence, DEADLINE_S)
        # the tasks that there are go on, and nothing hangs
        assert len(flow.group.running()) == 3
        assert [node.stop() for node in flow.nodes.values()] == [0, 0]


@pytest.mark.long
def test_three_nodes_with_exactly_once(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    """Kafka's ``DedicatedMirrorIntegrationTest.testMultiNodeCluster``, with transactions and a killed node."""
    with contextlib.ExitStack() as exits:
        flow = exits.enter_context(FlowNodes(us, eu, tmp_path, nodes=3, records_per_s=500, properties=_EXACTLY_ONCE))
        committed = {f"{flow.alias}.consumer.isolation.level": "read_committed"}
        flow.configure(committed)
        stock = exits.enter_context(contextlib.closing(Stock(eu)))
        feed = Feed(us.bootstrap, flow.alias)
        asyncio.run(feed.make())
        feeding = exits.enter_context(ThreadPoolExecutor(1)).submit(asyncio.run, feed.write(100_000, _FEED_PAUSE_S))
        exits.callback(feed.stop)
        flow.start("a", "b", "c")
        shared = flow.await_shared("a", "b", "c", tasks=3)
        flow.await_copying("a", "b", "c")
        assert flow.compare().total("markers") > 0, "records are copied in transactions"

        # the one with the connector is killed; those that are left find a topic, and make it as it is at the source
        struck = shared[SOURCE]
        left = sorted({"a", "b", "c"} - {struck})
        flow.nodes[struck].kill()
        late = f"late-{flow.alias}"
        asyncio.run(make_topics(us.bootstrap, {late: 2}, {"retention.ms": "86400001"}))
        flow.await_shared(*left, tasks=3)
        flow.await_copying(*left)
        asyncio.run(stock.until_partitions(f"{flow.alias}.{late}", 2))
        asyncio.run(stock.until_configs(f"{flow.alias}.{late}", {"retention.ms": "86400001"}))

        # it comes back and gets its share
        flow.start(struck)
        flow.await_shared("a", "b", "c", tasks=3)
        flow.await_copying("a", "b", "c")
        flow.writer.stop()
        feed.stop()
        feeding.result()
        report = flow.compare()
        assert report.is_exact, report.summary()
        for kind in KINDS:
            _is_copied_once(eu, f"{flow.alias}.{feed.topics[kind]}", kind, feed)
        assert [node.stop() for node in flow.nodes.values()] == [0, 0, 0]


def _is_copied_once(eu: KafkaCluster, remote: str, kind: str, feed: Feed) -> None:
    """Every committed record is once in the remote topic, in its order, once all have come."""
    written = feed.written[kind]

    def found() -> list[Processed]:
        end = asyncio.run(end_of(eu.bootstrap, remote))
        return [*asyncio.run(read(eu.bootstrap, remote, 0, end)).values()]

    wait_until(lambda: found()[-1:] == written[-1:], DEADLINE_S, f"{remote} has its last record")
    assert not_once(found(), written, is_compacted=kind == COMPACTED) == []
    assert kind == COMPACTED or found() == written
