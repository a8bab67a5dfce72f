"""``python -m tests.interop.plugins.record``: records what Java's worker writes of every case, by hand, in minutes."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

from connect.embedded.brokers import QUICK_JVM, KafkaCluster
from connect.kafka.log.compacted_topic import LogRecord, read_to_end
from connect.plugins.builtin import CONVERTERS, HEADER_CONVERTERS, PREDICATES, TRANSFORMATIONS
from tests.interop.plugins.cases import CASES, Case
from tests.interop.plugins.outcome import Outcomes, Written, save, save_definitions
from tests.kit.clients import cluster_at
from tests.kit.java_connect import JavaWorker
from tests.kit.processes import wait_until
from tests.kit.rest_client import RestClient
from tests.kit.topics import make_topics
from tests.kit.workers import worker_properties

_PATIENCE_S: Final = 300.0
_QUIET_S: Final = 10.0
#: Zone and language of Java where nothing names them.
_NEUTRAL: Final = ("-Duser.timezone=UTC", "-Duser.language=en", "-Duser.country=US")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="heliograph-judge-") as name, KafkaCluster.start("judge") as cluster:
        folder = Path(name)
        asyncio.run(make_topics(cluster.bootstrap, {case.name: 1 for case in CASES}))
        properties = worker_properties(cluster.bootstrap, "plugins")
        options = (*QUICK_JVM, *_NEUTRAL)
        with JavaWorker(properties, folder / "java.log", heap="1g", jvm_options=options) as worker:
            worker.await_ready()
            rest = RestClient(worker.url)
            for case in CASES:
                _begin(rest, case, folder)
            save(_settled(rest, cluster.bootstrap))
            save_definitions(_definitions(rest))


def _begin(rest: RestClient, case: Case, folder: Path) -> None:
    file = folder / f"{case.name}.txt"
    file.write_bytes(case.text)
    rest.ask("POST", "/connectors", {"name": case.name, "config": case.props(str(file))})


def _definitions(rest: RestClient) -> dict[str, list[dict[str, object]]]:
    names = sorted({each.name for each in (*CONVERTERS, *HEADER_CONVERTERS, *TRANSFORMATIONS, *PREDICATES)})
    return {name: rest.ask("GET", f"/connector-plugins/{name}/config") for name in names}


def _settled(rest: RestClient, bootstrap: str) -> Outcomes:
    """What is there once all tasks run and nothing more comes: of what was left out, Java stores no offset."""

    def all_run() -> bool:
        states = [task["state"] for status in rest.statuses().values() for task in status["tasks"]]
        assert "FAILED" not in states, rest.statuses()
        return states == ["RUNNING"] * len(CASES)

    wait_until(all_run, _PATIENCE_S, "all tasks run")
    outcomes: Outcomes = {}
    while (found := asyncio.run(_read(bootstrap))) != outcomes:
        outcomes = found
        time.sleep(_QUIET_S)
    return outcomes


async def _read(bootstrap: str) -> dict[str, list[Written]]:
    outcomes: dict[str, list[Written]] = {}
    async with cluster_at(bootstrap) as cluster:
        for case in CASES:
            records: list[LogRecord] = []
            await read_to_end(cluster, case.name, records.append)
            outcomes[case.name] = [Written.of(each.key, each.value, each.headers) for each in records]
    return outcomes


if __name__ == "__main__":
    main()
