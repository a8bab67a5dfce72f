"""Java's date patterns; the texts are what ``java.text.SimpleDateFormat`` gives in UTC and English."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.plugins.simple_date_format import BadPattern, NoDate, SimpleDateFormat

DATE = datetime(2020, 2, 9, 15, 4, 5, 67000, UTC)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("yyyy-MM-dd'T'HH:mm:ss.SSSX", "2020-02-09T15:04:05.067Z"), ("yyyyy", "02020"), ("'yyyy'", "yyyy")],
)
def test_dates_as_text(pattern: str, text: str) -> None:
    assert SimpleDateFormat(pattern).format(DATE) == text


@pytest.mark.parametrize(
    ("pattern", "text", "date"),
    [
        ("yyyyMMdd", "20200209", datetime(2020, 2, 9, tzinfo=UTC)),
        ("yyyy-MM-dd", "2020-2-9 and more", datetime(2020, 2, 9, tzinfo=UTC)),
        ("yyyy-MM-dd", "2020-14-32", datetime(2021, 3, 4, tzinfo=UTC)),
        ("dd MMM yyyy hh:mm a", "09 feb 2020 12:30 AM", datetime(2020, 2, 9, 0, 30, tzinfo=UTC)),
        ("yyyy-MM-dd'T'HH:mm:ss.SSSX", "2020-02-09T15:04:05.067Z", DATE),
        ("yyyy-MM-dd HH:mm Z", "2020-02-09 15:04 +0130", datetime(2020, 2, 9, 13, 34, tzinfo=UTC)),
        ("yyyy-MM-dd HH:mm z", "2020-02-09 15:04 GMT-02:00", datetime(2020, 2, 9, 17, 4, tzinfo=UTC)),
        ("yy", "41", datetime(1941, 1, 1, tzinfo=UTC)),
        ("yy", "39", datetime(2039, 1, 1, tzinfo=UTC)),
        ("yyyy DDD", "2020 060", datetime(2020, 2, 29, tzinfo=UTC)),
        ("HH:mm", "01:02", datetime(1970, 1, 1, 1, 2, tzinfo=UTC)),
    ],
)
def test_texts_as_dates(pattern: str, text: str, date: datetime) -> None:
    assert SimpleDateFormat(pattern).parse(text, century_start=1940) == date


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yyyyMMdd", "202002"),
        ("yyyyMMdd", "text"),
        ("MMM", "Foo"),
        ("yyyy-MM", "2020/02"),
        ("yyyy", "99999"),
        ("Z", "x"),
    ],
)
def test_texts_that_are_no_dates(pattern: str, text: str) -> None:
    with pytest.raises(NoDate, match="is not a date in the format"):
        SimpleDateFormat(pattern).parse(text)


@pytest.mark.parametrize("pattern", ["b", "yyyy'", "YYYY", "ww"])
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        SimpleDateFormat(pattern)


@given(st.integers(0, 4_000_000_000_000))
def test_dates_come_back(milliseconds: int) -> None:
    date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    for pattern in ("yyyy-MM-dd'T'HH:mm:ss.SSSX", "yyyyMMddHHmmssSSS", "EEE, d MMMM yyyy hh:mm:ss a SSS"):
        assert SimpleDateFormat(pattern).parse(SimpleDateFormat(pattern).format(date)) == date
