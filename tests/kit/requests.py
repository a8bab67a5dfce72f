"""The heads of Kafka requests in a byte stream: who asks, and what. Nothing behind the client id is looked at."""

from __future__ import annotations

import struct
from collections import Counter

#: API keys that the harness asks about (Kafka's ``ApiKeys``).
PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, INIT_PRODUCER_ID, DESCRIBE_PRODUCERS = 0, 1, 2, 3, 18, 22, 61

_LENGTH_BYTES = 4
#: length, api key, api version, correlation id, client id length (Kafka ``RequestHeader`` version 1 and 2)
_HEAD = struct.Struct(">ihhih")


class RequestSpotter:
    """Counts requests by API key while a stream goes by in chunks of any size; keeps fewer bytes than one head."""

    def __init__(self) -> None:
        self.client_id: str | None = None
        self.requests: Counter[int] = Counter()
        self._partial = b""
        self._skip_bytes = 0

    def feed(self, data: bytes) -> None:
        """The next bytes of the stream."""
        position = min(self._skip_bytes, len(data))
        self._skip_bytes -= position
        if self._skip_bytes:
            return
        if self._partial:
            data, position = self._partial + data[position:], 0
            self._partial = b""
        while position < len(data):
            head_end = self._head_end(data, position)
            if head_end is None:
                self._partial = data[position:]
                return
            length, api_key, _, _, id_length = _HEAD.unpack_from(data, position)
            self.requests[api_key] += 1
            if self.client_id is None and id_length >= 0:
                self.client_id = data[position + _HEAD.size : head_end].decode("utf-8", "replace")
            frame_end = position + _LENGTH_BYTES + length
            self._skip_bytes = max(0, frame_end - len(data))
            position = max(frame_end, head_end)

    def _head_end(self, data: bytes, position: int) -> int | None:
        """Where the client id ends; None while it has not all arrived."""
        if position + _HEAD.size > len(data):
            return None
        end = position + _HEAD.size
        if self.client_id is None:
            end += max(0, int(_HEAD.unpack_from(data, position)[4]))
        return end if end <= len(data) else None
