"""``python -m tests.kit.dying ACT PID COMMAND ...``: ``heliograph``; before act 3 or ``EndTxn:2`` PID (0: own) dies."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from connect.cli.commands.rest_client import RestClient
from connect.cli.main import main
from connect.kafka.connection import Connection

#: Of requests that change something: Produce, OffsetCommit, CreateTopics, InitProducerId, EndTxn, TxnOffsetCommit,
#: CreateAcls, DeleteAcls.
_CHANGING: Final = frozenset({0, 8, 19, 22, 26, 28, 30, 31})
_STRUCK: Final = "struck before "
_REPOSITORY: Final = Path(__file__).parents[2]
_DEADLINE_S: Final = 300.0


class Ended(NamedTuple):
    """``act`` is what the blow fell before; empty where there were fewer acts."""

    exit_code: int
    act: str
    output: str
    errors: str


def run_dying(act: int | str, pid: int, arguments: Sequence[str]) -> Ended:
    command = [sys.executable, "-m", "tests.kit.dying", str(act), str(pid), *arguments]
    done = subprocess.run(
        command,
        cwd=_REPOSITORY,
        check=False,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        stdin=subprocess.DEVNULL,
    )
    lines = done.stderr.splitlines()
    struck = next((line.removeprefix(_STRUCK) for line in lines if line.startswith(_STRUCK)), "")
    errors = "\n".join(line for line in lines if not line.startswith(_STRUCK))
    return Ended(done.returncode, struck, done.stdout, errors)


def strike_at(which: str, blow: Callable[[], None]) -> None:
    """Count acts from now on, and strike the ``blow`` before one of them, once."""
    name, _, ordinal = which.partition(":")
    acts = itertools.count(1)
    so_called = itertools.count(1)

    def act(what: str) -> None:
        number = next(acts)
        if which.isdigit():
            is_due = str(number) == which
        else:
            is_due = what.startswith(name) and next(so_called) == int(ordinal or 1)
        if is_due:
            print(f"{_STRUCK}{what}", file=sys.stderr, flush=True)
            blow()

    call, ask = Connection.call, RestClient.ask

    async def counted_call(self: Connection, request: Any, *args: Any, **kwargs: Any) -> Any:
        if request.API_KEY in _CHANGING:
            act(f"{request.name} to {self.address}")
        return await call(self, request, *args, **kwargs)

    def counted_ask(self: RestClient, method: str, path: str, body: Any = None) -> Any:
        if method != "GET":
            act(f"{method} {path}")
        return ask(self, method, path, body)

    Connection.call = counted_call  # type: ignore[method-assign]
    RestClient.ask = counted_ask  # type: ignore[method-assign]


if __name__ == "__main__":
    strike_at(sys.argv[1], partial(os.kill, int(sys.argv[2]) or os.getpid(), signal.SIGKILL))
    del sys.argv[1:3]
    main()
