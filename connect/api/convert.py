"""Converters, single message transforms and predicates (Kafka's ``Converter``, ``HeaderConverter``,
``Transformation``, ``Predicate``).

Converters turn what a task hands over into the bytes that are written. Transforms and predicates see a record between
the two. Values without a schema are None, booleans, numbers, strings, bytes, lists and dicts; dates are ``datetime`` in
UTC under the schemas of ``org.apache.kafka.connect.data``, decimals ``decimal.Decimal``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from connect.api.connector import Props
from connect.api.source import Schema, SourceRecord
from connect.core.config.config_def import ConfigDef
from connect.core.errors import PermanentError


class DataError(PermanentError):
    """A value cannot be converted or transformed; ``errors.tolerance=all`` leaves the record out."""


class Plugin:
    """A class that is found by name and configured by properties."""

    @classmethod
    def version(cls) -> str:
        return "unknown"

    @classmethod
    def config_def(cls) -> ConfigDef:
        return ConfigDef()

    def configure(self, props: Props) -> None:
        """Take the settings, without the prefix they stand under; raises ConfigError."""

    def close(self) -> None:
        """Let go of what ``configure`` took."""


class Converter(Plugin):
    """Values of a topic to bytes and back. ``is_key``: whether it converts keys, told to ``configure`` by Java's
    setting ``converter.type`` (key, value or header)."""

    @abstractmethod
    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Raises DataError."""

    @abstractmethod
    def to_connect(self, topic: str, data: bytes | None) -> tuple[Schema | None, Any]:
        """Raises DataError."""


class HeaderConverter(Plugin):
    """Values of headers to bytes and back."""

    @abstractmethod
    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None: ...

    @abstractmethod
    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> tuple[Schema | None, Any]: ...


class Transformation(Plugin):
    """One step between a task and its converters."""

    @abstractmethod
    def apply(self, record: SourceRecord) -> SourceRecord | None:
        """The record to go on with, or None to drop it. Raises DataError."""


class Predicate(Plugin):
    """Whether a transformation concerns a record."""

    @abstractmethod
    def test(self, record: SourceRecord) -> bool: ...
