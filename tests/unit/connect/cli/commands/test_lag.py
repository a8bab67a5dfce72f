"""``heliograph lag``: headline of a flow, and the command that starts one whose connector is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from connect.cli.commands.lag import _rest_url, _stopped, show_lags
from connectors.config.mm2_properties import Flow, load
from connectors.flow_progress import FlowLag, PartitionLag

FILE = "clusters = us, eu\nus->eu.enabled = true\n"


@pytest.mark.parametrize(
    ("more", "url"),
    [
        ("", "URL"),
        ("dedicated.mode.enable.public.rest = true", "http://localhost:8083/us/eu"),
        ("dedicated.mode.enable.public.rest = true\nlisteners = https://:9", "https://localhost:9/us/eu"),
        ("dedicated.mode.enable.public.rest = true\nlisteners = http://mirror:9", "http://mirror:9/us/eu"),
    ],
)
def test_the_address_is_that_of_the_file(tmp_path: Path, more: str, url: str) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(FILE + more)
    assert _rest_url(Flow(load(file), "us", "eu")) == url


def test_a_connector_that_is_stopped_comes_with_its_command() -> None:
    stopped, paused = (_stopped("Source", state, "http://one:1/us/eu") for state in ("STOPPED", "PAUSED"))
    assert stopped is not None and paused is not None
    assert stopped.endswith("heliograph connectors resume Source --rest http://one:1/us/eu")
    assert "run heliograph failback" in stopped and "failback" not in paused
    assert _stopped("Source", "RUNNING", "http://one:1/us/eu") is None


COPIED = PartitionLag("orders", 0, "us.orders", 5, 5, 0)
WHY = {"us->eu": "cluster us: no broker answers"}


@pytest.mark.parametrize(
    ("lag", "line"),
    [
        (FlowLag(()), "nothing to copy: 0 partitions"),
        (FlowLag((COPIED,)), "no lag in 1 partition"),
        (FlowLag((COPIED,), {"orders-1": "no leader"}), "no lag in 1 partition, 1 partition not checked"),
        (FlowLag((), {"orders-1": "no leader"}), "lag unknown, 1 partition not checked"),
        (FlowLag(()).lost("us->eu", "no"), "lag unknown since the start, partitions unknown"),
        (FlowLag((COPIED,)).lost("us->eu", "no"), "lag unknown since the start in 1 partition"),
    ],
)
def test_it_never_calls_copied_what_it_could_not_look_at(
    lag: FlowLag, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show_lags([{"flow": "us->eu", **lag.to_json(0), "problem": None}])
    assert capsys.readouterr().out.splitlines()[0] == f"us->eu: {line}"
