"""One reader of an offset map for all checkpoint tasks of a worker: each would read and hold the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

from connect.kafka.cluster import Cluster
from connect.kafka.long_log import LongLogs
from connect.kafka.settings import ConnectionSettings
from connectors.map_reader import MapReader


@dataclass(slots=True)
class _Shared:
    settings: ConnectionSettings
    topic: str
    cluster: Cluster
    reader: MapReader
    users: int = 0


class SharedMaps:
    """Of one worker. Its readers have connections of their own, which close with the last user."""

    def __init__(self, long_logs: LongLogs | None = None) -> None:
        self._long_logs = long_logs
        self._shared: list[_Shared] = []

    def join(self, settings: ConnectionSettings, name: str, topic: str) -> MapReader:
        """Return the reader of ``topic`` on a cluster; call :meth:`leave` once for it."""
        anybody = replace(settings, client_id="")
        found = next((one for one in self._shared if (one.settings, one.topic) == (anybody, topic)), None)
        if found is None:
            cluster = Cluster(settings, name, long_logs=self._long_logs)
            found = _Shared(anybody, topic, cluster, MapReader(cluster, topic, connector=None))
            self._shared.append(found)
        found.users += 1
        return found.reader

    async def leave(self, reader: MapReader) -> None:
        """Let go of a reader."""
        for one in [one for one in self._shared if one.reader is reader]:
            one.users -= 1
            if not one.users:
                self._shared.remove(one)
                await one.cluster.close()
