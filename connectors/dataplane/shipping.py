"""This project's own code as an archive for executors, and which code a process runs.

Executors of a cluster need not have the project installed: its packages are pure Python and travel with the jobs. The
archive's name follows its content, so that a slice of other code is recognised by its name.
"""

from __future__ import annotations

import hashlib
import zipfile
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

PACKAGES: Final = ("connect", "connectors")
_DISTRIBUTION: Final = "heliograph"
#: The oldest that a zip file can say; the same bytes on every machine and day.
_NO_TIME: Final = (1980, 1, 1, 0, 0, 0)
_READ_BY_ALL: Final = 0o644 << 16


def running_code() -> str:
    """The name of the code that this process runs: the archive that it came in, or the installed version."""
    archive = getattr(__spec__.loader, "archive", "")
    return Path(archive).stem if archive else f"{_DISTRIBUTION}-{version(_DISTRIBUTION)}"


def running_from() -> str:
    """Where this process has that code from, for people who look for a stale one."""
    return str(getattr(__spec__.loader, "archive", "") or Path(__file__).parents[2])


def make_archive(folder: Path) -> Path:
    """Write the archive of the code installed here into ``folder``; its stem is :func:`running_code` over there."""
    sources = {name: text for package in PACKAGES for name, text in _sources(files(package), package).items()}
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(b"%d %s %d " % (len(name), name.encode(), len(sources[name])) + sources[name])
    path = folder / f"{_DISTRIBUTION}-{digest.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(sources):
            entry = zipfile.ZipInfo(name, _NO_TIME)
            entry.external_attr = _READ_BY_ALL
            archive.writestr(entry, sources[name], zipfile.ZIP_DEFLATED)
    return path


def _sources(folder: Traversable, name: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found |= _sources(entry, f"{name}/{entry.name}")
        elif entry.name.endswith(".py"):
            found[f"{name}/{entry.name}"] = entry.read_bytes()
    return found
