"""Records that only the old primary holds, written to files."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from connect.wire.header_keys import bytes_of, is_text, readable
from connectors.failover.site import Site
from connectors.failover.unreplicated import Unreplicated, records_of


async def export(site: Site, stranded: Sequence[Unreplicated], directory: Path) -> list[Path]:
    """A file a partition, a record a line: JSON, with base64 for bytes; null is null. What is there is replaced.

    Raises OSError, and as the source.
    """
    directory.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240
    written = []
    for one in stranded:
        file = directory / f"{one.own.topic}-{one.own.partition}.jsonl"
        beside = file.with_name(file.name + ".new")
        with beside.open("w") as out:
            async for record in records_of(site, one):
                out.write(json.dumps(as_json(record)) + "\n")
        beside.replace(file)
        written.append(file)
    return written


def as_json(record: Any) -> dict[str, Any]:
    """A record as aiokafka has it (pure)."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [_header(name, value) for name, value in record.headers],
    }


def _header(name: str, value: bytes | None) -> list[str | None]:
    """JSON has no text that is no UTF-8: such a key comes once more behind the value, as bytes."""
    return [readable(name), _text(value), *([] if is_text(name) else [_text(bytes_of(name))])]


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
