"""The first line that ``heliograph lag`` prints of a flow."""

from __future__ import annotations

import pytest

from connect.cli.commands.lag import show_lags
from connectors.flow_progress import FlowLag, PartitionLag

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
