"""The judge of ``heliograph verify``: what is overlooked, misnamed or invented is a fault; and damage keeps offsets."""

from dataclasses import replace
from pathlib import Path

import pytest

from connect.wire import batch as wire
from connect.wire import records
from connectors.verification.report import Difference, DifferenceKind, PartitionResult, VerificationResult
from tests.kit.verify.damage import Kind, Planted
from tests.kit.verify.judge import judge
from tests.kit.verify.segments import Original, batches, rebuilt

VALUE = Planted(Kind.VALUE, "plain", 0, 10, 12)
FOUND = Difference(DifferenceKind.CHANGED, "plain", 0, 10, 12, "", ("value",))


def result(*differences: Difference) -> VerificationResult:
    part = PartitionResult("plain", 0, "us.plain", 0, 100, 0, 0, 0, 100, 100, 0, differences, len(differences))
    return VerificationResult("us->eu", 0, 0, {}, (part,))


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ((FOUND,), []),
        ((), ["not found"]),
        ((replace(FOUND, fields=("key",)),), ["not found", "invented"]),
        ((replace(FOUND, target_offset=13),), ["not found", "invented"]),
        ((FOUND, FOUND), ["reported more than once"]),
        ((FOUND, replace(FOUND, source_offset=50, target_offset=52)), ["invented"]),
    ],
)
def test_each_damage_must_be_named_once_and_nothing_else(differences: tuple[Difference, ...], words: list[str]) -> None:
    faults = judge([VALUE], result(*differences))
    assert [fault.startswith(word) for fault, word in zip(faults, words, strict=True)] == [True] * len(words)


def test_an_unfinished_run_proves_nothing() -> None:
    assert judge([], replace(result(), is_complete=False, unread=("plain-0: gone",))) != []


@pytest.mark.parametrize("codec", range(5))
def test_a_damaged_batch_keeps_its_offsets_and_its_checksum(codec: int, tmp_path: Path) -> None:
    made = [records.Record(at, 1000 + at, b"k%d" % at, None if at == 3 else b"v", [("h", None)]) for at in range(6)]
    data = bytes(records.build(made, codec, 7, 0, 40))
    log = tmp_path / "data" / "t-0"
    log.mkdir(parents=True)
    (log / "00000000000000000000.log").write_bytes(data)
    (log / "00000000000000000000.index").touch()
    original = Original(tmp_path / "data", tmp_path / "kept")
    (before,) = batches(original.keep("t-0"))
    original.write("t-0", {0: rebuilt(before, [*made[:2], *made[3:]])})
    (after,) = batches([log / "00000000000000000000.log"])
    assert after.records() == [*made[:2], *made[3:]]
    assert wire.checksum(after.data) == after.header.crc
    assert after.header.last_offset == before.header.last_offset
    assert not (log / "00000000000000000000.index").exists()
    original.write("t-0", {})
    assert (log / "00000000000000000000.log").read_bytes() == data
