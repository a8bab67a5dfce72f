"""Readers moved there and back where flows run in Connect groups: the file says how those are called."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from connect.cli.commands.failover import FailoverArguments, run_failback, run_failover
from connect.core.errors import ConfigError
from connect.embedded.brokers import KafkaCluster
from tests.kit.java_program import IDENTITY, format_properties
from tests.kit.mirror import SMALL
from tests.kit.processes import wait_until
from tests.kit.rest_client import RestClient
from tests.kit.two_ways import TwoWays
from tests.kit.workers import OurWorker, worker_properties

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1800)]

_DEADLINE_S: Final = 600.0
_BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
Capture = pytest.CaptureFixture[str]


class Groups:
    def __init__(self, two: TwoWays, directory: Path) -> None:
        self._two = two
        self._flows = {two.eu: two.us, two.us: two.eu}
        self.workers: dict[str, OurWorker] = {}
        for target in self._flows:
            changes = {"key.converter": _BYTES, "value.converter": _BYTES}
            properties = worker_properties(two.bootstrap[target], self.group(target), changes)
            self.workers[target] = OurWorker(properties, directory, self.group(target))

    def group(self, target: str) -> str:
        return f"connect-{target}"

    def connector(self, target: str) -> str:
        return f"to-{target}"

    def described(self, target: str) -> dict[str, str]:
        return {
            f"{target}.group.id": self.group(target),
            f"{target}.offset.storage.topic": f"{self.group(target)}-offsets",
            f"{self._flows[target]}->{target}.name": self.connector(target),
        }

    def create(self, target: str, state: str) -> None:
        source, two = self._flows[target], self._two
        config = {
            "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
            "source.cluster.alias": source,
            "target.cluster.alias": target,
            "source.cluster.bootstrap.servers": two.bootstrap[source],
            "target.cluster.bootstrap.servers": two.bootstrap[target],
            "source.consumer.isolation.level": "read_committed",
            "replication.policy.class": f"org.apache.kafka.connect.mirror.{IDENTITY}",
            "topics": f".*-{two.name}",
            "key.converter": _BYTES,
            "value.converter": _BYTES,
            **{key: SMALL[key] for key in ("replication.factor", "offset-syncs.topic.replication.factor")},
            **{key: SMALL[key] for key in ("heartbeats.replication.enabled", "sync.topic.configs.enabled")},
        }
        body = {"name": self.connector(target), "config": config, "initial_state": state}
        RestClient(self.workers[target].url).ask("POST", "/connectors", body)

    def await_ends_with(self, topic: str, target: str) -> None:
        """Until the target's topic ends as the source's does now, while its worker runs."""
        two, worker = self._two, self.workers[target]
        wanted = two.values(self._flows[target], topic)[-10:]

        def is_there() -> bool:
            assert worker.is_running, worker.tail()
            return two.values(target, topic)[-10:] == wanted

        wait_until(is_there, _DEADLINE_S, f"{topic} is copied to {target}")


@pytest.fixture
def two(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> TwoWays:
    return TwoWays(us, eu, tmp_path)


@pytest.fixture
def groups(two: TwoWays, tmp_path: Path) -> Iterator[Groups]:
    found = Groups(two, tmp_path)
    with ExitStack() as stack:
        for worker in found.workers.values():
            stack.enter_context(worker)
        for worker in found.workers.values():
            worker.await_ready(_DEADLINE_S)
        yield found


def test_groups_of_connect_are_stopped_and_started_over_rest(two: TwoWays, groups: Groups, capsys: Capture) -> None:
    two.begin()
    groups.create(two.eu, "RUNNING")
    groups.create(two.us, "STOPPED")
    for topic in two.topics:
        groups.await_ends_with(topic, two.eu)
    over = arguments(two, groups, two.us, two.eu)
    a_file_that_does_not_know_the_connector_is_refused(two, over)
    assert run_failover(over) == 0
    assert_moved(two, capsys)
    to_read = two.left_to_read(two.us)
    assert two.left_to_read(two.eu) == to_read
    verdict = RestClient(groups.workers[two.eu].url).ask("GET", f"/connectors/{groups.connector(two.eu)}/verdict")
    assert "a failover to" in verdict["verdict"]["sentence"], "as heliograph status says"

    two.write(two.eu, "second")
    assert run_failback(arguments(two, groups, two.eu, two.us)) == 0
    assert_moved(two, capsys)
    for topic in two.topics:
        assert two.values(two.us, topic) == two.values(two.eu, topic), "nothing came back twice, and nothing is missing"
    assert two.left_to_read(two.us) == two.left_to_read(two.eu)
    two.write(two.us, "third")
    for topic in two.topics:
        groups.await_ends_with(topic, two.eu)
        assert two.values(two.us, topic) == two.values(two.eu, topic), "the flow there went on behind what came back"


def arguments(two: TwoWays, groups: Groups, source: str, target: str) -> FailoverArguments:
    """With the groups described in the file."""
    file = written(two, source, target, groups.described(source) | groups.described(target))
    rest = [worker.url for worker in groups.workers.values()]
    return replace(two.arguments(file, source, target, rest=rest, executes=True), timeout_s=_DEADLINE_S, rewinds=("*",))


def written(two: TwoWays, source: str, target: str, more: dict[str, str]) -> Path:
    file = two.directory / f"{source}-{target}-{len(more)}.properties"
    file.write_text(format_properties(two.properties(source, target, **more)))
    return file


def a_file_that_does_not_know_the_connector_is_refused(two: TwoWays, over: FailoverArguments) -> None:
    with pytest.raises(ConfigError, match="have the connector"):
        run_failover(replace(over, file=written(two, two.us, two.eu, {})))


def assert_moved(two: TwoWays, capsys: Capture) -> None:
    reported: Any = json.loads(capsys.readouterr().out)
    assert {one["group"] for one in reported["moves"]} == set(two.groups.values())
    assert {one["outcome"] for one in reported["proof"]} - {"not compared"} == {"same"}
