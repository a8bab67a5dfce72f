"""What the author of a message handler for ``kafka-mirror-maker`` sees (Kafka's ``MirrorMakerMessageHandler``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class MirroredRecord(NamedTuple):
    """One record. A handler is given where it stands at the source: ``partition`` and ``offset``.

    What a handler gives back goes to ``partition`` of ``topic``; with ``partition`` None the key says which one, and
    records without a key are spread. ``offset`` means nothing there. ``timestamp_ms`` is -1 where there is none.
    """

    topic: str
    partition: int | None
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class MessageHandler(Protocol):
    """Made once in each process that copies, without arguments or with the text of ``--message.handler.args``."""

    def handle(self, record: MirroredRecord) -> Iterable[MirroredRecord]:
        """The records to send in the place of one, in order; none leaves it out. What is raised stops the partition, or
        leaves the record out with ``--abort.on.send.failure false``."""
        ...
