"""This project's code as an archive for executors, and the name of the code that a process runs.

Executors of a cluster need not have the project installed: its packages are pure Python and are shipped with the jobs.
The name is a digest of the code, archived or installed, so that a slice with other code is recognised even if both
have the same version number.
"""

from __future__ import annotations

import functools
import hashlib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

PACKAGES: Final = ("connect", "connectors")
#: The packages that a slice runs, where the project is installed. A worker may differ in all others.
_SLICE: Final = (
    "connect.api",
    "connect.kafka",
    "connect.plugins",
    "connect.wire",
    "connectors.control_link",
    "connectors.dataplane",
    "connectors.formats",
    "connectors.transforms",
    "connectors.verification",
)
_DISTRIBUTION: Final = "heliograph"
#: The oldest timestamp of the zip format, so that the archive has the same bytes everywhere and at any time.
_NO_TIME: Final = (1980, 1, 1, 0, 0, 0)
_READ_BY_ALL: Final = 0o644 << 16


@functools.cache
def running_code() -> str:
    """Return the name of the code that this process runs. Call it early, before an upgrade replaces the files."""
    archive = getattr(__spec__.loader, "archive", "")
    return Path(archive).stem if archive else _name(_sources_of(_SLICE))


def running_from() -> str:
    """Return where this process has loaded that code from, for messages about stale code."""
    return str(getattr(__spec__.loader, "archive", "") or Path(__file__).parents[2])


def make_archive(folder: Path) -> Path:
    """Write the installed code as an archive into ``folder``; its stem is what :func:`running_code` returns there."""
    sources = _sources_of(PACKAGES)
    path = folder / f"{_name(sources)}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(sources):
            entry = zipfile.ZipInfo(name, _NO_TIME)
            entry.external_attr = _READ_BY_ALL
            archive.writestr(entry, sources[name], zipfile.ZIP_DEFLATED)
    return path


def _name(sources: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(b"%d %s %d " % (len(name), name.encode(), len(sources[name])) + sources[name])
    return f"{_DISTRIBUTION}-{digest.hexdigest()[:16]}"


def _sources_of(packages: Iterable[str]) -> dict[str, bytes]:
    return dict(source for package in packages for source in _sources(files(package), package))


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _sources(entry, f"{name}/{entry.name}")
        elif entry.name.endswith(".py"):
            yield f"{name}/{entry.name}", entry.read_bytes()
