"""Builds the settings of a small Kafka cluster on one machine, and finds TCP ports for its brokers."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"

# Below the ranges from which Linux (from 32768) and macOS (from 49152) take the local ports of outgoing connections:
# such a connection could take a broker's port while the broker is down.
_LOWEST, _HIGHEST = 20_000, 32_000
#: Chosen by this process, which may not yet listen on them.
_given: set[int] = set()


def is_free(port: int) -> bool:
    """Return whether a listener can bind the port now; connections in TIME_WAIT do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def choose(count: int, taken: Collection[int] = ()) -> list[int]:
    """Return ports that are free now, if possible ones not chosen before; raise OSError if there are not enough.

    Another process may still take one first; the caller then retries.
    """
    candidates = [port for port in range(_LOWEST, _HIGHEST) if port not in taken]
    random.shuffle(candidates)
    candidates.sort(key=_given.__contains__)
    chosen = list(itertools.islice(filter(is_free, candidates), count))
    if len(chosen) < count:
        raise OSError(f"fewer than {count} free ports between {_LOWEST} and {_HIGHEST}")
    _given.update(chosen)
    return chosen


CLIENTS = "PLAINTEXT"
"""Name of the listener of every node for clients and between brokers."""

PROXIED = "PROXIED"
"""Name of the extra listener that advertises the address of a test's TCP proxy."""

_CONTROLLER = "CONTROLLER"
_SESSION_MS = 3000


@dataclass(frozen=True)
class BrokerListener:
    """One listener of a node: the port it binds and the address it advertises."""

    port: int
    advertised: tuple[str, int]
    protocol: str = "PLAINTEXT"


@dataclass(frozen=True)
class NodeAddresses:
    """Ports of one node: ``listeners`` by name for brokers and clients, ``controller`` for the quorum."""

    controller: int
    listeners: Mapping[str, BrokerListener]


def choose_addresses(
    nodes: int,
    client_ports: Sequence[int] | None,
    listeners: Mapping[str, str],
    advertised: Callable[[int, int], tuple[str, int]] | None,
) -> list[NodeAddresses]:
    """Choose free ports for every listener except those of ``client_ports``; arguments as in ``KafkaCluster.start``."""
    extra = ({} if advertised is None else {PROXIED: "PLAINTEXT"}) | dict(listeners)
    free = iter(choose(nodes * (2 + len(extra)), client_ports or ()))
    addresses = []
    for index in range(nodes):
        first, controller = next(free), next(free)
        port = first if client_ports is None else client_ports[index]
        own = {CLIENTS: BrokerListener(port, (HOST, port))}
        for listener, protocol in extra.items():
            port = next(free)
            advertised_at = (HOST, port)
            if listener == PROXIED and advertised is not None:
                advertised_at = advertised(index, port)
            own[listener] = BrokerListener(port, advertised_at, protocol)
        addresses.append(NodeAddresses(controller, own))
    return addresses


def kraft_properties(
    node_id: int, nodes: Sequence[NodeAddresses], data: Path, config: Mapping[str, str]
) -> dict[str, str]:
    """Return the properties of broker and controller ``node_id`` (from 1); entries of ``config`` override them."""
    own = nodes[node_id - 1]
    controller = {_CONTROLLER: BrokerListener(own.controller, (HOST, own.controller))}
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{i}@{HOST}:{node.controller}" for i, node in enumerate(nodes, 1)),
        "controller.listener.names": _CONTROLLER,
        **_listeners({**controller, **own.listeners}),
        "advertised.listeners": _advertised(own.listeners),
        # A killed broker can return only after its session expired: nine seconds by default.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # A third less CPU of an idle broker: no record of its own twice a second (KIP-835).
        "metadata.max.idle.interval.ms": "0",
        "share.coordinator.state.topic.replication.factor": _replicas(nodes),
        "share.coordinator.state.topic.min.isr": _in_sync(nodes),
        "share.coordinator.state.topic.num.partitions": "4",
        **_common(nodes, data),
        **config,
    }


def zookeeper_properties(
    node_id: int, nodes: Sequence[NodeAddresses], data: Path, config: Mapping[str, str]
) -> dict[str, str]:
    """Return the properties of broker ``node_id`` (from 1) in ZooKeeper mode; entries of ``config`` override them."""
    own = nodes[node_id - 1]
    return {
        "broker.id": str(node_id),
        "zookeeper.connect": f"{HOST}:{nodes[0].controller}",
        "zookeeper.session.timeout.ms": str(_SESSION_MS),
        # Long, because ZooKeeper starts at the same time.
        "zookeeper.connection.timeout.ms": "60000",
        **_listeners(own.listeners),
        "advertised.listeners": _advertised(own.listeners),
        **_common(nodes, data),
        **config,
    }


def zookeeper_server_properties(nodes: Sequence[NodeAddresses], data: Path) -> dict[str, str]:
    """Return the properties of the one ZooKeeper, which takes the port of the first node's controller."""
    return {
        "clientPort": str(nodes[0].controller),
        "clientPortAddress": HOST,
        "dataDir": str(data),
        # The minimum session is two ticks.
        "tickTime": str(_SESSION_MS // 2),
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
    }


def _listeners(listeners: Mapping[str, BrokerListener]) -> dict[str, str]:
    return {
        "inter.broker.listener.name": CLIENTS,
        "listeners": ",".join(f"{name}://{HOST}:{listener.port}" for name, listener in listeners.items()),
        "listener.security.protocol.map": ",".join(
            f"{name}:{listener.protocol}" for name, listener in listeners.items()
        ),
    }


def _advertised(listeners: Mapping[str, BrokerListener]) -> str:
    advertised_at = ((name, *listener.advertised) for name, listener in listeners.items())
    return ",".join(f"{name}://{host}:{port}" for name, host, port in advertised_at)


def _common(nodes: Sequence[NodeAddresses], data: Path) -> dict[str, str]:
    return {
        "log.dirs": str(data),
        # A missing topic is a mistake here: a metadata request must not create it.
        "auto.create.topics.enable": "false",
        "default.replication.factor": _replicas(nodes),
        "offsets.topic.replication.factor": _replicas(nodes),
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": _replicas(nodes),
        "transaction.state.log.min.isr": _in_sync(nodes),
        "transaction.state.log.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        # The default, 128 MB, is half the heap.
        "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "num.recovery.threads.per.data.dir": "1",
    }


def _replicas(nodes: Sequence[NodeAddresses]) -> str:
    return str(min(3, len(nodes)))


def _in_sync(nodes: Sequence[NodeAddresses]) -> str:
    return str(min(2, len(nodes)))
