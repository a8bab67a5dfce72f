"""Lists the built-in plugins by Java's class names, for the entry points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from connect.api.convert import Plugin
from connect.api.plugins import KAFKA_VERSION, PluginDescription, PluginKind
from connect.api.source import SourceConnector
from connect.plugins import (
    cast_and_timestamp_transforms,
    converters,
    field_and_schema_transforms,
    file_source,
    headers_routers_predicates,
)
from connect.plugins.transform_fields import of_key_and_value

_PACKAGE: Final = "org.apache.kafka.connect."
_CONVERTERS: Final[dict[str, type[Plugin]]] = {
    "converters.BooleanConverter": converters.BooleanConverter,
    "converters.ByteArrayConverter": converters.ByteArrayConverter,
    "converters.DoubleConverter": converters.DoubleConverter,
    "converters.FloatConverter": converters.FloatConverter,
    "converters.IntegerConverter": converters.IntegerConverter,
    "converters.LongConverter": converters.LongConverter,
    "converters.ShortConverter": converters.ShortConverter,
    "json.JsonConverter": converters.JsonConverter,
    "storage.StringConverter": converters.StringConverter,
}
_HEADER_CONVERTERS: Final[dict[str, type[Plugin]]] = {
    **_CONVERTERS,
    "storage.SimpleHeaderConverter": converters.SimpleHeaderConverter,
}
#: Each has a class for keys and one for values.
_OF_KEY_OR_VALUE: Final = (
    cast_and_timestamp_transforms.Cast,
    field_and_schema_transforms.ExtractField,
    field_and_schema_transforms.Flatten,
    headers_routers_predicates.HeaderFrom,
    field_and_schema_transforms.HoistField,
    field_and_schema_transforms.InsertField,
    field_and_schema_transforms.MaskField,
    field_and_schema_transforms.ReplaceField,
    field_and_schema_transforms.SetSchemaMetadata,
    cast_and_timestamp_transforms.TimestampConverter,
)
_TRANSFORMATIONS: Final[dict[str, type[Plugin]]] = {
    "transforms.DropHeaders": headers_routers_predicates.DropHeaders,
    "transforms.Filter": field_and_schema_transforms.Filter,
    "transforms.InsertHeader": headers_routers_predicates.InsertHeader,
    "transforms.RegexRouter": headers_routers_predicates.RegexRouter,
    "transforms.TimestampRouter": headers_routers_predicates.TimestampRouter,
    "transforms.ValueToKey": field_and_schema_transforms.ValueToKey,
    **{
        f"transforms.{each.__name__}${part}": of_part
        for each in _OF_KEY_OR_VALUE
        for part, of_part in zip(("Key", "Value"), of_key_and_value(each), strict=True)
    },
}
_PREDICATES: Final[dict[str, type[Plugin]]] = {
    "transforms.predicates.HasHeaderKey": headers_routers_predicates.HasHeaderKey,
    "transforms.predicates.RecordIsTombstone": headers_routers_predicates.RecordIsTombstone,
    "transforms.predicates.TopicNameMatches": headers_routers_predicates.TopicNameMatches,
}


def _described(
    kind: PluginKind, plugins: Mapping[str, type[Plugin] | type[SourceConnector]]
) -> Sequence[PluginDescription]:
    return [
        PluginDescription(kind, _PACKAGE + name, plugin, plugin.config_def(), KAFKA_VERSION)
        for name, plugin in plugins.items()
    ]


_SOURCES: Final = {"file.FileStreamSourceConnector": file_source.FileStreamSourceConnector}
CONNECTORS: Final = _described(PluginKind.SOURCE, _SOURCES)
CONVERTERS: Final = _described(PluginKind.CONVERTER, _CONVERTERS)
HEADER_CONVERTERS: Final = _described(PluginKind.HEADER_CONVERTER, _HEADER_CONVERTERS)
TRANSFORMATIONS: Final = _described(PluginKind.TRANSFORMATION, _TRANSFORMATIONS)
PREDICATES: Final = _described(PluginKind.PREDICATE, _PREDICATES)
