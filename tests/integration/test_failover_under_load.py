"""Readers are moved there and back by commands under load, and each processes every record once, by both policies."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from connect.cli.commands.failover import FailoverArguments, run_failback, run_failover
from connect.core.errors import RetriableError
from connect.embedded import cluster_config
from connect.embedded.brokers import KafkaCluster
from tests.conftest import EAGER
from tests.kit.java_program import DEFAULT, IDENTITY
from tests.kit.mirror import SMALL, Mirror
from tests.kit.moving import COMPACTED, KINDS, PLACES, Feed, Mover, commit, committed, end_of, last_round, not_once

# Four starts of Spark, on a machine that may be busy.
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(2400)]

#: Spark starts within it, more than once, on a machine that is busy.
DEADLINE_S: Final = 600.0
#: Rounds of the second feed, whose records have values of their own.
SECOND: Final = 1_000_000
#: How often a command is run again that says so.
_RUNS: Final = 5
_ROUNDS = 60
#: Written at least while the command is at work.
_MORE_ROUNDS = 10
_ATOMIC = {"exactly.once.source.support": "enabled"}
Keep = Callable[[str, object], None]
Capture = pytest.CaptureFixture[str]


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
        for remote in [self.topics_of(kind, target)[-1] for kind in KINDS]:

            async def is_there(remote: str = remote) -> bool:
                return await last_round(self.bootstrap[target], remote) >= rounds

            await mirror.until(is_there, f"{remote} is copied to {target}", DEADLINE_S)


@pytest.fixture(scope="module")
def three() -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    with KafkaCluster.start("us3", nodes=3, config=EAGER) as us, KafkaCluster.start("eu3", nodes=3, config=EAGER) as eu:
        yield us, eu


@pytest.mark.parametrize(
    ("policy", "more"),
    [(DEFAULT, {}), (IDENTITY, {}), (IDENTITY, _ATOMIC)],
    ids=["default", "identity", "identity-exactly-once"],
)
def test_every_record_is_processed_once(
    policy: str,
    more: Mapping[str, str],
    us: KafkaCluster,
    eu: KafkaCluster,
    tmp_path: Path,
    capsys: Capture,
    record_property: Keep,
) -> None:
    there_and_back(Commanded(us, eu, tmp_path, uuid.uuid4().hex[:6], policy, more), capsys, record_property)


def test_so_it_is_with_three_brokers_on_each_side(
    three: tuple[KafkaCluster, KafkaCluster], tmp_path: Path, capsys: Capture, record_property: Keep
) -> None:
    there_and_back(Commanded(*three, tmp_path, uuid.uuid4().hex[:6], IDENTITY, {}), capsys, record_property)


def there_and_back(on: Commanded, capsys: Capture, keep: Keep) -> None:
    """``keep`` puts a number into the report of the run."""
    with on.mirror(on.us, on.eu) as there, on.mirror(on.eu, on.us) as back:
        asyncio.run(go_over(on, there, capsys))
        back.start()
        asyncio.run(return_home(on, back, capsys))
        asyncio.run(on.finish(on.us))
        keep("records", judge(on))
        assert there.stop() == 0
        assert back.stop() == 0


async def go_over(on: Commanded, there: Mirror, capsys: Capture) -> None:
    feed = on.feeds[on.us]
    await feed.make()
    await feed.write(_ROUNDS)
    there.start()
    loading = asyncio.create_task(feed.load(), name="load")
    # Of the compacted topic there would be nothing left where groups were, if they left before anything was copied.
    await on.await_copied(on.us, on.eu, there)
    await on.leave(on.us, list(PLACES), has_copies=False)
    await on.await_copied(on.us, on.eu, there)
    move = asyncio.to_thread(on.command, "failover", there.properties_file, on.us, on.eu, capsys)
    assert_all_moved(on, await moved_under_load(feed, loading, move))


async def return_home(on: Commanded, back: Mirror, capsys: Capture) -> None:
    """From other places than those that the groups came to, behind records that were written there."""
    feed = on.feeds[on.eu]
    if not on.keeps_names:
        await feed.make()
    await feed.write(_ROUNDS)
    loading = asyncio.create_task(feed.load(), name="load")
    await on.await_copied(on.eu, on.us, back)
    await on.leave(on.eu, list(PLACES)[::-1], has_copies=True)
    await on.await_copied(on.eu, on.us, back)
    move = asyncio.to_thread(on.command, "failback", back.properties_file, on.eu, on.us, capsys)
    assert_all_moved(on, await moved_under_load(feed, loading, move))


async def moved_under_load(feed: Feed, loading: asyncio.Task[None], move: Coroutine[Any, Any, str]) -> Any:
    """What the command has said; producers are stopped while it waits for them."""
    moving = asyncio.create_task(move, name="move")
    rounds = feed.rounds
    while feed.rounds < rounds + _MORE_ROUNDS and not loading.done():  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    feed.stop()
    await loading
    return json.loads(await moving)


def assert_all_moved(on: Commanded, reported: Any) -> None:
    assert {one["group"] for one in reported["moves"]} == {mover.group for mover in on.movers}
    assert {one["by"] for one in reported["moves"]} <= {"exact", "gap", "end of the copy", "begin of the copy"}
    assert "differs" not in {one["outcome"] for one in reported["proof"]}
    assert [one for one in reported["proof"] if one["outcome"] == "same"]


def judge(on: Commanded) -> int:
    """How many records readers had to get."""
    faults, records = [], 0
    for kind in KINDS:
        written = [one for feed in on.feeds.values() for one in feed.written[kind]]
        assert len(written) > 2 * _ROUNDS
        records += len(written)
        for mover in on.movers:
            found = not_once(mover.seen[kind], written, is_compacted=kind == COMPACTED)
            faults += [f"{mover.group} {kind}: {fault}" for fault in found[:3]]
    assert not faults, "\n".join(faults)
    return records
