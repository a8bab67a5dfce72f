"""``heliograph plan`` and ``takeover`` against brokers: what a plan says is done, and then nothing is left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from connect.api.source import SourceConnectorContext
from connect.cli.commands.plan import run_drift, run_plan
from connect.cli.commands.takeover import run_check
from connect.core import status_and_offset_topics
from connect.core.errors import ConfigError
from connect.core.model import NewTopic
from connect.embedded.brokers import KafkaCluster
from connect.kafka.log.topic_admin import alter
from connectors.config.mm2_properties import Flow, load
from connectors.source.connector import MirrorSourceConnector
from connectors.source.offset_sync_writer import syncs_topic
from connectors.source.worker_context import looked_at_parts
from tests.kit.direct import Broker
from tests.kit.processes import wait_until

pytestmark = pytest.mark.integration


class Context:
    """What a worker lends the connector, which asks for none of it here."""


@dataclass
class Planner:
    file: Path
    capsys: pytest.CaptureFixture[str]

    def json(self) -> tuple[int, dict[str, Any]]:
        code = run_plan(self.file, flow="plus->plan", as_json=True, everything=False)
        return code, json.loads(self.capsys.readouterr().out)

    def text(self) -> str:
        run_plan(self.file, flow="plus->plan", as_json=False, everything=False)
        return self.capsys.readouterr().out


def changes(reported: Mapping[str, Any], action: str) -> list[dict[str, Any]]:
    (flow,) = reported["flows"]
    return [change for change in flow["changes"] if change["action"] == action]


def test_what_is_planned_is_done_and_then_there_is_nothing_to_do(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(
        "clusters = plus, plan\nplus->plan.enabled = true\nplus->plan.topics = planned-.*\nreplication.factor = -1\n"
        f"plus.bootstrap.servers = {us.bootstrap}\nplan.bootstrap.servers = {eu.bootstrap}\n"
        "offset.storage.replication.factor = 1\noffset.storage.partitions = 1\nstatus.storage.partitions = 1\n"
        "config.storage.replication.factor = 1\nstatus.storage.replication.factor = 1\n"
        "heartbeats.topic.replication.factor = 1\ncheckpoints.topic.replication.factor = 1\n"
        "offset-syncs.topic.replication.factor = 1\n"
    )
    broker, planner = Broker(us, 0), Planner(file, capsys)
    broker.make("planned-a", 2, retention_ms="1234567")

    code, reported = planner.json()
    assert code == 2
    assert (reported["format"], reported["complete"]) == (1, True)
    made = {change["topic"]: change for change in changes(reported, "create-topic")}
    assert made["plus.planned-a"] | {"replication_factor": 1} == {
        "action": "create-topic",
        "cluster": "plan",
        "topic": "plus.planned-a",
        "source_topic": "planned-a",
        "partitions": 2,
        "replication_factor": 1,
        "configs": {"retention.ms": "1234567"},
    }
    assert made["mm2-offset-syncs.plan.internal"]["cluster"] == "plus"
    assert made.keys() >= {f"mm2-{name}.plus.internal" for name in ("offsets", "configs", "status", "offset-map")}
    assert "topics to create" in planner.text()

    (flow,) = (one for one in load(file).flows_to_run() if str(one) == "plus->plan")
    asyncio.run(run_once(flow, [change for change in made.values() if change["cluster"] == "plan"]))
    wait_until(lambda: planner.json()[0] == 0, 240, "nothing is left to do")
    assert "plus->plan: nothing to change" in planner.text()

    asyncio.run(alter_retention(flow))
    wait_until(lambda: planner.json()[0] == 2, 240, "a setting is to be changed")
    _, reported = planner.json()
    (change,) = reported["flows"][0]["changes"]
    assert change == {
        "action": "alter-config",
        "cluster": "plan",
        "topic": "plus.planned-a",
        "key": "retention.ms",
        "before": "1",
        "after": "1234567",
    }
    assert "retention.ms: 1 -> 1234567" in planner.text()
    what_a_run_leaves_is_told_beside_it(file, Broker(eu, 0), capsys)


def what_a_run_leaves_is_told_beside_it(file: Path, target: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    target.make("plus.planned-gone")
    target.make("plus.unheard-of")

    def drifted(*ignored: str) -> tuple[int, dict[str, Any]]:
        code = run_drift(file, flow="plus->plan", as_json=True, everything=False, ignored=ignored)
        return code, json.loads(capsys.readouterr().out)

    code, reported = drifted()
    (flow,) = reported["flows"]
    assert (code, reported["complete"], reported["differences"]) == (2, True, 3)
    assert [change["key"] for change in flow["sets"]] == ["retention.ms"]
    assert [(one["kind"], one["resource"]) for one in flow["leaves"]] == [
        ("without-source", "plus.planned-gone"),
        ("without-source", "plus.unheard-of"),
    ]
    assert drifted("without-source")[1]["flows"][0]["leaves"] == []
    with pytest.raises(ConfigError, match="Use one of extra-partitions"):
        drifted("partitions")
    assert run_drift(file, flow="plus->plan", as_json=False, everything=False) == 2
    text = capsys.readouterr().out
    assert "plus->plan: 1 set by a run, 2 left by a run" in text
    assert "source topic planned-gone does not exist" in text


async def run_once(flow: Flow, internal: Sequence[Mapping[str, Any]]) -> None:
    """What the connector and its worker do at their start."""
    settings, clients = flow.settings(), flow.clients()
    async with looked_at_parts(clients, flow.source, flow.target) as parts:
        for topic in internal:
            if not topic["source_topic"]:
                await parts.admin.create_topics(
                    [NewTopic(topic["topic"], topic["partitions"], topic["replication_factor"], topic["configs"])]
                )
        syncs = syncs_topic(settings, clients)
        assert syncs is not None
        clusters = parts.clusters
        connector = MirrorSourceConnector(
            settings, flow.connector_config(), clusters.source, clusters.target, parts.admin, offset_syncs=syncs
        )
        await connector.start(cast(SourceConnectorContext, Context()))
        await connector.stop()
        await syncs.ensure()
        await syncs.close()


async def alter_retention(flow: Flow) -> None:
    async with looked_at_parts(flow.clients(), flow.source, flow.target) as parts:
        outcomes = await alter(parts.clusters.target, {"plus.planned-a": {"retention.ms": "1"}})
        assert outcomes == {"plus.planned-a": None}


def test_a_cluster_that_is_out_of_reach_is_one_line_and_exit_code_1(
    eu: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(
        "clusters = plus, plan\nplus->plan.enabled = true\nplus->plan.topics = planned-.*\n"
        f"plus.bootstrap.servers = 127.0.0.1:1\nplan.bootstrap.servers = {eu.bootstrap}\n"
    )
    code, reported = Planner(file, capsys).json()
    assert (code, reported["complete"]) == (1, False)
    (problem,) = reported["flows"][0]["unknown"]
    assert "plus (127.0.0.1:1)" in problem


def test_what_a_start_would_continue_is_told_of_a_java_offset_of_a_group_and_of_nothing(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(
        "clusters = goes, on\ngoes->on.enabled = true\ngoes->on.topics = continued-.*\n"
        "goes->on.initial.offsets.group = mm1-group\n"
        f"goes.bootstrap.servers = {us.bootstrap}\non.bootstrap.servers = {eu.bootstrap}\n"
    )
    broker = Broker(us, 0)
    for name in ("continued-java", "continued-group", "continued-new"):
        broker.make(name)
        broker.produce(name, 0, 20)
    broker.delete_records("continued-java", 9)
    stored = "mm2-offsets.goes.internal"
    Broker(eu, 0).make(stored, cleanup_policy="compact")

    async def predecessors() -> None:
        async with AIOKafkaProducer(bootstrap_servers=eu.bootstrap) as producer:
            key = status_and_offset_topics.mirror_key("MirrorSourceConnector", "goes", "continued-java", 0)
            await producer.send_and_wait(stored, status_and_offset_topics.mirror_value(4), key=key)
        async with AIOKafkaConsumer(
            "continued-group",
            bootstrap_servers=us.bootstrap,
            group_id="mm1-group",
            enable_auto_commit=False,
            session_timeout_ms=60_000,
        ) as mirror_maker_1:
            await mirror_maker_1.commit({TopicPartition("continued-group", 0): 7})
            assert (await asyncio.to_thread(checked))[0] == 2
            (reported,) = json.loads(capsys.readouterr().out)["flows"]
            assert reported["running"]
            assert any("mm1-group" in obstacle for obstacle in reported["obstacles"])

    def checked() -> tuple[int]:
        return (run_check(file, flow=None, as_json=True, everything=True, watch_s=0.1),)

    asyncio.run(predecessors())
    assert checked() == (2,)
    (reported,) = json.loads(capsys.readouterr().out)["flows"]
    assert not reported["running"]
    assert reported["unknown"] == []
    partitions = {one["topic"]: one for one in reported["partitions"]}
    assert [
        (one["begins_at"], one["because"], one["lag"], one["lost"])
        for one in (partitions[f"continued-{name}"] for name in ("java", "group", "new"))
    ] == [(5, "stored-offset", 11, 4), (7, "group", 13, 0), (0, "earliest", 20, 0)]
    assert reported["obstacles"] == [
        "continued-java-0: 4 offsets from 5 are no longer on the source; a run stops there (on.source.gap=fail)"
    ]
