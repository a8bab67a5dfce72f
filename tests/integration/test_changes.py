"""The Changes page's data of a running mirror: what it would change, what differs, and who did what."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from connect.embedded.brokers import KafkaCluster
from connect.kafka.log.topic_admin import Admin
from connect.kafka.security.connection_settings import connection_settings
from tests.integration.test_confined import RECORDS, TOPIC, copied, write
from tests.kit.mirror import Mirror, one_flow, with_rest
from tests.kit.processes import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

DEADLINE_S = 240.0
NAME = "MirrorSourceConnector"


def ask(url: str, method: str = "GET", body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def test_plan_drift_and_audit_of_a_running_mirror(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    asyncio.run(write(us.bootstrap))
    rest = with_rest()
    properties = {**one_flow(us.bootstrap, eu.bootstrap, TOPIC, tasks=1), **rest, "audit.enable": "true"}
    base = f"{rest['listeners']}/us/eu/connectors/{NAME}"
    with Mirror(properties, tmp_path) as mirror:
        mirror.start()
        wait_until(lambda: copied(mirror, eu.bootstrap) == RECORDS, DEADLINE_S, "all is copied", 0.5)
        config = ask(f"{base}/config")
        ask(f"{base}/config", "PUT", {**config, "x.api.key": "s3cret-Zq7", "refresh.topics.interval.seconds": "7"})
        ask(f"{base}/pause", "PUT")

        async def grow() -> None:
            admin = Admin(connection_settings({"bootstrap.servers": eu.bootstrap}, client_id="grow", where="test"))
            assert await admin.create_partitions({f"us.{TOPIC}": 9}) == {f"us.{TOPIC}": None}
            await admin.close()

        asyncio.run(grow())
        # The controller answers who adds partitions; the broker hears of them a moment later.
        drift = wait_until(lambda: drifted(base), DEADLINE_S, "the partitions are seen", 0.2)
        plan = ask(f"{base}/plan")
        assert (plan["rows"], plan["counts"], plan["unknown"]) == ([], {}, [])
        (row,) = drift["rows"]
        assert row[:3] == ["extra partitions", "eu", f"us.{TOPIC}"] and row[3].startswith("9, the source has")
        assert drift["command"] == "heliograph plan mm2.properties --flow 'us->eu' --drift"
        wait_until(lambda: len(audited(base, "rest")) == 2, DEADLINE_S, "both requests are in the audit", 0.2)
        pause, put = audited(base, "rest")
        assert (pause["action"], pause["subject"], pause["status"]) == ("PUT", f"/us/eu/connectors/{NAME}/pause", 202)
        assert put["changed"]["x.api.key"] == [None, "[hidden]"]
        assert put["changed"]["refresh.topics.interval.seconds"] == [None, "7"]
        found = ask(f"{base}/audit?search=topic-created")["entries"]
        assert f"us.{TOPIC}" in {one["subject"] for one in found} and {one["by"] for one in found} == {"worker"}
        assert "s3cret-Zq7" not in json.dumps(ask(f"{base}/audit?top=1000"))
        assert mirror.stop() == 0


def drifted(base: str) -> Any:
    """The report of what differs in partitions; None where nothing does."""
    found = ask(f"{base}/drift?search=PARTITIONS")
    return found if found["rows"] else None


def audited(base: str, by: str) -> list[dict[str, Any]]:
    return [one for one in ask(f"{base}/audit")["entries"] if one["by"] == by]
