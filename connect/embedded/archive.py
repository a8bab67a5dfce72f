"""Archives of the classes that a JVM loads at its start (AppCDS), kept in the cache folder.

A start with an archive takes half as long. No start needs one: a JVM whose archive does not fit starts without it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from connect.embedded.cache import cache_dir

_SUFFIX: Final = ".jsa"


@dataclass(frozen=True)
class ClassArchive:
    """The archive of one program for one Java: ``folder/stem-LENGTH.jsa``.

    The name carries the length in bytes, because a JVM that maps a truncated archive crashes.
    """

    folder: Path
    stem: str

    @classmethod
    def of(cls, program: str, java_home: Path, jars: Iterable[Path]) -> Self:
        """Name the archive after the Java and after ``jars``, the class path: the JVM refuses the archive in silence
        once one of them has another length or time of change.

        Raises:
            OSError: One of the jars is not there.
        """
        parts = [
            f"{jar.name} {found.st_size} {found.st_mtime_ns}" for jar, found in ((jar, jar.stat()) for jar in jars)
        ]
        release = java_home / "release"
        described = release.read_text(errors="replace") if release.is_file() else ""
        digest = hashlib.sha256("|".join([str(java_home.resolve()), described, *parts]).encode()).hexdigest()[:16]
        return cls(cache_dir() / program, f"classes-{digest}")

    def find(self) -> Path | None:
        """Return the archive if it is there and whole."""
        for path in sorted(self.folder.glob(f"{self.stem}-*{_SUFFIX}")):
            if path.stem == f"{self.stem}-{path.stat().st_size}":
                return path
        return None

    def draft(self) -> Path:
        """Return the path for a recording JVM to write to (``-XX:ArchiveClassesAtExit``); make its folder.

        Raises:
            OSError: The cache folder cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{self.stem}.{os.getpid()}"

    def keep(self, draft: Path) -> Path:
        """Move a finished draft to its final name.

        Raises:
            OSError: The JVM wrote no archive, or the cache folder cannot be written.
        """
        return draft.replace(self.folder / f"{self.stem}-{draft.stat().st_size}{_SUFFIX}")
