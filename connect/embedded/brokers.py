"""Starts, breaks and stops clusters of real Apache Kafka brokers.

Each node is broker and controller (KRaft, combined mode); an older release runs with one ZooKeeper.
"""

from __future__ import annotations

import base64
import fcntl
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import javaproperties

from connect.core.errors import ConfigError, HeliographError, PermanentError, RetriableError
from connect.embedded import cluster_config, java
from connect.embedded.cluster_config import (
    CLIENTS,
    PROXIED,
    NodeAddresses,
    choose_addresses,
    kraft_properties,
    zookeeper_properties,
    zookeeper_server_properties,
)
from connect.embedded.java import ClassArchive
from connect.embedded.kafka_releases import DEFAULT_VERSION, Release
from connect.embedded.processes import Keeper

QUICK_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""JVM options for short-lived brokers on few cores: a start takes a third less time, with fewer compiler threads."""

_START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 120.0
_POLL_S = 0.02
_START_ATTEMPTS = 4
_TAIL_LINES = 15
_LINE_CHARACTERS = 400
_PORT_TAKEN = b"Address already in use"
_REGISTERED = b"KeeperErrorCode = NodeExists"
_ZOOKEEPER = "zookeeper"
_META = "meta.properties"
_BY_RACK = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

#: The files that formatting wrote, without the ids, by the command of JVM and release.
_formatted: dict[tuple[str, ...], dict[str, bytes]] = {}

#: Releases whose classes this process failed to record; it does not retry.
_unrecorded: set[Release] = set()

_log = logging.getLogger(__name__)


class PortInUse(RetriableError):
    """A port of a broker that another process listens on."""


class _StillRegistered(RetriableError):
    """A start refused because ZooKeeper still has the session of the broker's previous process."""


@dataclass(frozen=True)
class KafkaNode:
    """One broker and controller: its node id, client port, process, log file and data directory."""

    node_id: int
    port: int
    pid: int
    log: Path
    data: Path


class KafkaCluster:
    """A running cluster. Its processes and files are removed when the program that started it ends, however it ends.

    ``nodes[i]`` has Kafka's node id ``i + 1``. Not thread-safe, except that threads may break and restart different
    nodes at the same time.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        addresses: Sequence[NodeAddresses],
        config: Mapping[str, str],
        racks: Sequence[str],
        release: Release,
        java_command: Sequence[str],
    ) -> None:
        """Start only the keeper process; ``KafkaCluster.start`` starts a cluster."""
        self.name = name
        self.folder = folder
        self.addresses = tuple(addresses)
        self.nodes: list[KafkaNode] = []
        self._config = dict(config)
        self._racks = tuple(racks)
        self._release = release
        self._java = [*java_command, *release.logging_options(folder)]
        self._keeper = Keeper(folder)

    @classmethod
    def start(
        cls,
        name: str,
        *,
        nodes: int = 1,
        version: str = DEFAULT_VERSION,
        base_dir: Path | None = None,
        config: Mapping[str, str] | None = None,
        racks: Sequence[str] = (),
        client_ports: Sequence[int] | None = None,
        listeners: Mapping[str, str] | None = None,
        advertised: Callable[[int, int], tuple[str, int]] | None = None,
        jvm_options: Sequence[str] = QUICK_JVM,
    ) -> KafkaCluster:
        """Start a cluster and return it when every broker serves requests.

        Args:
            name: Appears in messages and file names.
            nodes: Number of brokers.
            version: Release of Apache Kafka, 2.8.0 or newer; any except the default comes from Maven Central.
            base_dir: Folder for the brokers' files; by default the system's temporary folder.
            config: Broker properties that override the defaults.
            racks: One per node; a client in one of them fetches from the replica there (KIP-392).
            client_ports: One per node; by default free ports are chosen.
            listeners: Extra listeners, name to security protocol; ``bootstrap_of`` returns their addresses.
            advertised: Called before the broker starts with the node's index and the port of an extra listener, for
                a TCP proxy in between; returns the address to advertise. The listener is plaintext unless
                ``listeners`` names another protocol for ``PROXIED``.
            jvm_options: In addition to the heap of 256 MB; pass ``()`` to measure a broker's speed.

        Raises:
            PortInUse: One of ``client_ports`` is taken.
            PermanentError: A broker did not start; the message ends with the tail of its log.
            JavaNotFound, DownloadFailed, ConfigError: Java or Kafka is missing, or KAFKA_HOME is wrong.
        """
        if client_ports is not None and len(client_ports) != nodes:
            raise ConfigError(f"cluster {name}: {len(client_ports)} client ports for {nodes} nodes")
        release = Release.of(version)
        # First, because it fails without Java or Kafka, and then there is no folder to remove.
        archive = _class_archive(release) if release.has_archive else ()
        command = release.java_command((*archive, *jvm_options))
        for attempt in range(1, _START_ATTEMPTS + 1):
            _refuse_taken(name, client_ports or ())
            addresses = choose_addresses(nodes, client_ports, listeners or {}, advertised)
            folder = Path(tempfile.mkdtemp(prefix=f"heliograph-{name}-", dir=base_dir))
            cluster = cls(name, folder, addresses, config or {}, racks, release, command)
            try:
                cluster._start_all()
            except PortInUse:
                # Another process took a port between the choice and the broker's bind. The next attempt checks
                # ``client_ports`` again and names the port that is taken.
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
        """``host:port`` of every node, comma-separated."""
        return self.bootstrap_of(CLIENTS)

    @property
    def proxied_bootstrap(self) -> str:
        """The addresses that ``advertised`` returned, comma-separated."""
        return self.bootstrap_of(PROXIED)

    def bootstrap_of(self, listener: str) -> str:
        """Return the advertised addresses of a listener on every node, comma-separated."""
        listed = [node.listeners[listener].advertised for node in self.addresses]
        return ",".join(f"{host}:{port}" for host, port in listed)

    def alive(self, index: int) -> bool:
        """Return whether the node's process exists, even if it is frozen."""
        return self._keeper.poll(_label(index)) is None

    def kill(self, index: int) -> None:
        """Kill the node (SIGKILL); return when its process has ended."""
        self._end(index, signal.SIGKILL)

    def stop_node(self, index: int) -> None:
        """Shut the node down cleanly (SIGTERM); return when its process has ended."""
        self._end(index, signal.SIGTERM)

    def start_node(self, index: int) -> None:
        """Start a killed or stopped node again with its ports and files; return when it serves requests."""
        if self.alive(index):
            raise PermanentError(f"cluster {self.name}: node {index + 1} is already running")
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                self._await_started(index, self._launch(index))
                return
            except _StillRegistered:
                if time.monotonic() > deadline:
                    raise

    def freeze(self, index: int) -> None:
        """Send SIGSTOP: connections stay open and no request is answered."""
        self._keeper.signal(_label(index), signal.SIGSTOP)

    def thaw(self, index: int) -> None:
        """Send SIGCONT."""
        self._keeper.signal(_label(index), signal.SIGCONT)

    def log_tail(self, index: int) -> str:
        """Return the last lines of the node's log."""
        return _tail(self.folder / f"{_label(index)}.log")

    def stop(self) -> None:
        """Kill every node and remove the files. May be called again."""
        self._keeper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_all(self) -> None:
        make = zookeeper_properties if self._release.needs_zookeeper else kraft_properties
        for index in range(len(self.addresses)):
            own = make(index + 1, self.addresses, self._data(index), self._config)
            if self._racks:
                own |= {"broker.rack": self._racks[index], "replica.selector.class": _BY_RACK}
            _write_properties(self._properties_file(index), own)
        if self._release.needs_zookeeper:
            self._launch_zookeeper()
        else:
            self._format()
        # Start all before waiting for any: the first serves requests only once there is a quorum.
        offsets = [self._launch(index) for index in range(len(self.addresses))]
        for index, offset in enumerate(offsets):
            self._await_started(index, offset)

    def _format(self) -> None:
        """Do what ``kafka-storage.sh format`` does. Its tool runs once per release, because only the ids differ
        between nodes and between clusters: each further format saves the start of a JVM."""
        cluster_id, key = _kafka_uuid(), tuple(self._java)
        files = _formatted.get(key)
        if files is None:
            files = _formatted[key] = self._run_format(cluster_id)
        for index in range(len(self.addresses)):
            data = self._data(index)
            data.mkdir(exist_ok=True)
            for name, content in files.items():
                (data / name).write_bytes(content)
            # Kafka's MetaPropertiesVersion.V1: each directory has its own id (KIP-858).
            meta = {"version": "1", "cluster.id": cluster_id, "node.id": str(index + 1), "directory.id": _kafka_uuid()}
            _write_properties(data / _META, meta)

    def _run_format(self, cluster_id: str) -> dict[str, bytes]:
        """Format the first node with Kafka's own tool; return the files that it wrote, without the ids."""
        first = self._data(0)
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
            raise PermanentError(f"cluster {self.name}: cannot format storage in {first}:\n{output}")
        return {file.name: file.read_bytes() for file in first.iterdir() if file.name != _META}

    def _launch_zookeeper(self) -> None:
        """Start ZooKeeper without waiting for it: brokers retry until it answers."""
        file = self.folder / f"{_ZOOKEEPER}.properties"
        _write_properties(file, zookeeper_server_properties(self.addresses, self.folder / f"{_ZOOKEEPER}.data"))
        command = [*self._java, "org.apache.zookeeper.server.ZooKeeperServerMain", str(file)]
        self._keeper.spawn(_ZOOKEEPER, command, os.environ, self.folder / f"{_ZOOKEEPER}.log")

    def _launch(self, index: int) -> int:
        """Start the node's process; return the length of its log before that, in bytes."""
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
        while self._release.started not in _since(self.nodes[index].log, offset):
            if not self.alive(index):
                raise self._failed(index, offset, "ended while starting")
            if time.monotonic() > deadline:
                raise self._failed(index, offset, f"did not start within {_START_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)

    def _failed(self, index: int, offset: int, what: str) -> HeliographError:
        tail, node = self.log_tail(index), self.nodes[index]
        if _REGISTERED in _since(node.log, offset):
            return _StillRegistered(f"cluster {self.name}: ZooKeeper still has the session of node {node.node_id}")
        if _PORT_TAKEN in _since(node.log, 0):
            return PortInUse(f"cluster {self.name}: node {node.node_id} cannot listen: one of its ports is in use")
        return PermanentError(f"cluster {self.name}: node {node.node_id} {what}. The end of its log:\n{tail}")

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


def _class_archive(release: Release) -> tuple[str, ...]:
    """Return the JVM options that name the archive of Kafka's classes, which is recorded first if it is missing; empty
    while another process records it, and for the rest of this process once recording failed."""
    home = java.find().home  # before anything is downloaded
    jars = [Path(jar) for jar in release.class_path().split(os.pathsep)]
    archive = ClassArchive.of("kafka", home, jars)
    path = archive.find()
    if path is None and release not in _unrecorded:
        try:
            path = _record(archive, release)
        except (HeliographError, OSError) as error:
            _log.warning("Could not record Kafka's classes; brokers start more slowly: %s", error)
            _unrecorded.add(release)
    # Verification reads the archive once (0.05 s); a damaged archive would crash the JVM.
    return () if path is None else (f"-XX:SharedArchiveFile={path}", "-XX:+VerifySharedSpaces")


def _record(archive: ClassArchive, release: Release) -> Path | None:
    """Start one broker, stop it, and keep the classes that it loaded. Return None while another process does so."""
    draft = archive.draft()
    with (archive.folder / "recording.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        print("recording the classes that Kafka loads, once", file=sys.stderr, flush=True)
        folder = Path(tempfile.mkdtemp(prefix="heliograph-recording-"))
        command = release.java_command((*QUICK_JVM, f"-XX:ArchiveClassesAtExit={draft}"))
        addresses = choose_addresses(1, None, {}, None)
        try:
            with KafkaCluster("recording", folder, addresses, {}, (), release, command) as cluster:
                cluster._start_all()
                cluster.stop_node(0)
            return archive.keep(draft)
        finally:
            draft.unlink(missing_ok=True)


def _refuse_taken(name: str, client_ports: Sequence[int]) -> None:
    for port in client_ports:
        if not cluster_config.is_free(port):
            raise PortInUse(f"cluster {name}: port {port} is in use. Choose another port or stop its process.")


def _write_properties(file: Path, properties: Mapping[str, str]) -> None:
    file.write_text(javaproperties.dumps(properties, timestamp=None), encoding="ascii")


def _kafka_uuid() -> str:
    """A random id as ``org.apache.kafka.common.Uuid`` writes it."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        # Kafka avoids these too: on a command line they look like an option.
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
    """Return the end of a log without stack frames, which would hide the error."""
    informative = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    return "\n".join(line[:_LINE_CHARACTERS] for line in informative[-_TAIL_LINES:])
