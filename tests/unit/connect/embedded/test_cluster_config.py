"""Ports of brokers, and their properties."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from connect.embedded import cluster_config
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


@pytest.fixture
def range_of_ports(monkeypatch: pytest.MonkeyPatch) -> range:
    """All that there is to choose from, whatever share of the ports these tests have; none was chosen yet."""
    every = range(31_900, 32_000)
    monkeypatch.setattr(cluster_config, "_LOWEST", every.start)
    monkeypatch.setattr(cluster_config, "_HIGHEST", every.stop)
    monkeypatch.setattr(cluster_config, "_given", set())
    return every


def test_a_port_somebody_listens_on_is_not_free() -> None:
    with socket.create_server((cluster_config.HOST, 0)) as server:
        port = server.getsockname()[1]
        assert not cluster_config.is_free(port)
    assert cluster_config.is_free(port)


def test_no_port_is_chosen_twice_while_there_are_others(range_of_ports: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was given one may not listen on it yet."""
    monkeypatch.setattr("random.shuffle", lambda _: None)
    (first,) = cluster_config.choose(1)
    assert first not in cluster_config.choose(3)
    assert cluster_config.choose(1, [port for port in range_of_ports if port != first]) == [first]


def test_a_machine_without_free_ports_is_an_error_and_no_endless_loop(range_of_ports: range) -> None:
    with pytest.raises(OSError, match="free ports"):
        cluster_config.choose(1, range_of_ports)
