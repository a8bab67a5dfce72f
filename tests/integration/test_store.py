"""The store of positions on a real cluster: all or nothing, one writer at a time, Java's bytes for Java's record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from aiokafka import AIOKafkaProducer
from kafka.protocol.admin import IncrementalAlterConfigsRequest

from connect.core.errors import ConfigError, RetriableError
from connect.core.model import CLEANED_SOON, NewTopic
from connect.core.status_and_offset_topics import SourceOffsets
from connect.embedded.brokers import KafkaCluster
from connect.kafka import concurrency
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import until
from connect.kafka.log import transactions
from connect.kafka.log.compacted_topic import LogRecord, ensure_compacted_topic, read_to_end
from connect.kafka.log.producer import OutRecord, PlainWriter, TransactionalWriter, place, produce_all
from connect.kafka.log.topic_admin import Admin
from connect.kafka.log.transactions import Superseded, TransactionalIdRefused, claim
from connectors.checkpoint.group_checkpoints import LiveOffsets, read_live
from connectors.formats.gap import Gap, GapKind
from connectors.formats.position import KeyKind, Position, decode_kind
from connectors.formats.types import TopicPartition
from connectors.internal_topics import PARTITION_STATES, Records, RecordSettings, read_positions, read_states
from connectors.offset_map.runs_and_chunks import MapRun, decode_chunk, decode_chunk_key
from connectors.source.positions.ledger import Ledger
from connectors.source.positions.partition_notes import StateNotes
from connectors.source.positions.partition_pairs import PartitionPair
from connectors.source.positions.position_store import MirrorPositionStore, StoreSettings
from connectors.source.positions.stored_positions import Commit, CommitScope, PassedGap, PositionsTaken, Start
from tests.kit.clients import cluster_and_admin
from tests.kit.topics import until_gone, until_led

pytestmark = pytest.mark.integration

CONNECTOR = "MirrorSourceConnector"
ORDERS = TopicPartition("orders", 0)
POSITION = Position(
    source_topic="orders",
    source_partition=0,
    source_topic_id=uuid4(),
    next_source_offset=42,
    source_leader_epoch=3,
    target_topic="us.orders",
    target_partition=0,
    target_topic_id=uuid4(),
    target_end=40,
    transactional_id="us->eu-MirrorSourceConnector-0",
    producer_id=4711,
    producer_epoch=5,
    next_sequence=40,
)


class Site:
    """A cluster, and topics of this test's own to keep positions in."""

    def __init__(self, cluster: Cluster, admin: Admin) -> None:
        flow = uuid4()
        self.cluster = cluster
        self.admin = admin
        self.settings = StoreSettings(
            connector=CONNECTOR,
            source_alias="us",
            offsets_topic=f"mm2-offsets.{flow}.internal",
            map_topic=f"mm2-offset-map.{flow}.internal",
            transactional_id=f"{flow}-0-commit",
            replication_factor=1,
            partitions=3,
        )

    def store(self, task: int = 0) -> MirrorPositionStore:
        own = f"{self.writer(task)}-commit"
        return MirrorPositionStore(self.cluster, self.admin, replace(self.settings, transactional_id=own))

    async def committed(
        self, runs: Sequence[tuple[int, int, int]] = (), position: Position = POSITION
    ) -> MirrorPositionStore:
        """Return a store that has committed a position of ORDERS."""
        store = self.store()
        await store.load([ORDERS])
        await store.commit([Commit(position, runs)])
        return store

    async def start(self) -> Start:
        return (await self.store().load([ORDERS]))[ORDERS]

    def writer(self, task: int) -> str:
        """Under which a task writes records."""
        return f"{self.settings.transactional_id.removesuffix('-0-commit')}-{task}"

    async def records(self, topic: str, read_committed: bool = True) -> list[LogRecord]:
        found: list[LogRecord] = []
        await read_to_end(self.cluster, topic, found.append, read_committed=read_committed)
        return found

    async def count(self) -> int:
        return sum([len(await self.records(one)) for one in (self.settings.offsets_topic, self.settings.map_topic)])

    async def runs(self) -> list[MapRun]:
        chunks: dict[bytes, bytes | None] = {}
        for record in await self.records(self.settings.map_topic):
            if decode_kind(record.key) is KeyKind.CHUNK:
                assert record.key is not None
                chunks[record.key] = record.value
        starts = sorted((decode_chunk_key(key).first_upstream, value) for key, value in chunks.items() if value)
        return [run for first, value in starts for run in decode_chunk(first, value)]


@pytest.fixture
async def site(eu: KafkaCluster) -> AsyncIterator[Site]:
    async with cluster_and_admin(eu.bootstrap, "eu") as clients:
        yield Site(*clients)


async def test_nothing_is_known_of_a_new_partition(site: Site) -> None:
    assert await site.start() == Start(None, None, False)


async def test_what_is_committed_is_found_again(site: Site) -> None:
    store = site.store()
    await store.load([ORDERS, TopicPartition("orders", 1)])
    await store.commit([Commit(POSITION, [(0, 0, 10), (12, 10, 30)])])
    later = replace(POSITION, next_source_offset=50, target_end=48, next_sequence=48)
    await store.commit([Commit(later, [(42, 40, 8)])])
    starts = await site.store().load([ORDERS, TopicPartition("orders", 1)])
    assert starts[ORDERS].position == later
    assert (starts[ORDERS].committed_source_offset, starts[ORDERS].moved) == (49, False)
    assert starts[TopicPartition("orders", 1)].position is None
    assert await site.runs() == [MapRun(0, 0, 10), MapRun(12, 10, 38)]


async def test_the_source_offsets_record_has_javas_bytes(site: Site) -> None:
    await site.committed()
    written = [(record.key, record.value) for record in await site.records(site.settings.offsets_topic)]
    assert written == [(b'["MirrorSourceConnector",{"cluster":"us","partition":0,"topic":"orders"}]', b'{"offset":41}')]


async def test_before_the_first_record_java_knows_no_offset(site: Site) -> None:
    await site.committed(position=replace(POSITION, next_source_offset=0, target_end=0, next_sequence=0))
    start = await site.start()
    assert (start.committed_source_offset, start.moved) == (None, False)
    assert start.position is not None


@pytest.mark.parametrize("altered", [b'{"offset":99}', None], ids=["altered", "reset"])
async def test_an_offset_that_was_moved_since_is_seen(site: Site, altered: bytes | None) -> None:
    await site.committed()
    await alter(site, altered)
    start = await site.start()
    assert start.moved
    assert start.committed_source_offset == (99 if altered else None)


async def test_a_flow_that_gets_a_topic_of_its_own_for_offsets_continues(site: Site) -> None:
    store = await site.committed()
    before = site.settings.offsets_topic
    site.settings = replace(site.settings, offsets_topic=f"own.{before}", read_topics=(before, f"own.{before}"))
    store = site.store()
    start = (await store.load([ORDERS]))[ORDERS]
    assert (start.position, start.committed_source_offset, start.moved) == (POSITION, 41, False)
    later = replace(POSITION, next_source_offset=50, target_end=48, next_sequence=48)
    await store.commit([Commit(later)])
    assert len(await site.records(before)) == 1
    assert (await site.start()).committed_source_offset == 49


async def test_an_older_offset_of_the_workers_topic_does_not_return(site: Site) -> None:
    workers = site.settings.offsets_topic.replace("mm2", "workers")
    await site.admin.create_topics([NewTopic(workers, 3, 1, CLEANED_SOON)])
    own = site.settings.offsets_topic
    site.settings = replace(site.settings, offsets_topic=workers)
    await alter(site, b'{"offset":500}')
    site.settings = replace(site.settings, offsets_topic=own, read_topics=(workers, own))
    store = site.store()
    assert (await store.load([ORDERS]))[ORDERS].committed_source_offset == 500
    # As after the topic was recreated: nothing is copied yet.
    await store.commit([Commit(replace(POSITION, next_source_offset=0, target_end=0, next_sequence=0))])
    assert [record.value for record in await site.records(workers)] == [b'{"offset":500}', None]
    start = await site.start()
    assert (start.committed_source_offset, start.moved) == (None, False)


async def add_partitions(site: Site, topic: str, count: int) -> None:
    assert await site.admin.create_partitions({topic: count}) == {topic: None}
    await until_led(site.cluster, {topic: count})


@pytest.mark.parametrize("count", [5, 6])  # to which ORDERS moves, so that the older record may be read last
async def test_of_an_offsets_topic_that_got_more_partitions_the_later_record_counts(site: Site, count: int) -> None:
    await site.committed()
    await add_partitions(site, site.settings.offsets_topic, count)
    store = site.store()
    await store.load([ORDERS])
    later = replace(POSITION, next_source_offset=50, target_end=48, next_sequence=48)
    await store.commit([Commit(later)])
    start = await site.start()
    assert (start.committed_source_offset, start.moved) == (49, False)


async def test_positions_of_a_topic_that_got_more_partitions_are_found(site: Site) -> None:
    await site.committed([(0, 0, 40)])
    await add_partitions(site, site.settings.map_topic, 5)
    store = site.store()
    assert (await store.load([ORDERS]))[ORDERS].position == POSITION
    later = replace(POSITION, next_source_offset=50, target_end=48, next_sequence=48)
    await store.commit([Commit(later, [(42, 40, 8)])])
    assert (await site.start()).position == later
    assert await read_positions(site.cluster, site.settings.map_topic, CONNECTOR) == {ORDERS: later}


async def recreate(site: Site, topic: str) -> None:
    await site.admin.delete_topics([topic])
    await until_gone(site.cluster, [topic])
    await ensure_compacted_topic(site.admin, NewTopic(topic, 3, 1))
    await until_led(site.cluster, {topic: 3})


async def test_states_of_partitions_are_stored_again_in_a_recreated_topic(site: Site) -> None:
    where = RecordSettings(CONNECTOR, site.settings.map_topic, 3, 1)
    ledger = Ledger([PartitionPair(ORDERS, None, POSITION.target, None)])
    ledger.entries[ORDERS].stop("damaged")
    notes = StateNotes("task", Records(PARTITION_STATES, site.cluster, site.admin, where), lambda: ledger)
    for _ in range(2):
        assert await notes.note()
        assert (await read_states(site.cluster, where))[ORDERS].reason == "damaged"
        await recreate(site, where.topic)


async def test_live_offsets_are_stored_again_in_a_recreated_topic(site: Site) -> None:
    topic, live = site.settings.map_topic, {ORDERS: POSITION.source_topic_id}
    offsets = LiveOffsets(site.cluster, topic, "us->eu")
    await ensure_compacted_topic(site.admin, NewTopic(topic, 3, 1))
    await until_led(site.cluster, {topic: 3})
    for _ in range(2):
        offsets.look("billing", live, 0)
        await offsets.store()
        assert await read_live(site.cluster, topic, "us->eu") == {"billing": live}
        await recreate(site, topic)


async def test_a_load_of_many_partitions_lets_other_tasks_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at an offset is a turn of its own if turns take no time."""
    looks, turn, offset_of = list[int](), 0, SourceOffsets.mirrored_offset

    def look(offsets: SourceOffsets, *of: Any) -> int | None:
        looks.append(turn)
        return offset_of(offsets, *of)

    async def take_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(concurrency, "_TURN_S", 0.0)
    monkeypatch.setattr(SourceOffsets, "mirrored_offset", look)
    async with concurrency.Scope("other tasks") as scope:
        scope.spawn(take_turns(), "turns")
        await site.store().load([TopicPartition("orders", index) for index in range(20)])
    assert len(looks) >= 20
    assert len(set(looks)) == len(looks)


async def alter(site: Site, value: bytes | None) -> None:
    """As an operator does, or Java."""
    operator = AIOKafkaProducer(bootstrap_servers=site.cluster.settings.aiokafka_arguments()["bootstrap_servers"])
    await operator.start()
    key = json.dumps([CONNECTOR, {"cluster": "us", "partition": 0, "topic": "orders"}], separators=(",", ":")).encode()
    await operator.send_and_wait(site.settings.offsets_topic, key=key, value=value)
    await operator.stop()


async def copy_on(
    store: MirrorPositionStore, ends: Sequence[int], scope: CommitScope = CommitScope.PROGRESS
) -> Position:
    """Commit growing positions of the one run that begins at 0 on both sides."""
    for end in ends:
        later = replace(POSITION, next_source_offset=end, target_end=end, next_sequence=end)
        await store.commit([Commit(later, [(end - 10, end - 10, 10)], scope=scope)])
    return later


async def test_a_position_between_two_of_javas_offsets_costs_one_record(site: Site) -> None:
    store = await site.committed([(0, 0, 40)])
    before = await site.count()
    grown = replace(POSITION, next_source_offset=60, target_end=58, next_sequence=58)
    for at in range(42, 60, 2):
        moved = replace(grown, next_source_offset=at + 2, target_end=at, next_sequence=at)
        await store.commit([Commit(moved, [(at, at - 2, 2)], scope=CommitScope.PROGRESS)])
    assert await site.count() - before == 10, "nine positions, and the chunk to which the first has added a run"
    start = await site.start()
    assert (start.position, start.moved, start.committed_source_offset) == (moved, False, 59)
    (java,) = [record.value for record in await site.records(site.settings.offsets_topic)]
    assert java == b'{"offset":41}'


@pytest.mark.parametrize("altered", [b'{"offset":50}', None], ids=["altered", "reset"])
async def test_an_offset_that_was_altered_behind_a_newer_position_is_seen(site: Site, altered: bytes | None) -> None:
    store = await site.committed([(0, 0, 40)])
    await copy_on(store, [50, 60])
    await alter(site, altered)
    start = await site.start()
    assert (start.moved, start.committed_source_offset) == (True, 50 if altered else None)


async def test_progress_of_a_store_that_was_superseded_does_not_count(site: Site) -> None:
    """It is written without a transaction, so nothing refuses it."""
    first = await site.committed([(0, 0, 40)])
    second = site.store()
    await second.load([ORDERS])
    taken_over = replace(POSITION, producer_epoch=6, next_sequence=0)
    await second.commit([Commit(taken_over)])
    await first.commit(
        [Commit(replace(POSITION, next_source_offset=90, target_end=88, next_sequence=88), scope=CommitScope.PROGRESS)]
    )
    start = await site.start()
    assert (start.position, start.moved) == (taken_over, False)


async def test_topics_of_an_earlier_version_are_cleaned_as_soon_as_new_ones(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    topics = [site.settings.offsets_topic, site.settings.map_topic]
    own = {"cleanup.policy": "compact", "segment.ms": "777000"}
    await site.admin.create_topics([NewTopic(topics[1], 3, 1, own)])
    await until_led(site.cluster, {topics[1]: 3})
    with caplog.at_level("INFO"):
        await site.store().load([ORDERS])
    assert f"on topic {topics[1]} to keep it small" in caplog.text
    assert f"on topic {topics[0]} to keep it small" not in caplog.text, "it was created with them"
    wanted, found = [CLEANED_SOON, {**CLEANED_SOON, "segment.ms": "777000"}], list[dict[str, str | None]]()
    async with asyncio.timeout(60):
        while found != wanted:  # the controller has answered; the broker hears of it a moment later
            known = await site.admin.describe_topic_configs(topics)
            found = [{key: known[topic].get(key) for key in CLEANED_SOON} for topic in topics]


def take_rights_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise TransactionalIdRefused("grant WRITE and DESCRIBE")

    monkeypatch.setattr(TransactionalWriter, "open", refuse)
    monkeypatch.setattr(TransactionalWriter, "write", refuse)


@pytest.mark.parametrize("topic", ["offsets_topic", "map_topic"])
async def test_of_a_transaction_that_the_target_has_torn_the_position_counts(
    site: Site, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """A coordinator that comes up leaves out partitions whose leaders it does not know yet."""
    await site.committed([(0, 0, 40)])
    await alter(site, b'{"offset":99}')
    end = TransactionalWriter.end_left_open

    async def had_left_some(self: TransactionalWriter, partitions: Collection[tuple[str, int]]) -> Any:
        assert not await end(self, partitions)
        return {one for one in partitions if one[0] == getattr(site.settings, topic)}

    with monkeypatch.context() as patch:
        patch.setattr(TransactionalWriter, "end_left_open", had_left_some)
        start = await site.start()
    assert (start.position, start.committed_source_offset, start.moved) == (POSITION, 41, False)
    assert (await site.start()).moved


class TestWithoutRightsToItsId:
    @pytest.fixture(autouse=True)
    def refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        take_rights_away(monkeypatch)

    async def test_it_stores_plainly_and_an_alteration_is_still_seen(self, site: Site) -> None:
        await site.committed([(0, 0, 40)])
        start = await site.start()
        assert (start.position, start.committed_source_offset, start.moved) == (POSITION, 41, False)
        assert await site.runs() == [MapRun(0, 0, 40)]
        await alter(site, b'{"offset":99}')
        start = await site.start()
        assert (start.committed_source_offset, start.moved) == (99, True)

    async def test_of_a_torn_commit_the_position_counts(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """Died between Java's record and the position, which is older then."""
        store = await site.committed([(0, 0, 40)])
        write = PlainWriter.write

        async def die(self: PlainWriter, records: Sequence[OutRecord]) -> None:
            if records[0].topic != site.settings.offsets_topic:
                raise SystemExit
            await write(self, records)

        later = replace(POSITION, next_source_offset=50, target_end=48, next_sequence=48)
        with monkeypatch.context() as patch:
            patch.setattr(PlainWriter, "write", die)
            with pytest.raises(SystemExit):
                await store.commit([Commit(later, [(40, 40, 8)])])
        start = await site.start()
        assert (start.position, start.committed_source_offset, start.moved) == (POSITION, 41, False)
        assert await site.runs() == [MapRun(0, 0, 40)]

    async def test_the_first_plain_commit_torn_after_transactions_is_no_alteration(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.undo()
        await site.committed()
        take_rights_away(monkeypatch)
        store = site.store()
        await store.load([ORDERS])
        write = PlainWriter.write
        written: list[str] = []

        async def die(self: PlainWriter, records: Sequence[OutRecord]) -> None:
            written.append(records[0].topic)
            if len(written) > 1:
                raise SystemExit
            await write(self, records)

        with monkeypatch.context() as patch:
            patch.setattr(PlainWriter, "write", die)
            with pytest.raises(SystemExit):
                await store.commit([Commit(replace(POSITION, next_source_offset=50))])
        start = await site.start()
        assert (start.position, start.moved) == (POSITION, False)

    async def test_when_rights_come_back_transactions_do(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        await site.committed()
        monkeypatch.undo()
        fenced = site.store()
        assert (await fenced.load([ORDERS]))[ORDERS].position == POSITION
        later = replace(POSITION, next_source_offset=50)
        await fenced.commit([Commit(later)])
        assert await site.start() == Start(later, 49, False)


async def test_an_earlier_store_is_shut_out(site: Site) -> None:
    zombie, successor = site.store(), site.store()
    await zombie.load([ORDERS])
    await zombie.commit([Commit(POSITION)])
    await successor.load([ORDERS])
    with pytest.raises(Superseded):
        await zombie.commit([Commit(replace(POSITION, next_source_offset=1000))])
    with pytest.raises(Superseded):  # and stays out, also where it asks for the id anew
        await zombie.commit([Commit(replace(POSITION, next_source_offset=1000))])
    await successor.commit([Commit(replace(POSITION, next_source_offset=43))])
    start = await site.start()
    assert start.committed_source_offset == 42


async def test_a_task_that_takes_a_partition_over_shuts_its_last_writer_out_of_the_store(site: Site) -> None:
    """The last commit of the old task would overwrite the newer position, whatever happened to its records (C4)."""
    position = replace(POSITION, transactional_id=site.writer(0))
    zombie, successor = site.store(0), site.store(1)
    await zombie.load([ORDERS])
    await zombie.commit([Commit(position)])
    await successor.load([])
    starts = await successor.fence_predecessors(await successor.load_more([ORDERS]))
    assert starts[ORDERS].position == position
    with pytest.raises(Superseded):
        await zombie.commit([Commit(replace(position, next_source_offset=60))])
    newer = replace(position, transactional_id=site.writer(1), next_source_offset=50)
    await successor.commit([Commit(newer)])
    await successor.commit([Commit(replace(newer, next_source_offset=55))])
    assert (await site.store(0).load([ORDERS]))[ORDERS].position == replace(newer, next_source_offset=55)


async def test_of_two_tasks_that_take_a_partition_over_the_last_one_stores(site: Site) -> None:
    """The first froze after its fence: what it stores when it thaws would let it copy beside the other."""
    position = replace(POSITION, transactional_id=site.writer(0))
    await site.store(0).load([ORDERS])
    stores = [site.store(task) for task in (0, 1, 2)]
    await stores[0].load([ORDERS])
    await stores[0].commit([Commit(position)])
    for one in stores[1:]:
        await one.load([])
        assert (await one.fence_predecessors(await one.load_more([ORDERS])))[ORDERS].position == position
        found = (await one.load_more([ORDERS]))[ORDERS]
        own = site.writer(stores.index(one))
        assert (found.position, found.moved, found.claimant) == (position, False, f"{own}-commit")
    with pytest.raises(Superseded):
        await stores[1].commit([Commit(replace(position, transactional_id=site.writer(1)))])
    last = replace(position, transactional_id=site.writer(2))
    await stores[2].commit([Commit(last)])
    found = (await stores[2].load_more([ORDERS]))[ORDERS]
    assert (found.position, found.claimant) == (last, "")


@pytest.mark.parametrize("stored", [None, replace(POSITION, is_handed_over=True)], ids=["new", "handed over"])
async def test_of_two_tasks_that_are_given_an_unowned_partition_the_first_to_store_has_it(
    site: Site, stored: Position | None
) -> None:
    """The other one was frozen between its look and its first position, which would overwrite newer ones."""
    former, late, owner = (site.store(task) for task in (0, 1, 2))
    await former.load([ORDERS])
    if stored is not None:
        await former.commit([Commit(stored)])
    for one in (late, owner):
        await one.load([])
        assert (await one.load_more([ORDERS]))[ORDERS].position == stored
    newer = replace(POSITION, transactional_id=site.writer(2), producer_id=2, next_source_offset=50)
    await owner.commit([Commit(newer)])
    newer = replace(newer, next_source_offset=60)
    await owner.commit([Commit(newer, scope=CommitScope.PROGRESS)])
    others = TopicPartition("others", 0)
    first = replace(POSITION, transactional_id=site.writer(1), producer_id=1)
    with pytest.raises(PositionsTaken, match="another task has stored positions of orders-0 meanwhile") as raised:
        await late.commit([Commit(first), Commit(replace(first, source_topic="others"))])
    assert raised.value.sources == {ORDERS}
    found = await late.load_more([ORDERS, others])
    assert (found[ORDERS].position, found[others].position) == (newer, None), "nothing of that was stored"
    await late.commit([Commit(replace(first, source_topic="others"))])
    assert (await late.load_more([others]))[others].position == replace(first, source_topic="others")


async def test_a_first_position_is_seen_before_its_transaction_has_ended(site: Site) -> None:
    slow, other = site.store(0), site.store(1)
    for one in (slow, other):
        await one.load([ORDERS])
    may_end, is_ending = asyncio.Event(), asyncio.Event()
    end_transaction = transactions.end_transaction

    async def wait(*args: Any, **named: Any) -> None:
        if not is_ending.is_set():
            is_ending.set()
            await may_end.wait()
        await end_transaction(*args, **named)

    first = replace(POSITION, transactional_id=site.writer(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactions, "end_transaction", wait)
        storing = asyncio.create_task(slow.commit([Commit(first)]))
        await is_ending.wait()
        with pytest.raises(PositionsTaken):
            await other.commit([Commit(replace(POSITION, transactional_id=site.writer(1), producer_id=1))])
        may_end.set()
        await storing
    assert (await other.load_more([ORDERS]))[ORDERS].position == first


@pytest.mark.parametrize("ends", ["retried", "stopped"])
async def test_a_first_position_that_was_written_twice_is_our_own(site: Site, ends: str) -> None:
    store = site.store()
    await store.load([ORDERS])
    end_transaction, tries = transactions.end_transaction, []

    async def fail_once(*args: Any, **named: Any) -> None:
        tries.append(args)
        if len(tries) == 1:
            raise RetriableError("the coordinator has moved") if ends == "retried" else asyncio.CancelledError
        await end_transaction(*args, **named)

    stored = POSITION
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactions, "end_transaction", fail_once)
        if ends == "stopped":
            with pytest.raises(asyncio.CancelledError):
                await store.commit([Commit(POSITION)])
            stored = replace(POSITION, is_handed_over=True)
        await store.commit([Commit(stored)])
    assert len(tries) > 1
    assert (await site.start()).position == stored


async def test_commit_goes_on_after_its_connections_were_cut(site: Site) -> None:
    store = await site.committed([(0, 0, 42)])
    metadata = await site.cluster.metadata(())
    for node in metadata.brokers:
        for purpose in ("positions", "transaction", "control"):
            await (await site.cluster.connection(node, purpose)).close()
    later = replace(POSITION, next_source_offset=52)
    await store.commit([Commit(later, [(42, 42, 10)])])
    assert (await site.start()).position == later
    assert await site.runs() == [MapRun(0, 0, 52)]


async def test_an_open_transaction_of_a_predecessor_is_not_read(site: Site) -> None:
    """Killed between its records and its commit: a predecessor leaves nothing that counts."""
    await site.committed()
    dying = TransactionalWriter(site.cluster, site.settings.transactional_id)

    async def die(*_: object, **__: object) -> None:
        raise SystemExit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("connect.kafka.log.transactions.end_transaction", die)
        with pytest.raises(SystemExit):
            await dying.write([OutRecord(site.settings.offsets_topic, b'["x",{}]', b'{"offset":1}')])
    assert (await site.start()).position == POSITION
    assert len(await site.records(site.settings.offsets_topic)) == 1
    assert len(await site.records(site.settings.offsets_topic, read_committed=False)) == 2


async def test_the_map_of_a_topic_made_anew_begins_anew(site: Site) -> None:
    await site.committed([(0, 0, 42)])
    again = site.store()
    await again.load([ORDERS])
    anew = replace(POSITION, target_topic_id=UUID(int=7), target_end=10)
    await again.commit([Commit(anew, [(42, 0, 10)])])
    assert await site.runs() == [MapRun(42, 0, 10)]


async def test_a_map_begins_anew_within_one_life_of_the_store_too(site: Site) -> None:
    """A policy asks for the newest runs first, and then goes on with the topic that took the other's place."""
    store = await site.committed([(0, 0, 42)])
    assert store.runs_of(POSITION) == [MapRun(0, 0, 42)]
    anew = replace(POSITION, target_topic_id=UUID(int=7), target_end=10)
    await store.commit([Commit(anew, [(42, 0, 10)])])
    assert store.runs_of(POSITION) == []
    await store.commit([Commit(anew, [(52, 10, 10)])])
    assert await site.runs() == [MapRun(42, 0, 20)]


async def test_a_truncated_target_cuts_the_map(site: Site) -> None:
    store = await site.committed([(0, 0, 10), (12, 10, 30)])
    passing = PassedGap(0, Gap(GapKind.TARGET_TRUNCATED), target_truncated_to=15)
    await store.commit([Commit(replace(POSITION, next_source_offset=17, target_end=15), passing=passing)])
    assert await site.runs() == [MapRun(0, 0, 10), MapRun(12, 10, 5)]


async def test_a_topic_that_loses_records_by_age_is_refused(site: Site) -> None:
    name = site.settings.offsets_topic
    assert await site.admin.create_topics([NewTopic(name, 3, 1, {"cleanup.policy": "compact,delete"})]) == {name: None}
    await until_led(site.cluster, {name: 3})
    with pytest.raises(ConfigError, match=r"cleanup\.policy=compact,delete and would lose"):
        await site.store().load([ORDERS])


async def test_many_partitions_and_large_maps_in_one_commit(site: Site) -> None:
    store = site.store()
    partitions = [TopicPartition("wide", index) for index in range(40)]
    await store.load(partitions)
    runs = [(11 * at, 10 * at, 10) for at in range(9000)]
    await store.commit(
        [Commit(replace(POSITION, source_topic="wide", source_partition=index), runs) for index in range(40)]
    )
    starts = await site.store().load(partitions)
    assert all(start.position is not None for start in starts.values())
    assert len(await site.runs()) == 40 * 9000


@asynccontextmanager
async def unverified(cluster: Cluster) -> AsyncIterator[None]:
    """Brokers that take transactional records which their coordinator knows nothing of, as those before 3.6 do."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    for is_verified in (False, True):
        setting = resource.AlterableConfig(
            name="transaction.partition.verification.enable", config_operation=0, value=str(is_verified).lower()
        )
        broker = resource(resource_type=4, resource_name="1", configs=[setting])
        request = IncrementalAlterConfigsRequest(resources=[broker], validate_only=False)
        answer = await (await cluster.any_connection()).call(request)
        assert [one.error_code for one in answer.responses] == [0]
        if not is_verified:
            yield


async def leave_open(site: Site) -> None:
    """A transaction that begins in the topic of offsets behind its coordinator's back."""
    identity = await claim(site.cluster, site.settings.transactional_id)
    record = OutRecord(site.settings.offsets_topic, b"k", b"v", partition=1)

    async def attempt() -> None:
        placed = await place(site.cluster, [record], identity, {})
        await produce_all(site.cluster, placed, site.settings.transactional_id, 10, check)

    def check(code: int, partition: str) -> None:
        if code:  # until the broker has heard of its new setting
            raise RetriableError(f"{partition}: {code}")

    await until(60, "leaving a transaction open", attempt)


async def test_what_a_transaction_left_open_unknown_to_its_coordinator_keeps_nobody_out(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    await site.committed()
    async with unverified(site.cluster):
        await leave_open(site)
    with pytest.raises(RetriableError, match=rf"is open in {site.settings.offsets_topic}-1 since offset \d+; kafka-tr"):
        await read_to_end(site.cluster, site.settings.offsets_topic, print, read_committed=True, timeout_s=1)
    await claim(site.cluster, site.settings.transactional_id)  # its coordinator has nothing to end
    successor = site.store()
    assert (await successor.load([ORDERS]))[ORDERS].position == POSITION
    assert f"left open in {site.settings.offsets_topic}-1, unknown to its coordinator" in caplog.text
    later = replace(POSITION, next_source_offset=50)
    await successor.commit([Commit(later)])
    assert (await site.start()).position == later
