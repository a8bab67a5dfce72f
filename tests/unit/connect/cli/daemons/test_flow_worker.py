"""How a dedicated mirror's worker stores the connectors of its file, and what it says of a failure."""

from __future__ import annotations

import asyncio
import traceback
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.cli.daemons.flow_worker import Failures, FlowWorker, reason, worker_config
from connect.cli.rates import NO_TOPICS
from connect.core.config.connector_access import NotAllowed
from connect.core.config.properties import parse_properties
from connect.core.config_topic import ConfigLog
from connect.core.errors import ConfigError
from connect.core.herder_api import BadRequest, RebalanceExpected
from connect.core.model import State, Status
from connectors.config.mm2_properties import Connector, MirrorMakerConfig
from connectors.flow_facts import FlowProgress, Tally
from connectors.formats.types import FlowName


def trace_of(error: Exception) -> str:
    try:
        raise error
    except type(error) as raised:
        return "".join(traceback.format_exception(raised))


SECURED = """
clusters = us, eu
us.bootstrap.servers = a:1
us.ssl.truststore.location = /tls/us.p12
eu.bootstrap.servers = b:1
eu.sasl.jaas.config = secret
us->eu.enabled = true
us->eu.producer.override.bootstrap.servers = c:1
connector.allowed.files = /tls/more
"""


def test_the_connectors_of_the_file_may_name_what_it_names() -> None:
    config = MirrorMakerConfig(parse_properties(SECURED))
    assert config.key_notices() == []
    (flow,) = (one for one in config.flows() if one.enabled)
    props = worker_config(flow).transformer.connector_props
    for connector in Connector:
        assert props(flow.connector_config(connector))["source.cluster.ssl.truststore.location"] == "/tls/us.p12"
    changed = flow.connector_config(Connector.SOURCE)
    assert props({**changed, "source.cluster.ssl.truststore.location": "/tls/more/us.p12"})
    for key, value in (
        ("source.cluster.ssl.truststore.location", "/etc/shadow"),
        ("producer.override.bootstrap.servers", "evil:1"),
    ):
        with pytest.raises(NotAllowed):
            props({**changed, key: value})


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigError("topics is wrong; mend it"), "topics is wrong; mend it"),
        (ValueError("a: b"), "ValueError: a: b"),
        (KeyError(), "KeyError"),
    ],
)
def test_a_failure_is_its_last_line_ours_without_the_class(error: Exception, text: str) -> None:
    assert reason(trace_of(error)) == text


def test_a_cause_does_not_stand_for_what_came_of_it() -> None:
    try:
        try:
            raise ValueError("cause")
        except ValueError as cause:
            raise ConfigError("what came of it") from cause
    except ConfigError as error:
        text = "".join(traceback.format_exception(error))
    assert reason(text) == "what came of it"


def test_no_trace_is_no_crash() -> None:
    assert reason("") == "unknown reason"


def running() -> Status:
    return Status(State.RUNNING, "here", 1)


def failed(why: str = "refused") -> Status:
    return Status(State.FAILED, "here", 1, trace=f"ConfigError: {why}")


@pytest.mark.parametrize(
    ("statuses", "is_told"),
    [
        ([failed()], True),
        ([failed(), running()], True),
        ([running(), failed(), failed()], True),
        ([], False),
        ([running()], False),
        ([running(), running(), failed()], False),
        ([running(), failed("PartitionsStopped: gone")], False),
    ],
)
def test_a_failure_that_lasts_is_told(statuses: list[Status], is_told: bool) -> None:
    failures = Failures()
    found = [failures.look(statuses, now_s, is_replaced=False) for now_s in (0.0, 4.9, 5.0)]
    assert found == [None, None, "ConfigError: refused" if is_told else None]


def test_what_failed_in_an_earlier_run_does_not_count_until_it_fails_again() -> None:
    earlier = [failed("the old value"), failed("the old value")]
    failures = Failures(earlier)
    assert not any(failures.look(earlier, now_s, is_replaced=False) for now_s in (0.0, 10.0))
    again = [running(), failed("the new value")]
    assert failures.look(again, 20.0, is_replaced=False) is None
    assert failures.look(again, 25.0, is_replaced=False) == "ConfigError: the new value"


def test_what_fails_under_a_config_that_the_file_replaces_has_time_to_start_again() -> None:
    failures, connector, task = Failures(), failed("the old value"), failed("the old value")
    assert failures.look([connector, task], 0.0, is_replaced=True) is None
    assert failures.look([connector, task], 55.0, is_replaced=True) is None
    starting = Status(State.UNASSIGNED, "here", 1)
    assert failures.look([starting, task], 59.0, is_replaced=True) is None
    assert failures.look([running(), task], 118.0, is_replaced=True) is None
    assert failures.look([running(), running()], 120.0, is_replaced=True) is None
    again = [running(), failed("the new value")]
    assert failures.look(again, 130.0, is_replaced=True) is None
    assert failures.look(again, 190.0, is_replaced=True) == "ConfigError: the new value"


@pytest.mark.parametrize(("is_ready", "state"), [(False, "starting"), (True, NO_TOPICS)])
def test_a_flow_has_no_topics_only_once_its_worker_has_joined(is_ready: bool, state: str) -> None:
    configs = ConfigLog()
    configs.apply(0, "connector-MirrorSourceConnector", b'{"properties": {}}')
    found, status = FlowProgress(FlowName("us", "eu"), "starting", 0, Tally()), running()
    made = FlowWorker.__new__(FlowWorker)
    made.flow = cast(Any, SimpleNamespace(name=found.flow))
    made.host = cast(Any, SimpleNamespace(progress=lambda *_: found))
    statuses = SimpleNamespace(log=SimpleNamespace(status=lambda _: status))
    core = SimpleNamespace(snapshot=configs, is_ready=is_ready)
    made.worker = cast(Any, SimpleNamespace(core=core, statuses=statuses))
    assert made.progress(1).state == state


class Leading:
    """The worker and the herder of one flow: it leads, and its configs are refused as ``refusals`` says, one each."""

    def __init__(self, **refusals: list[Exception]) -> None:
        self.is_leader = True
        self.refusals = refusals
        self.stored: dict[str, Any] = {}
        self.snapshot = SimpleNamespace(connector_config=self.stored.get)

    async def put_connector(self, name: str, config: Any, *_: object, **__: object) -> None:
        if refusals := self.refusals.get(name):
            raise refusals.pop(0)
        self.stored[name] = config

    def flow_worker(self) -> FlowWorker:
        made = FlowWorker.__new__(FlowWorker)
        made.flow = cast(Any, SimpleNamespace(connector_config=lambda connector: {"name": connector.value}))
        made.worker = cast(Any, SimpleNamespace(core=self, herder=self))
        made._elected = asyncio.Event()
        made._is_replaced = False
        made._elected.set()
        return made


async def test_a_connector_that_is_refused_is_in_no_other_ones_way(caplog: pytest.LogCaptureFixture) -> None:
    group = Leading(
        MirrorSourceConnector=[BadRequest("values must not be duplicated")] * 9,
        MirrorCheckpointConnector=[RebalanceExpected()],
    )
    seeing = asyncio.create_task(group.flow_worker()._see_to_connectors())
    async with asyncio.timeout(30):
        while len(group.stored) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    seeing.cancel()
    assert sorted(group.stored) == ["MirrorCheckpointConnector", "MirrorHeartbeatConnector"]
    assert len(group.refusals["MirrorSourceConnector"]) == 8, "what is wrong is said once"
    assert "MirrorSourceConnector keeps its old config: values must not be duplicated" in caplog.text


@pytest.mark.parametrize(("stored", "is_replaced"), [({}, False), ({"MirrorSourceConnector": {"name": "old"}}, True)])
async def test_only_a_config_that_was_stored_is_replaced(stored: dict[str, Any], is_replaced: bool) -> None:
    """What fails in a flow's first start ends it as soon as any other failure does."""
    group = Leading()
    group.stored.update(stored)
    worker = group.flow_worker()
    seeing = asyncio.create_task(worker._see_to_connectors())
    async with asyncio.timeout(30):
        while group.stored.get("MirrorSourceConnector") != {"name": "MirrorSourceConnector"}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    seeing.cancel()
    assert worker._is_replaced is is_replaced
