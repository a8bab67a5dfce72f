"""Java's management beans against our ``/metrics``: all attributes of workers, connectors and tasks have a family."""

from __future__ import annotations

import asyncio
import urllib.request
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from connect.embedded import cluster_config
from connect.embedded.brokers import QUICK_JVM, KafkaCluster
from tests.kit import jmx
from tests.kit.java_connect import JavaWorker
from tests.kit.processes import wait_until
from tests.kit.rest_client import RestClient
from tests.kit.topics import make_topics
from tests.kit.workers import OurWorker, worker_properties

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_DOMAIN: Final = "kafka.connect"
_CONNECTOR: Final = {
    "connector.class": "FileStreamSource",
    "tasks.max": "1",
    "transforms": "wrap",
    "transforms.wrap.type": "org.apache.kafka.connect.transforms.HoistField$Value",
    "transforms.wrap.field": "line",
    "transforms.wrap.predicate": "is",
    "predicates": "is",
    "predicates.is.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
    "predicates.is.pattern": ".*",
}
#: Of Java's network client, of its metrics as such, and app-info in its older spelling: see docs/differences.md.
_LEFT_OUT: Final = ("connect-metrics", "connect-node-metrics", "kafka-metrics-count")
_OLD_NAMES: Final = ("CommitId", "StartTimeMs", "Version")
#: Java's tags that name its clients; ours tell workers apart by ``group``.
_OF_CLIENTS: Final = frozenset({"type", "client-id", "id"})
#: With exactly-once a task has transactions, and so all there is.
_CHANGES: Final = {"exactly.once.source.support": "enabled"}


def test_what_java_shows_we_show(us: KafkaCluster, tmp_path: Path) -> None:
    name = f"shown-{uuid.uuid4().hex[:8]}"
    (port,) = cluster_config.choose(1)
    properties = {kind: worker_properties(us.bootstrap, f"{name}-{kind}", _CHANGES) for kind in ("java", "ours")}
    java = JavaWorker(properties["java"], tmp_path / "java.log", jvm_options=(*QUICK_JVM, *jmx.options(port)))
    asyncio.run(make_topics(us.bootstrap, dict.fromkeys((f"{name}-java", f"{name}-ours"), 1)))
    (tmp_path / "lines.txt").write_text("a line\n")
    with java, OurWorker(properties["ours"], tmp_path) as ours, jmx.reader() as through:
        for kind, worker in (("java", java), ("ours", ours)):
            worker.await_ready()
            config = {**_CONNECTOR, "file": str(tmp_path / "lines.txt"), "topic": f"{name}-{kind}"}
            RestClient(worker.url).ask("PUT", f"/connectors/{kind}/config", config)

        def is_there() -> bool:
            wanted = _wanted(jmx.beans(through, port, _DOMAIN))
            return any("transaction_size" in each for each in wanted) and not missing(wanted, _families(ours.url))

        try:
            wait_until(is_there, 60, "both show all they have")
        except AssertionError as error:
            lost = missing(_wanted(jmx.beans(through, port, _DOMAIN)), _families(ours.url))
            raise AssertionError(f"Java shows what we do not, with these tags: {lost}") from error


def _wanted(beans: Iterable[jmx.Bean]) -> dict[str, frozenset[str]]:
    """The names that the usual exporter gives Java's attributes, each with the tags of its bean."""
    return {
        f"{_DOMAIN}_{bean.properties['type']}_{attribute}".replace(".", "_").replace("-", "_"): frozenset(
            bean.properties.keys() - _OF_CLIENTS
        )
        for bean in beans
        if bean.properties["type"] not in _LEFT_OUT
        for attribute in bean.attributes
        if attribute not in _OLD_NAMES
    }


def _families(url: str) -> dict[str, frozenset[str]]:
    with urllib.request.urlopen(f"{url}metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {sample.name: frozenset(sample.labels) for family in families for sample in family.samples}


def missing(wanted: Mapping[str, frozenset[str]], shown: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    return {name: tags for name, tags in wanted.items() if name not in shown or not tags <= shown[name]}
