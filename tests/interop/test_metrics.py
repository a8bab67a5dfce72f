"""Java's management beans against our ``/metrics``: all attributes of workers, connectors and tasks have a family."""

from __future__ import annotations

import asyncio
import urllib.request
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from connect.embedded import cluster_config
from connect.embedded.brokers import QUICK_JVM, KafkaCluster
from connect.embedded.java import find_java
from tests.kit.java_connect import JavaWorker
from tests.kit.processes import wait_until
from tests.kit.rest_client import RestClient
from tests.kit.topics import make_topics
from tests.kit.workers import OurWorker, worker_properties

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_PATH: Final = "jmxrmi"
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


class Bean(NamedTuple):
    """``properties`` are those of its name; ``attributes`` their values, None where one cannot be sent."""

    domain: str
    properties: dict[str, str]
    attributes: dict[str, Any]


def jmx_options(port: int) -> Sequence[str]:
    """What a JVM has to be told to be read at ``port``."""
    keys = {"port": port, "rmi.port": port, "host": cluster_config.HOST, "authenticate": "false", "ssl": "false"}
    rmi = f"-Djava.rmi.server.hostname={cluster_config.HOST}"
    return (rmi, *(f"-Dcom.sun.management.jmxremote.{key}={value}" for key, value in keys.items()))


@contextmanager
def jmx_reader() -> Iterator[JavaGateway]:
    port = launch_gateway(java_path=str(find_java().executable), die_on_exit=True)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        yield gateway
    finally:
        gateway.shutdown()


def beans(through: JavaGateway, port: int, domain: str) -> list[Bean]:
    management: Any = through.jvm.javax.management
    url = management.remote.JMXServiceURL(f"service:jmx:rmi:///jndi/rmi://{cluster_config.HOST}:{port}/{_PATH}")
    connector = management.remote.JMXConnectorFactory.connect(url)
    try:
        server = connector.getMBeanServerConnection()
        names = server.queryNames(management.ObjectName(f"{domain}:*"), None)
        return [_bean(server, name) for name in names]
    finally:
        connector.close()


def _bean(server: Any, name: Any) -> Bean:
    reported = sorted(attribute.getName() for attribute in server.getMBeanInfo(name).getAttributes())
    properties = {str(key): str(value).strip('"') for key, value in dict(name.getKeyPropertyList()).items()}
    return Bean(str(name.getDomain()), properties, {each: _value(server, name, each) for each in reported})


def _value(server: Any, name: Any, attribute: str) -> Any:
    try:
        return server.getAttribute(name, attribute)
    except Py4JJavaError:
        return None


def test_what_java_shows_we_show(us: KafkaCluster, tmp_path: Path) -> None:
    name = f"shown-{uuid.uuid4().hex[:8]}"
    (port,) = cluster_config.choose(1)
    properties = {kind: worker_properties(us.bootstrap, f"{name}-{kind}", _CHANGES) for kind in ("java", "ours")}
    java = JavaWorker(properties["java"], tmp_path / "java.log", jvm_options=(*QUICK_JVM, *jmx_options(port)))
    asyncio.run(make_topics(us.bootstrap, dict.fromkeys((f"{name}-java", f"{name}-ours"), 1)))
    (tmp_path / "lines.txt").write_text("a line\n")
    with java, OurWorker(properties["ours"], tmp_path) as ours, jmx_reader() as through:
        for kind, worker in (("java", java), ("ours", ours)):
            worker.await_ready()
            config = {**_CONNECTOR, "file": str(tmp_path / "lines.txt"), "topic": f"{name}-{kind}"}
            RestClient(worker.url).ask("PUT", f"/connectors/{kind}/config", config)

        def is_there() -> bool:
            wanted = _wanted(beans(through, port, _DOMAIN))
            return any("transaction_size" in each for each in wanted) and not missing(wanted, _families(ours.url))

        try:
            wait_until(is_there, 60, "both show all they have")
        except AssertionError as error:
            lost = missing(_wanted(beans(through, port, _DOMAIN)), _families(ours.url))
            raise AssertionError(f"Java shows what we do not, with these tags: {lost}") from error


def _wanted(beans: Iterable[Bean]) -> dict[str, frozenset[str]]:
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
