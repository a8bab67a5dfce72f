"""The topic of source offsets as a fold, in the bytes of Kafka's ``KafkaOffsetBackingStore`` and ``OffsetUtils``.

A key is the JSON array ``["<connector>",{<source partition>}]``, a value the JSON object of the source offset. Java
looks offsets up by the key's bytes, so the order of the partition's fields and Jackson's way of escaping are part of
the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from connect.core.bounded_json import decode_json
from connect.core.jackson import json_text, string_text

#: Java allows the primitive types.
Scalar = str | int | float | bool | None

#: The first table of a ``java.util.HashMap``, and how full one gets before it is doubled.
_FIRST_BUCKETS: Final = 16
_LOAD: Final = 0.75
#: What the log shows of a key or a value that cannot be read.
_SHOWN_BYTES: Final = 80


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
        parsed = decode_json(key) if key is not None else None
    except ValueError as error:
        return f"its key cannot be read, {error}: {_shown(key)}"
    named = _named(parsed)
    if key is None or named is None:
        return f"its key is not an array of a connector's name and a source partition: {_shown(key)}"
    connector, partition = named
    if value is None:
        state.offsets.pop(key, None)
        state.partitions.get(connector, {}).pop(key, None)
        return None
    try:
        offset = decode_json(value)
    except ValueError as error:
        return f"its value cannot be read, {error}: {_shown(value)} (key {_shown(key)})"
    if not isinstance(offset, dict):
        return f"its value is not an object: {_shown(value)} (key {_shown(key)})"
    state.offsets[key] = offset
    state.partitions.setdefault(connector, {})[key] = partition
    return None


def _shown(data: bytes | None) -> str:
    return repr(data if data is None else data[:_SHOWN_BYTES])


def encode_key(connector: str, partition: Mapping[str, Scalar]) -> bytes:
    """A record's key; the partition's fields keep the order they have."""
    return f"[{string_text(connector)},{json_text(partition)}]".encode()


def encode_value(offset: Mapping[str, Scalar]) -> bytes:
    """A record's value."""
    return json_text(offset).encode()


def mirror_key(connector: str, source_alias: str, topic: str, partition: int) -> bytes:
    """MirrorSourceConnector's key for a partition; fields in the order that ``MirrorUtils.wrapPartition`` yields."""
    return encode_key(connector, {"cluster": source_alias, "partition": partition, "topic": topic})


def mirror_value(offset: int) -> bytes:
    """MirrorSourceConnector's value: the offset of the last record copied, not of the next."""
    return encode_value({"offset": offset})


def in_java_order(partition: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as a ``java.util.HashMap`` yields them, to which they were added in the order they have.

    Java's connectors keep source partitions in such maps, and so does the worker what REST brings
    (``Worker.normalizeSourceConnectorOffsets``): in another order a task would not find its offset.
    """
    buckets = _FIRST_BUCKETS
    while len(partition) > buckets * _LOAD:
        buckets *= 2
    return dict(sorted(partition.items(), key=lambda field: _spread_hash(field[0]) % buckets))


def _spread_hash(text: str) -> int:
    """``String.hashCode`` with its upper half mixed into the lower, as ``HashMap`` takes it."""
    units = text.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    return hashed ^ hashed >> 16


def _named(parsed: object) -> tuple[str, dict[str, Any]] | None:
    """The connector and the source partition of a key, None where it is none."""
    if not isinstance(parsed, list) or len(parsed) != 2:
        return None
    connector, partition = parsed
    return (connector, partition) if isinstance(connector, str) and isinstance(partition, dict) else None
