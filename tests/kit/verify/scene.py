"""Two brokers, a mirror that copied everything and stopped, and the command under test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from connect.kafka.log.offsets import LATEST, list_offsets
from connectors.config.mm2_properties import Flow, load
from connectors.internal_topics import read_records, record_settings
from connectors.verification.report import VerificationResult
from connectors.verification.state import VERIFIED
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_at
from tests.kit.mirror import CALM, SMALL, Mirror
from tests.kit.spark_cluster import ConnectServer, Spark, StandaloneSpark, bare_python
from tests.kit.verify import damage, data
from tests.kit.verify.data import SOURCE, TARGET, TOPICS, Content, Topic, Written
from tests.kit.verify.segments import Original

_COPIED_DEADLINE_S: Final = 3600.0
_POLL_S: Final = 0.2
_MERGE: Final = {"producer.override.batch.size": "1048576"}
_APART: Final = {"producer.override.batch.size": "0"}
#: 0 equal, 2 differences.
ENDED: Final = (0, 2)
#: A standalone cluster of two workers with one core each, or a Connect server.
SPARKS: Final = ("local", "standalone", "connect")
#: Forgets what earlier runs found.
FULL: Final = "--full"


class Scene:
    """A stopped mirror's copy (``pairs``) to be verified, on a Spark with these keys; ``merged``: small batches."""

    def __init__(
        self, directory: Path, *, seed: int, megabytes: float, merged: bool = False, topics: Sequence[Topic] = TOPICS
    ) -> None:
        self._directory, self._megabytes, self.topics = directory, megabytes, topics
        self._content = Content(seed)
        self._merging = _MERGE if merged else _APART
        self._exits = contextlib.ExitStack()
        self.file = directory / "mm2.properties"
        self._damaged: tuple[set[str], set[str]] = (set(), set())
        self.written = Written()
        self.spark: Mapping[str, str] = {}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as exits:
            with ThreadPoolExecutor(2) as pool:
                starts = [pool.submit(KafkaCluster.start, name) for name in (SOURCE, TARGET)]
            self.us, self.eu = (exits.enter_context(start.result()) for start in starts)
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def copy(self) -> None:
        """Fill the source in two parts, with records of another producer at the target in between, and mirror it."""
        asyncio.run(data.make(self.us.bootstrap, self.topics))
        self.fill(self._megabytes / 2)
        with self.mirroring():
            asyncio.run(self._until_copied(0))
            asyncio.run(data.put_slots(self.eu.bootstrap, self.topics, self._content))
            self.fill(self._megabytes / 2)
            self.await_copied()

    @contextlib.contextmanager
    def mirroring(self, **more: str) -> Iterator[None]:
        """Run the mirror; ``more`` of the flow, with underscores for dots. At the end it stops cleanly."""
        properties = data.properties(
            self.us.bootstrap, self.eu.bootstrap, self.topics, {**SMALL, **CALM, "sync.topic.configs.enabled": "true"}
        )
        of_flow = {**self._merging, **{key.replace("_", "."): value for key, value in more.items()}}
        properties |= {f"{SOURCE}->{TARGET}.{key}": value for key, value in of_flow.items()}
        with Mirror(properties, self._directory) as mirror:
            mirror.start()
            yield
            assert mirror.stop() == 0

    def fill(self, megabytes: float) -> None:
        asyncio.run(data.fill(self.us.bootstrap, self.topics, self._content, megabytes, self.written))

    def await_copied(self) -> None:
        """Wait until the target has all that was written since its slots were."""
        asyncio.run(self._until_copied(data.SLOT_OFFSETS))

    async def _until_copied(self, more: int) -> None:
        """Until every target partition has as many offsets as committed records, and ``more`` of another producer."""
        wanted = {(f"{SOURCE}.{topic}", at): count + more for (topic, at), count in self.written.counts.items()}
        async with cluster_at(self.eu.bootstrap) as cluster:
            async with asyncio.timeout(_COPIED_DEADLINE_S):
                while True:
                    with contextlib.suppress(Exception):  # a topic that is not there yet
                        ends = await list_offsets(cluster, list(wanted), LATEST)
                        if all(ends[key] >= count for key, count in wanted.items()):
                            return
                    await asyncio.sleep(_POLL_S)

    def stop_brokers(self) -> None:
        for cluster in (self.us, self.eu):
            cluster.end_node(0, signal.SIGTERM)

    def start_brokers(self) -> None:
        for cluster in (self.us, self.eu):
            cluster.start_node(0)

    def keep(self) -> None:
        """Keep the segments of all partitions, while the brokers have stopped."""
        self._source, self._target = (
            Original(cluster.nodes[0].data, self._directory / f"kept-{cluster.name}") for cluster in (self.us, self.eu)
        )
        self.pairs = damage.read_pairs(self.topics, self._source, self._target)

    def plant(self, seed: int, kinds: Sequence[damage.Kind], *, cleaned: bool = True) -> list[damage.Planted]:
        """Write one round's damage into the segments, and repair that of the round before. The brokers have stopped."""
        planter = damage.Planter(self.pairs, seed)
        if cleaned:
            planter.clean()
        planted = [planter.plant(kind) for kind in kinds]
        before_source, before_target = self._damaged
        damage.write(self._source, planter.changed_source, before_source)
        damage.write(self._target, planter.changed, before_target)
        self._damaged = set(planter.changed_source), set(planter.changed)
        return planted

    def has_stored(self) -> bool:
        return asyncio.run(self._has_stored())

    async def _has_stored(self) -> bool:
        settings = Flow(load(self.file), SOURCE, TARGET).settings()
        async with cluster_at(self.eu.bootstrap) as cluster:
            stored = await read_records(cluster, record_settings(settings), VERIFIED)
        return any(one.result.verified_ms > 0 for one in stored.values())

    def command(self, *options: str) -> list[str]:
        program = str(Path(sys.executable).parent / "heliograph")
        file = self._directory / "verify.properties"
        file.write_text(self.file.read_text() + "".join(f"{key} = {value}\n" for key, value in self.spark.items()))
        return [program, "verify", str(file), "--flow", f"{SOURCE}->{TARGET}", "--json", *options]

    def verify(self, *options: str) -> VerificationResult:
        """Run the command to its end. AssertionError if it fails, or if its exit code is not that of its report."""
        done = subprocess.run(self.command(*options), check=False, capture_output=True, text=True)
        assert done.returncode in ENDED, f"exit code {done.returncode}: {done.stderr[-2000:]}"
        result = VerificationResult.from_json(json.loads(done.stdout))
        assert (done.returncode == 0) == result.is_equal, f"exit code {done.returncode} for {result}"
        return result


@contextlib.contextmanager
def verifying_on(kind: str, directory: Path, scene: Scene) -> Iterator[Spark | None]:
    """Let the scene be verified on a Spark of a kind, whose executors have none of our code; None: this machine's."""
    if kind == "local":
        yield None
        return
    python = bare_python(directory / "python")
    with StandaloneSpark(python, cores=1) if kind == "standalone" else ConnectServer(python) as spark:
        scene.spark = spark.properties
        yield spark
