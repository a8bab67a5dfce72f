"""How a plugin is made known to workers: an entry point that leads to a list of descriptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from connect.core.config import ConfigDef

#: The release of Kafka whose plugins are made again here; Java's carry their release as their version too.
KAFKA_VERSION: Final = "4.3.1"


class PluginKind(StrEnum):
    """What a plugin is, in the words of REST (Kafka's ``PluginType``)."""

    SOURCE = "source"
    SINK = "sink"
    CONVERTER = "converter"
    HEADER_CONVERTER = "header_converter"
    TRANSFORMATION = "transformation"
    PREDICATE = "predicate"


@dataclass(frozen=True, slots=True)
class PluginDescription:
    """One plugin: under which class name properties ask for it, and how it is made.

    A class that is both a converter and a header converter has two descriptions. ``factory`` makes an instance that
    was not configured; for a connector it is the class itself.
    """

    kind: PluginKind
    name: str
    factory: Callable[[], object]
    config_def: ConfigDef
    version: str
