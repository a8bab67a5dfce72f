"""A user's message handler: made by its name, asked, and what it answers looked at before anything is sent."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from typing import Any, Final

from connect.api.message_handler import MessageHandler, MirroredRecord
from connect.core.errors import PermanentError
from connect.wire.header_keys import is_text, readable

_NO_TIMESTAMP: Final = -1
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


class HandlerUnusable(PermanentError):
    """A message handler cannot be made where records are copied."""


class NoTarget(PermanentError):
    """A record cannot be sent to where it is to go."""


@dataclass(frozen=True, slots=True)
class HandlerPlan:
    """``reference``: where the class is imported from, ``package.module:Class``; ``args``: None for none."""

    reference: str
    args: str | None = None

    def make(self) -> MessageHandler:
        """Raises HandlerUnusable; what a handler of other people says may hold secrets, so only its type is told."""
        try:
            found = pkgutil.resolve_name(self.reference)
        except (ImportError, AttributeError, ValueError) as error:
            raise HandlerUnusable(
                f"message handler {self.reference} cannot be imported ({type(error).__name__}); write "
                "package.module:Class, and install its package for the Python of every executor"
            ) from error
        try:
            made = found() if self.args is None else found(self.args)
        except MemoryError:  # which says nothing of the handler
            raise
        except Exception as error:
            raise HandlerUnusable(f"message handler {self.reference} cannot be made: {type(error).__name__}") from error
        if not callable(getattr(made, "handle", None)):
            raise HandlerUnusable(f"message handler {self.reference} has no method handle(record)")
        handler: MessageHandler = made
        return handler


def answers(handler: MessageHandler, record: MirroredRecord) -> list[MirroredRecord]:
    """What is sent in the place of a record. Raises NoTarget where the handler raises, or answers with no records.

    It is shown headers with keys that are text, as Java's is; those that it gives back keep the bytes of theirs.
    """
    shown = tuple((readable(key), value) for key, value in record.headers)
    own = {id(one): header for one, header in zip(shown, record.headers, strict=True)}
    try:
        given: Any = handler.handle(record._replace(headers=shown))
        found = [] if isinstance(given, MirroredRecord) else list(given)
    except MemoryError:  # which says nothing of the record
        raise
    except Exception as error:  # of other people; what it says may hold what stands in the record
        raise NoTarget(f"the message handler raised {type(error).__name__}, or gave nothing to go through") from error
    if isinstance(given, MirroredRecord):
        raise NoTarget("the message handler gave a record, where a list of records is expected")
    for one in found:
        if (wrong := _wrong(one)) is not None:
            raise NoTarget(f"the message handler gave {wrong}")
    return [one._replace(headers=tuple(own.get(id(header), header) for header in one.headers)) for one in found]


def _wrong(given: object) -> str | None:
    """What is wrong with one record of an answer; values stay untold, for they are the user's."""
    if not isinstance(given, MirroredRecord):
        return f"an object of type {type(given).__name__}, where a MirroredRecord is expected"
    said: dict[str, Any] = given._asdict()  # other people's, whatever the types say
    expected = {
        "topic": ("a name", isinstance(said["topic"], str) and said["topic"] != ""),
        "partition": ("a number or None", said["partition"] is None or _is_within(said["partition"], 0, _INT32_MAX)),
        "timestamp_ms": ("milliseconds, or -1", _is_within(said["timestamp_ms"], _NO_TIMESTAMP, _INT64_MAX)),
        "key": ("bytes or None", isinstance(said["key"], bytes | None)),
        "value": ("bytes or None", isinstance(said["value"], bytes | None)),
        "headers": ("pairs of str and bytes or None", _are_headers(said["headers"])),
    }
    for name, (what, is_so) in expected.items():
        if not is_so:
            return f"a record whose {name} ({type(said[name]).__name__}) is not {what}"
    return None


def _is_within(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _are_headers(headers: object) -> bool:
    return isinstance(headers, list | tuple) and all(
        isinstance(one, tuple | list) and len(one) == 2 and _is_text(one[0]) and isinstance(one[1], bytes | None)
        for one in headers
    )


def _is_text(name: object) -> bool:
    return isinstance(name, str) and is_text(name)
