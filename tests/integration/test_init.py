"""The files that ``heliograph init`` writes start a mirror as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from connect.embedded import cluster_config
from connect.embedded.brokers import KafkaCluster
from tests.kit.direct import Broker
from tests.kit.mirror import Mirror
from tests.kit.processes import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]

_DEADLINE_S: Final = 240.0
_RECORDS: Final = 10
_BIN: Final = Path(sys.executable).parent


def _heliograph(*arguments: str) -> str:
    command = [str(_BIN / "heliograph"), *arguments]
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _begun(us: KafkaCluster, eu: KafkaCluster, alias: str, folder: Path, *more: str) -> tuple[str, Broker]:
    """Writes the files for a topic of the flow's own, which gets records; the remote topic and the target's broker."""
    topic, ours = f"begun-by-{alias}", Broker(us, 0)
    ours.make(topic)
    ours.produce(topic, 0, _RECORDS)
    places = ("--source", f"{alias}={us.bootstrap}", "--target", f"eu={eu.bootstrap}")
    _heliograph("init", *places, "--topics", topic, "--groups", "no-group", "--dir", str(folder), *more)
    return f"{alias}.{topic}", Broker(eu, 0)


def test_a_mirror_begins_with_its_file(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    remote, theirs = _begun(us, eu, "inita", tmp_path, "--mode", "dedicated")
    written = (tmp_path / "mm2.properties").read_text()
    assert "inita->eu" in _heliograph("check", str(tmp_path / "mm2.properties"))
    with Mirror({}, tmp_path, [str(_BIN / "heliograph"), "mirror"]) as mirror:
        mirror.properties_file.write_text(written)
        mirror.start()
        wait_until(lambda: theirs.end(remote) >= _RECORDS, _DEADLINE_S, "all is copied")
        assert mirror.is_running
        assert mirror.stop() == 0
        mirror.assert_gone()


def test_a_connect_group_begins_with_its_files(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    remote, theirs = _begun(us, eu, "initb", tmp_path, "--mode", "connect")
    written = (tmp_path / "worker.properties").read_text()
    url = f"http://{cluster_config.HOST}:{cluster_config.choose(1)[0]}"
    with Mirror({}, tmp_path, [str(_BIN / "connect-distributed")]) as worker:
        worker.properties_file.write_text(written.replace("listeners = http://localhost:8083", f"listeners = {url}"))
        worker.start()
        worker.await_line(0, ["REST server listening at"], _DEADLINE_S)
        for name in ("source", "checkpoint", "heartbeat"):
            file = str(tmp_path / f"mirror-{name}.properties")
            _heliograph("connectors", "create", file, "--rest", url)
        wait_until(lambda: theirs.end(remote) >= _RECORDS, _DEADLINE_S, "all is copied")
        assert worker.stop() == 0
        worker.assert_gone()
