"""Records of the three internal topics, and pictures of the group, kept as Java wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from aiokafka.structs import ConsumerRecord

FOLDER: Final = Path(__file__).parent / "recorded"
#: Of one key so many are kept, the first ones.
_OF_ONE_KEY: Final = 4


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """``key`` and ``value`` as UTF-8 text; ``value`` None is a tombstone. ``partitions`` is how many the topic has."""

    partition: int
    partitions: int
    key: str | None
    value: str | None


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member's metadata and assignment, hexadecimal, in a group that has agreed on ``protocol``."""

    protocol: str
    metadata: str
    assignment: str


def kept(records: Sequence[ConsumerRecord[bytes | None, bytes | None]], partitions: int) -> list[StoredRecord]:
    """Those worth keeping: different ones, and few of a key."""
    chosen: dict[tuple[bytes | None, bytes | None], StoredRecord] = {}
    seen: dict[bytes | None, int] = {}
    for record in records:
        of_key = seen.get(record.key, 0)
        if (record.key, record.value) in chosen or (of_key >= _OF_ONE_KEY and record.value is not None):
            continue
        seen[record.key] = of_key + 1
        chosen[record.key, record.value] = StoredRecord(
            record.partition, partitions, _text(record.key), _text(record.value)
        )
    return list(chosen.values())


def save(name: str, entries: Iterable[StoredRecord | StoredMember]) -> None:
    FOLDER.mkdir(exist_ok=True)
    lines = [json.dumps(asdict(entry), ensure_ascii=False) for entry in entries]
    (FOLDER / f"{name}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def load_records(name: str) -> list[StoredRecord]:
    return [StoredRecord(**entry) for entry in _load(name)]


def load_members(name: str) -> list[StoredMember]:
    return [StoredMember(**entry) for entry in _load(name)]


def _load(name: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return entries


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()
