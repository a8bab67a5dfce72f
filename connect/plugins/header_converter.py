"""SimpleHeaderConverter: headers as text, from which their type is guessed (Kafka's default header converter)."""

from __future__ import annotations

from typing import Any

from connect.api.convert import HeaderConverter
from connect.api.source import Schema
from connect.plugins.java_values import values_text
from connect.plugins.value_parser import parse_string


class SimpleHeaderConverter(HeaderConverter):
    """``org.apache.kafka.connect.storage.SimpleHeaderConverter``; it has no settings."""

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        return None if value is None else values_text(value, schema).encode(errors="replace")

    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> tuple[Schema | None, Any]:
        # Java replaces what is not UTF-8 too.
        return (None, None) if data is None else parse_string(data.decode(errors="replace"))
