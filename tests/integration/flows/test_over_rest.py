"""A flow of a dedicated mirror whose REST API is open: paused, stopped, its offsets read, altered and reset."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from itertools import pairwise
from typing import Any

import httpx
import pytest

from connect.cli.commands.lag_and_status import run_lag
from connect.embedded.brokers import KafkaCluster
from tests.kit.copies import read_all, send
from tests.kit.direct import Broker
from tests.kit.documented import Block, blocks, curl, curl_commands, misshapen
from tests.kit.moving import commit
from tests.kit.processes import wait_until
from tests.kit.rest_client import RestClient
from tests.kit.shared_mirror import REST, REST_TOPIC, TARGET, SharedMirror

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DEADLINE_S = 200.0
NAME = "MirrorSourceConnector"
RECORDS = 10
_PATIENCE_S = 90.0
_METRICS = "kafka_connect_mirror_MirrorSourceConnector_"


class Scene:
    def __init__(self, us: KafkaCluster, eu: KafkaCluster, url: str) -> None:
        self.us, self.eu, self.topic = us, eu, REST_TOPIC
        self.remote = f"{REST}.{REST_TOPIC}"
        self.partition = {"cluster": REST, "partition": 0, "topic": REST_TOPIC}
        self.top = url
        self.url = f"{url}/{REST}/{TARGET}"

    def get(self, path: str) -> Any:
        return self.call("GET", path, status=200)

    def call(self, method: str, path: str, body: object = None, *, status: int) -> Any:
        found = RestClient(f"{self.top}/").asked(method, f"/{REST}/{TARGET}{path}", body)
        assert found[0] == status, found
        return found[1]

    def text(self, path: str) -> str:
        """Of what is not a flow's own."""
        return httpx.get(f"{self.top}{path}", trust_env=False, timeout=_PATIENCE_S).text

    def await_states(self, connector: str, *tasks: str) -> None:
        def seen() -> bool:
            answer = httpx.get(f"{self.url}/connectors/{NAME}/status", trust_env=False, timeout=_PATIENCE_S)
            if answer.status_code != 200:
                return False
            found = answer.json()
            return [found["connector"]["state"], *(task["state"] for task in found["tasks"])] == [connector, *tasks]

        wait_until(seen, DEADLINE_S, f"the connector is {connector}, its tasks {tasks}")

    def lag(self) -> Any:
        """As the command has it of the worker, which tells the same for a second."""
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = run_lag(None, flow=None, top=3, as_json=True, rest=self.url)
        (reported,) = json.loads(out.getvalue())
        assert code == (1 if reported["verdict"]["state"] in ("stopped", "paused", "idle") else 0)
        return reported

    def await_metrics(self, **wanted: float) -> None:
        def reported() -> dict[str, float]:
            lines = [line for line in self.text("/metrics").splitlines() if f'source="{REST}"' in line]
            rows = [line.removeprefix(_METRICS) for line in lines if line.startswith(_METRICS)]
            return {row.partition("{")[0]: float(row.rpartition(" ")[2]) for row in rows}

        wait_until(lambda: wanted.items() <= reported().items(), DEADLINE_S, f"metrics tell {wanted}")

    def await_partition(self, state: str) -> None:
        def seen() -> bool:
            return [row["state"] for row in self.get(f"/connectors/{NAME}/partitions")["partitions"]] == [state]

        wait_until(seen, DEADLINE_S, f"its partition is {state}")

    def await_lag(self, **wanted: int) -> None:
        wait_until(lambda: wanted.items() <= self.lag().items(), DEADLINE_S, f"the lag is {wanted}")

    def write(self) -> None:
        asyncio.run(send(self.us.bootstrap, self.topic, (b"%d" % number for number in range(RECORDS))))

    def await_copied(self, count: int) -> None:
        wait_until(lambda: self._copied() == count, DEADLINE_S, f"{self.remote} has {count} records")

    def _copied(self) -> int:
        return len(asyncio.run(read_all(self.eu.bootstrap, self.remote)))

    def await_offset(self, offset: int | None) -> None:
        wanted = [] if offset is None else [{"partition": self.partition, "offset": {"offset": offset}}]
        wait_until(
            lambda: self.get(f"/connectors/{NAME}/offsets")["offsets"] == wanted, DEADLINE_S, f"offsets are {wanted}"
        )


def the_page_is_right(scene: Scene, *, while_it_copies: bool) -> None:
    """What ``rest.md`` asks of a mirror is answered in the shape that it shows; only a task that copies has rates."""
    here = {"localhost:8083": scene.url, "us-eu": NAME, "orders": scene.topic}
    shown = [block for block in blocks("rest.md") if block.language in ("shell", "text")]
    for (_, text), (language, answer) in pairwise([*shown, Block("", "")]):
        commands = curl_commands(text) if ("/rates" in text) is while_it_copies else []
        for command in commands:
            status, body = curl(command, here)
            assert status == 200, (command, body)
        if commands and language == "text":
            found = json.loads(body.replace(scene.topic, "orders"))
            assert misshapen(found, json.loads(answer)) == [], (command, body)


def all_stopped(scene: Scene) -> None:
    """A task whose partitions have all stopped has failed, says why, and goes on once that is mended."""
    source = Broker(scene.us, 0)
    scene.await_offset(2 * RECORDS - 1)
    scene.call("PUT", f"/connectors/{NAME}/stop", status=204)
    scene.await_states("STOPPED")
    scene.write()
    source.delete_records(scene.topic, 2 * RECORDS + 3)
    scene.call("PUT", f"/connectors/{NAME}/resume", status=202)
    scene.await_states("RUNNING", "FAILED")
    trace = scene.get(f"/connectors/{NAME}/status")["tasks"][0]["trace"]
    assert (
        f"its only partition has stopped. Fix the cause, then restart the task: {scene.topic}-0 is source-gap" in trace
    )
    rows: list[Any] = wait_until(
        lambda: scene.get(f"/connectors/{NAME}/partitions?state=source-gap")["partitions"], DEADLINE_S, "it is told"
    )
    (row,) = rows
    assert (row["task_state"], row["gap"]["first"], row["gap"]["last"]) == ("FAILED", 2 * RECORDS, 2 * RECORDS + 2)
    assert "PATCH" in row["advice"]
    scene.await_metrics(lag_records=RECORDS - 3, lag_lost_offsets=3, flow_lag_lost_offsets=3, stopped=1)
    scene.await_lag(lost=3, records=RECORDS - 3)
    assert scene.lag()["furthest"][0]["topic"] == scene.topic
    asyncio.run(commit(scene.us.bootstrap, f"{scene.topic}-mail", {scene.topic: 1}))
    the_page_is_right(scene, while_it_copies=False)
    runs_the_runbook(scene)
    scene.await_partition("running")
    scene.await_offset(3 * RECORDS - 1)


def runs_the_runbook(scene: Scene) -> None:
    """The commands of ``stopped-partition.md`` that set the offset."""
    here = {"localhost:8083": scene.url, "us-eu": NAME, "orders": scene.topic, '"us"': f'"{REST}"'}
    here['"offset":41'] = f'"offset":{2 * RECORDS + 2}'
    for command in curl_commands(blocks("runbooks/stopped-partition.md")[0].text):
        wait_until(lambda command=command: curl(command, here)[0] < 300, DEADLINE_S, f"{command} is done")  # type: ignore[misc]


@pytest.fixture
def scene(shared: SharedMirror) -> Scene:
    return Scene(shared.us, shared.eu, shared.url)


def test_a_flow_is_seen_and_ruled_over_rest(scene: Scene) -> None:
    scene.write()
    scene.await_copied(RECORDS)
    scene.await_states("RUNNING", "RUNNING")
    names = {NAME, "MirrorCheckpointConnector", "MirrorHeartbeatConnector"}
    wait_until(lambda: set(scene.get("/connectors")) == names, DEADLINE_S, "the three connectors are there")
    wait_until(lambda: json.loads(scene.text("/health"))["status"] == "healthy", DEADLINE_S, "it is healthy")
    scene.await_offset(RECORDS - 1)

    # at rest nothing is behind
    scene.await_lag(partitions=1, records=0, bytes=0, ms=0, lost=0)
    scene.await_partition("running")

    # paused, nothing is copied; resumed, everything is, once
    scene.call("PUT", f"/connectors/{NAME}/pause", status=202)
    scene.await_states("PAUSED", "PAUSED")
    scene.write()
    scene.await_partition("paused")
    scene.await_lag(records=RECORDS)
    scene.await_metrics(lag_records=RECORDS, flow_lag_records=RECORDS, stopped=0)
    scene.call("PUT", f"/connectors/{NAME}/resume", status=202)
    scene.await_copied(2 * RECORDS)

    # offsets are for stopped connectors
    scene.call("DELETE", f"/connectors/{NAME}/offsets", status=400)
    scene.call("PUT", f"/connectors/{NAME}/stop", status=204)
    scene.await_states("STOPPED")
    scene.await_offset(2 * RECORDS - 1)

    refused = {"offsets": [{"partition": scene.partition, "offset": {"offset": -1}}]}
    scene.call("PATCH", f"/connectors/{NAME}/offsets", refused, status=500)
    moved = {"offsets": [{"partition": scene.partition, "offset": {"offset": 2 * RECORDS - 6}}]}
    answer = scene.call("PATCH", f"/connectors/{NAME}/offsets", moved, status=200)
    assert answer["message"] == "The offsets for this connector have been altered successfully"
    scene.call("PUT", f"/connectors/{NAME}/resume", status=202)
    scene.await_copied(2 * RECORDS + 5)

    scene.call("PUT", f"/connectors/{NAME}/stop", status=204)
    scene.await_states("STOPPED")
    scene.call("DELETE", f"/connectors/{NAME}/offsets", status=200)
    scene.await_offset(None)
    scene.call("PUT", f"/connectors/{NAME}/resume", status=202)
    scene.await_copied(4 * RECORDS + 5)

    # what has arrived is counted once its acknowledgement was reported
    labels = f'partition="0",source="{scene.partition["cluster"]}",target="eu",topic="{scene.remote}"'
    counted = f"kafka_connect_mirror_MirrorSourceConnector_record_count{{{labels}}} {2 * RECORDS}.0"
    wait_until(lambda: counted in scene.text("/metrics"), DEADLINE_S, f"it says {counted}")
    the_page_is_right(scene, while_it_copies=True)
    all_stopped(scene)
