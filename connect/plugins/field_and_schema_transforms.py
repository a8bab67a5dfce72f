"""The transforms that move, rename, insert and mask fields, set a schema's metadata, and drop records: ExtractField,
HoistField, ReplaceField, ValueToKey, Flatten, InsertField, MaskField, SetSchemaMetadata and Filter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from connect.api.connector import Props
from connect.api.convert import DataError, Transformation
from connect.api.source import Schema, SourceRecord
from connect.core.config.config_def import (
    REQUIRED,
    ConfigDef,
    Importance,
    OneOf,
    Setting,
    ValidList,
    Value,
    integer,
    invalid,
    strings,
    text,
)
from connect.core.config.validation import non_empty, valid
from connect.core.errors import ConfigError
from connect.core.jackson import to_float32
from connect.plugins import transform_fields
from connect.plugins.java_values import EPOCH, TIMESTAMP, date_of, inferred_type, java_class


class ExtractField(transform_fields.FieldTransformation):
    """``org.apache.kafka.connect.transforms.ExtractField``: replaces a struct or map by one of its fields."""

    _path = transform_fields.FieldPath("", nested=False)

    CONFIG_DEF = ConfigDef.of(
        text("field", REQUIRED, "Field to extract.", Importance.MEDIUM),
        transform_fields.REPLACE_NULL_WITH_DEFAULT,
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
        self._path = transform_fields.FieldPath(
            values.string("field"), nested=values.string("field.syntax.version").upper() == "V2"
        )

    def apply(self, record: SourceRecord) -> SourceRecord:
        schema, value = self.schema_of(record), self.value_of(record)
        new_schema = None
        fields = None if value is None else transform_fields.require_fields(schema, value, "field extraction")
        if schema is not None:
            new_schema = self._path.schema_in(schema)
            if new_schema is None:
                raise DataError(f"Unknown field: {self._path.text}")
        return self.changed(record, new_schema, None if fields is None else self._path.value_in(schema, fields))


ExtractFieldKey, ExtractFieldValue = transform_fields.of_key_and_value(ExtractField)


class HoistField(transform_fields.FieldTransformation):
    """``org.apache.kafka.connect.transforms.HoistField``: wraps the key or value in a field."""

    _field = ""

    CONFIG_DEF = ConfigDef.of(text("field", REQUIRED, "Name of the created field.", Importance.MEDIUM))

    def configure(self, props: Props) -> None:
        self._field = self.config_def().parse(props).string("field")

    def apply(self, record: SourceRecord) -> SourceRecord:
        schema = self.schema_of(record)
        new_schema = None if schema is None else Schema("struct", fields=((self._field, schema),))
        return self.changed(record, new_schema, {self._field: self.value_of(record)})


HoistFieldKey, HoistFieldValue = transform_fields.of_key_and_value(HoistField)


@valid("list of colon-delimited pairs, e.g. foo:bar,abc:xyz")
def _rename_pairs(name: str, value: Value) -> None:
    assert isinstance(value, tuple)
    for each in value:
        old, _, new = each.partition(":")
        if not old or not new or ":" in new:
            raise invalid(name, value, f"Invalid rename mapping: {each}")


class ReplaceField(transform_fields.FieldTransformation):
    """``org.apache.kafka.connect.transforms.ReplaceField``: drops and renames fields."""

    _exclude: frozenset[str] = frozenset()
    _include: frozenset[str] = frozenset()
    _renames: Mapping[str, str] = {}

    CONFIG_DEF = ConfigDef.of(
        strings("exclude", (), "Fields to drop; overrides include.", Importance.MEDIUM, ValidList()),
        strings("include", (), "Fields to keep; empty: all.", Importance.MEDIUM, ValidList()),
        strings("renames", (), "New names of fields, as old:new.", Importance.MEDIUM, _rename_pairs),
        transform_fields.REPLACE_NULL_WITH_DEFAULT,
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
        fields = transform_fields.require_fields(schema, value, "field replacement")
        updated = {self._renamed(name): each for name, each in fields.items() if self._kept(name)}
        if schema is not None:
            kept = tuple((self._renamed(name), each) for name, each in schema.fields if self._kept(name))
            schema = replace(schema, fields=kept)
        return self.changed(record, schema, updated)

    def _kept(self, name: str) -> bool:
        return name not in self._exclude and (not self._include or name in self._include)

    def _renamed(self, name: str) -> str:
        return self._renames.get(name, name)


ReplaceFieldKey, ReplaceFieldValue = transform_fields.of_key_and_value(ReplaceField)


class ValueToKey(Transformation):
    """``org.apache.kafka.connect.transforms.ValueToKey``: creates the key from fields of the value."""

    _fields: Sequence[str] = ()

    CONFIG_DEF = ConfigDef.of(
        strings(
            "fields", REQUIRED, "Fields of the value for the new key.", Importance.HIGH, ValidList(may_be_empty=False)
        ),
        transform_fields.REPLACE_NULL_WITH_DEFAULT,
    )

    def configure(self, props: Props) -> None:
        self._fields = self.config_def().parse(props).strings("fields")

    def apply(self, record: SourceRecord) -> SourceRecord:
        schema = record.value_schema
        fields = transform_fields.require_fields(schema, record.value, "copying fields from value to key")
        key_schema = None
        if schema is not None:
            schemas = {name: transform_fields.field_schema(schema, name) for name in self._fields}
            for name, each in schemas.items():
                if each is None:
                    raise DataError(f"Field does not exist: {name}")
            key_schema = Schema("struct", fields=tuple((name, each) for name, each in schemas.items() if each))
        return replace(record, key_schema=key_schema, key={name: fields.get(name) for name in self._fields})


class Flatten(transform_fields.FieldTransformation):
    """``org.apache.kafka.connect.transforms.Flatten``: flattens nested fields and joins their names."""

    _delimiter = "."

    CONFIG_DEF = ConfigDef.of(text("delimiter", ".", "Delimiter between joined names.", Importance.MEDIUM))

    def configure(self, props: Props) -> None:
        self._delimiter = self.config_def().parse(props).string("delimiter")

    def apply(self, record: SourceRecord) -> SourceRecord:
        schema, value = self.schema_of(record), self.value_of(record)
        if value is None:
            return record
        fields = transform_fields.require_fields(schema, value, "flattening")
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


FlattenKey, FlattenValue = transform_fields.of_key_and_value(Flatten)


class Filter(Transformation):
    """``org.apache.kafka.connect.transforms.Filter``: drops all records that its predicate selects."""

    def apply(self, record: SourceRecord) -> None:
        return None


@dataclass(frozen=True, slots=True)
class _Insertion:
    """A field to insert: ``name!`` is required, ``name?`` and ``name`` are optional."""

    name: str
    optional: bool

    @classmethod
    def of(cls, text: str) -> _Insertion:
        return cls(text[:-1] if text.endswith(("?", "!")) else text, not text.endswith("!"))


_INSERTED: Final = ("topic", "partition", "offset", "timestamp", "static")


def _inserted(key: str, doc: str) -> Setting:
    return text(key, None, doc, Importance.MEDIUM)


class InsertField(transform_fields.FieldTransformation):
    """``org.apache.kafka.connect.transforms.InsertField``: inserts metadata of the record, or a constant."""

    CONFIG_DEF = ConfigDef.of(
        _inserted("topic.field", "Field for the topic; suffix !: required, ?: optional (the default)."),
        _inserted("partition.field", "Field for the partition; suffix !: required, ?: optional (the default)."),
        _inserted("offset.field", "Field for the offset (sinks only); suffix !: required, ?: optional (the default)."),
        _inserted("timestamp.field", "Field for the timestamp; suffix !: required, ?: optional (the default)."),
        _inserted("static.field", "Field for static.value; suffix !: required, ?: optional (the default)."),
        _inserted("static.value", "Constant value of static.field."),
        transform_fields.REPLACE_NULL_WITH_DEFAULT,
    )
    _insertions: Mapping[str, _Insertion] = {}
    _static_value: str | None = None

    def configure(self, props: Props) -> None:
        values = self.config_def().parse(props)
        named = {what: values.string_or_null(f"{what}.field") for what in _INSERTED}
        self._insertions = {what: _Insertion.of(text) for what, text in named.items() if text is not None}
        self._static_value = values.string_or_null("static.value")
        if not self._insertions:
            raise ConfigError("No field insertion configured")
        if "static" in self._insertions and self._static_value is None:
            raise ConfigError(
                "Invalid value null for configuration static.value: No value specified for static field: "
                + self._insertions["static"].name,
                "static.value",
            )

    def apply(self, record: SourceRecord) -> SourceRecord:
        schema, value = self.schema_of(record), self.value_of(record)
        if value is None:
            return record
        updated = dict(transform_fields.require_fields(schema, value, "field insertion"))
        if "offset" in self._insertions:
            raise DataError(
                "Only SinkRecord supported for [field insertion], found: org.apache.kafka.connect.source.SourceRecord"
            )
        at_ms = record.timestamp_ms
        known: dict[str, tuple[Any, Schema]] = {
            "topic": (record.topic, Schema("string")),
            "partition": (record.partition, Schema("int32")),
            "timestamp": (at_ms if at_ms is None or schema is None else date_of(at_ms), TIMESTAMP),
            "static": (self._static_value, Schema("string")),
        }
        fields = [] if schema is None else list(schema.fields)
        for what, insertion in self._insertions.items():
            inserted, type_ = known[what]
            fields.append((insertion.name, replace(type_, optional=insertion.optional)))
            if inserted is not None:
                updated[insertion.name] = inserted
        return self.changed(record, schema and replace(schema, fields=tuple(fields)), updated)


InsertFieldKey, InsertFieldValue = transform_fields.of_key_and_value(InsertField)


#: The masks of values by Java class.
_MASKS: Final[Mapping[str, Callable[[], Any]]] = {
    "java.lang.Boolean": lambda: False,
    "java.lang.Long": lambda: 0,
    "java.lang.Double": lambda: 0.0,
    "java.math.BigDecimal": lambda: Decimal(0),
    "java.util.Date": lambda: EPOCH,
    "java.lang.String": lambda: "",
    "java.util.ArrayList": list,
    "java.util.HashMap": dict,
}
_BITS: Final = {"int8": 8, "int16": 16, "int32": 32}


class MaskField(transform_fields.FieldTransformation):
    """``org.apache.kafka.connect.transforms.MaskField``: clears or replaces the values of fields."""

    _fields: tuple[str, ...] = ()
    _replacement: str | None = None

    CONFIG_DEF = ConfigDef.of(
        strings("fields", REQUIRED, "Fields to mask.", Importance.HIGH, ValidList(may_be_empty=False)),
        text("replacement", None, "Replaces numbers and strings, instead of 0 and empty.", check=non_empty),
        transform_fields.REPLACE_NULL_WITH_DEFAULT,
    )

    def configure(self, props: Props) -> None:
        values = self.config_def().parse(props)
        self._fields = values.strings("fields")
        self._replacement = values.string_or_null("replacement")

    def apply(self, record: SourceRecord) -> SourceRecord:
        schema, value = self.schema_of(record), self.value_of(record)
        updated = dict(transform_fields.require_fields(schema, value, "mask fields"))
        schemas = {} if schema is None else dict(schema.fields)
        for name in self._fields:
            if schema is None or name in schemas:
                updated[name] = self._masked(updated.get(name), schemas.get(name))
        return self.changed(record, schema, updated)

    def _masked(self, value: Any, schema: Schema | None) -> Any:
        if value is None:
            return None
        if self._replacement is not None:
            return _replaced(value, schema, self._replacement)
        mask = _MASKS.get(java_class(value))
        if mask is None:
            raise DataError(f"Cannot mask value of type: class {java_class(value)}")
        return mask()


MaskFieldKey, MaskFieldValue = transform_fields.of_key_and_value(MaskField)


def _replaced(value: Any, schema: Schema | None, replacement: str) -> Any:
    if isinstance(value, str):
        return replacement
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise DataError(f"Cannot mask value of type class {java_class(value)} with custom replacement.")
    try:
        number = Decimal(replacement)
        if isinstance(value, Decimal):
            return number
        if isinstance(value, float):
            return to_float32(float(number)) if schema is not None and schema.type == "float32" else float(number)
        # As in Java, a number that is too large keeps its lowest bits.
        bits = _BITS.get("int64" if schema is None else schema.type, 64)
        return (int(number) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    except (InvalidOperation, ValueError, OverflowError) as error:
        raise DataError(f"Unable to convert {replacement} (class java.lang.String) to a number") from error


class SetSchemaMetadata(transform_fields.FieldTransformation):
    """``org.apache.kafka.connect.transforms.SetSchemaMetadata``: sets the name and version of a schema."""

    _name: str | None = None
    _version: int | None = None

    CONFIG_DEF = ConfigDef.of(
        text("schema.name", None, "Schema name to set.", Importance.HIGH),
        integer("schema.version", None, "Schema version to set.", Importance.HIGH),
        transform_fields.REPLACE_NULL_WITH_DEFAULT,
    )

    def configure(self, props: Props) -> None:
        values = self.config_def().parse(props)
        self._name = values.string_or_null("schema.name")
        self._version = values.integer_or_null("schema.version")
        if self._name is None and self._version is None:
            raise ConfigError("Neither schema name nor version configured")

    def apply(self, record: SourceRecord) -> SourceRecord:
        schema, value = self.schema_of(record), self.value_of(record)
        if schema is None and value is None:
            return record
        if schema is None:
            raise DataError("Schema required for [updating schema metadata]")
        name = schema.name if self._name is None else self._name
        version = schema.version if self._version is None else self._version
        return self.changed(record, replace(schema, name=name, version=version), value)


SetSchemaMetadataKey, SetSchemaMetadataValue = transform_fields.of_key_and_value(SetSchemaMetadata)
