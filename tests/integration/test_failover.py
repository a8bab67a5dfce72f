"""Readers moved to the other cluster and back, by mirrors that keep names, one after the other."""

from __future__ import annotations

import base64
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connect.cli.commands.failover import EXIT_NO_GO, run_failback, run_failover, run_unreplicated
from connect.cli.commands.lag_and_status import run_status
from tests.kit.brokers import KafkaCluster
from tests.kit.processes import wait_until
from tests.kit.two_ways import DEADLINE_S, Running, TwoWays

pytestmark = [pytest.mark.integration, pytest.mark.long]

Capture = pytest.CaptureFixture[str]


def reported(capsys: Capture) -> Any:
    return json.loads(capsys.readouterr().out)


def await_said(capsys: Capture, words: str) -> None:
    wait_until(lambda: words in capsys.readouterr().err, DEADLINE_S, f"the command says {words}")


def test_readers_go_over_and_come_back_to_exactly_the_record_that_is_next(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path, capsys: Capture
) -> None:
    two = TwoWays(us, eu, tmp_path)
    two.begin()
    with two.mirror(two.us, two.eu) as mirror:
        mirror.start()
        over = two.arguments(mirror.properties_file, two.us, two.eu)
        two.await_copied(two.us, two.eu)
        running = Running(replace(over, executes=True))
        await_said(capsys, "Stop it now")
        assert mirror.stop() == 0
        assert running.end() == 0
    assert {one["outcome"] for one in reported(capsys)["proof"]} - {"not compared"} == {"same"}
    to_read = two.left_to_read(two.us)
    assert two.left_to_read(two.eu) == to_read
    assert stopped_by_failover(over.file, two, capsys)

    two.write(two.eu, "second")
    with two.mirror(two.eu, two.us) as mirror:
        back = two.arguments(mirror.properties_file, two.eu, two.us, rewinds=("*",))
        assert run_failback(back) == 0
        assert {one["group"] for one in reported(capsys)["moves"]} == set(two.groups.values())
        running = Running(replace(back, executes=True), run_failback)
        await_said(capsys, "has to run now")
        assert run_failback(replace(back, executes=True)) == EXIT_NO_GO
        assert any(
            "is working on this failover" in obstacle and "failback" in obstacle
            for obstacle in reported(capsys)["obstacles"]
        )
        mirror.start()
        await_said(capsys, "Stop it now")
        assert mirror.stop() == 0
        assert running.end() == 0
    assert {one["outcome"] for one in reported(capsys)["proof"]} - {"not compared"} == {"same"}
    for topic in two.topics:
        assert two.values(two.us, topic) == two.values(two.eu, topic), "nothing came back twice, and nothing is missing"
    assert two.left_to_read(two.us) == two.left_to_read(two.eu)


def stopped_by_failover(file: Path, two: TwoWays, capsys: Capture) -> bool:
    """Whether the status of the flow, which nothing runs, says where its groups are and how they return."""
    assert run_status(file, rest=(), as_json=True) == EXIT_NO_GO
    (flow,) = reported(capsys)["flows"]
    (action,) = flow["actions"]
    assert action["command"] == f"heliograph failback {file} --to {two.us}"
    return flow["state"] == "stopped" and f"a failover to {two.eu} stopped it" in flow["sentence"]


def test_after_a_killed_mirror_what_arrived_and_what_did_not_is_known_to_the_record(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path, capsys: Capture
) -> None:
    """The source counts as gone; once it is back, the two parts are all of it, and no record is in both."""
    two = TwoWays(us, eu, tmp_path)
    two.begin()
    more = {"emit.checkpoints.enabled": "true", "emit.checkpoints.interval.seconds": "1", "lag.interval.ms": "0"}
    with two.mirror(two.us, two.eu, **more) as mirror:
        mirror.start()
        two.await_copied(two.us, two.eu)
        wait_until(
            lambda: len(two.values(two.eu, f"{two.us}.checkpoints.internal")) >= len(two.groups),
            DEADLINE_S,
            "checkpoints",
        )
        before = len(two.values(two.eu, two.topics[0]))
        writing = threading.Thread(target=two.write, args=(two.us, "second", 50), name="writer")
        writing.start()
        wait_until(lambda: len(two.values(two.eu, two.topics[0])) > before, DEADLINE_S, "more is copied")
        mirror.kill()
        writing.join()
        gone = two.arguments(mirror.properties_file, two.us, two.eu, gone=two.us, executes=True)
        assert run_failover(gone) == 0
        assert {one["by"] for one in reported(capsys)["moves"]} == {"checkpoint"}
        assert two.left_to_read(two.eu).keys() == two.left_to_read(two.us).keys()
        export = tmp_path / "export"
        assert run_unreplicated(gone.file, two.us, two.eu, export_to=export, appends=False, as_json=True) == EXIT_NO_GO
    for topic in two.topics:
        file = export / f"{topic}-0.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        left = [base64.b64decode(json.loads(line)["value"]) for line in lines]
        assert [*two.values(two.eu, topic), *left] == two.values(two.us, topic)
