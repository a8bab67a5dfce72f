"""Which syncs runs make due, against Java's rule record by record; what waits, and in which order."""

from hypothesis import given
from hypothesis import strategies as st

from connectors.formats.mirror_records import OffsetSync
from connectors.formats.types import Run, TopicPartition
from connectors.source.offset_sync_writer import PendingOffsetSyncs, SyncedPartition

ORDERS = TopicPartition("orders", 0)
CLICKS = TopicPartition("clicks", 3)
ALL = 1_000_000


class RecordByRecord:
    """Java's ``OffsetSyncWriter.PartitionState`` and ``maybeQueueOffsetSyncs``, told of single records."""

    def __init__(self, lag_max: int) -> None:
        self.lag_max = lag_max
        self.upstream = self.downstream = self.synced = -1
        self.due: list[int] = []
        self.delayed: tuple[int, int] | None = None

    def take(self, upstream: int, downstream: int) -> None:
        if (
            self.synced == -1
            or downstream - (self.synced + 1) >= self.lag_max
            or upstream - self.upstream != 1
            or downstream < self.downstream
        ):
            self.synced = downstream
            self.due.append(upstream)
            self.delayed = None
        else:
            self.delayed = (upstream, downstream)
        self.upstream, self.downstream = upstream, downstream


@st.composite
def histories(draw: st.DrawFn) -> list[Run]:
    """Runs one behind the other, with gaps in either log, and steps back in either."""
    runs: list[Run] = []
    upstream, downstream = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 12))):
        count = draw(st.integers(1, 40))
        runs.append((upstream, downstream, count))
        upstream = max(upstream + count + draw(st.sampled_from((0, 0, 0, 1, 7, -3, -60))), 0)
        downstream = max(downstream + count + draw(st.sampled_from((0, 0, 0, 1, 5, -3, -60))), 0)
    return runs


@given(histories(), st.sampled_from((-3, 0, 1, 2, 7, 100)))
def test_runs_make_due_what_records_make_due(runs: list[Run], lag_max: int) -> None:
    twin, state, due = RecordByRecord(lag_max), SyncedPartition(), list[int]()
    for run in runs:
        due += state.advance(run, lag_max)
        for at in range(run[2]):
            twin.take(run[0] + at, run[1] + at)
    assert due == twin.due
    assert (state.upstream, state.downstream, state.synced_downstream) == (twin.upstream, twin.downstream, twin.synced)


@given(histories(), st.sampled_from((0, 1, 7, 100)))
def test_what_waits_ends_with_javas(runs: list[Run], lag_max: int) -> None:
    """Java keeps the last sync of a partition that waits, and so is ours the last; at a commit the delayed one."""
    twin, syncs = RecordByRecord(lag_max), PendingOffsetSyncs(lag_max)
    for run in runs:
        syncs.acknowledged(ORDERS, [run])
        before = len(twin.due)
        for at in range(run[2]):
            twin.take(run[0] + at, run[1] + at)
        waiting = syncs.take(ALL)
        assert [sync.upstream_offset for sync in waiting][-1:] == twin.due[before:][-1:]
        assert all(sync.downstream_offset - sync.upstream_offset == run[1] - run[0] for sync in waiting)
        assert len(waiting) <= 64
    syncs.commit()
    last = [(sync.upstream_offset, sync.downstream_offset) for sync in syncs.take(ALL)]
    assert last == ([] if twin.delayed is None else [twin.delayed])


def offsets(syncs: list[OffsetSync]) -> list[tuple[int, int]]:
    return [(sync.upstream_offset, sync.downstream_offset) for sync in syncs]


def test_a_quiet_partition_is_synced_to_its_end_at_a_commit() -> None:
    syncs = PendingOffsetSyncs(100)
    syncs.acknowledged(ORDERS, [(10, 20, 5)])
    assert offsets(syncs.take(ALL)) == [(10, 20)]
    syncs.commit()
    assert offsets(syncs.take(ALL)) == [(14, 24)]
    syncs.commit()
    assert syncs.take(ALL) == []


def test_what_was_not_written_comes_before_what_is_newer() -> None:
    syncs = PendingOffsetSyncs(0)
    syncs.acknowledged(ORDERS, [(0, 0, 3)])
    syncs.acknowledged(CLICKS, [(7, 9, 1)])
    taken = syncs.take(2)
    assert offsets(taken) == [(0, 0), (1, 1)]
    syncs.acknowledged(ORDERS, [(3, 3, 1)])
    syncs.give_back(taken)
    left = syncs.take(ALL)
    assert offsets([sync for sync in left if sync.topic == "orders"]) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert [sync for sync in left if sync.topic == "clicks"] == [OffsetSync("clicks", 3, 7, 9)]


def test_a_step_back_makes_what_waits_worthless() -> None:
    syncs = PendingOffsetSyncs(0)
    syncs.acknowledged(ORDERS, [(0, 0, 3), (1, 5, 1)])
    assert offsets(syncs.take(ALL)) == [(1, 5)]


def test_few_wait_and_the_newest_are_closest() -> None:
    syncs = PendingOffsetSyncs(0)
    syncs.acknowledged(ORDERS, [(0, 10, 1_000_000_000)])
    for at in range(1_000_000_000, 1_000_001_000):
        syncs.acknowledged(ORDERS, [(at, at + 10, 1)])
    waiting = [sync.upstream_offset for sync in syncs.take(ALL)]
    assert len(waiting) <= 64
    assert waiting[-20:] == list(range(1_000_000_980, 1_000_001_000))
    assert waiting == sorted(waiting)
    assert waiting[0] < 1_000_000_000 // 10


def test_a_partition_that_leaves_takes_all_of_its_syncs_along() -> None:
    syncs = PendingOffsetSyncs(100)
    syncs.acknowledged(ORDERS, [(10, 20, 5)])
    syncs.acknowledged(CLICKS, [(7, 9, 3)])
    taken = syncs.take(1)
    assert offsets(taken) == [(10, 20)]
    assert offsets(syncs.leave([ORDERS])) == [(14, 24)], "the delayed one too"
    syncs.give_back(taken)
    syncs.commit()
    assert {sync.topic for sync in syncs.take(ALL)} == {"clicks"}, "what failed meanwhile would come too late"
    syncs.acknowledged(ORDERS, [(30, 40, 5)])
    assert offsets(syncs.take(ALL)) == [(30, 40)], "it is here again, and due at once"


def test_of_many_the_newest_of_each_partition_can_be_kept() -> None:
    syncs = PendingOffsetSyncs(0)
    syncs.acknowledged(ORDERS, [(0, 0, 3)])
    syncs.acknowledged(CLICKS, [(7, 9, 2)])
    assert syncs.waiting() == 5
    syncs.keep_newest()
    assert offsets(syncs.take(ALL)) == [(2, 2), (8, 10)]
