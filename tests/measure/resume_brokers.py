"""Resume by counting on several releases: fence, roll, clean, lose the successor, take over; exact or announced."""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from aiokafka import AIOKafkaProducer

from connect.embedded.brokers import DEFAULT_VERSION
from connect.kafka.cluster import Cluster
from connect.kafka.log import transactions
from connect.kafka.log.offsets import LATEST, list_offset
from connect.kafka.log.transactions import fence
from connect.wire import records
from connectors.control_link.protocol import PartitionPlan, SliceSettings
from connectors.dataplane import fetch_api
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.fetch_api import FetchLimits, TopicOnWire
from connectors.dataplane.resume import Resumer
from connectors.formats.types import ProducerIdAndEpoch, ResumeProof, TopicPartition
from tests.kit.batches import Topics, produced
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_at
from tests.kit.topics import make_topics

_RECORDS: Final = 60
_KEYS: Final = 7
_A_BATCH: Final = 5
_STORED_BATCHES: Final = 4
_CLEANER_S: Final = 30.0
_ROLLS: Final = {"segment.ms": "100"}
_THINNED: Final = {**_ROLLS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001"}
_NONE, _OUT_OF_ORDER, _INVALID_EPOCH = 0, 45, 47


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="resume_brokers", description=__doc__)
    parser.add_argument("--versions", nargs="*", default=["2.8.2", "3.9.1", DEFAULT_VERSION])
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    faults = [fault for version in options.versions for fault in _run(version)]
    print("faults:", "; ".join(faults) or "none")
    return int(bool(faults))


def _run(version: str) -> list[str]:
    with KafkaCluster.start("resume", version=version, config={"log.cleaner.backoff.ms": "200"}) as brokers:
        return asyncio.run(_play(version, brokers.bootstrap))


async def _play(version: str, bootstrap: str) -> list[str]:
    await make_topics(bootstrap, {"orders": 1})
    await make_topics(bootstrap, {"us.kept": 1}, _ROLLS)
    await make_topics(bootstrap, {"us.thinned": 1}, _THINNED)
    await make_topics(bootstrap, {"us.raised": 1})
    await _write(bootstrap, "orders", range(_RECORDS))
    async with cluster_at(bootstrap, "us") as cluster:
        faults = [
            fault for target in ("us.kept", "us.thinned") for fault in await _taken_over(cluster, bootstrap, target)
        ]
        faults += await _raised(cluster, TopicPartition("us.raised", 0))
    return [f"{version}: {fault}" for fault in faults]


async def _taken_over(cluster: Cluster, bootstrap: str, topic: str) -> list[str]:
    target, txn = TopicPartition(topic, 0), f"mm2-{topic}"
    wrote = ProducerIdAndEpoch(*await fence(cluster, txn, [target]))
    end = await list_offset(cluster, target, LATEST)
    plan = PartitionPlan(TopicPartition("orders", 0), None, target, None, 0, -1, end, 0, pipelined=True)
    # Not merged, because one batch with all records would leave none behind the stored position.
    predecessor = PartitionCopier(plan, wrote, read_committed=False, batch_bytes=0)
    predecessor.take(await _fetched(cluster, plan.source))
    sent = 0
    while (outgoing := predecessor.next_batch()) is not None:
        code, base = await produced(cluster, *target, bytes(outgoing.batch))
        assert code == _NONE, code
        sent += 1
        if sent <= _STORED_BATCHES:
            predecessor.acknowledged(outgoing, base)
    proof = ResumeProof(wrote, predecessor.next_sequence, True)
    stored = replace(
        plan, next_source_offset=predecessor.next_source_offset, target_end=predecessor.target_end, proof=proof
    )
    await fence(cluster, txn, [target])  # by a successor that is lost before it stores anything
    before = await _kept(cluster, target)
    until_s = time.monotonic() + (_CLEANER_S if topic.endswith("thinned") else 1.0)
    while await _kept(cluster, target) >= before and time.monotonic() < until_s:
        await asyncio.sleep(0.3)
        await _write(bootstrap, topic, range(2))  # by others, so that segments roll
        before += 2
    cleaned = before - await _kept(cluster, target)
    follows = ProducerIdAndEpoch(*await fence(cluster, txn, [target]))
    resumer = Resumer(cluster, cluster, SliceSettings("us->eu", 0, {}, {}))
    found = await resumer.resume(stored)
    arrived = _RECORDS - stored.next_source_offset
    print(
        f"{await _release(cluster)} {topic}: {arrived} arrived behind the stored position, the cleaner took {cleaned}; "
        f"continues at {found.plan.next_source_offset}, may double {found.may_double} ({found.fallback or 'exact'})",
        flush=True,
    )
    faults = [] if arrived else [f"{topic}: nothing arrived behind the stored position, so nothing was proven"]
    if found.refusal or found.later:
        faults.append(f"{topic}: {found.refusal or found.later}")
    elif arrived - (found.plan.next_source_offset - stored.next_source_offset) > found.may_double:
        faults.append(f"{topic}: records appear twice unannounced")
    elif not cleaned and found.fallback:
        faults.append(f"{topic}: nothing was cleaned, and {found.fallback}")
    code, _ = await produced(cluster, *target, _batch(follows, 0))
    zombie, _ = await produced(cluster, *target, _batch(wrote, _RECORDS))
    if (code, zombie) != (_NONE, _INVALID_EPOCH):
        faults.append(f"{topic}: the successor is answered {code}, the zombie {zombie}")
    return faults


async def _raised(cluster: Cluster, target: TopicPartition) -> list[str]:
    """An epoch that nobody gave out, with and without a transactional id behind the producer id."""
    faults = []
    for txn in (None, "mm2-raised"):
        identity = await (
            transactions.new_producer_id(cluster) if txn is None else transactions.init_producer_id(cluster, txn)
        )
        wrote = ProducerIdAndEpoch(*identity)
        following = replace(wrote, epoch=wrote.epoch + 1)
        codes = [
            (await produced(cluster, *target, _batch(who, sequence)))[0]
            for who, sequence in ((wrote, 0), (following, 3), (following, 0), (wrote, 1), (following, 1))
        ]
        print(f"{await _release(cluster)} raised epoch, transactional id {txn}: answers {codes}", flush=True)
        if codes != [_NONE, _OUT_OF_ORDER, _NONE, _INVALID_EPOCH, _NONE]:
            faults.append(f"a raised epoch ({txn}) is answered {codes}")
    return faults


async def _release(cluster: Cluster) -> str:
    versions = (await cluster.any_connection()).versions
    return f"Produce {versions[0][1]}, Fetch {versions[1][1]}"


def _batch(who: ProducerIdAndEpoch, sequence: int) -> bytes:
    return bytes(records.build([records.Record(0, 1, b"k", b"v", [])], 0, who.producer_id, who.epoch, sequence))


async def _write(bootstrap: str, topic: str, values: Sequence[int]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for first in range(0, len(values), _A_BATCH):
            batch = producer.create_batch()
            for value in values[first : first + _A_BATCH]:
                batch.append(key=b"%d" % (value % _KEYS), value=b"%d" % value, timestamp=None)
            await (await producer.send_batch(batch, topic, partition=0))


async def _fetched(cluster: Cluster, partition: TopicPartition) -> memoryview:
    leader = (await cluster.metadata({partition.topic})).leader(*partition)
    assert leader is not None
    limits = FetchLimits(500, 1, 2**20, 2**20, fetch_api.READ_UNCOMMITTED)
    connection = await cluster.connection(leader, "resume")
    found = await fetch_api.fetch_one(
        connection, TopicOnWire(partition.topic, None), partition.partition, (0, -1, -1), limits
    )
    return found.records


async def _kept(cluster: Cluster, partition: TopicPartition) -> int:
    """How many records the log still has, markers included."""
    return sum(one.record_count for one in await Topics(cluster).headers(partition.topic))
