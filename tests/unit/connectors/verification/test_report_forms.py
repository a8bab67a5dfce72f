"""The three forms of a report: what they show, and that a change is noticed."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from connect.core.errors import PermanentError
from connectors.verification.report import (
    Difference,
    DifferenceKind,
    ExplainedRange,
    PartitionResult,
    RangeReason,
    ReadSample,
    UndecidedReason,
    VerificationResult,
    coverage,
    explanations,
    headline,
)
from connectors.verification.report_forms import digest, page, read_report, to_document, to_text
from tests.kit.documented import blocks

AT_MS = 1_795_745_656_053
HOSTILE = "</script><script>alert(1)</script>\x1b[31m"
CHANGED = Difference(DifferenceKind.CHANGED, "orders", 0, 4711, 4718, f"value: {HOSTILE!r} against 'b'", ("value",))
MISSING = Difference(DifferenceKind.MISSING, "orders", 0, 5000, None, HOSTILE)


def part(topic: str = "orders", partition: int = 0, **more: Any) -> PartitionResult:
    known: dict[str, Any] = {"records": 900, "bytes": 90_000, "same_bytes": 45_000}
    known |= {"verified_from": 0, "verified_to": 1000}
    places = {"copied_to": 1000, "verified_ms": AT_MS}
    return PartitionResult(topic, partition, f"us.{topic}", partition, **{**known, **places, **more})


RESULT = VerificationResult(
    "us->eu",
    AT_MS,
    AT_MS + 3000,
    {"topics": "orders"},
    (
        part(differences=(CHANGED, MISSING), differences_total=12),
        part("ledger", explained=(ExplainedRange("ledger", 0, 100, 180, RangeReason.ABORTED, records=81),)),
        part("ledger", 1, verified_to=500),
        part("a-" + "very-" * 20 + "long-name"),
    ),
    is_complete=False,
    read_bytes=360_000,
    read_s=2.5,
    unread=("topic gone does not exist at eu.",),
    samples=(ReadSample(AT_MS + 1000, 100_000), ReadSample(AT_MS + 2000, 300_000)),
)


def test_text_fits_a_terminal_and_holds_no_command_of_one() -> None:
    text = to_text(RESULT, digest(RESULT))
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert text.index("4,711") < text.index("aborted transactions") < text.index("Topics")
    assert "and 10 more; the JSON and HTML reports name 2" in text


def test_the_headline_claims_equal_only_of_all_that_was_copied() -> None:
    equal = VerificationResult("us->eu", 0, 0, {}, (part(),))
    assert headline(equal) == "us->eu: equal, 900 records of 1 partition compared"
    assert "no difference so far" in headline(VerificationResult("us->eu", 0, 0, {}, (part(),), is_complete=False))


@pytest.mark.parametrize("form", [page, lambda result: to_text(result, digest(result))])
def test_what_is_undecided_is_named_with_its_reason_and_is_no_difference(form) -> None:
    reasons = UndecidedReason.BEFORE_MAP, UndecidedReason.TOMBSTONE
    some = tuple(Difference(DifferenceKind.EXTRA, "orders", 0, None, 77, HOSTILE, undecided=one) for one in reasons)
    result = VerificationResult("us->eu", 0, 0, {}, (part(undecided=some, undecided_total=5),))
    assert result.is_equal
    assert headline(result) == "us->eu: equal, 5 undecided, 900 records of 1 partition compared"
    made = form(result)
    words = " ".join(made.split())
    assert all(one in words for one in (*reasons, "extra", "77", "3 more"))
    assert "\x1b" not in made or made.startswith("<!doctype")
    assert max(map(len, made.splitlines())) <= 80 or made.startswith("<!doctype")
    assert read_report(page(result)) == result


def test_ranges_and_partitions_are_summed_up() -> None:
    ledger = next(one for one in coverage(RESULT) if one.topic == "ledger")
    assert (ledger.compared, ledger.explained, ledger.left) == (1000 - 81 + 500, 81, 500)
    (aborted,) = explanations(RESULT)
    assert (aborted.ranges, aborted.offsets, aborted.records) == (1, 81, 81)


def test_a_page_needs_nothing_from_elsewhere_and_runs_nothing() -> None:
    made = page(RESULT)
    assert re.findall(r"<script[^>]*>", made) == ['<script type="application/json" id="report">']
    assert not re.search(r"(src|href)=|url\(|@import", made)
    assert made.index("4,711") < made.index("aborted transactions") < made.index("Coverage")


@pytest.mark.parametrize("form", [page, lambda result: json.dumps(to_document(result), indent=2)])
def test_a_report_can_be_checked_and_a_change_is_noticed(form) -> None:
    made = form(RESULT)
    assert read_report(made) == RESULT
    with pytest.raises(PermanentError, match="SHA-256"):
        read_report(made.replace('"differences_total": 12', '"differences_total": 0'))


def test_a_report_as_text_is_refused_with_what_can_be_checked() -> None:
    with pytest.raises(PermanentError, match=r"JSON or HTML.* --report verified\.json"):
        read_report(to_text(RESULT, digest(RESULT)))


def test_a_page_that_shows_something_else_than_its_data_is_refused() -> None:
    with pytest.raises(PermanentError, match="the page is not what"):
        read_report(page(RESULT).replace("12 differences", "no differences"))


@pytest.mark.skipif(shutil.which("jq") is None, reason="another program")
def test_another_program_computes_the_sum_as_verify_md_says(tmp_path: Path) -> None:
    (command,) = (text.splitlines()[0] for _, text in blocks("verify.md") if text.startswith("jq "))
    (tmp_path / "verified.json").write_text(json.dumps(to_document(RESULT)))
    found = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.split()[0] == digest(RESULT)
