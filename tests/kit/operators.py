"""``python -m tests.kit.operators TRACE ACT SIGNAL COMMAND ...``: ``heliograph`` as an operator, traced and struck."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
from kafka.protocol.consumer.group import OffsetFetchRequest
from kafka.protocol.producer.transaction import TxnOffsetCommitRequest

from connect.cli.main import main
from connect.kafka.connection import Connection
from tests.kit.dying import strike_at

_REPOSITORY: Final = Path(__file__).parents[2]
_POLL_S: Final = 0.2
Partition = tuple[str, int]


class Seen(NamedTuple):
    """A line of a trace. ``kind`` is *told* or *commit*; ``identity`` is of the producer that commits."""

    kind: str
    at_s: float
    group: str
    identity: tuple[int, int]
    offsets: dict[Partition, int]


class Ran(NamedTuple):
    """A command that has ended. ``was_stopped``: it was suspended on the way."""

    name: str
    arguments: Sequence[str]
    exit_code: int
    was_stopped: bool
    trace: Sequence[Seen]
    output: str

    @property
    def command(self) -> str:
        return self.arguments[0]


async def run(
    trace: Path,
    strike: tuple[str, str],
    arguments: Sequence[str],
    suspended: Callable[[], Awaitable[object]],
    deadline_s: float,
) -> Ran:
    """Run it; one that was ``suspended`` goes on once that has returned. Raises TimeoutError."""
    command = [sys.executable, "-m", "tests.kit.operators", str(trace), *strike, *arguments]
    output = trace.with_suffix(".txt")
    was_stopped = False
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=_REPOSITORY, stdin=asyncio.subprocess.DEVNULL, stdout=file, stderr=file
        )
        try:
            async with asyncio.timeout(deadline_s):
                while not await _has_ended(process):
                    if _is_stopped(process.pid):
                        was_stopped = True
                        await suspended()
                        process.send_signal(signal.SIGCONT)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode is not None
    return Ran(trace.stem, arguments, process.returncode, was_stopped, list(_read(trace)), output.read_text())


async def _has_ended(process: asyncio.subprocess.Process) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_POLL_S):
            await process.wait()
    return process.returncode is not None


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def _read(trace: Path) -> Iterator[Seen]:
    for line in trace.read_text().splitlines() if trace.exists() else ():
        kind, at_s, group, identity, rows = json.loads(line)
        yield Seen(kind, at_s, group, tuple(identity), {(topic, index): offset for topic, index, offset in rows})


def _trace_into(file: Path) -> None:
    lines = file.open("a", buffering=1)
    call = Connection.call

    def write(kind: str, group: str, topics: Iterable[Any], identity: Sequence[int] = (-1, -1)) -> None:
        rows = [(topic.name, one.partition_index, one.committed_offset) for topic in topics for one in topic.partitions]
        lines.write(json.dumps([kind, time.time(), group, identity, rows]) + "\n")

    async def traced(self: Connection, request: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(request, TxnOffsetCommitRequest):
            write("commit", request.group_id, request.topics, (request.producer_id, request.producer_epoch))
        answer = await call(self, request, *args, **kwargs)
        if isinstance(request, OffsetFetchRequest):
            # From version 8 on there may be several.
            for one in getattr(answer, "groups", None) or [answer]:
                write("told", getattr(one, "group_id", None) or request.group_id, one.topics)
        return answer

    Connection.call = traced  # type: ignore[method-assign]


if __name__ == "__main__":
    _, trace_file, which, number = sys.argv[:4]
    del sys.argv[1:4]
    _trace_into(Path(trace_file))
    if which != "-":
        strike_at(which, lambda: os.kill(os.getpid(), signal.Signals[number]))
    main()
