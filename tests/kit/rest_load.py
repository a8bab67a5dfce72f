"""The REST API of a worker asked while the mirror in the same process copies at full rate: how long answers take."""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from bench.loads import Load
from connect.core.errors import RetriableError
from connect.embedded.brokers import KafkaCluster
from connect.kafka.cluster import Cluster
from connect.kafka.log.offsets import LATEST, list_offsets
from tests.kit.clients import cluster_at
from tests.kit.java_program import run_tool
from tests.kit.mirror import Mirror, one_flow, with_rest
from tests.kit.topics import make_topics

_PERFORMANCE: Final = "org.apache.kafka.tools.ProducerPerformance"
_PARTITIONS: Final = 8
_RATE_PER_S: Final = 20.0
_PATHS: Final = (
    "/us/eu/connectors?expand=status&expand=info",
    "/us/eu/connectors/MirrorSourceConnector/status",
    "/us/eu/connectors/MirrorSourceConnector/tasks",
    "/us/eu/connectors/MirrorSourceConnector/offsets",
    "/health",
)
_TIMEOUT_S: Final = 60.0
_DEADLINE_S: Final = 120.0
_POLL_S: Final = 0.2
#: Of the median and of the p99.
PROMISED_MEDIAN_MS: Final = 10.0
PROMISED_MS: Final = 100.0


@dataclass(frozen=True)
class Answers:
    """Milliseconds by quantile, the longest by path, and what was copied meanwhile."""

    requests: int
    refused: int
    median_ms: float
    p99_ms: float
    longest_ms: Mapping[str, float]
    records_per_s: float
    load: float

    def __str__(self) -> str:
        return (
            f"REST during a copy of {self.records_per_s:,.0f} records/s: {self.requests} requests at "
            f"{_RATE_PER_S:.0f}/s, median {self.median_ms:.1f} ms, p99 {self.p99_ms:.1f} ms, longest "
            f"{', '.join(f'{ms:.0f} ms ({path})' for path, ms in self.longest_ms.items())}, {self.refused} refused "
            f"(load {self.load:.1f})"
        )


def measure(directory: Path, *, records: int = 30_000_000, seconds: float = 20.0) -> Answers:
    """Fill a source, start a mirror, and ask while it copies; the copy must not end before the questions do."""
    load = Load(
        name="small",
        title="100 B uncompressed",
        about="",
        group="",
        partitions=_PARTITIONS,
        records=records,
        record_bytes=100,
    )
    with KafkaCluster.start("us") as us, KafkaCluster.start("eu") as eu:
        asyncio.run(make_topics(us.bootstrap, {load.topic: _PARTITIONS}))
        run_tool(_PERFORMANCE, load.arguments(us.bootstrap, directory / "none"))
        properties = {**one_flow(us.bootstrap, eu.bootstrap, load.topic), **with_rest()}
        with Mirror(properties, directory) as mirror:
            mirror.start()
            answers, copied = asyncio.run(
                _ask_while_copying(eu.bootstrap, f"us.{load.topic}", properties["listeners"], seconds)
            )
            assert copied < records, "the copy went on for as long as was asked"
            return answers


async def _ask_while_copying(bootstrap: str, topic: str, url: str, seconds: float) -> tuple[Answers, int]:
    async with cluster_at(bootstrap) as cluster:
        await _until_copying(cluster, topic)
        before, begun_s = await _copied(cluster, topic), time.monotonic()
        answered, refused = await _ask(url, seconds)
        after = await _copied(cluster, topic)
        took_s = time.monotonic() - begun_s
    times_ms = [ms for _, ms in answered]
    answers = Answers(
        len(times_ms),
        refused,
        statistics.median(times_ms),
        statistics.quantiles(times_ms, n=100)[98],
        {path: max(ms for one, ms in answered if one == path) for path in _PATHS},
        (after - before) / took_s,
        os.getloadavg()[0],
    )
    return answers, after


async def _ask(url: str, seconds: float) -> tuple[Sequence[tuple[str, float]], int]:
    """Paths and times, at a steady rate whether answers are slow or not: a slow one must not thin out the questions."""
    times_ms: list[tuple[str, float]] = []
    refused = 0

    async def one(client: httpx.AsyncClient, path: str) -> None:
        nonlocal refused
        begun_s = time.perf_counter()
        answer = await client.get(f"{url}{path}")
        times_ms.append((path, (time.perf_counter() - begun_s) * 1000))
        refused += answer.status_code != httpx.codes.OK

    async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client, asyncio.TaskGroup() as group:
        await client.get(f"{url}/health")  # a client's first request imports half of it, which is no answer's time
        begun_s = time.monotonic()
        for number, path in enumerate(itertools.cycle(_PATHS)):
            due_s = begun_s + number / _RATE_PER_S
            if due_s > begun_s + seconds:
                break
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            group.create_task(one(client, path), name=path)
    return times_ms, refused


async def _until_copying(cluster: Cluster, topic: str) -> None:
    async with asyncio.timeout(_DEADLINE_S):
        while not await _copied(cluster, topic):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)


async def _copied(cluster: Cluster, topic: str) -> int:
    try:
        ends = await list_offsets(cluster, [(topic, index) for index in range(_PARTITIONS)], LATEST)
    except RetriableError:
        return 0  # not made yet
    return sum(ends.values())
