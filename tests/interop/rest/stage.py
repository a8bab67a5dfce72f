"""What a session is played on: the file of a worker or a MirrorMaker, Java's and ours started from it alike."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import urllib.parse
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from connect.embedded import cluster_config
from tests.interop.flow import Flow
from tests.interop.rest.asks import Session
from tests.interop.rest.play import Place
from tests.kit.copies import read_all
from tests.kit.topics import make_topics
from tests.kit.workers import worker_properties

LINES: Final = "one\ntwo\nthree\n"


def read_session_key(bootstrap: str, config_topic: str) -> bytes:
    """The newest one's bytes. Raises LookupError where there is none. Not for a running loop."""
    values = [
        record.value
        for record in asyncio.run(read_all(bootstrap, config_topic))
        if record.key == b"session-key" and record.value is not None
    ]
    if not values:
        raise LookupError(f"{config_topic} holds no session key")
    return base64.b64decode(json.loads(values[-1])["key"])


@dataclass(frozen=True, slots=True)
class Stage:
    """``topics``: a worker's internal topics by what they are for, with their numbers of partitions."""

    properties: dict[str, str]
    place: Place
    topics: dict[str, tuple[str, int]]


def stage(session: Session, bootstrap: str, folder: Path) -> Stage:
    """Names of its own in a cluster, and what ``$FOLDER``, ``$TOPIC`` ... stand for; not for a running loop."""
    (folder / "lines.txt").write_text(LINES)
    return _dedicated(session, bootstrap, folder) if session.dedicated else _worker(session, bootstrap, folder)


def _worker(session: Session, bootstrap: str, folder: Path) -> Stage:
    group = f"judged-{uuid.uuid4().hex[:8]}"
    properties = worker_properties(bootstrap, group, session.changes)
    url = f"{properties['listeners']}/"
    topic = f"{group}-lines"
    asyncio.run(make_topics(bootstrap, {topic: 1}))
    topics = {
        "configs": (properties["config.storage.topic"], 1),
        "offsets": (properties["offset.storage.topic"], int(properties["offset.storage.partitions"])),
        "status": (properties["status.storage.topic"], int(properties["status.storage.partitions"])),
    }
    names = {
        "$FOLDER": str(folder),
        "$TOPIC": topic,
        "$GROUP": group,
        "$WORKER": urllib.parse.urlsplit(url).netloc,
        "$BOOTSTRAP": bootstrap,
    }
    return Stage(properties, Place(url, names, _key(bootstrap, topics["configs"][0])), topics)


def _dedicated(session: Session, bootstrap: str, folder: Path) -> Stage:
    flow = Flow(bootstrap, bootstrap)
    (port,) = cluster_config.choose(1)
    properties = {
        **flow.properties(),
        "topics": "",
        "emit.heartbeats.enabled": "true",
        "heartbeats.topic.replication.factor": "1",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://{cluster_config.HOST}:{port}",
        **session.changes,
    }
    names = {
        "$FOLDER": str(folder),
        "$SOURCE": flow.alias,
        "$TARGET": "eu",
        "$WORKER": f"{cluster_config.HOST}:{port}",
        "$BOOTSTRAP": bootstrap,
    }
    key = _key(bootstrap, f"mm2-configs.{flow.alias}.internal")
    return Stage(properties, Place(f"http://{cluster_config.HOST}:{port}/", names, key), {})


def _key(bootstrap: str, config_topic: str) -> Callable[[], bytes]:
    """Read when it is first asked for, and kept."""
    return functools.cache(functools.partial(read_session_key, bootstrap, config_topic))
