"""A dedicated mirror of Java's and one of ours as two nodes of a flow: either leads, either stands in, none is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.kit.brokers import KafkaCluster
from tests.kit.flow_nodes import DEADLINE_S, FlowNodes
from tests.kit.processes import wait_until

pytestmark = pytest.mark.integration

_PROPERTIES: Final = {
    "dedicated.mode.enable.internal.rest": "true",
    # Java promises no lease: its work waits so long for it to come back.
    "eu.scheduled.rebalance.max.delay.ms": "5000",
    "eu.offset.flush.interval.ms": "1000",
}
#: Of a Java that a signal has ended.
_SIGTERM: Final = 143


def _nodes(us: KafkaCluster, eu: KafkaCluster, folder: Path) -> FlowNodes:
    return FlowNodes(us, eu, folder, nodes=2, java="b", records_per_s=500, properties=_PROPERTIES)


def test_java_joins_a_flow_of_ours(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    with _nodes(us, eu, tmp_path) as flow:
        _share(flow)
        _end(flow)


def _share(flow: FlowNodes) -> None:
    flow.start("a")
    flow.await_shared("a")
    _join(flow, "b", leader="a")


def _join(flow: FlowNodes, node: str, *, leader: str) -> None:
    flow.start(node)
    flow.await_shared("a", "b")
    assert flow.leader() == leader
    flow.await_copying("a", "b")


def _end(flow: FlowNodes) -> None:
    flow.writer.stop()
    report = flow.compare()
    assert flow.nodes["b"].stop() == _SIGTERM
    assert flow.nodes["a"].stop() == 0
    assert report.total("gaps") == report.total("damaged") == 0, report.summary()


@pytest.mark.long
def test_either_stands_in_for_the_other(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    with _nodes(us, eu, tmp_path) as flow:
        _share(flow)

        # ours leads, and Java is killed
        flow.nodes["b"].kill()
        flow.await_shared("a")
        flow.await_copying("a")

        # Java is back, and leads when ours goes
        flow.start("b")
        flow.await_shared("a", "b")
        assert flow.nodes["a"].stop() == 0
        flow.await_shared("b")
        flow.await_copying("b")

        # ours joins Java
        _join(flow, "a", leader="b")
        late = f"late-{flow.alias}"
        flow.make_topic(late)
        wait_until(lambda: f"{late}-0" in flow.assigned(), DEADLINE_S, "the flow has a new topic")
        flow.await_shared("a", "b")
        _end(flow)
