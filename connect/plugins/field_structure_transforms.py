"""The transforms ExtractField, HoistField, ReplaceField, ValueToKey and Flatten, which move and rename fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from connect.api.connector import Props
from connect.api.convert import DataError, Transformation
from connect.api.source import Schema, SourceRecord
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
from connect.core.config.validation import valid
from connect.plugins.java_values import inferred_type, java_class
from connect.plugins.transform_fields import (
    REPLACE_NULL_WITH_DEFAULT,
    FieldPath,
    FieldTransformation,
    field_schema,
    of_key_and_value,
    require_fields,
)


class ExtractField(FieldTransformation):
    """``org.apache.kafka.connect.transforms.ExtractField``: replaces a struct or map by one of its fields."""

    _path = FieldPath("", nested=False)

    CONFIG_DEF = ConfigDef.of(
        text("field", REQUIRED, "Field to extract.", Importance.MEDIUM),
        REPLACE_NULL_WITH_DEFAULT,
        text(
            "field.syntax.version",
            "V1",
            "V1: the name of a field; V2: a path such as a.b, with backticks around names that contain dots.",
            Importance.HIGH,
            OneOf(("V1", "V2"), any_case=True),
        ),
    )

    def configure(self, props: Props) -> None:
        values = self.config_def().parse(props)
        self._path = FieldPath(values.string("field"), nested=values.string("field.syntax.version").upper() == "V2")

    def apply(self, record: SourceRecord) -> SourceRecord:
        schema, value = self.schema_of(record), self.value_of(record)
        new_schema = None
        fields = None if value is None else require_fields(schema, value, "field extraction")
        if schema is not None:
            new_schema = self._path.schema_in(schema)
            if new_schema is None:
                raise DataError(f"Unknown field: {self._path.text}")
        return self.changed(record, new_schema, None if fields is None else self._path.value_in(schema, fields))


ExtractFieldKey, ExtractFieldValue = of_key_and_value(ExtractField)


class HoistField(FieldTransformation):
    """``org.apache.kafka.connect.transforms.HoistField``: wraps the key or value in a field."""

    _field = ""

    CONFIG_DEF = ConfigDef.of(text("field", REQUIRED, "Name of the created field.", Importance.MEDIUM))

    def configure(self, props: Props) -> None:
        self._field = self.config_def().parse(props).string("field")

    def apply(self, record: SourceRecord) -> SourceRecord:
        schema = self.schema_of(record)
        new_schema = None if schema is None else Schema("struct", fields=((self._field, schema),))
        return self.changed(record, new_schema, {self._field: self.value_of(record)})


HoistFieldKey, HoistFieldValue = of_key_and_value(HoistField)


@valid("list of colon-delimited pairs, e.g. foo:bar,abc:xyz")
def _rename_pairs(name: str, value: Value) -> None:
    assert isinstance(value, tuple)
    for each in value:
        old, _, new = each.partition(":")
        if not old or not new or ":" in new:
            raise invalid(name, value, f"Invalid rename mapping: {each}")


class ReplaceField(FieldTransformation):
    """``org.apache.kafka.connect.transforms.ReplaceField``: drops and renames fields."""

    _exclude: frozenset[str] = frozenset()
    _include: frozenset[str] = frozenset()
    _renames: Mapping[str, str] = {}

    CONFIG_DEF = ConfigDef.of(
        strings("exclude", (), "Fields to drop; overrides include.", Importance.MEDIUM, ValidList()),
        strings("include", (), "Fields to keep; empty: all.", Importance.MEDIUM, ValidList()),
        strings("renames", (), "New names of fields, as old:new.", Importance.MEDIUM, _rename_pairs),
        REPLACE_NULL_WITH_DEFAULT,
    )

    def configure(self, props: Props) -> None:
        values = self.config_def().parse(props)
        self._exclude = frozenset(values.strings("exclude"))
        self._include = frozenset(values.strings("include"))
        self._renames = dict(each.split(":") for each in values.strings("renames"))

    def apply(self, record: SourceRecord) -> SourceRecord:
        schema, value = self.schema_of(record), self.value_of(record)
        if value is None:
            return record
        fields = require_fields(schema, value, "field replacement")
        updated = {self._renamed(name): each for name, each in fields.items() if self._kept(name)}
        if schema is not None:
            kept = tuple((self._renamed(name), each) for name, each in schema.fields if self._kept(name))
            schema = replace(schema, fields=kept)
        return self.changed(record, schema, updated)

    def _kept(self, name: str) -> bool:
        return name not in self._exclude and (not self._include or name in self._include)

    def _renamed(self, name: str) -> str:
        return self._renames.get(name, name)


ReplaceFieldKey, ReplaceFieldValue = of_key_and_value(ReplaceField)


class ValueToKey(Transformation):
    """``org.apache.kafka.connect.transforms.ValueToKey``: creates the key from fields of the value."""

    _fields: Sequence[str] = ()

    CONFIG_DEF = ConfigDef.of(
        strings(
            "fields", REQUIRED, "Fields of the value for the new key.", Importance.HIGH, ValidList(may_be_empty=False)
        ),
        REPLACE_NULL_WITH_DEFAULT,
    )

    def configure(self, props: Props) -> None:
        self._fields = self.config_def().parse(props).strings("fields")

    def apply(self, record: SourceRecord) -> SourceRecord:
        schema = record.value_schema
        fields = require_fields(schema, record.value, "copying fields from value to key")
        key_schema = None
        if schema is not None:
            schemas = {name: field_schema(schema, name) for name in self._fields}
            for name, each in schemas.items():
                if each is None:
                    raise DataError(f"Field does not exist: {name}")
            key_schema = Schema("struct", fields=tuple((name, each) for name, each in schemas.items() if each))
        return replace(record, key_schema=key_schema, key={name: fields.get(name) for name in self._fields})


class Flatten(FieldTransformation):
    """``org.apache.kafka.connect.transforms.Flatten``: flattens nested fields and joins their names."""

    _delimiter = "."

    CONFIG_DEF = ConfigDef.of(text("delimiter", ".", "Delimiter between joined names.", Importance.MEDIUM))

    def configure(self, props: Props) -> None:
        self._delimiter = self.config_def().parse(props).string("delimiter")

    def apply(self, record: SourceRecord) -> SourceRecord:
        schema, value = self.schema_of(record), self.value_of(record)
        if value is None:
            return record
        fields = require_fields(schema, value, "flattening")
        if schema is None:
            return self.changed(record, None, dict(self._plain(fields, "")))
        flat = tuple(self._with_schema(schema, fields, "", optional=schema.optional))
        new_schema = replace(schema, fields=tuple((name, each) for name, each, _ in flat))
        return self.changed(record, new_schema, {name: each for name, _, each in flat})

    def _plain(self, fields: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, value in fields.items():
            path = self._joined(prefix, name)
            if isinstance(value, Mapping):
                yield from self._plain(value, path)
            elif value is not None and inferred_type(value) is None:
                raise DataError(
                    f"Flatten transformation was passed a value of type class {java_class(value)} which is not "
                    "supported by Connect's data API"
                )
            else:
                yield path, value

    def _with_schema(
        self, schema: Schema, fields: Mapping[str, Any] | None, prefix: str, *, optional: bool
    ) -> Iterator[tuple[str, Schema, Any]]:
        for name, each in schema.fields:
            path, value = self._joined(prefix, name), None if fields is None else fields.get(name)
            may_lack = optional or each.optional
            if each.type == "struct":
                yield from self._with_schema(each, value, path, optional=may_lack)
            elif each.type == "map":
                raise DataError(
                    f"Flatten transformation does not support MAP for record with schemas (for field {path})."
                )
            else:
                yield path, replace(each, optional=may_lack), value

    def _joined(self, prefix: str, name: str) -> str:
        return f"{prefix}{self._delimiter}{name}" if prefix else name


FlattenKey, FlattenValue = of_key_and_value(Flatten)
