"""What a member of MirrorMaker 1 copies in one generation, with the clusters and the tasks in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.core.errors import PermanentError, SecurityError
from connect.core.model import NewTopic
from connect.kafka.cluster import Cluster, NotAuthorized, PartitionMetadata, TopicMetadata
from connect.kafka.log.topic_admin import ConfigSource, TopicConfig, TopicConfigs, TopicExists
from connectors.control_link.protocol import SliceSettings
from connectors.dataplane import log_divergence
from connectors.flow_progress import PartitionView
from connectors.formats.position import Position
from connectors.formats.types import FlowName, TopicPartition
from connectors.mirror_maker_1 import generation, topics
from connectors.mirror_maker_1.consumer_group import GroupOffsets
from connectors.mirror_maker_1.generation import Copying
from connectors.mirror_maker_1.process_context import ProcessContext, UnsendableRecord
from connectors.mirror_maker_1.topics import TopicRefusals
from connectors.source.connector import OF_SOURCE, OF_TARGET, BrokersTooOld
from connectors.source.positions import gap_policy
from connectors.source.positions.gap_policy import GapPasser
from connectors.source.positions.ledger import Ledger
from connectors.source.positions.partition_pairs import Clusters, Entry, PartitionPair
from connectors.source.positions.stored_positions import Start
from connectors.source.positions.takeover import take_over
from connectors.source.task import MirrorSourceTask
from tests.kit.members import until

ONE = TopicPartition("orders", 0)
OLD, NEW, THERE = (UUID(int=number) for number in (1, 2, 3))
WITHIN_S = 30.0


def topic(name: str, partitions: int = 1, topic_id: UUID | None = None) -> TopicMetadata:
    return TopicMetadata(name, topic_id, 0, {one: PartitionMetadata(1, 0, (1,), 0) for one in range(partitions)})


class Brokers:
    """Of one cluster."""

    name = "source"

    def __init__(self, *topics: TopicMetadata, describes_producers: bool = True) -> None:
        self.known = {one.name: one for one in topics}
        self.versions = {OF_SOURCE.api_key: (0, 17), **({OF_TARGET.api_key: (0, 0)} if describes_producers else {})}

    async def any_connection(self) -> Any:
        return SimpleNamespace(versions=self.versions)

    async def topics(self, names: Collection[str]) -> Any:
        return await self.metadata(names)

    async def metadata(self, names: Collection[str] | None) -> Any:
        found = {name: one for name, one in self.known.items() if names is None or name in names}
        return SimpleNamespace(topics=found)

    @property
    def cluster(self) -> Cluster:
        return cast(Cluster, self)


class Copied:
    """A task that shows the entries of a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def view(self, now_ms: int) -> list[PartitionView]:
        return [entry.view(now_ms) for entry in self._ledger.entries.values()]


class Target(Brokers):
    """Makes what it does not refuse."""

    def __init__(self, *topics: TopicMetadata) -> None:
        super().__init__(*topics)
        self.refuses: dict[str, Exception] = {}
        self.hides: set[str] = set()
        self.configs: dict[str, Mapping[str, str]] = {}
        self.asked = 0

    async def metadata(self, names: Collection[str] | None) -> Any:
        found = await super().metadata(names)
        found.topics = {name: one for name, one in found.topics.items() if name not in self.hides}
        return found

    async def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, Exception | None]:
        self.asked += 1
        return {one.name: self._made(one) for one in topics}

    def _made(self, one: NewTopic) -> Exception | None:
        if "remote.storage.enable" in one.configs:
            return PermanentError("INVALID_CONFIG: Unknown topic config name: remote.storage.enable")
        if one.name not in self.refuses:
            self.known[one.name], self.configs[one.name] = topic(one.name, one.partitions), one.configs
        return self.refuses.get(one.name)


class Group:
    async def read(self) -> dict[TopicPartition, object]:
        return {}


def a_copying(clusters: Clusters, partitions: Sequence[TopicPartition] = (ONE,)) -> Copying:
    options = SimpleNamespace(aborts=True, handler=None, commit_interval_ms=1000)
    parts = {"clusters": clusters, "admin": clusters.target, "settings": SimpleNamespace(options=options)}
    context = SimpleNamespace(
        name="stream 0", **parts, engine=None, links=None, transactional_id=lambda: "id",
        source=SimpleNamespace(flow_name=FlowName("source", "target"), reset_to=0, group=SimpleNamespace(group_id="g")),
        slice_settings=lambda: SliceSettings("source->target", 0, {}, {}),
    )  # fmt: skip
    group, refusals = cast(GroupOffsets, Group()), TopicRefusals("stream 0")
    return Copying(cast(ProcessContext, context), group, partitions, refusals, lambda: True)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The partitions that tasks copy, those by key with a plus; brokers are asked twice for topics, at once."""
    found: list[str] = []

    class Task(Copied):
        def __init__(self, partitions: Sequence[TopicPartition], mark: str = "") -> None:
            super().__init__(Ledger(()))
            self._stopping = asyncio.Event()
            self._names = [f"{one}{mark}" for one in partitions]

        async def run(self) -> None:
            found.extend(self._names)
            await self._stopping.wait()

        def stop(self) -> None:
            self._stopping.set()

    async def describe(_: object, topics: Collection[str]) -> dict[str, TopicConfigs]:
        both = {"retention.ms": "5", "remote.storage.enable": "false"}
        return {name: {key: TopicConfig(value, ConfigSource.TOPIC) for key, value in both.items()} for name in topics}

    monkeypatch.setattr(generation, "_LEFT_OUT_S", 0.01)
    monkeypatch.setattr(generation, "ByKeyTask", lambda _, __, partitions, ___: Task(partitions, "+"))
    monkeypatch.setattr(Copying, "_pair_task", lambda _, partitions: Task(partitions))
    monkeypatch.setattr(topics, "_SHOWN_WITHIN_S", 0)
    monkeypatch.setattr(log_divergence, "_ASK_AGAIN_S", 0)
    monkeypatch.setattr(topics, "describe", describe)
    return found


ORDERS, CLICKS, LOGS = (TopicPartition(name, 0) for name in ("orders", "clicks", "logs"))


async def test_a_target_of_an_old_release_is_refused(copied: list[str]) -> None:
    here = a_copying(Clusters(Brokers(topic("orders")).cluster, Brokers(describes_producers=False).cluster))
    with pytest.raises(BrokersTooOld, match=r"older than Apache Kafka 2\.8"):
        await here.run()
    assert copied == []


async def test_a_refused_topic_holds_up_no_other(copied: list[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source, target = Brokers(topic("orders"), topic("clicks"), topic("logs")), Target(topic("logs", 2))
    target.refuses = {"orders": PermanentError("cluster target: cannot create topic orders: POLICY_VIOLATION")}
    here = a_copying(Clusters(source.cluster, target.cluster), [ORDERS, CLICKS, LOGS])
    running = asyncio.create_task(here.run(), name="copying")
    await until(lambda: target.asked >= 3, "it is tried again", WITHIN_S)
    assert sorted(copied) == ["clicks-0", "logs-0+"]
    assert here.target_counts == {"clicks": 1, "logs": 2}
    assert not running.done()
    target.refuses = {}
    await asyncio.wait_for(running, WITHIN_S)
    assert "stream 0: orders can be copied now" in caplog.text
    reported = [one.getMessage() for one in caplog.records if "POLICY_VIOLATION" in one.getMessage()]
    assert len(reported) == 1
    assert "Create the topic there yourself, or exclude it with --include or --exclude" in reported[0]
    assert target.configs["clicks"] == {"retention.ms": "5"}, "without what the target does not know"


async def test_a_pair_that_stopped_is_told_without_what_only_a_connector_has(caplog: pytest.LogCaptureFixture) -> None:
    here = a_copying(Clusters(Brokers().cluster, Brokers().cluster))
    entry = Entry(PartitionPair(ONE, OLD, ONE, THERE))
    verdict = log_divergence.target_truncated(ONE, 50, 40, ONE, 100, "its end is lower")
    entry.stop(verdict.reason, gap=verdict.gap)
    here._pair_task([ONE])._report_stopped(entry)
    assert "kafka-consumer-groups --reset-offsets" in caplog.text
    assert "PUT" not in caplog.text
    assert entry.reason in caplog.text
    reported = here._reported(entry.view(0))
    assert reported.count("--reset-offsets") == 1, "who is told at the end of the process is told the same"


async def test_without_the_right_to_make_topics_it_is_over(copied: list[str]) -> None:
    source, target = Brokers(topic("orders"), topic("clicks")), Target()
    target.refuses = {"orders": SecurityError("grant CREATE on topic orders")}
    here = a_copying(Clusters(source.cluster, target.cluster), [ORDERS, CLICKS])
    with pytest.raises(SecurityError, match="grant CREATE"):
        await asyncio.wait_for(here.run(), WITHIN_S)
    assert not copied


async def test_a_topic_that_the_target_does_not_show_holds_up_no_other(
    copied: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "_APPEAR_S", 0)
    monkeypatch.setattr(topics, "_LOOK_S", 0)
    source, target = Brokers(topic("orders"), topic("clicks")), Target(topic("orders"))
    target.hides, target.refuses = {"orders"}, {"orders": TopicExists("TOPIC_ALREADY_EXISTS")}
    here = a_copying(Clusters(source.cluster, target.cluster), [ORDERS, CLICKS])
    running = asyncio.create_task(here.run(), name="copying")
    await until(lambda: target.asked >= 4, "it is asked again", WITHIN_S)
    assert copied == ["clicks-0"]
    assert caplog.text.count("the target does not show orders yet, the other topics are copied") == 1
    target.hides = set()
    await asyncio.wait_for(running, WITHIN_S)


async def test_a_stop_does_not_wait_for_a_topic_to_be_shown(copied: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_APPEAR_S", 10 * WITHIN_S)
    monkeypatch.setattr(topics, "_LOOK_S", 0)
    source, target = Brokers(topic("orders"), topic("clicks")), Target(topic("clicks"))
    target.refuses = {"orders": PermanentError("POLICY_VIOLATION")}
    here = a_copying(Clusters(source.cluster, target.cluster), [ORDERS, CLICKS])
    running = asyncio.create_task(here.run(), name="copying")
    await until(lambda: bool(copied), "the other is copied", WITHIN_S)
    target.refuses, target.hides, asked = {}, {"orders"}, target.asked
    await until(lambda: target.asked > asked, "it is made", WITHIN_S)
    here.stop()
    await asyncio.wait_for(running, WITHIN_S)


async def test_without_the_right_to_see_a_topic_it_is_over(copied: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may not see a topic may not write there either."""
    source, target = Brokers(topic("orders"), topic("clicks")), Target()
    target.known["orders"] = TopicMetadata("orders", None, 29, {})

    async def refused(names: Collection[str]) -> Any:
        raise NotAuthorized(f"grant DESCRIBE on topic {' '.join(names)}")

    monkeypatch.setattr(target, "topics", refused)
    here = a_copying(Clusters(source.cluster, target.cluster), [ORDERS, CLICKS])
    with pytest.raises(SecurityError, match="grant DESCRIBE on topic orders"):
        await asyncio.wait_for(here.run(), WITHIN_S)
    assert (copied, target.asked) == ([], 0)


async def test_a_topic_that_was_deleted_holds_up_no_other(copied: list[str], caplog: pytest.LogCaptureFixture) -> None:
    source, target = Brokers(topic("clicks")), Target()
    here = a_copying(Clusters(source.cluster, target.cluster), [ORDERS, CLICKS])
    running = asyncio.create_task(here.run(), name="copying")
    await until(lambda: bool(copied), "the other is copied", WITHIN_S)
    assert copied == ["clicks-0"]
    assert "the source does not have orders now" in caplog.text
    source.known["orders"] = topic("orders")
    await asyncio.wait_for(running, WITHIN_S)
    assert "orders" in target.known


@pytest.mark.parametrize("is_source", [True, False])
async def test_a_topic_made_anew_ends_nothing_meanwhile(monkeypatch: pytest.MonkeyPatch, is_source: bool) -> None:
    clusters = Clusters(
        Brokers(topic("orders", topic_id=NEW if is_source else OLD)).cluster,
        Brokers(topic("orders", topic_id=THERE if is_source else NEW)).cluster,
    )
    ledger = Ledger([PartitionPair(ONE, NEW, ONE, THERE)])
    position = Position(*ONE, OLD, 100, 0, *ONE, THERE, 100, "id", 7, 0, 5, is_handed_over=True)
    asked = asyncio.Event()

    async def list_offsets(*_: object) -> dict[TopicPartition, int]:
        asked.set()
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(gap_policy, "list_offsets", list_offsets)
    monkeypatch.setattr(generation, "_LOOK_S", 0)
    here = a_copying(clusters)
    here._tasks[0] = cast(MirrorSourceTask, Copied(ledger))
    passer = GapPasser("source->target", generation._GAPS, lambda _: (), 0)
    starts = {ONE: Start(position, 99, False)}
    watching = asyncio.create_task(here._watch(), name="watch")
    taking = asyncio.create_task(take_over(clusters, "id", ledger.going(), starts, passer=passer), name="take over")
    await asyncio.wait_for(asked.wait(), WITHIN_S)
    for _ in range(10):
        await asyncio.sleep(0)
    has_ended = watching.done()
    for one in (watching, taking):
        one.cancel()
    await asyncio.gather(watching, taking, return_exceptions=True)
    assert not has_ended
    ledger.entries[ONE].stop("it was cut")
    with pytest.raises(UnsendableRecord, match="orders-0 cannot be copied further"):
        await asyncio.wait_for(here._watch(), WITHIN_S)
