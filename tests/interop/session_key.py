"""The key that a group's leader published to sign internal requests with (KIP-507), read from the config topic."""

from __future__ import annotations

import asyncio
import base64
import json

from tests.kit.copies import read_all


def read_session_key(bootstrap: str, config_topic: str) -> bytes:
    """The newest one's bytes. Raises LookupError where there is none. Not for a running loop."""
    values = [
        record.value
        for record in asyncio.run(read_all(bootstrap, config_topic))
        if record.key == b"session-key" and record.value is not None
    ]
    if not values:
        raise LookupError(f"{config_topic} holds no session key")
    return base64.b64decode(json.loads(values[-1])["key"])
