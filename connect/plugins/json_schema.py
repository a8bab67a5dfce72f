"""Schemas in the JSON of Java's ``JsonConverter`` (``JsonSchema``), without documentation and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from connect.api.convert import DataError
from connect.api.source import Schema

#: Connect's names of types, and JSON's where they differ.
_TYPES: Final = {
    **{name: name for name in ("boolean", "int8", "int16", "int32", "int64", "string", "bytes")},
    "float32": "float",
    "float64": "double",
    "array": "array",
    "map": "map",
    "struct": "struct",
}
_FROM_JSON: Final = {json: connect for connect, json in _TYPES.items()}


def schema_to_json(schema: Schema) -> dict[str, Any]:
    """The schema's object, fields in Java's order.

    Raises:
        DataError: Connect has no such type.
    """
    if schema.type not in _TYPES:
        raise DataError(f"Couldn't translate unsupported schema type Schema{{{schema.type}}}.")
    made: dict[str, Any] = {"type": _TYPES[schema.type]}
    match schema.type:
        case "array":
            made["items"] = _optional(schema.values)
        case "map":
            made["keys"] = _optional(schema.keys)
            made["values"] = _optional(schema.values)
        case "struct":
            made["fields"] = [{**schema_to_json(each), "field": name} for name, each in schema.fields]
    made["optional"] = schema.optional
    if schema.name is not None:
        made["name"] = schema.name
    if schema.version is not None:
        made["version"] = schema.version
    if schema.parameters:
        made["parameters"] = dict(schema.parameters)
    return made


def _optional(schema: Schema | None) -> dict[str, Any] | None:
    # A list of values that have nothing in common says not what it holds.
    return None if schema is None else schema_to_json(schema)


def schema_from_json(json: Any) -> Schema | None:
    """The schema that an object says.

    Raises:
        DataError: It says none, in Java's words.
    """
    if json is None:
        return None
    if not isinstance(json, Mapping) or not isinstance(json.get("type"), str):
        raise DataError("Schema must contain 'type' field")
    type_ = _FROM_JSON.get(json["type"])
    if type_ is None:
        raise DataError(f"Unknown schema type: {json['type']}")
    name, version, optional = json.get("name"), json.get("version"), json.get("optional")
    return Schema(
        type_,
        optional=optional is True,
        name=name if isinstance(name, str) else None,
        version=version if isinstance(version, int) and not isinstance(version, bool) else None,
        parameters=_parameters(json.get("parameters")),
        keys=_part(json, "keys", "Map schema did not specify the key type") if type_ == "map" else None,
        values=_values(type_, json),
        fields=_fields(json.get("fields")) if type_ == "struct" else (),
    )


def _values(type_: str, json: Mapping[str, Any]) -> Schema | None:
    if type_ == "array":
        return _part(json, "items", "Array schema did not specify the element type")
    return _part(json, "values", "Map schema did not specify the value type") if type_ == "map" else None


def _part(json: Mapping[str, Any], name: str, missing: str) -> Schema:
    return _required(schema_from_json(json.get(name)), missing)


def _required(schema: Schema | None, missing: str) -> Schema:
    if schema is None:
        raise DataError(missing)
    return schema


def _parameters(json: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(json, Mapping):
        return ()
    if not all(isinstance(value, str) for value in json.values()):
        raise DataError("Schema parameters must have string values.")
    return tuple(json.items())


def _fields(json: Any) -> tuple[tuple[str, Schema], ...]:
    if not isinstance(json, list):
        raise DataError('Struct schema\'s "fields" argument is not an array.')
    fields = []
    for each in json:
        if not isinstance(each, Mapping) or not isinstance(each.get("field"), str):
            raise DataError("Struct schema's field name not specified properly")
        fields.append((each["field"], _required(schema_from_json(each), "Schema must contain 'type' field")))
    return tuple(fields)
