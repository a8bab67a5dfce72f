"""Jars from Maven Central as a class path, resolved and fetched through jgo, kept in the user's cache folder."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from connect.core.errors import DownloadFailed, PermanentError
from connect.embedded.cache import cache_dir

REPOSITORY_VARIABLE = "HELIOGRAPH_MAVEN_URL"
"""Environment variable with the address of a mirror to ask in place of Maven Central."""


def classpath(coordinates: Sequence[str]) -> list[Path]:
    """Jars of ``coordinates`` (``group:artifact:version``) and all they need at run time, fetched where missing.

    The answer is remembered, so that a second call reads one small file. Of two versions of one artifact the one
    nearer to the root wins, and the earlier coordinate's among equals, as in Maven.

    Raises:
        DownloadFailed: No answer from Maven Central, or not the file it should be.
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
            # Another process may have fetched them while this one waited for the lock.
            return _read(listing, root) or _fetch(coordinates, listing, root)
    except (DownloadFailed, PermanentError):
        raise
    except OSError as error:
        raise PermanentError(
            f"cannot write to the cache folder {root}: {error.strerror or error}; make room there, "
            "or set XDG_CACHE_HOME to a folder on another disk"
        ) from error


def _fetch(coordinates: Sequence[str], listing: Path, root: Path) -> list[Path]:
    # Imported here, since jgo and requests take longer to load than the remembered answer to read.
    from connect.embedded.download import fetch

    jars = fetch(coordinates, root / "maven", os.environ.get(REPOSITORY_VARIABLE))
    listing.parent.mkdir(parents=True, exist_ok=True)
    draft = listing.with_suffix(".draft")
    draft.write_text("".join(f"{jar.relative_to(root)}\n" for jar in jars))
    os.replace(draft, listing)
    return jars


def _read(listing: Path, root: Path) -> list[Path]:
    """The remembered class path; empty where there is none or a jar of it has gone."""
    try:
        jars = [root / line for line in listing.read_text().splitlines()]
    except FileNotFoundError:
        return []
    return jars if all(jar.is_file() for jar in jars) else []


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Holds the lock file; one process fetches, the others wait for it and say so."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(
                "waiting for another process that is downloading jars",
                file=sys.stderr,
                flush=True,
            )
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
