"""Interface of a message handler for ``kafka-mirror-maker`` (Kafka's ``MirrorMakerMessageHandler``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class MirroredRecord(NamedTuple):
    """A record. For a record passed to a handler, ``partition`` and ``offset`` are its position in the source. A
    returned record goes to ``partition`` of ``topic``. If ``partition`` is None, the key decides, and records without a
    key are spread over all partitions. Its ``offset`` is ignored. ``timestamp_ms`` is -1 if there is none."""

    topic: str
    partition: int | None
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class MessageHandler(Protocol):
    """A handler, created once per copying process, without arguments or with the text of ``--message.handler.args``."""

    def handle(self, record: MirroredRecord) -> Iterable[MirroredRecord]:
        """Return the records to send in place of ``record``, in order; none skips it. An error stops the partition, or
        skips the record with ``--abort.on.send.failure false``."""
