"""Releases of Apache Kafka in the cache folder, downloaded from Maven Central and verified."""

from __future__ import annotations

import fcntl
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from connect.core.errors import ConfigError, DownloadFailed, PermanentError
from connect.embedded import java
from connect.embedded.java import cache_dir

REPOSITORY_VARIABLE = "HELIOGRAPH_MAVEN_URL"
"""Environment variable with the address of a mirror to use in place of Maven Central."""


def classpath(coordinates: Sequence[str]) -> list[Path]:
    """Return the jars of ``coordinates`` (``group:artifact:version``) and of all they need at run time, in order.

    The result is stored, so that a second call reads one small file. Of two versions of one artifact the one nearer
    to the root wins, among equals the one of the earlier coordinate, as in Maven.

    Raises:
        DownloadFailed: Maven Central did not answer, or sent a wrong file.
        PermanentError: The cache folder cannot be written, e.g. because its disk is full.
    """
    root = cache_dir()
    digest = sha256("\n".join(coordinates).encode()).hexdigest()[:16]
    listing = root / "classpath" / f"{digest}.txt"
    try:
        known = _read(listing, root)
        if known:
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
    # Imported here, because jgo and requests take longer to load than the stored class path to read.
    from connect.embedded.maven_download import fetch

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


DEFAULT_VERSION: Final = "4.3.1"

HEAP_MB: Final = 256

_OLDEST: Final = (2, 8)
#: Oldest release whose brokers keep their metadata themselves in a way ready for production (KIP-833).
_KRAFT_FROM: Final = (3, 3)
_LOG4J_2_FROM: Final = (4, 0)
_NUMBERS: Final = re.compile(r"(\d+)\.(\d+)\.\d+")

# Kafka's poms name no logging backend. Its distribution contains log4j 2; that of late releases before 4.0, reload4j.
_LOG4J_2: Final = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
_LOG4J_1: Final = "org.slf4j:slf4j-reload4j:1.7.36"
_LOG4J_1_SETTINGS: Final = """\
log4j.rootLogger=INFO, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{HH:mm:ss.SSS} [%t] %-5p %c - %m%n
"""


@dataclass(frozen=True)
class Release:
    """One release of Apache Kafka, such as 4.3.1."""

    version: str
    numbers: tuple[int, int]

    @classmethod
    def of(cls, version: str) -> Self:
        """Parse a version; raise ConfigError if it is malformed or older than 2.8."""
        found = _NUMBERS.fullmatch(version)
        if not found:
            raise ConfigError(f"{version!r} is not a release of Apache Kafka; an example is {DEFAULT_VERSION}")
        numbers = int(found[1]), int(found[2])
        if numbers < _OLDEST:
            raise ConfigError(f"Apache Kafka {version} is too old to start here; the oldest is 2.8")
        return cls(version, numbers)

    @property
    def jars(self) -> tuple[str, ...]:
        """Maven coordinates of a broker's jars."""
        return (f"org.apache.kafka:kafka_2.13:{self.version}", _LOG4J_1 if self._has_log4j_1 else _LOG4J_2)

    @property
    def needs_zookeeper(self) -> bool:
        return self.numbers < _KRAFT_FROM

    @property
    def started(self) -> bytes:
        """The text in a broker's log that says that it serves requests."""
        return b"] started" if self.needs_zookeeper else b"Kafka Server started"

    def java_command(self, jvm_options: tuple[str, ...]) -> list[str]:
        """Return the command of a JVM with Kafka's classes. Errors as :meth:`class_path`, and JavaNotFound."""
        options = [f"-Xmx{HEAP_MB}m", *jvm_options, "-Djava.awt.headless=true"]
        return [str(java.find_java()), *options, "-cp", self.class_path()]

    def logging_options(self, folder: Path) -> list[str]:
        """Return the JVM options that log to standard output from INFO on; write a file they need to ``folder``."""
        if not self._has_log4j_1:
            # log4j's default writes to standard output.
            return ["-Dlog4j2.level=INFO"]
        settings = folder / "log4j.properties"
        settings.write_text(_LOG4J_1_SETTINGS, encoding="ascii")
        return [f"-Dlog4j.configuration={settings.as_uri()}"]

    def class_path(self) -> str:
        """Return the class path: the jars in KAFKA_HOME for the default release if that is set, else Maven's. Raises
        DownloadFailed, or ConfigError if KAFKA_HOME is wrong."""
        home = self._home
        if not home:
            return os.pathsep.join(map(str, classpath(self.jars)))
        libraries = Path(home) / "libs"
        if not any(libraries.glob("kafka_2.*.jar")):
            raise ConfigError(f"KAFKA_HOME={home} has no Apache Kafka (no libs/kafka_2.*.jar); correct or unset it")
        return str(libraries / "*")

    @property
    def has_archive(self) -> bool:
        """Whether brokers start from an archive of their classes: only those of the default release from Maven
        Central, because others start too rarely to record one."""
        return self.version == DEFAULT_VERSION and not self._home

    @property
    def _home(self) -> str:
        return os.environ.get("KAFKA_HOME", "") if self.version == DEFAULT_VERSION else ""

    @property
    def _has_log4j_1(self) -> bool:
        return self.numbers < _LOG4J_2_FROM
