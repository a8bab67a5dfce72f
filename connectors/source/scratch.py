"""The folder of one Spark's scratch files: it goes with its worker, or with a later one where that was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

_PREFIX: Final = "heliograph-spark-"
_HELD: Final = "held"
#: A folder this young may not be held yet by who makes it.
_YOUNG_S: Final = 60.0
#: So many are removed at a time, for nobody waits long for the sake of old files.
_MOST_AT_ONCE: Final = 100


class Scratch:
    """A new folder, held by this process until it ends, however it ends. Raises OSError where none can be made."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # Not handed on to child processes, which may outlive this one.
        self._held = (self.path / _HELD).open("wb")
        fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """The folder and all in it; once is enough, and more does nothing."""
        self._held.close()
        shutil.rmtree(self.path, ignore_errors=True)


def remove_left_behind(now_s: float | None = None) -> int:
    """Remove folders of this user that nobody holds any more, and say how many; ``now_s``: seconds since 1970."""
    found = Path(tempfile.gettempdir()).glob(_PREFIX + "*")
    latest_s = (time.time() if now_s is None else now_s) - _YOUNG_S
    removed = 0
    for folder in found:
        if removed == _MOST_AT_ONCE:
            break
        if _is_left(folder, latest_s):
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


def _is_left(folder: Path, latest_s: float) -> bool:
    try:
        seen = folder.lstat()
        if folder.is_symlink() or seen.st_uid != os.getuid() or seen.st_mtime > latest_s:
            return False
        with (folder / _HELD).open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, of another version that holds nothing, or gone by now
        return False
    return True
