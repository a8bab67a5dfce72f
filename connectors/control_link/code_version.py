"""This project's own code as an archive for executors, and which code a process runs.

Executors of a cluster need not have the project installed: its packages are pure Python and travel with the jobs. The
code's name follows its content, of the archive or of what is installed, so that a slice of other code is recognised by
its name, though both may call themselves the same version.
"""

from __future__ import annotations

import functools
import hashlib
import zipfile
from collections.abc import Iterable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

PACKAGES: Final = ("connect", "connectors")
#: Where a slice's code lies, where it is installed. A worker may differ in all else.
_SLICE: Final = (
    "connect.api",
    "connect.kafka",
    "connect.plugins",
    "connect.wire",
    "connectors.control_link",
    "connectors.dataplane",
    "connectors.formats",
    "connectors.transforms",
)
_DISTRIBUTION: Final = "heliograph"
#: The oldest that a zip file can say; the same bytes on every machine and day.
_NO_TIME: Final = (1980, 1, 1, 0, 0, 0)
_READ_BY_ALL: Final = 0o644 << 16


@functools.cache
def running_code() -> str:
    """The name of the code that this process runs. To be asked early, before others lie where it was loaded from."""
    archive = getattr(__spec__.loader, "archive", "")
    return Path(archive).stem if archive else _name(_sources_of(_SLICE))


def running_from() -> str:
    """Where this process has that code from, for people who look for a stale one."""
    return str(getattr(__spec__.loader, "archive", "") or Path(__file__).parents[2])


def make_archive(folder: Path) -> Path:
    """Write the archive of the code installed here into ``folder``; its stem is :func:`running_code` over there."""
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
    return {name: text for package in packages for name, text in _sources(files(package), package).items()}


def _sources(folder: Traversable, name: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found |= _sources(entry, f"{name}/{entry.name}")
        elif entry.name.endswith(".py"):
            found[f"{name}/{entry.name}"] = entry.read_bytes()
    return found
