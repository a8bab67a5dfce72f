"""A copier against a model of its target's leader: takes, sends, arrivals and answers in any order, and restarts."""

from __future__ import annotations

import copy
import random
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane import resume
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.batches.fetched_batches import opened
from connectors.dataplane.batches.outgoing_batches import Outgoing
from connectors.formats.types import Compression, ProducerIdAndEpoch, ResumeProof, Run
from tests.kit.logs import (
    FENCED,
    TargetPartition,
    control_batch,
    fetched,
    fetched_from,
    held,
    plan,
    settle,
    source_batch,
)

OLD = ProducerIdAndEpoch(7, 3)
NEW = ProducerIdAndEpoch(7, 5)
_LACKS_REPLICAS = 19


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """Source batches with gaps between and inside, codecs mixed, markers strewn in."""
    offset, out = draw(st.integers(0, 5)), list[bytes]()
    for _ in range(draw(st.integers(1, 12))):
        if draw(st.integers(0, 5)) == 0:
            out.append(control_batch(offset, 9, commit=True))
            offset += 1
            continue
        steps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 5]), min_size=1, max_size=6))
        offsets = [offset + sum(steps[:i]) for i in range(len(steps))]
        codec = draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4]))
        out.append(source_batch(offsets, codec=codec, leader_epoch=len(out) // 4))
        offset = offsets[-1] + 1 + draw(st.sampled_from([0, 0, 0, 3]))
    return out


class Course:
    """A copier, what is under way to its leader and back, and the runs that it has reported."""

    def __init__(self, log: Sequence[bytes], chance: random.Random, first_sequence: int | None, **given: Any) -> None:
        """``first_sequence``: of a producer that the leader does not know; None: a marker has made it known."""
        self.log, self.chance, self.target = log, chance, TargetPartition()
        self.end = wire.read_header(log[-1]).last_offset + 1
        self.data = [one for batch in log if not wire.read_header(batch).is_control for one in records.decode(batch, 2)]
        if is_known := first_sequence is None:
            self.target.mark(OLD.producer_id, OLD.epoch - 1)
        self.plan = plan(target_end=self.target.end, next_sequence=first_sequence or 0, pipelined=is_known)
        self.copier = PartitionCopier(self.plan, OLD, read_committed=False, **given)
        self.requests: deque[Outgoing] = deque()
        self.answers: deque[tuple[Outgoing, int | None, int]] = deque()
        #: Requests of connections that are closed.
        self.late: deque[bytes] = deque()
        self.runs: list[Run] = []

    @property
    def is_over(self) -> bool:
        copier = self.copier
        is_idle = not (copier.faulted or copier.has_unsent or copier.has_unacknowledged)
        return is_idle and copier.fetch_offset == self.end

    def steps(self) -> Iterator[Callable[[], object]]:
        """What may happen next."""
        copier = self.copier
        yield copier.reset_pipelining_if_idle
        if copier.fetch_offset < self.end and not copier.gave_back:
            yield self.take
        if copier.has_unsent:
            yield from [self.send] * 3
        if self.requests:
            yield from [self.arrive] * 3
        if self.answers:
            yield from [self.answer] * 3
        if self.requests or self.answers:
            yield self.cut
        if self.late:
            yield lambda: self.target.append(self.late.popleft())
        if copier.faulted:
            yield lambda: copier.give_back(self.chance.randrange(3))
            if not copier.unanswered:
                yield lambda: settle(copier, self.target, OLD.producer_id)

    def take(self) -> None:
        behind = [batch for batch in self.log if wire.read_header(batch).last_offset >= self.copier.fetch_offset]
        self.copier.take(fetched(*behind[: self.chance.randint(1, 5)]))

    def send(self) -> None:
        if (outgoing := self.copier.next_batch(self.chance.choice([0.0, 1.0]))) is not None:
            self.requests.append(outgoing)

    def arrive(self) -> None:
        outgoing = self.requests.popleft()
        refused = self.chance.random() < 0.1
        error, base = (_LACKS_REPLICAS, -1) if refused else self.target.append(bytes(outgoing.batch))
        self.answers.append((outgoing, error, base))

    def answer(self) -> None:
        outgoing, error, base = self.answers.popleft()
        if error:
            self.copier.failed(outgoing, error)
        else:
            self.copier.acknowledged(outgoing, base)

    def cut(self) -> None:
        """Close the connection; some of its requests arrive later."""
        for outgoing, _, _ in self.answers:
            self.copier.failed(outgoing, None)
        held_back = self.chance.randint(0, len(self.requests))
        for index, outgoing in enumerate(self.requests):
            if index < held_back:
                self.late.append(bytes(outgoing.batch))
            self.copier.failed(outgoing, None)
        self.answers.clear()
        self.requests.clear()

    def check_position(self) -> None:
        """It covers what is at the target up to its end, and nothing else."""
        copier = self.copier
        report = copier.report()
        self.runs += report.runs if report else []
        assert values(one for one in self.target.records() if one.offset < copier.target_end) == values(
            one for one in self.data if one.offset < copier.next_source_offset
        )

    def check_successor(self, *, recompresses: bool) -> None:
        """One that begins at the position now counts what arrived, and copies the rest."""
        copier, target = self.copier, copy.deepcopy(self.target)
        under_way = [*self.late, *(bytes(outgoing.batch) for outgoing in self.requests)]
        in_time = self.chance.randint(0, len(under_way))
        for batch in under_way[:in_time]:
            target.append(batch)
        target.mark(NEW.producer_id, NEW.epoch - 1)
        assert all(target.append(batch)[0] == FENCED for batch in under_way[in_time:])
        if recompresses:
            target.batches = [recompress(batch) for batch in target.batches]
        scan = resume.TargetScan(ResumeProof(OLD, copier.next_sequence, True), copier.target_end, 0)
        scan.take(target.fetch(scan.start), scan.start)
        assert (scan.doubt, scan.is_over, scan.is_another_log, scan.end) == ("", True, False, target.end)
        source_scan = resume.SourceScan(copier.next_source_offset, scan.arrived)
        for part in opened(fetched_from(self.log, source_scan.position), source_scan.position, None):
            if source_scan.remaining:
                source_scan.take(part.records, part.following, part.leader_epoch)
        assert source_scan.remaining == 0
        assert source_scan.fingerprint.equals(scan.fingerprint, ignore_timestamps=False)
        found = resume.exact(self.plan, scan, source_scan)
        behind_fence = replace(found.plan, next_sequence=0, pipelined=True)
        following = PartitionCopier(behind_fence, NEW, read_committed=False)
        following.take(fetched_from(self.log, source_scan.position))
        while (outgoing := following.next_batch()) is not None:
            following.acknowledged(outgoing, target.append(bytes(outgoing.batch))[1])
        report = following.report()
        assert held(target) == [(one.key, one.value, one.headers, one.timestamp_ms) for one in self.data]
        self.check_runs(target, [*self.runs, *found.runs, *(report.runs if report else [])])

    def check_runs(self, target: TargetPartition, runs: Sequence[Run]) -> None:
        by_offset = {one.offset: one.value for one in target.records()}
        mapped = [(up + i, by_offset[down + i]) for up, down, count in runs for i in range(count)]
        assert mapped == [(one.offset, one.value) for one in self.data]


def values(found: Iterator[records.Record]) -> list[bytes | None]:
    return [one.value for one in found]


def recompress(batch: bytes) -> bytes:
    """As a target with a compression.type of its own stores it: other codec and size, same producer and sequences."""
    header = wire.read_header(batch)
    if header.is_control:
        return batch
    built = records.build(
        list(records.decode(batch, 2)), 4, header.producer_id, header.producer_epoch, header.base_sequence
    )
    struct.pack_into(">q", built, 0, header.base_offset)
    return bytes(built)


@given(
    logs(),
    st.integers(0, 2**32),
    st.none() | st.integers(0, 2**31 - 1),
    st.sampled_from([0, 300, 2000]),
    st.sampled_from([0, 0, 4]),
    st.booleans(),
)
def test_at_every_moment_a_successor_continues_exactly(
    log: list[bytes], seed: int, first_sequence: int | None, batch_bytes: int, codec: int, recompresses: bool
) -> None:
    chance = random.Random(seed)
    course = Course(log, chance, first_sequence, batch_bytes=batch_bytes, compression=Compression(codec))
    for _ in range(10_000):
        chance.choice(list(course.steps()))()
        course.check_position()
        course.check_successor(recompresses=recompresses)
        if course.is_over:
            break
    assert course.is_over
    assert course.copier.next_source_offset == course.end
    assert held(course.target) == [(one.key, one.value, one.headers, one.timestamp_ms) for one in course.data]
    course.check_runs(course.target, course.runs)
