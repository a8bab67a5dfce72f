"""The judge of moved consumers sees what was processed twice, or not at all."""

from __future__ import annotations

import pytest

from tests.kit.moving import Processed, not_once

A1, A2, B1, B2 = (Processed(key, value) for key, value in ((b"a", b"1"), (b"a", b"2"), (b"b", b"3"), (b"b", b"4")))
WRITTEN = [A1, B1, A2, B2]


@pytest.mark.parametrize(
    ("processed", "plain", "compacted"),
    [
        ([A1, B1, A2, B2], 0, 0),
        ([A2, B2, A1, B1], 0, 0),  # which cluster comes first is not looked at
        ([A1, B1, B1, A2, B2], 1, 1),
        ([A1, A2, B2], 1, 0),  # a later record of its key was processed
        ([A1, B1, A2], 1, 1),  # none was
        ([], 4, 4),
        ([*WRITTEN, Processed(b"c", b"9")], 1, 1),
    ],
)
def test_each_record_once(processed: list[Processed], plain: int, compacted: int) -> None:
    assert len(not_once(processed, WRITTEN, is_compacted=False)) == plain
    assert len(not_once(processed, WRITTEN, is_compacted=True)) == compacted
