"""Shared parts of all commands: one-line errors, exit codes, logging, signals, ``--version``."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

from connect.core.audit import EVENT, SUBJECT
from connect.core.errors import ConfigError, HeliographError
from connect.kafka.concurrency import unless
from connect.kafka.error_causes import OneOfEachCause
from connect.runtime.herder.loggers import REVEALING

logger = logging.getLogger(__name__)

#: Version of the commands' JSON; incremented if a program that reads the previous one would misread it.
FORMAT: Final = 1
EXIT_OK: Final = 0
#: An error of any kind: a wrong argument, file or setting, a refusal, or something that could not be checked.
EXIT_ERROR: Final = 1
#: A command that answers a question has found something to do, as ``terraform plan -detailed-exitcode``.
EXIT_FOUND: Final = 2
#: Java's commands have the codes of MirrorMaker.main: any error without a code of its own,
EXIT_JAVA_ERROR: Final = 2
#: flows or workers could not be started,
EXIT_NOT_STARTED: Final = 3
#: and wrong arguments, -1 in Java, which a shell sees as 255.
EXIT_BAD_ARGUMENTS: Final = 255
#: A shell's code for a process that Ctrl-C ended.
EXIT_INTERRUPTED: Final = 130

_LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
#: Libraries with INFO messages for their authors.
_QUIET_LOGGERS: Final = ("aiokafka", "kafka", "py4j", "pyspark", "asyncio", "jgo", "urllib3", "httpx", "httpcore")

#: Control characters, and those that end a line or change its direction.
_CONTROL: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def exit_code(*, unknown: bool, found: bool) -> int:
    """Return 0 for nothing to do, 1 for an incomplete check whatever it found, 2 for something to do."""
    return EXIT_ERROR if unknown else EXIT_FOUND if found else EXIT_OK


class OneLineFormatter(logging.Formatter):
    """Time, level, message and logger in one line, with line breaks and what controls a terminal escaped. An
    exception's type, text and innermost frame follow the message, at DEBUG its traceback follows the logger."""

    def __init__(self, *, traces: bool) -> None:
        super().__init__()
        self._traces = traces

    def format(self, record: logging.LogRecord) -> str:
        text = f"{self.formatTime(record)} {record.levelname} {record.getMessage()}"
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text += f": {describe(error)}"
        text += f" ({record.name})"
        if error is not None and self._traces:
            text += " | " + "".join(traceback.format_exception(error))
        return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text.rstrip())


class JsonFormatter(logging.Formatter):
    """A JSON object in one line: ``time`` (ISO 8601, UTC), ``level``, ``logger``, ``message``; of a state change also
    ``event`` and ``subject``, of an exception ``error``, and at DEBUG ``trace``."""

    def __init__(self, *, traces: bool) -> None:
        super().__init__()
        self._traces = traces

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{name: getattr(record, name) for name in (EVENT, SUBJECT) if hasattr(record, name)},
        }
        if (error := record.exc_info[1] if record.exc_info else None) is not None:
            fields["error"] = describe(error)
            if self._traces:
                fields["trace"] = "".join(traceback.format_exception(error))
        # Another library's records may have an ``event`` of any type.
        return json.dumps(fields, default=str, skipkeys=True)


_FORMATTERS: Final = {"text": OneLineFormatter, "json": JsonFormatter}
_FORMAT_VARIABLE: Final = "HELIOGRAPH_LOG_FORMAT"


def configure_logging(level: str = "INFO", form: str = "text") -> None:
    """Send the log to standard error, one line per message; ``form`` is text or json."""
    handler = logging.StreamHandler()
    handler.setFormatter(_FORMATTERS[form](traces=level == "DEBUG"))
    handler.addFilter(OneOfEachCause())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _QUIET_LOGGERS:
        logging.getLogger(name).setLevel("WARNING" if level == "INFO" else level)
    for name in REVEALING:
        logging.getLogger(name).setLevel("INFO" if level == "DEBUG" else "WARNING")


def checked_log_options(level: str, form: str | None) -> tuple[str, str]:
    """Return the values of ``--log-level`` and ``--log-format``, of which None is that of the environment. Raises
    ConfigError for an unknown word."""
    named = "--log-format" if form is not None else _FORMAT_VARIABLE
    form = form or os.environ.get(_FORMAT_VARIABLE) or "text"
    for option, word, known in (("--log-level", level, _LOG_LEVELS), (named, form, tuple(_FORMATTERS))):
        if word not in known:
            raise ConfigError(f"{option} is '{word}'. Use one of {', '.join(known)}", option)
    return level, form


def describe(error: BaseException) -> str:
    """Format an exception in one line; those that are not Heliograph's with type and innermost frame."""
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
    """Run a command; an exception becomes one line on stderr and the exit code ``exit_error``. The traceback of an
    unexpected one goes to a file that the line names. Files and folders of the command, and of its children, are only
    for their owner."""
    os.umask(0o077)
    try:
        return command()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has closed it. Python would report that again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_error
    except (HeliographError, OSError) as error:
        print(f"{program}: error: {describe(error)}", file=sys.stderr)
        return exit_error
    except Exception as error:  # because nothing above reports it
        with tempfile.NamedTemporaryFile("w", prefix="heliograph-", suffix=".trace", delete=False) as file:
            file.write("".join(traceback.format_exception(error)))
        text = f"{describe(error)}. This is a bug in Heliograph; please report it with {file.name}"
        print(f"{program}: internal error: {text}", file=sys.stderr)
        return exit_error


def warn(line: str) -> None:
    print(f"heliograph: warning: {line}", file=sys.stderr, flush=True)


@asynccontextmanager
async def stop_signals(
    *, exit_within_s: float | None = None, exit_late: int = EXIT_JAVA_ERROR
) -> AsyncIterator[asyncio.Event]:
    """Give an event that SIGTERM and SIGINT set; further signals have no effect. The process ends ``exit_within_s``
    after the first one even if something hangs, with the code ``exit_late``; None: no limit."""
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
    """Import ``modules`` and installed ``plugins`` in a thread, because that may take many seconds and signals must be
    handled meanwhile. Return False if ``stop`` was set first."""

    def load() -> bool:
        for module in modules:
            importlib.import_module(module)
        if plugins:
            from connect.api.plugins import installed

            installed()
        return True

    return await unless(stop, asyncio.to_thread(load), "imports") or False


class _ExitGuard:
    """A timer that ends the process if it does not stop in time: a blocking call in a thread, such as a client that
    waits for a lost broker, cannot be cancelled, and asyncio and the interpreter wait for it at exit. By then
    everything else has stopped."""

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
        """Note that everything has stopped except threads that block."""
        self._stopped = True
        if self._armed:
            self.arm(self._GRACE_S)

    def _exit(self) -> NoReturn:
        if not self._stopped:
            print("stopping timed out; the next start continues from the committed positions", file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(EXIT_OK if self._stopped else self._exit_late)


def version_line() -> str:
    """Return the output of ``--version``."""
    from importlib.metadata import version

    return f"heliograph {version('heliograph')}"


def add_general_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--log-level``, ``--log-format`` and ``--version``."""
    parser.add_argument("--log-level", choices=_LOG_LEVELS, default="INFO", help="Log level (default INFO).")
    parser.add_argument(
        "--log-format",
        choices=tuple(_FORMATTERS),
        default=checked_log_options("INFO", None)[1],
        help=f"Log lines as text or JSON (default ${_FORMAT_VARIABLE}, or text).",
    )
    parser.add_argument("--version", action="version", version=version_line(), help="Print the version and exit.")
