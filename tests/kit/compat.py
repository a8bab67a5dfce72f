"""``python -m tests.kit.compat``: releases of Kafka as source and as target, struck, and compared record by record."""

from __future__ import annotations

import argparse
import asyncio
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from connect.embedded.brokers import DEFAULT_VERSION
from connectors.verification.direct import compare_topics
from tests.kit.batches import produce_request
from tests.kit.brokers import KafkaCluster, numbers_of
from tests.kit.clients import cluster_at, settings_of
from tests.kit.copies import write_transactions
from tests.kit.kill import run
from tests.kit.long_run import begin, end, parser_of, say
from tests.kit.processes import Role
from tests.kit.rounds import plan
from tests.kit.stage import LOADS, Stage
from tests.kit.stored import stored_positions
from tests.kit.topics import make_topics

#: What a topic of an old broker needs as ``message.format.version`` to keep them as they come, by magic.
FORMATS: Final = {0: "0.9.0", 1: "0.10.0"}
#: Codecs by their number in a message's attributes; lz4 is framed wrongly in magic 0.
_CODECS: Final = {0: (0, 1, 2), 1: (0, 1, 2, 3)}
_PRODUCE_VERSION: Final = {0: 1, 1: 2}
_SIZE_BYTES: Final = 1 << 20
_VERSION_AND_ACKS: Final = struct.Struct(">hi")
PAIRS: Final = (
    ("2.8.2", DEFAULT_VERSION),
    (DEFAULT_VERSION, "2.8.2"),
    ("3.9.1", DEFAULT_VERSION),
    (DEFAULT_VERSION, "3.9.1"),
)
_VICTIMS: Final = (Role.PYTHON_WORKER, Role.WORKER)
_LOAD_BYTES: Final = (100_000, 1_000_000)
#: Topics of brokers before this can be told to keep older messages (``message.format.version``).
_OLD_MESSAGES_BEFORE: Final = (3, 0)
_OLD_SETS: Final = 12
_OLD_RECORDS: Final = 50
HEAD: Final = (
    "| source | target | records under load | records of other shapes | resumed over a surplus | s | faults |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


async def write_old(bootstrap: str, topic: str, magic: int, sets: int, records: int) -> int:
    """Message sets of every codec in turn, each of ``records``, to partition 0; how many records that makes."""
    async with cluster_at(bootstrap) as cluster:
        leader = (await cluster.topics({topic})).leader(topic, 0)
        assert leader is not None, f"{topic}-0 has no leader"
        connection = await cluster.connection(leader)
        for number in range(sets):
            codecs = _CODECS[magic]
            built = _set(magic, codecs[number % len(codecs)], number * records, records)
            await _produce(connection, topic, magic, built)
        return sets * records


def _set(magic: int, codec: int, first: int, count: int) -> bytes:
    builder = LegacyRecordBatchBuilder(magic, codec, _SIZE_BYTES)
    for offset, number in enumerate(range(first, first + count)):
        key = None if number % 5 == 0 else b"key %d" % (number % 7)
        value = None if number % 11 == 0 else b"value %d of magic %d" % (number, magic)
        builder.append(offset, 1_600_000_000_000 + number, key, value)
    return bytes(builder.build())


async def _produce(connection: Any, topic: str, magic: int, records: bytes) -> None:
    answer = await connection.call(produce_request(topic, 0, records), _PRODUCE_VERSION[magic])
    codes = [row.error_code for one in answer.responses for row in one.partition_responses]
    assert codes == [0], f"{topic}: the broker refuses messages of magic {magic}: {codes}"


@dataclass(frozen=True)
class Outcome:
    """What one pair of releases came to; no faults means all is well."""

    source: str
    target: str
    load_records: int
    shape_records: int
    surplus_rounds: int
    seconds: float
    faults: tuple[str, ...]

    def row(self) -> str:
        return (
            f"| {self.source} | {self.target} | {self.load_records} | {self.shape_records} | {self.surplus_rounds} "
            f"| {self.seconds:.0f} | {'; '.join(self.faults) or 'none'} |"
        )


def play(versions: tuple[str, str], directory: Path, *, seed: int, kills: int) -> Outcome:
    began_s = time.monotonic()
    rounds = plan(seed, kills=kills, stops=0, victims=_VICTIMS, load_bytes=_LOAD_BYTES)
    properties = {
        "us->eu.topics": ", ".join([*(load.topic for load in LOADS), "shape-.*"]),
        "us->eu.consumer.isolation.level": "read_committed",
    }
    with Stage(directory, seed=seed, records_per_s=2_000, versions=versions, properties=properties) as stage:
        shapes = asyncio.run(_write_shapes(stage.us, versions[0]))
        report = run(stage, rounds, seed=seed, surplus_rounds=0)
        faults = list(report.all_faults)
        shape_records = 0
        if not faults:
            shape_records, of_shapes = asyncio.run(_compare_shapes(stage, shapes))
            faults += of_shapes + _compare_stored(stage)
        load_records = stage.check().total("target_records")
    seconds = time.monotonic() - began_s
    return Outcome(*versions, load_records, shape_records, report.surplus_rounds, seconds, tuple(faults))


async def _write_shapes(us: KafkaCluster, version: str) -> list[str]:
    """Topics of shapes that the load does not have, each with one partition; their names."""
    bootstrap = us.bootstrap
    await make_topics(bootstrap, {"shape-transactions": 1})
    await write_transactions(us, "shape-transactions")
    await make_topics(bootstrap, {"shape-append-time": 1}, {"message.timestamp.type": "LogAppendTime"})
    await _write_plain(bootstrap, "shape-append-time")
    topics = ["shape-transactions", "shape-append-time"]
    if numbers_of(version) < _OLD_MESSAGES_BEFORE:
        for magic, version in FORMATS.items():
            topic = f"shape-magic-{magic}"
            await make_topics(bootstrap, {topic: 1}, {"message.format.version": version})
            await write_old(bootstrap, topic, magic, _OLD_SETS, _OLD_RECORDS)
            topics.append(topic)
    return topics


async def _write_plain(bootstrap: str, topic: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, compression_type="gzip", linger_ms=20) as producer:
        sent = [await producer.send(topic, b"value %d" % n, key=b"%d" % n, partition=0) for n in range(500)]
        await asyncio.gather(*sent)


async def _compare_shapes(stage: Stage, topics: Sequence[str]) -> tuple[int, list[str]]:
    """How many records were compared, and what is different."""
    sides = settings_of(stage.us.bootstrap), settings_of(stage.eu.bootstrap)
    report = await compare_topics(*sides, {topic: f"us.{topic}" for topic in topics})
    return report.records, [report.difference] if report.difference else []


def _compare_stored(stage: Stage) -> list[str]:
    partitions = {load.topic: load.partitions for load in LOADS}
    stored = asyncio.run(stored_positions(stage.eu.bootstrap, "us", partitions))
    written = {(row.source, row.partition): row.source_records for row in stage.check().partitions}
    return [] if stored == written else [f"stored offsets {stored} are not the source's ends {written}"]


def _arguments() -> argparse.Namespace:
    parser = parser_of("python -m tests.kit.compat", __doc__, "of the blows")
    parser.add_argument("--pair", action="append", metavar="SOURCE:TARGET", help="releases (default: all pairs)")
    parser.add_argument("--kills", type=int, default=3, help="blows for each pair (default 3)")
    return parser.parse_args()


def main() -> int:
    options = _arguments()
    outcomes = []
    for pair in [tuple(text.split(":")) for text in options.pair] if options.pair else PAIRS:
        source, target = pair
        directory = begin(f"compat {source} {target}", options.seed)
        outcomes.append(play((source, target), directory, seed=options.seed, kills=options.kills))
        say(outcomes[-1].row())
        end(outcomes[-1].faults, directory)
    print(HEAD, *(outcome.row() for outcome in outcomes), sep="\n")
    return 1 if any(outcome.faults for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
