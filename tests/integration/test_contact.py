"""A mirror that stands still, has nothing to mirror or cannot read internal records says so; one for all tests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import pytest
from aiokafka import AIOKafkaProducer

from tests.kit.brokers import KafkaCluster
from tests.kit.direct import Broker
from tests.kit.mirror import SMALL, Mirror, with_rest
from tests.kit.moving import commit
from tests.kit.processes import wait_until
from tests.kit.seen import Seen
from tests.kit.shapes import configure

pytestmark = pytest.mark.integration

_TOPIC: Final = "still-numbers"
_DEADLINE_S: Final = 90.0
#: Ten are promised; a machine may be busy.
_SOON_S: Final = 60.0
#: Of a target that is frozen until the worker has noticed.
_SESSION: Final = {"eu.session.timeout.ms": "12000", "eu.worker.lease.ms": "9000", "lease.ms": "20000"}

#: What each of them does to a decoder: too many levels, bytes of no form, the front of a right record and then nothing.
_POISON: Final = (b"[" * 100_000, b"\xff\xfe", b"\x01\x01")
_AT_SOURCE: Final = ("mm2-offset-syncs.eu.internal",)
#: Read by every start of the mirror; the config topic has a line of its own.
_READ_AT_START: Final = (
    *(f"mm2-{name}.still.internal" for name in ("offsets", "status", "offset-map")),
    "still.checkpoints.internal",
)
_AT_TARGET: Final = ("mm2-configs.still.internal", *_READ_AT_START, "heartbeats")


@pytest.fixture(scope="module")
def still() -> Iterator[KafkaCluster]:
    with KafkaCluster.start("still") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def stuck() -> Iterator[KafkaCluster]:
    with KafkaCluster.start("stuck") as cluster:
        yield cluster


def _properties(still: KafkaCluster, eu: KafkaCluster) -> dict[str, str]:
    return {
        "clusters": "still, bare, eu",
        "still.bootstrap.servers": still.bootstrap,
        "bare.bootstrap.servers": still.bootstrap,
        "eu.bootstrap.servers": eu.bootstrap,
        "still->eu.enabled": "true",
        "still->eu.topics": _TOPIC,
        "bare->eu.enabled": "true",
        "bare->eu.topics": "bare-.*",
        **SMALL,
        **_SESSION,
        "still->eu.groups": "still-.*",
        "still->eu.emit.checkpoints.enabled": "true",
        "still->eu.emit.heartbeats.enabled": "true",
        "still->eu.emit.checkpoints.interval.seconds": "1",
        "eu.offset.flush.interval.ms": "500",
        **with_rest(),
    }


@pytest.fixture(scope="module")
def seen(still: KafkaCluster, stuck: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Seen]:
    """The running mirror with a hundred records copied; at the end it stops and leaves no process behind."""
    source, target = Broker(still, 0), Broker(stuck, 0)
    source.make(_TOPIC)
    asyncio.run(commit(still.bootstrap, "still-group", {_TOPIC: 1}))  # else there is no task of checkpoints
    properties = _properties(still, stuck)
    with Mirror(properties, tmp_path_factory.mktemp("seen")) as mirror:
        seen = _Seen(mirror, properties["listeners"], source, target)
        mirror.start()
        seen.copies(100)
        yield seen
        assert mirror.stop() == 0
        mirror.assert_gone()


def test_nothing_looks_green_that_is_not(still: KafkaCluster, stuck: KafkaCluster, seen: _Seen) -> None:
    _says_what_it_starts(seen.mirror)
    seen.until(lambda: seen.metric("source_answers") == seen.metric("target_answers") == 1, "both answer")
    seen.until(lambda: seen.metric("lag_records") == 0 and 0 <= seen.metric("last_fetch_age_ms") < 5_000, "it copies")
    assert seen.metric("last_produce_age_ms") >= 0
    _its_task_has_metrics_and_topics(seen)

    _source_stands_still(still, seen)
    _connector_is_stopped(seen)
    _nothing_to_mirror(seen)
    _target_stands_still(stuck, seen)


def test_what_the_verdict_says_of_a_refused_batch_helps(stuck: KafkaCluster, seen: _Seen) -> None:
    """The partition is quarantined, and its task fails because it has no other. Then what the verdict says is done."""
    remote = f"still.{_TOPIC}"
    well = "still->eu runs: everything in 1 partition is copied."
    seen.until(lambda: seen.verdict().sentence == well, "it runs")
    configure(stuck.bootstrap, remote, {"max.message.bytes": "60"})
    seen.write(1)
    seen.until(lambda: seen.verdict().state == "failed" and seen.verdict().also, "its task and partition are seen")
    found = seen.verdict()
    assert found.sentence.startswith("still->eu does not copy the partitions of 1 of 1 task: task 0 failed: "), (
        found.sentence
    )
    assert found.also[0].startswith(
        f"It does not copy 1 partition: {_TOPIC}-0 is QUARANTINED: target {remote}-0 refuses"
    )
    assert "1 record of 1 partition not copied yet would be lost. " in found.failover.sentence
    assert found.failover.sentence.endswith(
        f"Groups that read {_TOPIC}-0 could not move, because it is not copied to its end."
    )
    code, text = seen.status_printed()
    assert code == 2
    assert all(sentence in text for sentence in (found.sentence, *found.also, str(found.actions[0].remedy)))
    configure(stuck.bootstrap, remote, {"max.message.bytes": "1048588"})
    seen.ask("/still/eu/connectors/MirrorSourceConnector/restart?includeTasks=true&onlyFailed=true", "POST")
    seen.copies(1)
    seen.until(lambda: seen.verdict().state == "running", "it runs again")


def test_it_goes_on_behind_what_it_cannot_read(still: KafkaCluster, stuck: KafkaCluster, seen: _Seen) -> None:
    mirror = seen.mirror
    for broker, topics in ((seen.from_broker, _AT_SOURCE), (seen.to_broker, _AT_TARGET)):
        for topic in topics:
            seen.until(partial(_is_there, broker, topic), f"{topic} is there")
    asyncio.run(_record_rejected(still.bootstrap, _AT_SOURCE))
    asyncio.run(_record_rejected(stuck.bootstrap, _AT_TARGET))
    seen.copies(500)
    assert mirror.stop() == 0
    begin = mirror.log_end()
    mirror.start()
    seen.copies(500)
    mirror.await_line(begin, ["Config topic:", "cannot be read"], _DEADLINE_S)
    for topic in (*_AT_SOURCE, *_READ_AT_START):
        mirror.await_line(begin, [f"topic {topic},", "is skipped"], _DEADLINE_S)
    named = [line.partition(" is skipped")[0].partition("topic ")[2] for line in mirror.log_lines(begin)]
    of_map = [one for one in named if one.startswith("mm2-offset-map")]
    assert len(of_map) == len(set(of_map)) > 0


def _says_what_it_starts(mirror: Mirror) -> None:
    banner, *_ = [line for line in mirror.log_lines() if "Heliograph " in line and "flows " in line]
    assert re.search(
        r"Heliograph \S+: \S+mm2.properties, flows .*still->eu.*, Spark local\[.*, REST for users at http:", banner
    )


def _its_task_has_metrics_and_topics(seen: _Seen) -> None:
    path = "/still/eu/connectors/MirrorSourceConnector/topics"
    seen.until(lambda: seen.ask(path)["MirrorSourceConnector"]["topics"] == [f"still.{_TOPIC}"], "its topic is active")
    task = 'connector="MirrorSourceConnector",group="still-mm2",task="0"'
    written = f"kafka_connect_source_task_metrics_source_record_write_total{{{task}}}"
    before = seen.process_metric(written)
    seen.copies(100)
    seen.until(lambda: seen.process_metric(written) == before + 100, "its task counts its records")


def _source_stands_still(still: KafkaCluster, seen: _Seen) -> None:
    begin = seen.mirror.log_end()
    still.freeze(0)
    try:
        seen.until(lambda: seen.metric("source_answers") == 0, "the source does not answer", _SOON_S)
        assert seen.metric("target_answers") == 1
        assert (seen.metric("lag_records"), seen.metric("lag_ms"), seen.metric("flow_lag_records")) == (-1, -1, -1)
        unknown_ms = seen.metric("lag_unknown_ms")
        reported = seen.ask("/still/eu/connectors/MirrorSourceConnector/lag?top=1")
        assert (reported["source_answers"], reported["target_answers"]) == (False, True)
        assert (reported["records"], reported["ms"]) == (-1, -1)
        assert reported["unknown_since_ms"] > 0 and "no answer" in reported["unknown"]["still->eu"]
        silent = "still->eu copies nothing, and its lag is unknown: the source still does not answer"
        seen.until(lambda: seen.verdict().sentence.startswith(f"{silent} (last answer "), "the verdict says so")
        # The worker does its part: a probe that restarted it would not help.
        assert seen.ask("/health")["status"] == "healthy"
        seen.mirror.await_line(
            begin,
            ["still->eu unreachable", "lag unknown since 2", "the source still does not answer (last answer"],
            _SOON_S,
        )
        assert seen.metric("lag_unknown_ms") > unknown_ms
        assert seen.metric("last_fetch_age_ms") > 5_000
        warnings = [line for line in seen.mirror.log_lines(begin) if "still->eu: source cluster" in line]
        assert len(warnings) == 1 and "WARNING" in warnings[0] and "so its lag is unknown" in warnings[0]
        # Whatever else asks it meanwhile: one cause is one warning, by each name that the file has for the cluster.
        of_all = [line for line in seen.mirror.log_lines(begin) if "WARNING" in line and "answer" in line]
        of_all = [line for line in of_all if "bare->eu copies nothing: no source" not in line]  # once a minute
        assert [line for line in of_all if "bare->eu: source cluster bare" not in line] == warnings
        assert len(of_all) <= 2
        code, text = seen.lag()
        assert code == 1 and "still->eu: lag unknown" in text and "no lag" not in text
        code, text = seen.lag("--rest", f"{seen.url}/still/eu")
        assert code == 1 and "lag unknown since" in text and "the source still does not answer (last answer" in text
        code, text = seen.status_printed()
        assert code == 1
        assert f"{silent}: " in text
        assert "Do: cluster still: check its brokers and the network: heliograph check " in text
        assert "Failover still->eu: A failover could start now with --source-gone still. " in text
    finally:
        still.thaw(0)
    seen.until(lambda: seen.metric("source_answers") == 1 and seen.metric("lag_records") == 0, "it is known again")
    assert seen.metric("lag_unknown_ms") == 0
    seen.mirror.await_line(begin, ["still->eu: source cluster", "answers again"], _SOON_S)


def _connector_is_stopped(seen: _Seen) -> None:
    begin = seen.mirror.log_end()
    seen.ask("/still/eu/connectors/MirrorSourceConnector/stop", "PUT")
    seen.mirror.await_line(
        begin, ["WARNING", "still->eu copies nothing: connector MirrorSourceConnector is STOPPED"], _DEADLINE_S
    )
    # It fetches nothing any more, and the age of its last fetch says so as long as that lasts.
    age_ms = seen.metric("last_fetch_age_ms")
    seen.until(lambda: seen.metric("last_fetch_age_ms") > age_ms, "the age grows")
    assert (seen.metric("source_answers"), seen.metric("target_answers")) == (1, 1)
    assert seen.ask("/still/eu/connectors/MirrorSourceConnector/lag")["last_produce_age_ms"] > 0
    seen.mirror.await_line(begin, ["is STOPPED", "last fetch", "last produce"], _SOON_S)
    for more in ((), ("--rest", f"{seen.url}/still/eu")):
        code, text = seen.lag(*more)
        assert code == 1 and "copies nothing: connector MirrorSourceConnector is STOPPED." in text
    seen.ask("/still/eu/connectors/MirrorSourceConnector/resume", "PUT")


def _nothing_to_mirror(seen: _Seen) -> None:
    seen.mirror.await_line(0, ["WARNING", "bare->eu copies nothing: no source topic is selected"], _DEADLINE_S)
    code, text = seen.lag(flow="bare->eu")
    assert code == 1 and "bare->eu: no partition to copy" in text and "copies nothing: no source topic is sel" in text


def _target_stands_still(stuck: KafkaCluster, seen: _Seen) -> None:
    begin = seen.mirror.log_end()
    # What was known of the stopped connector is let go of first.
    seen.until(lambda: seen.metric("target_answers") == 1 and seen.metric("lag_records") == 0, "the resumed flow runs")
    stuck.freeze(0)
    try:
        seen.until(lambda: seen.metric("target_answers") == 0, "the target does not answer", _SOON_S)
        seen.until(lambda: seen.status("/still/eu/health") == 500, "the worker does not reach its group")
        # The worker has given up its tasks by now, and with them goes nothing that users have to see.
        assert (seen.metric("target_answers"), seen.metric("source_answers")) == (0, 1)
        seen.until(
            lambda: seen.verdict().sentence.startswith(
                "still->eu copies nothing: the target eu does not answer (last answer"
            ),
            "the worker says so",
        )
        line = ["still->eu", "lag unknown", "the target eu does not answer (last answer"]
        seen.mirror.await_line(begin, line, _SOON_S)
    finally:
        stuck.thaw(0)
    seen.until(lambda: seen.status("/still/eu/health") == 200 and seen.metric("target_answers") == 1, "it is back")


class _Seen(Seen):
    def __init__(self, mirror: Mirror, url: str, source: Broker, target: Broker) -> None:
        super().__init__(mirror, url, "still")
        self.from_broker, self.to_broker = source, target
        self._written = 0

    def write(self, count: int) -> None:
        self.from_broker.produce(_TOPIC, self._written, count)
        self._written += count

    def copies(self, count: int) -> None:
        self.write(count)
        self.until(
            lambda: self.to_broker.end(f"still.{_TOPIC}") >= self._written, f"{self._written} records are copied"
        )

    def until(self, is_so: Callable[[], object], what: str, within_s: float = _DEADLINE_S) -> None:
        wait_until(is_so, within_s, what)


def _is_there(broker: Broker, topic: str) -> bool:
    return broker.end(topic) >= 0


async def _record_rejected(bootstrap: str, topics: tuple[str, ...]) -> None:
    """Write to every partition: each poison as a key and as a value, and a record without a key."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=1 << 20) as producer:
        for topic in topics:
            for partition in await producer.partitions_for(topic):
                for poison in _POISON:
                    named = [(key, poison) for key in (b"connector-x", b"status-connector-x")]
                    for key, value in ((poison, b"x"), *named, (poison, None)):
                        await producer.send_and_wait(topic, value, key, partition=partition)
