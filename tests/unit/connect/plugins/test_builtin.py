"""The list of plugins against the classes it names."""

from __future__ import annotations

from connect.api.convert import Converter, HeaderConverter, Predicate, Transformation
from connect.api.plugins import PluginDescription, PluginKind
from connect.api.source import SourceConnector
from connect.plugins import builtin

ALL: list[PluginDescription] = [
    *builtin.CONNECTORS,
    *builtin.CONVERTERS,
    *builtin.HEADER_CONVERTERS,
    *builtin.TRANSFORMATIONS,
    *builtin.PREDICATES,
]
INTERFACES: dict[PluginKind, type] = {
    PluginKind.SOURCE: SourceConnector,
    PluginKind.CONVERTER: Converter,
    PluginKind.HEADER_CONVERTER: HeaderConverter,
    PluginKind.TRANSFORMATION: Transformation,
    PluginKind.PREDICATE: Predicate,
}


def test_every_plugin_is_what_it_is_listed_as() -> None:
    for each in ALL:
        instance = each.factory()
        assert isinstance(instance, INTERFACES[each.kind]), each.name
        assert each.config_def == type(instance).config_def()  # type: ignore[attr-defined]
