"""A session's worker or MirrorMaker as a running process, Java's or ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from connect.embedded.brokers import QUICK_JVM
from tests.interop.rest.asks import Ask, Session
from tests.interop.rest.play import exchange
from tests.interop.rest.stage import Stage
from tests.kit.java_connect import JavaWorker
from tests.kit.java_program import JavaMirrorMaker
from tests.kit.mirror import Mirror
from tests.kit.processes import wait_until
from tests.kit.workers import OurWorker

_START_DEADLINE_S: Final = 240.0


class Program(Protocol):
    @property
    def is_running(self) -> bool: ...

    def stop(self) -> int: ...


@contextmanager
def start_java(session: Session, scene: Stage, folder: Path) -> Iterator[Program]:
    log = folder / "java.log"
    if session.dedicated:
        with JavaMirrorMaker(scene.properties, log, heap="512m", jvm_options=QUICK_JVM) as maker:
            _await_dedicated(scene, maker)
            yield maker
    else:
        with JavaWorker(scene.properties, log) as worker:
            worker.await_ready()
            yield worker


@contextmanager
def start_ours(session: Session, scene: Stage, folder: Path) -> Iterator[Program]:
    if session.dedicated:
        with Mirror(scene.properties, folder) as mirror:
            mirror.start()
            _await_dedicated(scene, mirror)
            yield mirror
    else:
        with OurWorker(scene.properties, folder) as worker:
            worker.await_ready()
            yield worker


def _await_dedicated(scene: Stage, program: Program) -> None:
    """Until a herder is behind the REST, and its leader has written a session key and the connectors."""
    ask = Ask("ready", "PUT", "/$SOURCE/$TARGET/connectors/MirrorHeartbeatConnector/fence", signed=True)

    def ready() -> bool:
        assert program.is_running, "the MirrorMaker has ended"
        try:
            status, _, _ = exchange(ask, scene.place)
        except (OSError, LookupError):
            return False
        return status == 204

    wait_until(ready, _START_DEADLINE_S, f"the MirrorMaker at {scene.place.url} serves")
