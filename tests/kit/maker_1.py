"""``kafka-mirror-maker`` as users start it, and what its tests write, read and ask."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import ConsumerRecord

from connect.kafka.log.committed_offsets import Committed, committed
from tests.kit import members
from tests.kit.clients import cluster_at
from tests.kit.mirror import Mirror, write_properties

Keys = Mapping[str, str]
#: A member that is killed is missed after six seconds, a round is known of after half a one.
QUICK: Final[Keys] = {
    "auto.offset.reset": "earliest",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "500",
    "metadata.max.age.ms": "1000",
}

#: Spark alone takes a minute to start on a machine that is very busy.
DEADLINE_S: Final = 400.0


def maker_1(
    directory: Path, us: str, eu: str, group: str, *options: str, consumer: Keys = QUICK, producer: Keys | None = None
) -> Mirror:
    """A process that is not started yet, between the brokers at two addresses, with the keys of its files."""
    directory.mkdir(exist_ok=True)
    file = directory / "consumer.properties"
    write_properties(file, {"bootstrap.servers": us, "group.id": group, **consumer})
    program = str(Path(sys.executable).parent / "kafka-mirror-maker")
    command = [program, *options, "--consumer.config", str(file), "--producer.config"]
    return Mirror({"bootstrap.servers": eu, **(producer or {})}, directory, command)


async def write(bootstrap: str, topic: str, numbers: range, *, keys: int = 7, partitions: int | None = None) -> None:
    """Records whose value is their number; every eleventh has no key. They go by key, or in turn to ``partitions``."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=20) as producer:
        sent = [
            await producer.send(
                topic,
                b"%d" % number,
                key=None if number % 11 == 0 else b"key-%d" % (number % keys),
                partition=None if partitions is None else number % partitions,
                headers=[("number", b"%d" % number)],
            )
            for number in numbers
        ]
        for one in sent:
            await one


async def read(bootstrap: str, topic: str) -> dict[int, list[ConsumerRecord[Any, Any]]]:
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False) as consumer:
        await consumer._client.force_metadata_update()
        partitions = [TopicPartition(topic, index) for index in consumer.partitions_for_topic(topic) or ()]
        if not partitions:
            return {}
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(partitions)
        found: dict[int, list[ConsumerRecord[Any, Any]]] = {one.partition: [] for one in partitions}
        while any([await consumer.position(one) < ends[one] for one in partitions]):
            for one, batch in (await consumer.getmany(timeout_ms=500)).items():
                found[one.partition] += batch
        return found


async def numbers(bootstrap: str, topic: str) -> dict[int, list[int]]:
    return {index: [int(one.value) for one in found] for index, found in (await read(bootstrap, topic)).items()}


async def stored(bootstrap: str, group: str) -> dict[tuple[str, int], Committed]:
    async with cluster_at(bootstrap) as cluster:
        return await committed(cluster, group)


async def until(ask: Callable[[], Awaitable[bool]], what: str) -> None:
    await members.until(ask, what, DEADLINE_S)


class SpreadJudge:
    """Judges what :func:`write` wrote and a mirror has shared out by key: one partition for all of a key, in order."""

    def __init__(self, found: Mapping[int, Sequence[ConsumerRecord[Any, Any]]]) -> None:
        self.numbers = sorted(int(one.value) for part in found.values() for one in part)
        homes: dict[bytes, int] = {}
        last: dict[bytes, int] = {}
        for index, records in found.items():
            for one in records:
                if one.key is None:
                    continue
                number = int(one.value)
                assert homes.setdefault(one.key, index) == index, f"{one.key!r} is in two partitions"
                assert last.get(one.key, -1) < number, f"{number} of {one.key!r} is out of order"
                last[one.key] = number
        self.homes_in_use = set(homes.values())
