"""Whatever a task commits, and whenever it ends, its successor finds the newest position and the whole map; and so does
an earlier version, which knows full records only, behind a clean end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connect.core import status_and_offset_topics
from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import LogRecord
from connect.kafka.log.producer import OutRecord
from connect.kafka.log.topic_admin import Admin
from connectors.dataplane.batches.outgoing_batches import append_run
from connectors.formats.gap import Gap, GapKind
from connectors.formats.position import (
    KeyKind,
    Position,
    StoredPosition,
    decode_kind,
    decode_position,
    decode_position_key,
    fold_position,
)
from connectors.formats.types import TopicPartition
from connectors.offset_map import runs_and_chunks
from connectors.offset_map.runs_and_chunks import (
    MapPair,
    MapRun,
    RunList,
    decode_chunk,
    decode_chunk_key,
    first_downstream,
)
from connectors.source.positions import position_store as store_module
from connectors.source.positions import stored_positions
from connectors.source.positions.ledger import Ledger
from connectors.source.positions.partition_pairs import PartitionPair
from connectors.source.positions.position_store import MirrorPositionStore, StoreSettings
from connectors.source.positions.stored_positions import Commit, CommitScope, PassedGap
from tests.kit.turns import turns_during

ORDERS = TopicPartition("orders", 0)
BEGIN = Position("orders", 0, UUID(int=1), 0, 1, "us.orders", 0, UUID(int=2), 0, "task", 7, 0, 0)
SETTINGS = StoreSettings("mirror", "us", "mm2-offsets.us.internal", "map", "task-commit", max_runs_per_chunk=3)


class Topics:
    """The two topics as logs that nothing is cleaned out of, and the calls of the store to them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.logs: dict[str, list[LogRecord]] = {SETTINGS.offsets_topic: [], SETTINGS.map_topic: []}
        topics = self

        class Writer:
            def __init__(self, *_: object, **__: object) -> None: ...

            async def open(self) -> None: ...

            async def end_left_open(self, _: object) -> Collection[tuple[str, int]]:
                return ()

            async def write(self, records: Iterable[OutRecord], _: object = None) -> bool:
                for one in records:
                    log = topics.logs[one.topic]
                    log.append(LogRecord(one.key, one.value, 0, len(log), 0, one.headers))
                return True

        async def nothing(*_: object, **__: object) -> None: ...

        async def one(*_: object, **__: object) -> int:
            return 1

        async def read(_: object, topic: str, apply: Callable[[LogRecord], None], **__: object) -> dict[int, int]:
            for record in self.logs[topic]:
                apply(record)
            return {0: len(self.logs[topic])}

        for name, fake in {
            "TransactionalWriter": Writer, "PlainWriter": Writer, "ensure_compacted_topic": nothing,
            "correct_settings": nothing, "partition_count": one, "read_to_end": read,
        }.items():  # fmt: skip
            patch.setattr(store_module, name, fake)
        patch.setattr(stored_positions, "read_to_end", read)

    def store(self) -> MirrorPositionStore:
        return MirrorPositionStore(cast(Cluster, SimpleNamespace(name="eu")), cast(Admin, None), SETTINGS)

    def read(self, *, by_earlier: bool) -> tuple[StoredPosition, dict[int, int], int | None]:
        """The newest position, where each source offset went, and Java's offset; by an earlier version, which passes
        progress and headers over."""
        stored: StoredPosition | None = None
        chunks: dict[int, bytes] = {}
        for record in self.logs[SETTINGS.map_topic]:
            assert record.key is not None
            kind = decode_kind(record.key)
            if kind is KeyKind.CHUNK:
                pair, upstream = decode_chunk_key(record.key)
                assert pair == MapPair.of(BEGIN)
                if record.value is None:
                    chunks.pop(upstream, None)
                else:
                    chunks[upstream] = record.value
            elif kind is KeyKind.POSITION or (kind is KeyKind.PROGRESS and not by_earlier):
                key = decode_position_key(record.key)
                headers: Any = () if by_earlier else record.headers
                stored = fold_position(stored, kind, key, record.value, headers)
                if kind is KeyKind.POSITION:
                    decode_position(key, record.value or b"")  # all of it, and no byte too many
        assert stored is not None
        went: dict[int, int] = {}
        begins = sorted(chunks)
        for upstream, following in zip(begins, [*begins[1:], None], strict=True):
            runs = RunList(decode_chunk(upstream, chunks[upstream]))
            if following is not None:
                runs.cut(following, first_downstream(chunks[following]))
            elif stored.last_run is not None:
                runs.lengthen(stored.last_run)
            went |= {run.upstream + at: run.downstream + at for run in runs for at in range(run.length)}
        state = status_and_offset_topics.SourceOffsets()
        for record in self.logs[SETTINGS.offsets_topic]:
            status_and_offset_topics.apply(state, record.key, record.value)
        return stored, went, state.mirrored_offset(SETTINGS.connector, SETTINGS.source_alias, *ORDERS)


#: Of each commit: how many records were copied before it, behind how many of the source that were not; what it writes;
#: whether a successor takes over behind it, cleanly (c) or not (u).
STEPS = st.lists(
    st.tuples(st.integers(1, 9), st.sampled_from([0, 2]), st.sampled_from(CommitScope), st.sampled_from("---uc")),
    max_size=25,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_a_successor_of_either_version_finds_what_was_committed(
    monkeypatch: pytest.MonkeyPatch, steps: list[tuple[int, int, CommitScope, str]]
) -> None:
    with monkeypatch.context() as patch:
        topics = Topics(patch)
        position, went, epoch = BEGIN, dict[int, int](), 0
        store = topics.store()
        await store.load([ORDERS])
        await store.commit([Commit(position)])
        for count, gap, scope, ends in steps:
            up, down = position.next_source_offset + gap, position.target_end
            position = replace(position, next_source_offset=up + count, target_end=down + count, next_sequence=down)
            went |= {up + at: down + at for at in range(count)}
            await store.commit([Commit(position, [MapRun(up, down, count)], scope=scope)])
            stored, found, java = topics.read(by_earlier=False)
            assert (stored.position, found, stored.was_altered(java)) == (position, went, False)
            earlier, of_earlier, java = topics.read(by_earlier=True)
            assert not earlier.was_altered(java), "a full position and the offset that belongs to it"
            assert of_earlier.items() <= went.items()
            if scope is CommitScope.ALL:
                assert (earlier.position, of_earlier) == (position, went)
            if ends == "-":
                continue
            old, store = store, topics.store()
            if ends == "c":
                position = replace(position, is_handed_over=True)
                await old.commit([Commit(position)])
            start = (await store.load([ORDERS]))[ORDERS]
            assert (start.position, start.moved) == (position, False)
            epoch += 1
            position = replace(position, producer_epoch=epoch, is_handed_over=False)
            await store.commit([Commit(position)])
            # What the predecessor had under way, or a process that was frozen, arrives behind that.
            late = replace(position, producer_epoch=epoch - 1, next_source_offset=10**6, target_end=10**6)
            await topics.store()._progress.write([old._progress_record(late)])


async def test_a_commit_of_an_earlier_version_follows_on_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes full records without headers, and complete chunks."""
    topics = Topics(monkeypatch)
    store = topics.store()
    await store.load([ORDERS])
    await store.commit([Commit(BEGIN)])
    grown = replace(BEGIN, next_source_offset=30, target_end=30)
    await store.commit([Commit(grown, [MapRun(0, 0, 30)], scope=CommitScope.PROGRESS)])
    earlier = topics.store()
    await earlier.load([ORDERS])
    back = replace(grown, next_source_offset=20, target_end=25, producer_epoch=1)
    await earlier.commit([Commit(back, passing=PassedGap(0, Gap(GapKind.TARGET_TRUNCATED), target_truncated_to=20))])
    stored, went, java = topics.read(by_earlier=False)
    assert (stored.position, went, java) == (back, {at: at for at in range(20)}, 19)


@pytest.mark.parametrize("is_compacted", [False, True])
async def test_a_compacted_targets_map_keeps_newest_runs(monkeypatch: pytest.MonkeyPatch, is_compacted: bool) -> None:
    """Such a log begins at 0 for ever."""
    monkeypatch.setattr(runs_and_chunks, "MAX_RUNS", 12)
    topics = Topics(monkeypatch)
    store, source_id, target_id = topics.store(), BEGIN.source_topic_id, BEGIN.target_topic_id
    target = TopicPartition(BEGIN.target_topic, BEGIN.target_partition)
    pair = PartitionPair(ORDERS, source_id, target, target_id, is_target_compacted=is_compacted)
    ledger = Ledger([pair])
    await store.load([ORDERS])
    ledger.begin(ORDERS, BEGIN)
    ledger.entries[ORDERS].target_log_start = 0
    for at in range(30):
        append_run(ledger.entries[ORDERS].runs, (11 * at, 10 * at, 10))
    await store.commit(list(ledger.take_commits()))
    _, went, _ = topics.read(by_earlier=False)
    assert len(went) == (120 if is_compacted else 300)
    assert went[11 * 29] == 10 * 29


@pytest.mark.parametrize("scope", [CommitScope.PROGRESS, CommitScope.OFFSETS])
async def test_a_successors_name_changes_no_position(monkeypatch: pytest.MonkeyPatch, scope: CommitScope) -> None:
    topics = Topics(monkeypatch)
    monkeypatch.setattr(stored_positions, "TransactionalWriter", vars(store_module)["TransactionalWriter"])
    writer, position = topics.store(), BEGIN
    await writer.load([ORDERS])
    await writer.commit([Commit(BEGIN)])
    for begin, end in ((0, 30), (30, 40)):
        position = replace(position, next_source_offset=end, target_end=end)
        await writer.commit([Commit(position, [MapRun(begin, begin, end - begin)], scope=scope)])
    others = replace(SETTINGS, transactional_id="other-commit")
    successor = MirrorPositionStore(cast(Cluster, SimpleNamespace(name="eu")), cast(Admin, None), others)
    await successor.fence_predecessors(await successor.load([ORDERS]))
    stored, went, java = topics.read(by_earlier=False)
    assert (stored.position, stored.claimant, went) == (position, "other-commit", {at: at for at in range(40)})
    assert not stored.was_altered(java)


@pytest.mark.parametrize("loads", ["load", "load_more"])
async def test_a_clean_end_between_two_readings_alters_no_offset(monkeypatch: pytest.MonkeyPatch, loads: str) -> None:
    topics = Topics(monkeypatch)
    ours, other = topics.store(), topics.store()
    await other.load([ORDERS])
    await other.commit([Commit(replace(BEGIN, next_source_offset=10, target_end=10), [MapRun(0, 0, 10)])])
    ended = replace(BEGIN, next_source_offset=51, target_end=51, is_handed_over=True)
    read, ends = vars(store_module)["read_to_end"], [Commit(ended, [MapRun(10, 10, 41)])]

    async def racing(cluster: Cluster, topic: str, *rest: Any, **more: Any) -> Any:
        if topic == SETTINGS.map_topic and ends:
            await other.commit([ends.pop()])
        return await read(cluster, topic, *rest, **more)

    monkeypatch.setattr(store_module, "read_to_end", racing)
    monkeypatch.setattr(stored_positions, "read_to_end", racing)
    start = (await getattr(ours, loads)([ORDERS]))[ORDERS]
    assert (start.position, start.committed_source_offset, start.moved) == (ended, 50, False)
    key = status_and_offset_topics.mirror_key(SETTINGS.connector, SETTINGS.source_alias, *ORDERS)
    plain = key, status_and_offset_topics.mirror_value(7)
    await topics.store()._writer.write([OutRecord(SETTINGS.offsets_topic, *plain)])
    start = (await getattr(ours, loads)([ORDERS]))[ORDERS]
    assert (start.committed_source_offset, start.moved) == (7, True), "an operator's is believed"


async def test_others_of_the_loop_have_their_turn_while_thousands_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    topics, partitions = Topics(monkeypatch), 3000
    store = topics.store()
    copied = replace(BEGIN, next_source_offset=5, target_end=5)
    begun = [replace(copied, source_partition=index, target_partition=index) for index in range(partitions)]
    turns, _ = await turns_during(store.commit([Commit(one, ((0, 0, 5),)) for one in begun]))
    assert turns >= 3 * partitions
    moved = [replace(one, next_source_offset=9, target_end=9) for one in begun]
    commits = [Commit(one, ((5, 5, 4),), scope=CommitScope.PROGRESS) for one in moved]
    turns, _ = await turns_during(store.commit(commits))
    assert turns >= 3 * partitions
    assert len(topics.logs[SETTINGS.offsets_topic]) == partitions
    assert sum(decode_kind(one.key) is KeyKind.PROGRESS for one in topics.logs[SETTINGS.map_topic]) == partitions
