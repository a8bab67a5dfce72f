"""``kafka-mirror-maker``: MirrorMaker 1's command, its options in all the spellings of its releases, its exit codes.

The rules are those of Kafka's ``MirrorMaker`` of 0.7 to 3.9. What it cannot have is said in a sentence, not refused.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from connect.cli.console import EXIT_OK, configure_logging, imported, run_command, stop_signals
from connect.cli.kafka_mirror_maker_options import EXIT_FAILED, PROGRAM, Arguments, parse_arguments
from connect.core.errors import ConfigError
from connect.core.properties import load_properties
from connect.kafka.concurrency import Scope

if TYPE_CHECKING:
    from connectors.mirror_maker_1.maker import MirrorMaker1
    from connectors.mirror_maker_1.settings import MirrorSettings

logger = logging.getLogger(__name__)

EXIT_WITHIN_S: Final = 20.0
SUMMARY_INTERVAL_S: Final = 10.0


def main() -> NoReturn:
    """Entry point of the ``kafka-mirror-maker`` command."""
    sys.exit(run_command(PROGRAM, lambda: run_with_arguments(sys.argv[1:]), EXIT_FAILED))


def run_with_arguments(arguments: Sequence[str]) -> int:
    """The whole command; gives the exit code. Raises what ends it."""
    parsed = parse_arguments(arguments)
    configure_logging(parsed.log_level)
    for sentence in parsed.said:
        logger.warning("%s", sentence)
    settings = _settings(parsed)
    asyncio.run(_run_until_signal(settings))
    return EXIT_OK


def _settings(parsed: Arguments) -> MirrorSettings:
    from connectors.mirror_maker_1.listener import load
    from connectors.mirror_maker_1.settings import Options, mirror_settings
    from connectors.mirror_maker_1.topics import is_lone_asterisk, takes
    from connectors.repartition.message_handler import HandlerPlan, HandlerUnusable

    if is_lone_asterisk(parsed.include):
        logger.warning(
            "%s %s: taken as .*, all topics; Kafka's documentation had it so, and Java's MirrorMaker refuses it",
            *(parsed.list_option, parsed.include),
        )
    handler = None
    if parsed.handler is not None:
        handler = HandlerPlan(parsed.handler, parsed.handler_args)
        try:
            handler.make()
        except HandlerUnusable as error:
            raise ConfigError(f"--message.handler: {error}", "message.handler") from None
    listener = None
    if parsed.listener is not None:
        listener = load(parsed.listener, parsed.listener_args, "consumer.rebalance.listener")
    options = Options(
        takes=takes(parsed.include, parsed.exclude, parsed.list_option),
        streams=parsed.streams,
        commit_interval_ms=parsed.commit_interval_ms,
        aborts=parsed.aborts,
        handler=handler,
        listener=listener,
    )
    consumers = [load_properties(file) for file in parsed.consumer_configs]
    producer = load_properties(parsed.producer_config)
    return mirror_settings(consumers, producer, options, partial(logger.warning, "%s"))


async def _run_until_signal(settings: MirrorSettings) -> None:
    from connect.cli.spark import spark_of_streams

    async with stop_signals(exit_within_s=EXIT_WITHIN_S, exit_late=EXIT_FAILED) as stop:
        # Of each stream one slice for what is copied as it is, one for what goes by key.
        slices = 2 * settings.options.streams * len(settings.sources)
        engine = spark_of_streams(settings.spark, slices, settings.hidden)
        engine.begin()  # before the imports, since it takes longer
        try:
            if not await imported(stop, "connectors.mirror_maker_1.maker"):
                return
            from connectors.mirror_maker_1.maker import MirrorMaker1

            maker = MirrorMaker1(settings, engine)
            async with Scope("summaries") as scope:
                scope.spawn(_log_summaries(maker), "summaries")
                await maker.run(stop)
        finally:
            await engine.stop()


async def _log_summaries(maker: MirrorMaker1) -> None:
    from connect.cli.rates import RateMeter, flow_line

    meter = RateMeter(window_s=SUMMARY_INTERVAL_S)
    clock = asyncio.get_running_loop().time
    while True:
        await asyncio.sleep(SUMMARY_INTERVAL_S)
        for rates in await meter.observe(clock(), maker.progress()):
            logger.info("%s", flow_line(rates))
