"""What a predecessor wrote, as the proof of a copy that transforms looks at it."""

from __future__ import annotations

from connect.wire import records
from connectors.dataplane.alignment import Alignment, SurplusRecords, digest_of
from connectors.dataplane.plan import ProducerIdentity, Proof
from tests.kit.logs import source_batch


def test_a_place_within_a_batch_is_of_that_batchs_leader_epoch() -> None:
    """Under the epoch of the batch before, the source would seem to have parted from what was read (KIP-320)."""
    before, last = source_batch([5, 6], leader_epoch=3), source_batch([7, 8, 9], leader_epoch=4)
    written = SurplusRecords(Proof(ProducerIdentity(-1, -1), 0, None))
    for batch in (before, last):
        for record in records.decode(batch, 2):
            if record.offset < 9:
                written.digests.append(digest_of(record))
                written.offsets.append(record.offset)
                written.timestamps_ms.append(record.timestamp_ms)
    walk = Alignment(5, written, read_committed=False)
    walk.take(memoryview(bytearray(before + last)), ())
    assert (walk.is_complete, walk.position, walk.source_epoch) == (True, 9, 4)
