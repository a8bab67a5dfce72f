from __future__ import annotations

from pathlib import Path

from connect.embedded.cluster_config import (
    CLIENTS,
    PROXIED,
    BrokerListener,
    NodeAddresses,
    kraft_properties,
    zookeeper_properties,
    zookeeper_server_properties,
)


def node(base: int) -> NodeAddresses:
    return NodeAddresses(base + 1, {CLIENTS: BrokerListener(base, ("127.0.0.1", base))})


def test_a_node_alone_asks_for_no_replicas() -> None:
    made = kraft_properties(1, [node(100)], Path("/data"), {})
    assert made["listeners"] == "CONTROLLER://127.0.0.1:101,PLAINTEXT://127.0.0.1:100"
    assert made["controller.quorum.voters"] == "1@127.0.0.1:101"
    assert made["offsets.topic.replication.factor"] == made["transaction.state.log.min.isr"] == "1"


def test_of_five_nodes_three_keep_a_copy() -> None:
    made = kraft_properties(4, [node(100 * i) for i in range(1, 6)], Path("/data"), {})
    assert made["node.id"] == "4"
    assert made["listeners"] == "CONTROLLER://127.0.0.1:401,PLAINTEXT://127.0.0.1:400"
    assert made["controller.quorum.voters"].count("@") == 5
    assert made["transaction.state.log.replication.factor"] == "3"
    assert made["transaction.state.log.min.isr"] == "2"


def test_what_the_caller_gives_wins() -> None:
    made = kraft_properties(1, [node(100)], Path("/data"), {"num.io.threads": "9", "message.max.bytes": "100"})
    assert (made["num.io.threads"], made["message.max.bytes"]) == ("9", "100")


def test_a_proxied_listener_is_bound_here_and_advertised_there() -> None:
    listeners = {
        CLIENTS: BrokerListener(100, ("127.0.0.1", 100)),
        PROXIED: BrokerListener(102, ("127.0.0.2", 7)),
        "SECURE": BrokerListener(103, ("127.0.0.1", 103), "SASL_PLAINTEXT"),
    }
    made = kraft_properties(1, [NodeAddresses(101, listeners)], Path("/data"), {})
    assert "PROXIED://127.0.0.1:102" in made["listeners"]
    assert "PROXIED://127.0.0.2:7" in made["advertised.listeners"]
    assert "CONTROLLER" not in made["advertised.listeners"]
    assert made["listener.security.protocol.map"].endswith("PROXIED:PLAINTEXT,SECURE:SASL_PLAINTEXT")


def test_brokers_with_a_zookeeper_find_it_where_it_listens() -> None:
    nodes = [node(100), node(200)]
    made = zookeeper_properties(2, nodes, Path("/data"), {"log.dirs": "/mine"})
    server = zookeeper_server_properties(nodes, Path("/zookeeper"))
    assert made["zookeeper.connect"] == f"{server['clientPortAddress']}:{server['clientPort']}"
    assert made["listeners"] == "PLAINTEXT://127.0.0.1:200"
    assert (made["broker.id"], made["log.dirs"], made["offsets.topic.replication.factor"]) == ("2", "/mine", "2")
    assert not [key for key in made if "controller" in key]
