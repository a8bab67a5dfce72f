"""A worker of Java's and ours in one group: work moves both ways, with either as leader, and nothing is lost."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_at
from tests.kit.copies import read_all
from tests.kit.groups import describe
from tests.kit.java_connect import JavaWorker
from tests.kit.processes import wait_until
from tests.kit.rest_client import RestClient
from tests.kit.topics import make_topics
from tests.kit.workers import OurWorker, worker_properties

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_CONNECTORS = 4
_DEADLINE_S = 120.0
_POLL_S = 0.2
_GROUP = {
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
    "scheduled.rebalance.max.delay.ms": "5000",
    # A task that is given up before it has stored where it stands would copy a line twice.
    "task.shutdown.graceful.timeout.ms": "30000",
    "offset.flush.timeout.ms": "30000",
}
_DELAY_S = 5.0


@dataclass
class _Lines:
    """Files with lines, a connector and a topic each, and how many lines; ``changes`` are of the workers' file."""

    bootstrap: str
    group: str
    folder: Path
    changes: Mapping[str, str] = field(default_factory=dict)
    written: int = 0

    def names(self) -> Iterator[str]:
        return (f"{self.group}-{number}" for number in range(_CONNECTORS))

    async def prepare(self) -> None:
        for name in self.names():
            await make_topics(self.bootstrap, {name: 1})
        self.append()

    async def play(self, story: Callable[[_Lines, Path, ExitStack], None]) -> None:
        await self.prepare()
        with ExitStack() as stack:
            await asyncio.to_thread(story, self, self.folder, stack)

    def config(self, name: str) -> dict[str, Any]:
        file = self.folder / f"{name}.txt"
        return {"connector.class": "FileStreamSource", "file": str(file), "topic": name, "tasks.max": "1"}

    def append(self) -> None:
        self.written += 1
        for name in self.names():
            with (self.folder / f"{name}.txt").open("a") as file:
                file.write(f"line {self.written}\n")

    def await_copied(self, rest: RestClient) -> None:
        lines = [f"line {number}".encode() for number in range(1, self.written + 1)]
        end = sum(len(line) + 1 for line in lines)
        wait_until(
            lambda: all(self._values(name) == lines for name in self.names()),
            _DEADLINE_S,
            f"each topic holds {len(lines)} lines",
        )
        wait_until(
            lambda: all(self._position(rest, name) == end for name in self.names()),
            _DEADLINE_S,
            f"every stored offset is {end}",
        )

    def _values(self, name: str) -> list[bytes | None]:
        return [record.value for record in asyncio.run(read_all(self.bootstrap, name))]

    def _position(self, rest: RestClient, name: str) -> int | None:
        offsets = rest.ask("GET", f"/connectors/{name}/offsets")["offsets"]
        return offsets[0]["offset"]["position"] if offsets else None


@pytest.mark.long
async def test_java_and_ours_in_one_group(us: KafkaCluster, tmp_path: Path) -> None:
    lines = _Lines(us.bootstrap, f"mixed-{uuid.uuid4().hex[:8]}", tmp_path)
    await lines.play(_story)


@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "value"),
    [("connect.protocol", "compatible"), ("connect.protocol", "eager"), ("exactly.once.source.support", "preparing")],
)
async def test_older_protocols_and_before_exactly_once(us: KafkaCluster, tmp_path: Path, key: str, value: str) -> None:
    lines = _Lines(us.bootstrap, f"mixed-{uuid.uuid4().hex[:8]}", tmp_path, {key: value})
    await lines.play(_short_story)


@pytest.mark.long
async def test_exactly_once_with_zombies_of_either_kind(us: KafkaCluster, tmp_path: Path) -> None:
    """Whoever leads fences the other's tasks before new ones start; what a thawed worker sends does not count."""
    changes = {"exactly.once.source.support": "enabled"}
    lines = _Lines(us.bootstrap, f"mixed-{uuid.uuid4().hex[:8]}", tmp_path, changes)
    await lines.play(_zombies)


async def test_classes_that_only_java_has(us: KafkaCluster, tmp_path: Path) -> None:
    """Connectors of foreign classes run on Java's worker; if Java gives ours some, its status says what to do."""
    lines = _Lines(us.bootstrap, f"mixed-{uuid.uuid4().hex[:8]}", tmp_path, {"exactly.once.source.support": "enabled"})
    await lines.play(_of_java)


def _of_java(lines: _Lines, folder: Path, stack: ExitStack) -> None:
    ours = stack.enter_context(OurWorker({**_properties(lines), "file.stream.source.enable": "false"}, folder))
    ours.await_ready()
    rest, name, sunk = RestClient(ours.url), next(lines.names()), folder / "sunk.txt"
    sink = {"connector.class": "FileStreamSink", "topics": name, "file": str(sunk)}
    status, refused = rest.try_once("PUT", "/connectors/sink/config", sink)
    assert status == 400 and "is a sink connector" in refused["message"]
    java = stack.enter_context(_java(lines, folder / "java.log"))
    java.await_ready()
    java_rest = RestClient(java.url)

    invalid = rest.ask("PUT", "/connector-plugins/FileStreamSink/config/validate", {**sink, "name": "s", "topics": ""})
    assert invalid["error_count"] > 0
    rest.ask("PUT", f"/connectors/{name}/config", {**lines.config(name), "tasks.max": "2"})
    # A task of Java's that is stopped while it starts waits for its worker, which waits for the task: 30 s.
    wait_until(lambda: f"{name}-0" in rest.owners(), _DEADLINE_S, "a task runs")
    # A new set of task configs, before which older tasks are fenced.
    rest.ask("PUT", f"/connectors/{name}/config", lines.config(name))
    java_rest.ask("PUT", "/connectors/sink/config", sink)
    expected = dict.fromkeys((name, f"{name}-0", "sink", "sink-0"), java_rest.netloc)
    wait_until(lambda: rest.owners() == expected, _DEADLINE_S, f"{expected} run")
    wait_until(lambda: sunk.exists() and sunk.read_text() == "line 1\n", _DEADLINE_S, "the line is sunk")
    asked = "/connectors/sink/offsets"
    wait_until(lambda: rest.ask("GET", asked)["offsets"], _DEADLINE_S, "the sink has offsets")
    assert rest.ask("GET", asked) == java_rest.ask("GET", asked)

    assert ours.stop() == 0
    ours.start()
    ours.await_ready()
    failed = wait_until(lambda: _failed_on(rest, [name, "sink"]), _DEADLINE_S, "ours has work of Java's")
    for connector, trace in failed.items():
        said = (
            f"does not run the class {'FileStreamSink' if connector == 'sink' else 'FileStreamSource'}. The worker that"
        )
        assert said in trace and f"leads the group, {java.url}, is one of Java's" in trace, trace
        assert f"Workers that have the class: {java.url}. A restart of the connector does not move it. Rest" in trace
        assert "does not run the class" in ours.tail()
    connector = next(iter(failed))
    rest.ask("POST", f"/connectors/{connector}/restart?includeTasks=true")
    rest.ask("PUT", "/connectors/sink/config", {**sink, "changed.by": "ours"})
    assert rest.ask("GET", asked) == java_rest.ask("GET", asked)
    status, refused = rest.try_once("PUT", "/connectors/sink/config", {**sink, "topics": ""})
    assert status == 400 and "topics" in refused["message"]


def _failed_on(rest: RestClient, connectors: list[str]) -> dict[str, str]:
    return {
        name: part["trace"]
        for name in connectors
        for status in [rest.ask("GET", f"/connectors/{name}/status")]
        for part in [status["connector"], *status["tasks"]]
        if part["state"] == "FAILED" and part["worker_id"] == rest.netloc
    }


def _zombies(lines: _Lines, folder: Path, stack: ExitStack) -> None:
    ours, java = _both_with_ours_leading(lines, folder, stack)
    both = {RestClient(worker.url).netloc for worker in (ours, java)}
    for frozen, other in ((java, ours), (ours, java)):
        frozen.freeze()
        lines.append()
        rest = RestClient(other.url)
        _running_on({rest.netloc}, [rest])
        lines.await_copied(rest)
        # What it finds when it wakes up.
        lines.append()
        frozen.thaw()
        lines.await_copied(rest)
        _running_on(both, [rest, RestClient(frozen.url)])
    _java_takes_over(lines, ours, java)
    java.kill()
    _running_on({RestClient(ours.url).netloc}, [RestClient(ours.url)])
    lines.append()
    lines.await_copied(RestClient(ours.url))


def _story(lines: _Lines, folder: Path, stack: ExitStack) -> None:
    ours, java = _both_with_ours_leading(lines, folder, stack)
    our_rest = RestClient(ours.url)

    killed_s = time.monotonic()
    java.kill()
    lines.append()
    seen_s = asyncio.run(_last_seen_with(lines, 2, killed_s))
    _running_on({our_rest.netloc}, [our_rest])
    # Java promises no lease, so its work waits for it.
    assert time.monotonic() - seen_s > _DELAY_S
    lines.await_copied(our_rest)

    second = stack.enter_context(_java(lines, folder / "second.log"))
    second.await_ready()
    _running_on({RestClient(second.url).netloc, our_rest.netloc}, [RestClient(second.url), our_rest])
    _java_takes_over(lines, ours, second)
    second.stop()
    _running_on({our_rest.netloc}, [our_rest])


async def _last_seen_with(lines: _Lines, members: int, since_s: float) -> float:
    """When the group was last seen with so many members, on the monotonic clock; once it has fewer."""
    async with cluster_at(lines.bootstrap) as cluster:
        async with asyncio.timeout(_DEADLINE_S):
            while True:
                asked_s = time.monotonic()
                seen = await describe(cluster, lines.group)
                if seen is not None and len(seen.members) < members:
                    return since_s
                since_s = asked_s if seen is not None else since_s
                await asyncio.sleep(_POLL_S)


def _short_story(lines: _Lines, folder: Path, stack: ExitStack) -> None:
    _java_takes_over(lines, *_both_with_ours_leading(lines, folder, stack))


def _both_with_ours_leading(lines: _Lines, folder: Path, stack: ExitStack) -> tuple[OurWorker, JavaWorker]:
    """Connectors made through both; all are reconfigured and restarted through Java's, which forwards."""
    ours = stack.enter_context(OurWorker(_properties(lines), folder))
    ours.await_ready()
    our_rest = RestClient(ours.url)
    names = list(lines.names())
    for name in names[:2]:
        our_rest.ask("PUT", f"/connectors/{name}/config", lines.config(name))
    _running_on({our_rest.netloc}, [our_rest], connectors=2)

    java = stack.enter_context(_java(lines, folder / "first.log"))
    java.await_ready()
    java_rest = RestClient(java.url)
    for name in names[2:]:
        java_rest.ask("POST", "/connectors", {"name": name, "config": lines.config(name)})
    _running_on({java_rest.netloc, our_rest.netloc}, [java_rest, our_rest])
    _change_all(java_rest, our_rest, lines)
    lines.append()
    lines.await_copied(java_rest)
    return ours, java


def _java_takes_over(lines: _Lines, ours: OurWorker, java: JavaWorker) -> None:
    """Ours leaves and comes again while Java leads; then all are reconfigured and restarted through ours."""
    our_rest, java_rest = RestClient(ours.url), RestClient(java.url)
    assert ours.stop() == 0, ours.tail()
    _running_on({java_rest.netloc}, [java_rest])
    lines.append()
    lines.await_copied(java_rest)
    ours.start()
    ours.await_ready()
    _running_on({java_rest.netloc, our_rest.netloc}, [java_rest, our_rest])
    _change_all(our_rest, java_rest, lines)
    lines.append()
    lines.await_copied(our_rest)


def _change_all(asked: RestClient, other: RestClient, lines: _Lines) -> None:
    """Reconfigures every connector through a worker that does not lead: whoever runs it tells the leader its tasks."""
    for name in lines.names():
        asked.ask("PUT", f"/connectors/{name}/config", {**lines.config(name), "changed.by": asked.netloc})
    wait_until(
        lambda: all(_task_config(other, name).get("changed.by") == asked.netloc for name in lines.names()),
        _DEADLINE_S,
        "the other worker sees the new task configs",
    )
    both = {asked.netloc, other.netloc}
    _running_on(both, [asked, other])
    _check_forwarding(asked, next(lines.names()))
    for name in lines.names():
        restarted = asked.ask("POST", f"/connectors/{name}/restart?includeTasks=true")
        assert restarted["connector"]["state"] == "RESTARTING"
    _running_on(both, [asked, other])


def _check_forwarding(asked: RestClient, name: str) -> None:
    """A worker that does not lead forwards but what must not be forwarded again, and passes on what the leader says."""
    conflict = "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
    for method, path in (("DELETE", f"/connectors/{name}"), ("PUT", f"/connectors/{name}/stop")):
        answer = asked.try_once(method, f"{path}?forward=false")
        assert answer == (409, {"error_code": 409, "message": conflict})
    missing = (404, {"error_code": 404, "message": f"Connector no-{name} not found"})
    answers = [(409, {"error_code": 409, "message": conflict})]

    def is_settled() -> bool:
        answers.append(asked.try_once("DELETE", f"/connectors/no-{name}"))
        return answers[-1] != answers[0]

    wait_until(is_settled, _DEADLINE_S, "no rebalance is in the way")
    assert answers[-1] == missing


def _task_config(rest: RestClient, name: str) -> dict[str, str]:
    tasks = rest.ask("GET", f"/connectors/{name}/tasks")
    return dict(tasks[0]["config"]) if tasks else {}


def _running_on(workers: set[str], seen_by: list[RestClient], connectors: int = _CONNECTORS) -> None:
    """Waits until all connectors and tasks run on just these workers, and everybody asked says so alike."""

    def settled() -> bool:
        first, *others = [rest.owners() for rest in seen_by]
        return len(first) == 2 * connectors and set(first.values()) == workers and all(o == first for o in others)

    wait_until(settled, _DEADLINE_S, f"{connectors} connectors and their tasks run on {sorted(workers)}")


def _properties(lines: _Lines) -> dict[str, str]:
    return worker_properties(lines.bootstrap, lines.group, {**_GROUP, **lines.changes})


def _java(lines: _Lines, log: Path) -> JavaWorker:
    return JavaWorker(_properties(lines), log)
