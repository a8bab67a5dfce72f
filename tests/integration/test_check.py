"""``heliograph check`` with brokers: which answer, of which release, what is missing there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from connect.cli.check.check_file import run_check
from connect.cli.commands.plan import run_plan
from connect.core.model import FACTOR_KEYS
from tests.kit.brokers import KafkaCluster
from tests.kit.rules import BOB, Guarded, guarded
from tests.kit.topics import make_topics

pytestmark = pytest.mark.integration

_FACTORS: Final = (
    "replication.factor = 1\noffset.storage.replication.factor = 1\nconfig.storage.replication.factor = 1\n"
    "status.storage.replication.factor = 1\nheartbeats.topic.replication.factor = 1\n"
    "checkpoints.topic.replication.factor = 1\noffset-syncs.topic.replication.factor = 1\n"
)


def _checked(file: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, Mapping[str, Any]]:
    code = run_check(file, kind=None, offline=False, as_json=True)
    return code, json.loads(capsys.readouterr().out)


def _mirror(folder: Path, source: str, target: str, lines: str = "") -> Path:
    file = folder / "mm2.properties"
    file.write_text(
        f"clusters = checks, eu\nchecks.bootstrap.servers = {source}\neu.bootstrap.servers = {target}\n"
        f"checks->eu.enabled = true\nchecks->eu.topics = checked-.*\n{lines}"
    )
    return file


def test_clusters_are_asked(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(make_topics(us.bootstrap, {"checked-a": 1, "checked-b": 2}))
    code, found = _checked(_mirror(tmp_path, us.bootstrap, eu.bootstrap, _FACTORS), capsys)
    assert (code, found["findings"]) == (0, [])
    assert [(one["name"], one["brokers"], one["error"]) for one in found["clusters"]] == [
        ("checks", 1, None),
        ("eu", 1, None),
    ]
    assert {one["release"] for one in found["clusters"]} == {"4.3"}
    takes = found["outcomes"][0]["does"][-1]
    # the cluster is shared: a test before may have left a topic of heartbeats, which every flow takes
    assert takes.startswith("selects ") and ": checked-a, checked-b" in takes

    # what would stop it: too few brokers for the usual number of replicas, one cluster twice, none at all
    code, found = _checked(_mirror(tmp_path, us.bootstrap, us.bootstrap), capsys)
    texts = [one["text"] for one in found["findings"]]
    assert code == 2
    few = [text for text in texts if "factor 2 is too high for 1 broker: cannot create checks.checked-a" in text]
    assert few and all(key in few[0] for key in FACTOR_KEYS)
    assert "checks and eu are the same cluster, by its id" in texts
    run_plan(tmp_path / "mm2.properties", flow="checks->eu", as_json=True, everything=False)
    notes = json.loads(capsys.readouterr().out)["flows"][0]["notes"]
    assert any("too high for 1 broker" in note and all(key in note for key in FACTOR_KEYS) for note in notes)
    code, found = _checked(_mirror(tmp_path, us.bootstrap, "127.0.0.1:1", _FACTORS), capsys)
    assert (code, found["unknown"], found["errors"]) == (1, 1, 0)
    assert found["clusters"][1]["error"]


@pytest.mark.long
def test_missing_rights_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with guarded("guarded") as cluster:
        _name_missing_rights(cluster, tmp_path, capsys)


def _name_missing_rights(on: Guarded, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = on.cluster
    asyncio.run(make_topics(cluster.bootstrap, {"checked-a": 1, "checked-b": 1, "checks.checked-a": 1}))
    bobs = cluster.bootstrap_of("BOBS")
    lines = "".join(f"{key} = {value}\n" for key, value in BOB.items())
    file = _mirror(tmp_path, bobs, bobs, _FACTORS + lines)
    on.add(
        "ALLOW READ User:bob TOPIC LITERAL checked-a",
        "ALLOW READ User:bob TOPIC LITERAL checked-b",
        "ALLOW DESCRIBE_CONFIGS User:bob TOPIC LITERAL checked-b",
        "ALLOW WRITE User:bob TOPIC LITERAL checks.checked-a",
        "ALLOW ALTER_CONFIGS User:bob TOPIC LITERAL checks.checked-a",
    )
    code, found = _checked(file, capsys)
    texts = {one["text"]: one["level"] for one in found["findings"]}
    assert code == 2
    assert "secret" not in json.dumps(found)
    flow = "checks->eu, cluster"
    assert texts[f"{flow} checks: DESCRIBE_CONFIGS on topic checked-a is missing"] == "error"
    # who may alter settings may see them
    missing = "READ and ALTER on topic checks.checked-a is missing"
    assert texts[f"{flow} eu: {missing}"] == "error"
    assert texts[f"{flow} eu: READ on group checks-mm2 is missing"] == "error"
    assert texts[f"{flow} eu: ALTER on the cluster is missing"] == "warning"
    ids = "transactional ids with prefix checks-mm2-MirrorSourceConnector-"
    unfenced = f"{flow} eu: WRITE and DESCRIBE on {ids} are missing; without them a crash may duplicate records"
    assert texts[unfenced] == "warning"
    assert any("cannot be seen. Check" in text and "checks.checked-b" in text for text in texts), texts

    on.add(
        "ALLOW ALL User:bob TOPIC LITERAL *",
        "ALLOW ALL User:bob GROUP LITERAL *",
        "ALLOW ALL User:bob CLUSTER LITERAL kafka-cluster",
        "ALLOW WRITE User:bob TRANSACTIONAL_ID PREFIXED checks-mm2-",
    )
    code, found = _checked(file, capsys)
    assert code == 0
    assert [one["text"] for one in found["findings"] if "are the same cluster" not in one["text"]] == []
