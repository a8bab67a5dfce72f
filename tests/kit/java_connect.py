"""Kafka Connect's distributed worker in Java, as judge: started on a cluster of the tests, asked over its REST."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from connect.embedded.brokers import QUICK_JVM
from tests.kit.java_program import KAFKA_VERSION, LOGGING, JavaProgram
from tests.kit.workers import await_ready, worker_properties

#: The worker with the three connectors of the mirror, the file connectors and the transforms.
WORKER: Final = (
    f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
    f"org.apache.kafka:connect-file:{KAFKA_VERSION}",
    f"org.apache.kafka:connect-mirror:{KAFKA_VERSION}",
    f"org.apache.kafka:connect-transforms:{KAFKA_VERSION}",
    LOGGING,
)
#: A worker scans its class path and loads the whole of Connect: more than a minute on a busy machine.
_START_DEADLINE_S: Final = 240.0


class JavaWorker(JavaProgram):
    """One worker of a group; ``url`` is its REST address with a slash at its end."""

    coordinates: Sequence[str] = WORKER
    main_class = "org.apache.kafka.connect.cli.ConnectDistributed"

    def __init__(
        self, properties: Mapping[str, str], log: Path, *, heap: str = "256m", jvm_options: Sequence[str] = QUICK_JVM
    ) -> None:
        super().__init__(properties, log, heap=heap, jvm_options=jvm_options)
        self.url = f"{properties['listeners'].split(',')[0]}/"

    @classmethod
    def of(cls, bootstrap: str, group: str, log: Path, changes: Mapping[str, str] | None = None) -> Self:
        """A worker of ``group`` with the tests' usual file; ``changes`` win."""
        return cls(worker_properties(bootstrap, group, changes), log)

    def await_ready(self, deadline_s: float = _START_DEADLINE_S) -> None:
        await_ready(self.url, lambda: self.is_running, self.tail, deadline_s)
