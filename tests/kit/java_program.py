"""Kafka's own Java programs as child processes: jars from Maven Central, a log of their own, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import javaproperties

from connect.embedded.brokers import QUICK_JVM, classpath
from connect.embedded.java import find_java
from connectors.client import OffsetAndMetadata, Offsets, TopicPartition

KAFKA_VERSION: Final = "4.3.1"
#: What makes slf4j, which Kafka logs with, go to log4j2; the last on a class path.
LOGGING: Final = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
#: As Kafka's own start script sets them for a Connect worker (``kafka-run-class``, ``connect-distributed``).
JVM_OPTIONS: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
COORDINATES: Final = (
    f"org.apache.kafka:connect-mirror:{KAFKA_VERSION}",
    f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
    LOGGING,
)
DEFAULT, IDENTITY = "DefaultReplicationPolicy", "IdentityReplicationPolicy"
_JUDGE_DEADLINE_S: Final = 300.0
_JUDGE: Final = Path(__file__).parent.parent / "interop" / "RemoteClusterUtilsJudge.java"
_AT: Final = "at "
_STOP_TIMEOUT_S: Final = 60.0
_TAIL_BYTES: Final = 4000
#: Asks Linux to kill the process when its parent ends, however that ends, then becomes the program.
_DIE_WITH_PARENT: Final = (
    "import ctypes, os, signal, sys\nctypes.CDLL(None).prctl(1, signal.SIGKILL)\nos.execv(sys.argv[1], sys.argv[1:])"
)

_LOG4J2: Final = """\
status = warn
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}}: %m%n
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
"""


def format_properties(properties: Mapping[str, str]) -> str:
    return javaproperties.dumps(properties, timestamp=None)


def java_command(
    coordinates: Sequence[str],
    main_class: str,
    arguments: Sequence[str],
    *,
    heap: str = "1g",
    log4j2: Path | None = None,
    jvm_options: Sequence[str] = JVM_OPTIONS,
) -> list[str]:
    """The command line that runs a class with the jars of ``coordinates`` on its path."""
    jars = os.pathsep.join(str(jar) for jar in classpath(coordinates))
    logging = [f"-Dlog4j2.configurationFile={log4j2}"] if log4j2 else []
    return [str(find_java().executable), *jvm_options, f"-Xmx{heap}", *logging, "-cp", jars, main_class, *arguments]


def write_log4j2(folder: Path, file: Path, *, level: str = "INFO") -> Path:
    """A configuration of log4j2 in ``folder`` that logs to ``file``."""
    configuration = folder / f"{file.stem}.log4j2.properties"
    configuration.write_text(_LOG4J2.format(file=file, level=level))
    return configuration


class JavaProgram:
    """A Java program that is given one properties file; a context manager that leaves no process behind."""

    coordinates: Sequence[str]
    main_class: str

    def __init__(
        self,
        properties: Mapping[str, str] | Path,
        log: Path,
        *,
        heap: str = "2g",
        jvm_options: Sequence[str] = JVM_OPTIONS,
    ) -> None:
        self.log = log
        self._jvm_options = jvm_options
        self._properties = properties
        self._heap = heap
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if self._process is not None:
            raise RuntimeError(f"this {self.main_class} was started before; make another one")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = java_command(
            self.coordinates,
            self.main_class,
            [str(self._file())],
            heap=self._heap,
            log4j2=write_log4j2(self.log.parent, self.log),
            jvm_options=self._jvm_options,
        )
        with self.log.with_suffix(".out").open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-c", _DIE_WITH_PARENT, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> int:
        """SIGTERM, so that it commits its offsets; the exit code (143 after a signal)."""
        process = self._started()
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(
                f"{self.main_class} was not down {timeout_s:.0f} s after SIGTERM; log: {self.log}"
            ) from None

    def kill(self) -> None:
        process = self._started()
        process.kill()
        process.wait()

    def freeze(self) -> None:
        self._started().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._started().send_signal(signal.SIGCONT)

    def tail(self) -> str:
        parts = [path.read_text(errors="replace") for path in (self.log, self.log.with_suffix(".out")) if path.exists()]
        return "\n".join(part[-_TAIL_BYTES:] for part in parts)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.kill()

    def _file(self) -> Path:
        if isinstance(self._properties, Path):
            return self._properties
        file = self.log.with_suffix(".properties")
        file.write_text(format_properties(self._properties))
        return file

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"this {self.main_class} was not started")
        return self._process


#: The mirror, the worker, and Kafka's tools.


class JavaToolFailed(Exception):
    """A Java tool ended with another exit code than 0; the text holds the end of what it printed."""


def run_tool(main_class: str, arguments: Sequence[str], *, timeout_s: float = 300, heap: str = "1g") -> str:
    """Runs one of Kafka's tools to its end; its standard output. Raises JavaToolFailed."""
    with tempfile.TemporaryDirectory(prefix="kafka-tool-") as folder:
        log4j2 = write_log4j2(Path(folder), Path(folder) / "tool.log", level="WARN")
        command = java_command(COORDINATES, main_class, arguments, heap=heap, log4j2=log4j2)
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    if done.returncode != 0:
        tail = (done.stdout + done.stderr)[-_TAIL_BYTES:]
        raise JavaToolFailed(f"{main_class} ended with exit code {done.returncode}: {tail}")
    return done.stdout


def judged(judge: Path, lines: Iterable[str]) -> list[str]:
    jars = os.pathsep.join(str(jar) for jar in classpath(COORDINATES))
    done = subprocess.run(
        [str(find_java().executable), *QUICK_JVM, "-cp", jars, str(judge)],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=_JUDGE_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-_TAIL_BYTES:]
    return done.stdout.splitlines()


class JavaMirrorMaker(JavaProgram):
    coordinates: Sequence[str] = COORDINATES
    main_class = "org.apache.kafka.connect.mirror.MirrorMaker"


def ask_java(questions: Sequence[str]) -> list[list[str]]:
    """The lines that Java answers to each question (function, bootstrap, policy and arguments), sorted."""
    answers: list[list[str]] = [[]]
    for line in judged(_JUDGE, questions):
        if line == "end":
            answers.append([])
        else:
            answers[-1].append(line)
    return [sorted(answer) for answer in answers[:-1]]


def offsets_reported(answer: Sequence[str]) -> dict[str, Offsets]:
    """By group, of an answer to ``translate`` or ``translate-all``."""
    found: dict[str, Offsets] = {}
    for line in answer:
        group, topic, partition, offset, metadata = line.removeprefix(_AT).split(" ", 4)
        place = TopicPartition(topic, int(partition))
        found.setdefault(group, {})[place] = OffsetAndMetadata(int(offset), metadata)
    return found
