"""Interfaces of converters, single message transforms and predicates (Kafka's ``Converter``, ``HeaderConverter``,
``Transformation``, ``Predicate``).

The worker passes each record of a task through the transforms and then through the converters, which return the bytes
to write. Values without a schema are None, booleans, numbers, strings, bytes, lists and dicts. Dates are ``datetime``
in UTC under the schemas of ``org.apache.kafka.connect.data``; decimals are ``decimal.Decimal``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from connect.api.connector import Props
from connect.api.source import Schema, SourceRecord
from connect.core.config.config_def import ConfigDef
from connect.core.errors import PermanentError


class DataError(PermanentError):
    """A value cannot be converted or transformed; with ``errors.tolerance=all`` the record is skipped."""


class Plugin:
    """A plugin class that configs name and the worker configures; it declares its settings in ``CONFIG_DEF``."""

    CONFIG_DEF: ClassVar[ConfigDef] = ConfigDef()

    @classmethod
    def version(cls) -> str:
        return "unknown"

    @classmethod
    def config_def(cls) -> ConfigDef:
        return cls.CONFIG_DEF

    def configure(self, props: Props) -> None:
        """Apply the plugin's settings, given without their prefix. Raises ConfigError."""

    def close(self) -> None:
        """Release what ``configure`` acquired."""


class Converter(Plugin):
    """Converts the keys or the values of a topic to bytes. ``configure`` receives Java's setting ``converter.type``:
    key, value or header."""

    @abstractmethod
    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Return the bytes of a key or value. Raises DataError."""


class HeaderConverter(Plugin):
    """Converts the values of record headers to bytes."""

    @abstractmethod
    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None: ...


class Transformation(Plugin):
    """A step between a task and its converters."""

    @abstractmethod
    def apply(self, record: SourceRecord) -> SourceRecord | None:
        """Return the record for the next step, or None to drop the record. Raises DataError."""


class Predicate(Plugin):
    """A condition that decides whether a transformation applies to a record."""

    @abstractmethod
    def test(self, record: SourceRecord) -> bool: ...
