"""The Changes page's data of a running mirror: what it would change, what differs, and who did what."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

import pytest

from tests.kit.clients import cluster_and_admin
from tests.kit.copies import read_all, write
from tests.kit.processes import wait_until
from tests.kit.shared_mirror import CHANGES, TARGET, SharedMirror
from tests.kit.topics import make_topics

pytestmark = pytest.mark.integration

DEADLINE_S = 200.0
NAME = "MirrorSourceConnector"
TOPIC, REMOTE = f"{CHANGES}-topic", f"{CHANGES}.{CHANGES}-topic"
RECORDS = 100


def ask(url: str, method: str = "GET", body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def test_plan_drift_and_audit_of_a_running_mirror(shared: SharedMirror) -> None:
    base = f"{shared.url}/{CHANGES}/{TARGET}/connectors/{NAME}"
    asyncio.run(make_topics(shared.us.bootstrap, {TOPIC: 2}))
    asyncio.run(write(shared.us, TOPIC, RECORDS, partitions=2))
    wait_until(
        lambda: len(asyncio.run(read_all(shared.eu.bootstrap, REMOTE))) == 2 * RECORDS, DEADLINE_S, "all is copied"
    )
    config = ask(f"{base}/config")
    ask(f"{base}/config", "PUT", {**config, "x.api.key": "s3cret-Zq7", "refresh.topics.interval.seconds": "7"})
    ask(f"{base}/pause", "PUT")

    async def grow() -> None:
        async with cluster_and_admin(shared.eu.bootstrap) as (_, admin):
            assert await admin.create_partitions({REMOTE: 9}) == {REMOTE: None}

    asyncio.run(grow())
    # The controller answers who adds partitions; the broker hears of them a moment later.
    drift = wait_until(lambda: drifted(base), DEADLINE_S, "the partitions are seen")
    plan = ask(f"{base}/plan")
    assert (plan["rows"], plan["counts"], plan["unknown"]) == ([], {}, [])
    (row,) = drift["rows"]
    assert row[:3] == ["extra partitions", "eu", REMOTE] and row[3].startswith("9, the source has")
    assert drift["command"] == f"heliograph plan mm2.properties --flow '{CHANGES}->eu' --drift"
    wait_until(lambda: len(audited(base, "rest")) == 2, DEADLINE_S, "both requests are in the audit")
    pause, put = audited(base, "rest")
    path = f"/{CHANGES}/eu/connectors/{NAME}/pause"
    assert (pause["action"], pause["subject"], pause["status"]) == ("PUT", path, 202)
    assert put["changed"]["x.api.key"] == [None, "[hidden]"]
    assert put["changed"]["refresh.topics.interval.seconds"] == ["1", "7"]
    found = ask(f"{base}/audit?search=topic-created")["entries"]
    assert REMOTE in {one["subject"] for one in found} and {one["by"] for one in found} == {"worker"}
    assert "s3cret-Zq7" not in json.dumps(ask(f"{base}/audit?top=1000"))


def drifted(base: str) -> Any:
    """The report of what differs in partitions; None where nothing does."""
    found = ask(f"{base}/drift?search=PARTITIONS")
    return found if found["rows"] else None


def audited(base: str, by: str) -> list[dict[str, Any]]:
    return [one for one in ask(f"{base}/audit")["entries"] if one["by"] == by]
