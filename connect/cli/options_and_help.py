"""What every command loads at start: options of init, check and failover, examples of --help, completion."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, ParamSpec

import typer
import typer.completion
from typer.core import TyperCommand, TyperGroup

from connect.cli.check.findings import FileKind
from connect.cli.commands.connectors import rest_option
from connect.cli.console import EXIT_ERROR, configure_logging, run_command, warn
from connect.core.errors import ConfigError

_FAILOVER: Final = "mm2.properties --to eu"
#: Arguments of each example, by command.
EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "demo": ("", "--rate 20000"),
    "dev": ("", "--nodes 3 --port-base 19092 --topics orders"),
    "init": (
        "",
        "--source us=us-kafka:9092 --target eu=eu-kafka:9092 --topics 'orders.*' --groups '.*'",
        "--source us=us-kafka:9092 --target eu=eu-kafka:9092 --mode connect --dir mirror",
    ),
    "mirror": ("mm2.properties", "mm2.properties --clusters eu", "-f kafkamirrormaker2.yaml --secrets /run/secrets"),
    "warm": ("",),
    "status": ("mm2.properties", "mm2.properties --rest http://localhost:8083"),
    "lag": ("mm2.properties", "mm2.properties --flow 'us->eu' --watch", "--rest http://localhost:8083/us/eu --json"),
    "offsets": (
        "mm2.properties",
        "mm2.properties --cluster us --group billing --topic orders,payments",
        "--bootstrap-server us-kafka:9092 --group billing --broker-info",
        "mm2.properties --flow 'us->eu' --watch --every 5",
    ),
    "map": (
        "mm2.properties --topic orders",
        "mm2.properties --flow 'us->eu' --topic orders --partition 0 --offset 4711",
        "mm2.properties --topic orders --partition 0 --offset 4711 --reverse",
    ),
    "check": (
        "mm2.properties",
        "worker.properties --offline",
        "mirror-source.json --json",
        "kafkamirrormaker2.yaml --secrets /run/secrets",
    ),
    "plan": (
        "mm2.properties",
        "mm2.properties --flow 'us->eu' --all",
        "mm2.properties --drift --ignore acl --ignore config",
        "mm2.properties --json",
    ),
    "topology": ("mm2.properties", "mm2.properties --stale-after 10 --json"),
    "takeover": ("mm2.properties", "mm2.properties --flow 'us->eu' --all"),
    "verify": (
        "mm2.properties --flow 'us->eu'",
        "mm2.properties --flow 'us->eu' --topics 'orders.*' --full --rate 50000000",
        "mm2.properties --flow 'us->eu' --from 2026-11-20T00:00Z --report verified.html",
        "--check verified.html",
    ),
    "failover": (
        _FAILOVER,
        f"{_FAILOVER} --rest http://localhost:8083 --execute",
        f"{_FAILOVER} --source-gone us --execute --yes",
    ),
    "failback": ("mm2.properties --to us", "mm2.properties --to us --execute"),
    "undo": (_FAILOVER, f"{_FAILOVER} --execute"),
    "unreplicated": (_FAILOVER, f"{_FAILOVER} --export unreplicated", f"{_FAILOVER} --append"),
    "config": ("", "--reference mirror"),
    "completion": ("bash > ~/.local/share/bash-completion/completions/heliograph",),
    "connectors list": ("", "--rest http://worker:8083 --json"),
    "connectors create": ("mirror-source.json", "mirror-source.properties --replace", "- --state stopped"),
    "connectors status": ("mirror-source", "mirror-source --json"),
    "connectors pause": ("mirror-source mirror-checkpoint",),
    "connectors resume": ("mirror-source",),
    "connectors stop": ("mirror-source",),
    "connectors delete": ("mirror-source",),
    "connectors restart": ("mirror-source --tasks --failed", "mirror-source --task 0"),
    "connectors audit": ("mirror-source", "mirror-source --search paused --top 100"),
    "connectors offsets": (
        "mirror-source --json > offsets.json",
        "mirror-source --set offsets.json",
        "mirror-source --reset",
    ),
}


#: The commands in the order of ``heliograph --help``.
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Run": ("mirror", "demo", "dev"),
    "Prepare": ("init", "check", "plan", "takeover"),
    "Observe": ("status", "lag", "offsets", "map", "topology", "verify"),
    "Move": ("failover", "failback", "undo", "unreplicated"),
    "Connect": ("connectors",),
    "Set up": ("warm", "config", "completion"),
}
#: Commands and options of earlier versions; an empty one had no effect. They go with the next release.
_OLD_COMMANDS: Final = {"drift": ("plan", "--drift"), "stranded": ("unreplicated",)}
_LEAVE: Final = {"--leave-stranded": "--leave-unreplicated"}
_OLD_OPTIONS: Final = {
    "takeover": {"--check": ""},
    "connectors": {"--url": "--rest"},
    "failover": _LEAVE,
    "failback": _LEAVE,
}
_DROPPED: Final = "the next release drops the old name"
_CLUSTERS: Final = "--clusters"
#: A terminal's usual width.
_COLUMNS: Final = 80
_EVERY_S: Final = 2.0
P = ParamSpec("P")


def examples(command: str) -> tuple[str, ...]:
    """Return the example lines of a command, as they are typed."""
    return tuple(f"heliograph {command} {each}".rstrip() for each in EXAMPLES.get(command, ()))


def taught(group: Any, above: str = "") -> Any:
    """Add the examples to the end of each command's help; the words ``above`` come before the names."""
    for name, command in group.commands.items():
        words = f"{above}{name}"
        for one in command.params:
            if one.param_type_name == "argument" and one.metavar:
                # It says what is wanted. Typer would add Python's type, such as list[str].
                one.display_type_rich = lambda ctx: None
        if hasattr(command, "commands"):
            taught(command, f"{words} ")
        elif lines := examples(words):
            # \b keeps the line breaks of a paragraph.
            command.epilog = "\b\nExamples:\n" + "\n".join(f"  {part}" for line in lines for part in folded(line))
    return group


def folded(line: str) -> list[str]:
    """Split a command line that is too long for a terminal before its options, so that a shell takes all parts."""
    first, *more = re.split(r" (?=--|> )", line)
    parts = [first]
    for each in more:
        if len(f"    {parts[-1]} {each} \\") > _COLUMNS:
            parts[-1] += " \\"
            parts.append(f"    {each}")
        else:
            parts[-1] += f" {each}"
    return parts


PROGRAM: Final = "heliograph"
#: Set by a shell that asks for completions.
ASKED: Final = "_HELIOGRAPH_COMPLETE"


class Shell(StrEnum):
    """Shells that have a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print a shell's completion script for commands and options. Save it in the shell's folder for completions.

    bash: ~/.local/share/bash-completion/completions/heliograph; zsh: a file _heliograph in a folder of $fpath; fish:
    ~/.config/fish/completions/heliograph.fish."""
    script = typer.completion.get_completion_script  # type: ignore[attr-defined]  # because it has no __all__
    print(script(prog_name=PROGRAM, complete_var=ASKED, shell=shell.value))


class RunMode(StrEnum):
    """How a mirror runs: as a dedicated process, or as connectors in a Connect group."""

    DEDICATED = "dedicated"
    CONNECT = "connect"


class Policy(StrEnum):
    """The name of a topic on the target."""

    DEFAULT = "default"
    IDENTITY = "identity"


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """A cluster's alias and its addresses, ``host:port`` separated by commas."""

    alias: str
    servers: str

    @classmethod
    def parse(cls, text: str, key: str) -> ClusterAddress:
        """Parse ``alias=host:port,...``. Raises ConfigError."""
        alias, equals, servers = (part.strip() for part in text.partition("="))
        if not equals or not alias or not all(char.isalnum() or char in "._-" for char in alias):
            raise ConfigError(f"'{text}' is not an alias with addresses, such as us=us-kafka:9092", key)
        # Imported late because it loads the clients.
        from connect.kafka.security.connection_settings import parse_bootstrap

        parse_bootstrap(servers, f"cluster {alias}")
        return cls(alias, servers)


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of ``heliograph init``; ``topics`` and ``groups`` are lists of regular expressions."""

    source: ClusterAddress
    target: ClusterAddress
    mode: RunMode = RunMode.DEDICATED
    policy: Policy = Policy.DEFAULT
    topics: str = ".*"
    groups: str = ".*"
    moves_groups: bool = False
    both_ways: bool = False


MirrorFile = Annotated[Path, typer.Argument(metavar="mm2.properties", help="The flows and their clusters.")]
AnyMirrorFile = Annotated[Path | None, typer.Argument(metavar="mm2.properties", help="The flows and their clusters.")]
OneFlow = Annotated[str | None, typer.Option(metavar="FLOW", help="Only this flow of the file, such as us->eu.")]
Watch = Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")]
Every = Annotated[
    float | None,
    typer.Option(
        min=0.5, metavar="SECONDS", help="With --watch: time between refreshes.", show_default=f"{_EVERY_S:g}"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
All = Annotated[bool, typer.Option("--all", help="Show everything that was found.")]


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to check.")],
    kind: Annotated[FileKind | None, typer.Option(help="Kind of file, if its content does not show it.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Check only the file and contact no cluster.")] = False,
    secrets: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Secrets of a Strimzi resource, mounted as DIR/NAME/KEY.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a file without changing anything: mm2.properties, a worker's properties, a connector's JSON or properties,
    the two files of kafka-mirror-maker, or a Strimzi resource.

    Prints what each flow or connector would do, the clusters with their releases, missing ACLs, and keys that are
    invalid, unknown or without effect, each with its line.

    Exit codes: 0 no errors, 2 errors in the file, 1 the check failed or a cluster could not be checked."""
    from connect.cli.check.check_file import run_check

    finish(run_check, file, kind=kind, offline=offline, as_json=as_json, secrets=secrets)


def finish(command: Callable[P, int], *arguments: P.args, **options: P.kwargs) -> NoReturn:
    """Run a command that prints what it finds, so that little is logged, and end with its exit code."""
    configure_logging("CRITICAL")
    raise typer.Exit(run_command(PROGRAM, partial(command, *arguments, **options)))


def rare_option(*names: str, help: str, **more: Any) -> Any:  # noqa: A002 (typer's word)
    """Return an option that only ``--help-all`` shows."""
    return typer.Option(*names, help=help, hidden=True, **more)


Source = Annotated[
    str | None,
    rare_option("--from", metavar="CLUSTER", help="Current cluster of the groups. Default: the file's only source."),
]
Target = Annotated[str, typer.Option("--to", metavar="CLUSTER", help="Cluster to move to.")]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="GROUP", help="A group or a regular expression. Default: the file's groups."),
]
Rest = Annotated[list[str] | None, rest_option("URL of the mirror or of a worker, used to stop and start flows.")]
AlsoRest = Annotated[
    list[str] | None, rest_option("Ask this mirror or worker too, which knows more of its tasks and of Spark.")
]
InsteadRest = Annotated[
    str | None, rest_option("Ask this worker instead; a dedicated mirror is http://host:port/SOURCE/TARGET.")
]
Execute = Annotated[bool, typer.Option("--execute", help="Make the changes, after confirmation.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def refresh_s(every_s: float | None, *, watch: bool) -> float | None:
    """Return the seconds between refreshes, None without ``--watch``. Raises ConfigError for ``--every`` without it."""
    if every_s is not None and not watch:
        raise ConfigError("--every needs --watch", "--every")
    return (every_s or _EVERY_S) if watch else None


def _finite(seconds: float | None) -> float | None:
    if seconds is not None and not math.isfinite(seconds):  # both are in the range of click
        raise typer.BadParameter(f"{seconds} is not a number of seconds. Give one, such as 600.")
    return seconds


Timeout = Annotated[float, rare_option(min=1, callback=_finite, metavar="SECONDS", help="How long to wait for a flow.")]
LeaveUnreplicated = Annotated[
    bool, rare_option("--leave-unreplicated", help="Leave unreplicated records where they are.")
]
Accept = Annotated[
    list[str] | None,
    rare_option(
        metavar="WHAT=GROUP", help="Move a group despite not-mirrored, checkpoints, deleted, copy-time or diverged."
    ),
]
Rewind = Annotated[list[str] | None, rare_option(metavar="GROUP", help="Let this group move back on the target.")]
KeepOffset = Annotated[
    list[str] | None, rare_option(metavar="GROUP", help="Let this group keep offsets that are ahead on the target.")
]
Retired = Annotated[
    list[str] | None,
    rare_option(metavar="CONNECTOR", help="This connector, which copied to other topics, will not run again."),
]


def _warn_of_undo_file(context: typer.Context, file: Path | None) -> None:
    if file is not None and not context.resilient_parsing:
        warn("--undo-file has no effect: heliograph undo reads the journal on the target")


UndoFile = Annotated[
    Path | None,
    rare_option(
        callback=_warn_of_undo_file, metavar="FILE", help="Has no effect: undo reads the journal on the target."
    ),
]
Sample = Annotated[int, rare_option(min=0, metavar="N", help="Records to compare in each partition of a group.")]
Gone = Annotated[str | None, typer.Option(metavar="CLUSTER", help="This cluster is lost: use only the target.")]
DenyWrites = Annotated[
    bool, typer.Option("--deny-writes", help="Block producers of the mirrored topics on the source with ACLs.")
]
At = Annotated[str | None, rare_option(metavar="TIME", help="Move to a time, such as 2026-11-20T11:00Z.")]
Verify = Annotated[bool, rare_option("--verify", help="Verify all that was copied before groups move.")]
VerifyWithin = Annotated[
    float | None,
    rare_option(
        min=1,
        callback=_finite,
        metavar="SECONDS",
        help="The time limit. Without --verify groups then move even if not all was compared.",
    ),
]
Json = Annotated[bool, rare_option("--json", help="Print JSON.")]
Everything = Annotated[bool, rare_option("--all", help="Show all offsets.")]


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        for one in ctx.command.params:
            one.hidden = False  # type: ignore[attr-defined]
        print(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show rare options too, and exit.")
]


class FailoverCommand(TyperCommand):
    """A command whose ``--source-gone`` and ``--rewind`` may lack a value, for one more release."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from connect.cli.commands.failover import with_values

        return super().parse_args(ctx, with_values(args))


class MirrorCommand(TyperCommand):
    """A command whose ``--clusters`` takes several words, as in Java."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words: list[str] = []
        in_clusters = False
        for word in args:
            if in_clusters and not word.startswith("-") and words[-1] != _CLUSTERS:
                words.append(_CLUSTERS)
            in_clusters = word == _CLUSTERS or (in_clusters and not word.startswith("-"))
            words.append(word)
        return super().parse_args(ctx, words)


class GroupedCommands(TyperGroup):
    """Lists commands in groups, takes their old names, and exits with 1 for wrong arguments."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in GROUPS.items():
            rows = [(name, self.commands[name].get_short_help_str(limit=60)) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows)

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        with _wrong_arguments_exit_with_1():
            return super().make_context(info_name, with_current_names(args), *more, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _wrong_arguments_exit_with_1():
            return super().invoke(ctx)


@contextmanager
def _wrong_arguments_exit_with_1() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):  # of click, whose class typer does not export
            error.exit_code = EXIT_ERROR  # type: ignore[attr-defined]
        raise


def with_current_names(words: list[str]) -> list[str]:
    """Return the words of a command line with what was renamed replaced, and a warning for each."""
    if not words:
        return words
    command, rest = words[0], words[1:]
    now = _OLD_COMMANDS.get(command)
    if now is not None:
        warn(f"heliograph {command} is heliograph {' '.join(now)} now; {_DROPPED}")
        return [*now, *rest]
    options = _OLD_OPTIONS.get(command, {})
    found: list[str] = []
    for word in rest:
        option, equals, value = word.partition("=")
        if option not in options:
            found.append(word)
            continue
        become = f"is {options[option]} now" if options[option] else "has no effect"
        warn(f"{option} of heliograph {command} {become}; {_DROPPED}")
        if options[option]:
            found.append(f"{options[option]}{equals}{value}")
    return [command, *found]
