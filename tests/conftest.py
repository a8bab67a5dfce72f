"""Fixtures for every test: two shared clusters, started when a test first asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connect.embedded.brokers import KafkaCluster

# Retention and compaction look at their work often, so that tests of both wait for a second and not for minutes.
EAGER = {
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
}


@pytest.fixture(scope="session")
def us() -> Iterator[KafkaCluster]:
    """One node, shared by the whole run: a test names its own topics, and breaks nothing here."""
    with KafkaCluster.start("us", config=EAGER) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def eu() -> Iterator[KafkaCluster]:
    """The second shared cluster, under the same rules."""
    with KafkaCluster.start("eu", config=EAGER) as cluster:
        yield cluster
