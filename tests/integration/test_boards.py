"""The alerts fire when they should, and every query of dashboards and rules finds data in a real Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml

from connect.embedded import cluster_config
from tests.kit import boards
from tests.kit.boards import RULES
from tests.kit.brokers import KafkaCluster
from tests.kit.copies import send
from tests.kit.direct import Broker
from tests.kit.mirror import SMALL, Mirror, with_rest
from tests.kit.moving import commit
from tests.kit.processes import Role, find, wait_until
from tests.kit.seen import Seen

pytestmark = [pytest.mark.integration, pytest.mark.long]

PROMETHEUS: Final = shutil.which("prometheus")
PROMTOOL: Final = shutil.which("promtool")
_EVERY: Final = "5s"
_START_S: Final = 60.0
_DEADLINE_S: Final = 240.0
#: The flows: one that skips gaps, and one that stops at them.
_FLOW, _STRICT = "well->eu", "strict->eu"
_TOPIC, _REFUSED, _STRICT_TOPIC = "well-numbers", "well-keyless", "strict-numbers"
#: These say something only if there is something to say.
_MAY_BE_EMPTY: Final = frozenset(
    {"Heliograph: all flows: Alerts", "Heliograph: workers and Spark: Time left of certificates"}
)


class Prometheus:
    """Asked over HTTP at ``url``."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series of an expression now. An ``AssertionError`` for one that is wrong."""
        answer = httpx.get(f"{self._url}/api/v1/query", params={"query": expr}, trust_env=False, timeout=30.0).json()
        assert answer["status"] == "success", (expr, answer)
        found = answer["data"]["result"]
        if answer["data"]["resultType"] == "scalar":
            return [{"metric": {}, "value": found}]
        series: list[dict[str, Any]] = found
        return series

    def firing(self, name: str = "") -> set[str]:
        """The alerts that fire, as ``name source->target``, or only the name if an alert is of no flow."""
        matcher = f', alertname="{name}"' if name else ""
        found = [one["metric"] for one in self.query(f'ALERTS{{alertstate="firing"{matcher}}}')]
        return {
            f"{one['alertname']} {one['source']}->{one['target']}" if "source" in one else one["alertname"]
            for one in found
        }


@contextlib.contextmanager
def started(target: str, directory: Path) -> Iterator[Prometheus]:
    """Start a Prometheus that reads ``target`` (host and port) every five seconds."""
    assert PROMETHEUS is not None
    rules = yaml.safe_load(RULES.read_text("utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    (directory / "rules.yml").write_text(yaml.safe_dump(rules))
    scrape = {"job_name": "heliograph", "static_configs": [{"targets": [target]}]}
    config = {
        "global": {"scrape_interval": _EVERY, "scrape_timeout": _EVERY, "evaluation_interval": _EVERY},
        "rule_files": ["rules.yml"],
        "scrape_configs": [scrape],
    }
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    (port,) = cluster_config.choose(1)
    address = f"{cluster_config.HOST}:{port}"
    command = [
        PROMETHEUS,
        f"--config.file={file}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: _is_ready(address), _START_S, "Prometheus is ready")
            yield Prometheus(f"http://{address}")
        finally:
            process.kill()
            process.wait()


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/-/ready", trust_env=False, timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.skipif(PROMTOOL is None, reason="this machine has no promtool (Debian: apt install prometheus)")
def test_each_alert_fires_when_it_should_and_only_then() -> None:
    assert PROMTOOL is not None
    example = boards.RULES.with_name("prometheus.yml")
    for command in (["check", "config", str(example)], ["test", "rules", *map(str, boards.RULE_TESTS)]):
        ended = subprocess.run([PROMTOOL, *command], capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr


class Scene:
    def __init__(self, mirror: Mirror, url: str, clusters: tuple[KafkaCluster, KafkaCluster], seer: Prometheus) -> None:
        self.mirror = mirror
        self.seen = Seen(mirror, url, "well")
        self.source, self.target = clusters
        self.from_broker, self.to_broker = Broker(clusters[0], 0), Broker(clusters[1], 0)
        self.prometheus = seer

    def until(self, is_so: Callable[[], object], what: str) -> None:
        wait_until(is_so, _DEADLINE_S, what)

    def fires(self, *alerts: str) -> None:
        """Wait until all of ``alerts`` fire at the same time."""
        self.until(lambda: self.prometheus.firing() >= set(alerts), f"{alerts} fire")

    def is_over(self, alert: str) -> None:
        self.until(lambda: alert not in self.prometheus.firing(), f"{alert} is over")

    def has_no_tasks(self, connector: str) -> bool:
        return not self.seen.ask(f"{connector}/status")["tasks"]

    def copies(self, topic: str, remote: str, first: int, count: int) -> None:
        self.from_broker.produce(topic, first, count)
        self.until(lambda: self.to_broker.end(remote) >= first + count, f"{remote} has all")


def _properties(source: KafkaCluster, target: KafkaCluster) -> dict[str, str]:
    return {
        "clusters": "well, strict, eu",
        "well.bootstrap.servers": source.bootstrap,
        "strict.bootstrap.servers": source.bootstrap,
        "eu.bootstrap.servers": target.bootstrap,
        "well->eu.enabled": "true",
        "well->eu.topics": "well-.*",
        "well->eu.on.source.gap": "skip",
        "well->eu.tasks.max": "1",
        "strict->eu.enabled": "true",
        "strict->eu.topics": _STRICT_TOPIC,
        **SMALL,
        # Of a target that is frozen until the worker has noticed.
        "eu.session.timeout.ms": "12000",
        "eu.worker.lease.ms": "9000",
        "lease.ms": "20000",
        "well->eu.groups": "well-.*",
        "well->eu.emit.checkpoints.enabled": "true",
        "well->eu.emit.heartbeats.enabled": "true",
        "well->eu.emit.checkpoints.interval.seconds": "1",
        "eu.offset.flush.interval.ms": "500",
        "refresh.topics.interval.seconds": "1",
    }


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    rest, directory = with_rest(), tmp_path_factory.mktemp("boards")
    url = rest["listeners"]
    with (
        KafkaCluster.start("well") as source,
        KafkaCluster.start("eu") as target,
        Mirror({**_properties(source, target), **rest}, directory) as mirror,
        started(url.removeprefix("http://"), directory) as prometheus,
    ):
        broker = Broker(source, 0)
        for topic in (_TOPIC, _STRICT_TOPIC):
            broker.make(topic)
        asyncio.run(commit(source.bootstrap, "well-group", {_TOPIC: 1}))  # else there is no task of checkpoints
        mirror.start()
        scene = Scene(mirror, url, (source, target), prometheus)
        scene.copies(_TOPIC, f"well.{_TOPIC}", 0, 100)
        scene.copies(_STRICT_TOPIC, f"strict.{_STRICT_TOPIC}", 0, 100)
        yield scene


@pytest.mark.skipif(PROMETHEUS is None, reason="this machine has no prometheus (Debian: apt install prometheus)")
def test_alerts_fire_in_the_states_that_they_are_for_and_queries_find_data(scene: Scene) -> None:
    for state in (
        _all_is_well,
        _source_frozen,
        _target_frozen,
        _spark_gone,
        _partition_quarantined,
        _gap_skipped_and_task_failed,
        _worker_killed,
    ):
        state(scene)


def _all_is_well(scene: Scene) -> None:
    scene.until(
        lambda: scene.prometheus.query(
            'kafka_connect_mirror_MirrorCheckpointConnector_task_checkpoint_age_ms{source="well"}'
        ),
        "checkpoints are written",
    )
    counted = 'kafka_connect_mirror_MirrorSourceConnector_record_count{source="well"}'
    scene.until(lambda: scene.prometheus.query(counted), "records are counted")
    scene.copies(_TOPIC, f"well.{_TOPIC}", 100, 10)  # because a rate needs a change
    scene.until(lambda: scene.prometheus.query("heliograph:flow_records:rate5m > 0"), "there is a rate")
    # The mirror started while Prometheus read it already.
    scene.until(lambda: not scene.prometheus.firing(), f"no alert fires: {scene.prometheus.firing()}")
    for query in boards.queries():
        if query.place in boards.alerts():
            # An alert is silent now; what it looks at is there.
            for name in query.names - {"heliograph_certificate_expiry_timestamp_seconds"}:
                scene.prometheus.query(query.with_all)
                assert scene.prometheus.query(name), (query.place, name)
        elif query.place not in _MAY_BE_EMPTY:
            assert scene.prometheus.query(query.with_all), query


def _source_frozen(scene: Scene) -> None:
    scene.source.freeze(0)
    try:
        scene.fires(f"HeliographSourceUnreachable {_FLOW}", f"HeliographSourceUnreachable {_STRICT}")
        assert not scene.prometheus.firing("HeliographTargetUnreachable")
    finally:
        scene.source.thaw(0)
    scene.is_over(f"HeliographSourceUnreachable {_FLOW}")


def _target_frozen(scene: Scene) -> None:
    scene.target.freeze(0)
    try:
        scene.fires(f"HeliographTargetUnreachable {_FLOW}")
        assert not scene.prometheus.firing("HeliographSourceUnreachable")
    finally:
        scene.target.thaw(0)
    scene.is_over(f"HeliographTargetUnreachable {_FLOW}")
    scene.copies(_TOPIC, f"well.{_TOPIC}", 110, 10)


def _spark_gone(scene: Scene) -> None:
    (driver,) = find(scene.mirror.pid, Role.SPARK_DRIVER)
    driver.process.send_signal(signal.SIGKILL)
    scene.fires("HeliographSparkGone")
    scene.is_over("HeliographSparkGone")
    assert scene.prometheus.query("heliograph_spark_lost_total > 0")


def _partition_quarantined(scene: Scene) -> None:
    scene.to_broker.make(f"well.{_REFUSED}", cleanup_policy="compact")
    scene.from_broker.make(_REFUSED)
    asyncio.run(send(scene.source.bootstrap, _REFUSED, [b"no key"]))
    scene.fires(f"HeliographPartitionStopped {_FLOW}")
    assert not scene.prometheus.firing("HeliographTaskFailed"), "the other partition is copied"


def _gap_skipped_and_task_failed(scene: Scene) -> None:
    for alias, topic in (("well", _TOPIC), ("strict", _STRICT_TOPIC)):
        path = f"/{alias}/eu/connectors/MirrorSourceConnector"
        scene.seen.ask(f"{path}/stop", "PUT")
        scene.until(partial(scene.has_no_tasks, path), f"{alias} is stopped")
        end = scene.from_broker.end(topic)
        scene.from_broker.produce(topic, end, 20)
        scene.from_broker.delete_records(topic, end + 5)
        scene.seen.ask(f"{path}/resume", "PUT")
    scene.fires(f"HeliographGapSkipped {_FLOW}", f"HeliographGap {_STRICT}", "HeliographTaskFailed")
    assert f"HeliographGap {_FLOW}" not in scene.prometheus.firing()


def _worker_killed(scene: Scene) -> None:
    scene.mirror.kill()
    scene.fires("HeliographWorkerDown", "HeliographAbsent")
