"""Single message transforms, after the vectors of Java's own tests."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from connect.api.convert import DataError, Transformation
from connect.api.source import OPTIONAL_STRING, STRING, Header, Schema, SourceRecord
from connect.core.errors import ConfigError
from connect.plugins.cast_and_timestamp_transforms import CastKey, CastValue
from connect.plugins.field_and_schema_transforms import (
    ExtractFieldKey,
    ExtractFieldValue,
    Filter,
    FlattenValue,
    HoistFieldKey,
    HoistFieldValue,
    InsertFieldKey,
    InsertFieldValue,
    MaskFieldValue,
    ReplaceFieldValue,
    SetSchemaMetadataKey,
    SetSchemaMetadataValue,
    ValueToKey,
)
from connect.plugins.headers_routers_predicates import HeaderFromValue, InsertHeader, RegexRouter, TimestampRouter
from connect.plugins.java_values import TIMESTAMP

INT32 = Schema("int32")


def record(value: Any = None, schema: Schema | None = None, **fields: Any) -> SourceRecord:
    return SourceRecord({}, {}, "orders", value, schema, **fields)


def made(transform: Transformation, **settings: str) -> Transformation:
    transform.configure({key.replace("_", "."): value for key, value in settings.items()})
    return transform


def applied(transform: Transformation, to: SourceRecord) -> SourceRecord:
    after = transform.apply(to)
    assert after is not None
    return after


def struct(**fields: Schema) -> Schema:
    return Schema("struct", fields=tuple(fields.items()))


class TestCast:
    def test_fields_without_a_schema(self) -> None:
        cast = made(CastValue(), spec="a:int8,b:int32, c : boolean,d:float64,e:string,f:int64,missing:int8")
        value = {"a": 300, "b": 2.9, "c": 0, "d": True, "e": 1e10, "f": "42", "other": "x"}
        expected = {"a": 44, "b": 2, "c": False, "d": 1.0, "e": "1.0E10", "f": 42, "other": "x", "missing": None}
        assert applied(cast, record(value)).value == expected

    def test_fields_with_a_schema(self) -> None:
        schema = struct(a=INT32, b=Schema("int64", optional=True), c=STRING)
        assert applied(made(CastValue(), spec="a:int8"), record(None)) == record(None)
        after = applied(
            made(CastValue(), spec="a:string,b:int16,missing:int8"), record({"a": 1, "b": 65537, "c": "x"}, schema)
        )
        assert after.value == {"a": "1", "b": 1, "c": "x"}
        assert after.value_schema == struct(a=STRING, b=Schema("int16", optional=True), c=STRING)

    @pytest.mark.parametrize(
        ("type_", "value", "schema", "cast"),
        [
            ("int8", 42, None, 42),
            ("int8", 1e300, None, -1),
            ("int16", -(2.0**40), None, 0),
            ("int32", float("nan"), None, 0),
            ("int64", 1e300, None, 2**63 - 1),
            ("boolean", "TRUE", None, True),
            ("boolean", "1", None, False),
            ("boolean", 0.5, None, False),
            ("float32", 0.1, None, 0.10000000149011612),
            ("float64", " 1.5f ", None, 1.5),
            ("string", b"\1\2", None, "AQI="),
            ("string", False, None, "false"),
            ("string", datetime(2020, 1, 1, tzinfo=UTC), TIMESTAMP, "2020-01-01"),
            ("int64", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), TIMESTAMP, 1000),
        ],
    )
    def test_whole_values(self, type_: str, value: Any, schema: Schema | None, cast: Any) -> None:
        after = applied(made(CastKey(), spec=type_), record(key=value, key_schema=schema))
        assert after.key == cast and type(after.key) is type(cast)
        assert after.key_schema == (None if schema is None else Schema(type_))

    @pytest.mark.parametrize(
        ("type_", "value", "words"),
        [
            ("int8", "300", r"Value \(300\) was out of range for requested data type"),
            ("int32", "1.5", r"Value \(1\.5\) was out of range"),
            ("float32", "text", r"Value \(text\) was out of range"),
            ("int8", b"x", r"Unexpected type in Cast transformation: class \[B"),
            ("int8", [1], "does not support casting from ARRAY; supported types are"),
            ("string", datetime(2020, 1, 1, tzinfo=UTC), "value of type class java.util.Date which is not supported"),
        ],
    )
    def test_what_cannot_be_cast(self, type_: str, value: Any, words: str) -> None:
        with pytest.raises(DataError, match=words):
            made(CastValue(), spec=type_).apply(record(value))

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ("", "Must specify at least one field to cast."),
            ("foo:faketype", "Invalid type found in casting spec: faketype"),
            ("bytes", "does not support casting to BYTES; supported types are"),
            ("int8,int32", "may only specify a single cast in their spec"),
            ("a:b:c", "Invalid rename mapping: a:b:c"),
        ],
    )
    def test_specs_that_are_refused(self, spec: str, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            made(CastValue(), spec=spec)
        assert any(words in error for error in CastValue.config_def().validate({"spec": spec})["spec"].errors)


class TestExtractField:
    def test_a_field_of_a_map(self) -> None:
        assert applied(made(ExtractFieldKey(), field="magic"), record(key={"magic": 42})).key == 42
        assert applied(made(ExtractFieldValue(), field="magic"), record({"x": 42})).value is None
        assert applied(made(ExtractFieldValue(), field="magic"), record(None)).value is None

    def test_nested_fields_in_syntax_v2(self) -> None:
        nested = made(ExtractFieldValue(), field="a.`b.c`.d", field_syntax_version="v2")
        assert applied(nested, record({"a": {"b.c": {"d": 5}}})).value == 5
        assert applied(nested, record({"a": None})).value is None
        schema = struct(a=Schema("struct", fields=(("b.c", struct(d=INT32)),)))
        assert applied(nested, record({"a": {"b.c": {"d": 5}}}, schema)).value_schema == INT32
        dotted = made(ExtractFieldValue(), field="a.b")
        assert applied(dotted, record({"a.b": 5, "a": {"b": 6}})).value == 5

    @pytest.mark.parametrize("path", ["`a", "`a`b", "a.`b\\`"])
    def test_open_backticks(self, path: str) -> None:
        with pytest.raises(ConfigError, match=r"Incomplete backtick pair in path: \["):
            made(ExtractFieldValue(), field=path, field_syntax_version="V2")

    def test_backticks_in_names(self) -> None:
        for path, name in (("`a`b.c`", "a`b.c"), ("`a\\`.b`", "a`.b"), ("a`b", "a`b"), ("`a.b`", "a.b")):
            assert (
                applied(made(ExtractFieldValue(), field=path, field_syntax_version="V2"), record({name: 1})).value == 1
            ), path

    def test_a_value_without_fields(self) -> None:
        with pytest.raises(
            DataError, match=r"Only Map objects supported in absence of schema for \[field extraction\]"
        ):
            made(ExtractFieldValue(), field="a").apply(record("text"))
        with pytest.raises(
            DataError, match=r"Only Struct objects supported for \[field extraction\], found: java\.lang"
        ):
            made(ExtractFieldValue(), field="a").apply(record("text", STRING))


class TestHoistField:
    def test_without_a_schema(self) -> None:
        assert applied(made(HoistFieldKey(), field="magic"), record(key=42)).key == {"magic": 42}
        assert applied(made(HoistFieldValue(), field="magic"), record(None)).value == {"magic": None}


class TestReplaceField:
    def test_fields_left_out_and_renamed(self) -> None:
        value = {"dont": "whatever", "abc": 42, "foo": True, "etc": "etc"}
        replaced = made(ReplaceFieldValue(), exclude="dont", renames="abc:xyz,foo:bar")
        after = applied(replaced, record(value))
        assert list(after.value.items()) == [("xyz", 42), ("bar", True), ("etc", "etc")]
        kept = made(ReplaceFieldValue(), include="abc,foo", renames="abc:xyz")
        assert applied(kept, record(value)).value == {"xyz": 42, "foo": True}
        assert applied(kept, record(None)) == record(None)

    @pytest.mark.parametrize("renames", ["abc", "a:", ":b", "a:b:c"])
    def test_renames_that_are_refused(self, renames: str) -> None:
        with pytest.raises(ConfigError, match=f"Invalid rename mapping: {renames}"):
            made(ReplaceFieldValue(), renames=renames)


class TestValueToKey:
    def test_without_a_schema(self) -> None:
        after = applied(made(ValueToKey(), fields="a,b"), record({"a": 1, "c": 3}))
        assert (after.key, after.key_schema) == ({"a": 1, "b": None}, None)

    def test_no_field_is_a_mistake(self) -> None:
        with pytest.raises(ConfigError, match="Configuration 'fields' must not be empty"):
            made(ValueToKey(), fields="")


class TestFlatten:
    def test_maps(self) -> None:
        value = {"a": 1, "b": {"c": "x", "d": {"e": None}}, "list": [{"f": 1}]}
        expected = {"a": 1, "b.c": "x", "b.d.e": None, "list": [{"f": 1}]}
        assert applied(made(FlattenValue()), record(value)).value == expected
        assert applied(made(FlattenValue(), delimiter="#"), record({"a": {"b": 1}})).value == {"a#b": 1}
        assert applied(made(FlattenValue()), record(None)) == record(None)

    def test_structs(self) -> None:
        inner = replace(struct(c=INT32), optional=True)
        after = applied(made(FlattenValue()), record({"a": 1, "b": None}, struct(a=INT32, b=inner)))
        assert after.value == {"a": 1, "b.c": None}
        assert after.value_schema == Schema("struct", fields=(("a", INT32), ("b.c", Schema("int32", optional=True))))

    def test_what_is_refused(self) -> None:
        with pytest.raises(DataError, match=r"value of type class java\.util\.Date which is not supported"):
            made(FlattenValue()).apply(record({"a": datetime.now(UTC)}))
        with pytest.raises(DataError, match=r"does not support MAP for record with schemas \(for field m\)"):
            made(FlattenValue()).apply(record({"m": {}}, struct(m=Schema("map"))))


class TestHeaders:
    def test_copying_and_moving(self) -> None:
        settings = {"fields": "f1,f2", "headers": "h1,h2"}
        before = record({"f1": 1, "x": 9}, headers=(Header("h1", "old"),))
        copied = applied(made(HeaderFromValue(), operation="copy", **settings), before)
        assert copied.headers == (Header("h1", "old"), Header("h1", 1), Header("h2", None))
        assert copied.value == before.value
        assert applied(made(HeaderFromValue(), operation="move", **settings), before).value == {"x": 9}

    def test_as_many_headers_as_fields(self) -> None:
        with pytest.raises(ConfigError, match="must have the same number of elements as 'headers' config"):
            made(HeaderFromValue(), fields="a,b", headers="h", operation="copy")

    def test_inserting(self) -> None:
        after = applied(made(InsertHeader(), header="h", value_literal="[1,2]"), record(headers=(Header("h", 0),)))
        assert after.headers[0] == Header("h", 0)
        assert after.headers[1] == Header("h", [1, 2], Schema("array", values=Schema("int8")))
        assert applied(made(InsertHeader(), header="h", value_literal="null"), record()).headers == (Header("h", None),)


INSERTIONS = {
    "topic_field": "topic!",
    "partition_field": "partition",
    "timestamp_field": "ts?",
    "static_field": "site",
    "static_value": "eu",
}


class TestInsertField:
    def test_without_a_schema(self) -> None:
        insert = made(InsertFieldValue(), **INSERTIONS)
        full = applied(insert, record({"magic": 42}, partition=3, timestamp_ms=7))
        assert full.value == {"magic": 42, "topic": "orders", "partition": 3, "ts": 7, "site": "eu"}
        assert applied(insert, record({})).value == {"topic": "orders", "site": "eu"}
        assert insert.apply(record(None)) == record(None)

    def test_with_a_schema(self) -> None:
        before = record(key={"magic": 42}, key_schema=struct(magic=INT32), partition=3, timestamp_ms=0)
        after = applied(made(InsertFieldKey(), **INSERTIONS), before)
        assert after.key["ts"] == datetime(1970, 1, 1, tzinfo=UTC)
        assert after.key_schema == struct(
            magic=INT32,
            topic=STRING,
            partition=Schema("int32", optional=True),
            ts=replace(TIMESTAMP, optional=True),
            site=OPTIONAL_STRING,
        )

    def test_offsets_are_of_sinks(self) -> None:
        with pytest.raises(DataError, match="Only SinkRecord supported"):
            made(InsertFieldValue(), offset_field="o").apply(record({}))

    def test_settings_that_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="No field insertion configured"):
            made(InsertFieldValue())
        with pytest.raises(ConfigError, match="No value specified for static field: site"):
            made(InsertFieldValue(), static_field="site")


class TestMaskField:
    def test_empty_values(self) -> None:
        value = {"b": True, "i": 5, "f": 1.5, "s": "x", "l": [1], "m": {"a": 1}, "n": None, "kept": 1}
        masked = applied(made(MaskFieldValue(), fields="b,i,f,s,l,m,n,missing"), record(value)).value
        expected = {"b": False, "i": 0, "f": 0.0, "s": "", "l": [], "m": {}, "n": None, "kept": 1, "missing": None}
        assert masked == expected
        assert value["i"] == 5

    def test_replacements(self) -> None:
        mask = made(MaskFieldValue(), fields="i,f,s", replacement="123")
        assert applied(mask, record({"i": 5, "f": 1.5, "s": "x"})).value == {"i": 123, "f": 123.0, "s": "123"}
        schema = struct(i=Schema("int8"))
        large = made(MaskFieldValue(), fields="i", replacement="300")
        assert applied(large, record({"i": 5}, schema)) == record({"i": 44}, schema)

    def test_what_is_refused(self) -> None:
        with pytest.raises(DataError, match=r"Cannot mask value of type: class \[B"):
            made(MaskFieldValue(), fields="a").apply(record({"a": b"x"}))
        with pytest.raises(DataError, match=r"class java\.lang\.Boolean with custom replacement"):
            made(MaskFieldValue(), fields="a", replacement="1").apply(record({"a": True}))
        with pytest.raises(DataError, match="Unable to convert foo"):
            made(MaskFieldValue(), fields="a", replacement="foo").apply(record({"a": 1}))
        with pytest.raises(ConfigError, match="String must be non-empty"):
            made(MaskFieldValue(), fields="a", replacement="")


class TestSetSchemaMetadata:
    def test_name_and_version(self) -> None:
        after = applied(made(SetSchemaMetadataValue(), schema_name="foo", schema_version="42"), record("x", STRING))
        assert after.value_schema == Schema("string", name="foo", version=42)
        only_name = applied(made(SetSchemaMetadataKey(), schema_name="foo"), record(key=1, key_schema=TIMESTAMP))
        assert only_name.key_schema == replace(TIMESTAMP, name="foo")

    def test_without_a_schema(self) -> None:
        transform = made(SetSchemaMetadataValue(), schema_name="foo")
        assert transform.apply(record(None)) == record(None)
        with pytest.raises(DataError, match=r"^Schema required for \[updating schema metadata\]$"):
            transform.apply(record("x"))

    def test_nothing_to_set(self) -> None:
        with pytest.raises(ConfigError, match="Neither schema name nor version configured"):
            made(SetSchemaMetadataValue())


def test_filter_drops() -> None:
    assert made(Filter()).apply(record("x")) is None


class TestRouters:
    @pytest.mark.parametrize(
        ("regex", "replacement", "topic", "routed"),
        [
            ("(.*)", "$1-copy", "orders", "orders-copy"),
            ("orders(-(?<site>eu))?", "all-${site}", "orders-eu", "all-eu"),
            ("(.*)-(\\d\\d\\d\\d)", "$2/$1", "orders-2020", "2020/orders"),
            ("(a)(b)", "$21", "ab", "b1"),
            ("a(x)?", "<$1>", "a", "<>"),
            (".*", "\\$1\\\\", "orders", "$1\\"),
            ("a|ab", "x", "ab", "xb"),
            ("other", "x", "orders", "orders"),
            ("rder", "x", "orders", "orders"),
            ("", "x", "", "x"),
        ],
    )
    def test_by_regular_expression(self, regex: str, replacement: str, topic: str, routed: str) -> None:
        router = made(RegexRouter(), regex=regex, replacement=replacement)
        assert applied(router, replace(record("x"), topic=topic)).topic == routed

    @pytest.mark.parametrize("replacement", ["$", "$x", "$1", "${nope}", "a\\"])
    def test_replacements_that_are_refused(self, replacement: str) -> None:
        with pytest.raises(ConfigError, match=r"^replacement: "):
            made(RegexRouter(), regex="orders", replacement=replacement)

    def test_by_time(self) -> None:
        assert applied(made(TimestampRouter()), record(timestamp_ms=1483425001864)).topic == "orders-20170103"
        other = made(TimestampRouter(), topic_format="${timestamp}.${topic}", timestamp_format="yyyy")
        assert applied(other, record(timestamp_ms=0)).topic == "1970.orders"
        with pytest.raises(DataError, match="Timestamp missing on record"):
            made(TimestampRouter()).apply(record())
        with pytest.raises(ConfigError, match=r"timestamp\.format bad'"):
            made(TimestampRouter(), timestamp_format="bad'")
