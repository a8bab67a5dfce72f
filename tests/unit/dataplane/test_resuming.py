"""Exact resume over a source that was compacted since: nothing is skipped that was not copied."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from connect.kafka.cluster import Cluster
from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane import lost, reading, resuming
from connectors.dataplane.copier import PartitionCopier
from connectors.dataplane.plan import ProducerIdentity, Proof, SliceSettings
from connectors.dataplane.resuming import Resumed, Resumer
from tests.kit.logs import TargetPartition
from tests.unit.dataplane.test_copier import plan

WRITER = ProducerIdentity(7, 3)
START = 5
#: (offset, timestamp in ms, key, value)
Row = tuple[int, int, bytes, bytes]


def source_batch(rows: Sequence[Row]) -> bytes:
    """A batch as the source hands it out; offsets without a gap."""
    batch = records.build([records.Record(*row, []) for row in rows], 0, -1, -1, -1)
    struct.pack_into(">q", batch, 0, rows[0][0])
    return bytes(batch)


def stamped_by_the_target(batch: bytes) -> bytes:
    """As a LogAppendTime target stores it."""
    stored = bytearray(batch)
    struct.pack_into(">h", stored, 21, struct.unpack_from(">h", stored, 21)[0] | 0x08)
    struct.pack_into(">qq", stored, 27, 555, 555)
    struct.pack_into(">I", stored, 17, wire.checksum(stored))
    return bytes(stored)


class OneBroker:
    """What a :class:`Cluster` is asked for here; connections are known by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def metadata(self, _: object) -> SimpleNamespace:
        return SimpleNamespace(leader=lambda *_: 1)

    async def connection(self, *_: object) -> str:
        return self.name


class Site:
    """The source as it is now, and what a predecessor left at the target."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, compacted: bool = True) -> None:
        self.source: list[bytes] = []
        self.target = TargetPartition(end=0)
        self.is_damaged = False

        async def nothing(*_: object) -> None:
            return None

        async def from_the_start(*_: object) -> int:
            return 0

        async def is_compacted(_: object, topics: set[str]) -> set[str]:
            return topics if compacted else set()

        monkeypatch.setattr(lost, "explain_topic", nothing)
        monkeypatch.setattr(resuming, "list_offset", from_the_start)
        monkeypatch.setattr(resuming, "perhaps_compacted", is_compacted)
        monkeypatch.setattr(reading, "fetch_one", self._fetch)
        monkeypatch.setattr(resuming, "_RETRY_S", 0.0)

    def copied(self, rows: Sequence[Row], *, stamped: bool = False) -> None:
        """By the predecessor, which stored no position behind it."""
        copier = PartitionCopier(plan(next_source_offset=START), WRITER, read_committed=False)
        copier.take(memoryview(bytearray(source_batch(rows))))
        sent = copier.next_batch()
        assert sent is not None
        self.target.append(bytes(sent.batch))
        if stamped:
            self.target.batches[-1] = stamped_by_the_target(self.target.batches[-1])

    async def resume(self, *, hint: int, skip_refused: bool = False) -> Resumed:
        source: Any = OneBroker("source")
        target: Any = OneBroker("target")
        clusters: tuple[Cluster, Cluster] = (source, target)
        settings = SliceSettings("us->eu", 0, {}, {}, skip_refused=skip_refused)
        left = replace(plan(next_source_offset=START, target_end=0), proof=Proof(WRITER, 0, hint))
        return await Resumer(*clusters, settings).resume(left)

    async def _fetch(self, connection: str, _topic: object, _index: int, position: Any, _limits: object) -> Any:
        if connection == "target":
            found, end = self.target.fetch(position[0]), self.target.end
        else:
            wanted = [batch for batch in self.source if wire.read_header(batch).last_offset >= position[0]]
            found = memoryview(bytearray(b"".join(wanted)))
            if self.is_damaged and found:
                found[-1] ^= 1
            end = wire.read_header(self.source[-1]).last_offset + 1
        return SimpleNamespace(error_code=0, records=found, aborted=(), last_stable_offset=end, high_watermark=end)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


@pytest.mark.parametrize("skip_refused", [False, True])
async def test_a_like_of_a_vanished_record_is_no_place(site: Site, skip_refused: bool) -> None:
    """K=up at 5 was copied and has vanished, since it was written again at 1000: 6 to 999 are not at the target."""
    site.copied([(5, 1000, b"K", b"up")], stamped=True)
    site.source = [source_batch([(offset, offset, b"%d" % offset, b"v") for offset in range(6, 1000)])]
    site.source.append(source_batch([(1000, 9999, b"K", b"up")]))
    found = await site.resume(hint=0, skip_refused=skip_refused)
    assert found.plan.next_source_offset == START
    assert found.fallback
    assert not found.verified


async def test_a_count_that_ends_at_a_like_is_no_place(site: Site) -> None:
    """Of three copied all have vanished; the third of those behind is like the third: 8 and 9 are not at the target."""
    site.copied([(5, 998, b"a", b"1"), (6, 999, b"b", b"1"), (7, 1000, b"K", b"up")])
    site.source = [source_batch([(8, 2000, b"c", b"v"), (9, 2001, b"d", b"v"), (10, 1000, b"K", b"up")])]
    found = await site.resume(hint=2)
    assert found.plan.next_source_offset == START
    assert found.fallback


async def test_a_source_that_still_has_all_of_it_is_gone_on_with_behind(site: Site) -> None:
    rows = [(5, 998, b"a", b"1"), (6, 999, b"b", b"1"), (7, 1000, b"c", b"1")]
    site.copied(rows)
    site.source = [source_batch(rows), source_batch([(10, 2000, b"d", b"v")])]
    found = await site.resume(hint=2)
    assert found.plan.next_source_offset == 8
    assert found.verified
    assert found.runs == ((5, 0, 3),)


async def test_a_source_damaged_where_it_is_read_stops_its_partition_only(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, compacted=False)
    rows = [(5, 998, b"a", b"1"), (6, 999, b"b", b"1")]
    site.copied(rows)
    site.source, site.is_damaged = [source_batch(rows)], True
    found = await site.resume(hint=1)
    assert "the checksum of the batch at source offset 5 is wrong" in found.refusal
    assert found.plan.proof is not None
