"""The header view and its rewrite, for random batches and headers."""

from __future__ import annotations

from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from connect.wire import batch as wire
from connect.wire import records
from tests.kit.logs import source_batch

producer_ids = st.integers(0, 2**63 - 1)
epochs = st.integers(0, 2**15 - 1)
sequences = st.integers(0, 2**31 - 1)


@st.composite
def batches(draw):
    steps = draw(st.lists(st.integers(1, 4), min_size=1, max_size=20))
    offset = draw(st.integers(0, 2**40))
    return source_batch(
        [offset + sum(steps[:i]) for i in range(len(steps))],
        codec=draw(st.integers(0, 4)),
        attributes=draw(st.sampled_from([0, wire.TRANSACTIONAL, wire.DELETE_HORIZON])),
        producer=(draw(producer_ids), draw(epochs), draw(sequences)),
        leader_epoch=draw(st.integers(0, 2**31 - 1)),
    )


@given(batches(), producer_ids, epochs, sequences)
def test_a_rewrite_changes_the_header_only(batch, producer_id, epoch, sequence):
    before = wire.read_header(batch)
    rewritten = bytearray(batch)
    wire.rewrite(memoryview(rewritten), before.codec, producer_id, epoch, sequence)
    after = wire.read_header(rewritten)
    assert (after.base_offset, after.leader_epoch, after.attributes) == (0, -1, before.codec)
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (producer_id, epoch, sequence)
    for name in ("length", "magic", "last_offset_delta", "base_timestamp", "max_timestamp", "record_count"):
        assert getattr(after, name) == getattr(before, name)
    assert rewritten[wire.HEADER_BYTES :] == batch[wire.HEADER_BYTES :]
    # aiokafka's own reader is the judge of the checksum and of the records.
    assert DefaultRecordBatch(bytes(rewritten)).validate_crc()
    moved = [record._replace(offset=record.offset - before.base_offset) for record in records.decode(batch, 2)]
    assert list(records.decode(rewritten, 2)) == moved


@given(batches(), st.data())
def test_any_damage_behind_the_checksum_is_seen(batch, data):
    damaged = bytearray(batch)
    damaged[data.draw(st.integers(21, len(batch) - 1))] ^= data.draw(st.integers(1, 255))
    assert wire.checksum(damaged) != wire.read_header(batch).crc


@given(st.lists(batches(), max_size=5), st.integers(0, 200))
def test_extents_are_the_whole_batches_and_nothing_of_one_cut_off(log, kept_of_last):
    last = source_batch(range(9))[:kept_of_last]
    buffer = b"".join(log) + last
    found = [buffer[start : start + size] for start, size, _ in wire.extents(buffer)]
    assert found == [*log, last] if len(last) == len(source_batch(range(9))) else found == log


@given(sequences, st.integers(0, 2**31 - 1))
def test_sequences_wrap_as_the_brokers_do(sequence, increment):
    following = wire.add_sequence(sequence, increment)
    # Kafka: «if (sequence > Integer.MAX_VALUE - increment) return increment - (MAX_VALUE - sequence) - 1»
    assert following == (sequence + increment if sequence + increment < 2**31 else sequence + increment - 2**31)
