"""Which task has which partition, and where new ones begin."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.kafka.cluster import Cluster
from connect.kafka.log.offsets import EARLIEST
from connectors.formats.types import TopicPartition
from connectors.topic_sync import partition_assignment
from connectors.topic_sync.partition_assignment import (
    assign,
    assigned_before,
    encode_partitions,
    warn_of_skipped_backlog,
)

POOL = [TopicPartition(topic, index) for topic in ("a", "b-c", "d") for index in range(5)]
SETS = st.sets(st.sampled_from(POOL))
TASKS = st.integers(1, 6)


def shares(found: list[list[TopicPartition]]) -> list[str]:
    return [encode_partitions(share) for share in found]


def test_the_first_assignment_is_round_robin_as_in_java() -> None:
    assert shares(assign(POOL[:5], 2)) == ["a-0,a-2,a-4", "a-1,a-3"]
    assert assign([], 3) == []
    assert shares(assign(POOL[:1], 3, [[TopicPartition("gone", 0)]])) == ["a-0"]


def test_what_comes_goes_to_the_emptiest_and_the_others_stay() -> None:
    before = assign(POOL[:5], 2)
    assert shares(assign(POOL[:7], 2, before)) == ["a-0,a-2,a-4,b-c-0", "a-1,a-3,b-c-1"]
    assert shares(assign([one for one in POOL[:5] if one != POOL[0]], 2, before)) == ["a-2,a-4", "a-1,a-3"]


@given(wanted=SETS, before=st.lists(SETS, max_size=6), tasks_max=TASKS)
def test_complete_disjoint_balanced_and_with_the_fewest_moves(
    wanted: set[TopicPartition], before: list[set[TopicPartition]], tasks_max: int
) -> None:
    found = assign(sorted(wanted), tasks_max, before)
    assert sorted(one for share in found for one in share) == sorted(wanted)
    assert len(found) == min(tasks_max, len(wanted))
    if not found:
        return
    sizes = [len(share) for share in found]
    assert max(sizes) - min(sizes) <= 1
    assert all(share == sorted(share) for share in found)
    # What a task has in excess of the largest share that balance allows it moves, and nothing else.
    seen: set[TopicPartition] = set()
    kept = []
    for own in before[: len(found)]:
        kept.append((own & wanted) - seen)
        seen |= own & wanted
    kept += [set()] * (len(found) - len(kept))
    if any(kept):
        least, more = divmod(len(wanted), len(found))
        full = sorted((len(own) for own in kept), reverse=True)
        stay = sum(min(size, least + (rank < more)) for rank, size in enumerate(full))
        assert sum(len(own & set(share)) for own, share in zip(kept, found, strict=True)) == stay


def test_the_last_assignment_is_read_from_task_configs() -> None:
    configs = [{"task.assigned.partitions": "a-0,b-c-3"}, {}, {"task.assigned.partitions": "nonsense"}]
    assert assigned_before(configs) == [[TopicPartition("a", 0), TopicPartition("b-c", 3)], [], []]


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Its logs begin at offset 5."""

    async def list_offsets(_: object, partitions: Sequence[TopicPartition], at: int) -> dict[TopicPartition, int]:
        assert at == EARLIEST
        return dict.fromkeys(partitions, 5)

    monkeypatch.setattr(partition_assignment, "list_offsets", list_offsets)
    return cast(Cluster, SimpleNamespace(name="source"))


async def test_records_left_out_are_told_in_one_line(source: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    ends = {TopicPartition("orders", number): 7 + number for number in range(8)} | {TopicPartition("empty", 0): 5}
    await warn_of_skipped_backlog(source, ends)
    (reported,) = caplog.messages
    assert reported == (
        "cluster source: no offset is stored for 8 partitions that have records, and auto.offset.reset = latest skips "
        "these records: orders-0 at offset 7, orders-1 at offset 8, orders-2 at offset 9, orders-3 at offset 10, "
        "orders-4 at offset 11 and 3 more; with earliest they would be copied"
    )


async def test_nothing_is_told_of_logs_without_records(source: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    await warn_of_skipped_backlog(source, {TopicPartition("empty", 0): 5})
    await warn_of_skipped_backlog(source, {})
    assert not caplog.messages
