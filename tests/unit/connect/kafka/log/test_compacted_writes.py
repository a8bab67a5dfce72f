"""Writes to a compacted topic that have to be tried again; all else of it needs a broker."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from connect.core.errors import ClusterUnreachable
from connect.kafka.cluster import Cluster
from connect.kafka.log import compacted_log
from connect.kafka.log.compacted_log import CompactedLog
from connect.kafka.log.producer import OutRecord
from connect.kafka.security.connection_settings import connection_settings
from tests.kit import virtual_time


def test_each_attempt_asks_anew_for_what_is_to_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[list[bytes]] = []

    class Writer:
        def __init__(self, cluster: Cluster, *, timeout_s: float) -> None: ...

        async def write(self, records: Iterable[OutRecord]) -> None:
            attempts.append([record.key for record in records])
            if len(attempts) == 1:
                wanted.pop()
                raise ClusterUnreachable("away")

    async def main() -> None:
        cluster = Cluster(connection_settings({"bootstrap.servers": "127.0.0.1:1"}, client_id="c", where="test"))
        log = CompactedLog(cluster, "t", lambda record: None, lambda: None)
        await log.write(wanted)
        await cluster.close()

    monkeypatch.setattr(compacted_log, "PlainWriter", Writer)
    wanted = [OutRecord("t", b"k", b"v"), OutRecord("t", b"gone", b"v")]
    virtual_time.run(main())
    assert attempts == [[b"k", b"gone"], [b"k"]]
