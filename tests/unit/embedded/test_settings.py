from __future__ import annotations

from pathlib import Path

from connect.embedded.settings import CLIENTS, PROXIED, Listener, NodeAddresses, node_properties


def node(base: int) -> NodeAddresses:
    return NodeAddresses(base + 1, {CLIENTS: Listener(base, ("127.0.0.1", base))})


def test_a_node_alone_asks_for_no_replicas() -> None:
    made = node_properties(1, [node(100)], Path("/data"), {})
    assert made["listeners"] == "CONTROLLER://127.0.0.1:101,PLAINTEXT://127.0.0.1:100"
    assert made["controller.quorum.voters"] == "1@127.0.0.1:101"
    assert made["offsets.topic.replication.factor"] == made["transaction.state.log.min.isr"] == "1"


def test_of_five_nodes_three_keep_a_copy() -> None:
    made = node_properties(4, [node(100 * i) for i in range(1, 6)], Path("/data"), {})
    assert made["node.id"] == "4"
    assert made["listeners"] == "CONTROLLER://127.0.0.1:401,PLAINTEXT://127.0.0.1:400"
    assert made["controller.quorum.voters"].count("@") == 5
    assert made["transaction.state.log.replication.factor"] == "3"
    assert made["transaction.state.log.min.isr"] == "2"


def test_what_the_caller_gives_wins() -> None:
    made = node_properties(1, [node(100)], Path("/data"), {"num.io.threads": "9", "message.max.bytes": "100"})
    assert (made["num.io.threads"], made["message.max.bytes"]) == ("9", "100")


def test_a_proxied_listener_is_bound_here_and_advertised_there() -> None:
    listeners = {
        CLIENTS: Listener(100, ("127.0.0.1", 100)),
        PROXIED: Listener(102, ("127.0.0.2", 7)),
        "SECURE": Listener(103, ("127.0.0.1", 103), "SASL_PLAINTEXT"),
    }
    made = node_properties(1, [NodeAddresses(101, listeners)], Path("/data"), {})
    assert "PROXIED://127.0.0.1:102" in made["listeners"]
    assert "PROXIED://127.0.0.2:7" in made["advertised.listeners"]
    assert "CONTROLLER" not in made["advertised.listeners"]
    assert made["listener.security.protocol.map"].endswith("PROXIED:PLAINTEXT,SECURE:SASL_PLAINTEXT")
