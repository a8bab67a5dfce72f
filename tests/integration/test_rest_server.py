"""A worker's REST API on a real cluster: the examples of ``docs/rest.md``, except those that need a mirror."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from connect.embedded.brokers import KafkaCluster
from tests.kit import numbers
from tests.kit.documented import blocks, curl, curl_commands, is_like
from tests.kit.processes import wait_until
from tests.kit.rest_client import RestClient
from tests.kit.workers import OurWorker, worker_properties

pytestmark = pytest.mark.integration

#: What the page shows of an error, to which the command that it names leads at the end.
REFUSED = '{"error_code":404,"message":"Connector lines not found"}\n'


@dataclass(frozen=True, slots=True)
class Example:
    command: str
    answer: Any


def examples() -> list[Example]:
    found: list[Example] = []
    for language, text in blocks("rest.md"):
        if language == "sh":
            found += [Example(command, None) for command in curl_commands(text)]
        elif language == "json" and text != REFUSED:
            found[-1] = Example(found[-1].command, json.loads(text))
    return found


@pytest.fixture
def worker(us: KafkaCluster, tmp_path: Path) -> Iterator[OurWorker]:
    properties = worker_properties(us.bootstrap, f"docs-{uuid.uuid4().hex[:8]}")
    with OurWorker(properties, tmp_path, variables=numbers.environment(tmp_path, "one")) as worker:
        worker.await_ready()
        yield worker
        assert worker.stop() == 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page's examples are for curl")
def test_the_examples_of_the_page(worker: OurWorker, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("one\ntwo\n")
    here = {"localhost:8083/": worker.url, "/tmp/lines.txt": str(file)}
    ran = examples()
    assert len(ran) > 30
    for example in ran:
        give_up_s = time.monotonic() + 60
        status, body = curl(example.command, here)
        # A task is there a moment after its connector, and a rebalance has its own time.
        while status in (404, 409) and time.monotonic() < give_up_s:
            time.sleep(0.1)
            status, body = curl(example.command, here)
        assert 200 <= status < 300, (example.command, status, body)
        if example.answer is not None:
            shown = json.loads(json.dumps(example.answer).replace("/tmp/lines.txt", str(file)))
            assert is_like(json.loads(body), shown), (example.command, body)
    assert curl("curl -s localhost:8083/connectors/lines", here) == (404, REFUSED.strip())


def test_a_failed_task_is_restarted_if_a_restart_may_help(worker: OurWorker, tmp_path: Path) -> None:
    """Of two tasks that fail at each start one does so with an error of which nothing is known."""
    client = RestClient(worker.url)
    common = {"topic": "restarted", "tasks.max": "1", "auto.restart.enabled": "true"}
    counting = {"connector.class": numbers.CLASS, **common}
    client.ask("POST", "/connectors", {"name": "numbers", "config": counting, "initial_state": "STOPPED"})
    stored = [{"partition": {"task": 0}, "offset": {"number": "none"}}]
    client.ask("PATCH", "/connectors/numbers/offsets", {"offsets": stored})
    begun_ms = time.time() * 1000
    client.ask("PUT", "/connectors/numbers/resume")
    reading = {"connector.class": "FileStreamSource", "file": str(tmp_path), **common}
    client.ask("POST", "/connectors", {"name": "file", "config": reading})

    def restarts(connector: str) -> Any:
        status, answer = client.asked("GET", f"/connectors/{connector}/status")
        tasks = answer["tasks"] if status == 200 else []  # 404 until the new connector has a status
        return tasks[0].get("auto_restart") if tasks and tasks[0]["state"] == "FAILED" else None

    def is_to_be_restarted_again() -> bool:
        found = restarts("numbers")
        return bool(found and found["count"] == 2)

    wait_until(is_to_be_restarted_again, 60, "it has failed, was restarted, and has failed again")
    found = restarts("numbers")
    assert list(found) == ["count", "at_ms"] and found["at_ms"] - begun_ms >= 120_000, "the first one was at once"
    wait_until(lambda: restarts("file"), 60, "no restart helps the other one")
    assert restarts("file") == {"count": 0, "at_ms": 0, "given_up": "a restart cannot fix this error"}
