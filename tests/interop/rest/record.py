"""``python -m tests.interop.rest.record``: records what Java's worker answers and stores, by hand, in minutes."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from connect.embedded.brokers import KafkaCluster
from tests.interop import stored
from tests.interop.rest import recording
from tests.interop.rest.answers import Answer
from tests.interop.rest.asks import Session
from tests.interop.rest.play import play
from tests.interop.rest.requests import SESSIONS
from tests.interop.rest.stage import stage
from tests.interop.rest.started import start_java
from tests.kit.copies import read_all

_PATIENCE_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--session", action="append", help="only this session (again for several)")
    wanted = parser.parse_args().session
    recorded = dict(recording.load()) if recording.RECORDED.exists() else {}
    with KafkaCluster.start("judge") as cluster:
        for session in SESSIONS:
            if wanted is None or session.name in wanted:
                recorded[session.name] = _record(session, cluster.bootstrap)
                recording.save({each.name: recorded[each.name] for each in SESSIONS if each.name in recorded})


def _record(session: Session, bootstrap: str) -> dict[str, Answer]:
    with tempfile.TemporaryDirectory(prefix="heliograph-judge-") as name:
        started = time.monotonic()
        scene = stage(session, bootstrap, Path(name))
        with start_java(session, scene, Path(name)) as program:
            print(f"{session.name}: up after {time.monotonic() - started:.0f} s", flush=True)
            answers = dict(play(session, scene.place, _PATIENCE_S))
            program.stop()
    print(f"{session.name}: {len(answers)} answers after {time.monotonic() - started:.0f} s", flush=True)
    for kind, (topic, partitions) in scene.topics.items():
        records = asyncio.run(read_all(bootstrap, topic))
        stored.save(f"{kind}-{session.name.replace(' ', '-')}", stored.kept(records, partitions))
    return answers


if __name__ == "__main__":
    main()
