"""The settings of a small KRaft cluster on one machine, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from connect.embedded.ports import HOST

CLIENTS = "PLAINTEXT"
"""Name of the listener that every node has, for clients and between brokers."""

PROXIED = "PROXIED"
"""Name of the extra listener whose advertised address is a test's TCP proxy."""

_CONTROLLER = "CONTROLLER"


@dataclass(frozen=True)
class Listener:
    """One listener of a node: where it is bound, and the address that clients are told."""

    port: int
    advertised: tuple[str, int]
    protocol: str = "PLAINTEXT"


@dataclass(frozen=True)
class NodeAddresses:
    """Where one node listens: ``listeners`` by name for brokers and clients, ``controller`` for the quorum."""

    controller: int
    listeners: Mapping[str, Listener]


def node_properties(
    node_id: int, nodes: Sequence[NodeAddresses], data: Path, config: Mapping[str, str]
) -> dict[str, str]:
    """Properties of node ``node_id`` (from 1) of a cluster with these addresses; entries of ``config`` win."""
    own = nodes[node_id - 1]
    factor, in_sync = str(min(3, len(nodes))), str(min(2, len(nodes)))
    bound = {_CONTROLLER: own.controller} | {name: listener.port for name, listener in own.listeners.items()}
    protocols = {_CONTROLLER: "PLAINTEXT"} | {name: listener.protocol for name, listener in own.listeners.items()}
    told = {name: listener.advertised for name, listener in own.listeners.items()}
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{i}@{HOST}:{node.controller}" for i, node in enumerate(nodes, 1)),
        "controller.listener.names": _CONTROLLER,
        "inter.broker.listener.name": CLIENTS,
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in bound.items()),
        "advertised.listeners": ",".join(f"{name}://{host}:{port}" for name, (host, port) in told.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "log.dirs": str(data),
        # A topic that nobody made is a mistake here, and must not come into being by being asked for.
        "auto.create.topics.enable": "false",
        "default.replication.factor": factor,
        "offsets.topic.replication.factor": factor,
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        # A killed broker may come back only when its session is over: nine seconds by default.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # The default, 128 MB, is half of the heap.
        "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "num.recovery.threads.per.data.dir": "1",
        **config,
    }
