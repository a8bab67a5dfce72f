"""Java's recorded REST answers and those of our worker to the same requests, field by field."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiokafka.structs import ConsumerRecord

from connect.embedded.brokers import KafkaCluster
from tests.interop.rest.answers import Answer
from tests.interop.rest.asks import Session
from tests.interop.rest.compare import compare, unused
from tests.interop.rest.intended import INTENDED
from tests.interop.rest.play import play
from tests.interop.rest.recording import load
from tests.interop.rest.requests import PLAIN, SESSIONS
from tests.interop.rest.stage import stage
from tests.interop.rest.started import start_java, start_ours
from tests.interop.stored import load_records
from tests.kit.copies import read_all

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_PATIENCE_S = 120.0
_MIRROR = '["mirror",'
#: Set to judge the judge: Java's worker is asked in place of ours.
_JUDGE_JAVA = "HELIOGRAPH_JUDGE_JAVA"


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.name)
async def test_answers_as_java_does(session: Session, us: KafkaCluster, tmp_path: Path) -> None:
    recorded = load()[session.name]
    assert recorded.keys() == {ask.name for ask in session.asks}, "record again: the requests have changed"
    answers = await asyncio.to_thread(_answers, session, us.bootstrap, tmp_path)
    found = compare(recorded, answers, INTENDED)
    assert not found, f"{len(found)} differences:\n" + "\n".join(map(str, found))
    if session is PLAIN:
        assert unused(recorded, answers, INTENDED) == [], "these differences are gone"


def test_every_intended_difference_has_its_request() -> None:
    recorded = {name: answer for answers in load().values() for name, answer in answers.items()}
    nobody = {name: Answer(0, {}, "") for name in recorded}
    assert unused(recorded, nobody, [type(meant)(meant.asks, "*", "") for meant in INTENDED]) == []


def _answers(session: Session, bootstrap: str, folder: Path) -> dict[str, Answer]:
    scene = stage(session, bootstrap, folder)
    start = start_java if os.environ.get(_JUDGE_JAVA) else start_ours
    with start(session, scene, folder) as program:
        answers = dict(play(session, scene.place, _PATIENCE_S))
        assert program.stop() in (0, 143)
    if session.name == "plain":
        assert _mirror_keys(asyncio.run(read_all(bootstrap, scene.topics["offsets"][0]))) == _mirror_keys_of_java()
    return answers


def _mirror_keys(records: Sequence[ConsumerRecord[bytes | None, bytes | None]]) -> set[str]:
    """The keys under which the offsets of the mirror were stored: it finds them by these bytes."""
    keys = {(record.key or b"").decode() for record in records}
    return {key for key in keys if key.startswith(_MIRROR)}


def _mirror_keys_of_java() -> set[str]:
    keys = {record.key or "" for record in load_records("offsets-plain")}
    return {key for key in keys if key.startswith(_MIRROR)}
