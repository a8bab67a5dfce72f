"""Every endpoint against its row in Kafka's REST API: status, body, header, and what reaches the herder."""

from __future__ import annotations

from typing import Any

import pytest

from connect.core.herder_api import LoggerLevel, NotFound, NotLeader, RebalanceExpected, SourceOffset, Unhealthy
from connect.core.model import RestartRequest, TargetState, TaskId
from connect.kafka.concurrency import Scope
from rest.request_handling import Limits
from tests.kit.members import until
from tests.kit.raw_http import ask
from tests.kit.rest_herder import DictHerder
from tests.unit.rest.conftest import running_server

INFO = {
    "name": "a",
    "config": {"name": "a", "file": "f"},
    "tasks": [{"connector": "a", "task": 0}, {"connector": "a", "task": 1}],
    "type": "source",
}
STATUS = (
    b'{"name":"a","connector":{"state":"RUNNING","worker_id":"w:8083","version":"4.3.1"},"tasks":[{"id":0,"state":'
    b'"RUNNING","worker_id":"w:8083","version":"4.3.1"},{"id":1,"state":"FAILED","worker_id":"w:8083","version":null,'
    b'"trace":"it broke"}],"type":"source"}'
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(autouse=True)
def connector(herder: DictHerder) -> None:
    herder.add("a", file="f")


async def test_the_worker_tells_its_version_and_cluster(port: int) -> None:
    answer = await ask(port, "GET", "/")
    assert answer.status == 200
    assert answer.body == b'{"version":"4.3.1","commit":"abc","kafka_cluster_id":"cluster-1"}'


async def test_metrics_are_prometheus_text(port: int) -> None:
    answer = await ask(port, "GET", "/metrics", headers={"Accept": "text/plain"})
    assert answer.status == 200 and answer.body == b"connect_workers 1\n"
    assert answer.header("content-type") == "text/plain; version=0.0.4; charset=utf-8"


async def test_connectors_are_listed_and_expanded(port: int, herder: DictHerder) -> None:
    assert (await ask(port, "GET", "/connectors")).body == b'["a"]'
    both = await ask(port, "GET", "/connectors?expand=status&expand=info&expand=more")
    assert both.json == {"a": {"status": (await ask(port, "GET", "/connectors/a/status")).json, "info": INFO}}
    assert (await ask(port, "GET", "/connectors?expand=more")).json == {"a": {}}
    herder.refusals["connector_status"] = NotFound("No status found for connector a")
    assert (await ask(port, "GET", "/connectors?expand=status")).json == {}


async def test_the_list_waits_for_no_rebalance(port: int, herder: DictHerder) -> None:
    herder.refusals["connector_info"] = RebalanceExpected()
    assert (await ask(port, "GET", "/connectors?expand=info")).json == {"a": {"info": INFO}}
    assert (await ask(port, "GET", "/connectors/a")).status == 409


async def test_a_connector_is_created_once(port: int, herder: DictHerder) -> None:
    body = {"name": "  b c ", "config": {"tasks.max": 1, "on": True, "rate": 1.50}, "initial_state": "stopped"}
    created = await ask(port, "POST", "/connectors", body)
    assert created.status == 201
    assert created.header("location") == f"http://127.0.0.1:{port}/connectors/b%20c"
    config = {"tasks.max": "1", "on": "true", "rate": "1.5", "name": "b c"}
    assert created.json == {"name": "b c", "config": config, "tasks": [], "type": "source"}
    assert herder.done == [("put_connector", "b c", config, TargetState.STOPPED)]
    again = await ask(port, "POST", "/connectors", body)
    assert again.status == 409
    assert again.body == b'{"error_code":409,"message":"Connector b c already exists"}'


async def test_the_location_is_where_the_client_asked(port: int) -> None:
    body = {"name": "x/y%é", "config": {}}
    created = await ask(port, "POST", "/connectors", body, headers={"Host": "localhost:99"})
    assert created.header("location") == "http://localhost:99/connectors/x%2Fy%25%C3%A9"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_the_name_in_the_config_is_that_of_the_connector(port: int, method: str) -> None:
    config = {"name": "z"}
    path, body = (
        ("/connectors", {"name": "a", "config": config}) if method == "POST" else ("/connectors/a/config", config)
    )
    answer = await ask(port, method, path, body)
    assert answer.status == 400
    text = "Connector name configuration (z) doesn't match connector name in the URL (a)"
    assert answer.json == {"error_code": 400, "message": text}


async def test_a_config_is_put_and_patched(port: int, herder: DictHerder) -> None:
    created = await ask(port, "PUT", "/connectors/n/config", {"k": "v", "empty": None})
    assert created.status == 201 and created.header("location") == f"http://127.0.0.1:{port}/connectors/n"
    replaced = await ask(port, "PUT", "/connectors/n/config", {"k": "w", "name": None})
    assert replaced.status == 200 and replaced.header("location") is None
    patched = await ask(port, "PATCH", "/connectors/n/config", {"k": None, "name": "n", "m": "1"})
    assert patched.status == 200 and patched.json["config"] == {"name": "n", "m": "1"}
    assert herder.done == [
        ("put_connector", "n", {"k": "v", "empty": None, "name": "n"}, None),
        ("put_connector", "n", {"k": "w", "name": "n"}, None),
        ("patch_connector", "n", {"k": None, "name": "n", "m": "1"}),
    ]


async def test_a_connector_is_read_and_deleted(port: int) -> None:
    assert (await ask(port, "GET", "/connectors/a")).json == INFO
    assert (await ask(port, "GET", "/connectors/a/config")).json == {"name": "a", "file": "f"}
    assert (await ask(port, "GET", "/connectors/a/status")).body == STATUS
    tasks = await ask(port, "GET", "/connectors/a/tasks")
    assert tasks.json == [{"id": {"connector": "a", "task": 0}, "config": {"name": "a", "file": "f"}}]
    task = await ask(port, "GET", "/connectors/a/tasks/0/status")
    assert task.body == b'{"id":0,"state":"RUNNING","worker_id":"w:8083","version":"4.3.1"}'
    assert (await ask(port, "DELETE", "/connectors/a")).status == 204
    assert (await ask(port, "DELETE", "/connectors/a")).status == 404


@pytest.mark.parametrize(
    ("what", "status", "state"),
    [("pause", 202, TargetState.PAUSED), ("resume", 202, TargetState.STARTED), ("stop", 204, TargetState.STOPPED)],
)
async def test_target_states(port: int, herder: DictHerder, what: str, status: int, state: TargetState) -> None:
    answer = await ask(port, "PUT", f"/connectors/a/{what}")
    assert (answer.status, answer.body) == (status, b"")
    assert herder.states == {"a": state}
    assert (await ask(port, "PUT", f"/connectors/b/{what}")).status == 404


async def test_restarts(port: int, herder: DictHerder) -> None:
    assert (await ask(port, "POST", "/connectors/a/restart")).status == 204
    assert (await ask(port, "POST", "/connectors/a/restart?includeTasks=yes&onlyFailed=")).status == 204
    both = await ask(port, "POST", "/connectors/a/restart?includeTasks=TRUE&onlyFailed=true&unknown=1")
    assert (both.status, both.body) == (202, STATUS)
    assert (await ask(port, "POST", "/connectors/a/tasks/1/restart")).status == 204
    request = RestartRequest("a", only_failed=True, include_tasks=True)
    assert [each for each in herder.done if each[0] != "connector_status"] == [
        ("restart_connector", "a"),
        ("restart_connector", "a"),
        ("restart", request),
        ("restart_task", TaskId("a", 1)),
    ]


async def test_active_topics(port: int, herder: DictHerder) -> None:
    assert (await ask(port, "GET", "/connectors/a/topics")).json == {"a": {"topics": ["t1", "t2"]}}
    reset = await ask(port, "PUT", "/connectors/a/topics/reset")
    assert (reset.status, reset.body) == (202, b"")
    assert ("reset_active_topics", "a") in herder.done


async def test_offsets(port: int, herder: DictHerder) -> None:
    entry: dict[str, Any] = {
        "partition": {"cluster": "us", "topic": "t", "partition": 0},
        "offset": {"offset": 41, "at": 1.5},
    }
    removed: dict[str, Any] = {"partition": {"topic": "u"}, "offset": None}
    altered = await ask(port, "PATCH", "/connectors/a/offsets", {"offsets": [entry, removed]})
    assert altered.body == b'{"message":"The offsets for this connector have been altered successfully"}'
    assert herder.offsets == [
        SourceOffset(entry["partition"], entry["offset"]),
        SourceOffset(removed["partition"], None),
    ]
    assert (await ask(port, "GET", "/connectors/a/offsets")).json == {"offsets": [entry, removed]}
    reset = await ask(port, "DELETE", "/connectors/a/offsets")
    assert reset.json == {"message": "The offsets for this connector have been reset successfully"}
    assert herder.done[-1] == ("alter_offsets", "a", None)


async def test_offsets_keep_their_numbers(port: int) -> None:
    body = b'{"offsets":[{"partition":{"p":0},"offset":{"n":123456789012345678901234567890,"x":1.0E10}}]}'
    assert (await ask(port, "PATCH", "/connectors/a/offsets", body)).status == 200
    assert (await ask(port, "GET", "/connectors/a/offsets")).body == body


@pytest.mark.parametrize("body", [{}, {"offsets": None}, {"offsets": []}])
async def test_no_offsets_are_a_bad_request(port: int, body: object) -> None:
    answer = await ask(port, "PATCH", "/connectors/a/offsets", body)
    text = "Partitions / offsets need to be provided for an alter offsets request"
    assert (answer.status, answer.json["message"]) == (400, text)


async def test_plugins(port: int, herder: DictHerder) -> None:
    source = b'{"class":"org.example.FileConnector","type":"source","version":"4.3.1"}'
    for query in ("", "?connectorsOnly=TRUE", "?connectorsOnly="):
        assert (await ask(port, "GET", f"/connector-plugins{query}")).body == b"[" + source + b"]"
    everything = b"[" + source + b',{"class":"org.example.Upper","type":"transformation"}]'
    assert (await ask(port, "GET", "/connector-plugins?connectorsOnly=no")).body == everything
    definition = (
        b'{"name":"topic","type":"STRING","required":true,"default_value":null,"importance":"HIGH","documentation":'
        b'"Where to.","group":"Common","order_in_group":1,"width":"LONG","display_name":"Topic","dependents":[]}'
    )
    assert (await ask(port, "GET", "/connector-plugins/File/config?version=4.3.1")).body == b"[" + definition + b"]"
    assert herder.done == [("plugin_config", "File", "4.3.1")]


async def test_validation(port: int) -> None:
    config = {"connector.class": "org.example.FileConnector"}
    answer = await ask(port, "PUT", "/connector-plugins/FileConnector/config/validate", config)
    assert answer.status == 200
    assert answer.body.startswith(
        b'{"name":"org.example.FileConnector","error_count":1,"groups":["Common"],"configs":[{"definition":{"name":'
    )
    assert answer.body.endswith(
        b'"value":{"name":"topic","value":null,"recommended_values":[],"errors":["it is missing"],"visible":true}},'
        b'{"definition":null,"value":{"name":"unknown","value":"x","recommended_values":[],"errors":[],'
        b'"visible":true}}]}'
    )
    wrong = await ask(port, "PUT", "/connector-plugins/Other/config/validate", config)
    text = "Included connector type org.example.FileConnector does not match request type Other"
    assert (wrong.status, wrong.json["message"]) == (400, text)


async def test_loggers(port: int, herder: DictHerder) -> None:
    herder.levels["org.x"] = LoggerLevel("WARN", 17)
    listed = await ask(port, "GET", "/admin/loggers")
    assert listed.json == {
        "root": {"level": "INFO", "last_modified": None},
        "org.x": {"level": "WARN", "last_modified": 17},
    }
    assert (await ask(port, "GET", "/admin/loggers/org.x")).body == b'{"level":"WARN","last_modified":17}'
    assert (await ask(port, "GET", "/admin/loggers/zz")).status == 404
    assert (await ask(port, "PUT", "/admin/loggers/org.y", {"level": "debug"})).json == ["org.y"]
    assert (await ask(port, "PUT", "/admin/loggers/org.y?scope=moon", {"level": "debug"})).status == 200
    spread = await ask(port, "PUT", "/admin/loggers/org.z?scope=Cluster", {"level": "TRACE"})
    assert (spread.status, spread.body) == (204, b"")
    assert herder.done[-1] == ("set_cluster_logger", "org.z", "TRACE")
    missing = await ask(port, "PUT", "/admin/loggers/org.y", {})
    text = "Desired 'level' parameter was not specified in request."
    assert (missing.status, missing.json["message"]) == (400, text)


async def test_internal_requests_hand_their_signature_and_bytes_on(port: int, herder: DictHerder) -> None:
    signed = {"X-Connect-Authorization": "c2ln", "X-Connect-Request-Signature-Algorithm": "HmacSHA256"}
    body = b' [{"task.class": "X", "n": 1}] '
    assert (await ask(port, "POST", "/connectors/a/tasks", body, signed)).status == 204
    method, name, configs, signature = herder.done[-1]
    assert (method, name, configs) == ("put_task_configs", "a", [{"task.class": "X", "n": "1"}])
    assert (signature.signature, signature.algorithm, signature.body) == ("c2ln", "HmacSHA256", body)
    assert (await ask(port, "PUT", "/connectors/a/fence", headers={"Content-Type": "x/y"})).status == 204
    method, name, signature = herder.done[-1]
    assert (signature.signature, signature.algorithm, signature.body) == (None, None, b"")


async def test_health(port: int, herder: DictHerder) -> None:
    healthy = await ask(port, "GET", "/health")
    assert healthy.status == 200
    text = "Worker has completed startup and is ready to handle requests."
    assert healthy.json == {"status": "healthy", "message": text}
    herder.refusals["health"] = Unhealthy("Worker has not reached its group g for 12 s.")
    silent = await ask(port, "GET", "/health")
    assert (silent.status, silent.json) == (500, {"status": "unhealthy", "message": str(herder.refusals["health"])})
    del herder.refusals["health"]
    herder.hangs.add("health")
    herder.doing = "The worker is currently polling."
    unhealthy = await ask(port, "GET", "/health")
    text = "Worker was unable to handle this request and may be unable to handle other requests. " + herder.doing
    assert (unhealthy.status, unhealthy.json) == (500, {"status": "unhealthy", "message": text})
    herder.ready, herder.doing = False, None
    starting = await ask(port, "GET", "/health")
    assert starting.status == 503
    assert starting.json == {"status": "starting", "message": "Worker is still starting up."}


async def test_a_herder_that_takes_too_long(port: int, herder: DictHerder) -> None:
    herder.hangs.add("connector_info")
    answer = await ask(port, "GET", "/connectors/a")
    assert (answer.status, answer.json["message"]) == (500, "Request timed out")
    herder.doing = "The worker is currently ensuring membership in the cluster, which began at T."
    answer = await ask(port, "GET", "/connectors/a")
    assert (answer.status, answer.json["message"]) == (500, f"Request timed out. {herder.doing}")


async def test_another_worker_gets_an_answer_before_its_client_gives_up() -> None:
    """Java's client gives up after 30 s without a byte."""
    assert Limits().workers_s < 30
    herder = DictHerder()
    herder.hangs |= {"delete_connector", "fence_zombies"}
    async with running_server(herder=herder, limits=Limits(request_s=60, workers_s=0.05)) as server:
        for method, path in (("DELETE", "/connectors/a?forward=true"), ("PUT", "/connectors/a/fence")):
            herder.rebalancing = True
            conflict = await ask(server.ports[0], method, path)
            assert conflict.status == 409 and "(e.g. worker rebalance)" in conflict.json["message"]
            herder.rebalancing = False
            assert (await ask(server.ports[0], method, path)).json["message"] == "Request timed out"


@pytest.mark.parametrize(("second_hop_s", "is_late"), [(0.05, False), (60, True)])
async def test_the_worker_in_between_passes_on_the_answer_of_the_last_or_says_that_it_is_late(
    second_hop_s: float, is_late: bool
) -> None:
    assert Limits().second_hop_s + 5 <= Limits().workers_s
    limits = Limits(request_s=60, workers_s=0.5, second_hop_s=second_hop_s)
    between, last = DictHerder(), DictHerder()
    between.rebalancing, last.doing = True, "The last is busy."
    last.hangs.add("delete_connector")
    async with (
        running_server(herder=between, limits=limits) as asked,
        running_server(herder=last, limits=limits) as other,
    ):
        url = f"http://127.0.0.1:{other.ports[0]}/"
        between.refusals["delete_connector"] = NotLeader("Only the leader", url)
        answer = await ask(asked.ports[0], "DELETE", "/connectors/a?forward=true")
        reason = f"The worker at {url} did not answer in time." if is_late else last.doing
        assert (answer.status, answer.json["message"]) == (500, f"Request timed out. {reason}")


async def test_the_api_documents_itself(port: int) -> None:
    document = (await ask(port, "GET", "/openapi.json")).json
    assert "/connectors/{connector}/config" in document["paths"]
    assert "/connectors/{connector}/fence" not in document["paths"]
    assert "requestBody" in document["paths"]["/connectors"]["post"]
    assert document["components"]["schemas"]["ConnectorInfo"]["properties"].keys() == set(INFO)


async def test_what_a_connector_tells_beyond_javas_api(port: int, herder: DictHerder) -> None:
    assert (await ask(port, "GET", "/connectors/a/lag")).json == {"kind": "lag", "top": "10"}
    assert (await ask(port, "GET", "/connectors/a/lag?top=3")).json == {"kind": "lag", "top": "3"}
    assert (await ask(port, "GET", "/connectors/a/partitions?state=stopped")).json == {
        "kind": "partitions",
        "state": "stopped",
    }
    assert (await ask(port, "GET", "/connectors/b/lag")).status == 404
    assert (await ask(port, "POST", "/connectors/a/lag", {})).status == 405
    herder.refusals["connector_report"] = NotFound("Connector a has no lag report")
    assert (await ask(port, "GET", "/connectors/a/lag")).status == 404


async def test_changes_are_recorded_for_the_audit_and_reads_are_not(port: int, herder: DictHerder) -> None:
    herder.add("b/c", file="f", password="old")
    for path in ("/connectors", "/connectors/a/status", "/connectors/a/lag"):
        await ask(port, "GET", path)
    await ask(port, "PUT", "/connector-plugins/X/config/validate", {"connector.class": "X"})
    assert herder.audited == []
    await ask(port, "PATCH", "/connectors/b%2Fc/config", {"file": "g", "password": "new", "more": None})
    await ask(port, "PUT", "/connectors/none/config", {"topic": 5, "none.secret": "s3cret"})
    await ask(port, "PUT", "/connectors/a/pause")
    await ask(port, "DELETE", "/connectors/none2")
    found = [(one.action, one.connector, dict(one.changed), one.status) for one in herder.audited]
    assert found == [
        ("PATCH", "b/c", {"file": ("f", "g"), "password": ("[hidden]", "[hidden]")}, 200),
        ("PUT", "none", {"name": (None, "none"), "none.secret": (None, "[hidden]"), "topic": (None, "5")}, 201),
        ("PUT", "a", {}, 202),
        ("DELETE", "none2", {}, 404),
    ]
    assert {(one.by, one.user, one.role) for one in herder.audited} == {("rest", "anonymous", "admin")}


async def test_a_change_that_a_stop_of_the_server_cancels_is_recorded() -> None:
    herder = DictHerder()
    herder.hangs.add("set_target_state")
    async with running_server(herder=herder) as server, Scope("test") as scope:
        scope.spawn(ask(server.ports[0], "PUT", "/connectors/a/pause"), "a request that hangs")
        await until(lambda: herder.done, "the herder was asked")
        await server.stop()
    assert [(one.action, one.subject, one.status) for one in herder.audited] == [("PUT", "/connectors/a/pause", 0)]
