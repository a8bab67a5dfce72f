"""A worker's REST API on a real cluster: the examples of ``docs/rest.md``, run as they stand.

Those fenced as ``shell`` want a mirror: ``flows/test_over_rest`` asks the same of one.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from connect.embedded.brokers import KafkaCluster
from tests.kit import numbers
from tests.kit.processes import wait_until
from tests.kit.rest_client import RestClient
from tests.kit.workers import OurWorker, worker_properties

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs" / "rest.md"
_BLOCK = re.compile(r"^```(sh|json)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^curl (?:[^'\n\\]|\\\n|'[^']*')*", re.MULTILINE)
_ANY = "..."


@dataclass(frozen=True, slots=True)
class Example:
    """A command of the page, and its answer where the page shows one."""

    command: str
    answer: Any


def examples() -> list[Example]:
    found: list[Example] = []
    for kind, text in _BLOCK.findall(PAGE.read_text()):
        if kind == "sh":
            commands = _COMMAND.findall(text)
            assert len(commands) == text.count("curl "), text
            found += [Example(command, None) for command in commands]
        elif "error_code" not in text:
            found[-1] = Example(found[-1].command, json.loads(text))
    return found


@pytest.fixture
def worker(us: KafkaCluster, tmp_path: Path) -> Iterator[OurWorker]:
    properties = worker_properties(us.bootstrap, f"docs-{uuid.uuid4().hex[:8]}")
    with OurWorker(properties, tmp_path, variables=numbers.environment(tmp_path, "one")) as worker:
        worker.await_ready()
        yield worker
        assert worker.stop() == 0


def run(command: str, worker: OurWorker, file: Path) -> tuple[int, str]:
    """Status and body of a command's answer, ``file`` in place of its file."""
    adapted = command.replace("localhost:8083/", worker.url).replace("/tmp/lines.txt", str(file))
    shell = adapted.replace("curl -s", "curl -s --max-time 100 -w '\\n%{http_code}'", 1)
    ended = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=120, check=True)
    body, _, status = ended.stdout.rpartition("\n")
    return int(status), body


def is_like(given: Any, shown: Any) -> bool:
    """Whether an answer is the one that the page shows, whose dots stand for anything."""
    if isinstance(shown, dict) and isinstance(given, dict):
        return list(given) == list(shown) and all(is_like(given[key], shown[key]) for key in shown)
    return bool(shown == _ANY or given == shown)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page's examples are for curl")
def test_the_examples_of_the_page(worker: OurWorker, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("one\ntwo\n")
    ran = examples()
    assert len(ran) > 30
    for example in ran:
        give_up_s = time.monotonic() + 60
        status, body = run(example.command, worker, file)
        # A task is there a moment after its connector, and a rebalance has its own time.
        while status in (404, 409) and time.monotonic() < give_up_s:
            time.sleep(0.1)
            status, body = run(example.command, worker, file)
        assert 200 <= status < 300, (example.command, status, body)
        if example.answer is not None:
            shown = json.loads(json.dumps(example.answer).replace("/tmp/lines.txt", str(file)))
            assert is_like(json.loads(body), shown), (example.command, body)


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
        tasks = client.ask("GET", f"/connectors/{connector}/status")["tasks"]
        return tasks[0].get("auto_restart") if tasks and tasks[0]["state"] == "FAILED" else None

    def is_to_be_restarted_again() -> bool:
        found = restarts("numbers")
        return bool(found and found["count"] == 2)

    wait_until(is_to_be_restarted_again, 60, "it has failed, was restarted, and has failed again", 0.1)
    found = restarts("numbers")
    assert list(found) == ["count", "at_ms"] and found["at_ms"] - begun_ms >= 120_000, "the first one was at once"
    wait_until(lambda: restarts("file"), 60, "no restart helps the other one", 0.1)
    assert restarts("file") == {"count": 0, "at_ms": 0, "given_up": "a restart cannot fix this error"}
