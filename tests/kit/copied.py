"""A flow that has copied and stopped, without a mirror: the same records on both sides, and what its store says."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaProducer

from connect.cli.commands.failover import FailoverArguments
from connect.embedded.brokers import KafkaCluster
from connectors.config.mm2_properties import load
from connectors.failover.clusters_and_lease import site
from connectors.failover.journal import read_runs
from connectors.formats.mirror_records import Checkpoint
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.source.positions.position_store import MirrorPositionStore, StoreSettings
from connectors.source.positions.stored_positions import Commit
from tests.kit.clients import cluster_and_admin, cluster_at
from tests.kit.mirror import SMALL, write_properties
from tests.kit.moving import commit, committed
from tests.kit.topics import make_topics

RECORDS: Final = 30
#: Offsets by which the copy lies further on.
AHEAD: Final = 7
#: Records that groups have read since their checkpoints were written.
LATE: Final = 5
_GROUPS: Final[Mapping[str, int]] = {"start": 0, "half": 15, "end": RECORDS}


class Copied:
    """From ``us`` to ``eu`` under kept names; the target's log begins with records of its own."""

    def __init__(self, us: KafkaCluster, eu: KafkaCluster, directory: Path) -> None:
        self.name = uuid.uuid4().hex[:6]
        self.us, self.eu = f"us{self.name}", f"eu{self.name}"
        self.topic = f"copied-{self.name}"
        self.groups = {f"{self.name}-{label}": offset for label, offset in _GROUPS.items()}
        self.bootstrap = {self.us: us.bootstrap, self.eu: eu.bootstrap}
        #: How many of them the source still has.
        self.left = RECORDS
        #: Other values that the target has, by source offset.
        self.damaged: Mapping[int, bytes] = {}
        self.file = directory / "mm2.properties"
        self.configure()

    def configure(self, **more: str) -> None:
        properties = {
            "clusters": f"{self.us}, {self.eu}",
            **{f"{alias}.bootstrap.servers": address for alias, address in self.bootstrap.items()},
            f"{self.us}->{self.eu}.enabled": "true",
            "topics": self.topic,
            "groups": f"{self.name}-.*",
            "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
            **SMALL,
            **{key.replace("_", "."): value for key, value in more.items()},
        }
        write_properties(self.file, properties)

    def arguments(self, **more: Any) -> FailoverArguments:
        return FailoverArguments(self.file, None, self.eu, as_json=True, timeout_s=300, **more)

    async def make(self) -> None:
        for address in self.bootstrap.values():
            await make_topics(address, {self.topic: 1})
        now_ms = int(time.time() * 1000)  # a copy bears its record's
        for alias, values in (
            (self.us, [b"%d" % number for number in range(self.left)]),
            (self.eu, [b"own"] * AHEAD + [self.damaged.get(number, b"%d" % number) for number in range(RECORDS)]),
        ):
            async with AIOKafkaProducer(bootstrap_servers=self.bootstrap[alias]) as producer:
                for value in values:
                    await producer.send(self.topic, value, timestamp_ms=now_ms)
        for group, offset in self.groups.items():
            await commit(self.bootstrap[self.us], group, {self.topic: offset}, "note")
        await self._store()

    async def write_checkpoints(self) -> None:
        """As they were a while ago."""
        topic = f"{self.us}.checkpoints.internal"
        await make_topics(self.bootstrap[self.eu], {topic: 1})
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap[self.eu]) as producer:
            for group, offset in self.groups.items():
                at = max(offset - LATE, 0)
                one = Checkpoint(group, self.topic, 0, at, at + AHEAD, "note")
                await producer.send(topic, one.value(), key=one.key())

    async def go_on_at_target(self, records: int) -> None:
        for group, offset in self.groups.items():
            at = min(offset + records, RECORDS) + AHEAD
            await commit(self.bootstrap[self.eu], group, {self.topic: at}, "went on")

    async def stored(self, alias: str | None = None) -> dict[str, int | None]:
        """By group, on the target unless another cluster is named."""
        bootstrap = self.bootstrap[alias or self.eu]
        return {group: (await committed(bootstrap, group, [self.topic]))[self.topic] for group in self.groups}

    async def before(self, target: str) -> dict[str, int | None]:
        """By group, what undos of all runs would give back to it on a target."""
        source = self.us if target == self.eu else self.eu
        async with site(load(self.file), source, target) as place:
            runs = await read_runs(place)
        found: dict[str, int | None] = {}
        for run in runs:
            for group, (row,) in run.groups.items():
                found.setdefault(group, row.before)
        return found

    def wanted(self) -> dict[str, int]:
        return {group: offset + AHEAD for group, offset in self.groups.items()}

    async def _store(self) -> None:
        us, eu = self.bootstrap.values()
        async with cluster_at(us) as source, cluster_and_admin(eu, self.eu) as (target, admin):
            ids = [(await cluster.topics({self.topic})).topics[self.topic].topic_id for cluster in (source, target)]
            place = StoreSettings(
                connector="MirrorSourceConnector",
                source_alias=self.us,
                offsets_topic=f"mm2-offsets.{self.us}.internal",
                map_topic=f"mm2-offset-map.{self.us}.internal",
                transactional_id=f"{self.name}-commit",
                replication_factor=1,
                partitions=2,
            )
            store = MirrorPositionStore(target, admin, place)
            await store.load([TopicPartition(self.topic, 0)])
            position = Position(
                source_topic=self.topic,
                source_partition=0,
                source_topic_id=ids[0],
                next_source_offset=RECORDS,
                source_leader_epoch=0,
                target_topic=self.topic,
                target_partition=0,
                target_topic_id=ids[1],
                target_end=RECORDS + AHEAD,
                transactional_id="",
                producer_id=-1,
                producer_epoch=-1,
                next_sequence=0,
                is_handed_over=True,
            )
            await store.commit([Commit(position, [(0, AHEAD, RECORDS)])])
