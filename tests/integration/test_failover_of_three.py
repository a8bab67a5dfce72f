"""Three clusters that mirror each other: readers of one move to another and back, in the topics of all three.

Who reads ``orders``, ``eu.orders`` and ``ap.orders`` on us goes on in ``us.orders``, ``orders`` and ``ap.orders`` of
eu. Meanwhile ap, which the command does not reach, and the cluster where readers go are written to. What each group
processed where is counted by record.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaProducer

from connect.cli.failover import EXIT_NO_GO, Arguments, run_failback, run_failover
from connect.core.errors import RetriableError
from connect.embedded import ports
from connect.embedded.brokers import KafkaCluster
from tests.kit.mirror import SMALL, Mirror
from tests.kit.moving import PLACES, Mover, Processed, commit, committed, end_of, not_once, read
from tests.kit.topics import make_topics

# A start of Spark with six flows, on a machine that may be busy.
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(2400)]

_ALIASES: Final = ("us", "eu", "ap")
_DEADLINE_S: Final = 600.0
_LOOK_S: Final = 0.5
_ROUNDS: Final = 60
_MORE_ROUNDS: Final = 20
_EACH: Final = 5
_PAUSE_S: Final = 0.02
_NOWHERE: Final = "127.0.0.1:1"
Capture = pytest.CaptureFixture[str]


class Orders:
    """The topic of one cluster: every other transaction is aborted."""

    def __init__(self, alias: str, bootstrap: str) -> None:
        self._alias, self._bootstrap = alias, bootstrap
        self._stopped = asyncio.Event()
        self.written: list[Processed] = []
        self.rounds = 0

    async def write(self, rounds: int, pause_s: float = 0.0) -> None:
        name = f"writer-of-{self._alias}"
        async with AIOKafkaProducer(bootstrap_servers=self._bootstrap, transactional_id=name) as producer:
            for _ in range(rounds):
                if self._stopped.is_set():
                    break
                for aborts in (False, True):
                    await producer.begin_transaction()
                    sent = [self._record(part, aborts=aborts) for part in range(_EACH)]
                    for one in sent:
                        await producer.send("orders", one.value)
                    await (producer.abort_transaction() if aborts else producer.commit_transaction())
                    self.written += [] if aborts else sent
                self.rounds += 1
                await asyncio.sleep(pause_s)

    def _record(self, part: int, *, aborts: bool) -> Processed:
        return Processed(None, b"%d %s %d %d" % (self.rounds, self._alias.encode(), part, aborts))

    def load(self) -> asyncio.Task[None]:
        """Go on until it is stopped."""
        self._stopped.clear()
        return asyncio.create_task(self.write(1_000_000, _PAUSE_S), name=f"load of {self._alias}")

    def stop(self) -> None:
        self._stopped.set()


class Three:
    def __init__(self, bootstrap: Mapping[str, str], directory: Path) -> None:
        self.bootstrap = bootstrap
        self.orders = {alias: Orders(alias, address) for alias, address in bootstrap.items()}
        self.movers = [Mover(f"readers-{place}", {alias: [] for alias in bootstrap}) for place in PLACES]
        self._directory = directory
        (self._port,) = ports.choose(1)
        self.mirror = Mirror(self._properties(), directory)
        #: For whoever moves readers: ap is out of reach.
        self.file = directory / "without-ap.properties"
        lines = {**self._properties(), "ap.bootstrap.servers": _NOWHERE}.items()
        self.file.write_text("".join(f"{key} = {value}\n" for key, value in lines))

    def _properties(self) -> dict[str, str]:
        return {
            "clusters": ", ".join(_ALIASES),
            **{f"{alias}.bootstrap.servers": address for alias, address in self.bootstrap.items()},
            **{f"{one}->{other}.enabled": "true" for one in _ALIASES for other in _ALIASES if one != other},
            **{f"{alias}.consumer.isolation.level": "read_committed" for alias in _ALIASES},
            "topics": "orders",
            "groups": "readers-.*",
            "refresh.topics.interval.seconds": "1",
            **SMALL,
            # Copies on eu have markers between them, and those on us have none: no offset is the same on both.
            "eu.exactly.once.source.support": "enabled",
            "listeners": f"http://{ports.HOST}:{self._port}",
            "dedicated.mode.enable.public.rest": "true",
        }

    def topic(self, origin: str, at: str) -> str:
        """Where records of one cluster are on another."""
        return "orders" if origin == at else f"{origin}.orders"

    async def process(self, at: str, places: Mapping[str, str]) -> None:
        """Each group goes on to a place in what is there now, by its label, or to the end, and leaves."""
        for mover in self.movers:
            topics = {origin: self.topic(origin, at) for origin in _ALIASES}
            stored = await committed(self.bootstrap[at], mover.group, topics.values())
            stands = {}
            for origin, topic in topics.items():
                begin = stored[topic] or 0
                end = PLACES[places[mover.group]](await end_of(self.bootstrap[at], topic))
                stands[topic] = await mover.process(self.bootstrap[at], topic, origin, begin, max(begin, end))
            await commit(self.bootstrap[at], mover.group, stands, "note")

    async def await_copied(self, *where: str) -> None:
        """Until these clusters have all that was written so far anywhere."""
        give_up_s = asyncio.get_running_loop().time() + _DEADLINE_S
        for origin in _ALIASES:
            wanted = set(self.orders[origin].written)
            for at in where:
                topic = self.topic(origin, at)
                while missing := wanted - await self._values(at, topic):
                    assert self.mirror.is_running, self.mirror.log_lines()[-20:]
                    late = f"{topic} on {at} lacks {len(missing)}: {self.mirror.log_lines()[-20:]}"
                    assert asyncio.get_running_loop().time() < give_up_s, late
                    await asyncio.sleep(_LOOK_S)

    async def _values(self, at: str, topic: str) -> set[Processed]:
        return set((await read(self.bootstrap[at], topic, 0, await end_of(self.bootstrap[at], topic))).values())

    async def move(self, name: str, source: str, target: str, capsys: Capture) -> Any:
        """The command, run again where it says so: as long as ap's copy on the target is behind, for one."""
        arguments = Arguments(
            self.file, source, target, rest=[f"http://{ports.HOST}:{self._port}"], executes=True, as_json=True,
            undo_file=self._directory / f"{name}.undo.json", timeout_s=_DEADLINE_S,
        )  # fmt: skip
        give_up_s = asyncio.get_running_loop().time() + _DEADLINE_S
        said = ""
        while asyncio.get_running_loop().time() < give_up_s:
            capsys.readouterr()
            try:
                code = await asyncio.to_thread(run_failover if name == "failover" else run_failback, arguments)
            except RetriableError as error:
                said = str(error)
                continue
            told = json.loads(capsys.readouterr().out)
            if code == 0:
                return told
            differ = [one for one in told["proof"] or () if one["outcome"] == "differs"]
            said = json.dumps({"obstacles": told["obstacles"], "differ": differ}, indent=1)
            assert code == EXIT_NO_GO and all("look again" in one for one in told["obstacles"]), said
            await asyncio.sleep(_LOOK_S)
        raise AssertionError(f"{name} is never done: {said}")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    with ExitStack() as exits, ThreadPoolExecutor(3) as pool:
        started = pool.map(lambda name: exits.enter_context(KafkaCluster.start(name)), _ALIASES)
        yield Three({alias: one.bootstrap for alias, one in zip(_ALIASES, started, strict=True)}, tmp_path)


def test_readers_of_all_three_move_and_come_back_and_process_every_record_once(
    three: Three, capsys: Capture, record_property: Callable[[str, object], None]
) -> None:
    asyncio.run(_there_and_back(three, capsys))
    record_property("records", sum(len(orders.written) for orders in three.orders.values()))


async def _there_and_back(three: Three, capsys: Capture) -> None:
    for alias, address in three.bootstrap.items():
        await make_topics(address, {"orders": 1})
        await three.orders[alias].write(_ROUNDS)
    labels = {mover.group: label for mover, label in zip(three.movers, PLACES, strict=True)}
    turned = dict(zip(labels, reversed(labels.values()), strict=True))
    with three.mirror as mirror:
        mirror.start()
        await three.await_copied("us", "eu")
        loads = {alias: orders.load() for alias, orders in three.orders.items()}
        await asyncio.sleep(_LOOK_S)
        await three.process("us", labels)
        _check(three, await _moved(three, "failover", "us", "eu", loads, capsys), "eu")
        await three.process("eu", turned)
        loads["us"] = three.orders["us"].load()
        _check(three, await _moved(three, "failback", "eu", "us", loads, capsys), "us")
        for alias, load in loads.items():
            three.orders[alias].stop()
            await load
        await three.await_copied("us")
        await three.process("us", dict.fromkeys(labels, "end"))
        assert mirror.stop() == 0
    faults = [
        f"{mover.group} {origin}: {fault}"
        for mover in three.movers
        for origin in _ALIASES
        for fault in not_once(mover.seen[origin], three.orders[origin].written, is_compacted=False)[:3]
    ]
    assert not faults, "\n".join(faults)


async def _moved(
    three: Three, name: str, source: str, target: str, loads: Mapping[str, asyncio.Task[None]], capsys: Capture
) -> Any:
    """Who writes where readers leave stops while the command waits; the others go on."""
    orders = three.orders[source]
    moving = asyncio.create_task(three.move(name, source, target, capsys), name=name)
    rounds = orders.rounds
    while orders.rounds < rounds + _MORE_ROUNDS and not loads[source].done():  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)
    orders.stop()
    await loads[source]
    return await moving


def _check(three: Three, told: Any, at: str) -> None:
    moved = {(one["group"], one["to_topic"]) for one in told["moves"]}
    assert moved == {(mover.group, three.topic(origin, at)) for mover in three.movers for origin in _ALIASES}
    assert {one["by"] for one in told["moves"]} <= {"exact", "gap", "end of the copy", "begin of the copy"}
    of_ap = [one for one in told["moves"] if one["topic"] == "ap.orders"]
    assert {one["by"] for one in of_ap} <= {"exact", "gap"}
    assert [one for one in of_ap if one["offset"] != one["new"]], "markers lie between the copies on eu"
    assert "differs" not in {one["outcome"] for one in told["proof"]}
    assert [one for one in told["proof"] if one["outcome"] == "same" and one["source"].startswith("ap.orders")]
    assert told["not_mirrored"] == []
