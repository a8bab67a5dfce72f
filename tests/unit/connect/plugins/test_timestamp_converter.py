"""TimestampConverter, after the vectors of Java's ``TimestampConverterTest``."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from connect.api.convert import DataError
from connect.api.source import OPTIONAL_STRING, STRING, Schema, SourceRecord
from connect.core.errors import ConfigError
from connect.plugins import cast_and_timestamp_transforms
from connect.plugins.java_values import DATE, TIME, TIMESTAMP

FORMAT = "yyyy MM dd HH mm ss SSS z"
MOMENT = datetime(1970, 1, 2, 0, 0, 1, 234000, UTC)
TEXT = "1970 01 02 00 00 01 234 UTC"
UNIX = 86_401_234
INT64 = Schema("int64")


def converter(**settings: str) -> cast_and_timestamp_transforms.TimestampConverter:
    made = cast_and_timestamp_transforms.TimestampConverterValue()
    made.configure({key.replace("_", "."): value for key, value in settings.items()})
    return made


def record(value: Any, schema: Schema | None = None) -> SourceRecord:
    return SourceRecord({}, {}, "t", value, schema)


@pytest.mark.parametrize("value", [MOMENT, UNIX, TEXT])
@pytest.mark.parametrize(
    ("target", "written"),
    [
        ("Timestamp", MOMENT),
        ("Date", datetime(1970, 1, 2, tzinfo=UTC)),
        ("Time", datetime(1970, 1, 1, 0, 0, 1, 234000, UTC)),
        ("unix", UNIX),
        ("string", TEXT),
    ],
)
def test_each_form_to_each_other(value: Any, target: str, written: Any) -> None:
    assert converter(target_type=target, format=FORMAT).apply(record(value)).value == written


@pytest.mark.parametrize(
    ("value", "schema", "target", "new_schema"),
    [
        (UNIX, INT64, "Timestamp", TIMESTAMP),
        (MOMENT, TIMESTAMP, "unix", INT64),
        (TEXT, OPTIONAL_STRING, "Date", replace(DATE, optional=True)),
        (MOMENT, DATE, "string", STRING),
        (MOMENT, TIME, "Time", TIME),
        (None, OPTIONAL_STRING, "unix", Schema("int64", optional=True)),
    ],
)
def test_schemas_follow(value: Any, schema: Schema, target: str, new_schema: Schema) -> None:
    after = converter(target_type=target, format=FORMAT).apply(record(value, schema))
    assert after.value_schema == new_schema


def test_a_field_of_a_map_and_of_a_struct() -> None:
    made = converter(target_type="unix", field="ts")
    assert made.apply(record({"ts": MOMENT, "x": 1})).value == {"ts": UNIX, "x": 1}
    assert made.apply(record({"x": 1})).value == {"x": 1, "ts": None}
    schema = Schema("struct", fields=(("x", INT64), ("ts", TIMESTAMP)))
    after = made.apply(record({"x": 1, "ts": MOMENT}, schema))
    assert after.value == {"x": 1, "ts": UNIX}
    assert after.value_schema == Schema("struct", fields=(("x", INT64), ("ts", INT64)))
    assert made.apply(record(None, schema)).value is None


def test_keys() -> None:
    made = cast_and_timestamp_transforms.TimestampConverterKey()
    made.configure({"target.type": "unix"})
    assert made.apply(replace(record("v"), key=MOMENT)).key == UNIX


@pytest.mark.parametrize(
    ("value", "schema", "words"),
    [
        ("nonsense", None, r"Could not parse timestamp: value \(nonsense\) does not match pattern \(yyyy"),
        (True, None, r"does not support class java\.lang\.Boolean objects as timestamps"),
        (1.5, None, r"does not support class java\.lang\.Double"),
        (1, Schema("int32"), "does not correspond to a known timestamp type format"),
        ("x", INT64, r"Expected Unix timestamp to be a Long, but found class java\.lang\.String"),
        (1, STRING, r"Expected string timestamp to be a String, but found class java\.lang\.Long"),
        (2**62, None, "is outside the years 1 to 9999"),
    ],
)
def test_what_is_no_timestamp(value: Any, schema: Schema | None, words: str) -> None:
    with pytest.raises(DataError, match=words):
        converter(target_type="Timestamp", format="yyyy").apply(record(value, schema))
    with pytest.raises(DataError, match="the transformation has no format"):
        converter(target_type="Timestamp").apply(record(TEXT, STRING))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, 'Missing required configuration "target.type"'),
        ({"target_type": "invalid"}, "String must be one of: string, unix, Date, Time, Timestamp"),
        ({"target_type": "string"}, "requires format option to be specified when using string timestamps"),
        ({"target_type": "string", "format": "bad'"}, "requires a SimpleDateFormat-compatible pattern"),
        ({"target_type": "unix", "unix_precision": "hours"}, "String must be one of: nanoseconds, microseconds"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        converter(**settings)
