"""Builds the settings of a small Kafka cluster on one machine, and finds TCP ports for its brokers."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

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
    Another process may still take one first; the caller then retries."""
    candidates = [port for port in range(_LOWEST, _HIGHEST) if port not in taken]
    random.shuffle(candidates)
    candidates.sort(key=_given.__contains__)
    chosen = list(itertools.islice(filter(is_free, candidates), count))
    if len(chosen) < count:
        raise OSError(f"fewer than {count} free ports between {_LOWEST} and {_HIGHEST}")
    _given.update(chosen)
    return chosen


class NodePorts(NamedTuple):
    """Ports of one node: for clients and other brokers, and for the quorum."""

    clients: int
    controller: int


def choose_ports(nodes: int, client_ports: Sequence[int] | None) -> list[NodePorts]:
    """Choose free ports for every node, except those of ``client_ports``."""
    free = choose(2 * nodes, client_ports or ())
    return list(map(NodePorts, client_ports or free[:nodes], free[nodes:]))


def broker_properties(
    node_id: int, nodes: Sequence[NodePorts], data: Path, config: Mapping[str, str]
) -> dict[str, str]:
    """Return the properties of broker and controller ``node_id`` (from 1); entries of ``config`` override them."""
    own, replicas, in_sync = nodes[node_id - 1], str(min(3, len(nodes))), str(min(2, len(nodes)))
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{i}@{HOST}:{node.controller}" for i, node in enumerate(nodes, 1)),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": f"CONTROLLER://{HOST}:{own.controller},PLAINTEXT://{HOST}:{own.clients}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{own.clients}",
        # A killed broker can return only after its session expired: nine seconds by default.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # A third less CPU of an idle broker: no record of its own twice a second (KIP-835).
        "metadata.max.idle.interval.ms": "0",
        "log.dirs": str(data),
        # A missing topic is a mistake here: a metadata request must not create it.
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        **_internal_topic("offsets.topic", replicas),
        **_internal_topic("transaction.state.log", replicas, in_sync),
        **_internal_topic("share.coordinator.state.topic", replicas, in_sync),
        "group.initial.rebalance.delay.ms": "0",
        # The default, 128 MB, is half the heap.
        "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
        # A broker maps two sparse files of this size for each partition, and the kernel fills in as much of one as its
        # read-ahead covers: on some virtual machines 8 MiB, of a default of 10 MiB. With thousands of partitions that
        # takes most of a core, and all memory. A segment ends after about 90 MB then.
        "log.index.size.max.bytes": str(256 * 1024),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "num.recovery.threads.per.data.dir": "1",
        **config,
    }


def _internal_topic(prefix: str, replicas: str, in_sync: str = "") -> dict[str, str]:
    least = {f"{prefix}.min.isr": in_sync} if in_sync else {}
    return {f"{prefix}.replication.factor": replicas, f"{prefix}.num.partitions": "4", **least}
