"""Jars from a small repository on this machine, whole, broken and missing."""

from __future__ import annotations

import io
import traceback
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from connect.core.errors import DownloadFailed
from connect.embedded import brokers, cluster_config, maven_download
from tests.kit.maven import publish, served

pytestmark = pytest.mark.integration


class Repository:
    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url

    def add(self, name: str, *, needs: str | None = None) -> Path:
        """Puts ``org.example:<name>:1.0`` there, needing another one if named; returns its jar."""
        dependency = (
            f"<dependencies><dependency><groupId>org.example</groupId><artifactId>{needs}</artifactId>"
            "<version>1.0</version><scope>runtime</scope></dependency></dependencies>"
            if needs
            else ""
        )
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr("a.class", b"class " * 200)
        return publish(self.folder, f"org.example:{name}:1.0", content.getvalue(), dependency)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    folder = tmp_path / "repository"
    folder.mkdir()
    with served(folder) as address:
        url = f"http://somebody:secret@{address}"
        monkeypatch.setenv("no_proxy", cluster_config.HOST)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv(brokers.REPOSITORY_VARIABLE, url)
        yield Repository(folder, url)


def kept(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache").rglob("*.jar"))


def test_a_jar_comes_with_what_it_needs(
    repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = [repository.add("first", needs="second"), repository.add("second")]
    found = brokers.classpath(["org.example:first:1.0"])
    assert [jar.read_bytes() for jar in found] == [jar.read_bytes() for jar in wanted]
    assert kept(tmp_path) == ["first-1.0.jar", "second-1.0.jar"]
    assert capsys.readouterr().err.splitlines() == ["downloading jars: 1 of 2", "downloading jars: 2 of 2"]
    # Nothing is asked of the network again, not even when another class path needs the same jar.
    for file in repository.folder.rglob("*.[jp]*"):
        file.unlink()
    assert brokers.classpath(["org.example:first:1.0"]) == found
    assert brokers.classpath(["org.example:second:1.0"]) == found[1:]


def test_a_broken_jar_is_not_kept(repository: Repository, tmp_path: Path) -> None:
    jar = repository.add("first")
    whole = jar.read_bytes()
    place = whole.index(b"class class")
    jar.write_bytes(whole[:place] + b"?" + whole[place + 1 :])
    with pytest.raises(DownloadFailed, match=r"first-1\.0\.jar arrived corrupt"):
        brokers.classpath(["org.example:first:1.0"])
    assert kept(tmp_path) == []
    jar.write_bytes(whole)
    assert [path.name for path in brokers.classpath(["org.example:first:1.0"])] == ["first-1.0.jar"]


def test_a_jar_with_another_sum_than_the_pinned_one_is_not_kept(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = repository.add("first")
    pins = {"first-1.0.jar": "0" * 64}
    monkeypatch.setattr(maven_download, "pinned_jars", lambda: pins)
    with pytest.raises(DownloadFailed, match=r"first-1\.0\.jar is not the file"):
        brokers.classpath(["org.example:first:1.0"])
    assert kept(tmp_path) == []
    pins["first-1.0.jar"] = sha256(jar.read_bytes()).hexdigest()
    assert [path.name for path in brokers.classpath(["org.example:first:1.0"])] == ["first-1.0.jar"]


def test_a_missing_artifact_is_named_and_no_password(repository: Repository, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed) as raised:
        brokers.classpath(["org.example:first:1.0"])
    assert "org.example:first" in str(raised.value)
    assert "KAFKA_HOME" in str(raised.value)
    assert "secret" not in "".join(traceback.format_exception(raised.value))
    assert kept(tmp_path) == []


def test_no_connection_names_the_host_and_the_remedies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", cluster_config.HOST)
    monkeypatch.setenv(brokers.REPOSITORY_VARIABLE, f"http://{cluster_config.HOST}:1/maven2")
    with pytest.raises(
        DownloadFailed, match=rf"cannot download from {cluster_config.HOST}: no connection.*HTTPS_PROXY"
    ):
        brokers.classpath(["org.example:first:1.0"])
