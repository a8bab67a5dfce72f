"""The cache folder, and archives of classes in it: whole ones only, and a start without one if none can be made."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from connect.core.errors import PermanentError
from connect.embedded import brokers
from connect.embedded.java import ClassArchive, cache_dir

HOME = Path("/usr/lib/jvm/some-java")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "heliograph"


def recorded(archive: ClassArchive) -> Path:
    draft = archive.draft()
    draft.write_bytes(b"classes")
    return archive.keep(draft)


def test_a_recorded_archive_is_found(cache: Path) -> None:
    archive = ClassArchive.of("kafka", HOME, [])
    assert archive.find() is None
    path = recorded(archive)
    assert (archive.find(), list(path.parent.iterdir()), path.parent.parent) == (path, [path], cache)


def test_a_truncated_archive_is_not_found() -> None:
    archive = ClassArchive.of("kafka", HOME, [])
    recorded(archive).write_bytes(b"class")
    assert archive.find() is None
    assert archive.find() != recorded(archive) == archive.find()


def test_another_java_or_other_classes_have_another_archive(tmp_path: Path) -> None:
    jar = tmp_path / "kafka.jar"
    jar.touch()
    os.utime(jar, (1, 1))
    recorded(ClassArchive.of("kafka", HOME, [jar]))
    assert ClassArchive.of("kafka", HOME, [jar]).find() is not None
    assert ClassArchive.of("kafka", tmp_path, [jar]).find() is None
    assert ClassArchive.of("kafka", HOME, [jar, jar]).find() is None
    os.utime(jar, (2, 2))
    assert ClassArchive.of("kafka", HOME, [jar]).find() is None, "as after an installation"


def test_a_cluster_starts_without_an_archive_when_none_can_be_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[ClassArchive] = []

    def fail(archive: ClassArchive) -> Path | None:
        attempts.append(archive)
        raise PermanentError("the disk is full")

    jar = tmp_path / "kafka.jar"
    jar.touch()
    monkeypatch.setattr(brokers, "_record", fail)
    monkeypatch.setattr(brokers, "_unrecorded", set())
    monkeypatch.setattr(brokers, "kafka_class_path", lambda: str(jar))
    with caplog.at_level(logging.WARNING):
        found = [brokers._class_archive() for _ in range(2)]
    assert (found, len(attempts)) == ([(), ()], 1)
    assert "the disk is full" in caplog.text


@pytest.mark.parametrize("value", [None, "", "relative/folder"])
def test_without_an_xdg_folder_the_cache_is_in_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME")
    if value is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert cache_dir() == tmp_path / ".cache" / "heliograph"
