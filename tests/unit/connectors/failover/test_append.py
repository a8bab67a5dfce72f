"""What only an old primary holds is appended once, whenever an append ends, and without a hole."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from connect.cli.commands import failover as cli
from connect.cli.commands.failover import EXIT_NO_GO
from connect.cli.console import EXIT_OK
from connect.core.errors import HeliographError, PermanentError
from connect.kafka.log.producer import OutRecord
from connect.kafka.log.transactions import TopicsRefused
from connectors.failover import clusters_and_lease, unreplicated
from connectors.failover.log_comparison import UnreplicatedRecords
from connectors.failover.unreplicated import HEADER, TOPIC_HEADER, Mark, Unreplicated, encode_mark
from connectors.formats.types import TopicPartition
from connectors.policy import DefaultReplicationPolicy
from tests.kit.answers import put

ORDERS, MAIL = TopicPartition("orders", 0), TopicPartition("mail", 0)
HERE = UUID(int=1)
VALUE = b"v" * 100


class Killed(BaseException):
    """The process ends here."""


def record(offset: int, value: bytes = VALUE, headers: Sequence[tuple[str, bytes]] = ()) -> Any:
    times = {"timestamp": offset, "timestamp_type": 0}
    return SimpleNamespace(offset=offset, key=None, value=value, headers=tuple(headers), **times)


class Broker:
    """Transactions of one id. ``outcomes``, one for each write: an error before its commit, or ``lost`` for one that is
    committed without an answer; then all go well. ``killed_at``: the number of the step before which the process ends;
    steps are the claims, the writes and their commits."""

    def __init__(self, *outcomes: HeliographError | str, killed_at: int = -1) -> None:
        self.log: list[list[int]] = []
        self.marks: dict[bytes, bytes] = {}
        self.records: list[OutRecord] = []
        self.refuses = ""
        self.killed_at = killed_at
        self.claims = 0
        self._outcomes = list(outcomes)
        self._steps = 0

    def writer(self, *_: Any, transaction_timeout_ms: int, batch_bytes: int, codec: int) -> Any:
        return SimpleNamespace(open=self.open, write=self.write)

    def _step(self) -> None:
        self._steps += 1
        if self._steps == self.killed_at:
            raise Killed

    async def open(self) -> None:
        self._step()
        self.claims += 1

    async def write(self, records: Sequence[OutRecord], may_commit: Any) -> bool:
        """As :meth:`TransactionalWriter.write`, which tries what passes once more."""
        self._step()
        *out, mark = records
        if self.refuses in {one.topic for one in out}:
            raise TopicsRefused(f"grant WRITE on topic {self.refuses}", frozenset())
        outcome = self._outcomes.pop(0) if self._outcomes else ""
        if isinstance(outcome, HeliographError):
            raise outcome
        assert await may_commit({})
        self._step()
        self.marks[mark.key or b""] = mark.value or b""
        self.records += out
        self.log.append([int(dict(one.headers)[HEADER].rpartition(b"@")[2]) for one in out])
        if outcome == "lost":
            await may_commit({})
        return True


class Held:
    """A lease."""

    async def check(self) -> None: ...


@pytest.fixture
def site() -> Any:
    flow = SimpleNamespace(flow="us->eu", source_alias="us", target_alias="eu", map_topic="map", name="m",
                           changing_key="", enabled=False, policy=DefaultReplicationPolicy())  # fmt: skip
    back = SimpleNamespace(flow="eu->us", map_topic="map", name="m", should_mirror=lambda _: True, remote_topic=str)
    return SimpleNamespace(flow=flow, back=back, source="us", target=None)


async def run(
    monkeypatch: pytest.MonkeyPatch,
    site: Any,
    broker: Broker,
    records: Sequence[Any],
    *,
    of: Sequence[TopicPartition] = (ORDERS,),
    report: Any = print,
    held: Any = None,
    compacted: Sequence[str] = (),
    **more: Any,
) -> unreplicated.AppendResult:
    """Append ``records`` of each partition of the source but for what the broker's marks say is appended."""

    async def read(_: Any, __: Any, ranges: Any) -> AsyncGenerator[Any, None]:
        for each in records:
            if any(begin <= each.offset < end for begin, end in ranges):
                yield each

    async def find(_: Any) -> list[Unreplicated]:
        marks = await unreplicated.read_marks(site)
        found = []
        for one in of:
            mark = marks.get(one, Mark(f"of {one}"))
            left = [each.offset for each in records if each.offset > mark.appended]
            if left:
                own = UnreplicatedRecords(*one, left[0], left[-1], len(left))
                found.append(Unreplicated(own, ((left[0], left[-1] + 1),), one, mark, HERE, **more))
        return found

    async def cleaned(_: Any, topics: set[str]) -> set[str]:
        return topics & {*compacted}

    for name, fake in (("read_ranges", read), ("find", find), ("perhaps_compacted", cleaned)):
        monkeypatch.setattr(unreplicated, name, fake)
    monkeypatch.setattr(unreplicated, "TransactionalWriter", broker.writer)
    put(monkeypatch, unreplicated, max_message_bytes=320, why_running="", copied_ends={}, stored=broker.marks)
    lease_held: Any = held or Held()
    return await unreplicated.append_all(site, lease_held, None, report)


TEN = [record(offset) for offset in range(20, 30)]
IN_BATCHES = [[20, 21, 22], [23, 24, 25], [26, 27, 28], [29]]


@pytest.mark.parametrize("killed_at", range(1, 11))
async def test_an_append_that_is_killed_anywhere_is_gone_on_with_and_appends_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, site: Any, killed_at: int
) -> None:
    """The mark of a batch is committed with it, and the next run reads marks only when no other can be committed."""
    broker = Broker(killed_at=killed_at)
    with pytest.raises(Killed):
        await run(monkeypatch, site, broker, TEN)
    before = sum(map(len, broker.log))
    done = await run(monkeypatch, site, broker, TEN)
    assert done.records == 10 - before
    assert [offset for batch in broker.log for offset in batch] == list(range(20, 30))
    assert (await run(monkeypatch, site, broker, TEN)).found == []


async def test_nothing_is_appended_behind_a_batch_that_is_refused(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    """The next run would go on behind what came after it."""
    broker = Broker("", PermanentError("MESSAGE_TOO_LARGE"))
    with pytest.raises(PermanentError) as raised:
        await run(monkeypatch, site, broker, TEN)
    assert broker.log == [[20, 21, 22]]
    assert broker.claims == 3, "what is open of it holds up no reader"
    for word in ("cluster eu", "orders-0", "offsets 23 to 25", "max.message.bytes", "run this again", "TOO_LARGE"):
        assert word in str(raised.value)
    assert (await run(monkeypatch, site, broker, TEN)).records == 7
    assert broker.log == IN_BATCHES


async def test_a_commit_without_an_answer_is_not_made_twice(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    broker = Broker("lost")
    said = "may be missing on orders-0: its commit was not answered.*run this again"
    with pytest.raises(PermanentError, match=said):
        await run(monkeypatch, site, broker, TEN)
    assert (await run(monkeypatch, site, broker, TEN)).records == 7
    assert broker.log == IN_BATCHES


async def test_nothing_is_appended_by_who_has_lost_the_lease(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    """A process that stood still, and goes on while another operator takes readers back."""
    broker = Broker()

    class Lost(Held):
        async def check(self) -> None:
            if broker.log:
                raise clusters_and_lease.FailoverInProgress("taken over")

    with pytest.raises(clusters_and_lease.FailoverInProgress, match="taken over"):
        await run(monkeypatch, site, broker, TEN, held=Lost())
    assert broker.log == [[20, 21, 22]]


async def test_each_record_says_where_it_came_from(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    broker = Broker()
    await run(monkeypatch, site, broker, [record(20, headers=[("é", b"1")])])
    (one,) = broker.records
    assert one.headers == (("é", b"1"), (HEADER, b"us/orders-0@20"), (TOPIC_HEADER, str(HERE).encode()))
    assert (one.partition, one.timestamp_ms) == (0, 20)


@pytest.mark.parametrize(
    ("arranged", "word"),
    [
        ({"compacted": ["orders", "mail"]}, "is compacted"),
        ({"is_missing": True}, "has no orders-0. Create the topic there"),
        ({"doubt": "2 of them arrived"}, "some records of orders-0 may be on cluster eu already: 2 of them arrived."),
    ],
)
async def test_what_may_not_be_appended_is_left_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, site: Any, arranged: dict[str, Any], word: str
) -> None:
    broker, said = Broker(), list[str]()
    done = await run(monkeypatch, site, broker, TEN, of=[ORDERS, MAIL], report=said.append, **arranged)
    assert (broker.log, done.records, [one.source for one in done.left]) == ([], 0, [ORDERS, MAIL])
    assert word in done.reasons[ORDERS]
    assert said == [f"not appended: {why}" for why in done.reasons.values()]


async def test_a_flow_that_changes_records_or_names_appends_nothing(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    """Originals would be there for all to read; and under other names the flow itself brings the records."""
    broker = Broker()
    site.flow.changing_key = "transform.sql"
    assert "(transform.sql)" in (await run(monkeypatch, site, broker, TEN)).reasons[ORDERS]
    site.back.should_mirror = lambda _: False
    assert "Start it" in (await run(monkeypatch, site, broker, TEN)).reasons[ORDERS]
    assert broker.log == []


async def test_a_topic_that_may_not_be_written_to_holds_up_no_other(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    broker, news = Broker(), TopicPartition("news", 0)
    broker.refuses = "mail"
    done = await run(monkeypatch, site, broker, TEN, of=[ORDERS, MAIL, news])
    assert ([one.source for one in done.left], done.records) == ([MAIL], 20)
    assert done.reasons == {MAIL: "grant WRITE on topic mail"}
    assert broker.log == [*IN_BATCHES, *IN_BATCHES]
    again = await run(monkeypatch, site, broker, TEN, of=[ORDERS, MAIL, news])
    assert [one.source for one in again.found] == [MAIL]


async def test_it_stops_at_a_header_whose_key_is_no_text(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    broker = Broker()
    odd = [record(20, headers=[("é", b"")]), record(21), record(22, headers=[("\udce9", b"")]), record(23)]
    done = await run(monkeypatch, site, broker, odd, of=[ORDERS, MAIL])
    assert broker.log == [[20, 21], [20, 21]]
    assert done.records == 4
    assert all("the record at offset 22 cannot be appended" in why for why in done.reasons.values())


async def test_nothing_is_appended_beside_a_flow_that_runs(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    put(monkeypatch, unreplicated, why_running="its connector is RUNNING")
    held: Any = None
    with pytest.raises(PermanentError, match=r"us->eu runs .* Stop it first"):
        await unreplicated.append_all(site, held, None, print)


MARK = Mark("orders", 29)


async def test_marks_lie_beside_the_lease_each_by_itself(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    """Of ten thousand partitions none makes the record too large that is written every few seconds."""
    written = [(ORDERS, Mark("orders", 3)), (MAIL, Mark("mail", 7)), (ORDERS, MARK)]
    kept = dict(encode_mark("us->eu", *one) for one in written)
    put(monkeypatch, unreplicated, stored={clusters_and_lease.encode_key("us->eu"): b"{}", **kept})
    assert await unreplicated.read_marks(site) == {ORDERS: MARK, MAIL: Mark("mail", 7)}
    put(monkeypatch, unreplicated, stored=dict.fromkeys(kept, b'{"format": 1}'))
    with pytest.raises(PermanentError, match="another version"):
        await unreplicated.read_marks(site)


ONE = Unreplicated(UnreplicatedRecords("orders", 0, 20, 29, 10), ((20, 30),), ORDERS, MARK)


@pytest.mark.parametrize(
    ("done", "code"),
    [
        (unreplicated.AppendResult([], [], 0, {}), EXIT_OK),
        (unreplicated.AppendResult([ONE], [], 10, {}), EXIT_OK),
        (unreplicated.AppendResult([ONE, ONE], [ONE], 10, {ORDERS: "a doubt"}), EXIT_NO_GO),
    ],
)
def test_who_left_some_says_so_by_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    done: unreplicated.AppendResult,
    code: int,
) -> None:
    put(monkeypatch, cli, _unreplicated=(done, []))
    monkeypatch.setattr("connectors.config.mm2_properties.load", lambda _: None)
    assert cli.run_unreplicated(tmp_path, "us", "eu", export_to=None, appends=True, as_json=True) == code
    left = {"topic": "orders", "partition": 0, "first": 20, "last": 29, "records": 10, "why": "a doubt"}
    assert json.loads(capsys.readouterr().out)["left"] == ([left] if done.left else [])


def test_an_exported_header_whose_key_is_no_text_has_it_as_bytes_too() -> None:
    found = unreplicated.as_json(
        SimpleNamespace(**vars(record(20, headers=[("é", b"1"), ("a\udce9", b"")])), topic="orders", partition=0)
    )
    assert found["headers"] == [["é", "MQ=="], ["a\ufffd", "", "Yek="]]
