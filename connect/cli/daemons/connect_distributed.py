"""``connect-distributed worker.properties``: a worker of a Connect group, like Java's ``ConnectDistributed``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from connect.cli import console
from connect.cli.console import EXIT_NOT_STARTED, EXIT_OK, configure_logging
from connect.core.errors import ConfigError, HeliographError
from connect.kafka.concurrency import unless
from connect.kafka.tracing import configure_tracing

if TYPE_CHECKING:
    from connect.core.config.worker_config import WorkerConfig

log = logging.getLogger(__name__)

PROGRAM: Final = "connect-distributed"
#: Orchestrators kill a process after 30 s by default.
EXIT_WITHIN_S: Final = 25.0


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Run a worker of a Kafka Connect group.",
        epilog=f"example:\n  {program} worker.properties --log-level DEBUG",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="worker.properties", help="The worker's configuration file.")
    console.add_general_options(parser)
    return parser


def main() -> NoReturn:
    sys.exit(console.run_command(PROGRAM, lambda: run_with_arguments(PROGRAM, sys.argv[1:]), console.EXIT_JAVA_ERROR))


def run_with_arguments(program: str, arguments: Sequence[str]) -> int:
    """Run the command under any name and return the exit code. Raises ConfigError if the file or a setting in it is
    wrong."""
    parsed = _parser(program).parse_args(arguments)
    configure_logging(parsed.log_level, parsed.log_format)
    configure_tracing(program)
    from connect.api.plugins import config_providers
    from connect.core.config.properties import load_properties
    from connect.core.config.worker_config import WorkerConfig

    properties = load_properties(parsed.file)
    config = WorkerConfig.parse(properties, config_providers())
    log_banner(str(parsed.file), config)
    for warning in config.warnings:
        log.warning("%s", properties.warning(warning))
    try:
        return asyncio.run(_work(program, config))
    except ConfigError as error:
        raise config.located(error) from None


def log_banner(file: str, config: WorkerConfig) -> None:
    """Log version, file, group and addresses. The worker logs the flows of its group later, when it has read them."""
    from connectors.spark.config import SparkSettings

    spark = SparkSettings(None, {key: value for key, value in config.props.items() if key.startswith("spark.")})
    log.info(
        "Heliograph %s: %s, group %s on %s, Spark %s, REST at %s",
        version("heliograph"),
        file,
        config.group_id,
        ", ".join(config.values.strings("bootstrap.servers")),
        spark.place,
        ", ".join(config.values.strings("listeners")),
    )


async def _work(program: str, config: WorkerConfig) -> int:
    async with console.stop_signals(exit_within_s=EXIT_WITHIN_S) as stop:
        if not await console.imported(stop, "connect.cli.daemons.worker_process", plugins=True):
            return EXIT_OK
        from connect.cli.daemons.worker_process import WorkerNode

        node = WorkerNode(config)
        try:
            try:
                await unless(stop, node.start(), "start")
            except HeliographError as error:
                said = config.located(error) if isinstance(error, ConfigError) else error
                print(f"{program}: error: {console.describe(said)}", file=sys.stderr)
                return EXIT_NOT_STARTED
            if not stop.is_set():
                await unless(stop, node.worker.ended(), "work")
        finally:
            await node.stop()
    return EXIT_OK
