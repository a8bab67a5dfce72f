"""Keys of a worker, or of a cluster in an ``mm2.properties``, that Java heeds and nothing here reads. Pure.

For each what takes its place, as the rest of a sentence that begins with the key. A test compares them with the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_RECONNECT: Final = "a connection that is lost is opened again after waits of its own, which grow to a few seconds"
_SETUP: Final = "request.timeout.ms says how long connecting may take too"
_REBOOTSTRAP: Final = "the addresses of bootstrap.servers are tried whenever no known broker answers"
_METRICS: Final = "all metrics are at /metrics, for Prometheus, as they are at that moment"

_INSTEAD: Final[Mapping[str, str]] = {
    "client.dns.lookup": "all addresses of a name are tried, as by use_all_dns_ips",
    "metadata.max.age.ms": "leaders are asked for where they have moved, and topics whenever they matter",
    "metadata.recovery.rebootstrap.trigger.ms": _REBOOTSTRAP,
    "metadata.recovery.strategy": _REBOOTSTRAP,
    "metric.reporters": f"Java classes cannot be loaded here; {_METRICS}",
    "metrics.num.samples": _METRICS,
    "metrics.recording.level": _METRICS,
    "metrics.sample.window.ms": _METRICS,
    "reconnect.backoff.max.ms": _RECONNECT,
    "reconnect.backoff.ms": _RECONNECT,
    "socket.connection.setup.timeout.max.ms": _SETUP,
    "socket.connection.setup.timeout.ms": _SETUP,
}
UNHEEDED: Final[Mapping[str, str]] = {key: f"has no effect: {instead}" for key, instead in _INSTEAD.items()}
