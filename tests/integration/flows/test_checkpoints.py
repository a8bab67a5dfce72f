"""Groups of the source on the target: checkpoints and group offsets of a running mirror, as stock clients see them."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Final

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from connect.cli.commands.plan import run_drift, run_plan
from connect.embedded.brokers import KafkaCluster
from connectors.client import (
    OffsetAndMetadata,
    Offsets,
    TopicPartition,
    checkpoint_topics,
    translate_offsets,
    translate_offsets_of,
)
from tests.kit.direct import Broker
from tests.kit.mirror import Mirror
from tests.kit.moving import (
    PLACES,
    PLAIN,
    TRANSACTIONS,
    Feed,
    FlowOf,
    Mover,
    commit,
    committed,
    flows_of,
    not_processed_once,
    translated_alike,
)
from tests.kit.processes import wait_until
from tests.kit.rest_client import RestClient
from tests.kit.shared_mirror import GROUPS, TARGET, SharedMirror

pytestmark = pytest.mark.integration

_DEADLINE_S: Final = 200.0
_POLL_S: Final = 0.3
_ROUNDS: Final = 60
#: Where the target's log is made to begin.
_CUT: Final = 200
_PLACES: Final = ("start", "half", "ten", "end")


async def _leave(us: KafkaCluster, feed: Feed, name: str) -> list[Mover]:
    await feed.make()
    await feed.write(_ROUNDS)
    movers = [Mover(f"{name}-{place}") for place in _PLACES]
    for mover, place in zip(movers, _PLACES, strict=True):
        await mover.leave(us.bootstrap, feed.topics, PLACES[place])
    return movers


async def _move(eu: KafkaCluster, mirror: Mirror, flow: FlowOf, feed: Feed, movers: list[Mover]) -> None:
    give_up_s = time.monotonic() + _DEADLINE_S
    left = list(movers)
    while left:
        assert mirror.is_running, mirror.log_lines()[-20:]
        for mover in list(left):
            faults = await not_processed_once(eu.bootstrap, mover, feed, flow.remote)
            assert not faults or time.monotonic() < give_up_s, (flow, mover.group, faults[:5])
            if not faults:
                left.remove(mover)
        await asyncio.sleep(_POLL_S)


async def _stand(eu: KafkaCluster, flow: FlowOf, feed: Feed, movers: list[Mover]) -> dict[str, Offsets]:
    remote = [flow.remote(topic) for topic in feed.topics.values()]
    return {mover.group: _carried(mover.group, await committed(eu.bootstrap, mover.group, remote)) for mover in movers}


def _carried(group: str, at: Mapping[str, int | None]) -> Offsets:
    text = f"left by {group}"
    return {TopicPartition(topic, 0): OffsetAndMetadata(offset or 0, text) for topic, offset in at.items()}


async def _await_stand(eu: KafkaCluster, group: str, remote: str, offset: int) -> None:
    """A group that stood before the log is moved to where it begins, and not left to be reset by its consumers."""
    give_up_s = time.monotonic() + _DEADLINE_S
    while (stands := (await committed(eu.bootstrap, group, [remote]))[remote]) != offset:
        assert time.monotonic() < give_up_s, stands
        await asyncio.sleep(_POLL_S)


def _are_counted(url: str, flow: FlowOf, feed: Feed, movers: list[Mover]) -> bool:
    """Groups have latencies and heartbeats count, since the task's last start (when it found another group)."""
    families = text_string_to_metric_families(httpx.get(url, trust_env=False, timeout=90).text)
    samples = [sample for family in families for sample in family.samples]
    of_flow = [sample for sample in samples if sample.labels.get("source") == flow.alias]
    prefix = "kafka_connect_mirror_Mirror"
    found = {
        (one.labels["group"], one.labels["topic"], one.labels["partition"])
        for one in of_flow
        if one.name == f"{prefix}CheckpointConnector_checkpoint_latency_ms_max"
        and one.labels["group"] in {mover.group for mover in movers}
    }
    remote = [flow.remote(topic) for topic in feed.topics.values()]
    wanted = {(mover.group, topic, "0") for mover in movers for topic in remote}
    assert found <= wanted
    beats = [one.value for one in of_flow if one.name == f"{prefix}HeartbeatConnector_heartbeat_count"]
    counts = [one.value for one in of_flow if one.name == f"{prefix}CheckpointConnector_task_checkpoint_count"]
    assert max(len(beats), len(counts)) <= 1
    return bool(found) and sum(beats) > 0 and sum(counts) >= len(found)


def _agree(
    translated: Callable[[], Mapping[str, Offsets]], stand: Callable[[], Coroutine[None, None, Mapping[str, Offsets]]]
) -> bool:
    return translated() == asyncio.run(stand())


def _is_stopped(worker: RestClient, connector: str) -> bool:
    found = worker.ask("GET", f"{connector}/status")
    return found["connector"]["state"] == "STOPPED" and not found["tasks"]


def test_groups_process_every_record_once_wherever_they_left(
    shared: SharedMirror, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of plain, transactional and compacted topics, by two policies."""
    name, us, eu, mirror = GROUPS, shared.us, shared.eu, shared.mirror
    feed = Feed(us.bootstrap, name)
    movers = asyncio.run(_leave(us, feed, name))
    groups = re.compile(f"{name}-({'|'.join(_PLACES)})")
    late, topics = f"{name}-late", feed.topics
    for flow in flows_of(name):
        asyncio.run(_move(eu, mirror, flow, feed, movers))
        props = flow.client(eu.bootstrap)
        assert f"{flow.alias}.checkpoints.internal" in checkpoint_topics(props)
        # A group may stand right at the beginning of a compacted topic before all of that is copied, and move on.
        translated = partial(translate_offsets_of, props, flow.alias, groups, _DEADLINE_S)
        wait_until(
            partial(_agree, translated, partial(_stand, eu, flow, feed, movers)),
            _DEADLINE_S,
            "groups stand where they are translated to",
        )
        assert translate_offsets(props, flow.alias, f"{name}-half", _DEADLINE_S) == translated()[f"{name}-half"]
    translated_alike(eu.bootstrap, flows_of(name), groups, _DEADLINE_S)
    for flow in flows_of(name):
        # What is written is counted once its acknowledgement has come.
        counted = partial(_are_counted, f"{shared.url}/metrics", flow, feed, movers)
        wait_until(counted, _DEADLINE_S, "metrics tell of all groups")
    (first, _) = flows_of(name)
    remote, ahead = first.remote(topics[PLAIN]), movers[0].group
    Broker(eu, 0).delete_records(remote, _CUT)
    asyncio.run(_await_stand(eu, ahead, remote, _CUT))
    # No checkpoint is written any more, so that the plan names what one would move.
    connector = f"/{first.alias}/{TARGET}/connectors/MirrorCheckpointConnector"
    worker = RestClient(f"{shared.url}/")
    worker.ask("PUT", f"{connector}/stop")
    wait_until(lambda: _is_stopped(worker, connector), _DEADLINE_S, "the checkpoints are stopped")
    asyncio.run(commit(us.bootstrap, late, {topics[PLAIN]: 500, topics[TRANSACTIONS]: 0}))
    run_plan(mirror.properties_file, flow=f"{first.alias}->eu", as_json=True, everything=False)
    (reported,) = json.loads(capsys.readouterr().out)["flows"]
    assert [one for one in reported["changes"] if one["action"] == "move-group"] == [
        {
            "action": "move-group",
            "cluster": "eu",
            "group": late,
            "topic": first.remote(topics[kind]),
            "partition": 0,
            "before": None,
            "after": offset,
        }
        for kind, offset in ((PLAIN, 500), (TRANSACTIONS, 0))
    ]
    asyncio.run(commit(eu.bootstrap, ahead, {remote: _CUT + 5}))
    run_drift(mirror.properties_file, flow=f"{first.alias}->eu", as_json=True, everything=False)
    (drift,) = json.loads(capsys.readouterr().out)["flows"]
    (left,) = (one for one in drift["leaves"] if one["kind"] == "group")
    assert (left["resource"], left["expected"], left["found"]) == (ahead, str(_CUT), str(_CUT + 5))
    assert left["key"] == f"{remote}-0: it is ahead, and no group is moved back"
    # The kinds of groups have this flow too.
    worker.ask("PUT", f"{connector}/resume")
