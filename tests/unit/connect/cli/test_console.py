"""Errors as one line, exit codes, log lines."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from connect.cli import console
from connect.core.audit import state_changed
from connect.core.errors import ConfigError, PermanentError
from tests.kit.members import until


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger; it and the levels of all loggers are left as they were found."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {one: one.level for one in root.manager.loggerDict.values() if isinstance(one, logging.Logger)}
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)
    for one in root.manager.loggerDict.values():
        if isinstance(one, logging.Logger):
            one.setLevel(levels.get(one, logging.NOTSET))


def logging_to(*options: str) -> io.StringIO:
    """Where a log with these options goes."""
    stream = io.StringIO()
    with redirect_stderr(stream):
        console.configure_logging(*options)
    return stream


def raising(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


def test_a_wrong_word_for_the_log_is_named_by_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_LOG_FORMAT", "xml")
    assert console.checked_log_options("INFO", "json") == ("INFO", "json")
    with pytest.raises(ConfigError, match=r"^HELIOGRAPH_LOG_FORMAT is 'xml'"):
        console.checked_log_options("INFO", None)
    with pytest.raises(ConfigError, match=r"^--log-format is 'yaml'"):
        console.checked_log_options("INFO", "yaml")


def test_a_command_that_works_keeps_its_exit_code() -> None:
    assert console.run_command("heliograph", lambda: 7) == 7


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("unknown alias xx", key="us->xx.enabled", file="mm2.properties", line=4),
        FileNotFoundError(2, "No such file or directory", "mm2.properties"),
        PermanentError("cluster us refuses the password"),
    ],
)
def test_an_expected_error_is_one_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert console.run_command("heliograph", raising(error)) == console.EXIT_ERROR
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("heliograph: error: ")
    assert "Traceback" not in err


def test_an_unexpected_error_is_one_line_and_its_trace_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert console.run_command("heliograph", raising(ZeroDivisionError("division\nby zero"))) == console.EXIT_ERROR
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("heliograph: internal error: ZeroDivisionError: division by zero (test_console.py:")
    (trace,) = tmp_path.iterdir()
    assert str(trace) in err
    assert "Traceback" in trace.read_text()
    assert trace.stat().st_mode & 0o077 == 0


def test_what_a_command_and_its_children_write_is_private(tmp_path: Path) -> None:
    def write() -> int:
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").write_text("x")
        return subprocess.run(["touch", tmp_path / "folder" / "of child"], check=True).returncode

    before = os.umask(0o022)
    try:
        assert console.run_command("heliograph", write) == 0
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"folder": 0o700, "file": 0o600, "of child": 0o600}


def test_ctrl_c_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.run_command("heliograph", raising(KeyboardInterrupt())) == console.EXIT_INTERRUPTED
    assert capsys.readouterr().err == ""


def test_a_log_line_is_one_line_with_time_level_and_message(root_logger: logging.Logger) -> None:
    stream = logging_to()
    try:
        raise ValueError("of\ntwo lines")
    except ValueError:
        logging.getLogger("connect.test").exception("copying orders-3 failed")
    logging.getLogger("aiokafka.consumer").info("nobody wants to know")
    (line,) = stream.getvalue().splitlines()
    assert " ERROR copying orders-3 failed: ValueError: of two lines (test_console.py:" in line
    assert line[:2] == "20"
    assert line.endswith(") (connect.test)")


def test_a_log_in_json_has_the_fields_of_a_state_change(root_logger: logging.Logger) -> None:
    stream = logging_to("DEBUG", "json")
    log = logging.getLogger("connect.test")
    state_changed(log, logging.WARNING, "topic-deleted", "us.a", "%s: deleted\n%s", "us->eu", "us.a")
    try:
        raise ValueError("x")
    except ValueError:
        log.exception("broken")
    changed, broken = map(json.loads, stream.getvalue().splitlines())
    assert changed.pop("time")[-6:] == "+00:00"
    assert changed == {
        "level": "WARNING",
        "logger": "connect.test",
        "message": "us->eu: deleted\nus.a",
        "event": "topic-deleted",
        "subject": "us.a",
    }
    assert broken["error"].startswith("ValueError: x (") and broken["trace"].startswith("Traceback")


def test_a_log_in_json_takes_fields_of_any_type(root_logger: logging.Logger) -> None:
    stream = logging_to("INFO", "json")
    root_logger.warning("of %s\n%s", {1}, "a library", extra={"event": OSError("x"), "subject": {(1, 2): float("nan")}})
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line, parse_constant=pytest.fail)
    assert (found["event"], found["message"]) == ("x", "of {1}\na library")


def test_what_wants_only_critical_messages_gets_none_of_libraries(root_logger: logging.Logger) -> None:
    stream = logging_to("CRITICAL")
    logging.getLogger("aiokafka.producer").warning("got an error, retrying")
    assert stream.getvalue() == ""


def test_debug_shows_traces_still_on_one_line() -> None:
    try:
        raise ValueError("x")
    except ValueError as error:
        record = logging.LogRecord("a", logging.ERROR, __file__, 1, "m", None, (ValueError, error, None))
    text = console.OneLineFormatter(traces=True).format(record)
    assert "\n" not in text
    assert "Traceback" in text


def test_a_name_from_outside_can_end_no_line_and_command_no_terminal() -> None:
    name = "ann\r\n2026 INFO x\x1b[2J\x85\u2028\u202e\tü"
    record = logging.LogRecord("a", logging.INFO, __file__, 1, "%s PUT", (name,), None)
    text = console.OneLineFormatter(traces=False).format(record)
    assert text.endswith(r" INFO ann\r\n2026 INFO x\x1b[2J\x85\u2028\u202e" + "\tü PUT (a)")


def test_errors_without_text_still_say_what_they_are() -> None:
    assert console.describe(TimeoutError()) == "TimeoutError"
    assert console.describe(KeyError()) == "KeyError"
    assert console.describe(OSError()) == "OSError"
    full = OSError(28, "No space left on device", "/cache/kafka.jar")
    assert console.describe(full) == "/cache/kafka.jar: No space left on device"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_set_the_event_and_a_second_one_does_no_harm(number: signal.Signals) -> None:
    async with console.stop_signals() as stop:
        os.kill(os.getpid(), number)
        await asyncio.wait_for(stop.wait(), 60)
        os.kill(os.getpid(), number)
        await asyncio.sleep(0)
        assert stop.is_set()


@pytest.mark.parametrize(
    ("hangs", "code", "words"), [("before", console.EXIT_JAVA_ERROR, "stopping timed out"), ("after", 0, "")]
)
def test_a_process_ends_in_time_whatever_hangs(hangs: str, code: int, words: str) -> None:
    """A thread that nobody can cancel, while we stop or when we have stopped."""
    script = f"""
import asyncio, os, signal, threading
from connect.cli.console import stop_signals

async def main():
    async with stop_signals(exit_within_s={0.1 if hangs == "before" else 50.0}) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        hanging = asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
        if {hangs == "before"}:
            await hanging

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert words in ended.stderr


async def test_a_stop_does_not_wait_for_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_import.py").write_text("import threading\ngoes_on = threading.Event()\ngoes_on.wait()\n")
    monkeypatch.syspath_prepend(tmp_path)
    stop = asyncio.Event()
    assert await console.imported(stop, "json", "connect.cli.console")
    importing = asyncio.ensure_future(console.imported(stop, "slow_to_import"))
    await until(lambda: hasattr(sys.modules.get("slow_to_import"), "goes_on"), "that it imports")
    stop.set()
    assert not await asyncio.wait_for(importing, 60)
    sys.modules["slow_to_import"].goes_on.set()
