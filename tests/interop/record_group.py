"""``python -m tests.interop.record_group``: records what members of a Java group tell each other, by hand."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from connect.kafka.cluster import Cluster
from tests.interop import stored
from tests.interop.stored import StoredMember
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_at
from tests.kit.groups import describe
from tests.kit.java_connect import JavaWorker
from tests.kit.rest_client import RestClient
from tests.kit.topics import make_topics

_PROTOCOLS = ("eager", "compatible", "sessioned")
_CONNECTORS = 4
_POLL_S = 0.02
_SETTLED_S = 3.0
_DEADLINE_S = 120.0


def main() -> None:
    members: list[StoredMember] = []
    with KafkaCluster.start("judge") as cluster, tempfile.TemporaryDirectory(prefix="heliograph-judge-") as folder:
        (Path(folder) / "lines.txt").write_text("one\n")
        asyncio.run(make_topics(cluster.bootstrap, {"lines": 1}))
        for protocol in _PROTOCOLS:
            found = asyncio.run(_record(cluster.bootstrap, protocol, Path(folder)))
            print(f"{protocol}: {len(found)} of them", flush=True)
            members += found
    stored.save("group", members)


async def _record(bootstrap: str, protocol: str, folder: Path) -> list[StoredMember]:
    group = f"judged-{protocol}"
    changes = {
        "connect.protocol": protocol,
        "scheduled.rebalance.max.delay.ms": "5000",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "1000",
    }
    first = JavaWorker.of(bootstrap, group, folder / f"{protocol}-first.log", changes)
    second = JavaWorker.of(bootstrap, group, folder / f"{protocol}-second.log", changes)
    seen: dict[StoredMember, None] = {}
    with first, contextlib.ExitStack() as stack:
        await asyncio.to_thread(first.await_ready)
        async with _watched(bootstrap, group, seen):
            for number in range(_CONNECTORS):
                await asyncio.to_thread(_create, first.url, f"größe {number}" if number == 0 else f"c{number}", folder)
            await _settled(seen)
            stack.enter_context(second)
            await asyncio.to_thread(second.await_ready)
            await _settled(seen)
            await asyncio.to_thread(RestClient(first.url).ask, "DELETE", "/connectors/c1")
            await _settled(seen)
            second.kill()
            # Its session ends after 6 s, and its work is given away 5 s later.
            await _settled(seen, 15.0)
    return list(seen)


@contextlib.asynccontextmanager
async def _watched(bootstrap: str, group: str, seen: dict[StoredMember, None]) -> AsyncIterator[None]:
    async with cluster_at(bootstrap) as cluster:
        watching = asyncio.create_task(_watch(cluster, group, seen), name=f"watch {group}")
        try:
            yield
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching


async def _watch(cluster: Cluster, group: str, seen: dict[StoredMember, None]) -> None:
    while True:
        picture = await describe(cluster, group)
        if picture is not None and picture.state == "Stable":
            for member in picture.members.values():
                seen[StoredMember(picture.protocol, member.metadata.hex(), member.assignment.hex())] = None
        await asyncio.sleep(_POLL_S)


async def _settled(seen: dict[StoredMember, None], quiet_s: float = _SETTLED_S) -> None:
    """Returns once nothing new was seen for a while."""
    clock = asyncio.get_running_loop().time
    count, since, end = len(seen), clock(), clock() + _DEADLINE_S
    while clock() - since < quiet_s and clock() < end:
        await asyncio.sleep(_POLL_S)
        if len(seen) != count:
            count, since = len(seen), clock()


def _create(url: str, name: str, folder: Path) -> None:
    config = {"connector.class": "FileStreamSource", "file": str(folder / "lines.txt"), "topic": "lines"}
    RestClient(url).ask("POST", "/connectors", {"name": name, "config": config})


if __name__ == "__main__":
    main()
