"""Clusters of real Apache Kafka brokers, started, broken and stopped on purpose.

Each node is broker and controller (KRaft, combined mode); releases of before that have one ZooKeeper beside them.
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

from connect.core.errors import (
    ConfigError,
    HeliographError,
    PermanentError,
    RetriableError,
)
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
"""JVM options for a short life on few cores: up a third sooner, and no compiler threads beside what is tested."""

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

#: What formatting wrote beside the ids, by JVM, release and settings of a cluster.
_formatted: dict[tuple[str, ...], dict[str, bytes]] = {}

#: The releases whose classes this process failed to record; it does not try again.
_unrecorded: set[Release] = set()

_log = logging.getLogger(__name__)


class PortInUse(RetriableError):
    """Another process listens where a broker should."""


class _StillRegistered(RetriableError):
    """ZooKeeper has not noticed yet that the process before has gone."""


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
        racks: Sequence[str],
        release: Release,
        java_command: Sequence[str],
    ) -> None:
        """Starts nothing but the keeper; ``KafkaCluster.start`` is the way in."""
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
        """Starts a cluster and returns when every broker serves requests.

        Args:
            name: For messages and file names.
            nodes: How many brokers.
            version: Which Apache Kafka, from 2.8.0 on; another one than the default comes from Maven Central always.
            base_dir: Folder for the brokers' files; the system's temporary folder unless given.
            config: Broker properties that win over the defaults.
            racks: One for each node, if any; clients in one of them are sent to the replica there (KIP-392).
            client_ports: One for each node, in place of free ones chosen here.
            listeners: Extra listeners, name to security protocol; ``bootstrap_of`` tells their addresses.
            advertised: Called with the node's index and the port of an extra listener, before the broker starts;
                returns the address that its clients are told. For a TCP proxy in between. It is plaintext unless
                ``listeners`` says otherwise of ``PROXIED``.
            jvm_options: Besides the heap of 256 MB; pass ``()`` where the broker's speed is measured.

        Raises:
            PortInUse: One of ``client_ports`` is taken.
            PermanentError: A broker did not come up; the text ends with the tail of its log.
            JavaNotFound, DownloadFailed, ConfigError: There is no Java, no Kafka, or a wrong KAFKA_HOME.
        """
        if client_ports is not None and len(client_ports) != nodes:
            raise ConfigError(f"cluster {name}: {len(client_ports)} client ports for {nodes} nodes")
        release = Release.of(version)
        # Before there is a folder to remove, should there be no Java or Kafka.
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
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                self._await_started(index, self._launch(index))
                return
            except _StillRegistered:
                if time.monotonic() > deadline:
                    raise

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
        # All before waiting for any: the first serves requests only once a quorum is there.
        offsets = [self._launch(index) for index in range(len(self.addresses))]
        for index, offset in enumerate(offsets):
            self._await_started(index, offset)

    def _format(self) -> None:
        """What ``kafka-storage.sh format`` does. Only the ids differ from node to node and from cluster to cluster, so
        that with the same settings it is done once, which spares a JVM each further time."""
        cluster_id, key = (
            _kafka_uuid(),
            (*self._java, *(f"{name}={self._config[name]}" for name in sorted(self._config))),
        )
        files = _formatted.get(key)
        if files is None:
            files = _formatted[key] = self._run_format(cluster_id)
        for index in range(len(self.addresses)):
            data = self._data(index)
            data.mkdir(exist_ok=True)
            for name, content in files.items():
                (data / name).write_bytes(content)
            # Kafka's MetaPropertiesVersion.V1: a directory has an id of its own (KIP-858).
            meta = {"version": "1", "cluster.id": cluster_id, "node.id": str(index + 1), "directory.id": _kafka_uuid()}
            _write_properties(data / _META, meta)

    def _run_format(self, cluster_id: str) -> dict[str, bytes]:
        """Let Kafka's own tool format the first node; what it wrote beside the ids."""
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
            raise PermanentError(f"cluster {self.name}: storage in {first} cannot be formatted:\n{output}")
        return {file.name: file.read_bytes() for file in first.iterdir() if file.name != _META}

    def _launch_zookeeper(self) -> None:
        """Nobody waits for it: brokers try until it answers."""
        file = self.folder / f"{_ZOOKEEPER}.properties"
        _write_properties(file, zookeeper_server_properties(self.addresses, self.folder / f"{_ZOOKEEPER}.data"))
        command = [*self._java, "org.apache.zookeeper.server.ZooKeeperServerMain", str(file)]
        self._keeper.spawn(_ZOOKEEPER, command, os.environ, self.folder / f"{_ZOOKEEPER}.log")

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
        while self._release.started not in _since(self.nodes[index].log, offset):
            if not self.alive(index):
                raise self._failed(index, offset, "ended while starting")
            if time.monotonic() > deadline:
                raise self._failed(index, offset, f"did not come up within {_START_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)

    def _failed(self, index: int, offset: int, what: str) -> HeliographError:
        tail, node = self.log_tail(index), self.nodes[index]
        if _REGISTERED in _since(node.log, offset):
            return _StillRegistered(f"cluster {self.name}: ZooKeeper still lists node {node.node_id}")
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


def _class_archive(release: Release) -> tuple[str, ...]:
    """Return the JVM options that name the archive of Kafka's classes; record it first if there is none.

    Empty while another process records it, and for the rest of this process when it could not be recorded.
    """
    home = java.find().home  # before anything is downloaded
    jars = [Path(jar) for jar in release.class_path().split(os.pathsep)]
    archive = ClassArchive.of("kafka", home, jars)
    path = archive.find()
    if path is None and release not in _unrecorded:
        try:
            path = _record(archive, release)
        except (HeliographError, OSError) as error:
            _log.warning("Kafka's classes cannot be recorded, so that brokers start more slowly: %s", error)
            _unrecorded.add(release)
    # Verification reads the archive once, 0.05 s; a damaged one would crash the JVM.
    return () if path is None else (f"-XX:SharedArchiveFile={path}", "-XX:+VerifySharedSpaces")


def _record(archive: ClassArchive, release: Release) -> Path | None:
    """Start one broker, stop it, and keep the classes that it loaded; None while another process does so."""
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
            raise PortInUse(f"cluster {name}: port {port} is in use; name another one or end what listens there")


def _write_properties(file: Path, properties: Mapping[str, str]) -> None:
    file.write_text(javaproperties.dumps(properties, timestamp=None), encoding="ascii")


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
