"""The jars of Apache Kafka in the cache folder, downloaded from Maven Central and verified."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

from connect.core.errors import ConfigError, DownloadFailed, PermanentError
from connect.embedded.java import cache_dir, find_java

REPOSITORY_VARIABLE: Final = "HELIOGRAPH_MAVEN_URL"
"""Environment variable with the address of a mirror to use in place of Maven Central."""

HOME_VARIABLE: Final = "KAFKA_HOME"
"""Environment variable with the folder of an unpacked Apache Kafka to use in place of downloaded jars."""

DEFAULT_VERSION: Final = "4.3.1"

#: Kafka's poms name no logging backend. Its distribution contains log4j 2.
JARS: Final = (f"org.apache.kafka:kafka_2.13:{DEFAULT_VERSION}", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")

HEAP_MB: Final = 256


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
    try:
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
    options = [f"-Xmx{HEAP_MB}m", *jvm_options, "-Djava.awt.headless=true"]
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
