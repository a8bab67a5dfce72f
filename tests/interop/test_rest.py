"""Java's recorded REST answers and those of our worker to the same requests, field by field."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from aiokafka.structs import ConsumerRecord

from connect.core.config.connector_settings import AUTO_RESTART
from connect.embedded.brokers import KafkaCluster
from connectors.config.definitions import OWN
from tests.interop.rest.answers import Answer
from tests.interop.rest.asks import Session
from tests.interop.rest.compare import Intended, compare, unused
from tests.interop.rest.play import play
from tests.interop.rest.recording import load
from tests.interop.rest.requests import PLAIN, SESSIONS
from tests.interop.rest.stage import stage
from tests.interop.rest.started import start_java, start_ours
from tests.interop.stored import load_records
from tests.kit.copies import read_all

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_READABLE: Final = "whoever can make a connector of a name can also read and delete it"
_OURS: Final = "a setting of our own"
_COPIED: Final = "records are copied as they are, so converters that change them are refused"
_UNSIGNED: Final = "a signature is checked before the body is read"
_HASH: Final = "Java keeps a converter's settings in the order of a hash"

INTENDED: Final[tuple[Intended, ...]] = (
    Intended("*", "*.documentation", "what a setting does is said in words of our own"),
    Intended("*", "headers.content-type", "Java's errors from before a resource is found are JSON that says not so"),
    Intended("*", "headers.allow", "the answer to a wrong method names the right ones, as HTTP wants"),
    *(Intended("*", f"body*.{key}", _OURS) for key in (*OWN.settings, *AUTO_RESTART.settings)),
    Intended("plugins*", "body.*FileStreamSinkConnector/sink", "this framework runs sources"),
    Intended("named 'a/b'*", "status", _READABLE),
    Intended("named 'a%b'*", "status", _READABLE),
    Intended("named 'a\\\\b'*", "status", _READABLE),
    Intended("create, named '<a>*", "status", "Java makes the connector, then fails to write its address with braces"),
    Intended("a path that climbs, encoded", "status", "a name of two dots is a name"),
    Intended("create, named 'a;b'", "headers.location", "a semicolon is encoded, which reads the same"),
    Intended("create, named 'a/b'", "headers.location", "Java's address is that of another resource"),
    Intended("create, a value of the connector's own null", "status", "Java stores the null, and the connector fails"),
    Intended("nulled, delete", "status", "there is nothing to delete, see above"),
    Intended("task configs, not base64", "body.message", "each decoder has words of its own"),
    Intended("patch, class away", "body.message", "Java prints the config in an order of its own"),
    Intended(
        "validate, null as a value", "body.*", "Java lets a null pass where the connector's own key has no default"
    ),
    Intended(
        "validate, * a broken pattern", "body.errors.*", "each engine of regular expressions has words of its own"
    ),
    Intended(
        "validate, a transform without its settings", "body.error*", "Java's check fails on the missing value too"
    ),
    Intended("validate, a transform, a wrong cast", "body.errors.*", "Java mixes up the parts of its sentence"),
    Intended("validate, converter's setting*", "body.groups.*", _HASH),
    Intended("validate, converter's setting*", "body.keys#order", _HASH),
    *(
        Intended("validate, mirror source, converters of the worker", f"body.{field}", _COPIED)
        for field in ("error_count", "values.key.converter", "errors.key.converter")
    ),
    Intended("validate, mirror source, policy nobody has", "body.errors.*", "ours names the policies that there are"),
    Intended("missing, patch null", "status", "a body is refused before its connector is looked for"),
    *(
        Intended(f"task configs, {body}*", "status", _UNSIGNED)
        for body in ("broken JSON", "an object", "of objects", "no body")
    ),
    Intended("create, class*", "body.message", "Java prints its own objects of all connectors"),
)


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
