"""``autoRestart`` of a connector in a Strimzi resource, as keys of the connector's config."""

from __future__ import annotations

from connect.core.auto_restart import ENABLED, MAX_BACKOFF_MINUTES, MAX_RESTARTS
from connectors.strimzi.documents import Node


def auto_restart(connector: Node) -> dict[str, str]:
    """Return the keys that a connector's field sets. Raises ConfigError for a wrong number."""
    found = connector.field("autoRestart")
    if found.value is None:
        return {}
    keys = {ENABLED: "false" if found.field("enabled").text() == "false" else "true"}
    for name, key, least in (("maxRestarts", MAX_RESTARTS, 0), ("maxBackoffMinutes", MAX_BACKOFF_MINUTES, 1)):
        value = found.field(name).value
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise found.field(name).error(f"{found.path}.{name} should be a number, {least} or more")
        keys[key] = str(value)
    return keys
