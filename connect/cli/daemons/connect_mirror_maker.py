"""``connect-mirror-maker mm2.properties [--clusters ALIAS ...]``: Java's command with its arguments and exit codes.

The rules are those of ``MirrorMaker.main`` and its argparse4j parser, except that a start is retried while a cluster
does not answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from connect.cli import console
from connect.cli.console import EXIT_JAVA_ERROR, EXIT_NOT_STARTED, EXIT_OK
from connect.cli.rates import RateMeter, flow_line, is_idle, verdict_of
from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.kafka.concurrency import Pauses, first_of, is_set_within, unless
from connect.kafka.tracing import configure_tracing
from connectors.flow_facts import FlowProgress
from connectors.flow_progress import Contact

if TYPE_CHECKING:
    from connect.cli.daemons.mirror_process import MirrorMaker
    from connectors.config.mm2_properties import Flow, MirrorMakerConfig
    from connectors.formats.types import FlowName
    from connectors.spark.engine import SparkEngine

logger = logging.getLogger(__name__)

PROGRAM: Final = "connect-mirror-maker"
#: A process is expected to end within 10 s after SIGTERM. Stopping times out a moment earlier.
EXIT_WITHIN_S: Final = 9.8
STOP_TIMEOUT_S: Final = 9.3
SUMMARY_INTERVAL_S: Final = 10.0
#: How often the contacts are checked, so that the log shows within ten seconds that a cluster does not answer.
_LOOK_S: Final = 1.0
#: A flow that copies nothing is logged as a warning once in this time, at INFO otherwise.
IDLE_WARNING_S: Final = 60.0
#: The first and the longest pause between attempts to start while a cluster does not answer.
START_DELAYS_S: Final = (1.0, 5.0)


class Parser(argparse.ArgumentParser):
    """An argparse parser with Java's exit code."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(console.EXIT_BAD_ARGUMENTS, f"{self.prog}: error: {message}\n")


def parse_arguments(program: str, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments as Java's parser does, with ``--log-level`` added; empty ``clusters`` means every target.
    Raises SystemExit: 255 for wrong arguments, 0 after the help."""
    parser = Parser(
        prog=program,
        description="MirrorMaker 2.0 driver",
        epilog=f"examples:\n  {program} mm2.properties\n  {program} mm2.properties --clusters eu",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="mm2.properties", help="MM2 configuration file.")
    text = "Target cluster to use for this node."
    parser.add_argument("--clusters", nargs="+", metavar="CLUSTER", default=(), help=text)
    console.add_general_options(parser)
    found = parser.parse_args(arguments)
    try:
        found.file.open("rb").close()
    except OSError as error:
        if not isinstance(error, IsADirectoryError):  # because in Java only loading a folder fails
            parser.error(f"argument mm2.properties: cannot read {found.file}: {error.strerror}")
    return found


def main() -> NoReturn:
    sys.exit(console.run_command(PROGRAM, lambda: run_with_arguments(PROGRAM, sys.argv[1:]), EXIT_JAVA_ERROR))


def run_with_arguments(program: str, arguments: Sequence[str]) -> int:
    """Run the command under any name and return the exit code."""
    parsed = parse_arguments(program, arguments)
    console.configure_logging(parsed.log_level, parsed.log_format)
    return mirror(program, parsed.file, parsed.clusters)


def mirror(program: str, file: Path, clusters: Sequence[str]) -> int:
    """Run every flow of ``file`` until SIGTERM or Ctrl-C, and return the exit code. Raises ConfigError if the file or a
    setting in it is wrong."""
    from connectors.config.mm2_properties import load, mirrored

    configure_tracing(program)
    config = load(file)
    flows = config.flows_to_run(clusters)
    if not mirrored(flows):
        where = f" to {', '.join(clusters)}" if clusters else ""
        logger.warning("%s: no flow%s is enabled; this node writes heartbeats only", file, where)
    for notice in config.notices():
        logger.warning("%s", config.raw.warning(notice.text))
    try:
        # Spark's modules are imported here because that would block the event loop.
        asyncio.run(_run_until_signal(config, flows, _spark(flows)))
    except NotStarted as error:
        print(f"{program}: error: {console.describe(error.reason)}", file=sys.stderr)
        return EXIT_NOT_STARTED
    except StopTimedOut as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return EXIT_JAVA_ERROR
    return EXIT_OK


def _log_banner(config: MirrorMakerConfig, flows: Sequence[Flow], engine: SparkEngine | None) -> None:
    """Log version, file, flows and addresses."""
    rest = "no REST"
    if config.public_rest or config.internal_rest:
        from connect.core.config.rest_settings import REST_INTERNAL

        listeners = REST_INTERNAL.parse(config.top_level_properties()).strings("listeners")
        rest = f"REST for {'users' if config.public_rest else 'other nodes'} at {', '.join(listeners)}"
    logger.info(
        "Heliograph %s: %s, flows %s, %s, %s",
        version("heliograph"),
        config.file,
        ", ".join(map(str, flows)),
        "no Spark" if engine is None else f"Spark {engine.settings.place}",
        rest,
    )


class NotStarted(PermanentError):
    """Starting failed, and a retry would not help."""

    def __init__(self, reason: PermanentError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class StopTimedOut(HeliographError):
    """Stopping took too long."""


async def _run_until_signal(config: MirrorMakerConfig, flows: Sequence[Flow], engine: SparkEngine | None) -> None:
    async with console.stop_signals(exit_within_s=EXIT_WITHIN_S) as stop:
        engines = [engine]
        _log_banner(config, flows, engine)
        if engine is not None:
            engine.begin()  # before the imports, because Spark takes longest

        def make() -> MirrorMaker:
            from connect.cli.daemons.mirror_process import MirrorMaker

            if engines[-1] is not None and engines[-1].is_stopped:
                engines.append(_spark(flows))
            return MirrorMaker(config, flows, engines[-1])

        rest = ["connect.cli.daemons.worker_process"] if config.public_rest or config.internal_rest else []
        try:
            if await console.imported(stop, "connect.cli.daemons.mirror_process", *rest, plugins=True):
                from connect.cli.daemons.flow_worker import plugin_key_notices

                for notice in plugin_key_notices(config, flows):
                    logger.warning("%s", config.raw.warning(notice.text))
                await run(make, stop, watch=lambda maker: log_summaries(maker.progress, maker.contacts))
        finally:
            # Also if no MirrorMaker was created.
            if engines[-1] is not None:
                await engines[-1].stop()


def _spark(flows: Sequence[Flow]) -> SparkEngine | None:
    """Return the Spark engine of the enabled flows; None if there are none."""
    from connect.cli.daemons.spark import spark_of_flows
    from connectors.config.mm2_properties import mirrored

    enabled = mirrored(flows)
    return spark_of_flows(enabled) if enabled else None


async def run(
    make: Callable[[], MirrorMaker], stop: asyncio.Event, *, watch: Callable[[MirrorMaker], Coroutine[None, None, None]]
) -> None:
    """Start a MirrorMaker, run it until ``stop`` is set and stop it, in bounded time. ``make`` is called for each
    attempt to start; ``stop`` ends such an attempt too; ``watch`` runs while a started MirrorMaker runs, and its error
    ends everything. Raises NotStarted if starting failed and a retry would not help, StopTimedOut if stopping took
    longer than ``STOP_TIMEOUT_S``."""
    maker = await _start(make, stop)
    if maker is None:
        return
    try:
        await first_of("flows", maker.run_until(stop), watch(maker))
    finally:
        await _stop(maker)


async def _start(make: Callable[[], MirrorMaker], stop: asyncio.Event) -> MirrorMaker | None:
    """Return a started MirrorMaker, or None if ``stop`` was set first."""
    pauses = Pauses(*START_DELAYS_S)
    while not stop.is_set():
        maker, delay_s, started = make(), pauses.next_s(), False
        try:
            await unless(stop, maker.start(), "start")
            started = not stop.is_set()
        except RetriableError as error:
            logger.warning("%s; retrying in %.0f s", error, delay_s)
        except PermanentError as error:
            raise NotStarted(error) from error
        finally:
            if not started:
                # Errors of stopping are in the log; why it did not start matters more.
                with contextlib.suppress(PermanentError):
                    await _stop(maker)
        if started:
            return maker
        if not stop.is_set():
            await is_set_within(stop, delay_s)
    return None


async def _stop(maker: MirrorMaker) -> None:
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await maker.stop()
    except TimeoutError:
        next_start = "the next start continues from the committed positions"
        raise StopTimedOut(f"the flows did not stop within {STOP_TIMEOUT_S} s; {next_start}") from None


async def log_summaries(progress: Callable[[], list[FlowProgress]], contacts: Callable[[], Sequence[Contact]]) -> None:
    """Log the rates of flows every few seconds; a flow that copies nothing as a warning once a minute."""
    meter = RateMeter(window_s=SUMMARY_INTERVAL_S)
    clock = asyncio.get_running_loop().time
    warned_s: dict[tuple[FlowName, str], float] = {}  # by flow, and why it copies nothing
    while True:
        for rates in meter.observe(clock(), progress()):
            verdict, level = verdict_of(rates.progress), logging.INFO
            said = rates.flow, verdict.sentence
            if is_idle(verdict) and clock() - warned_s.get(said, float("-inf")) >= IDLE_WARNING_S:
                warned_s[said], level = clock(), logging.WARNING
            logger.log(level, "%s", flow_line(rates))
        await until_next_summary(contacts)


async def until_next_summary(contacts: Callable[[], Sequence[Contact]]) -> None:
    """Wait for SUMMARY_INTERVAL_S, or until a cluster of one of the flows no longer answers or answers again."""
    began_s, before = asyncio.get_running_loop().time(), [contact.silent for contact in contacts()]
    while asyncio.get_running_loop().time() < began_s + SUMMARY_INTERVAL_S:
        await asyncio.sleep(_LOOK_S)
        if [contact.silent for contact in contacts()] != before:
            return
