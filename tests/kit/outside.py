"""Two secured clusters with 2,000 partitions of every kind; the mirror may do what docs/security.md names alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaProducer

from connect.embedded.brokers import QUICK_JVM, KafkaCluster
from tests.kit.clients import stock_admin
from tests.kit.mirror import SMALL, Mirror
from tests.kit.rules import Guarded
from tests.kit.secured import Secured, as_lines, start_secured
from tests.kit.stock import Stock
from tests.kit.topics import make_topics

#: Names of all source topics begin with it, so that a right to a prefix is a right to all of them.
PREFIX: Final = "o"
BACK: Final = "back"
PARTITIONS: Final = 2_000
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
#: Behind "us." the longest name that Kafka takes, and one that is too long by one.
LONGEST: Final = PREFIX + "l" * 245
TOO_LONG: Final = PREFIX + "m" * 246
#: The target has a topic whose name Kafka takes for the same, as metrics have no dots.
COLLIDING: Final = "o-collides"
IN_THE_WAY: Final = "us_o-collides"
SECRET: Final = "p-secret"
#: Groups whose offsets are moved.
MOVED: Final = "moved"
_BULK: Final = "o.bulk"
_BULK_PARTITIONS: Final = 50
#: Topics made by one request: a broker makes all their logs before it answers.
_MADE_AT_ONCE: Final = 5
_HEAP: Final = "-Xmx768m"
_GUARDED: Final = {
    "allow.everyone.if.no.acl.found": "false",
    "super.users": "User:ANONYMOUS",
    "log.cleaner.backoff.ms": "500",
    "log.initial.task.delay.ms": "500",
    "message.max.bytes": "4000000",
    "replica.fetch.max.bytes": "4000000",
}
_NOW_MS: Final = int(time.time() * 1000) - 60_000
Written = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...], int]


@dataclass(frozen=True)
class Topic:
    """What is written to one: ``sizes`` of values in turn, -1 for null; of ``keys`` keys, 0 for none at all."""

    name: str
    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    codec: str = "none"
    sizes: Sequence[int] = (40,)
    keys: int = 0
    records: int = 60
    headers: Sequence[tuple[str, bytes]] = (("n", b"1"),)

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.configs.get("cleanup.policy", "")


def _compacted(policy: str) -> dict[str, str]:
    """Cleaned within seconds."""
    return {
        "cleanup.policy": policy,
        "segment.ms": "1000",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "86400000",
    }


SHAPED: Final = (
    Topic("o"),
    Topic("o.dots.in.its.name", 2),
    Topic("o-dashes-in-its-name", 2),
    Topic("o_underscores_in_it"),
    Topic("oMixed.Case-and_All.0"),
    Topic("o..two.dots.and.one.at.its.end."),
    Topic(LONGEST, 2),
    Topic("o.deleted", configs={"cleanup.policy": "delete", "retention.ms": "1209600000"}),
    Topic("o.compacted", configs=_compacted("compact"), keys=7, records=300),
    Topic("o.both", configs={**_compacted("compact,delete"), "retention.ms": "1209600000"}, keys=7, records=300),
    Topic("o.create-time", configs={"message.timestamp.type": "CreateTime"}),
    Topic("o.append-time", configs={"message.timestamp.type": "LogAppendTime"}, codec="zstd"),
    *(Topic(f"o.sent.{codec}", codec=codec, sizes=(400,)) for codec in CODECS),
    *(
        Topic(f"o.kept.{codec}", configs={"compression.type": "uncompressed" if codec == "none" else codec})
        for codec in CODECS
    ),
    Topic("o.sizes", sizes=(-1, 0, 1, 1_000, 100_000, 900_000), keys=3, records=12),
    Topic("o.large", configs={"max.message.bytes": "3500000"}, sizes=(3_000_000, 10), records=4, codec="lz4"),
    Topic("o.headers", headers=(("a", b""), ("a", b"\x00\xff"), ("", b"no name"), ("b" * 200, b"c" * 2_000))),
    Topic("o.transactions", 2),
    Topic("o.growing", 2),
    Topic("o.configured", configs={"retention.ms": "1209600000", "segment.ms": "86400000"}),
    Topic("o.excluded", configs={"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}),
    Topic("o.goes"),
)
BACKWARDS: Final = (Topic(f"{BACK}-a", 2, {"retention.ms": "1209600000"}), Topic(f"{BACK}-goes"))


def bulk() -> dict[str, int]:
    """Names and partitions of those that make 2,000 of all."""
    left = PARTITIONS - sum(topic.partitions for topic in SHAPED)
    full, rest = divmod(left, _BULK_PARTITIONS)
    found = {f"{_BULK}-{number:02}": _BULK_PARTITIONS for number in range(full)}
    return {**found, f"{_BULK}-{full:02}": rest} if rest else found


def rights(alias: str, other: str, user: str, topics: str, other_topics: str) -> list[str]:
    """What the mirror may do on cluster ``alias``: the tables of docs/security.md, line by line."""
    store = [f"mm2-{name}.{other}.internal" for name in ("offsets", "offset-map", "configs", "status")]
    written = ("CREATE", "WRITE", "READ", "DESCRIBE", "DESCRIBE_CONFIGS")
    lines = [f"ALLOW {one} {user} TOPIC PREFIXED {topics}" for one in ("READ", "DESCRIBE", "DESCRIBE_CONFIGS")]
    lines += [
        f"ALLOW {one} {user} TOPIC PREFIXED {other}.{other_topics}"
        for one in (*written, "ALTER_CONFIGS", "ALTER", "DELETE")
    ]
    lines += [f"ALLOW {one} {user} TOPIC LITERAL {name}" for name in store for one in written]
    own = (f"mm2-offset-syncs.{other}.internal", f"{other}.checkpoints.internal", "heartbeats")
    lines += [f"ALLOW {one} {user} TOPIC LITERAL {name}" for name in own for one in written[:4]]
    # Heartbeats are mirrored too.
    lines += [f"ALLOW DESCRIBE_CONFIGS {user} TOPIC LITERAL heartbeats"]
    lines += [f"ALLOW {one} {user} TOPIC LITERAL {other}.heartbeats" for one in (*written, "ALTER_CONFIGS", "ALTER")]
    lines += [f"ALLOW READ {user} GROUP LITERAL {other}-mm2"]
    lines += [f"ALLOW {one} {user} GROUP PREFIXED {MOVED}" for one in ("READ", "DESCRIBE")]
    lines += [
        f"ALLOW {one} {user} TRANSACTIONAL_ID PREFIXED {other}-mm2-MirrorSourceConnector-"
        for one in ("WRITE", "DESCRIBE")
    ]
    lines += [f"ALLOW {one} {user} CLUSTER LITERAL kafka-cluster" for one in ("DESCRIBE", "ALTER")]
    # In full, a flow reads what the opposite one has made.
    lines += [f"ALLOW READ {user} TOPIC LITERAL mm2-offset-map.{other}.internal"]
    return list(dict.fromkeys(lines))


@dataclass(frozen=True)
class Command:
    """How a command ended, what it printed, and what it took: on the clock, of processors, and of memory at most."""

    code: int
    out: str
    seconds: float
    cpu_s: float
    peak_mb: float

    @property
    def cost(self) -> str:
        return f"{self.seconds:.1f} s, {self.cpu_s:.1f} s of a processor, {self.peak_mb:.0f} MB, exit code {self.code}"


@dataclass
class Outside:
    """Both clusters, what stock clients see of them, and the mirror. ``written`` by topic and partition."""

    us: KafkaCluster
    eu: KafkaCluster
    mirror: Mirror
    us_stock: Stock
    eu_stock: Stock
    us_rules: Guarded
    eu_rules: Guarded
    written: dict[tuple[str, int], list[Written]] = field(default_factory=dict)

    async def write(self, cluster: KafkaCluster, topic: Topic, first: int = 0, partitions: Sequence[int] = ()) -> None:
        """Its records, round and round its partitions; numbered from ``first``."""
        chance = random.Random(f"{topic.name}/{first}")
        async with _producer(cluster, topic.codec) as producer:
            for number in range(first, first + topic.records):
                size = topic.sizes[number % len(topic.sizes)]
                value = None if size < 0 else (b"%d " % number + chance.randbytes(size // 2) + b"." * size)[:size]
                key = b"k%d" % (number % topic.keys) if topic.keys else None
                turn = partitions or range(topic.partitions)
                index = turn[number % len(turn)]
                await producer.send(topic.name, value, key, index, _NOW_MS + number, list(topic.headers))
                self.written.setdefault((topic.name, index), []).append(
                    (key, value, tuple(topic.headers), _NOW_MS + number)
                )

    async def write_transactions(self, topic: Topic) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.us.bootstrap, transactional_id="outside")
        async with producer:
            for number in range(4):
                await producer.begin_transaction()
                for index in range(topic.partitions):
                    record = (b"%d" % number, b"in a transaction", (), _NOW_MS + number)
                    await producer.send_and_wait(topic.name, record[1], record[0], index, record[3])
                    if number % 2:
                        self.written.setdefault((topic.name, index), []).append(record)
                await (producer.commit_transaction() if number % 2 else producer.abort_transaction())

    async def write_bulk(self) -> None:
        async with _producer(self.us, "none") as producer:
            for name, count in bulk().items():
                for index in range(count):
                    await producer.send(name, b"%d" % index, None, index, _NOW_MS)

    def run(self, *arguments: str) -> Command:
        """``heliograph`` with these arguments, and the mirror's file behind them."""
        began_s = time.monotonic()
        program = Path(sys.executable).parent / "heliograph"
        command = [str(program), *arguments, str(self.mirror.properties_file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            out = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        cpu_s = usage.ru_utime + usage.ru_stime
        return Command(process.returncode, out, time.monotonic() - began_s, cpu_s, usage.ru_maxrss / 1024)


@contextlib.asynccontextmanager
async def _producer(cluster: KafkaCluster, codec: str) -> Any:
    kind: Any = None if codec == "none" else codec
    options = {"max_request_size": 4_000_000, "linger_ms": 5, "enable_idempotence": True}
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, compression_type=kind, **options) as producer:
        yield producer
        await producer.flush()


@contextlib.contextmanager
def outside(folder: Path) -> Iterator[Outside]:
    """Everything but a started mirror: topics and their records are there, and the rights."""
    with contextlib.ExitStack() as exits:
        secured: list[Secured] = []
        for name in ("us", "eu"):
            (folder / name).mkdir()
            started = start_secured(name, folder / name, config=_GUARDED, jvm_options=(*QUICK_JVM, _HEAP))
            secured.append(exits.enter_context(started))
        us, eu = secured
        stocks = [exits.enter_context(contextlib.closing(Stock(each.cluster))) for each in secured]
        rules = [Guarded(each.cluster, exits.enter_context(stock_admin(each.cluster.bootstrap))) for each in secured]
        mirror = exits.enter_context(Mirror(_properties(us, eu), folder))
        users = ("User:bob", "User:CN=client")
        found = Outside(us.cluster, eu.cluster, mirror, stocks[0], stocks[1], rules[0], rules[1])
        found.us_rules.add(*rights("us", "eu", users[0], PREFIX, BACK))
        found.eu_rules.add(*rights("eu", "us", users[1], BACK, PREFIX))
        asyncio.run(_fill(found))
        yield found


async def _fill(found: Outside) -> None:
    us, eu = found.us.bootstrap, found.eu.bootstrap
    for topic in SHAPED:
        await make_topics(us, {topic.name: topic.partitions}, topic.configs)
    names = bulk()
    for some in [list(names)[at : at + _MADE_AT_ONCE] for at in range(0, len(names), _MADE_AT_ONCE)]:
        await make_topics(us, {name: names[name] for name in some})
    await make_topics(us, {TOO_LONG: 1, COLLIDING: 1, SECRET: 1})
    await make_topics(eu, {IN_THE_WAY: 1})
    for topic in BACKWARDS:
        await make_topics(eu, {topic.name: topic.partitions}, topic.configs)
    for name, count in (*((topic.name, topic.partitions) for topic in SHAPED), *names.items()):
        await found.us_stock.until_partitions(name, count)
    for topic in SHAPED:
        if topic.name == "o.transactions":
            await found.write_transactions(topic)
        else:
            await found.write(found.us, topic)
    await found.write_bulk()
    for topic in BACKWARDS:
        await found.write(found.eu, topic)


def _properties(us: Secured, eu: Secured) -> dict[str, str]:
    """One flow as Java's defaults have it, one back with what goes beyond them."""
    return {
        **SMALL,
        "clusters": "us, eu",
        **as_lines("us", us.properties("SCRAM_TLS")),
        **as_lines("eu", eu.properties("MUTUAL")),
        "tasks.max": "2",
        # On a busy machine a worker with so many partitions may be silent for longer than a small one.
        "eu.session.timeout.ms": "60000",
        "us.session.timeout.ms": "60000",
        "sync.topic.configs.enabled": "true",
        "refresh.look.interval.ms": "1000",
        "refresh.topics.interval.seconds": "5",
        "sync.topic.configs.interval.seconds": "5",
        "sync.topic.acls.interval.seconds": "5",
        "emit.heartbeats.enabled": "true",
        "us->eu.emit.checkpoints.enabled": "true",
        "us->eu.emit.checkpoints.interval.seconds": "2",
        "us->eu.sync.group.offsets.enabled": "true",
        "us->eu.sync.group.offsets.interval.seconds": "2",
        "us->eu.refresh.groups.interval.seconds": "2",
        "us->eu.groups": f"{MOVED}.*",
        "us->eu.enabled": "true",
        "us->eu.topics": ".*",
        "us->eu.consumer.isolation.level": "read_committed",
        "eu->us.enabled": "true",
        "eu->us.topics": f"{BACK}-.*",
        "eu->us.use.defaults.from": "source",
        "eu->us.topic.deletion.policy": "delete-after",
        "eu->us.topic.deletion.delay.ms": "1000",
        "eu->us.sync.acls.mode": "full",
        "eu->us.offset-syncs.topic.location": "target",
    }
