"""The plugins that come with a worker, for the entry points: Java's class names and what stands behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from connect.api.convert import Plugin
from connect.api.plugins import KAFKA_VERSION, PluginDescription, PluginKind
from connect.api.source import SourceConnector
from connect.plugins import converters, file_source, header_converter, json_converter, predicates
from connect.plugins.transforms import cast, contents, headers, moves, routers, timestamps

_PACKAGE: Final = "org.apache.kafka.connect."
_CONVERTERS: Final[dict[str, type[Plugin]]] = {
    "converters.BooleanConverter": converters.BooleanConverter,
    "converters.ByteArrayConverter": converters.ByteArrayConverter,
    "converters.DoubleConverter": converters.DoubleConverter,
    "converters.FloatConverter": converters.FloatConverter,
    "converters.IntegerConverter": converters.IntegerConverter,
    "converters.LongConverter": converters.LongConverter,
    "converters.ShortConverter": converters.ShortConverter,
    "json.JsonConverter": json_converter.JsonConverter,
    "storage.StringConverter": converters.StringConverter,
}
_HEADER_CONVERTERS: Final[dict[str, type[Plugin]]] = {
    **_CONVERTERS,
    "storage.SimpleHeaderConverter": header_converter.SimpleHeaderConverter,
}
_TRANSFORMATIONS: Final[dict[str, type[Plugin]]] = {
    "transforms.Cast$Key": cast.CastKey,
    "transforms.Cast$Value": cast.CastValue,
    "transforms.DropHeaders": headers.DropHeaders,
    "transforms.ExtractField$Key": moves.ExtractFieldKey,
    "transforms.ExtractField$Value": moves.ExtractFieldValue,
    "transforms.Filter": contents.Filter,
    "transforms.Flatten$Key": moves.FlattenKey,
    "transforms.Flatten$Value": moves.FlattenValue,
    "transforms.HeaderFrom$Key": headers.HeaderFromKey,
    "transforms.HeaderFrom$Value": headers.HeaderFromValue,
    "transforms.HoistField$Key": moves.HoistFieldKey,
    "transforms.HoistField$Value": moves.HoistFieldValue,
    "transforms.InsertField$Key": contents.InsertFieldKey,
    "transforms.InsertField$Value": contents.InsertFieldValue,
    "transforms.InsertHeader": headers.InsertHeader,
    "transforms.MaskField$Key": contents.MaskFieldKey,
    "transforms.MaskField$Value": contents.MaskFieldValue,
    "transforms.RegexRouter": routers.RegexRouter,
    "transforms.ReplaceField$Key": moves.ReplaceFieldKey,
    "transforms.ReplaceField$Value": moves.ReplaceFieldValue,
    "transforms.SetSchemaMetadata$Key": contents.SetSchemaMetadataKey,
    "transforms.SetSchemaMetadata$Value": contents.SetSchemaMetadataValue,
    "transforms.TimestampConverter$Key": timestamps.TimestampConverterKey,
    "transforms.TimestampConverter$Value": timestamps.TimestampConverterValue,
    "transforms.TimestampRouter": routers.TimestampRouter,
    "transforms.ValueToKey": moves.ValueToKey,
}
_PREDICATES: Final[dict[str, type[Plugin]]] = {
    "transforms.predicates.HasHeaderKey": predicates.HasHeaderKey,
    "transforms.predicates.RecordIsTombstone": predicates.RecordIsTombstone,
    "transforms.predicates.TopicNameMatches": predicates.TopicNameMatches,
}
_SOURCES: Final[dict[str, type[SourceConnector]]] = {
    "file.FileStreamSourceConnector": file_source.FileStreamSourceConnector,
}


def _described(kind: PluginKind, name: str, plugin: type[Plugin] | type[SourceConnector]) -> PluginDescription:
    return PluginDescription(kind, _PACKAGE + name, plugin, plugin.config_def(), KAFKA_VERSION)


CONNECTORS: Final[Sequence[PluginDescription]] = [
    _described(PluginKind.SOURCE, name, plugin) for name, plugin in _SOURCES.items()
]
CONVERTERS: Final[Sequence[PluginDescription]] = [
    _described(PluginKind.CONVERTER, name, plugin) for name, plugin in _CONVERTERS.items()
]
HEADER_CONVERTERS: Final[Sequence[PluginDescription]] = [
    _described(PluginKind.HEADER_CONVERTER, name, plugin) for name, plugin in _HEADER_CONVERTERS.items()
]
TRANSFORMATIONS: Final[Sequence[PluginDescription]] = [
    _described(PluginKind.TRANSFORMATION, name, plugin) for name, plugin in _TRANSFORMATIONS.items()
]
PREDICATES: Final[Sequence[PluginDescription]] = [
    _described(PluginKind.PREDICATE, name, plugin) for name, plugin in _PREDICATES.items()
]
