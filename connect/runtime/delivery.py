"""What at-least-once and exactly-once do differently with the records of a task."""

from __future__ import annotations

from typing import Final, Protocol

from connect.api.source import SourceRecord
from connect.core.errors import HeliographError
from connect.runtime.record_producer import OutgoingRecord

#: Kafka's producer is given so long to send what it has when a task ends.
CLOSE_S: Final = 30.0


class SendFailed(HeliographError):
    """A record could not be sent; the reason is the cause."""


class Delivery(Protocol):
    """How records get to Kafka and offsets into their topic, driven by the loop of a task."""

    async def start(self) -> None:
        """Before the task starts: connect, and under exactly-once shut out predecessors."""
        ...

    def enter(self) -> None:
        """The loop begins, at first or after a pause."""
        ...

    def before_poll(self) -> None:
        """Raises what happened to records sent before and is fatal."""
        ...

    async def send(self, record: SourceRecord, outgoing: OutgoingRecord) -> None:
        """Hand over a record as the task made it and as it is sent.

        Raises:
            RetriableError: not now; the same may be handed over again.
            PermanentError: never.
        """
        ...

    async def dropped(self, record: SourceRecord) -> None:
        """A record is left out."""
        ...

    async def batch_done(self) -> None:
        """All that one poll returned was handed over; also where it returned nothing."""
        ...

    async def pause(self) -> None:
        """The task pauses."""
        ...

    async def finish(self, *, failed: bool) -> None:
        """No more records come: store what can be stored. ``failed``: an error has ended the loop."""
        ...

    async def close(self, timeout_s: float) -> None:
        """Send and store nothing more but what can be sent within ``timeout_s``, and let go of everything. Also while
        another method is under way; none of them does anything after it."""
        ...
