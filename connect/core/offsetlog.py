"""The topic of source offsets as a fold, in the bytes of Kafka's ``KafkaOffsetBackingStore`` and ``OffsetUtils``.

A key is the JSON array ``["<connector>",{<source partition>}]``, a value the JSON object of the source offset. Java
looks offsets up by the key's bytes, so the order of the partition's fields and Jackson's way of escaping are part of
the format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: Java allows the primitive types. Its text for floating point numbers is its own, and no connector of ours has any.
Scalar = str | int | bool | None

_ESCAPED: Final = re.compile('["\\\\\x00-\x1f]')
_SHORT: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}


@dataclass(slots=True)
class SourceOffsets:
    """What the topic says once folded: key bytes to offset, and which keys are whose.

    ``partitions`` holds, per connector, the source partitions that have an offset, by key bytes.
    """

    offsets: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    partitions: dict[str, dict[bytes, dict[str, Any]]] = field(default_factory=dict)

    def mirrored_offset(self, connector: str, source_alias: str, topic: str, partition: int) -> int | None:
        """The source offset of the last record that MirrorMaker copied; None where it copied none."""
        offset = self.offsets.get(mirror_key(connector, source_alias, topic, partition), {}).get("offset")
        return offset if isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0 else None


def apply(state: SourceOffsets, key: bytes | None, value: bytes | None) -> str | None:
    """Fold one record into ``state``. Returns why it was passed over, for the log, else None."""
    try:
        parsed = json.loads(key) if key is not None else None
    except ValueError:
        return f"its key is not JSON: {key!r}"
    named = _named(parsed)
    if key is None or named is None:
        return f"its key is not an array of a connector's name and a source partition: {key!r}"
    connector, partition = named
    if value is None:
        state.offsets.pop(key, None)
        state.partitions.get(connector, {}).pop(key, None)
        return None
    try:
        offset = json.loads(value)
    except ValueError:
        return f"its value is not JSON: {value!r} (key {key!r})"
    if not isinstance(offset, dict):
        return f"its value is not an object: {value!r} (key {key!r})"
    state.offsets[key] = offset
    state.partitions.setdefault(connector, {})[key] = partition
    return None


def encode_key(connector: str, partition: Mapping[str, Scalar]) -> bytes:
    """A record's key; the partition's fields keep the order they have."""
    return f"[{_text(connector)},{_object(partition)}]".encode()


def encode_value(offset: Mapping[str, Scalar]) -> bytes:
    """A record's value."""
    return _object(offset).encode()


def mirror_key(connector: str, source_alias: str, topic: str, partition: int) -> bytes:
    """MirrorSourceConnector's key for a partition; fields in the order that ``MirrorUtils.wrapPartition`` yields."""
    return encode_key(connector, {"cluster": source_alias, "partition": partition, "topic": topic})


def mirror_value(offset: int) -> bytes:
    """MirrorSourceConnector's value: the offset of the last record copied, not of the next."""
    return encode_value({"offset": offset})


def _named(parsed: object) -> tuple[str, dict[str, Any]] | None:
    """The connector and the source partition of a key, None where it is none."""
    if not isinstance(parsed, list) or len(parsed) != 2:
        return None
    connector, partition = parsed
    return (connector, partition) if isinstance(connector, str) and isinstance(partition, dict) else None


def _object(fields: Mapping[str, Scalar]) -> str:
    return "{" + ",".join(f"{_text(name)}:{_scalar(value)}" for name, value in fields.items()) + "}"


def _scalar(value: Scalar) -> str:
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _text(value: str) -> str:
    return '"' + _ESCAPED.sub(_escape, value) + '"'


def _escape(match: re.Match[str]) -> str:
    """Jackson's: short forms where JSON has them, else upper-case hexadecimal; nothing beyond ASCII is escaped."""
    char = match[0]
    return _SHORT.get(char) or f"\\u{ord(char):04X}"
