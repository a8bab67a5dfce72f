"""What only an old primary holds is appended once, whenever an append ends, and without a hole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from connect.cli import unreplicated as cli
from connect.cli.console import EXIT_OK
from connect.cli.failover import EXIT_NO_GO
from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.kafka.topic_configs import ConfigSource, TopicConfig
from connect.kafka.transactions import ProducerIdentity, Superseded, TopicsRefused
from connectors.dataplane.plan import TopicPartition
from connectors.failover import appender, appending, lease, unreplicated
from connectors.failover.appender import Mark
from connectors.failover.appending import HEADER, TOPIC_HEADER
from connectors.failover.own import Own
from connectors.failover.unreplicated import Unreplicated
from connectors.policy import DefaultReplicationPolicy

ORDERS, MAIL, MARKS = TopicPartition("orders", 0), TopicPartition("mail", 0), ("map", 5)
HERE, THERE = UUID(int=1), UUID(int=2)
VALUE = b"v" * 100
NEVER, TOO_LARGE, TIMED_OUT, REPLICAS, TIMESTAMP, UNKNOWN, EPOCH = -99, 10, 7, 19, 32, -1, 47


class Killed(BaseException):
    """The process ends here."""


def record(offset: int, value: bytes = VALUE, headers: Sequence[tuple[str, bytes]] = ()) -> Any:
    return SimpleNamespace(
        offset=offset, key=None, value=value, timestamp=offset, timestamp_type=0, headers=tuple(headers)
    )


class Broker:
    """Answers Produce to the target's partitions with ``answers``, code by code, and takes all that come after them.

    ``log`` has the source offsets of what is committed, batch by batch, and ``marks`` the committed appender.
    ``killed_at``: twice the number of the request before which the process ends, or one more: behind it.
    """

    def __init__(self, *answers: int, commit: HeliographError | None = None, killed_at: int = -1) -> None:
        self.log: list[list[int]] = []
        self.marks: dict[bytes, bytes] = {}
        self.done: list[str] = []
        self.codecs: set[int] = set()
        self.records: list[Any] = []
        self.refuses: str = ""
        self.killed_at = killed_at
        self.requests = 0
        self._epoch = 4
        self._answers = list(answers)
        self._commit = commit
        self._sequences: dict[Any, int] = {}
        self._open: list[tuple[Any, DefaultRecordBatch]] = []
        self._added: set[Any] = set()

    def _step(self, name: str) -> bool:
        """Whether the process ends once this request is carried out."""
        self.requests += 1
        self.done.append(name)
        if self.requests * 2 == self.killed_at:
            raise Killed
        return self.requests * 2 + 1 == self.killed_at

    async def topics(self, _: set[str]) -> Any:
        return SimpleNamespace(leader=lambda topic, index: 1)

    async def init_producer_id(self, _: Any, name: str, *, transaction_timeout_ms: int) -> ProducerIdentity:
        assert name == "heliograph-failover-us->eu:append"
        assert transaction_timeout_ms > 1000 * (appender._BATCH_S + appender._COMMIT_S)
        return await self._claim("open")

    async def claim(self, _: Any, __: str, current: ProducerIdentity, *, timeout_ms: int) -> ProducerIdentity:
        assert current == (7, self._epoch), "only if it still has it"
        return await self._claim("give up")

    async def _claim(self, name: str) -> ProducerIdentity:
        is_killed = self._step(name)
        self._epoch += 1
        self._open, self._added = [], set()
        self._sequences.clear()
        if is_killed:
            raise Killed
        return ProducerIdentity(7, self._epoch)

    async def add_partitions(self, _: Any, __: str, identity: ProducerIdentity, partitions: Sequence[Any]) -> None:
        is_killed = self._step("add")
        assert identity == (7, self._epoch)
        if refused := frozenset(one for one in partitions if one[0] == self.refuses):
            raise TopicsRefused(f"grant WRITE on topic {self.refuses}", refused)
        self._added |= {*partitions}
        if is_killed:
            raise Killed

    async def produce_all(self, _: Any, placed: Any, __: str, ___: float, check: Any) -> None:
        is_killed = self._step("produce")
        for partition, ((data, records),) in placed[1].items():
            assert partition in self._added
            batch = DefaultRecordBatch(data)
            assert batch.is_transactional
            assert (batch.producer_id, batch.producer_epoch) == (7, self._epoch)
            code = self._answers.pop(0) if self._answers and partition != MARKS else 0
            if code == NEVER:
                await asyncio.Event().wait()
            if code in (0, TIMED_OUT) and batch.base_sequence == self._sequences.get(partition, 0):  # else it has it
                self._sequences[partition] = batch.base_sequence + records
                self._open.append((partition, batch))
            check(code, f"{partition[0]}-{partition[1]}")
        if is_killed:
            raise Killed

    async def end_transaction(self, _: Any, __: str, identity: ProducerIdentity, *, commit: bool) -> None:
        is_killed = self._step("commit")
        assert commit
        assert identity == (7, self._epoch)
        if self._commit is not None:
            raise self._commit
        for partition, batch in self._open:
            if partition == MARKS:
                self.marks |= {one.key: one.value for one in batch}
            else:
                self.codecs.add(batch.compression_type)
                records = list(batch)
                self.records += records
                self.log.append([int(dict(one.headers)[HEADER].rpartition(b"@")[2]) for one in records])
        self._open, self._added = [], set()
        if is_killed:
            raise Killed


class Held:
    """A lease."""

    async def check(self) -> None: ...


def answer(found: Any) -> Any:
    async def call(*_: Any, **__: Any) -> Any:
        return found

    return call


@pytest.fixture
def site() -> Any:
    flow = SimpleNamespace(flow="us->eu", source_alias="us", target_alias="eu", map_topic="map", name="m",
                           changing_key="", enabled=False, policy=DefaultReplicationPolicy())  # fmt: skip
    back = SimpleNamespace(
        flow="eu->us", map_topic="map", name="m", should_mirror=lambda _: True, remote_topic=lambda topic: topic
    )
    return SimpleNamespace(flow=flow, back=back, source="us", target=None)


async def append(
    monkeypatch: pytest.MonkeyPatch,
    site: Any,
    broker: Broker,
    records: Sequence[Any],
    *,
    of: Sequence[TopicPartition] = (ORDERS,),
    tell: Any = print,
    held: Any = None,
    compacted: Sequence[str] = (),
    **more: Any,
) -> appending.Done:
    """Append ``records`` of each partition of the source but for what the broker's marks say is appended."""
    site.target = broker

    async def read(_: Any, __: Any, ranges: Any) -> AsyncGenerator[Any, None]:
        for each in records:
            if any(begin <= each.offset < end for begin, end in ranges):
                yield each

    async def describe(_: Any, topics: set[str]) -> Any:
        return {one: {"max.message.bytes": TopicConfig("700", ConfigSource.TOPIC)} for one in topics}

    async def find(_: Any) -> list[Unreplicated]:
        known = await appender.read_marks(site)
        found = []
        for one in of:
            mark = known.of(Mark(one, HERE, one, THERE, 20))
            left = [each.offset for each in records if each.offset > mark.appended]
            if left:
                own = Own(*one, left[0], left[-1], len(left))
                found.append(Unreplicated(own, ((left[0], left[-1] + 1),), mark, **more))
        return found

    async def cleaned(_: Any, topics: set[str]) -> set[str]:
        return topics & {*compacted}

    for module, name, fake in (
        (unreplicated, "read_ranges", read), (appending, "describe", describe), (appending, "find", find),
        (appending, "why_running", answer("")), (appending, "copied_ends", answer({})),
        (appending, "log_of", answer(MARKS)), (appending, "compacted", cleaned),
        (appender, "stored", answer(broker.marks)), (appender, "_BATCH_S", 0.5), (appender, "_COMMIT_S", 0.5),
        *((appender, name, getattr(broker, name)) for name in
          ("init_producer_id", "claim", "add_partitions", "produce_all", "end_transaction")),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, fake)
    lease_held: Any = held or Held()
    return await appending.append_all(site, lease_held, None, tell)


TEN = [record(offset) for offset in range(20, 30)]
IN_BATCHES = [[20, 21, 22], [23, 24, 25], [26, 27, 28], [29]]


@pytest.mark.parametrize("killed_at", range(2, 28))
async def test_an_append_that_is_killed_anywhere_is_gone_on_with_and_appends_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, site: Any, killed_at: int
) -> None:
    """The mark of a batch is committed with it, and the next run reads marks only when no other can be committed."""
    broker = Broker(killed_at=killed_at)
    with pytest.raises(Killed):
        await append(monkeypatch, site, broker, TEN)
    before = sum(map(len, broker.log))
    broker.killed_at = -1
    done = await append(monkeypatch, site, broker, TEN)
    assert done.records == 10 - before
    assert [offset for batch in broker.log for offset in batch] == list(range(20, 30))
    assert (await append(monkeypatch, site, broker, TEN)).found == []


async def test_nothing_is_appended_behind_a_batch_that_is_refused(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    """The next run would go on behind what came after it."""
    broker = Broker(0, TOO_LARGE)
    with pytest.raises(PermanentError) as raised:
        await append(monkeypatch, site, broker, TEN)
    assert (broker.log, broker.done[-1]) == ([[20, 21, 22]], "give up")
    for word in ("cluster eu", "orders-0", "offsets 23 to 25", "max.message.bytes of orders,", "run this again"):
        assert word in str(raised.value)
    assert (await append(monkeypatch, site, broker, TEN)).records == 7
    assert broker.log == IN_BATCHES


async def test_a_record_of_any_size_goes_alone_and_compressed(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    broker, said = Broker(), list[str]()
    large = [record(20), record(21, bytes(900)), record(22), record(23)]
    assert (await append(monkeypatch, site, broker, large, tell=said.append)).records == 4
    assert broker.log == [[20], [21], [22, 23]]
    assert broker.codecs == {DefaultRecordBatch.CODEC_ZSTD}
    assert said == ["orders-0: 4 records appended to orders-0"]


@pytest.mark.parametrize(
    ("answers", "kind", "word"),
    [
        ([TIMESTAMP], PermanentError, "message.timestamp.before.max.ms"),
        ([REPLICAS] * 99, RetriableError, "in sync than min.insync.replicas of orders"),
        ([UNKNOWN], PermanentError, "the log of its broker"),
        ([NEVER], RetriableError, "not done within 0.5 s"),
        ([EPOCH], PermanentError, "another process has begun to append"),
    ],
)
async def test_a_refusal_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, site: Any, answers: list[int], kind: type[Exception], word: str
) -> None:
    """And silence, or replicas that do not come back, are waited for no longer than a moment."""
    broker = Broker(*answers)
    with pytest.raises(kind, match=f"offset 20 of orders-0 of cluster us.*{word}.*run this again") as raised:
        async with asyncio.timeout(5):
            await append(monkeypatch, site, broker, [record(20)])
    assert (broker.log, broker.marks, broker.done[-1]) == ([], {}, "give up")
    assert isinstance(raised.value.__cause__, Superseded) == (answers == [EPOCH])


async def test_nothing_is_appended_by_who_has_lost_the_lease(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    """A process that stood still, and goes on while somebody else takes readers back."""
    broker = Broker()

    class Lost(Held):
        async def check(self) -> None:
            if broker.log:
                raise lease.InHand("taken over")

    with pytest.raises(lease.InHand, match="taken over"):
        await append(monkeypatch, site, broker, TEN, held=Lost())
    assert broker.log == [[20, 21, 22]]


async def test_what_passes_in_moments_is_waited_out_and_doubles_nothing(
    monkeypatch: pytest.MonkeyPatch, site: Any
) -> None:
    """A leader that answers late has appended all the same."""
    broker = Broker(REPLICAS, TIMED_OUT, REPLICAS)
    assert (await append(monkeypatch, site, broker, TEN)).records == 10
    assert broker.log == IN_BATCHES


async def test_a_batch_whose_commit_is_not_answered_may_be_there(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    broker = Broker(commit=RetriableError("the coordinator loads"))
    with pytest.raises(RetriableError, match=r"offset 20 of .* may have been appended to orders-0.* run this again"):
        await append(monkeypatch, site, broker, [record(20)])


async def test_each_record_says_where_it_came_from(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    broker = Broker()
    await append(monkeypatch, site, broker, [record(20, headers=[("é", b"1")])])
    (one,) = broker.records
    assert list(one.headers) == [("é", b"1"), (HEADER, b"us/orders-0@20"), (TOPIC_HEADER, str(HERE).encode())]


# -- what is not appended, and does not hold up others -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arranged", "word"),
    [
        ({"compacted": ["orders", "mail"]}, "is compacted"),
        ({"is_missing": True}, "has no orders-0: make the topic there"),
        ({"doubt": "2 of them arrived"}, "some records of orders-0 may be on cluster eu already: 2 of them arrived;"),
    ],
)
async def test_what_may_not_be_appended_is_left_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, site: Any, arranged: dict[str, Any], word: str
) -> None:
    broker, said = Broker(), list[str]()
    done = await append(monkeypatch, site, broker, TEN, of=[ORDERS, MAIL], tell=said.append, **arranged)
    assert (broker.log, done.records, [one.source for one in done.left]) == ([], 0, [ORDERS, MAIL])
    assert word in done.reasons[ORDERS]
    assert said == [f"not appended: {why}" for why in done.reasons.values()]


async def test_a_flow_that_changes_records_or_names_appends_nothing(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    """Originals would be there for all to read; and under other names the flow itself brings the records."""
    broker = Broker()
    site.flow.changing_key = "transform.sql"
    assert "(transform.sql)" in (await append(monkeypatch, site, broker, TEN)).reasons[ORDERS]
    site.back.should_mirror = lambda _: False
    assert "start it" in (await append(monkeypatch, site, broker, TEN)).reasons[ORDERS]
    assert broker.log == []


async def test_a_topic_that_may_not_be_written_to_holds_up_no_other(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    """Nor are the marks of those behind it lost, which are written under another epoch then."""
    broker, news = Broker(), TopicPartition("news", 0)
    broker.refuses = "mail"
    done = await append(monkeypatch, site, broker, TEN, of=[ORDERS, MAIL, news])
    assert ([one.source for one in done.left], done.records) == ([MAIL], 20)
    assert done.reasons == {MAIL: "grant WRITE on topic mail"}
    assert broker.log == [*IN_BATCHES, *IN_BATCHES]
    again = await append(monkeypatch, site, broker, TEN, of=[ORDERS, MAIL, news])
    assert [one.source for one in again.found] == [MAIL]


async def test_nothing_more_is_appended_if_a_refused_batch_cannot_be_given_up(
    monkeypatch: pytest.MonkeyPatch, site: Any
) -> None:
    """A broker may have the refused batch's mark, and would take the next mark for the same one."""
    broker, claim = Broker(), Broker.claim
    broker.refuses = "mail"
    monkeypatch.setattr(appender, "_ABORT_S", 0.2)

    async def silent(*_: Any, **__: Any) -> ProducerIdentity:
        raise RetriableError("the coordinator does not answer")

    monkeypatch.setattr(Broker, "claim", silent)
    with pytest.raises(RetriableError, match=r"mail-0 does not take .* the coordinator does not answer"):
        await append(monkeypatch, site, broker, TEN, of=[MAIL, ORDERS])
    assert broker.log == []
    monkeypatch.setattr(Broker, "claim", claim)
    assert (await append(monkeypatch, site, broker, TEN, of=[MAIL, ORDERS])).records == 10
    assert broker.log == IN_BATCHES


async def test_it_stops_at_a_header_whose_key_is_no_text(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    broker = Broker()
    odd = [record(20, headers=[("é", b"")]), record(21), record(22, headers=[("\udce9", b"")]), record(23)]
    done = await append(monkeypatch, site, broker, odd, of=[ORDERS, MAIL])
    assert broker.log == [[20, 21], [20, 21]]
    assert done.records == 4
    assert all("the record at offset 22 cannot be appended" in why for why in done.reasons.values())


# -- the command -------------------------------------------------------------------------------------------------------

ONE = Unreplicated(Own("orders", 0, 20, 29, 10), ((20, 30),), Mark(ORDERS, HERE, ORDERS, THERE, 20))


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
    monkeypatch.setattr(cli, "_unreplicated", answer((done, [])))
    monkeypatch.setattr("connectors.flows.load", lambda _: None)
    assert cli.run_unreplicated(tmp_path, "us", "eu", export_to=None, appends=True, as_json=True) == code
    left = {"topic": "orders", "partition": 0, "first": 20, "last": 29, "records": 10, "why": "a doubt"}
    assert json.loads(capsys.readouterr().out)["left"] == ([left] if done.left else [])


def test_an_exported_header_whose_key_is_no_text_has_it_as_bytes_too() -> None:
    found = unreplicated.as_json(
        SimpleNamespace(**vars(record(20, headers=[("é", b"1"), ("a\udce9", b"")])), topic="orders", partition=0)
    )
    assert found["headers"] == [["é", "MQ=="], ["a\ufffd", "", "Yek="]]
