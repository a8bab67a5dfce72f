"""Scratch folders: one that a killed worker left goes, one that is held stays."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from connectors.spark.engine import Scratch, remove_stale_folders

_KILLED = """
import os, signal
from connectors.spark.engine import Scratch
print(Scratch().path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def later_s() -> float:
    return time.time() + 3600


def test_what_a_killed_worker_left_is_removed() -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED], capture_output=True, text=True, check=False)
    left = Path(killed.stdout.strip())
    assert left.is_dir()
    assert remove_stale_folders() == 0, "one that young may be another worker's that just starts"
    assert remove_stale_folders(later_s()) == 1
    assert not left.exists()


def test_what_a_living_worker_holds_stays_until_it_lets_go() -> None:
    scratch = Scratch()
    assert remove_stale_folders(later_s()) == 0
    assert scratch.path.is_dir()
    scratch.remove()
    assert not scratch.path.exists()
    scratch.remove()


def test_a_folder_that_was_never_held_stays(tmp_path: Path) -> None:
    (tmp_path / "heliograph-spark-older").mkdir()
    (tmp_path / "heliograph-spark-link").symlink_to(tmp_path / "heliograph-spark-older")
    assert remove_stale_folders(later_s()) == 0
    assert (tmp_path / "heliograph-spark-older").is_dir()
