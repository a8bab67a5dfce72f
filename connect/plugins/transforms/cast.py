"""Cast: fields, or the whole key or value, as another type."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from connect.api.connector import Props
from connect.api.convert import DataError
from connect.api.source import Schema, SourceRecord
from connect.core.config import REQUIRED, ConfigDef, Importance, InvalidValue, Setting, Type, Value
from connect.core.config_values import invalid
from connect.core.jackson import to_float32
from connect.plugins.java_values import (
    date_text,
    inferred_type,
    java_class,
    logical_number,
    to_string,
)
from connect.plugins.transforms.fields import (
    REPLACE_NULL_WITH_DEFAULT,
    FieldTransformation,
    OfKey,
    OfValue,
    require_fields,
)

_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_TO: Final = (*_BITS, "float32", "float64", "boolean", "string")
_FROM: Final = (*_TO, "bytes")
_ALL: Final = (*_FROM, "array", "map", "struct")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_FLOAT: Final = re.compile(r"[+-]?(NaN|Infinity|((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)[fFdD]?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Spec:
    """``field:type`` pairs, or one type alone."""

    def __call__(self, name: str, value: Value) -> None:
        if not isinstance(value, tuple) or not value:
            raise InvalidValue("Must specify at least one field to cast.")
        _casts(value)

    def __str__(self) -> str:
        return "list of colon-delimited pairs, e.g. foo:bar,abc:xyz"


def _casts(spec: Sequence[str]) -> dict[str | None, str]:
    """The types by field; None is the whole value.

    Raises:
        InvalidValue: With Java's words.
    """
    casts: dict[str | None, str] = {}
    for each in spec:
        field, colon, type_ = each.partition(":")
        if ":" in type_:
            # Java names a setting of another transformation here.
            raise invalid("spec", tuple(spec), f"Invalid rename mapping: {each}")
        named = (type_ if colon else field).strip().lower()
        if named not in _ALL:
            raise InvalidValue(f"Invalid type found in casting spec: {(type_ if colon else field).strip()}")
        if named not in _TO:
            raise InvalidValue(
                f"Cast transformation does not support casting to {named.upper()}; "
                f"supported types are [{', '.join(_TO).upper()}]"
            )
        casts[field.strip() if colon else None] = named
    if None in casts and len(spec) > 1:
        raise InvalidValue(
            "Cast transformations that specify a type to cast the entire value to may only specify a single cast in "
            "their spec"
        )
    return casts


class Cast(FieldTransformation):
    """``org.apache.kafka.connect.transforms.Cast``."""

    def __init__(self) -> None:
        self._casts: Mapping[str | None, str] = {}

    @classmethod
    def config_def(cls) -> ConfigDef:
        return ConfigDef.of(
            Setting(
                "spec",
                Type.LIST,
                REQUIRED,
                "Fields and their types, field1:type,field2:type, or one type for the whole; types are "
                + ", ".join(_TO)
                + ". Bytes become strings only.",
                _Spec(),
                Importance.HIGH,
            ),
            REPLACE_NULL_WITH_DEFAULT,
        )

    def configure(self, props: Props) -> None:
        self._casts = _casts(self.config_def().parse(props).strings("spec"))

    def apply(self, record: SourceRecord) -> SourceRecord:
        schema, value = self.schema_of(record), self.value_of(record)
        if value is None:
            return record
        whole = self._casts.get(None)
        if whole is not None:
            new_schema = None if schema is None else Schema(whole, optional=schema.optional)
            return self.changed(record, new_schema, cast(value, schema, whole))
        updated = dict(require_fields(schema, value, "cast types"))
        schemas = {} if schema is None else dict(schema.fields)
        for name, type_ in self._casts.items():
            if name is None or (schema is not None and name not in schemas):
                continue
            updated[name] = cast(updated.get(name), schemas.get(name), type_)
            if name in schemas:
                schemas[name] = Schema(type_, optional=schemas[name].optional)
        return self.changed(record, schema and replace(schema, fields=tuple(schemas.items())), updated)


class CastKey(OfKey, Cast):
    """``org.apache.kafka.connect.transforms.Cast$Key``."""


class CastValue(OfValue, Cast):
    """``org.apache.kafka.connect.transforms.Cast$Value``."""


def cast(value: Any, schema: Schema | None, type_: str) -> Any:
    """``value`` as another type, wrapped around or cut as Java's casts do.

    Raises:
        DataError: It has no such form.
    """
    if value is None:
        return None
    from_ = inferred_type(value) if schema is None else schema.type
    if from_ is None:
        raise DataError(
            f"Cast transformation was passed a value of type class {java_class(value)} which is not supported by "
            "Connect's data API"
        )
    if from_ not in _FROM:
        raise DataError(
            f"Cast transformation does not support casting from {from_.upper()}; "
            f"supported types are [{', '.join(_FROM).upper()}]"
        )
    if type_ == "string":
        return _string(value, schema)
    if isinstance(value, datetime):
        assert schema is not None  # without one it has no type
        value = logical_number(value, schema)
    if not isinstance(value, bool | int | float | str | Decimal):
        raise DataError(f"Unexpected type in Cast transformation: class {java_class(value)}")
    if type_ == "boolean":
        return value.lower() == "true" if isinstance(value, str) else _whole(value, 64) != 0
    if type_ in _BITS:
        return _parsed_integer(value, type_) if isinstance(value, str) else _integer(value, type_)
    real = _parsed_float(value) if isinstance(value, str) else float(value)
    return to_float32(real) if type_ == "float32" else real


def _string(value: Any, schema: Schema | None) -> str:
    if isinstance(value, datetime):
        return date_text(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return to_string(value, schema)


def _whole(value: float | Decimal, bits: int) -> int:
    """A number cut to whole ones; of floating point the nearest that fits (``Double.intValue``)."""
    if isinstance(value, int | Decimal):
        return int(value)
    if math.isnan(value):
        return 0
    most = 1 << (bits - 1)
    return int(min(max(value, -most), most - 1)) if math.isfinite(value) else (most - 1 if value > 0 else -most)


def _integer(value: float | Decimal, type_: str) -> int:
    """The lowest bits of a number; Java makes an int of floating point before a short or a byte."""
    bits = _BITS[type_]
    wrapped = _whole(value, max(bits, 32)) & ((1 << bits) - 1)
    return wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped


def _parsed_integer(value: str, type_: str) -> int:
    most = 1 << (_BITS[type_] - 1)
    if _INTEGER.fullmatch(value) is None or not -most <= int(value) < most:
        raise _out_of_range(value)
    return int(value)


def _parsed_float(value: str) -> float:
    # Double.parseDouble trims and takes Java's suffixes.
    trimmed = value.strip()
    if _FLOAT.fullmatch(trimmed) is None:
        raise _out_of_range(value)
    return float(trimmed if trimmed.endswith(("Infinity", "NaN")) else trimmed.rstrip("fFdD"))


def _out_of_range(value: str) -> DataError:
    return DataError(f"Value ({value}) was out of range for requested data type")
