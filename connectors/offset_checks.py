"""What offsets may be altered to over REST, in Java's words (Kafka's ``MirrorUtils.validateSource...``). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from connect.core.errors import PermanentError

_MOST: Final = (1 << 31) - 1


def require_string(partition: Mapping[str, Any], key: str) -> None:
    """Raise PermanentError unless the source partition has a string under ``key``."""
    value = _required(partition, key)
    if not isinstance(value, str):
        raise _invalid(partition, key, "must be a string")


def require_partition(partition: Mapping[str, Any]) -> None:
    """Raise PermanentError unless the source partition has a partition's number under ``partition``."""
    value = _required(partition, "partition")
    if not isinstance(value, int) or isinstance(value, bool) or value > _MOST:
        raise _invalid(partition, "partition", "must be an integer")
    if value < 0:
        raise _invalid(partition, "partition", "cannot be negative")


def require_offset(partition: Mapping[str, Any], offset: Mapping[str, Any], *, only_zero: bool) -> None:
    """Raise PermanentError unless ``offset`` has an offset under ``offset``: 0 where ``only_zero``, else 0 or more."""
    where = f"Source offset {_shown(offset)} for source partition {_shown(partition)}"
    if "offset" not in offset:
        raise PermanentError(f"{where} is missing the 'offset' key, which is required")
    value = offset["offset"]
    wrong = f"{where} has an invalid value {_shown(value)} for the 'offset' key"
    if not isinstance(value, int) or isinstance(value, bool):
        raise PermanentError(f"{wrong}, which must be an integer")
    if only_zero and value:
        raise PermanentError(f"{wrong}; the only accepted value is 0")
    if value < 0:
        raise PermanentError(f"{wrong}, which cannot be negative")


def _required(partition: Mapping[str, Any], key: str) -> Any:
    if key not in partition:
        raise PermanentError(f"Source partition {_shown(partition)} is missing the '{key}' key, which is required")
    return partition[key]


def _invalid(partition: Mapping[str, Any], key: str, why: str) -> PermanentError:
    return PermanentError(
        f"Source partition {_shown(partition)} has an invalid value {_shown(partition[key])} for the '{key}' key, "
        f"which {why}"
    )


def _shown(value: object) -> str:
    """As Java prints it."""
    match value:
        case Mapping():
            return "{" + ", ".join(f"{name}={_shown(each)}" for name, each in value.items()) + "}"
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case _:
            return str(value)
