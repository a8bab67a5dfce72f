"""What a worker of a Connect group says when it starts."""

from __future__ import annotations

import logging

import pytest

from connect.cli.daemons.connect_distributed import log_banner
from connect.cli.daemons.worker_process import log_flows
from connect.core.config.worker_config import WorkerConfig
from connect.core.config_topic import ConfigLog, connector_record
from connectors.source.worker_context import SharedSpark

PROPS = {
    "bootstrap.servers": "a:9092,b:9092",
    "group.id": "copies",
    "config.storage.topic": "configs",
    "offset.storage.topic": "offsets",
    "status.storage.topic": "statuses",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "listeners": "http://127.0.0.1:8083",
}


@pytest.mark.parametrize(
    ("spark", "place"),
    [
        ({}, "local[64,4]"),
        ({"spark.master": "spark://m:7077"}, "spark://m:7077"),
        ({"spark.remote": "sc://s:15002/;token=secret"}, "sc://s:15002"),
    ],
)
def test_the_first_line_says_what_starts(spark: dict[str, str], place: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_banner("worker.properties", WorkerConfig.parse({**PROPS, **spark}))
    [line] = caplog.messages
    assert line.startswith("Heliograph ")
    assert line.endswith(
        f": worker.properties, group copies on a:9092, b:9092, Spark {place}, REST at http://127.0.0.1:8083"
    )


def test_its_flows_are_those_of_its_mirror_connectors(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    is_mirror, stored = SharedSpark.is_for, ConfigLog()
    log_flows("copies", stored, lambda name: is_mirror(None, name))  # type: ignore[arg-type]
    package = "org.apache.kafka.connect.mirror.Mirror"
    for name, config in {
        "b": {"connector.class": f"{package}SourceConnector", "source.cluster.alias": "us"},
        "a": {"connector.class": "MirrorSource", "source.cluster.alias": "eu", "target.cluster.alias": "us"},
        "c": {"connector.class": f"{package}HeartbeatConnector", "source.cluster.alias": "ap"},
        "d": {"connector.class": "other"},
    }.items():
        stored.apply(0, *connector_record(name, config))
    log_flows("copies", stored, lambda name: is_mirror(None, name))  # type: ignore[arg-type]
    assert caplog.messages == ["group copies: flows none yet", "group copies: flows eu->us, us->target"]
