"""The options of ``kafka-mirror-maker``, in all the spellings of MirrorMaker 1's releases."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from connect.cli.version import ShowVersion

PROGRAM: Final = "kafka-mirror-maker"
LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
#: MirrorMaker 1 ends so for every reason (Kafka's ``CommandLineUtils`` and ``MirrorMakerThread``).
EXIT_FAILED: Final = 1
_DEFAULT_COMMIT_MS: Final = 1_000
_TRUTH: Final = {"true": True, "false": False}
_WIDTH: Final = 110
_EXAMPLES: Final = """\
examples:
  kafka-mirror-maker --consumer.config source.properties --producer.config target.properties --include 'orders|clicks.*'
      copies these topics, under their names; further processes with the same group.id share the work

  kafka-mirror-maker --consumer.config west.properties --consumer.config east.properties \\
      --producer.config all.properties --exclude 'test.*' --num.streams 4
      copies all but tests from two clusters, with four members of each group

source.properties has bootstrap.servers and group.id (and auto.offset.reset=earliest to begin at the beginning),
target.properties has bootstrap.servers; docs/mirrormaker-1.md says what became of older keys.

exit codes: 0 after SIGTERM or Ctrl-C; 1 for wrong arguments, files or rights, and where a record can never be sent
"""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the command line says; ``list_option`` is that of the topics as its user wrote it, ``said`` are sentences on
    what means nothing any more."""

    consumer_configs: tuple[str, ...]
    producer_config: str
    include: str | None
    exclude: str | None
    list_option: str
    streams: int
    commit_interval_ms: int
    aborts: bool
    handler: str | None
    handler_args: str | None
    listener: str | None
    listener_args: str | None
    log_level: str
    said: tuple[str, ...] = ()


class _Parser(argparse.ArgumentParser):
    """argparse with Java's exit code."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_FAILED, f"{self.prog}: error: {message} (--help has examples)\n")

    def with_two_dashes(self, words: Sequence[str]) -> list[str]:
        """The words with the names of options as they stand here: Java's parser takes ``-whitelist`` as well."""
        return [f"-{word}" if f"-{word.partition('=')[0]}" in self._option_string_actions else word for word in words]


class _TopicList(argparse.Action):
    """Keeps the option beside its value, as its user wrote it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        del parser
        setattr(namespace, self.dest, (option_string, values))


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Raises SystemExit: 1 for bad arguments, 0 after the help and the version."""
    parser = _parser()
    found = parser.parse_args(parser.with_two_dashes(arguments))
    if not found.consumer_config:
        parser.error("--consumer.config is required")
    if found.producer_config is None:
        parser.error("--producer.config is required")
    if found.include is None and found.whitelist is None and found.exclude is None:
        parser.error("exactly one of --include (--whitelist) and --exclude (--blacklist) is required: which topics?")
    include = found.include if found.include is not None else found.whitelist
    if include is not None and found.exclude is not None:
        parser.error("exactly one of --include (--whitelist) and --exclude (--blacklist) is required, not both")
    option, _ = topics = include or found.exclude
    if found.message_handler_args is not None and found.message_handler is None:
        parser.error("--message.handler.args is given without --message.handler")
    if found.rebalance_listener_args is not None and found.consumer_rebalance_listener is None:
        parser.error("--rebalance.listener.args is given without --consumer.rebalance.listener")
    return Arguments(
        consumer_configs=tuple(found.consumer_config),
        producer_config=found.producer_config,
        include=topics[1] if include is not None else None,
        exclude=topics[1] if include is None else None,
        list_option=option,
        streams=found.num_streams,
        commit_interval_ms=found.offset_commit_interval_ms,
        aborts=found.abort_on_send_failure,
        handler=found.message_handler,
        handler_args=found.message_handler_args,
        listener=found.consumer_rebalance_listener,
        listener_args=found.rebalance_listener_args,
        log_level=found.log_level,
        said=tuple(_without_effect(found)),
    )


def _parser() -> _Parser:
    parser = _Parser(
        prog=PROGRAM,
        description="Continuously copies topics between two Kafka clusters, under their own names (MirrorMaker 1).",
        epilog=_EXAMPLES,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=_WIDTH),
        allow_abbrev=False,
    )
    files = parser.add_argument_group("what is copied from where to where")
    files.add_argument(
        "--consumer.config",
        dest="consumer_config",
        action="append",
        metavar="FILE",
        help="Consumer properties for a source cluster. More than one: more sources.",
    )
    files.add_argument("--producer.config", dest="producer_config", metavar="FILE", help="Producer properties.")
    files.add_argument(
        "--include",
        action=_TopicList,
        metavar="REGEX",
        help="Topics to copy, as a Java regular expression; commas are alternatives. Goes before --whitelist.",
    )
    files.add_argument(
        "--whitelist", "--white-list", action=_TopicList, metavar="REGEX", help="The same under its older names."
    )
    files.add_argument(
        "--exclude",
        "--blacklist",
        "--black-list",
        action=_TopicList,
        metavar="REGEX",
        help="Copy all topics but these, and internal ones.",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--num.streams",
        dest="num_streams",
        type=_positive,
        default=1,
        metavar="N",
        help="Members of the group in this process, each with a copying task of its own (default 1).",
    )
    how.add_argument(
        "--offset.commit.interval.ms",
        dest="offset_commit_interval_ms",
        type=_positive,
        default=_DEFAULT_COMMIT_MS,
        metavar="MS",
        help=f"How often positions are committed in the group (default {_DEFAULT_COMMIT_MS}).",
    )
    how.add_argument(
        "--abort.on.send.failure",
        "--abort.on.send.fail",
        "--abortOnSendFailure",
        "--abortOnSendFail",
        dest="abort_on_send_failure",
        type=_truth,
        nargs="?",
        const=True,
        default=True,
        metavar="true|false",
        help="End when a record can never be sent (default true); false leaves such records out, named and counted.",
    )
    _add_plugins(parser.add_argument_group("code of yours"))
    _add_old(parser.add_argument_group("accepted, without effect"))
    parser.add_argument(
        "--log-level", dest="log_level", choices=LOG_LEVELS, default="INFO", help="How much to log (default INFO)."
    )
    parser.add_argument("--version", action=ShowVersion)
    return parser


def _add_plugins(code: argparse._ArgumentGroup) -> None:
    code.add_argument(
        "--message.handler",
        dest="message_handler",
        metavar="MODULE:CLASS",
        help="A Python class with handle(record), asked for each record what is sent in its place.",
    )
    code.add_argument(
        "--message.handler.args", dest="message_handler_args", metavar="TEXT", help="What it is made with."
    )
    code.add_argument(
        "--consumer.rebalance.listener",
        dest="consumer_rebalance_listener",
        metavar="MODULE:CLASS",
        help="A Python class with on_partitions_assigned(partitions) and on_partitions_revoked(partitions).",
    )
    code.add_argument(
        "--rebalance.listener.args", dest="rebalance_listener_args", metavar="TEXT", help="What it is made with."
    )


#: Options that mean nothing any more: name, what is called N, and what takes their place.
_OLD: Final = (
    ("num.producers", "N", "each stream writes by itself; --num.streams says how many there are"),
    ("queue.size", "N", "there is no queue; reading waits while 48 MiB of a stream are not acknowledged"),
    ("new.consumer", "", "there is one kind of consumer"),
    ("new.producer", "", "there is one kind of producer"),
    ("shutdown.port", "PORT", "SIGTERM or Ctrl-C stops it in order"),
)


def _add_old(old: argparse._ArgumentGroup) -> None:
    for name, value, instead in _OLD:
        dest = name.replace(".", "_")
        if value:
            old.add_argument(f"--{name}", dest=dest, metavar=value, help=f"{instead[0].upper()}{instead[1:]}.")
        else:
            old.add_argument(f"--{name}", dest=dest, action="store_true", help=f"{instead[0].upper()}{instead[1:]}.")


def _without_effect(found: argparse.Namespace) -> list[str]:
    return [f"--{name}: {instead}" for name, _, instead in _OLD if getattr(found, name.replace(".", "_"))]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _truth(text: str) -> bool:
    try:
        return _TRUTH[text.strip().lower()]
    except KeyError:
        raise ValueError(text) from None


# argparse names a value's type in its messages by these.
_positive.__name__ = "number of 1 or more"
_truth.__name__ = "true or false"
