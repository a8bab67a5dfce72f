"""``heliograph lag`` against brokers, with no worker and nothing stored."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from connect.cli.commands.lag_and_status import run_lag
from connect.embedded.brokers import KafkaCluster
from tests.kit.direct import Broker
from tests.kit.topics import make_topics

pytestmark = pytest.mark.integration


def test_what_nobody_has_copied_yet_is_all_behind(
    us: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = Broker(us, 0)
    asyncio.run(make_topics(us.bootstrap, {"lag-orders": 2}))
    broker.produce("lag-orders", 0, 20)
    broker.delete_records("lag-orders", 5)
    file = tmp_path / "mm2.properties"
    file.write_text(
        "clusters = lags, eu\nlags->eu.enabled = true\nlags->eu.topics = lag-.*\n"
        "lags->eu.heartbeats.replication.enabled = false\n"  # the cluster is shared with mirrors that beat
        f"lags.bootstrap.servers = {us.bootstrap}\neu.bootstrap.servers = {us.bootstrap}\n"
    )
    assert run_lag(file, flow="lags->eu", top=5, as_json=True) == 0
    (reported,) = json.loads(capsys.readouterr().out)
    (first,) = reported["furthest"]
    assert (reported["partitions"], reported["records"], first["records"], first["lost"]) == (2, 15, 15, 0)
    assert reported["bytes"] > 0
    assert 0 <= reported["ms"] < 3_600_000
    assert run_lag(file, flow=None, top=5, as_json=False) == 0
    assert "lags->eu: 15 records behind in 2 partitions" in capsys.readouterr().out
