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
_TRANSFORMATIONS: Final[dict[str, type[Plugin]]] = {
    "transforms.Cast$Key": cast_and_timestamp_transforms.CastKey,
    "transforms.Cast$Value": cast_and_timestamp_transforms.CastValue,
    "transforms.DropHeaders": headers_routers_predicates.DropHeaders,
    "transforms.ExtractField$Key": field_and_schema_transforms.ExtractFieldKey,
    "transforms.ExtractField$Value": field_and_schema_transforms.ExtractFieldValue,
    "transforms.Filter": field_and_schema_transforms.Filter,
    "transforms.Flatten$Key": field_and_schema_transforms.FlattenKey,
    "transforms.Flatten$Value": field_and_schema_transforms.FlattenValue,
    "transforms.HeaderFrom$Key": headers_routers_predicates.HeaderFromKey,
    "transforms.HeaderFrom$Value": headers_routers_predicates.HeaderFromValue,
    "transforms.HoistField$Key": field_and_schema_transforms.HoistFieldKey,
    "transforms.HoistField$Value": field_and_schema_transforms.HoistFieldValue,
    "transforms.InsertField$Key": field_and_schema_transforms.InsertFieldKey,
    "transforms.InsertField$Value": field_and_schema_transforms.InsertFieldValue,
    "transforms.InsertHeader": headers_routers_predicates.InsertHeader,
    "transforms.MaskField$Key": field_and_schema_transforms.MaskFieldKey,
    "transforms.MaskField$Value": field_and_schema_transforms.MaskFieldValue,
    "transforms.RegexRouter": headers_routers_predicates.RegexRouter,
    "transforms.ReplaceField$Key": field_and_schema_transforms.ReplaceFieldKey,
    "transforms.ReplaceField$Value": field_and_schema_transforms.ReplaceFieldValue,
    "transforms.SetSchemaMetadata$Key": field_and_schema_transforms.SetSchemaMetadataKey,
    "transforms.SetSchemaMetadata$Value": field_and_schema_transforms.SetSchemaMetadataValue,
    "transforms.TimestampConverter$Key": cast_and_timestamp_transforms.TimestampConverterKey,
    "transforms.TimestampConverter$Value": cast_and_timestamp_transforms.TimestampConverterValue,
    "transforms.TimestampRouter": headers_routers_predicates.TimestampRouter,
    "transforms.ValueToKey": field_and_schema_transforms.ValueToKey,
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
