"""What only an old primary holds is appended without a hole, and a hole that is there is found."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from connect.cli import stranded as cli
from connect.cli.console import EXIT_OK
from connect.cli.failover import EXIT_NO_GO
from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.kafka.offsets import EARLIEST, LATEST, READ_COMMITTED
from connect.kafka.topic_configs import ConfigSource, TopicConfig
from connect.kafka.transactions import ProducerIdentity, Superseded, TopicsRefused
from connectors import flows
from connectors.dataplane.plan import TopicPartition
from connectors.failover import appended, appender, appending, exporting, holding, lease, marks, objections, stranded
from connectors.failover import site as place
from connectors.failover.appended import HEADER, Appended
from connectors.failover.appender import Appender
from connectors.failover.draining import CopiedEnd
from connectors.failover.logs import Fate, Log
from connectors.failover.marks import Mark, Marks
from connectors.failover.own import Own, Range
from connectors.failover.stranded import Stranded
from connectors.policy import DefaultReplicationPolicy
from connectors.positions import Position

ORDERS = TopicPartition("orders", 0)
ONE = Stranded(Own("orders", 0, 20, 29, 10), ORDERS, ((20, 30),))
VALUE = b"v" * 100


def record(offset: int, value: bytes = VALUE, headers: Sequence[tuple[str, bytes]] = ()) -> Any:
    return SimpleNamespace(
        offset=offset, key=None, value=value, timestamp=offset, timestamp_type=0, headers=tuple(headers)
    )


class Broker:
    """Answers Produce with ``answers``, code by code, and takes all that come after them.

    ``log`` has the source offsets of what is committed, batch by batch, as headers tell.
    """

    def __init__(self, *answers: int, commit: HeliographError | None = None) -> None:
        self.log: list[list[int]] = []
        self.done: list[str] = []
        self.codecs: set[int] = set()
        self.epoch = 4
        self._answers = list(answers)
        self._commit = commit
        self._next_sequence = 0
        self._open: list[list[int]] = []

    async def topics(self, _: set[str]) -> Any:
        return SimpleNamespace(leader=lambda topic, index: 1)

    async def fence(self, _: Any, name: str, partitions: Sequence[Any]) -> ProducerIdentity:
        assert name == "heliograph-failover-us->eu:append"
        self.done.append(f"fence {[str(one) for one in partitions]}")
        self.epoch, self._next_sequence = self.epoch + 1, 0
        return ProducerIdentity(7, self.epoch)

    async def claim(self, _: Any, __: str, current: ProducerIdentity) -> ProducerIdentity:
        assert current == (7, self.epoch), "only if nobody else has it"
        self.done.append("give up")
        self.epoch, self._open = self.epoch + 1, []
        return ProducerIdentity(7, self.epoch)

    async def add_partitions(self, _: Any, __: str, identity: ProducerIdentity, partitions: Sequence[Any]) -> None:
        assert (identity, partitions) == ((7, self.epoch), [ORDERS])

    async def produce_all(self, _: Any, placed: Any, __: str, ___: float, check: Any) -> None:
        ((data, records),) = placed[1][ORDERS]
        batch = DefaultRecordBatch(data)
        assert batch.is_transactional
        assert (batch.producer_id, batch.producer_epoch) == (7, self.epoch)
        self.codecs.add(batch.compression_type)
        code = self._answers.pop(0) if self._answers else 0
        if code == NEVER:
            await asyncio.Event().wait()
        if code in (0, TIMED_OUT) and batch.base_sequence == self._next_sequence:  # else it is there already
            self._next_sequence += records
            self._open.append([int(dict(one.headers)[HEADER].removeprefix(b"us/orders-0@")) for one in batch])
        check(code, "orders-0")

    async def end_transaction(self, _: Any, __: str, identity: ProducerIdentity, *, commit: bool) -> None:
        assert commit
        assert identity == (7, self.epoch)
        if self._commit is not None:
            raise self._commit
        self.log += self._open
        self._open = []


NEVER, TOO_LARGE, TIMED_OUT, REPLICAS, TIMESTAMP, UNKNOWN, EPOCH = -99, 10, 7, 19, 32, -1, 47


@pytest.fixture
def site() -> Any:
    flow = SimpleNamespace(flow="us->eu", source_alias="us", target_alias="eu", map_topic="map", name="m",
                           changing_key="", enabled=False, policy=DefaultReplicationPolicy())  # fmt: skip
    back = SimpleNamespace(flow="eu->us", map_topic="map", name="m")
    return SimpleNamespace(flow=flow, back=back, source="us", target=None)


def arrange(
    monkeypatch: pytest.MonkeyPatch, broker: Broker, records: Sequence[Any], max_message_bytes: str = "1000000"
) -> None:
    async def read(*_: Any) -> AsyncGenerator[Any, None]:
        for each in records:
            yield each

    async def describe(_: Any, topics: set[str]) -> Any:
        return {one: {"max.message.bytes": TopicConfig(max_message_bytes, ConfigSource.TOPIC)} for one in topics}

    monkeypatch.setattr(stranded, "read_ranges", read)
    monkeypatch.setattr(appending, "describe", describe)
    monkeypatch.setattr(appending, "list_offset", answer(90))
    for name in ("fence", "claim", "add_partitions", "produce_all", "end_transaction"):
        monkeypatch.setattr(appender, name, getattr(broker, name))
    for name in ("_BATCH_S", "_COMMIT_S"):
        monkeypatch.setattr(appender, name, 0.5)


async def append(
    site: Any, broker: Broker, tell: Any = print, found: Sequence[Stranded] = (ONE,), held: Any = None
) -> int:
    site.target = broker
    writer = Appender(site.target, "us->eu")
    await writer.open([ORDERS])
    mine: Any = held or Held(broker.done)
    return await appending._append_all(appending._Way(site, mine, writer), found, tell)


async def test_nothing_is_appended_behind_a_batch_that_is_refused(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    """The next run would go on behind what came after it."""
    broker = Broker(0, TOO_LARGE)
    arrange(monkeypatch, broker, [record(offset) for offset in range(20, 30)], "500")
    with pytest.raises(PermanentError) as raised:
        await append(site, broker)
    assert (broker.log, broker.done[1:]) == ([[20, 21, 22]], ["mark", "give up"])
    for word in ("cluster eu", "orders-0", "offsets 23 to 25", "max.message.bytes", "run this again"):
        assert word in str(raised.value)


async def test_a_record_of_any_size_goes_alone_and_compressed(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    broker = Broker()
    large = [record(20), record(21, bytes(900)), record(22), record(23)]
    arrange(monkeypatch, broker, large, "500")
    said: list[str] = []
    assert await append(site, broker, said.append) == 4
    assert (broker.log, broker.codecs) == ([[20], [21], [22, 23]], {DefaultRecordBatch.CODEC_ZSTD})
    assert said == ["orders-0: 4 records appended to orders-0"]


@pytest.mark.parametrize(
    ("answers", "kind", "word"),
    [
        ([TIMESTAMP], PermanentError, "message.timestamp.before.max.ms"),
        ([REPLICAS] * 99, RetriableError, "in sync than min.insync.replicas of orders"),
        ([UNKNOWN], PermanentError, "the log of its broker"),
        ([NEVER], RetriableError, "not done within 0.5 s"),
        ([EPOCH], Superseded, "somebody else has begun to append"),
    ],
)
async def test_a_refusal_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, site: Any, answers: list[int], kind: type[Exception], word: str
) -> None:
    """And silence, or replicas that do not come back, are waited for no longer than a moment."""
    broker = Broker(*answers)
    arrange(monkeypatch, broker, [record(20)])
    with pytest.raises(kind, match=f"offset 20 of orders-0 of cluster us.*{word}.*run this again"):
        async with asyncio.timeout(5):
            await append(site, broker)
    assert (broker.log, broker.done[1:]) == ([], ["mark", "give up"])


async def test_a_partition_is_marked_before_its_own_first_batch_and_no_earlier(
    monkeypatch: pytest.MonkeyPatch, site: Any
) -> None:
    """Who is killed behind it has left its mark; what a run that fails has not come to is not in doubt."""
    broker = Broker(TOO_LARGE)
    arrange(monkeypatch, broker, [record(20)])

    class Sees(Held):
        async def keep(self, about: bytes, value: bytes) -> None:
            assert broker.log == []
            await super().keep(about, value)

    held = Sees(broker.done)
    with pytest.raises(PermanentError, match=r"max\.message\.bytes"):
        await append(site, broker, found=[ONE, GREW], held=held)
    assert held.kept == [Mark(ORDERS, None, ORDERS, 90, 29)]


async def test_nothing_is_appended_by_who_has_lost_the_lease(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    """A process that stood still, and goes on while somebody else takes readers back."""
    broker = Broker()
    arrange(monkeypatch, broker, [record(offset) for offset in range(20, 30)], "500")

    class Lost(Held):
        async def check(self) -> None:
            if broker.log:
                raise lease.InHand("taken over")

    with pytest.raises(lease.InHand, match="taken over"):
        await append(site, broker, held=Lost([]))
    assert broker.log == [[20, 21, 22]]


async def test_what_passes_in_moments_is_waited_out_and_doubles_nothing(
    monkeypatch: pytest.MonkeyPatch, site: Any
) -> None:
    """A leader that answers late has appended all the same."""
    broker = Broker(REPLICAS, TIMED_OUT, REPLICAS)
    arrange(monkeypatch, broker, [record(offset) for offset in range(20, 26)], "500")
    assert await append(site, broker) == 6
    assert broker.log == [[20, 21, 22], [23, 24, 25]]


async def test_a_batch_whose_commit_is_not_answered_may_be_there(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    broker = Broker(commit=RetriableError("the coordinator loads"))
    arrange(monkeypatch, broker, [record(20)])
    with pytest.raises(RetriableError, match=r"offset 20 of .* may have been appended to orders-0.* run this again"):
        await append(site, broker)


GREW, GONE = (replace(ONE, own=replace(ONE.own, partition=at), target=TopicPartition("orders", at)) for at in (1, 2))


def answer(found: Any) -> Any:
    async def call(*_: Any, **__: Any) -> Any:
        return found

    return call


class Held:
    """A lease."""

    def __init__(self, done: list[str]) -> None:
        self._done = done
        self.kept: list[Mark] = []

    async def keep(self, about: bytes, value: bytes) -> None:
        self.kept.append(marks._decode(value))
        self._done.append("mark")

    async def check(self) -> None: ...


def arrange_look(
    monkeypatch: pytest.MonkeyPatch, broker: Broker, found: list[Stranded], compacted: Sequence[str] = ()
) -> Any:
    """Of flows that keep names; the target lacks what is ``GONE``. The lease."""
    arrange(monkeypatch, broker, [record(offset) for offset in range(20, 30)])

    async def find(_: Any) -> list[Stranded]:
        broker.done.append("look")
        return found

    async def not_there(_: Any, targets: set[Any]) -> set[Any]:
        return {GONE.target} & targets

    async def cleaned(_: Any, topics: set[str]) -> set[str]:
        return topics & {*compacted}

    for module, name, fake in (
        (appending, "why_running", answer("")), (appending, "copied_ends", answer({})), (appending, "find", find),
        (objections, "compacted", cleaned), (objections, "not_there", not_there),
        (objections, "returns", lambda *_: True),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, fake)
    return Held(broker.done)


@pytest.mark.parametrize("found", [[], [ONE], [ONE, GREW]])
async def test_who_appended_before_is_shut_out_before_what_is_there_is_read(
    monkeypatch: pytest.MonkeyPatch, site: Any, found: list[Stranded]
) -> None:
    """A batch that a killed run has left at a frozen broker would land behind what is read."""
    broker = Broker()
    held = arrange_look(monkeypatch, broker, found)
    site.target = broker
    looked = [ONE, GONE]
    if len(found) > 1:
        with pytest.raises(RetriableError, match=r"orders-1 has records .* run this again"):
            await appending.append_all(site, held, None, print, looked)
        assert broker.log == []
    else:
        assert await appending.append_all(site, held, None, print, looked) == (found, [], 10 * len(found), {})
    assert broker.done == ["fence ['orders-0']", "look", *(["mark"] if len(found) == 1 else [])]


async def test_partitions_that_may_not_be_appended_hold_up_no_others(
    monkeypatch: pytest.MonkeyPatch, site: Any
) -> None:
    """One that was doubtful once is so for good, and each reason is told once."""
    broker = Broker()
    doubtful = [replace(ONE, own=replace(ONE.own, topic=topic), doubtful=1) for topic in ("mail", "news")]
    found = [doubtful[0], ONE, doubtful[1]]
    held = arrange_look(monkeypatch, broker, found)
    monkeypatch.setattr(appending, "doubt", lambda _, one: "nobody can tell" if one.doubtful else "")
    site.target = broker
    said: list[str] = []
    done = await appending.append_all(site, held, None, said.append, found)
    assert done == (found, doubtful, 10, {one.source: "nobody can tell" for one in doubtful})
    assert said == ["not appended: nobody can tell", "orders-0: 10 records appended to orders-0"]


async def test_a_compacted_topic_is_one_where_the_target_lacks_a_partition_too(
    monkeypatch: pytest.MonkeyPatch, site: Any
) -> None:
    """Or old values would win over newer ones. Nobody who appended before has to be shut out of it."""
    broker = Broker()
    held = arrange_look(monkeypatch, broker, [ONE, GONE], compacted=["orders"])
    site.target = broker
    said: list[str] = []
    done = await appending.append_all(site, held, None, said.append, [ONE, GONE])
    assert done[:3] == ([ONE, GONE], [ONE, GONE], 0)
    assert [("is compacted" in line, "has no orders-2" in line) for line in said] == [(True, False), (False, True)]
    assert (broker.log, broker.done) == ([], ["fence []", "look"])


async def test_a_topic_that_may_not_be_written_to_holds_up_no_other(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    """One transaction shuts out who appended before, of all of them."""
    mail = replace(ONE, own=replace(ONE.own, topic="mail"), target=TopicPartition("mail", 0))

    class Refuses(Broker):
        async def fence(self, _: Any, name: str, partitions: Sequence[Any]) -> ProducerIdentity:
            if mail.target in partitions:
                self.done.append("refuse")
                raise TopicsRefused("grant WRITE on topic mail", frozenset({("mail", 0)}))
            return await super().fence(_, name, partitions)

    broker = Refuses()
    held = arrange_look(monkeypatch, broker, [mail, ONE])
    site.target = broker
    said: list[str] = []
    done = await appending.append_all(site, held, None, said.append, [mail, ONE])
    assert done[:3] == ([mail, ONE], [mail], 10)
    assert said[0] == "not appended: cluster eu does not let us write to mail-0: grant WRITE on topic mail"
    assert broker.done == ["refuse", "fence ['orders-0']", "look", "mark"]


@pytest.mark.parametrize(
    ("done", "code"),
    [
        (appending.Done([], [], 0, {}), EXIT_OK),
        (appending.Done([ONE], [], 10, {}), EXIT_OK),
        (appending.Done([ONE, ONE], [ONE], 10, {ORDERS: "a doubt"}), EXIT_NO_GO),
    ],
)
def test_who_left_some_says_so_by_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    done: appending.Done,
    code: int,
) -> None:
    async def run(*_: Any) -> tuple[appending.Done, list[Path]]:
        return done, []

    monkeypatch.setattr(cli, "_stranded", run)
    assert cli.run_stranded(tmp_path, "us", "eu", export_to=None, appends=True, as_json=True) == code
    left = {"topic": "orders", "partition": 0, "first": 20, "last": 29, "records": 10, "why": "a doubt"}
    assert json.loads(capsys.readouterr().out)["left"] == ([left] if done.left else [])


@pytest.mark.parametrize("appends", [False, True])
@pytest.mark.parametrize("exports", [False, True])
async def test_who_appends_does_not_wait_for_what_a_killed_run_left_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, appends: bool, exports: bool
) -> None:
    """It shuts that run out, and looks again; who only looks needs no right to."""
    done: list[str] = []

    @contextlib.asynccontextmanager
    async def context(*_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        yield "us->eu"

    async def find(_: Any, *, waits: bool) -> list[Stranded]:
        done.append(f"look, waits: {waits}")
        return [ONE]

    async def export(*_: Any) -> list[Path]:
        return []

    async def append_all(_: Any, __: Any, ___: Any, ____: Any, looked: list[Stranded]) -> appending.Done:
        done.append("append")
        return appending.Done(looked, [], 10, {})

    for module, name, fake in (
        (flows, "load", str), (place, "site", context), (holding, "hold", context), (stranded, "find", find),
        (exporting, "export", export), (appending, "append_all", append_all),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, fake)
    await cli._stranded(tmp_path, "us", "eu", tmp_path if exports else None, appends)
    assert done == [f"look, waits: {exports or not appends}", *(["append"] if appends else [])]


async def test_it_stops_at_a_header_whose_key_is_no_text(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    broker = Broker()
    odd = [record(20, headers=[("é", b"")]), record(21), record(22, headers=[("\udce9", b"")]), record(23)]
    arrange(monkeypatch, broker, odd)
    told: list[str] = []
    wanted = r"the record at offset 22 cannot be appended, .* with a header heliograph.appended: us/orders-0@22, and"
    with pytest.raises(PermanentError, match=wanted):
        await append(site, broker, told.append, [ONE, ONE])
    assert broker.log == [[20, 21], [20, 21]], "others are not kept waiting"
    assert len(told) == 2


def test_an_exported_header_whose_key_is_no_text_has_it_as_bytes_too() -> None:
    found = exporting.as_json(
        SimpleNamespace(**vars(record(20, headers=[("é", b"1"), ("a\udce9", b"")])), topic="orders", partition=0)
    )
    assert found["headers"] == [["é", "MQ=="], ["a\ufffd", "", "Yek="]]


# -- what is there ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "first", "found"),
    [
        ([], 37, Appended()),
        ([20, 21, 22], 37, Appended(((20, 23),))),
        ([20, 21, 25, 26], 37, Appended(((20, 22), (25, 27)))),
        ([20, 25, 26, 21, 22, 21], 37, Appended(((20, 23), (25, 27)))),
        ([25], 38, Appended(((25, 26),), is_cut=True)),
    ],
)
async def test_each_appended_record_counts_by_its_own_header(
    monkeypatch: pytest.MonkeyPatch, offsets: list[int], first: int, found: Appended
) -> None:
    async def read(_: Any, target: TopicPartition, ranges: list[Range]) -> AsyncGenerator[Any, None]:
        assert (target, ranges) == (ORDERS, [(first, 90)])
        yield record(1, headers=[(HEADER, b"ap/orders-0@1"), ("other", b"us/orders-0@1"), (HEADER, b"us/orders-01@1")])
        for offset in offsets:
            yield record(1, headers=[(HEADER, appended.where("us", ORDERS, offset).encode())])

    shows(monkeypatch, first, [90])
    monkeypatch.setattr(appended, "read_ranges", read)
    seen = await appended.read_appended(EU, ORDERS, 37, "us", ORDERS)
    assert seen == found._replace(log_begin=first, first_at=1 if offsets else None)


async def test_what_was_appended_of_a_topic_that_was_made_anew_since_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the same offsets again, of other records. Who writes by hand need not say of which it is."""
    now, before = UUID(int=1), UUID(int=2)

    async def read(*_: Any) -> AsyncGenerator[Any, None]:
        yield record(57, headers=appended.headers_of("us", ORDERS, now, 20))
        yield record(58, headers=appended.headers_of("us", ORDERS, before, 21))
        yield record(59, headers=appended.headers_of("us", ORDERS, None, 22))

    shows(monkeypatch, 37, [90])
    monkeypatch.setattr(appended, "read_ranges", read)
    for topic_id, ranges in ((now, ((20, 21), (22, 23))), (before, ((21, 23),)), (None, ((20, 23),))):
        found = await appended.read_appended(EU, ORDERS, 37, "us", ORDERS, topic_id=topic_id)
        assert found.ranges == ranges


@pytest.mark.parametrize("topic_id", [UUID(int=1), None])
async def test_each_record_says_of_which_topic_it_is(
    monkeypatch: pytest.MonkeyPatch, site: Any, topic_id: UUID | None
) -> None:
    written: list[Any] = []

    class Sees(Broker):
        async def produce_all(self, _: Any, placed: Any, *more: Any) -> None:
            written.extend(DefaultRecordBatch(placed[1][ORDERS][0].data))
            await super().produce_all(_, placed, *more)

    broker = Sees()
    arrange(monkeypatch, broker, [record(20)])
    await append(site, broker, found=[replace(ONE, topic_id=topic_id)])
    (one,) = written
    assert list(one.headers) == appended.headers_of("us", ORDERS, topic_id, 20)
    assert dict(one.headers).get("heliograph.appended.topic") == (None if topic_id is None else str(topic_id).encode())


@pytest.mark.parametrize("mistyped", [b"41 # by hand", b"", b"-4", b"4_1"])
async def test_a_header_that_somebody_has_mistyped_is_a_doubt_and_no_crash(
    monkeypatch: pytest.MonkeyPatch, site: Any, mistyped: bytes
) -> None:
    """Nor does it hide those that are well."""

    async def read(*_: Any) -> AsyncGenerator[Any, None]:
        yield record(57, headers=[(HEADER, b"us/orders-0@" + mistyped)])
        yield record(58, headers=[(HEADER, b"us/orders-0@21")])

    shows(monkeypatch, 37, [90])
    monkeypatch.setattr(appended, "read_ranges", read)
    found = await appended.read_appended(EU, ORDERS, 37, "us", ORDERS)
    said = f"'us/orders-0@{mistyped.decode()}' at offset 57 of orders-0"
    assert found == Appended(((21, 22),), unclear=said, log_begin=37, first_at=57)
    seen = stranded._seen(ORDERS, found, ONE)
    assert seen.left is not None
    why = objections.doubt(site, seen.left)
    assert why.startswith(
        f"cluster eu: a header heliograph.appended says {said}, and it should be us/orders-0@20, with"
    )


EU: Any = SimpleNamespace(name="eu")


def shows(monkeypatch: pytest.MonkeyPatch, first: int, decided: list[int]) -> None:
    """A log from ``first`` to 90, of which each look finds a next one of ``decided``, and the last again."""

    async def list_offset(_: Any, target: Any, at: int) -> int:
        return first if at == EARLIEST else 90

    async def list_offsets(_: Any, targets: list[Any], at: int, isolation: int) -> dict[Any, int]:
        assert (targets, at, isolation) == ([ORDERS], LATEST, READ_COMMITTED)
        return {ORDERS: decided.pop(0) if len(decided) > 1 else decided[0]}

    async def open_in(_: Any, topic: str) -> str:
        return f"producer id 7 in {topic}"

    monkeypatch.setattr(appended, "list_offset", list_offset)
    monkeypatch.setattr(appended, "list_offsets", list_offsets)
    monkeypatch.setattr(appended, "open_in", open_in)
    monkeypatch.setattr(appended, "_LOOK_S", 0.001)
    monkeypatch.setattr(appended, "_OPEN_S", 0.05)


async def test_what_an_open_transaction_hides_is_not_taken_for_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be appended a second time. An application's that ends soon is waited for."""
    read: list[list[Range]] = []

    async def read_ranges(_: Any, __: Any, ranges: list[Range]) -> AsyncGenerator[Any, None]:
        read.append(ranges)
        for nothing in list[Any]():
            yield nothing

    monkeypatch.setattr(appended, "read_ranges", read_ranges)
    shows(monkeypatch, 0, [60])
    with pytest.raises(RetriableError, match=r"open in orders-0, .* run this again when it has ended; producer id 7"):
        await appended.read_appended(EU, ORDERS, 37, "us", ORDERS)
    assert read == []
    await appended.read_appended(EU, ORDERS, 37, "us", ORDERS, waits=False)
    shows(monkeypatch, 0, [60, 60, 95])
    await appended.read_appended(EU, ORDERS, 37, "us", ORDERS)
    assert read == [[(37, 90)]] * 2


@pytest.mark.parametrize(
    ("there", "surplus", "proven", "left", "doubtful"),
    [
        (Appended(), 0, True, [(20, 30)], 0),
        (Appended(), 3, True, [(23, 30)], 0),
        (Appended(), 3, False, [(20, 30)], 3),
        (Appended(((20, 22), (25, 27))), 0, True, [(22, 25), (27, 30)], 0),
        (Appended(((23, 25),)), 3, True, [(25, 30)], 0),
        (Appended(((23, 25),)), 3, False, [(25, 30)], 0),
        (Appended(((23, 25),)), 2, False, [(20, 23), (25, 30)], 2),
        (Appended(((23, 25), (26, 30)), is_cut=True), 0, True, [(20, 23), (25, 26)], 0),
        (Appended(((20, 25), (26, 30)), is_cut=True), 0, True, [(25, 26)], 0),
        (Appended(((23, 25),), is_cut=True), 3, False, [(25, 30)], 0),
        (Appended(is_cut=True), 0, True, [(20, 30)], 0),
    ],
)
async def test_a_hole_in_what_was_appended_is_stranded_still(
    monkeypatch: pytest.MonkeyPatch,
    site: Any,
    there: Appended,
    surplus: int,
    proven: bool,
    left: list[Range],
    doubtful: int,
) -> None:
    """Of 20 to 29, of which the flow wrote the first ``surplus`` and did not store that."""
    position = Position("orders", 0, None, 20, 4, "orders", 0, None, 37, "writer", 7, 0, 30)

    def always(found: Any) -> Any:
        async def answer(*_: Any, **__: Any) -> Any:
            return found

        return answer

    async def count(_: Any, log: TopicPartition, ranges: Sequence[Range]) -> Own | None:
        return Own(*log, ranges[0][0], ranges[-1][1] - 1, sum(end - begin for begin, end in ranges)) if ranges else None

    class Copies:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        follow = always(None)

    fakes = {
        "read_positions": always({ORDERS: position}),
        "logs_now": always({ORDERS: Log(Fate.SAME, None, 0, 30, 20)}),
        "_kept": always({ORDERS}),
        "_decided_ends": always({ORDERS: 30}),
        "read_marks": always(Marks(True, {})),
        "not_there": always(set()),
        "extents": always({}),
        "_brought": always({}),
        "MapReader": Copies,
        "copied_ends": always({ORDERS: CopiedEnd(37 + surplus, surplus)}),
        "own_ranges": always([(20, 30)]),
        "read_appended": always(there),
        "_arrived": always(20 + surplus if surplus and proven else 0),
        "uncopied": always([]),
        "_never_copied": always([]),
        "count": count,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(stranded, name, fake)
    (found,) = await stranded.find(site)
    assert (list(found.ranges), found.doubtful) == (left, doubtful)
    assert found.is_late == (left[0][0] < there.end)
    deleted = there.is_cut and bool(there.ranges) and left[0][0] < there.ranges[0][0]
    assert found.may_be_appended == deleted, "what no header tells is no more than possible"
    up_to = await stranded.appended_up_to(site)
    assert up_to == ({ORDERS: min(left[0][0], there.end) - 1} if there.ranges else {})
