"""``heliograph verify``: whether what a flow has copied equals its source, in a Spark job of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from connect.cli.console import EXIT_ERROR, EXIT_FOUND, EXIT_OK, stop_signals
from connect.cli.daemons.spark import spark_for_verification
from connect.core.errors import ConfigError, PermanentError, RetriableError
from connect.core.wording import age_text, counted, parsed_time_ms
from connect.kafka.concurrency import is_set_within, unless
from connect.runtime.plugins.plugin_registry import Plugins
from connectors.config.mm2_properties import Flow, chosen_flows
from connectors.verification import report_forms
from connectors.verification.planning import VerifyOptions
from connectors.verification.report import VerificationResult, headline
from connectors.verification.run import Progress, verifying

log = logging.getLogger(__name__)

_MEGABYTE: Final = 1024 * 1024
_AGAIN_S: Final = 5.0
#: Goes to the line's beginning, and clears it.
_CLEAR: Final = "\r\x1b[K"
_WIDTH: Final = 79
_FORMS: Final = (".txt", ".json", ".html")
#: Between two lines of progress of a failover.
_EACH_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class VerifyArguments:
    """The options of the command, as ``heliograph verify --help`` describes them; times as text."""

    file: Path | None
    flow: str | None
    topics: tuple[str, ...]
    begin: str | None
    to: str | None
    is_full: bool
    rate: int
    memory_mb: int
    tasks: int | None
    report: Path | None
    watches: bool
    as_json: bool


def run_verify(arguments: VerifyArguments) -> int:
    """Verify the flow and return the exit code: 0 equal, undecided records or not, 2 differences, 1 for partitions that
    could not be compared. Raises ConfigError if the file or an option is wrong, HeliographError if a cluster or Spark
    does not answer."""
    if arguments.file is None:
        raise ConfigError("give mm2.properties, or --check with a report")
    flows = chosen_flows(arguments.file, arguments.flow)
    if len(flows) > 1:
        raise ConfigError(f"name one flow: {', '.join(map(str, flows))}", "--flow")
    if (report := arguments.report) is not None:
        if report.suffix not in _FORMS:
            raise ConfigError(f"{report} should end in {', '.join(_FORMS)}", "--report")
        if not os.access(report.absolute().parent, os.W_OK):
            raise ConfigError(f"{report} cannot be written: check its folder", "--report")
        if report.is_dir():
            raise ConfigError(f"{report} is a folder: name a file", "--report")
    for one in arguments.topics:
        try:
            re.compile(one)
        except re.error as error:
            raise ConfigError(f"'{one}' is not a regular expression: {error}", "--topics") from None
    begin_ms, to_ms = _time(arguments.begin, "--from"), _time(arguments.to, "--to")
    if begin_ms is not None and to_ms is not None and begin_ms >= to_ms:
        raise ConfigError(f"'{arguments.to}' is not after --from", "--to")
    if arguments.watches and (arguments.begin or arguments.to):
        raise ConfigError("--watch cannot be combined with --from and --to", "--watch")
    return asyncio.run(_run(flows[0], arguments, begin_ms, to_ms))


def check_report(file: Path) -> int:
    """Check a report that was written before. Raises ConfigError if there is none, PermanentError if it was changed."""
    try:
        result = report_forms.read_report(file.read_text("utf-8"))
    except PermanentError as error:
        raise PermanentError(f"{file}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", "--check") from error
    print(f"{headline(result)}\nSHA-256 {report_forms.digest(result)}, as the report says")
    return EXIT_OK


async def _run(flow: Flow, arguments: VerifyArguments, begin_ms: int | None, to_ms: int | None) -> int:
    tasks, engine = spark_for_verification(flow, arguments.tasks)
    memory_bytes = arguments.memory_mb * _MEGABYTE
    options = VerifyOptions(arguments.topics, begin_ms, to_ms, arguments.is_full, arguments.rate, memory_bytes, tasks)
    async with AsyncExitStack() as stack:
        stop = await stack.enter_async_context(stop_signals())
        stack.push_async_callback(engine.stop)
        engine.begin()
        show = _show_json if arguments.as_json else _show_line
        plugins = Plugins.discover()
        verification = await stack.enter_async_context(verifying(flow, engine, options, plugins.find, show))
        result, shown = None, (0, 0)
        while True:
            try:
                newest = await unless(stop, verification.run(), "verification")
            except RetriableError as error:
                if result is None or not arguments.watches:
                    raise
                newest = result
                log.warning("%s: a pass has failed: %s; trying again", flow, error)
            result = newest or result  # the end of --watch may interrupt a run
            if result is None:
                raise KeyboardInterrupt
            if newest is None or not arguments.watches or await is_set_within(stop, _AGAIN_S):
                break
            if (found := (result.differences_total, result.undecided_total)) != shown:
                shown = found
                _print(result, arguments)
    _print(result, arguments)
    if arguments.report is not None:
        arguments.report.write_text(_form(result, arguments.report.suffix), "utf-8")
    if not result.is_equal:
        return EXIT_FOUND
    return EXIT_ERROR if result.unread else EXIT_OK


def _time(text: str | None, option: str) -> int | None:
    return None if text is None else parsed_time_ms(text, option)


def _print(result: VerificationResult, arguments: VerifyArguments) -> None:
    sys.stderr.write(_CLEAR if sys.stderr.isatty() and not arguments.as_json else "")
    print(_form(result, ".json" if arguments.as_json else ".txt").rstrip("\n"), flush=True)


def _form(result: VerificationResult, form: str) -> str:
    if form == ".json":
        return json.dumps(report_forms.to_document(result), indent=2)
    return report_forms.page(result) if form == ".html" else report_forms.to_text(result, report_forms.digest(result))


def _show_json(progress: Progress) -> None:
    print(json.dumps({"progress": asdict(progress)}), file=sys.stderr, flush=True)


def _show_line(progress: Progress) -> None:
    """Show the progress in one line of a terminal; a log needs none."""
    if sys.stderr.isatty():
        share = progress.offsets / progress.offsets_total if progress.offsets_total else 1.0
        left = "" if progress.left_s < 0 else f", {timedelta(seconds=round(progress.left_s))} left"
        found = f", {counted(progress.differences, 'difference')}" if progress.differences else ""
        line = f"{progress.flow}: {share:.0%} verified, {progress.bytes_s / _MEGABYTE:.0f} MiB/s{left}{found}"
        if not progress.is_spark_up and share < 1:
            line = f"{progress.flow}: starting Spark{found}"
        elif progress.offsets >= progress.offsets_total:  # stays between two passes of --watch
            line = f"{progress.flow}: verified what was copied by {datetime.now(UTC):%H:%M:%S} UTC{found}"
        print(f"{_CLEAR}{line[:_WIDTH]}", end="", file=sys.stderr, flush=True)


class CopyVerifier:
    """Verifies what a flow has copied, between drain and move of ``heliograph failover --verify``, in a Spark of the
    command. :meth:`begin` starts Spark in the background, :meth:`stop` ends it. Raises the errors of
    :func:`connect.cli.daemons.spark.spark_for_verification`."""

    def __init__(self, flow: Flow, report: Callable[[str], None]) -> None:
        self._flow, self._report = flow, report
        self._tasks, self._engine = spark_for_verification(flow, None)
        self._shown_s = 0.0

    def begin(self) -> None:
        self._engine.begin()

    async def stop(self) -> None:
        await self._engine.stop()

    async def __call__(self, within_s: float | None) -> VerificationResult:
        """Verify from where the last run ended, for at most ``within_s``. Raises the errors of ``Verification.run``."""
        options = VerifyOptions(tasks=self._tasks, within_s=within_s)
        self._shown_s = time.monotonic()
        async with verifying(self._flow, self._engine, options, Plugins.discover().find, self._show) as verification:
            return await verification.run()

    def _show(self, progress: Progress) -> None:
        if time.monotonic() - self._shown_s >= _EACH_S and progress.offsets_total:
            self._shown_s = time.monotonic()
            left = "" if progress.left_s < 0 else f", {age_text(round(progress.left_s * 1000))} left"
            self._report(f"{progress.flow}: {progress.offsets / progress.offsets_total:.0%} verified{left}")
