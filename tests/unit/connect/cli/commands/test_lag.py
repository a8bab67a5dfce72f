"""``heliograph lag``: headline of a flow, and the address of its worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from connect.cli.commands.flow_looks import FlowSeen, rest_url
from connect.cli.commands.lag import show_lags
from connectors.config.mm2_properties import Flow, load
from connectors.flow_facts import FlowFacts, Trend
from connectors.flow_progress import NOTHING_KNOWN, FlowLag, PartitionLag
from connectors.formats.types import FlowName

FILE = "clusters = us, eu\nus->eu.enabled = true\n"


@pytest.mark.parametrize(
    ("more", "url"),
    [
        ("", ""),
        ("dedicated.mode.enable.public.rest = true", "http://localhost:8083/us/eu"),
        ("dedicated.mode.enable.public.rest = true\nlisteners = https://:9", "https://localhost:9/us/eu"),
        ("dedicated.mode.enable.public.rest = true\nlisteners = http://mirror:9", "http://mirror:9/us/eu"),
    ],
)
def test_the_address_is_that_of_the_file(tmp_path: Path, more: str, url: str) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(FILE + more)
    assert rest_url(Flow(load(file), "us", "eu")) == url


COPIED = PartitionLag("orders", 0, "us.orders", 5, 5, 0)
WHY = {"us->eu": "cluster us: no broker answers"}


@pytest.mark.parametrize(
    ("lag", "line"),
    [
        (FlowLag(()), "no partition to copy"),
        (FlowLag((COPIED,)), "no lag in 1 partition"),
        (FlowLag((COPIED,), {"orders-1": "no leader"}), "no lag in 1 partition, 1 partition not checked"),
        (FlowLag((), {"orders-1": "no leader"}), "lag unknown, 1 partition not checked"),
        (FlowLag(()).lost("us->eu", "no"), "lag unknown"),
        (FlowLag((COPIED,)).lost("us->eu", "no"), "lag unknown in 1 partition"),
    ],
)
def test_it_never_calls_copied_what_it_could_not_look_at(
    lag: FlowLag, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = FlowFacts(FlowName("us", "eu"), 0, lag=Trend().lag_facts(lag))
    show_lags([FlowSeen(facts, {**lag.to_json(0), **NOTHING_KNOWN.to_json(0)})])
    assert capsys.readouterr().out.splitlines()[0] == f"us->eu: {line}"
