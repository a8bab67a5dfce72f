"""A mirror of an older version is stopped or killed under load, this version continues it, and goes back; and what an
older version made under a policy that this one has not.

``HELIOGRAPH_OLDER`` names a clone of the older version in which ``make setup`` has run.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from connect.kafka.cluster import Cluster
from connect.kafka.security.connection_settings import connection_settings
from tests.kit.brokers import KafkaCluster
from tests.kit.direct import Broker, value_numbers
from tests.kit.mirror import PATIENT, SMALL, Mirror
from tests.kit.processes import wait_until
from tests.kit.stage import Stage

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]

DEADLINE_S = 240.0


@pytest.fixture
def older() -> list[str]:
    """The older version's command."""
    clone = os.environ.get("HELIOGRAPH_OLDER")
    if not clone:
        pytest.skip("HELIOGRAPH_OLDER names no clone of an older version")
    # Older versions look for their modules in the folder first where they were started.
    return ["/usr/bin/env", "PYTHONSAFEPATH=1", str(Path(clone) / ".venv" / "bin" / "connect-mirror-maker")]


@pytest.mark.kill
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_each_version_continues_exactly_where_the_other_ended(tmp_path: Path, older: list[str], ending: str) -> None:
    with Stage(tmp_path, seed=11, records_per_s=3_000) as stage:
        this_version, stage.mirror.command = stage.mirror.command, older
        assert stage.set_going(DEADLINE_S) == []
        surplus = 0
        for command in (this_version, older, this_version):
            wait_until(partial(_copies, stage, stage.passed_bytes() + 1_000_000), DEADLINE_S, "the mirror copies")
            if ending == "stopped":
                assert stage.mirror.stop() == 0
            else:
                stage.mirror.kill()
            stage.mirror.assert_gone()
            start, stage.mirror.command = stage.mirror.log_end(), command
            stage.mirror.start()
            report = stage.caught_up(DEADLINE_S)
            assert report.is_exact, report.summary()
            resumed = stage.mirror.resumed(start)
            assert not [one.line for one in resumed if one.at_least_once or one.may_double]
            surplus += sum(one.surplus_records for one in resumed)
        end = stage.shut_down()
        assert not end.faults
        assert end.comparison.is_exact, end.comparison.summary()
        assert stage.map_faults() == []
    assert bool(surplus) == (ending == "killed"), "only who is killed leaves records that no position covers"


def _copies(stage: Stage, size: int) -> bool:
    return stage.passed_bytes() >= size


def test_remote_topics_of_the_removed_policy_stay_as_they_are(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path, older: list[str]
) -> None:
    """Under ``new-remote-topic`` of versions that have it; then it is refused, and ``restart`` is set."""
    source, target, topic = Broker(us, 0), Broker(eu, 0), "former"
    for name in (topic, "former-keeps"):
        make(source, name)
        source.produce(name, 0, 20)
    properties = {
        "clusters": "past, eu",
        "past.bootstrap.servers": us.bootstrap,
        "eu.bootstrap.servers": eu.bootstrap,
        "past->eu.enabled": "true",
        "past->eu.topics": "former.*",
        "topic.deletion.policy": "delete-after",
        "topic.deletion.delay.ms": "1000",
        "refresh.topics.interval.seconds": "5",
        **SMALL,
        **PATIENT,
    }
    with Mirror({**properties, "on.topic.recreated": "new-remote-topic"}, tmp_path) as mirror:
        this_version, mirror.command = mirror.command, older
        mirror.start()
        wait_until(lambda: target.end("past.former") >= 20, DEADLINE_S, "the first is copied")
        source.delete_topic(topic)
        make(source, topic)
        source.produce(topic, 100, 5)
        own = wait_until(partial(_of_its_own, eu.bootstrap), DEADLINE_S, "it has a remote topic of its own", 0.5)
        wait_until(lambda: target.end(own) >= 5, DEADLINE_S, "the second is copied")
        assert mirror.stop() == 0
        mirror.command, start = this_version, mirror.log_end()
        mirror.start()
        wait_until(lambda: not mirror.is_running, DEADLINE_S, "this version refuses the policy")
        assert "Remote topics made under new-remote-topic are kept" in "".join(mirror.log_lines(start))
        mirror.configure({**properties, "on.topic.recreated": "restart"})
        mirror.start()
        source.produce(topic, 105, 5)
        wait_until(lambda: target.end("past.former") >= 25, DEADLINE_S, "copying continues in the usual remote topic")
        numbers = partial(value_numbers, eu.bootstrap)
        assert asyncio.run(numbers("past.former")) == [*range(20), *range(105, 110)]
        source.delete_topic(topic)
        wait_until(lambda: target.replicas("past.former") is None, DEADLINE_S, "the usual remote topic is deleted", 0.5)
        assert asyncio.run(numbers(own)) == [*range(100, 105)]
        assert mirror.stop() == 0


def make(broker: Broker, topic: str) -> None:
    def is_made() -> bool:
        with suppress(AssertionError):  # one of the name may still be on its way out
            broker.make_topic(topic, [[1]])
            return True
        return False

    wait_until(is_made, DEADLINE_S, f"{topic} is made", 0.1)
    wait_until(lambda: broker.end(topic) == 0, DEADLINE_S, f"{topic} is there", 0.1)


def _of_its_own(bootstrap: str) -> str:
    """The remote topic that the policy made; empty as long as there is none."""

    async def topics() -> list[str]:
        cluster = Cluster(connection_settings({"bootstrap.servers": bootstrap}, client_id="names", where="the target"))
        try:
            return list((await cluster.metadata(None)).topics)
        finally:
            await cluster.close()

    return next((name for name in asyncio.run(topics()) if name.startswith("past.former.")), "")
