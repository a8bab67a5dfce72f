"""The releases of Apache Kafka that can be started here, and what differs between them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from connect.core.errors import ConfigError
from connect.embedded import java, maven

DEFAULT_VERSION: Final = "4.3.1"

HEAP_MB: Final = 256

_OLDEST: Final = (2, 8)
#: Brokers keep their metadata themselves, and fit for use, from here on (KIP-833).
_KRAFT_FROM: Final = (3, 3)
_LOG4J_2_FROM: Final = (4, 0)
_NUMBERS: Final = re.compile(r"(\d+)\.(\d+)\.\d+")

# Kafka's poms name no logging backend; log4j 2 is the one its own distribution ships, and reload4j that of its later
# releases of the time before.
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
    """One release, such as 4.3.1."""

    version: str
    numbers: tuple[int, int]

    @classmethod
    def of(cls, version: str) -> Self:
        """Raises ConfigError for what is no release, or one of before 2.8."""
        found = _NUMBERS.fullmatch(version)
        if not found:
            raise ConfigError(f"{version!r} is no release of Apache Kafka; one looks like {DEFAULT_VERSION}")
        numbers = int(found[1]), int(found[2])
        if numbers < _OLDEST:
            raise ConfigError(f"Apache Kafka {version} is too old to be started here; 2.8 is the oldest that can be")
        return cls(version, numbers)

    @property
    def jars(self) -> tuple[str, ...]:
        """Maven coordinates of a broker."""
        return (f"org.apache.kafka:kafka_2.13:{self.version}", _LOG4J_1 if self._has_log4j_1 else _LOG4J_2)

    @property
    def needs_zookeeper(self) -> bool:
        return self.numbers < _KRAFT_FROM

    @property
    def started(self) -> bytes:
        """What a broker's log says once it serves requests."""
        return b"] started" if self.needs_zookeeper else b"Kafka Server started"

    def java_command(self, jvm_options: tuple[str, ...]) -> list[str]:
        """A JVM with Kafka's classes: those of KAFKA_HOME for the default release, where that is set.

        Raises:
            JavaNotFound, DownloadFailed, ConfigError: There is no Java, no Kafka, or a wrong KAFKA_HOME.
        """
        options = [f"-Xmx{HEAP_MB}m", *jvm_options, "-Djava.awt.headless=true"]
        return [str(java.find_java()), *options, "-cp", self.class_path()]

    def logging_options(self, folder: Path) -> list[str]:
        """JVM options that send the log to standard output, from INFO on; a file they need is written to ``folder``."""
        if not self._has_log4j_1:
            # No file: log4j's own default writes to standard output, at this level.
            return ["-Dlog4j2.level=INFO"]
        settings = folder / "log4j.properties"
        settings.write_text(_LOG4J_1_SETTINGS, encoding="ascii")
        return [f"-Dlog4j.configuration={settings.as_uri()}"]

    def class_path(self) -> str:
        """Return the jars, those of KAFKA_HOME for the default release if that is set.

        Raises:
            DownloadFailed, ConfigError: There is no Kafka, or a wrong KAFKA_HOME.
        """
        home = self._home
        if not home:
            return os.pathsep.join(map(str, maven.classpath(self.jars)))
        libraries = Path(home) / "libs"
        if not any(libraries.glob("kafka_2.*.jar")):
            raise ConfigError(f"KAFKA_HOME={home} holds no Apache Kafka (no libs/kafka_2.*.jar); correct or unset it")
        return str(libraries / "*")

    @property
    def has_archive(self) -> bool:
        """Whether brokers start from an archive of their classes: the default release from Maven Central.

        Others are started too seldom to record one.
        """
        return self.version == DEFAULT_VERSION and not self._home

    @property
    def _home(self) -> str:
        return os.environ.get("KAFKA_HOME", "") if self.version == DEFAULT_VERSION else ""

    @property
    def _has_log4j_1(self) -> bool:
        return self.numbers < _LOG4J_2_FROM
