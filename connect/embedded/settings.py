"""The settings of a small cluster on one machine, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from connect.embedded import ports
from connect.embedded.ports import HOST

CLIENTS = "PLAINTEXT"
"""Name of the listener that every node has, for clients and between brokers."""

PROXIED = "PROXIED"
"""Name of the extra listener whose advertised address is a test's TCP proxy."""

_CONTROLLER = "CONTROLLER"
_SESSION_MS = 3000


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


def choose_addresses(
    nodes: int,
    client_ports: Sequence[int] | None,
    listeners: Mapping[str, str],
    advertised: Callable[[int, int], tuple[str, int]] | None,
) -> list[NodeAddresses]:
    """Free ports for every listener but those of ``client_ports``; arguments as ``KafkaCluster.start`` has them."""
    extra = ({} if advertised is None else {PROXIED: "PLAINTEXT"}) | dict(listeners)
    free = iter(ports.choose(nodes * (2 + len(extra)), client_ports or ()))
    addresses = []
    for index in range(nodes):
        first, controller = next(free), next(free)
        port = first if client_ports is None else client_ports[index]
        own = {CLIENTS: Listener(port, (HOST, port))}
        for listener, protocol in extra.items():
            port = next(free)
            told = (HOST, port)
            if listener == PROXIED and advertised is not None:
                told = advertised(index, port)
            own[listener] = Listener(port, told, protocol)
        addresses.append(NodeAddresses(controller, own))
    return addresses


def kraft_properties(
    node_id: int, nodes: Sequence[NodeAddresses], data: Path, config: Mapping[str, str]
) -> dict[str, str]:
    """Properties of node ``node_id`` (from 1), broker and controller; entries of ``config`` win."""
    own = nodes[node_id - 1]
    controller = {_CONTROLLER: Listener(own.controller, (HOST, own.controller))}
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{i}@{HOST}:{node.controller}" for i, node in enumerate(nodes, 1)),
        "controller.listener.names": _CONTROLLER,
        **_listeners({**controller, **own.listeners}),
        "advertised.listeners": _told(own.listeners),
        # A killed broker may come back only when its session is over: nine seconds by default.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "share.coordinator.state.topic.replication.factor": _replicas(nodes),
        "share.coordinator.state.topic.min.isr": _in_sync(nodes),
        "share.coordinator.state.topic.num.partitions": "4",
        **_common(nodes, data),
        **config,
    }


def zookeeper_properties(
    node_id: int, nodes: Sequence[NodeAddresses], data: Path, config: Mapping[str, str]
) -> dict[str, str]:
    """Properties of broker ``node_id`` (from 1) of a cluster with a ZooKeeper; entries of ``config`` win."""
    own = nodes[node_id - 1]
    return {
        "broker.id": str(node_id),
        "zookeeper.connect": f"{HOST}:{nodes[0].controller}",
        "zookeeper.session.timeout.ms": str(_SESSION_MS),
        # It is started at the same time.
        "zookeeper.connection.timeout.ms": "60000",
        **_listeners(own.listeners),
        "advertised.listeners": _told(own.listeners),
        **_common(nodes, data),
        **config,
    }


def zookeeper_server_properties(nodes: Sequence[NodeAddresses], data: Path) -> dict[str, str]:
    """Properties of the one ZooKeeper, which listens where the first node's controller would."""
    return {
        "clientPort": str(nodes[0].controller),
        "clientPortAddress": HOST,
        "dataDir": str(data),
        # Sessions last two ticks at least.
        "tickTime": str(_SESSION_MS // 2),
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
    }


def _listeners(listeners: Mapping[str, Listener]) -> dict[str, str]:
    return {
        "inter.broker.listener.name": CLIENTS,
        "listeners": ",".join(f"{name}://{HOST}:{listener.port}" for name, listener in listeners.items()),
        "listener.security.protocol.map": ",".join(
            f"{name}:{listener.protocol}" for name, listener in listeners.items()
        ),
    }


def _told(listeners: Mapping[str, Listener]) -> str:
    told = ((name, *listener.advertised) for name, listener in listeners.items())
    return ",".join(f"{name}://{host}:{port}" for name, host, port in told)


def _common(nodes: Sequence[NodeAddresses], data: Path) -> dict[str, str]:
    return {
        "log.dirs": str(data),
        # A topic that nobody made is a mistake here, and must not come into being by being asked for.
        "auto.create.topics.enable": "false",
        "default.replication.factor": _replicas(nodes),
        "offsets.topic.replication.factor": _replicas(nodes),
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": _replicas(nodes),
        "transaction.state.log.min.isr": _in_sync(nodes),
        "transaction.state.log.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        # The default, 128 MB, is half of the heap.
        "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "num.recovery.threads.per.data.dir": "1",
    }


def _replicas(nodes: Sequence[NodeAddresses]) -> str:
    return str(min(3, len(nodes)))


def _in_sync(nodes: Sequence[NodeAddresses]) -> str:
    return str(min(2, len(nodes)))
