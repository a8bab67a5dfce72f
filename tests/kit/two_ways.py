"""Two clusters whose topics keep their names, a mirror each way, and groups that move between them."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaProducer

from connect.cli.commands.failover import FailoverArguments, run_failover
from connect.embedded.brokers import KafkaCluster
from tests.kit.copies import read_all
from tests.kit.java_program import IDENTITY
from tests.kit.mirror import SMALL, Mirror
from tests.kit.moving import commit, committed
from tests.kit.processes import wait_until
from tests.kit.topics import make_topics

PLAIN: Final = 400
TRANSACTIONS: Final = 20
EACH: Final = 5
#: Where the two topics end at first: each transaction has a marker.
_ENDS: Final = (PLAIN, 2 * TRANSACTIONS * (EACH + 1))
DEADLINE_S: Final = 120.0
#: Behind the end, or from the beginning, by the label of a group.
PLACES: Final[Mapping[str, tuple[int, int]]] = {"end": (-1, 0), "ten": (-1, 10), "half": (200, 0), "start": (0, 0)}


class TwoWays:
    """Aliases, topics and groups are new ones."""

    def __init__(self, us: KafkaCluster, eu: KafkaCluster, directory: Path) -> None:
        self.name = uuid.uuid4().hex[:6]
        self.us, self.eu = f"us{self.name}", f"eu{self.name}"
        self.bootstrap = {self.us: us.bootstrap, self.eu: eu.bootstrap}
        self.topics = [f"plain-{self.name}", f"gaps-{self.name}"]
        self.groups = {label: f"{self.name}-{label}" for label in PLACES}
        self.directory = directory

    def properties(self, source: str, target: str, **more: str) -> dict[str, str]:
        return {
            "clusters": f"{self.us}, {self.eu}",
            **{f"{alias}.bootstrap.servers": address for alias, address in self.bootstrap.items()},
            f"{source}->{target}.enabled": "true",
            "topics": f".*-{self.name}",
            "groups": f"{self.name}-.*",
            "replication.policy.class": f"org.apache.kafka.connect.mirror.{IDENTITY}",
            **{f"{alias}.consumer.isolation.level": "read_committed" for alias in self.bootstrap},
            **SMALL,
            **{f"{alias}.session.timeout.ms": "6000" for alias in self.bootstrap},
            **{f"{alias}.heartbeat.interval.ms": "1000" for alias in self.bootstrap},
            **more,
        }

    def mirror(self, source: str, target: str, **more: str) -> Mirror:
        """Of one flow, not started; its file is for commands too."""
        directory = self.directory / f"{source}-{target}"
        directory.mkdir(exist_ok=True)
        return Mirror(self.properties(source, target, **more), directory)

    def arguments(self, file: Path, source: str, target: str, **more: Any) -> FailoverArguments:
        return FailoverArguments(file, source, target, timeout_s=DEADLINE_S, as_json=True, **more)

    # -- what is done -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Topics with records at us, and groups at their places."""
        asyncio.run(make_topics(self.bootstrap[self.us], dict.fromkeys(self.topics, 1)))
        self.write(self.us, "first")
        for label, (at, less) in PLACES.items():
            ends = zip(self.topics, _ENDS, strict=True)
            offsets = {topic: (end if at < 0 else min(at, end // 2)) - less for topic, end in ends}
            asyncio.run(commit(self.bootstrap[self.us], self.groups[label], offsets, "note"))

    def write(self, alias: str, word: str, times: int = 1) -> None:
        """So often the same number of records, all with values of their own."""
        asyncio.run(self._write(alias, word, times))

    async def _write(self, alias: str, word: str, times: int) -> None:
        plain, gaps = self.topics
        address = self.bootstrap[alias]
        async with AIOKafkaProducer(bootstrap_servers=address) as producer:
            for number in range(PLAIN * times):
                await producer.send(plain, f"{word} {number}".encode())
        async with AIOKafkaProducer(bootstrap_servers=address, transactional_id=f"{gaps}-{word}") as producer:
            for number in range(2 * TRANSACTIONS):
                await producer.begin_transaction()
                for part in range(EACH):
                    await producer.send(gaps, f"{word} {number} {part}".encode())
                await (producer.abort_transaction() if number % 2 else producer.commit_transaction())

    def await_copied(self, source: str, target: str) -> None:
        """Until the target's topics end as the source's do now."""
        for topic in self.topics:
            wanted = self.values(source, topic)[-10:]
            wait_until(partial(self._ends_with, target, topic, wanted), DEADLINE_S, f"{topic} is copied")

    def _ends_with(self, alias: str, topic: str, wanted: list[bytes | None]) -> bool:
        return self.values(alias, topic)[-len(wanted) :] == wanted

    # -- what is seen -------------------------------------------------------------------------------------

    def left_to_read(self, alias: str) -> dict[tuple[str, str], list[bytes | None]]:
        address = self.bootstrap[alias]
        found: dict[tuple[str, str], list[bytes | None]] = {}
        for label, group in self.groups.items():
            for topic, offset in asyncio.run(committed(address, group, self.topics)).items():
                found[label, topic] = [b"nothing stored"] if offset is None else self.values(alias, topic, offset)
        return found

    def values(self, alias: str, topic: str, begin: int = 0) -> list[bytes | None]:
        records = asyncio.run(read_all(self.bootstrap[alias], topic))
        return [record.value for record in records if record.offset >= begin]


class Running:
    """A command in a thread of its own, as somebody else runs it."""

    def __init__(
        self, arguments: FailoverArguments, command: Callable[[FailoverArguments], int] = run_failover
    ) -> None:
        self._command = command
        self.exit_code: int | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(arguments,), name="failover")
        self._thread.start()

    def _run(self, arguments: FailoverArguments) -> None:
        try:
            self.exit_code = self._command(arguments)
        except BaseException as error:
            self.error = error

    def end(self) -> int:
        self._thread.join(2 * DEADLINE_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        assert self.exit_code is not None
        return self.exit_code
