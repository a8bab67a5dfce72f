"""``heliograph offsets`` against a broker: a group with a member, one without, and a flow."""

from __future__ import annotations

import asyncio
import io
import json
import signal
from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from connect.cli.commands.offsets import OffsetsQuestion, run_offsets
from connect.embedded.brokers import KafkaCluster
from connect.kafka.log.committed_offsets import Committed, Partition, move
from tests.kit.clients import cluster_at
from tests.kit.direct import Broker
from tests.kit.topics import make_topics

pytestmark = pytest.mark.integration


def of_group(
    us: KafkaCluster, *groups: str, topics: frozenset[str] = frozenset(), brokers: bool = False
) -> OffsetsQuestion:
    return OffsetsQuestion(None, None, us.bootstrap, None, groups, None, topics, brokers)


async def stand(us: KafkaCluster, group: str, offsets: dict[Partition, Committed]) -> None:
    async with cluster_at(us.bootstrap, "us") as cluster:
        assert not await move(cluster, group, offsets)


async def test_a_group_is_shown_as_the_old_tool_did(us: KafkaCluster, capsys: pytest.CaptureFixture[str]) -> None:
    broker = Broker(us, 0)
    await make_topics(us.bootstrap, {"checked": 2})
    await asyncio.to_thread(broker.produce, "checked", 0, 30)
    async with AIOKafkaConsumer(
        "checked",
        bootstrap_servers=us.bootstrap,
        group_id="checkers",
        client_id="till",
        auto_offset_reset="earliest",
        enable_auto_commit=False,  # it would move the group while that is looked at
        session_timeout_ms=60_000,
    ) as reader:
        await reader.getmany(timeout_ms=20_000)
        await reader.commit({TopicPartition("checked", 0): 12})
        asked = partial(run_offsets, of_group(us, "checkers", brokers=True), as_json=False, every_s=None)
        assert await asyncio.to_thread(asked) == 0
        reported = capsys.readouterr().out.splitlines()
    assert reported[0].split() == ["Group", "Topic", "Pid", "Offset", "logSize", "Lag", "Owner"]
    assert reported[1].split() == ["checkers", "checked", "0", "12", "30", "18", "till/127.0.0.1"]
    assert reported[2].split() == ["checkers", "checked", "1", "unknown", "0", "unknown", "till/127.0.0.1"]
    assert reported[3:] == ["BROKER INFO", f"1 -> {us.bootstrap.replace('localhost', '127.0.0.1')}"]


class Terminal(io.StringIO):
    """A terminal at which Ctrl-C is pressed once it shows ``text``."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._text in text:
            signal.raise_signal(signal.SIGINT)
        return super().write(text)


def test_ctrl_c_ends_a_watch_with_0(us: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(make_topics(us.bootstrap, {"watched": 1}))
    asyncio.run(stand(us, "watchers", {("watched", 0): Committed(0)}))
    monkeypatch.setattr("sys.stdout", Terminal("watchers"))
    assert run_offsets(of_group(us, "watchers"), as_json=False, every_s=60) == 0


def test_a_group_that_nobody_is_in_and_a_flow(
    us: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = Broker(us, 0)
    asyncio.run(make_topics(us.bootstrap, {"idle-orders": 1}))
    broker.produce("idle-orders", 0, 7)
    asyncio.run(stand(us, "idlers", {("idle-orders", 0): Committed(4)}))
    assert run_offsets(of_group(us, "idlers", "nobody"), as_json=True, every_s=None) == 0
    (row,) = json.loads(capsys.readouterr().out)["partitions"]
    assert row == {
        "group": "idlers",
        "topic": "idle-orders",
        "partition": 0,
        "offset": 4,
        "log_size": 7,
        "lag": 3,
        "owner": "none",
    }
    file = tmp_path / "mm2.properties"
    file.write_text(
        "clusters = idle, eu\nidle->eu.enabled = true\nidle->eu.topics = idle-.*\n"
        "idle->eu.heartbeats.replication.enabled = false\n"
        f"idle.bootstrap.servers = {us.bootstrap}\neu.bootstrap.servers = {us.bootstrap}\n"
    )
    asked = OffsetsQuestion(file, None, None, None, (), "idle->eu", frozenset(), with_brokers=False)
    assert run_offsets(asked, as_json=False, every_s=None) == 0
    line = capsys.readouterr().out.splitlines()[1].split()
    assert line == ["idle->eu", "idle-orders", "0", "0", "7", "7", "unknown"]
