"""Clusters of real Apache Kafka brokers (KRaft, combined mode), started, broken and stopped on purpose."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import javaproperties

from connect.core.errors import (
    ConfigError,
    HeliographError,
    PermanentError,
    RetriableError,
)
from connect.embedded import java, maven, ports
from connect.embedded.processes import Keeper
from connect.embedded.settings import (
    CLIENTS,
    PROXIED,
    Listener,
    NodeAddresses,
    node_properties,
)

KAFKA_VERSION = "4.3.1"
# Kafka's poms name no logging backend; this is the one its own distribution ships.
KAFKA_JARS = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
)

HEAP_MB = 256
QUICK_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""JVM options for a short life on few cores: up a third sooner, and no compiler threads beside what is tested."""

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_POLL_S = 0.02
_START_ATTEMPTS = 4
_TAIL_LINES = 15
_LINE_CHARACTERS = 400
_STARTED = b"Kafka Server started"
_PORT_TAKEN = b"Address already in use"


class PortInUse(RetriableError):
    """Another process listens where a broker should."""


@dataclass(frozen=True)
class KafkaNode:
    """One broker, controller as well: its id in Kafka, its client port, its process and where it writes."""

    node_id: int
    port: int
    pid: int
    log: Path
    data: Path


class KafkaCluster:
    """A running cluster. Its processes and files go with the program that started it, whatever ends the program.

    ``nodes[i]`` has Kafka's node id ``i + 1``. Not for two threads at once, except that different nodes may be
    broken and mended at the same time.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        addresses: Sequence[NodeAddresses],
        config: Mapping[str, str],
        java_command: Sequence[str],
    ) -> None:
        """Writes nothing and starts nothing but the keeper; ``KafkaCluster.start`` is the way in."""
        self.name = name
        self.folder = folder
        self.addresses = tuple(addresses)
        self.nodes: list[KafkaNode] = []
        self._config = dict(config)
        self._java = list(java_command)
        self._keeper = Keeper(folder)

    @classmethod
    def start(
        cls,
        name: str,
        *,
        nodes: int = 1,
        base_dir: Path | None = None,
        config: Mapping[str, str] | None = None,
        client_ports: Sequence[int] | None = None,
        listeners: Mapping[str, str] | None = None,
        advertised: Callable[[int, int], tuple[str, int]] | None = None,
        jvm_options: Sequence[str] = QUICK_JVM,
    ) -> KafkaCluster:
        """Starts a cluster and returns when every broker serves requests.

        Args:
            name: For messages and file names.
            nodes: How many, each broker and controller.
            base_dir: Folder for the brokers' files; the system's temporary folder unless given.
            config: Broker properties that win over the defaults.
            client_ports: One for each node, in place of free ones chosen here.
            listeners: Extra listeners, name to security protocol; ``bootstrap_of`` tells their addresses.
            advertised: Called with the node's index and the port of an extra plaintext listener, before the broker
                starts; returns the address that clients of this listener are told. For a TCP proxy in between.
            jvm_options: Besides the heap of 256 MB; pass ``()`` where the broker's speed is measured.

        Raises:
            PortInUse: One of ``client_ports`` is taken.
            PermanentError: A broker did not come up; the text ends with the tail of its log.
            JavaNotFound, DownloadFailed, ConfigError: There is no Java, no Kafka, or a wrong KAFKA_HOME.
        """
        if client_ports is not None and len(client_ports) != nodes:
            raise ConfigError(f"cluster {name}: {len(client_ports)} client ports for {nodes} nodes")
        command = _java_command(jvm_options)  # before there is a folder to remove, should there be no Java or Kafka
        for attempt in range(1, _START_ATTEMPTS + 1):
            addresses = _addresses(name, nodes, client_ports, listeners or {}, advertised)
            folder = Path(tempfile.mkdtemp(prefix=f"heliograph-{name}-", dir=base_dir))
            cluster = cls(name, folder, addresses, config or {}, command)
            try:
                cluster._start_all()
            except PortInUse:
                # Somebody else took a port between the choice and the broker's bind; one that was asked for is
                # looked at again, and named, before the next attempt.
                cluster.stop()
                if attempt == _START_ATTEMPTS:
                    raise
            except BaseException:
                cluster.stop()
                raise
            else:
                return cluster
        raise AssertionError("unreachable: the last attempt returns or raises")

    @property
    def bootstrap(self) -> str:
        """``host:port`` of every node, separated by commas."""
        return self.bootstrap_of(CLIENTS)

    @property
    def proxied_bootstrap(self) -> str:
        """The addresses that ``advertised`` returned."""
        return self.bootstrap_of(PROXIED)

    def bootstrap_of(self, listener: str) -> str:
        """Advertised addresses of a listener on every node, separated by commas."""
        told = [node.listeners[listener].advertised for node in self.addresses]
        return ",".join(f"{host}:{port}" for host, port in told)

    def alive(self, index: int) -> bool:
        """Whether the node's process exists, frozen ones included."""
        return self._keeper.poll(_label(index)) is None

    def kill(self, index: int) -> None:
        """SIGKILL; returns when the process has gone."""
        self._end(index, signal.SIGKILL)

    def stop_node(self, index: int) -> None:
        """A clean shutdown (SIGTERM); returns when the process has gone."""
        self._end(index, signal.SIGTERM)

    def start_node(self, index: int) -> None:
        """Starts a killed or stopped node again, on its ports and files; returns when it serves requests."""
        if self.alive(index):
            raise PermanentError(f"cluster {self.name}: node {index + 1} runs already")
        self._await_started(index, self._launch(index))

    def freeze(self, index: int) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        self._keeper.signal(_label(index), signal.SIGSTOP)

    def thaw(self, index: int) -> None:
        """SIGCONT."""
        self._keeper.signal(_label(index), signal.SIGCONT)

    def log_tail(self, index: int) -> str:
        """The last lines that the node wrote."""
        return _tail(self.folder / f"{_label(index)}.log")

    def stop(self) -> None:
        """Kills every node and removes the files: nothing here is worth a clean shutdown. Harmless when repeated."""
        self._keeper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start_all(self) -> None:
        for index in range(len(self.addresses)):
            own = node_properties(index + 1, self.addresses, self._data(index), self._config)
            self._properties_file(index).write_text(javaproperties.dumps(own, timestamp=None), encoding="ascii")
        self._format()
        # All before waiting for any: the first serves requests only once a quorum is there.
        offsets = [self._launch(index) for index in range(len(self.addresses))]
        for index, offset in enumerate(offsets):
            self._await_started(index, offset)

    def _format(self) -> None:
        """What ``kafka-storage.sh format`` does, for the first node; the others get copies, which spares a JVM each."""
        cluster_id, first = _kafka_uuid(), self._data(0)
        options = ["format", "-t", cluster_id, "-c", str(self._properties_file(0))]
        done = subprocess.run(
            [*self._java, "kafka.tools.StorageTool", *options],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_START_TIMEOUT_S,
        )
        if done.returncode != 0:
            output = _last_lines(done.stdout + done.stderr)
            raise PermanentError(f"cluster {self.name}: storage in {first} cannot be formatted:\n{output}")
        for index in range(1, len(self.addresses)):
            data = self._data(index)
            shutil.copytree(first, data)
            # Kafka's MetaPropertiesVersion.V1: a directory has an id of its own (KIP-858).
            meta = {"version": "1", "cluster.id": cluster_id, "node.id": str(index + 1), "directory.id": _kafka_uuid()}
            (data / "meta.properties").write_text(javaproperties.dumps(meta, timestamp=None), encoding="ascii")

    def _launch(self, index: int) -> int:
        """Starts the process; returns the length in bytes of its log before."""
        label = _label(index)
        log = self.folder / f"{label}.log"
        offset = log.stat().st_size if log.exists() else 0
        command = [*self._java, "kafka.Kafka", str(self._properties_file(index))]
        pid = self._keeper.spawn(label, command, os.environ, log)
        port = self.addresses[index].listeners[CLIENTS].port
        node = KafkaNode(index + 1, port, pid, log, self._data(index))
        self.nodes[index : index + 1] = [node]
        return offset

    def _await_started(self, index: int, offset: int) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while _STARTED not in _since(self.nodes[index].log, offset):
            if not self.alive(index):
                raise self._failed(index, "ended while starting")
            if time.monotonic() > deadline:
                raise self._failed(index, f"did not come up within {_START_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)

    def _failed(self, index: int, what: str) -> HeliographError:
        tail, node = self.log_tail(index), self.nodes[index]
        if _PORT_TAKEN in _since(node.log, 0):
            return PortInUse(f"cluster {self.name}: node {node.node_id} cannot listen, a port of it is in use")
        return PermanentError(f"cluster {self.name}: node {node.node_id} {what}; the end of its log:\n{tail}")

    def _end(self, index: int, number: int) -> None:
        self._keeper.signal(_label(index), number)
        if not self._keeper.wait(_label(index), _STOP_TIMEOUT_S):
            raise PermanentError(
                f"cluster {self.name}: node {index + 1} still runs {_STOP_TIMEOUT_S:.0f} s after signal {number}"
            )

    def _data(self, index: int) -> Path:
        return self.folder / f"{_label(index)}.data"

    def _properties_file(self, index: int) -> Path:
        return self.folder / f"{_label(index)}.properties"


def _addresses(
    name: str,
    nodes: int,
    client_ports: Sequence[int] | None,
    listeners: Mapping[str, str],
    advertised: Callable[[int, int], tuple[str, int]] | None,
) -> list[NodeAddresses]:
    for port in client_ports or ():
        if not ports.is_free(port):
            raise PortInUse(f"cluster {name}: port {port} is in use; name another one or end what listens there")
    extra = dict(listeners) | ({} if advertised is None else {PROXIED: "PLAINTEXT"})
    free = iter(ports.choose(nodes * (2 + len(extra)), client_ports or ()))
    addresses = []
    for index in range(nodes):
        first, controller = next(free), next(free)
        port = first if client_ports is None else client_ports[index]
        own = {CLIENTS: Listener(port, (ports.HOST, port))}
        for listener, protocol in extra.items():
            port = next(free)
            told = (ports.HOST, port)
            if listener == PROXIED and advertised is not None:
                told = advertised(index, port)
            own[listener] = Listener(port, told, protocol)
        addresses.append(NodeAddresses(controller, own))
    return addresses


def _java_command(jvm_options: Sequence[str]) -> list[str]:
    """A JVM with Kafka's classes. No logging file: log4j's own default writes to standard output, at this level."""
    options = [
        f"-Xmx{HEAP_MB}m",
        *jvm_options,
        "-Dlog4j2.level=INFO",
        "-Djava.awt.headless=true",
    ]
    return [str(java.find_java()), *options, "-cp", _kafka_class_path()]


def _kafka_class_path() -> str:
    home = os.environ.get("KAFKA_HOME")
    if not home:
        return os.pathsep.join(map(str, maven.classpath(KAFKA_JARS)))
    libraries = Path(home) / "libs"
    if not any(libraries.glob("kafka_2.*.jar")):
        raise ConfigError(f"KAFKA_HOME={home} holds no Apache Kafka (no libs/kafka_2.*.jar); correct or unset it")
    return str(libraries / "*")


def _kafka_uuid() -> str:
    """A random id as ``org.apache.kafka.common.Uuid`` writes it."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        # Kafka leaves these out as well: on a command line they look like an option.
        if not text.startswith("-"):
            return text


def _label(index: int) -> str:
    return f"node-{index + 1}"


def _since(log: Path, offset: int) -> bytes:
    with log.open("rb") as file:
        file.seek(offset)
        return file.read()


def _tail(log: Path) -> str:
    try:
        return _last_lines(log.read_text(errors="replace"))
    except FileNotFoundError:
        return "(nothing was written)"


def _last_lines(text: str) -> str:
    """The end of a log without the frames of stack traces, which would push out what went wrong."""
    telling = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    return "\n".join(line[:_LINE_CHARACTERS] for line in telling[-_TAIL_LINES:])
