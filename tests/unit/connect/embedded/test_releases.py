from __future__ import annotations

from pathlib import Path

import pytest

from connect.core.errors import ConfigError
from connect.embedded.kafka_releases import DEFAULT_VERSION, Release


@pytest.mark.parametrize(
    ("version", "zookeeper", "log4j"),
    [("2.8.2", True, 1), ("3.2.3", True, 1), ("3.3.0", False, 1), ("3.9.1", False, 1), (DEFAULT_VERSION, False, 2)],
)
def test_what_a_release_needs_beside_itself(version: str, zookeeper: bool, log4j: int, tmp_path: Path) -> None:
    release = Release.of(version)
    assert release.jars[0] == f"org.apache.kafka:kafka_2.13:{version}"
    assert release.needs_zookeeper is zookeeper
    (option,) = release.logging_options(tmp_path)
    assert option.startswith("-Dlog4j.configuration=file:" if log4j == 1 else "-Dlog4j2.")
    assert [file.as_uri() for file in tmp_path.iterdir()] == ([option.partition("=")[2]] if log4j == 1 else [])


@pytest.mark.parametrize("version", ["", "4", "4.3", "latest", "4.3.1-rc0"])
def test_what_is_no_release_is_refused(version: str) -> None:
    with pytest.raises(ConfigError, match="is not a release of Apache Kafka"):
        Release.of(version)


def test_releases_too_old_to_be_started_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"2\.7\.2 is too old"):
        Release.of("2.7.2")
