"""DropHeaders, HeaderFrom, InsertHeader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from connect.api.connector import Props
from connect.api.convert import DataError, Transformation
from connect.api.source import Header, Schema, SourceRecord
from connect.core.config import REQUIRED, ConfigDef, Importance, OneOf, Setting, Type, ValidList, Value
from connect.core.config_values import invalid
from connect.core.errors import ConfigError
from connect.plugins.transforms.fields import (
    REPLACE_NULL_WITH_DEFAULT,
    FieldTransformation,
    NonEmptyList,
    OfKey,
    OfValue,
    field_schema,
    require_fields,
)
from connect.plugins.value_parser import parse_string


class DropHeaders(Transformation):
    """``org.apache.kafka.connect.transforms.DropHeaders``."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()

    @classmethod
    def config_def(cls) -> ConfigDef:
        return ConfigDef.of(
            Setting(
                "headers",
                Type.LIST,
                REQUIRED,
                "Names of the headers to remove.",
                ValidList(may_be_empty=False),
                Importance.HIGH,
            )
        )

    def configure(self, props: Props) -> None:
        self._names = frozenset(self.config_def().parse(props).strings("headers"))

    def apply(self, record: SourceRecord) -> SourceRecord:
        return replace(record, headers=tuple(each for each in record.headers if each.key not in self._names))


class HeaderFrom(FieldTransformation):
    """``org.apache.kafka.connect.transforms.HeaderFrom``: fields copied or moved to headers."""

    def __init__(self) -> None:
        self._fields: Sequence[str] = ()
        self._headers: Sequence[str] = ()
        self._moves = False

    @classmethod
    def config_def(cls) -> ConfigDef:
        return ConfigDef.of(
            Setting("fields", Type.LIST, REQUIRED, "Fields to copy or move.", NonEmptyList(), Importance.HIGH),
            Setting(
                "headers", Type.LIST, REQUIRED, "Their headers, in the same order.", NonEmptyList(), Importance.HIGH
            ),
            Setting(
                "operation",
                Type.STRING,
                REQUIRED,
                "move, or copy, which leaves the fields where they are.",
                OneOf(("move", "copy")),
                Importance.HIGH,
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


class HeaderFromKey(OfKey, HeaderFrom):
    """``org.apache.kafka.connect.transforms.HeaderFrom$Key``."""


class HeaderFromValue(OfValue, HeaderFrom):
    """``org.apache.kafka.connect.transforms.HeaderFrom$Value``."""


@dataclass(frozen=True, slots=True)
class _NonNull:
    def __call__(self, name: str, value: Value) -> None:
        if value is None:
            raise invalid(name, value, "entry must be non null")

    def __str__(self) -> str:
        return "non-null string"


class InsertHeader(Transformation):
    """``org.apache.kafka.connect.transforms.InsertHeader``: the same header on every record, its type guessed."""

    def __init__(self) -> None:
        self._header = Header("", None)

    @classmethod
    def config_def(cls) -> ConfigDef:
        return ConfigDef.of(
            Setting("header", Type.STRING, REQUIRED, "The header's name.", _NonNull(), Importance.HIGH),
            Setting("value.literal", Type.STRING, REQUIRED, "Its value.", _NonNull(), Importance.HIGH),
        )

    def configure(self, props: Props) -> None:
        values = self.config_def().parse(props)
        schema, value = parse_string(values.string("value.literal"))
        self._header = Header(values.string("header"), value, schema)

    def apply(self, record: SourceRecord) -> SourceRecord:
        return replace(record, headers=(*record.headers, self._header))
