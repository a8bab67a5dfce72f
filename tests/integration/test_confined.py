"""A mirror under the restrictions of ``deploy/systemd``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from connect.embedded.brokers import KafkaCluster
from connect.embedded.java import cache_dir
from tests.kit import confined
from tests.kit.copies import await_records, send
from tests.kit.mirror import Mirror, one_flow
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1800)]

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "heliograph-mirror.service"
TOPIC = "confined"
RECORDS = 1000
DEADLINE_S = 600.0


@pytest.mark.skipif(not confined.is_possible(), reason="no namespaces, or no lists of system calls")
def test_a_mirror_copies_under_the_restrictions_of_its_unit(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    asyncio.run(make_topics(us.bootstrap, {TOPIC: 2}))
    asyncio.run(send(us.bootstrap, TOPIC, (b"%d" % number for number in range(RECORDS)), [0, 1]))
    cache_dir().mkdir(parents=True, exist_ok=True)
    program = str(Path(sys.executable).parent / "connect-mirror-maker")
    restricted = [sys.executable, confined.__file__, str(UNIT), "/tmp", str(cache_dir()), "--", program]
    with Mirror(one_flow(us.bootstrap, eu.bootstrap, TOPIC, tasks=1), tmp_path, restricted) as mirror:
        mirror.start()
        await_records(mirror, eu.bootstrap, f"us.{TOPIC}", RECORDS, DEADLINE_S)
        members = mirror.members()
        assert len(members) > 3, "the worker, Spark's driver with its JVM, and Python workers"
        for member in members:
            status = Path(f"/proc/{member.pid}/status").read_text()
            assert "CapEff:\t0000000000000000" in status
            assert "Seccomp:\t2" in status
            assert "Umask:\t0077" in status
        assert mirror.stop() == 0
        mirror.assert_gone()
        assert "Traceback" not in mirror.log_file.read_text()
