"""What every command shares: one-line errors, exit codes, logging, signals, and ``--version``."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from connect.core.errors import HeliographError
from connect.kafka.concurrency import unless
from connect.kafka.error_causes import OneOfEachCause
from connect.runtime.herder.loggers import REVEALING

logger = logging.getLogger(__name__)

EXIT_OK: Final = 0
#: The demo's comparison found a difference.
EXIT_DIFFERENT: Final = 1
#: Any error that has no code of its own, as MirrorMaker.main has it.
EXIT_ERROR: Final = 2
#: MirrorMaker.main: what was configured could not be started.
EXIT_NOT_STARTED: Final = 3
#: MirrorMaker.main exits with -1 where arguments are wrong; a shell sees 255.
EXIT_BAD_ARGUMENTS: Final = 255
#: What a shell shows for a process that Ctrl-C ended.
EXIT_INTERRUPTED: Final = 130

#: Libraries that tell at INFO what only their authors want to know.
_QUIET_LOGGERS: Final = ("aiokafka", "kafka", "py4j", "pyspark", "asyncio", "jgo", "urllib3", "httpx", "httpcore")


def counted(count: int, noun: str) -> str:
    """``1 partition``, ``2 partitions``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


class OneLineFormatter(logging.Formatter):
    """Time, level and message in one line, whatever a message or an exception holds.

    The exception's type, text and innermost place follow the message; the whole trace does only at DEBUG, escaped.
    """

    def __init__(self, *, traces: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._traces = traces

    def format(self, record: logging.LogRecord) -> str:
        text = f"{self.formatTime(record)} {record.levelname} {record.getMessage()}"
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text += f": {describe(error)}"
            if self._traces:
                text += " | " + "".join(traceback.format_exception(error))
        return text.rstrip().replace("\r", "\\r").replace("\n", "\\n")


def configure_logging(level: str = "INFO", handler: logging.Handler | None = None) -> None:
    """Sends the log to ``handler`` (stderr by default), one line a message."""
    if handler is None:
        handler = logging.StreamHandler()
    handler.setFormatter(OneLineFormatter(traces=level == "DEBUG"))
    handler.addFilter(OneOfEachCause())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _QUIET_LOGGERS:
        logging.getLogger(name).setLevel(level if level == "DEBUG" else "WARNING")
    for name in REVEALING:
        logging.getLogger(name).setLevel("INFO" if level == "DEBUG" else "WARNING")


def describe(error: BaseException) -> str:
    """An exception in one line. Ours speak for themselves; others get their type and the place they come from."""
    if isinstance(error, HeliographError):
        return str(error)
    text = " ".join(str(error).split())
    name = type(error).__name__
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{error.strerror or text or name}"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{name}: {text}{place}" if text else f"{name}{place}"


def run_command(program: str, command: Callable[[], int], exit_error: int = EXIT_ERROR) -> int:
    """Runs a command; whatever it raises becomes one line on stderr and an exit code, ``exit_error``.

    An error nobody expected is our fault: its trace goes to a file of its own that the line names, so that the
    person at the terminal gets a sentence and we get what we need.
    """
    try:
        return command()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Who read our output went away. Python would complain once more while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_error
    except (HeliographError, OSError) as error:
        print(f"{program}: error: {describe(error)}", file=sys.stderr)
        return exit_error
    except Exception as error:  # the last border: nothing above could show it to anybody
        return _internal_error(program, error, exit_error)


def _internal_error(program: str, error: Exception, exit_error: int) -> int:
    with tempfile.NamedTemporaryFile("w", prefix="heliograph-", suffix=".trace", delete=False) as file:
        file.write("".join(traceback.format_exception(error)))
    text = f"{describe(error)}; this is a defect of Heliograph, please report it with {file.name}"
    print(f"{program}: internal error: {text}", file=sys.stderr)
    return exit_error


@asynccontextmanager
async def stop_signals(
    *, exit_within_s: float | None = None, exit_late: int = EXIT_ERROR
) -> AsyncIterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set; further signals change nothing.

    Args:
        exit_within_s: After the first signal the process ends within this time, whatever hangs. None: no promise.
        exit_late: The exit code where something had to be left hanging.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    guard = _ExitGuard(exit_late)

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            return
        logger.info("%s: stopping", number.name)
        stop.set()
        if exit_within_s is not None:
            guard.arm(exit_within_s)

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield stop
        guard.stopped()
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def imported(stop: asyncio.Event, *modules: str, plugins: bool = False) -> bool:
    """Import ``modules``, and what has ``plugins``, in a thread, so that signals are heard meanwhile: on a busy machine
    that takes many seconds. Return whether they are there; False if ``stop`` was set first."""
    return await unless(stop, asyncio.to_thread(_import, modules, plugins), "imports") or False


def _import(modules: Iterable[str], plugins: bool) -> bool:
    for module in modules:
        importlib.import_module(module)
    if plugins:
        from connect.api.plugins import installed

        installed()
    return True


class _ExitGuard:
    """Ends the process when it should have ended.

    A blocking call in a thread (a client library waiting for a broker that is gone) cannot be cancelled, and both
    asyncio and the interpreter wait for it at exit. By then everything of ours has stopped.
    """

    _GRACE_S: Final = 0.5

    def __init__(self, exit_late: int) -> None:
        self._exit_late = exit_late
        self._armed = self._stopped = False

    def arm(self, seconds: float) -> None:
        self._armed = True
        timer = threading.Timer(seconds, self._exit)
        timer.name, timer.daemon = "exit guard", True
        timer.start()

    def stopped(self) -> None:
        """Everything of ours has stopped: what still runs is not worth waiting for."""
        self._stopped = True
        if self._armed:
            self.arm(self._GRACE_S)

    def _exit(self) -> NoReturn:
        if not self._stopped:
            print("not everything stopped in time; the next start goes on from what was committed", file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(EXIT_OK if self._stopped else self._exit_late)


def version_line() -> str:
    """What ``--version`` prints."""
    from importlib.metadata import version

    return f"heliograph {version('heliograph')}"


class ShowVersion(argparse.Action):
    """Prints it and ends with 0. argparse's own wants the text beforehand, which takes a moment to find."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="Print the version and exit.", **settings)
        del dest

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        del namespace, values, option_string
        print(version_line())
        parser.exit()
