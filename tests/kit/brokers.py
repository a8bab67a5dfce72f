"""Clusters that tests break on purpose: other releases, more listeners, racks, and nodes that freeze and come back."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.embedded import brokers
from connect.embedded.brokers import (
    DEFAULT_VERSION,
    JARS,
    QUICK_JVM,
    broker_command,
    classpath,
    java_command,
    new_folder,
    node_label,
    since,
)
from connect.embedded.cluster_config import HOST, choose, choose_ports

#: The listener of every node for clients and between brokers, and the one before which a TCP proxy stands.
CLIENTS: Final = "PLAINTEXT"
PROXIED: Final = "PROXIED"

#: Oldest release whose brokers keep their metadata themselves in a way ready for production (KIP-833).
_KRAFT_FROM: Final = (3, 3)
_LOG4J_2_FROM: Final = (4, 0)
_OF_KRAFT: Final = ("process.roles", "node.id", "controller.", "broker.", "metadata.", "share.")
_SESSION_MS: Final = 3000
_REGISTERED: Final = b"KeeperErrorCode = NodeExists"
_BY_RACK: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_START_AGAIN_S: Final = 240.0
#: Kafka's distribution before 4.0 contains reload4j.
_LOG4J_1: Final = "org.slf4j:slf4j-reload4j:1.7.36"
_LOG4J_1_SETTINGS: Final = """\
log4j.rootLogger=INFO, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{HH:mm:ss.SSS} [%t] %-5p %c - %m%n
"""


class _StillRegistered(RetriableError):
    """ZooKeeper still has the session of the broker's process before this one."""


@dataclass(frozen=True)
class Listener:
    port: int
    advertised: tuple[str, int]
    protocol: str = "PLAINTEXT"


def numbers_of(version: str) -> tuple[int, int]:
    """Return the first two numbers of a release such as 4.3.1."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


class KafkaCluster(brokers.KafkaCluster):
    """``listeners[i]`` are those of node ``i`` by name."""

    listeners: Sequence[Mapping[str, Listener]]
    _racks: Sequence[str] = ()
    _has_zookeeper = False

    @classmethod
    def start(
        cls,
        name: str,
        *,
        nodes: int = 1,
        config: Mapping[str, str] | None = None,
        client_ports: Sequence[int] | None = None,
        jvm_options: Sequence[str] = QUICK_JVM,
        version: str = DEFAULT_VERSION,
        base_dir: Path | None = None,
        racks: Sequence[str] = (),
        listeners: Mapping[str, str] | None = None,
        advertised: Callable[[int, int], tuple[str, int]] | None = None,
    ) -> Self:
        """Start a cluster; ``advertised`` gets node index and port of ``PROXIED``, and returns a proxy's address."""
        release = numbers_of(version)
        if version == DEFAULT_VERSION:
            command = broker_command(jvm_options)
        else:
            command = java_command(os.pathsep.join(map(str, classpath(_jars(version)))), jvm_options)
        extra = ({} if advertised is None else {PROXIED: "PLAINTEXT"}) | dict(listeners or {})

        def listeners_of(index: int, clients: int) -> dict[str, Listener]:
            found = {CLIENTS: Listener(clients, (HOST, clients))}
            for one, port in zip(extra, choose(len(extra), client_ports or ()), strict=True):
                at = advertised(index, port) if advertised is not None and one == PROXIED else (HOST, port)
                found[one] = Listener(port, at, extra[one])
            return found

        return cls._attempted(
            lambda: cls(name, choose_ports(nodes, client_ports), new_folder(name, base_dir), config or {}, command)._of(
                release, racks, listeners_of
            )
        )

    def _of(
        self, release: tuple[int, int], racks: Sequence[str], listeners_of: Callable[[int, int], Mapping[str, Listener]]
    ) -> Self:
        self.listeners = [listeners_of(index, node.clients) for index, node in enumerate(self.ports)]
        self._racks, self._has_zookeeper = racks, release < _KRAFT_FROM
        if self._has_zookeeper:
            self.started_text = b"] started"
        if release < _LOG4J_2_FROM:
            settings = self.folder / "log4j.properties"
            settings.write_text(_LOG4J_1_SETTINGS, encoding="ascii")
            self._java[-1] = f"-Dlog4j.configuration={settings.as_uri()}"
        return self

    @property
    def proxied_bootstrap(self) -> str:
        """The addresses that ``advertised`` returned, comma-separated."""
        return self.bootstrap_of(PROXIED)

    def bootstrap_of(self, listener: str) -> str:
        """The advertised addresses of a listener on every node, comma-separated."""
        return ",".join("{}:{}".format(*node[listener].advertised) for node in self.listeners)

    def kill(self, index: int) -> None:
        self.end_node(index, signal.SIGKILL)

    def stop_node(self, index: int) -> None:
        self.end_node(index, signal.SIGTERM)

    def start_node(self, index: int) -> None:
        """Start a killed or stopped node again with its ports and files; return when it serves requests."""
        if self.alive(index):
            raise PermanentError(f"cluster {self.name}: node {index + 1} is already running")
        give_up_s = time.monotonic() + _START_AGAIN_S
        while True:
            try:
                return super().start_node(index)
            except _StillRegistered:
                if time.monotonic() > give_up_s:
                    raise

    def freeze(self, index: int) -> None:
        self._keeper.signal(node_label(index), signal.SIGSTOP)

    def thaw(self, index: int) -> None:
        self._keeper.signal(node_label(index), signal.SIGCONT)

    def _properties(self, index: int) -> dict[str, str]:
        made = super()._properties(index)
        if self._has_zookeeper:
            made = {key: value for key, value in made.items() if not key.startswith(_OF_KRAFT)} | {
                "broker.id": str(index + 1),
                "zookeeper.connect": f"{HOST}:{self.ports[0].controller}",
                "zookeeper.session.timeout.ms": str(_SESSION_MS),
                # Long, because ZooKeeper starts at the same time.
                "zookeeper.connection.timeout.ms": "60000",
                "listeners": f"{CLIENTS}://{HOST}:{self.ports[index].clients}",
                "listener.security.protocol.map": f"{CLIENTS}:PLAINTEXT",
            }
        for name, one in self.listeners[index].items():
            if name == CLIENTS:
                continue
            host, port = one.advertised
            made["listeners"] += f",{name}://{HOST}:{one.port}"
            made["advertised.listeners"] += f",{name}://{host}:{port}"
            made["listener.security.protocol.map"] += f",{name}:{one.protocol}"
        if self._racks:
            made |= {"broker.rack": self._racks[index], "replica.selector.class": _BY_RACK}
        return made | self._config

    def _format(self) -> None:
        if not self._has_zookeeper:
            super()._format()
            return
        # Not waited for: brokers try again until it answers. It takes the port of the first node's controller.
        file, log = (self.folder / f"zookeeper.{kind}" for kind in ("properties", "log"))
        settings = {
            "clientPort": self.ports[0].controller,
            "clientPortAddress": HOST,
            "dataDir": self.folder / "zookeeper.data",
            "tickTime": _SESSION_MS // 2,  # the shortest session is two ticks
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
        }
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = [*self._java, "org.apache.zookeeper.server.ZooKeeperServerMain", str(file)]
        self._keeper.spawn("zookeeper", command, os.environ, log)

    def _failed(self, index: int, offset: int, what: str) -> HeliographError:
        if _REGISTERED in since(self.nodes[index].log, offset):
            return _StillRegistered(f"cluster {self.name}: ZooKeeper still has the session of node {index + 1}")
        return super()._failed(index, offset, what)


def _jars(version: str) -> tuple[str, ...]:
    return (f"org.apache.kafka:kafka_2.13:{version}", _LOG4J_1 if numbers_of(version) < _LOG4J_2_FROM else JARS[1])
