"""The commands of docs/security.md give a mirror the rights that it needs, and a mirror copies with no others."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.brokers import KafkaCluster
from tests.kit.copies import await_records, send, until_records
from tests.kit.java_program import java_command
from tests.kit.mirror import CALM, SMALL, Mirror
from tests.kit.moving import commit, committed
from tests.kit.processes import wait_until
from tests.kit.rules import BOB, two_guarded
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.long]

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
DEADLINE_S = 600.0


@pytest.fixture
def clusters() -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    with two_guarded({"auto.create.topics.enable": "false"}) as (us, eu):
        yield us.cluster, eu.cluster


def commands(us: str, eu: str) -> str:
    found = re.search(r"```sh\n(source\(\).*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    block = found.group(1)
    addresses = (("us-kafka:9094", us), ("eu-kafka:9093", eu))
    for written, here in (*addresses, ("User:CN=mirror", "User:bob"), ("User:mirror", "User:bob")):
        assert written in block
        block = block.replace(written, here)
    return block


def grant(us: KafkaCluster, eu: KafkaCluster, folder: Path) -> None:
    tool = folder / "kafka-acls.sh"
    java = java_command(["org.apache.kafka:kafka-tools:4.3.1"], "org.apache.kafka.tools.AclCommand", [], heap="128m")
    tool.write_text(f'#!/bin/sh\nexec {shlex.join(java)} "$@"\n')
    tool.chmod(0o755)
    (folder / "admin.properties").write_text("")
    done = subprocess.run(
        ["sh", "-eu", "-c", f'PATH="{folder}:$PATH"\n{commands(us.bootstrap, eu.bootstrap)}'],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_mirror_copies_with_the_rights_of_the_page(
    clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    us, eu = clusters
    asyncio.run(_prepare(us.bootstrap))
    grant(us, eu, tmp_path)
    properties = {
        **{key: value for key, value in SMALL.items() if key.endswith("replication.factor")},
        **CALM,
        "clusters": "us, eu",
        "us->eu.enabled": "true",
        # A worker of the way back, which only sends heartbeats, has rights of its own.
        "eu->us.emit.heartbeats.enabled": "false",
        "us->eu.topics": "orders.*",
        "us->eu.groups": "shop.*",
        "us->eu.sync.group.offsets.enabled": "true",
        "sync.topic.acls.enabled": "false",
        "emit.checkpoints.interval.seconds": "1",
        "sync.group.offsets.interval.seconds": "1",
        "refresh.groups.interval.seconds": "5",
    }
    for alias, cluster in (("us", us), ("eu", eu)):
        properties[f"{alias}.bootstrap.servers"] = cluster.bootstrap_of("BOBS")
        properties |= {f"{alias}.{key}": value for key, value in BOB.items()}
    with Mirror(properties, tmp_path) as mirror:
        mirror.start()

        await_records(mirror, eu.bootstrap, "us.orders-1", 100, DEADLINE_S)
        for topic in ("heartbeats", "us.heartbeats", "us.checkpoints.internal"):
            asyncio.run(until_records(mirror, eu.bootstrap, topic, 1, DEADLINE_S))
        wait_until(lambda: asyncio.run(_moved_to(eu.bootstrap)) == 40, DEADLINE_S, "the group is moved")
        assert mirror.stop() == 0
        said = [line for line in mirror.log_lines() if re.search(r"AUTHORIZ|not authorized|right", line, re.I)]
        assert not said


async def _prepare(bootstrap: str) -> None:
    await make_topics(bootstrap, {"orders-1": 1, "heartbeats": 1})
    for topic, count in (("orders-1", 100), ("heartbeats", 1)):
        await send(bootstrap, topic, (b"%d" % number for number in range(count)))
    await commit(bootstrap, "shop-a", {"orders-1": 40})


async def _moved_to(bootstrap: str) -> int | None:
    return (await committed(bootstrap, "shop-a", ["us.orders-1"]))["us.orders-1"]
