"""What a verification between drain and move decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectors.failover.proof import NotProved, proved
from connectors.verification.report import PartitionResult, VerificationResult

EQUAL = VerificationResult("us->eu", 0, 1, {}, (PartitionResult("t", 0, "t", 0, 6, 0, 0, 0, 6, 6, 1),))
LATE = replace(EQUAL, is_complete=False, partitions=(replace(EQUAL.partitions[0], copied_to=2006),))
UNREAD = replace(EQUAL, is_complete=False, unread=("t-1: its broker is silent",))
DIFFERS = replace(EQUAL, partitions=(replace(EQUAL.partitions[0], differences_total=2),))
SO_FAR = "us->eu: no difference so far, 6 records of 1 partition compared; "


@pytest.mark.parametrize("is_whole_wanted", [True, False])
def test_groups_move_with_an_equal_copy_and_never_with_another(*, is_whole_wanted: bool) -> None:
    assert proved(EQUAL, is_whole_wanted=is_whole_wanted) == "us->eu: equal, 6 records of 1 partition compared"
    with pytest.raises(
        NotProved, match=r"2 differences.*No group was moved.*heliograph verify --flow 'us->eu'.*--full"
    ):
        proved(DIFFERS, is_whole_wanted=is_whole_wanted)


@pytest.mark.parametrize(
    ("result", "missing"),
    [
        (LATE, "2,000 records not compared in time"),
        (UNREAD, "t-1: its broker is silent"),
        (replace(EQUAL, is_complete=False), "not all was compared in time"),
    ],
)
def test_what_is_missing_is_named_and_stops_a_move_that_wants_the_whole(
    result: VerificationResult, missing: str
) -> None:
    assert proved(result, is_whole_wanted=False) == SO_FAR + missing
    with pytest.raises(NotProved, match=r"No group was moved\. Run this again"):
        proved(result, is_whole_wanted=True)
