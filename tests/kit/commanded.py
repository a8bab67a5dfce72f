"""Two mirrors, one each way, and readers that ``heliograph`` moves by ``failover`` and ``failback`` under load."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from connect.cli.commands.failover import FailoverArguments, run_failback, run_failover
from connect.core.errors import RetriableError
from connect.embedded import cluster_config
from connect.embedded.brokers import KafkaCluster
from tests.kit.java_client import IDENTITY
from tests.kit.mirror import SMALL, Mirror
from tests.kit.moving import KINDS, PLACES, Feed, Mover, commit, committed, end_of, read

#: Spark starts within it, more than once, on a machine that is busy.
DEADLINE_S: Final = 600.0
#: Rounds of the second feed, whose records have values of their own.
SECOND: Final = 1_000_000
#: How often a command is run again that says so.
_RUNS: Final = 5
#: More offsets than a round has.
_TAIL: Final = 60
_LOOK_S: Final = 0.5


class Commanded:
    """``more`` are properties of both flows. Aliases, topics and groups are named after ``name``."""

    def __init__(
        self, us: KafkaCluster, eu: KafkaCluster, directory: Path, name: str, policy: str, more: Mapping[str, str]
    ) -> None:
        self.name, self._policy, self._directory = name, policy, directory
        self.keeps_names = policy == IDENTITY
        self.us, self.eu = f"us{name}", f"eu{name}"
        self.bootstrap = {self.us: us.bootstrap, self.eu: eu.bootstrap}
        self.movers = [Mover(f"{name}-{place}") for place in PLACES]
        self.feeds = {self.us: Feed(us.bootstrap, name), self.eu: Feed(eu.bootstrap, name)}
        self.feeds[self.eu].rounds = SECOND
        self._more = more
        self._ports = dict(zip((self.us, self.eu), cluster_config.choose(2), strict=True))

    def mirror(self, source: str, target: str) -> Mirror:
        """Of one flow; not started."""
        directory = self._directory / f"from-{source}"
        directory.mkdir()
        return Mirror(self._properties(source, target), directory)

    def _properties(self, source: str, target: str) -> dict[str, str]:
        return {
            "clusters": f"{self.us}, {self.eu}",
            **{f"{alias}.bootstrap.servers": address for alias, address in self.bootstrap.items()},
            f"{source}->{target}.enabled": "true",
            "topics": f".*-{self.name}",
            "groups": f"{self.name}-.*",
            "replication.policy.class": f"org.apache.kafka.connect.mirror.{self._policy}",
            "refresh.topics.interval.seconds": "1",
            **{key: value for key, value in SMALL.items() if not key.startswith("eu.")},
            **{f"{alias}.consumer.isolation.level": "read_committed" for alias in self.bootstrap},
            **{f"{alias}.{key}": value for alias in self.bootstrap for key, value in self._more.items()},
            "listeners": f"http://{cluster_config.HOST}:{self._ports[source]}",
            "dedicated.mode.enable.public.rest": "true",
        }

    def topics_of(self, kind: str, alias: str) -> list[str]:
        """Where readers on a cluster find the records of a kind: what was written there, and what was brought."""
        topic = f"{kind}-{self.name}"
        other = self.eu if alias == self.us else self.us
        return [topic] if self.keeps_names else [topic, f"{other}.{topic}"]

    def command(self, name: str, file: Path, source: str, target: str, capsys: pytest.CaptureFixture[str]) -> str:
        arguments = FailoverArguments(
            file,
            source,
            target,
            rest=[f"http://{cluster_config.HOST}:{port}" for port in self._ports_running(source)],
            executes=True,
            timeout_s=DEADLINE_S,
            as_json=True,
        )
        said_last = ""
        for _ in range(_RUNS):
            capsys.readouterr()
            try:
                code = (run_failover if name == "failover" else run_failback)(arguments)
            except RetriableError as error:
                said_last = str(error)
                continue
            said = capsys.readouterr()
            assert code == 0, said.out + said.err
            return said.out
        raise AssertionError(f"{name} is never done: {said_last}")

    def _ports_running(self, source: str) -> list[int]:
        """Before the failover only the flow there runs."""
        return [self._ports[self.us]] if source == self.us else list(self._ports.values())

    async def leave(self, alias: str, places: Sequence[str], *, has_copies: bool) -> None:
        """Each group goes on to a place of its own, while more is written, and leaves."""
        for mover, place in zip(self.movers, places, strict=True):
            for kind in KINDS:
                for topic in self.topics_of(kind, alias)[: None if has_copies else 1]:
                    end = PLACES[place](await end_of(self.bootstrap[alias], topic))
                    await self._process(mover, alias, kind, topic, end)

    async def finish(self, alias: str) -> None:
        for mover in self.movers:
            for kind in KINDS:
                for topic in self.topics_of(kind, alias):
                    await self._process(mover, alias, kind, topic, await end_of(self.bootstrap[alias], topic))

    async def _process(self, mover: Mover, alias: str, kind: str, topic: str, end: int) -> None:
        address = self.bootstrap[alias]
        begin = (await committed(address, mover.group, [topic]))[topic] or 0
        at = await mover.process(address, topic, kind, begin, max(begin, end))
        await commit(address, mover.group, {topic: at}, f"left by {mover.group}")

    async def await_copied(self, source: str, target: str, mirror: Mirror) -> None:
        """Until all that a feed has written so far is there; an AssertionError if the mirror ends before."""
        rounds = self.feeds[source].rounds
        clock = asyncio.get_running_loop().time
        give_up_s = clock() + DEADLINE_S
        for kind in KINDS:
            remote = self.topics_of(kind, target)[-1]
            while await self._last_round(target, remote) < rounds:
                assert mirror.is_running, mirror.log_lines()[-20:]
                assert clock() < give_up_s, f"{remote} was not copied to {target}: {mirror.log_lines()[-20:]}"
                await asyncio.sleep(_LOOK_S)

    async def _last_round(self, alias: str, topic: str) -> int:
        end = await end_of(self.bootstrap[alias], topic)
        found = await read(self.bootstrap[alias], topic, max(end - _TAIL, 0), end)
        return max((one.round for one in found.values()), default=0)
