"""Starts, watches and stops clusters of real Apache Kafka brokers; each node is broker and controller (KRaft).

Kafka's jars are in the cache folder, downloaded from Maven Central and verified, or in ``KAFKA_HOME``.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

import javaproperties

from connect.core.errors import ConfigError, DownloadFailed, HeliographError, PermanentError, RetriableError
from connect.embedded import cluster_config
from connect.embedded.cluster_config import HOST, NodePorts, broker_properties, choose_ports
from connect.embedded.java import ClassArchive, cache_dir, find_java
from connect.embedded.processes import Keeper

#: Environment variable with the address of a mirror to use in place of Maven Central.
REPOSITORY_VARIABLE: Final = "HELIOGRAPH_MAVEN_URL"
#: Environment variable with the folder of an unpacked Apache Kafka to use in place of downloaded jars.
HOME_VARIABLE: Final = "KAFKA_HOME"
DEFAULT_VERSION: Final = "4.3.1"
#: Kafka's poms name no logging backend. Its distribution contains log4j 2.
JARS: Final = (f"org.apache.kafka:kafka_2.13:{DEFAULT_VERSION}", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")
#: JVM options for short-lived brokers on few cores: a start takes a third less time, with fewer compiler threads.
QUICK_JVM: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

_START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 120.0
_POLL_S = 0.02
_START_ATTEMPTS = 4
_TAIL_LINES = 15
_LINE_CHARACTERS = 400
_PORT_TAKEN = b"Address already in use"
_META = "meta.properties"

#: The files that formatting wrote, without the ids, by the command of JVM and release.
_formatted: dict[tuple[str, ...], dict[str, bytes]] = {}
#: What this process failed to record; it does not retry.
_unrecorded: set[ClassArchive] = set()

_log = logging.getLogger(__name__)


class PortInUse(RetriableError):
    """A port of a broker that another process listens on."""


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
    ``nodes[i]`` has Kafka's node id ``i + 1``. Not thread-safe, except that threads may end different nodes at once."""

    #: The text in a broker's log that says that it serves requests.
    started_text = b"Kafka Server started"

    def __init__(
        self, name: str, ports: Sequence[NodePorts], folder: Path, config: Mapping[str, str], command: Sequence[str]
    ) -> None:
        """Start only the keeper process; ``KafkaCluster.start`` starts a cluster. ``command`` is a JVM's."""
        self.name = name
        self.ports = tuple(ports)
        self.folder = folder
        self.nodes: list[KafkaNode] = []
        self._config = dict(config)
        # log4j's default writes to standard output.
        self._java = [*command, "-Dlog4j2.level=INFO"]
        self._keeper = Keeper(folder)

    @classmethod
    def start(
        cls,
        name: str,
        *,
        nodes: int = 1,
        config: Mapping[str, str] | None = None,
        client_ports: Sequence[int] | None = None,
        jvm_options: Sequence[str] = QUICK_JVM,
    ) -> Self:
        """Start a cluster and return it when every broker serves requests.

        Args:
            config: Broker properties that override the defaults.
            client_ports: One per node; by default free ports are chosen.
            jvm_options: In addition to the heap of 256 MB; pass ``()`` to measure a broker's speed.

        Raises:
            PortInUse: One of ``client_ports`` is taken.
            PermanentError: A broker did not start; the message ends with the tail of its log.
            JavaNotFound, DownloadFailed, ConfigError: Java or Kafka is missing, or KAFKA_HOME is wrong.
        """
        if client_ports is not None and len(client_ports) != nodes:
            raise ConfigError(f"cluster {name}: {len(client_ports)} client ports for {nodes} nodes")
        # First, because it fails without Java or Kafka, and then there is no folder to remove.
        command = broker_command(jvm_options)
        return cls._attempted(
            lambda: cls(name, _free_ports(name, nodes, client_ports), new_folder(name), config or {}, command)
        )

    @classmethod
    def _attempted(cls, make: Callable[[], Self]) -> Self:
        """Start a cluster from ``make``; again if another process took a port between its choice and the bind."""
        for left in reversed(range(_START_ATTEMPTS)):
            cluster = make()
            try:
                cluster._start_all()
                return cluster
            except BaseException as error:
                cluster.stop()
                if not (left and isinstance(error, PortInUse)):
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    @property
    def bootstrap(self) -> str:
        """``host:port`` of every node, comma-separated."""
        return ",".join(f"{HOST}:{node.clients}" for node in self.ports)

    def alive(self, index: int) -> bool:
        """Return whether the node's process exists, even if it is frozen."""
        return self._keeper.poll(node_label(index)) is None

    def end_node(self, index: int, number: int) -> None:
        """Send a signal to the node's process; return when that has ended."""
        self._keeper.signal(node_label(index), number)
        if not self._keeper.wait(node_label(index), _STOP_TIMEOUT_S):
            said = f"still runs {_STOP_TIMEOUT_S:.0f} s after signal {number}"
            raise PermanentError(f"cluster {self.name}: node {index + 1} {said}")

    def start_node(self, index: int) -> None:
        """Start a node that has ended, with its ports and files; return when it serves requests."""
        self._await_started(index, self._launch(index))

    def log_file(self, index: int) -> Path:
        return self.folder / f"{node_label(index)}.log"

    def stop(self) -> None:
        """Kill every node and remove the files. May be called again."""
        self._keeper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_all(self) -> None:
        for index in range(len(self.ports)):
            _write_properties(self._properties_file(index), self._properties(index))
        self._format()
        # Start all before waiting for any: the first serves requests only once there is a quorum.
        offsets = [self._launch(index) for index in range(len(self.ports))]
        for index, offset in enumerate(offsets):
            self._await_started(index, offset)

    def _properties(self, index: int) -> dict[str, str]:
        return broker_properties(index + 1, self.ports, self._data(index), self._config)

    def _format(self) -> None:
        """Do what ``kafka-storage.sh format`` does. Its tool runs once per release, because only the ids differ
        between nodes and between clusters: each further format saves the start of a JVM."""
        cluster_id, key = _kafka_uuid(), tuple(self._java)
        files = _formatted.get(key)
        if files is None:
            files = _formatted[key] = self._run_format(cluster_id)
        for index in range(len(self.ports)):
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

    def _launch(self, index: int) -> int:
        """Start the node's process; return the length of its log before that, in bytes."""
        log = self.log_file(index)
        offset = log.stat().st_size if log.exists() else 0
        # A killed JVM leaves the libraries of its codecs, which it unpacks there.
        command = [*self._java, f"-Djava.io.tmpdir={self.folder}", "kafka.Kafka", str(self._properties_file(index))]
        pid = self._keeper.spawn(node_label(index), command, os.environ, log)
        node = KafkaNode(index + 1, self.ports[index].clients, pid, log, self._data(index))
        self.nodes[index : index + 1] = [node]
        return offset

    def _await_started(self, index: int, offset: int) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self.started_text not in since(self.nodes[index].log, offset):
            if not self.alive(index):
                raise self._failed(index, offset, "ended while starting")
            if time.monotonic() > deadline:
                raise self._failed(index, offset, f"did not start within {_START_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)

    def _failed(self, index: int, offset: int, what: str) -> HeliographError:
        node, name = self.nodes[index], f"cluster {self.name}: node {index + 1}"
        if _PORT_TAKEN in since(node.log, offset):
            return PortInUse(f"{name} cannot listen: one of its ports is in use")
        tail = _last_lines(node.log.read_text(errors="replace"))
        return PermanentError(f"{name} {what}. The end of its log:\n{tail}")

    def _data(self, index: int) -> Path:
        return self.folder / f"{node_label(index)}.data"

    def _properties_file(self, index: int) -> Path:
        return self.folder / f"{node_label(index)}.properties"


def broker_command(jvm_options: Sequence[str]) -> list[str]:
    """Return the command of a broker's JVM, with an archive of its classes. Errors as ``KafkaCluster.start``."""
    archive = () if os.environ.get(HOME_VARIABLE) else _class_archive()
    return java_command(kafka_class_path(), (*archive, *jvm_options))


def new_folder(name: str, base: Path | None = None) -> Path:
    """Return a new folder for a cluster's files, by default in the system's temporary folder."""
    return Path(tempfile.mkdtemp(prefix=f"heliograph-{name}-", dir=base))


def _class_archive() -> tuple[str, ...]:
    """Return the JVM options that name the archive of Kafka's classes, which is recorded first if it is missing; empty
    while another process records it, and for the rest of this process once recording failed."""
    home = find_java().home  # before anything is downloaded
    jars = [Path(jar) for jar in kafka_class_path().split(os.pathsep)]
    archive = ClassArchive.of("kafka", home, jars)
    path = archive.find()
    if path is None and archive not in _unrecorded:
        try:
            path = _record(archive)
        except (HeliographError, OSError) as error:
            _log.warning("Could not record Kafka's classes; brokers start more slowly: %s", error)
            _unrecorded.add(archive)
    # Verification reads the archive once (0.05 s); a damaged archive would crash the JVM.
    return () if path is None else (f"-XX:SharedArchiveFile={path}", "-XX:+VerifySharedSpaces")


def _record(archive: ClassArchive) -> Path | None:
    """Start one broker, stop it, and keep the classes that it loaded. Return None while another process does so."""
    draft = archive.draft()
    with (archive.folder / "recording.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        print("recording the classes that Kafka loads, once", file=sys.stderr, flush=True)
        command = java_command(kafka_class_path(), (*QUICK_JVM, f"-XX:ArchiveClassesAtExit={draft}"))
        try:
            with KafkaCluster("recording", choose_ports(1, None), new_folder("recording"), {}, command) as cluster:
                cluster._start_all()
                cluster.end_node(0, signal.SIGTERM)
            return archive.keep(draft)
        finally:
            draft.unlink(missing_ok=True)


def _free_ports(name: str, nodes: int, client_ports: Sequence[int] | None) -> list[NodePorts]:
    for port in client_ports or ():
        if not cluster_config.is_free(port):
            raise PortInUse(f"cluster {name}: port {port} is in use. Choose another port or stop its process.")
    return choose_ports(nodes, client_ports)


def _write_properties(file: Path, properties: Mapping[str, str]) -> None:
    file.write_text(javaproperties.dumps(properties, timestamp=None), encoding="ascii")


def _kafka_uuid() -> str:
    """A random id as ``org.apache.kafka.common.Uuid`` writes it."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        # Kafka avoids these too: on a command line they look like an option.
        if not text.startswith("-"):
            return text


def node_label(index: int) -> str:
    return f"node-{index + 1}"


def since(log: Path, offset: int) -> bytes:
    with log.open("rb") as file:
        file.seek(offset)
        return file.read()


def _last_lines(text: str) -> str:
    """Return the end of a log without stack frames, which would hide the error."""
    informative = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    return "\n".join(line[:_LINE_CHARACTERS] for line in informative[-_TAIL_LINES:])


def classpath(coordinates: Sequence[str]) -> list[Path]:
    """Return the jars of ``coordinates`` (``group:artifact:version``) and of all they need at run time, in order.

    The result is stored, so that a second call reads one small file. Of two versions of one artifact the one nearer
    to the root wins, among equals the one of the earlier coordinate, as in Maven. Raises DownloadFailed if Maven
    Central does not answer or sends a wrong file, PermanentError if the cache folder cannot be written.
    """
    root = cache_dir()
    digest = sha256("\n".join(coordinates).encode()).hexdigest()[:16]
    listing = root / "classpath" / f"{digest}.txt"
    try:
        if known := _read(listing, root):
            return known
        with _only_one(root / "maven.lock"):
            # Another process may have downloaded them while this one waited for the lock.
            return _read(listing, root) or _fetch(coordinates, listing, root)
    except (DownloadFailed, PermanentError):
        raise
    except OSError as error:
        raise PermanentError(
            f"cannot write to the cache folder {root}: {error.strerror or error}. Free space there, "
            "or set XDG_CACHE_HOME to a folder on another disk."
        ) from error


def _fetch(coordinates: Sequence[str], listing: Path, root: Path) -> list[Path]:
    try:
        # Here, because jgo and requests take longer to load than the stored class path to read.
        from connect.embedded.maven_download import fetch
    except ModuleNotFoundError:
        raise PermanentError(
            "cannot download Apache Kafka without the package jgo. Install heliograph[embedded], or set KAFKA_HOME to "
            "an unpacked Apache Kafka."
        ) from None

    jars = fetch(coordinates, root / "maven", os.environ.get(REPOSITORY_VARIABLE))
    listing.parent.mkdir(parents=True, exist_ok=True)
    draft = listing.with_suffix(".draft")
    draft.write_text("".join(f"{jar.relative_to(root)}\n" for jar in jars))
    os.replace(draft, listing)
    return jars


def _read(listing: Path, root: Path) -> list[Path]:
    """Return the stored class path; empty if there is none or a jar of it is missing."""
    try:
        jars = [root / line for line in listing.read_text().splitlines()]
    except FileNotFoundError:
        return []
    return jars if all(jar.is_file() for jar in jars) else []


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Hold the lock file; print a line before waiting for another process that holds it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another process that is downloading jars", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def java_command(class_path: str, jvm_options: Sequence[str]) -> list[str]:
    """Return the command of a JVM with Kafka's classes. Raises JavaNotFound."""
    options = ["-Xmx256m", *jvm_options, "-Djava.awt.headless=true"]
    return [str(find_java().executable), *options, "-cp", class_path]


def kafka_class_path() -> str:
    """Return the class path of a broker: the jars in KAFKA_HOME if that is set, else Maven's. Raises DownloadFailed, or
    ConfigError if KAFKA_HOME is wrong."""
    home = os.environ.get(HOME_VARIABLE)
    if not home:
        return os.pathsep.join(map(str, classpath(JARS)))
    libraries = Path(home) / "libs"
    if not any(libraries.glob("kafka_2.*.jar")):
        raise ConfigError(f"KAFKA_HOME={home} has no Apache Kafka (no libs/kafka_2.*.jar); correct or unset it")
    return str(libraries / "*")
