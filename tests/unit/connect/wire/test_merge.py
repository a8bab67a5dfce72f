"""A merged batch holds the records of its parts, as Kafka's clients write them."""

from __future__ import annotations

import random
import struct
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connect.wire import batch, rebase, records
from connect.wire import batch as wire
from connect.wire import merge as merging
from connect.wire.merge import MOST_OPENED_BYTES, PlainRun, Unmergeable, merge, plain_run
from connect.wire.rebase import zigzag

_NOW_MS = 1_700_000_000_000


@pytest.fixture(params=["python", "compiled"], autouse=True)
def _implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test here runs with both, if a compiler was there."""
    if request.param == "python":
        monkeypatch.setattr(merging, "rebase", rebase)
    else:
        monkeypatch.setattr(merging, "rebase", pytest.importorskip("connect.wire._rebase"))


def drawn(chance: random.Random, count: int) -> list[records.Record]:
    """Of every length of length, and of timestamps far from the first one's, both ways."""

    def text(most: int) -> bytes | None:
        return chance.choice([None, b"", chance.randbytes(chance.randrange(most))])

    return [
        records.Record(
            index,
            chance.choice([_NOW_MS, _NOW_MS + chance.randrange(-(10**11), 10**11), 0, batch.NO_TIMESTAMP]),
            text(200),
            text(chance.choice([50, 5000, 40_000])),
            [("header", b"value")] * chance.randrange(3),
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("codec", range(5), ids=wire.CODEC_NAMES)
@pytest.mark.parametrize("seed", range(10))
def test_the_records_of_all_parts_follow_one_another(codec: int, seed: int) -> None:
    chance = random.Random(f"{codec}/{seed}")
    parts = [drawn(chance, chance.choice([1, 1, 2, 150])) for _ in range(chance.randrange(1, 9))]
    built = [memoryview(records.build(part, codec, 9, 9, 9)) for part in parts]
    merged = merge(built, codec, 7, 3, 2**31 - 5)
    header = wire.read_header(merged)
    wanted = [record for part in parts for record in part]
    assert header.crc == wire.checksum(merged)
    assert header.size_bytes == len(merged)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 2**31 - 5)
    assert (header.base_offset, header.leader_epoch, header.magic) == (0, -1, 2)
    assert header.attributes == codec
    assert header.record_count == header.last_offset_delta + 1 == len(wanted)
    assert header.max_timestamp == max(record.timestamp_ms for record in wanted)
    found = list(records.decode(merged, 2))
    assert [record.offset for record in found] == list(range(len(wanted)))
    assert [record[1:] for record in found] == [record[1:] for record in wanted]


@pytest.mark.parametrize(
    ("codec", "level"), [(0, None), (1, None), (1, 9), (2, None), (3, None), (3, 1), (4, None), (4, 19)]
)
def test_a_merged_batch_is_byte_for_byte_what_a_producer_would_have_written(codec: int, level: int | None) -> None:
    wanted = [records.Record(index, _NOW_MS + index, b"key", b"value %d " % index * 9, []) for index in range(300)]
    parts = [memoryview(records.build(wanted[at : at + 7], 0, 1, 1, 1)) for at in range(0, 300, 7)]
    assert merge(parts, codec, 5, 6, 7, level) == records.build(wanted, codec, 5, 6, 7, level)
    assert merge(parts[:1], codec, 5, 6, 7, level) == records.build(wanted[:7], codec, 5, 6, 7, level)


@pytest.mark.parametrize(
    ("number", "bytes_"),
    [
        (0, b"\x00"),
        (-1, b"\x01"),
        (63, b"\x7e"),
        (64, b"\x80\x01"),
        (-64, b"\x7f"),
        (2**63 - 1, b"\xfe" + b"\xff" * 8 + b"\x01"),
    ],
)
def test_numbers_are_zigzag_varints(number: int, bytes_: bytes) -> None:
    assert zigzag(number) == bytes_


@pytest.mark.parametrize("codec", range(5), ids=wire.CODEC_NAMES)
def test_a_batch_that_cannot_be_read_is_named_whatever_the_codec(codec: int) -> None:
    one = records.build([records.Record(0, _NOW_MS, None, b"v" * 100, [])], codec, 1, 1, 1)
    broken = bytearray(one)
    broken[wire.HEADER_BYTES :] = b"\xff" * 5
    with pytest.raises(Unmergeable):
        merge([one, broken], codec, 5, 6, 7)


@pytest.mark.parametrize("codec", [2, 4], ids=["snappy", "zstd"])
def test_what_compresses_too_well_is_not_merged(codec: int) -> None:
    half = MOST_OPENED_BYTES // 2

    def opens_to(size: int, codec: int = codec) -> bytearray:
        return records.build([records.Record(0, _NOW_MS, None, bytes(size), [])], codec, 1, 1, 1)

    beside = len(opens_to(half, 0)) - wire.HEADER_BYTES - half
    merge([opens_to(half - beside)] * 2, codec, 5, 6, 7)
    with pytest.raises(Unmergeable, match=r"exceeds|damaged"):
        merge([opens_to(half - beside), opens_to(half + 99)], codec, 5, 6, 7)


def region(*batches: bytes) -> memoryview:
    return memoryview(bytearray(b"".join(batches)))


def one_at(offset: int, **given: int) -> bytes:
    """A batch of one record at ``offset``, as it lies in a log of leader epoch 5."""
    built = bytearray(records.build([records.Record(0, _NOW_MS + offset, None, b"value", [])], 0, 1, 1, 1))
    struct.pack_into(">q", built, 0, offset)
    struct.pack_into(">i", built, 12, given.get("epoch", 5))
    struct.pack_into(">h", built, 21, given.get("attributes", 0))
    struct.pack_into(">I", built, 17, wire.checksum(built) + given.get("damage", 0))
    return bytes(built)


def run_of(fetched: memoryview, most_batch_bytes: int = 200, most_bytes: int = 10_000) -> PlainRun:
    return plain_run(fetched, 0, wire.read_header(fetched), most_batch_bytes, most_bytes)


def test_a_run_is_what_follows_without_a_gap() -> None:
    batches = [one_at(offset) for offset in range(7, 12)]
    fetched = region(*batches)
    assert run_of(fetched) == (len(fetched), 5, 12, _NOW_MS + 11)
    assert run_of(fetched[:-1]) == (len(fetched) - len(batches[-1]), 4, 11, _NOW_MS + 10)


@pytest.mark.parametrize("given", [{"epoch": 6}, {"attributes": 0x10}, {"attributes": 4}, {"damage": 1}])
def test_a_run_ends_before_what_is_not_like_its_first(given: dict[str, int]) -> None:
    begin = one_at(7) + one_at(8)
    assert run_of(region(begin, one_at(9, **given), one_at(10))) == (len(begin), 2, 9, _NOW_MS + 8)


def test_a_run_ends_before_a_gap_a_large_batch_and_its_bound() -> None:
    begin = one_at(7) + one_at(8)
    assert run_of(region(begin, one_at(10))).batches == 2
    large = bytearray(records.build([records.Record(0, _NOW_MS, None, b"v" * 300, [])], 0, 1, 1, 1))
    struct.pack_into(">qii", large, 0, 9, len(large) - 12, 5)
    assert run_of(region(begin, bytes(large)), most_batch_bytes=200).batches == 2
    assert run_of(region(begin, bytes(large)), most_batch_bytes=500).batches == 3
    assert run_of(region(begin, one_at(9)), most_bytes=len(begin) + 16).batches == 2
    assert run_of(region(begin, one_at(9)), most_bytes=len(begin) + 15).batches == 1
    assert run_of(region(begin, one_at(9)), most_bytes=0).batches == 1


def test_batches_of_a_region_are_merged_as_if_each_were_given_by_itself() -> None:
    batches = [one_at(offset) for offset in range(40)]
    assert merge([region(*batches)], 0, 5, 6, 7) == merge(batches, 0, 5, 6, 7)


@pytest.mark.parametrize("codec", [0, 3, 4])
@pytest.mark.parametrize("last_delta", [1, 3, 2**31 - 1])
def test_a_batch_with_another_number_of_records_than_its_header_says_is_not_merged(codec: int, last_delta: int) -> None:
    right = records.build([records.Record(index, _NOW_MS, None, b"v" * 9, []) for index in range(3)], codec, 1, 1, 1)
    wrong = bytearray(right)
    struct.pack_into(">i", wrong, 23, last_delta)
    for parts in ([right, wrong], [wrong, right], [wrong]):
        with pytest.raises(Unmergeable, match=r"match|exceed|invalid|IndexError"):
            merge(parts, codec, 5, 6, 7)


def holding(payload: bytes, codec: int, count: int) -> bytes:
    """A batch of so many records by its header, whatever its payload holds."""
    built = bytearray(records.build([records.Record(0, _NOW_MS, None, b"", [])], codec, 1, 1, 1)[: wire.HEADER_BYTES])
    struct.pack_into(">i", built, 8, wire.HEADER_BYTES + len(payload) - 12)
    struct.pack_into(">i", built, 23, count - 1)
    struct.pack_into(">i", built, 57, count)
    return bytes(built + payload)


def frame_of(codec: int, *values: bytes) -> bytes:
    """The payload of a batch."""
    found = [records.Record(index, _NOW_MS, None, value, []) for index, value in enumerate(values)]
    return bytes(records.build(found, codec, 1, 1, 1)[wire.HEADER_BYTES :])


@pytest.mark.parametrize("codec", range(5), ids=wire.CODEC_NAMES)
def test_a_batch_does_not_make_up_for_the_number_of_records_of_another(codec: int) -> None:
    more, less = holding(frame_of(codec, b"a", b"b", b"c"), codec, 2), holding(frame_of(codec, b"d"), codec, 2)
    for parts in ([more, less], [less, more]):
        with pytest.raises(Unmergeable):
            merge(parts, codec, 5, 6, 7)


@pytest.mark.parametrize("codec", [3, 4])
@pytest.mark.parametrize("more_bytes", [0, *range(20, 60)])
def test_what_follows_a_frame_hides_no_record_of_another_producer(codec: int, more_bytes: int) -> None:
    """Brokers read a payload to the end of its first frame, so they accept a frame that would be skipped behind it."""
    victim = holding(frame_of(codec, b"true", b"true"), codec, 2)
    skipped = struct.pack("<II", 0x184D2A50, len(victim) - wire.HEADER_BYTES + more_bytes)
    evil = holding(frame_of(codec, b"first") + frame_of(codec, b"false", b"false") + skipped, codec, 1)
    last = holding(struct.pack("<II", 0x184D2A51, 8) + bytes(8) + frame_of(codec, b"last"), codec, 1)
    for parts in ([evil, victim], [evil, victim, last]):
        with pytest.raises(Unmergeable):
            merge(parts, codec, 5, 6, 7)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=6), st.integers(1, 30), st.sampled_from([0, 4]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_records_that_lie_are_merged_into_nothing_else(at: int, noise: bytes, count: int, codec: int) -> None:
    """Either they are refused, or what comes out holds as many records as were counted, within its own bounds."""
    one = records.build([records.Record(0, _NOW_MS, None, b"value", [])], codec, 1, 1, 1)
    built = bytearray(one * count)
    at %= len(built)
    built[at : at + len(noise)] = noise
    built = built[: count * len(one)]
    try:
        merged = merge([memoryview(built)], wire.read_header(built).codec, 5, 6, 7)
    except Unmergeable:
        return
    header = wire.read_header(merged)
    assert header.size_bytes == len(merged)
    assert header.crc == wire.checksum(merged)
    assert header.record_count == header.last_offset_delta + 1


def test_the_latest_timestamp_is_the_records_behind_a_delete_horizon() -> None:
    """The base timestamp of such a batch is the horizon, and lies in the future (KIP-534)."""
    horizon = _NOW_MS + 10**8
    built = bytearray(records.build([records.Record(0, horizon, b"k", None, [])], 0, 1, 1, 1))
    struct.pack_into(">h", built, 21, wire.DELETE_HORIZON)
    struct.pack_into(">q", built, 35, _NOW_MS)
    merged = merge([memoryview(built), one_at(1)], 0, 5, 6, 7)
    assert wire.read_header(merged).max_timestamp == _NOW_MS + 1


@pytest.mark.parametrize("is_same", [True, False])
def test_a_compiled_module_of_another_version_is_left_alone(monkeypatch: pytest.MonkeyPatch, is_same: bool) -> None:
    compiled = ModuleType("compiled")
    vars(compiled)["VERSION"] = rebase.VERSION if is_same else rebase.VERSION + 1
    monkeypatch.setattr("connect.wire.merge.importlib.import_module", lambda _: compiled)
    assert merging._fastest() is (compiled if is_same else rebase)
