"""``heliograph lag``: headline of a flow, and the address of its worker; ``heliograph status``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from connect.cli.commands.flow_looks import FlowSeen, facts_of_worker, rest_url
from connect.cli.commands.flow_page import FlowPage, sparkline
from connect.cli.commands.lag_and_status import run_status, show_lags, show_statuses
from connect.cli.commands.rest_client import RestClient
from connect.core.errors import ConfigError
from connectors.config.mm2_properties import Flow, load
from connectors.flow_facts import FlowFacts, LagFacts, OtherFacts, PartitionFacts, TaskFacts, Trend
from connectors.flow_progress import NOTHING_KNOWN, FlowLag, PartitionLag
from connectors.formats.types import FlowName, TopicPartition
from tests.kit.workers import PROGRAMS

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


NO_LAG = PartitionLag("orders", 0, "us.orders", 5, 5, 0)
WHY = {"us->eu": "cluster us: no broker answers"}


@pytest.mark.parametrize(
    ("lag", "line"),
    [
        (FlowLag(()), "no partition to copy"),
        (FlowLag((NO_LAG,)), "no lag in 1 partition"),
        (FlowLag((NO_LAG,), {"orders-1": "no leader"}), "no lag in 1 partition, 1 partition not checked"),
        (FlowLag((), {"orders-1": "no leader"}), "lag unknown, 1 partition not checked"),
        (FlowLag(()).lost("us->eu", "no"), "lag unknown"),
        (FlowLag((NO_LAG,)).lost("us->eu", "no"), "lag unknown in 1 partition"),
    ],
)
def test_it_never_calls_copied_what_it_did_not_see(lag: FlowLag, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    facts = FlowFacts(FlowName("us", "eu"), 0, lag=Trend().lag_facts(lag))
    show_lags([FlowSeen(facts, {**lag.to_json(0), **NOTHING_KNOWN.to_json(0)})])
    assert capsys.readouterr().out.splitlines()[0] == f"us->eu: {line}"


COPIED = LagFacts(partitions=6, records=0, ms=0)
FACTS = FlowFacts(FlowName("us", "eu"), 0, lag=COPIED, file="mm2.properties")
FAILED = replace(FACTS, tasks=(TaskFacts(0, "RUNNING"), TaskFacts(1, "FAILED", "w:8083", "OSError: disk full")))
WAITING = {"topic": "orders", "partition": 3, "records": 12_000, "ms": 61_000}


def seen(facts: FlowFacts, *furthest: dict[str, Any]) -> FlowSeen:
    return FlowSeen(facts, {"flow": str(facts.flow), "furthest": furthest, "unknown": {}}, "0.4 s ago")


class Worker:
    """Answers like a worker of us->eu with a failed task of checkpoints, and a connector of another flow."""

    shown_url = "http://localhost:8083/us/eu"
    path = staticmethod(RestClient.path)

    def ask(self, _method: str, path: str) -> Any:
        assert path == "/connectors/source/verdict"
        return {"facts": replace(FAILED, connector="source").to_wire()}

    def connectors(self, _: str) -> dict[str, Any]:
        failed = {"id": 1, "state": "FAILED", "trace": "Traceback x\nOSError: disk full"}
        return {
            "source": self._one("us", "eu", "a.b.MirrorSourceConnector", [{"id": 0, "state": "RUNNING"}, failed]),
            "marks": self._one("us", "eu", "MirrorCheckpointConnector", [failed]),
            "other": self._one("ap", "eu", "MirrorSourceConnector", [failed]),
        }

    def _one(self, source: str, target: str, kind: str, tasks: list[dict[str, Any]]) -> dict[str, Any]:
        config = {"connector.class": kind, "source.cluster.alias": source, "target.cluster.alias": target}
        return {"info": {"config": config}, "status": {"connector": {"state": "RUNNING"}, "tasks": tasks}}


def test_a_worker_adds_what_failed_in_the_flows_other_connectors() -> None:
    facts = facts_of_worker(cast("RestClient", Worker()), FlowName("us", "eu"))
    assert facts is not None
    assert facts.connector == "source"
    assert facts.tasks == FAILED.tasks
    assert (facts.rest, facts.others) == (Worker.shown_url, (OtherFacts("marks", 1, "OSError: disk full"),))
    assert facts_of_worker(cast("RestClient", Worker()), FlowName("us", "ap")) is None


def test_the_table_the_sentences_and_what_to_do_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show_statuses([seen(replace(FAILED, rest="URL"))])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "us->eu failed 0 records 0.4 s ago" in lines
    restart = "heliograph connectors restart MirrorSourceConnector --tasks --failed --rest URL"
    assert lines[-3:] == [
        "us->eu does not copy the partitions of 1 of 2 tasks: task 1 failed: OSError: disk full.",
        f"Do: task 1 of MirrorSourceConnector: remove the cause, then restart: {restart}",
        "Failover us->eu: A failover could start now, and no record would be lost.",
    ]


def drawn(page: FlowPage, width: int, height: int) -> list[str]:
    screen = Console(width=width, height=height, force_terminal=True, color_system=None, highlight=False)
    return ["".join(part.text for part in line).rstrip() for line in screen.render_lines(page.drawn(screen), pad=False)]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_the_page_fits_and_names_the_worst_first(width: int, height: int) -> None:
    quarantined = PartitionFacts(TopicPartition("orders", 3), "QUARANTINED", "refused")
    stopped = replace(FACTS, stopped=(quarantined,), stopped_count=1)
    page = FlowPage("heliograph status mm2.properties")
    many = [{**WAITING, "topic": f"t{number:02}"} for number in range(40)]
    page.take([seen(replace(FACTS, flow=FlowName("eu", "us"))), seen(stopped, WAITING, *many)], "14:03:02 UTC")
    lines = drawn(page, width, height)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    assert lines[0].startswith("heliograph status mm2.properties")
    assert "14:03:02 UTC" in lines[0]
    assert text.index("us->eu") < text.index("eu->us") < text.index("us->eu does not copy 1 partition")
    rows = [line.split() for line in lines if "12,000" in line]
    assert rows[0][1:] == ["orders-3", "12,000", "1", "min", "1", "s", "QUARANTINED"]
    assert len(rows) > 3
    assert "Failover us->eu: A failover could start now" in text


def test_a_sparkline_goes_from_zero_and_shows_what_is_unknown() -> None:
    assert sparkline([0, 50, 100, -1]) == "▁▄█·"
    assert sparkline([0, 0]) == "▁▁"


def test_a_page_needs_a_terminal(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="--watch needs a terminal"):
        run_status(tmp_path / "mm2.properties", rest=(), as_json=False, every_s=2.0)


def test_a_page_says_that_a_worker_does_not_answer_and_ctrl_c_ends_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as worker:
        worker.settimeout(60)
        terminal, its_end = os.openpty()
        url = f"http://127.0.0.1:{worker.getsockname()[1]}"
        command: list[str | Path] = [PROGRAMS / "heliograph", "lag", "--rest", url, "--watch"]
        environment = {**os.environ, "TERM": "xterm"}
        page = subprocess.Popen(command, stdin=its_end, stdout=its_end, stderr=its_end, env=environment)
        try:
            request, _ = worker.accept()
            with request:
                shown = b""
                while b"no answer for 5 s" not in shown:
                    shown += os.read(terminal, 65536)
                page.send_signal(signal.SIGINT)
                assert page.wait(30) == 0
        finally:
            page.kill()
            page.wait()
            os.close(its_end)
            os.close(terminal)


def test_a_page_needs_a_terminal_that_can_be_drawn_on(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(ConfigError, match="Set TERM"):
        run_status(tmp_path / "mm2.properties", rest=(), as_json=False, every_s=2.0)
