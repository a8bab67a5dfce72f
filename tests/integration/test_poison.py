"""Records that cannot be read, in every internal topic of a running mirror: named once, and passed over."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from connect.embedded.brokers import KafkaCluster
from tests.kit.direct import Broker
from tests.kit.mirror import CALM, SMALL, Mirror
from tests.kit.processes import wait_until

pytestmark = pytest.mark.integration

_ALIAS: Final = "poisoned"
_TOPIC: Final = f"{_ALIAS}-numbers"
_DEADLINE_S: Final = 90.0
#: What each of them does to a decoder: too many levels, bytes of no form, the front of a right record and then nothing.
_POISON: Final = (b"[" * 100_000, b"\xff\xfe", b"\x01\x01")
_AT_TARGET: Final = (
    *(f"mm2-{name}.{_ALIAS}.internal" for name in ("configs", "offsets", "status")),
    f"mm2-offset-map.{_ALIAS}.internal",
    f"{_ALIAS}.checkpoints.internal",
    "heartbeats",
)
#: By every start of the mirror; the config topic has a line of its own.
_READ_AT_START: Final = (*_AT_TARGET[1:5], "mm2-offset-syncs.eu.internal")
_AT_SOURCE: Final = ("mm2-offset-syncs.eu.internal",)


def test_a_mirror_goes_on_behind_what_it_cannot_read(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    source, target = Broker(us, 0), Broker(eu, 0)
    source.make_topic(_TOPIC, [[1]])
    asyncio.run(_commit(us.bootstrap))
    properties = {
        "clusters": f"{_ALIAS}, eu",
        f"{_ALIAS}.bootstrap.servers": us.bootstrap,
        "eu.bootstrap.servers": eu.bootstrap,
        f"{_ALIAS}->eu.enabled": "true",
        f"{_ALIAS}->eu.topics": _TOPIC,
        f"{_ALIAS}->eu.groups": f"{_ALIAS}-.*",
        **SMALL,
        **CALM,
        "emit.checkpoints.enabled": "true",
        "emit.heartbeats.enabled": "true",
        "emit.checkpoints.interval.seconds": "1",
        "eu.offset.flush.interval.ms": "500",
    }
    with Mirror(properties, tmp_path) as mirror:
        mirror.start()
        copied = _Copied(source, target)
        copied.more(500)
        assert mirror.is_running
        for broker, topics in ((source, _AT_SOURCE), (target, _AT_TARGET)):
            for topic in topics:
                wait_until(partial(_is_there, broker, topic), _DEADLINE_S, f"{topic} is there", 0.1)
        asyncio.run(_poison(us.bootstrap, _AT_SOURCE))
        asyncio.run(_poison(eu.bootstrap, _AT_TARGET))
        copied.more(500)
        assert mirror.stop() == 0
        begin = mirror.log_end()
        mirror.start()
        copied.more(500)
        mirror.await_line(begin, ["Config topic:", "cannot be read"], _DEADLINE_S)
        for topic in _READ_AT_START:
            mirror.await_line(begin, [f"topic {topic},", "is passed over"], _DEADLINE_S)
        named = [line.partition(" is passed over")[0].partition("topic ")[2] for line in mirror.log_lines(begin)]
        assert mirror.stop() == 0
        mirror.assert_gone()
    of_map = [one for one in named if one.startswith("mm2-offset-map")]
    assert len(of_map) == len(set(of_map)) > 0


def _is_there(broker: Broker, topic: str) -> bool:
    return broker.end(topic) >= 0


class _Copied:
    """Numbers written at the source, and how many have arrived."""

    def __init__(self, source: Broker, target: Broker) -> None:
        self._source, self._target = source, target
        self._written = 0

    def more(self, count: int) -> None:
        self._source.produce(_TOPIC, self._written, count)
        self._written += count
        wait_until(self._have_arrived, _DEADLINE_S, f"{self._written} records are copied", 0.1)

    def _have_arrived(self) -> bool:
        return self._target.end(f"{_ALIAS}.{_TOPIC}") >= self._written


async def _commit(bootstrap: str) -> None:
    """A group, for without one there is no task of checkpoints."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=f"{_ALIAS}-group", enable_auto_commit=False)
    async with consumer:
        partition = TopicPartition(_TOPIC, 0)
        consumer.assign([partition])
        await consumer.commit({partition: 1})


async def _poison(bootstrap: str, topics: tuple[str, ...]) -> None:
    """Write to every partition: each poison as a key and as a value, and a record without a key."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=1 << 20) as producer:
        for topic in topics:
            for partition in await producer.partitions_for(topic):
                for poison in _POISON:
                    for key, value in ((poison, b"x"), (b"connector-x", poison), (poison, None)):
                        await producer.send_and_wait(topic, value, key, partition=partition)
