"""Compacted topics are created, read to their end however long that takes, and written again after errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition

from connect.core.errors import ClusterUnreachable, HeliographError, PermanentError, RetriableError, SecurityError
from connect.core.model import CLEANED_SOON, NewTopic
from connect.kafka.cluster import Cluster
from connect.kafka.log import compacted_log, compacted_topic
from connect.kafka.log.compacted_log import CompactedLog
from connect.kafka.log.compacted_topic import LogRecord, ensure_compacted_topic, read_to_end
from connect.kafka.log.producer import OutRecord
from connect.kafka.log.topic_admin import Admin
from connect.kafka.security.connection_settings import connection_settings
from tests.kit import virtual_time
from tests.kit.virtual_time import in_virtual_time

PLACE = TopicPartition("map", 0)
EU = cast(Cluster, SimpleNamespace(name="eu"))


class Consumer:
    """Hands out one record at a time, each after ``pause_s``, and nothing once ``stuck_at`` is reached."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, records: int, pause_s: float, stuck_at: int) -> None:
        self._pause_s = pause_s
        self._stuck_at = stuck_at
        self._next = 0

        async def spans(*_: object) -> dict[int, tuple[int, int]]:
            return {PLACE.partition: (0, records)}

        @asynccontextmanager
        async def reader(*_: object, **__: object) -> AsyncIterator[Consumer]:
            yield self

        monkeypatch.setattr(compacted_topic, "_spans", spans)
        monkeypatch.setattr(compacted_topic, "reader", reader)

    def assign(self, _: object) -> None: ...

    def seek(self, *_: object) -> None: ...

    def pause(self, _: object) -> None: ...

    async def position(self, _: object) -> int:
        return self._next

    async def getmany(self, *, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Any]]:
        if self._next >= self._stuck_at:
            await asyncio.sleep(timeout_ms / 1000)
            return {}
        if self._pause_s:
            await asyncio.sleep(self._pause_s)
        count = 1 if self._pause_s else min(max_records, self._stuck_at - self._next)
        made = [
            SimpleNamespace(key=b"k", value=b"v", offset=self._next + at, timestamp=0, headers=())
            for at in range(count)
        ]
        self._next += count
        return {PLACE: made}


@in_virtual_time
async def test_a_slow_read_goes_on_as_long_as_something_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    Consumer(monkeypatch, records=20, pause_s=0.05, stuck_at=20)
    found: list[LogRecord] = []
    clock = asyncio.get_running_loop().time
    began_s = clock()
    assert await read_to_end(EU, "map", found.append, timeout_s=0.5) == {PLACE.partition: 20}
    assert len(found) == 20
    assert clock() - began_s > 0.5, "longer than it may stand still"


@in_virtual_time
async def test_a_read_that_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    Consumer(monkeypatch, records=20, pause_s=0.01, stuck_at=10)
    found: list[LogRecord] = []
    with pytest.raises(RetriableError, match=r"nothing came for 0\.3 s"):
        await read_to_end(EU, "map", found.append, timeout_s=0.3)
    assert len(found) == 10


async def test_others_on_the_loop_have_their_turn_while_a_topic_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    Consumer(monkeypatch, records=50_000, pause_s=0, stuck_at=50_000)
    between: list[int] = []
    read = 0

    def apply(_: LogRecord) -> None:
        nonlocal read
        read += 1

    async def others() -> None:
        while True:
            between.append(read)
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await read_to_end(EU, "map", apply)
    assert read == 50_000
    task.cancel()
    assert max(after - before for before, after in zip(between, [*between[1:], read], strict=True)) <= 500


# -- topics made --------------------------------------------------------------------------------------------------


class Target:
    """Refuses every topic with ``code`` as long as it has one of ``refused`` among its settings; keeps all requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int, *refused: str) -> None:
        settings = connection_settings({"bootstrap.servers": "a:9092"}, client_id="c", where="the target")
        self.admin = Admin(settings, "eu")
        self.asked: list[dict[str, str]] = []

        async def create_topics(topics: Any) -> dict[str, HeliographError | None]:
            [topic] = topics
            self.asked.append(dict(topic.configs))
            row = SimpleNamespace(name=topic.name, error_code=code * (not topic.configs.keys().isdisjoint(refused)))
            return self.admin._outcomes("create", "CREATE", [row])

        monkeypatch.setattr(self.admin, "create_topics", create_topics)


USERS = {"min.insync.replicas": "2", "segment.bytes": "777"}
COMPACT = {"cleanup.policy": "compact"}


OURS = dict(CLEANED_SOON)


@pytest.mark.parametrize(
    ("code", "refused", "configs", "asked"),
    [
        (40, "delete.retention.ms", {**OURS, **USERS}, [{**OURS, **USERS}, USERS]),
        (44, "delete.retention.ms", {**OURS, **USERS}, [{**OURS, **USERS}, USERS]),
        (40, "min.insync.replicas", USERS, [USERS]),
        (44, "min.insync.replicas", USERS, [USERS]),
        # Too few brokers at the moment have nothing to do with settings.
        (38, "cleanup.policy", OURS, [OURS, OURS]),
    ],
)
@in_virtual_time
async def test_settings_of_ours_are_left_out_if_they_are_refused_and_those_of_users_never(
    monkeypatch: pytest.MonkeyPatch, code: int, refused: str, configs: dict[str, str], asked: list[dict[str, str]]
) -> None:
    target, topic = Target(monkeypatch, code, refused), NewTopic("offsets", configs=configs)
    if refused == "delete.retention.ms":
        await ensure_compacted_topic(target.admin, topic)
    else:
        with pytest.raises(PermanentError, match=rf"cannot create topic offsets: .*\({code}\)"):
            await ensure_compacted_topic(target.admin, topic, timeout_s=0.1)
    assert target.asked == [{**one, **COMPACT} for one in asked]


async def test_a_cluster_that_refuses_us_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(monkeypatch, 0)

    async def refused(topics: Any) -> None:
        target.asked.append({})
        raise SecurityError("could not authenticate")

    monkeypatch.setattr(target.admin, "create_topics", refused)
    with pytest.raises(SecurityError):
        await ensure_compacted_topic(target.admin, NewTopic("offsets", configs=CLEANED_SOON))
    assert len(target.asked) == 1


def test_each_attempt_asks_anew_for_what_is_to_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[list[bytes]] = []

    class Writer:
        def __init__(self, cluster: Cluster, *, timeout_s: float) -> None: ...

        async def write(self, records: Iterable[OutRecord]) -> None:
            attempts.append([record.key for record in records])
            if len(attempts) == 1:
                wanted.pop()
                raise ClusterUnreachable("away")

    async def main() -> None:
        cluster = Cluster(connection_settings({"bootstrap.servers": "127.0.0.1:1"}, client_id="c", where="test"))
        log = CompactedLog(cluster, "t", lambda record: None, lambda: None)
        await log.write(wanted)
        await cluster.close()

    monkeypatch.setattr(compacted_log, "PlainWriter", Writer)
    wanted = [OutRecord("t", b"k", b"v"), OutRecord("t", b"gone", b"v")]
    virtual_time.run(main())
    assert attempts == [[b"k", b"gone"], [b"k"]]
