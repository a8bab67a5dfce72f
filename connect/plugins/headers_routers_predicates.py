"""Kafka's transforms of headers and topics, and Kafka's predicates.

* Headers: DropHeaders, HeaderFrom, InsertHeader.
* Topics: RegexRouter and TimestampRouter.
* Predicates: those of ``org.apache.kafka.connect.transforms.predicates``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from connect.api.connector import Props
from connect.api.convert import DataError, Predicate, Transformation
from connect.api.source import Header, Schema, SourceRecord
from connect.core.config.config_def import (
    REQUIRED,
    ConfigDef,
    Importance,
    OneOf,
    ValidList,
    Value,
    invalid,
    strings,
    text,
)
from connect.core.config.java_regex import compile_java
from connect.core.config.validation import non_empty, valid
from connect.core.errors import ConfigError
from connect.plugins.java_values import date_of, parse_string
from connect.plugins.simple_date_format import BadPattern, SimpleDateFormat
from connect.plugins.transform_fields import (
    REPLACE_NULL_WITH_DEFAULT,
    FieldTransformation,
    field_schema,
    java_regex,
    non_empty_list,
    of_key_and_value,
    require_fields,
)


class DropHeaders(Transformation):
    """``org.apache.kafka.connect.transforms.DropHeaders``."""

    _names: frozenset[str] = frozenset()

    CONFIG_DEF = ConfigDef.of(
        strings("headers", REQUIRED, "Names of the headers to remove.", Importance.HIGH, ValidList(may_be_empty=False))
    )

    def configure(self, props: Props) -> None:
        self._names = frozenset(self.config_def().parse(props).strings("headers"))

    def apply(self, record: SourceRecord) -> SourceRecord:
        return replace(record, headers=tuple(each for each in record.headers if each.key not in self._names))


class HeaderFrom(FieldTransformation):
    """``org.apache.kafka.connect.transforms.HeaderFrom``: copies or moves fields to headers."""

    _fields: Sequence[str] = ()
    _headers: Sequence[str] = ()
    _moves = False

    CONFIG_DEF = ConfigDef.of(
        strings("fields", REQUIRED, "Fields to copy or move.", Importance.HIGH, non_empty_list),
        strings("headers", REQUIRED, "Headers, in the order of fields.", Importance.HIGH, non_empty_list),
        text(
            "operation", REQUIRED, "move removes the fields, copy keeps them.", Importance.HIGH, OneOf(("move", "copy"))
        ),
        REPLACE_NULL_WITH_DEFAULT,
    )

    def configure(self, props: Props) -> None:
        values = self.config_def().parse(props)
        self._fields, self._headers = values.strings("fields"), values.strings("headers")
        self._moves = values.string("operation") == "move"
        if len(self._fields) != len(self._headers):
            raise ConfigError("'fields' config must have the same number of elements as 'headers' config.")

    def apply(self, record: SourceRecord) -> SourceRecord:
        schema, value = self.schema_of(record), self.value_of(record)
        fields = require_fields(schema, value, f"header {'move' if self._moves else 'copy'}")
        added: list[Header] = []
        for name, header in zip(self._fields, self._headers, strict=True):
            header_schema = field_schema(schema, name)
            if schema is not None and header_schema is None:
                raise DataError(f"Unknown field: {name}")
            added.append(Header(header, fields.get(name), header_schema))
        updated = replace(record, headers=(*record.headers, *added))
        return self._without_fields(updated, schema, fields) if self._moves else updated

    def _without_fields(self, record: SourceRecord, schema: Schema | None, fields: Any) -> SourceRecord:
        left = {name: each for name, each in fields.items() if name not in self._fields}
        if schema is not None:
            kept = tuple((name, each) for name, each in schema.fields if name not in self._fields)
            schema = replace(schema, fields=kept)
        return self.changed(record, schema, left)


HeaderFromKey, HeaderFromValue = of_key_and_value(HeaderFrom)


@valid("non-null string")
def _non_null(name: str, value: Value) -> None:
    if value is None:
        raise invalid(name, value, "entry must be non null")


class InsertHeader(Transformation):
    """``org.apache.kafka.connect.transforms.InsertHeader``: adds a header, whose type is inferred, to every record."""

    _header = Header("", None)

    CONFIG_DEF = ConfigDef.of(
        text("header", REQUIRED, "Name of the header.", Importance.HIGH, _non_null),
        text("value.literal", REQUIRED, "Value of the header.", Importance.HIGH, _non_null),
    )

    def configure(self, props: Props) -> None:
        values = self.config_def().parse(props)
        schema, value = parse_string(values.string("value.literal"))
        self._header = Header(values.string("header"), value, schema)

    def apply(self, record: SourceRecord) -> SourceRecord:
        return replace(record, headers=(*record.headers, self._header))


_PART: Final = re.compile(
    r"\\(?P<escaped>.)|\$\{(?P<name>[a-zA-Z][a-zA-Z0-9]*)\}|\$(?P<number>[0-9]+)|(?P<wrong>[\\$])|(?P<text>.)",
    re.DOTALL,
)


class RegexRouter(Transformation):
    """``org.apache.kafka.connect.transforms.RegexRouter``: renames topics that match a regular expression."""

    _regex = re.compile("")
    _replacement: Sequence[str | int] = ()

    CONFIG_DEF = ConfigDef.of(
        text("regex", REQUIRED, "Java regular expression for topics.", Importance.HIGH, java_regex()),
        text("replacement", REQUIRED, "Replacement of the match; $1 is the first group.", Importance.HIGH),
    )

    def configure(self, props: Props) -> None:
        values = self.config_def().parse(props)
        self._regex = compile_java(values.string("regex"))
        self._replacement = replacement_parts(values.string("replacement"), self._regex)

    def apply(self, record: SourceRecord) -> SourceRecord:
        if self._regex.fullmatch(record.topic) is None:
            return record
        # As in Java, this replaces the leftmost match, which may be shorter than the topic.
        topic = self._regex.sub(self._replaced, record.topic, count=1)
        return replace(record, topic=topic)

    def _replaced(self, match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self._replacement)


def replacement_parts(text: str, regex: re.Pattern[str]) -> tuple[str | int, ...]:
    r"""Parse a replacement of ``java.util.regex.Matcher`` into text and numbers of groups (``$1``, ``${name}``). Raises
    ConfigError if a group does not exist, or nothing follows a ``$`` or backslash."""
    parts: list[str | int] = []
    for part in _PART.finditer(text):
        kind = part.lastgroup or ""
        found = part[kind]
        if kind in ("escaped", "text"):
            parts.append(found)
        elif kind == "name":
            if found not in regex.groupindex:
                raise _bad_replacement(f"No group with name {{{found}}}")
            parts.append(regex.groupindex[found])
        elif kind == "number":
            # The longest prefix of the digits that is the number of a group; the others are text.
            length = max((n for n in range(1, len(found) + 1) if int(found[:n]) <= regex.groups), default=0)
            if not length:
                raise _bad_replacement(f"No group {found[0]}")
            parts += [int(found[:length]), *found[length:]]
        else:
            raise _bad_replacement("Illegal group reference" if found == "$" else "character to be escaped is missing")
    return tuple(parts)


def _bad_replacement(why: str) -> ConfigError:
    return ConfigError(f"replacement: {why}; escape a literal $ or backslash with a backslash", "replacement")


class TimestampRouter(Transformation):
    """``org.apache.kafka.connect.transforms.TimestampRouter``: adds the record's timestamp to the topic's name."""

    _topic_format = ""
    _timestamp_format = SimpleDateFormat("")

    CONFIG_DEF = ConfigDef.of(
        text(
            "topic.format",
            "${topic}-${timestamp}",
            "Format of the new topic, with ${topic} and ${timestamp}.",
            Importance.HIGH,
        ),
        text(
            "timestamp.format",
            "yyyyMMdd",
            "Format of the timestamp, as in java.text.SimpleDateFormat.",
            Importance.HIGH,
        ),
    )

    def configure(self, props: Props) -> None:
        values = self.config_def().parse(props)
        self._topic_format = values.string("topic.format")
        pattern = values.string("timestamp.format")
        try:
            self._timestamp_format = SimpleDateFormat(pattern)
        except BadPattern as error:
            raise ConfigError(f"timestamp.format {pattern}: {error}", "timestamp.format") from None

    def apply(self, record: SourceRecord) -> SourceRecord:
        if record.timestamp_ms is None:
            raise DataError(f"Timestamp missing on record for topic {record.topic}")
        timestamp = self._timestamp_format.format(date_of(record.timestamp_ms))
        with_topic = self._topic_format.replace("${topic}", record.topic)
        return replace(record, topic=with_topic.replace("${timestamp}", timestamp))


class HasHeaderKey(Predicate):
    """``HasHeaderKey``: selects records with a given header."""

    _name = ""

    CONFIG_DEF = ConfigDef.of(text("name", REQUIRED, "Name of a header.", Importance.MEDIUM, non_empty))

    def configure(self, props: Props) -> None:
        self._name = self.config_def().parse(props).string("name")

    def test(self, record: SourceRecord) -> bool:
        return any(header.key == self._name for header in record.headers)


class RecordIsTombstone(Predicate):
    """``RecordIsTombstone``: selects records without a value."""

    def test(self, record: SourceRecord) -> bool:
        return record.value is None


class TopicNameMatches(Predicate):
    """``TopicNameMatches``: selects records whose complete topic name matches a Java regular expression."""

    _pattern = re.compile("")

    CONFIG_DEF = ConfigDef.of(
        text("pattern", REQUIRED, "Java regular expression for topics.", Importance.MEDIUM, java_regex(required=True))
    )

    def configure(self, props: Props) -> None:
        self._pattern = compile_java(self.config_def().parse(props).string("pattern"))

    def test(self, record: SourceRecord) -> bool:
        return self._pattern.fullmatch(record.topic) is not None
