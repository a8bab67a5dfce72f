from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from connect.core.errors import PermanentError
from connect.embedded import brokers
from connect.embedded.maven_download import _counted

COORDINATES = ["org.example:thing:1.0"]


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """A fake download that records its arguments."""
    asked: list[Sequence[str]] = []

    def fetch(coordinates: Sequence[str], repository: Path, mirror: str | None = None) -> list[Path]:
        asked.append(coordinates)
        jars = [repository / f"{coordinate.split(':')[1]}.jar" for coordinate in coordinates]
        repository.mkdir(parents=True, exist_ok=True)
        for jar in jars:
            jar.write_bytes(b"")
        return jars

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("connect.embedded.maven_download.fetch", fetch)
    return asked


def test_a_class_path_is_fetched_once_and_if_a_jar_is_missing(fetched: list[Sequence[str]], tmp_path: Path) -> None:
    first = brokers.classpath(COORDINATES)
    assert first == [tmp_path / "heliograph" / "maven" / "thing.jar"]
    assert brokers.classpath(COORDINATES) == first
    assert [jar.name for jar in brokers.classpath(["org.example:other:1.0"])] == ["other.jar"]
    first[0].unlink()
    assert brokers.classpath(COORDINATES) == first
    assert fetched == [COORDINATES, ["org.example:other:1.0"], COORDINATES]


def test_a_cache_folder_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "heliograph").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(PermanentError, match=f"cache folder {tmp_path / 'heliograph'}.*XDG_CACHE_HOME"):
        brokers.classpath(COORDINATES)


def test_a_full_disk_is_told_as_such(fetched: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> list[Path]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("connect.embedded.maven_download.fetch", full)
    with pytest.raises(PermanentError, match=r"No space left on device\. Free space there"):
        brokers.classpath(COORDINATES)


def test_a_machine_without_the_extra_is_told_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delitem(sys.modules, "connect.embedded.maven_download", raising=False)
    monkeypatch.setitem(sys.modules, "jgo.maven", None)
    with pytest.raises(PermanentError, match=r"without the package jgo\. Install heliograph\[embedded\]"):
        brokers.classpath(COORDINATES)


@pytest.mark.parametrize(("jars", "lines"), [(3, 3), (114, 10)])
def test_a_pipe_shows_every_tenth_of_a_download(jars: int, lines: int) -> None:
    said, pending = io.StringIO(), [Future[Path]() for _ in range(jars)]
    assert list(_counted(pending, said)) == pending
    assert len(said.getvalue().splitlines()) == lines
    assert said.getvalue().endswith(f"downloading jars: {jars} of {jars}\n")
