"""A dedicated mirror whose file was changed: nothing of the config that is stored starts any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from connect.api.connector import Props
from connect.cli.daemons.flow_worker import FlowWorker
from connect.core.model import TargetState
from connect.embedded.brokers import KafkaCluster
from connect.kafka.threads import LeaseThread
from connect.runtime import worker as runtime_worker
from connect.runtime.plugins.plugin_registry import Plugins
from connect.runtime.worker import Worker
from connectors.config.mm2_properties import Connector, load
from connectors.control_link.server import LinkSettings
from connectors.plugins import mirror_plugins
from connectors.source.plugin import MirrorSource
from connectors.source.worker_context import MirrorHost, SharedSpark
from connectors.spark.engine import SparkEngine
from connectors.transforms.target_names import FindPlugin
from tests.kit.one_loop import OneLoop
from tests.kit.work import Heard, memory_topic, worker_config

pytestmark = pytest.mark.integration

_DEADLINE_S = 30.0
_NO_BROKER = "127.0.0.1:1"
_AS_THEY_ARE = "org.apache.kafka.connect.converters.ByteArrayConverter"


def no_spark() -> SharedSpark:
    """No task runs, so none asks for it."""
    return SharedSpark(cast(Callable[[], SparkEngine], None), LinkSettings(), OneLoop())


@pytest.fixture
async def leases() -> AsyncIterator[LeaseThread]:
    thread = LeaseThread(progress_timeout_s=30.0)
    thread.start()
    yield thread
    await thread.stop()


def flow_worker(folder: Path, target: KafkaCluster, source: str, leases: LeaseThread) -> FlowWorker:
    file = folder / "mm2.properties"
    file.write_text(
        f"""
        clusters = old, eu
        old.bootstrap.servers = {source}
        eu.bootstrap.servers = {target.bootstrap}
        old->eu.enabled = true
        replication.factor = 1
        offset.storage.replication.factor = 1
        status.storage.replication.factor = 1
        config.storage.replication.factor = 1
        heartbeats.topic.replication.factor = 1
        checkpoints.topic.replication.factor = 1
        offset-syncs.topic.replication.factor = 1
        emit.heartbeats.enabled = false
        """
    )
    (flow,) = [each for each in load(file).flows_to_run() if each.source == "old"]
    return FlowWorker(flow, no_spark(), leases, None)


async def test_a_start_that_is_given_up_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker answers at the addresses of its config, so it still looks for its clusters when it is to stop."""
    monkeypatch.setattr(runtime_worker, "_CONNECTORS_GRACE_S", 0.5)
    config = worker_config(key_converter=_AS_THEY_ARE, value_converter=_AS_THEY_ARE)
    host = MirrorHost(config.props, no_spark(), cast(FindPlugin, None), lambda: True)
    topic, _ = memory_topic()
    plugins = Plugins(mirror_plugins(host))
    worker = Worker(config, plugins, Heard(), transformer=config.transformer, offsets=topic)
    before = asyncio.all_tasks()
    for kind in Connector:
        props = {
            "name": kind.value,
            "connector.class": kind.java_class,
            "source.cluster.alias": "old",
            "target.cluster.alias": "eu",
            "source.cluster.bootstrap.servers": _NO_BROKER,
            "target.cluster.bootstrap.servers": _NO_BROKER,
        }
        worker.start_connector(kind.value, props, TargetState.STARTED)
    async with asyncio.timeout(_DEADLINE_S):
        while not any(task.get_name().startswith("first look") for task in asyncio.all_tasks()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await worker.stop_work([kind.value for kind in Connector], [])
    assert {task.get_name() for task in asyncio.all_tasks() - before} == set()


async def test_a_connector_of_an_older_config_never_starts(
    eu: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leases: LeaseThread
) -> None:
    started: list[str] = []

    async def start(_: MirrorSource, props: Props) -> None:
        started.append(props["source.cluster.bootstrap.servers"])

    async def no_tasks(_: MirrorSource, max_tasks: int) -> Sequence[Props]:
        return []

    monkeypatch.setattr(MirrorSource, "start", start)
    monkeypatch.setattr(MirrorSource, "task_configs", no_tasks)
    for source in (_NO_BROKER, "127.0.0.1:2"):
        worker = flow_worker(tmp_path, eu, source, leases)
        await worker.start()
        try:
            async with asyncio.timeout(_DEADLINE_S):
                while not started or started[-1] != source:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        finally:
            await worker.stop()
    assert started == [_NO_BROKER, "127.0.0.1:2"]
