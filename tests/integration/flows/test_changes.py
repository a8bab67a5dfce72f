"""The Changes page's data of a running mirror: what it would change, what differs, and who did what."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.kit.clients import cluster_and_admin
from tests.kit.copies import await_records, write
from tests.kit.processes import wait_until
from tests.kit.rest_client import RestClient
from tests.kit.shared_mirror import CHANGES, TARGET, SharedMirror
from tests.kit.topics import make_topics

pytestmark = pytest.mark.integration

DEADLINE_S = 200.0
NAME = "MirrorSourceConnector"
TOPIC, REMOTE = f"{CHANGES}-topic", f"{CHANGES}.{CHANGES}-topic"
RECORDS = 100


def test_plan_drift_and_audit_of_a_running_mirror(shared: SharedMirror) -> None:
    base, worker = f"/{CHANGES}/{TARGET}/connectors/{NAME}", RestClient(f"{shared.url}/")
    asyncio.run(make_topics(shared.us.bootstrap, {TOPIC: 2}))
    asyncio.run(write(shared.us, TOPIC, RECORDS, partitions=2))
    await_records(shared.mirror, shared.eu.bootstrap, REMOTE, 2 * RECORDS, DEADLINE_S)
    config = worker.ask("GET", f"{base}/config")
    worker.ask("PUT", f"{base}/config", {**config, "x.api.key": "s3cret-Zq7", "refresh.topics.interval.seconds": "7"})
    worker.ask("PUT", f"{base}/pause")

    async def grow() -> None:
        async with cluster_and_admin(shared.eu.bootstrap) as (_, admin):
            assert await admin.create_partitions({REMOTE: 9}) == {REMOTE: None}

    asyncio.run(grow())

    # The controller answers who adds partitions; the broker hears of them a moment later.
    def drifted() -> Any:
        found = worker.ask("GET", f"{base}/drift?search=PARTITIONS")
        return found if found["rows"] else None

    def audited() -> list[dict[str, Any]]:
        return [one for one in worker.ask("GET", f"{base}/audit")["entries"] if one["by"] == "rest"]

    drift = wait_until(drifted, DEADLINE_S, "the partitions are seen")
    plan = worker.ask("GET", f"{base}/plan")
    assert (plan["rows"], plan["counts"], plan["unknown"]) == ([], {}, [])
    (row,) = drift["rows"]
    assert row[:3] == ["extra partitions", "eu", REMOTE] and row[3].startswith("9, the source has")
    assert drift["command"] == f"heliograph plan mm2.properties --flow '{CHANGES}->eu' --drift"
    wait_until(lambda: len(audited()) == 2, DEADLINE_S, "both requests are in the audit")
    pause, put = audited()
    path = f"/{CHANGES}/eu/connectors/{NAME}/pause"
    assert (pause["action"], pause["subject"], pause["status"]) == ("PUT", path, 202)
    assert put["changed"]["x.api.key"] == [None, "[hidden]"]
    assert put["changed"]["refresh.topics.interval.seconds"] == ["1", "7"]
    found = worker.ask("GET", f"{base}/audit?search=topic-created")["entries"]
    assert REMOTE in {one["subject"] for one in found} and {one["by"] for one in found} == {"worker"}
    assert "s3cret-Zq7" not in json.dumps(worker.ask("GET", f"{base}/audit?top=1000"))
