"""Workers of a Connect group as users start them, ours and Java's from the same file, and the wait until they serve."""

from __future__ import annotations

import http.client
import os
import signal
import sys
import tempfile
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self

from connect.embedded import cluster_config
from connect.embedded.processes import Keeper
from tests.kit.java_program import format_properties
from tests.kit.processes import wait_until

#: The folder of this project's commands.
PROGRAMS: Final = Path(sys.executable).parent
_WORKER: Final = "worker"
_START_DEADLINE_S: Final = 240.0
_STOP_DEADLINE_S: Final = 120.0
_TAIL_BYTES: Final = 4000


def worker_properties(bootstrap: str, group: str, changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """A worker's file for one node, tuned so that tests need not wait; ``changes`` win."""
    (port,) = cluster_config.choose(1)
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "listeners": f"http://{cluster_config.HOST}:{port}",
        "config.storage.topic": f"{group}-configs",
        "offset.storage.topic": f"{group}-offsets",
        "status.storage.topic": f"{group}-status",
        "config.storage.replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "status.storage.replication.factor": "1",
        "offset.storage.partitions": "3",
        "status.storage.partitions": "2",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "offset.flush.interval.ms": "500",
        "scheduled.rebalance.max.delay.ms": "0",
        "file.stream.source.enable": "true",
        **(changes or {}),
    }


def await_ready(url: str, is_running: Callable[[], bool], tail: Callable[[], str], deadline_s: float) -> None:
    """Waits until the worker behind ``url`` says it is healthy; an AssertionError with ``tail()`` if it ends before."""

    def healthy() -> bool:
        assert is_running(), f"the worker at {url} has ended: {tail()}"
        return _status(url, "health") == 200

    wait_until(healthy, deadline_s, f"the worker at {url} is healthy")


def _status(url: str, path: str) -> int | None:
    """The status of a GET; None while nobody answers."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=15)
    try:
        connection.request("GET", f"/{path}")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class OurWorker:
    """One ``connect-distributed`` in a process of its own over its restarts; a context manager that kills it."""

    def __init__(
        self,
        properties: Mapping[str, str],
        directory: Path,
        name: str = "ours",
        variables: Mapping[str, str] | None = None,
        programs: Path = PROGRAMS,
    ) -> None:
        #: The process id of the last one started, 0 before.
        self.pid = 0
        #: Where the next start finds ``connect-distributed``.
        self.programs = programs
        self._variables = {**os.environ, **(variables or {})}
        self.url = f"{properties['listeners'].split(',')[0]}/"
        self.log = directory / f"{name}.log"
        self._file = directory / f"{name}.properties"
        self._file.write_text(format_properties(properties))
        self._keeper = Keeper(Path(tempfile.mkdtemp(prefix="heliograph-worker-")))

    def start(self) -> None:
        command = [str(self.programs / "connect-distributed"), str(self._file)]
        variables = self._variables
        if path := variables.get("PYTHONPATH"):
            # A test plugin is imported from the tree of the programs, whose version it is written for.
            variables = {**variables, "PYTHONPATH": os.pathsep.join([path, str(self.programs.parents[1])])}
        self.pid = self._keeper.spawn(_WORKER, command, variables, self.log)

    @property
    def is_running(self) -> bool:
        return self._keeper.poll(_WORKER) is None

    def await_ready(self, deadline_s: float = _START_DEADLINE_S) -> None:
        await_ready(self.url, lambda: self.is_running, self.tail, deadline_s)

    def stop(self, within_s: float = _STOP_DEADLINE_S) -> int:
        """SIGTERM; the exit code. An AssertionError if it takes longer than ``within_s``."""
        self._keeper.signal(_WORKER, signal.SIGTERM)
        if not self._keeper.wait(_WORKER, within_s):
            raise AssertionError(f"the worker did not stop within {within_s:g} s of SIGTERM; {self.tail()}")
        return self._keeper.poll(_WORKER) or 0

    def kill(self) -> None:
        self._keeper.signal(_WORKER, signal.SIGKILL)
        assert self._keeper.wait(_WORKER, _STOP_DEADLINE_S), "a killed process ends"

    def freeze(self) -> None:
        self._keeper.signal(_WORKER, signal.SIGSTOP)

    def thaw(self) -> None:
        self._keeper.signal(_WORKER, signal.SIGCONT)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-_TAIL_BYTES:] if self.log.exists() else ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.close()
