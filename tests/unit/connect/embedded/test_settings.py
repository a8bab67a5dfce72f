from __future__ import annotations

from pathlib import Path

from connect.embedded.cluster_config import NodePorts, broker_properties


def test_a_node_alone_asks_for_no_replicas() -> None:
    made = broker_properties(1, [NodePorts(100, 101)], Path("/data"), {})
    assert made["listeners"] == "CONTROLLER://127.0.0.1:101,PLAINTEXT://127.0.0.1:100"
    assert made["controller.quorum.voters"] == "1@127.0.0.1:101"
    assert made["offsets.topic.replication.factor"] == made["transaction.state.log.min.isr"] == "1"


def test_of_five_nodes_three_keep_a_copy_and_what_the_caller_gives_wins() -> None:
    nodes = [NodePorts(100 * i, 100 * i + 1) for i in range(1, 6)]
    made = broker_properties(4, nodes, Path("/data"), {"num.io.threads": "9", "message.max.bytes": "100"})
    assert made["node.id"] == "4"
    assert made["listeners"] == "CONTROLLER://127.0.0.1:401,PLAINTEXT://127.0.0.1:400"
    assert made["controller.quorum.voters"].count("@") == 5
    assert made["transaction.state.log.replication.factor"] == "3"
    assert made["transaction.state.log.min.isr"] == "2"
    assert (made["num.io.threads"], made["message.max.bytes"]) == ("9", "100")
