"""``kafka-mirror-maker``: MirrorMaker 1's command with all its option spellings and exit codes.

The rules are those of Kafka's ``MirrorMaker`` of 0.7 to 3.9. An option without effect here is accepted with a warning.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from connect.cli.console import EXIT_OK, add_general_options, configure_logging, imported, run_command, stop_signals
from connect.core.config.properties import load_properties
from connect.core.errors import ConfigError
from connect.kafka.concurrency import Scope

if TYPE_CHECKING:
    from connectors.mirror_maker_1.config import MirrorSettings
    from connectors.mirror_maker_1.process import MirrorMaker1

PROGRAM: Final = "kafka-mirror-maker"
#: MirrorMaker 1's code for every failure (Kafka's ``CommandLineUtils`` and ``MirrorMakerThread``).
EXIT_FAILED: Final = 1
_DEFAULT_COMMIT_MS: Final = 1_000
_WIDTH: Final = 110
_EXAMPLES: Final = """\
examples:
  kafka-mirror-maker --consumer.config source.properties --producer.config target.properties --include 'orders|clicks.*'
      copies these topics under their names; more processes with the same group.id share the work

  kafka-mirror-maker --consumer.config west.properties --consumer.config east.properties \\
      --producer.config all.properties --exclude 'test.*' --num.streams 4
      copies all topics except tests from two clusters, with four members of each group

source.properties has bootstrap.servers and group.id (and auto.offset.reset=earliest to start at the beginning),
target.properties has bootstrap.servers. For older keys see docs/mirrormaker-1.md.

exit codes: 0 after SIGTERM or Ctrl-C; 1 for wrong arguments or files, missing ACLs, or a record that cannot be sent
"""


class _ArgumentParser(argparse.ArgumentParser):
    """An argparse parser with Java's exit code."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_FAILED, f"{self.prog}: error: {message} (--help has examples)\n")

    def with_two_dashes(self, words: Sequence[str]) -> list[str]:
        """Return the words with two dashes before option names, because Java's parser also takes ``-whitelist``."""
        return [f"-{word}" if f"-{word.partition('=')[0]}" in self._option_string_actions else word for word in words]


class _TopicList(argparse.Action):
    """An action that stores the option as it was typed, together with its value."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        setattr(namespace, self.dest, (option, values))


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments. ``include`` and ``exclude`` hold the option as it was typed and its value; one is None.
    Raises SystemExit: 1 for wrong arguments, 0 after the help and the version."""
    parser = _parser()
    found = parser.parse_args(parser.with_two_dashes(arguments))
    if not found.consumer_config:
        parser.error("--consumer.config is required")
    if found.producer_config is None:
        parser.error("--producer.config is required")
    found.include = found.include or found.whitelist
    if (found.include is None) == (found.exclude is None):
        both = "" if found.include is None else ", not both"
        parser.error(f"exactly one of --include (--whitelist) and --exclude (--blacklist) is required{both}")
    if found.message_handler_args is not None and found.message_handler is None:
        parser.error("--message.handler.args needs --message.handler")
    if found.rebalance_listener_args is not None and found.consumer_rebalance_listener is None:
        parser.error("--rebalance.listener.args needs --consumer.rebalance.listener")
    return found


def _parser() -> _ArgumentParser:
    parser = _ArgumentParser(
        prog=PROGRAM,
        description="Continuously copy topics between two Kafka clusters under their own names (MirrorMaker 1).",
        epilog=_EXAMPLES,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=_WIDTH),
        allow_abbrev=False,
    )
    files = parser.add_argument_group("clusters and topics")
    text = "Consumer properties for a source cluster. May be repeated for several sources."
    files.add_argument("--consumer.config", dest="consumer_config", action="append", metavar="FILE", help=text)
    files.add_argument("--producer.config", dest="producer_config", metavar="FILE", help="Producer properties.")
    for options, text in _TOPIC_LISTS:
        files.add_argument(*options, action=_TopicList, metavar="REGEX", help=text)
    how = parser.add_argument_group("settings")
    text = "Group members in this process, each with its own copy task (default 1)."
    how.add_argument("--num.streams", dest="num_streams", type=_positive, default=1, metavar="N", help=text)
    how.add_argument(
        "--offset.commit.interval.ms",
        dest="offset_commit_interval_ms",
        type=_positive,
        default=_DEFAULT_COMMIT_MS,
        metavar="MS",
        help=f"Interval of the group's offset commits (default {_DEFAULT_COMMIT_MS}).",
    )
    how.add_argument(
        *("--abort.on.send.failure", "--abort.on.send.fail", "--abortOnSendFailure", "--abortOnSendFail"),
        dest="abort_on_send_failure",
        type=_truth,
        nargs="?",
        const=True,
        default=True,
        metavar="true|false",
        help="End if a record cannot be sent (default true). If false, skip, log and count it.",
    )
    code = parser.add_argument_group("plugins")
    for option, value, text in _PLUGINS:
        code.add_argument(f"--{option}", dest=_dest(option), metavar=value, help=text)
    old = parser.add_argument_group("accepted without effect")
    for option, value, instead in _OLD:
        shape: Any = {"metavar": value} if value else {"action": "store_true"}
        old.add_argument(f"--{option}", dest=_dest(option), help=f"{instead[0].upper()}{instead[1:]}.", **shape)
    add_general_options(parser)
    return parser


_TOPIC_LISTS: Final = (
    (("--include",), "Topics to copy, as a Java regular expression; commas are alternatives. Overrides --whitelist."),
    (("--whitelist", "--white-list"), "Older names of --include."),
    (("--exclude", "--blacklist", "--black-list"), "Copy all topics except these and internal ones."),
)
_HANDLES: Final = "A Python class with handle(record), which returns the records to send instead of each record."
_LISTENS: Final = "A Python class with on_partitions_assigned(partitions) and on_partitions_revoked(partitions)."
_PLUGINS: Final = (
    ("message.handler", "MODULE:CLASS", _HANDLES),
    ("message.handler.args", "TEXT", "Argument of its constructor."),
    ("consumer.rebalance.listener", "MODULE:CLASS", _LISTENS),
    ("rebalance.listener.args", "TEXT", "Argument of its constructor."),
)
#: Options without effect: name, metavar, and what replaces them.
_OLD: Final = (
    ("num.producers", "N", "each stream has its own producer; set --num.streams"),
    ("queue.size", "N", "there is no queue; a stream stops reading while 48 MiB are not acknowledged"),
    ("new.consumer", "", "there is only one kind of consumer"),
    ("new.producer", "", "there is only one kind of producer"),
    ("shutdown.port", "PORT", "stop it with SIGTERM or Ctrl-C"),
)


def _dest(option: str) -> str:
    return option.replace(".", "_")


def without_effect(found: argparse.Namespace) -> list[str]:
    """Return a sentence for each option without effect."""
    return [f"--{name}: {instead}" for name, _, instead in _OLD if getattr(found, _dest(name))]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _truth(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError(text)
    return word == "true"


# argparse shows these names in its messages.
_positive.__name__ = "number of 1 or more"
_truth.__name__ = "true or false"


logger = logging.getLogger(__name__)

EXIT_WITHIN_S: Final = 20.0
SUMMARY_INTERVAL_S: Final = 10.0


def main() -> NoReturn:
    sys.exit(run_command(PROGRAM, lambda: run_with_arguments(sys.argv[1:]), EXIT_FAILED))


def run_with_arguments(arguments: Sequence[str]) -> int:
    """Run the command and return the exit code. Raises HeliographError."""
    parsed = parse_arguments(arguments)
    configure_logging(parsed.log_level, parsed.log_format)
    for sentence in without_effect(parsed):
        logger.warning("%s", sentence)
    asyncio.run(_run_until_signal(_settings(parsed)))
    return EXIT_OK


def _settings(parsed: argparse.Namespace) -> MirrorSettings:
    from connectors.dataplane.by_key_producer import HandlerPlan, HandlerUnusable, make_object
    from connectors.mirror_maker_1.config import Options, mirror_settings
    from connectors.mirror_maker_1.topics import is_lone_asterisk, takes

    typed = (parsed.include or parsed.exclude)[0]
    include, exclude = (one and one[1] for one in (parsed.include, parsed.exclude))
    if is_lone_asterisk(include):
        text = "%s %s: taken as .*, all topics, as in Kafka's documentation; Java's MirrorMaker refuses it"
        logger.warning(text, typed, include)
    handler, listener, option = None, None, "message.handler"
    try:
        if parsed.message_handler is not None:
            handler = HandlerPlan(parsed.message_handler, parsed.message_handler_args)
            handler.make()
        if parsed.consumer_rebalance_listener is not None:
            option = "consumer.rebalance.listener"
            listener = make_object("listener", parsed.consumer_rebalance_listener, parsed.rebalance_listener_args)
    except HandlerUnusable as error:
        raise ConfigError(f"--{option}: {error}. A Java class cannot run here", option) from None
    options = Options(
        takes=takes(include, exclude, typed),
        streams=parsed.num_streams,
        commit_interval_ms=parsed.offset_commit_interval_ms,
        aborts=parsed.abort_on_send_failure,
        handler=handler,
        listener=listener,
    )
    consumers = [load_properties(file) for file in parsed.consumer_config]
    producer = load_properties(parsed.producer_config)
    return mirror_settings(consumers, producer, options, partial(logger.warning, "%s"))


async def _run_until_signal(settings: MirrorSettings) -> None:
    from connect.cli.daemons.spark import spark_of_streams

    async with stop_signals(exit_within_s=EXIT_WITHIN_S, exit_late=EXIT_FAILED) as stop:
        # Each stream has a slice for copied batches, and one for records that are sent by key.
        slices = 2 * settings.options.streams * len(settings.sources)
        engine = spark_of_streams(settings.spark, slices, settings.hidden)
        engine.begin()  # before the imports, because it takes longer
        try:
            if not await imported(stop, "connectors.mirror_maker_1.process"):
                return
            from connectors.mirror_maker_1.process import MirrorMaker1

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
        for rates in meter.observe(clock(), maker.progress()):
            logger.info("%s", flow_line(rates))
