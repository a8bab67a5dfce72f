"""The three connectors under Java's class names, for a worker's plugins."""

from __future__ import annotations

from functools import partial
from typing import Final

from connect.api.plugins import KAFKA_VERSION, PluginDescription, PluginKind
from connectors.checkpoint.connector import MirrorCheckpointConnector, SharedMaps
from connectors.config.definitions import CHECKPOINT, HEARTBEAT, SOURCE
from connectors.heartbeat import MirrorHeartbeatConnector
from connectors.inspection.changes_report import changes_report
from connectors.reports.flow_reports import flow_report
from connectors.source.plugin import MirrorSource
from connectors.source.worker_context import MirrorHost

_PACKAGE: Final = "org.apache.kafka.connect.mirror."


def mirror_plugins(host: MirrorHost) -> tuple[PluginDescription, ...]:
    """Return the descriptions of the connectors, which all use ``host``."""
    kind, maps = PluginKind.SOURCE, SharedMaps(host.long_logs)
    reports = partial(flow_report, host.worker, host.kept)
    return (
        PluginDescription(
            kind,
            _PACKAGE + "MirrorCheckpointConnector",
            lambda: MirrorCheckpointConnector(host.written, maps, reports),
            CHECKPOINT,
            KAFKA_VERSION,
        ),
        PluginDescription(
            kind,
            _PACKAGE + "MirrorHeartbeatConnector",
            lambda: MirrorHeartbeatConnector(host.written),
            HEARTBEAT,
            KAFKA_VERSION,
        ),
        PluginDescription(
            kind, _PACKAGE + "MirrorSourceConnector", lambda: MirrorSource(host, changes_report), SOURCE, KAFKA_VERSION
        ),
    )
