"""What every start of the command line loads: options of init, check and failover, examples of --help, completion."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import typer.completion
from typer.core import TyperCommand

from connect.cli.check.findings import FileKind
from connect.cli.console import EXIT_DIFFERENT, EXIT_ERROR, configure_logging, run_command
from connect.core.errors import ConfigError

_FAILOVER: Final = "mm2.properties --to eu"
#: By the words behind ``heliograph``; the arguments of each example.
EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "demo": ("", "--records 100000"),
    "dev": ("",),
    "init": (
        "",
        "--source us=us-kafka:9092 --target eu=eu-kafka:9092 --topics 'orders.*' --groups '.*'",
        "--source us=us-kafka:9092 --target eu=eu-kafka:9092 --mode connect --dir mirror",
    ),
    "mirror": (
        "mm2.properties",
        "mm2.properties --clusters eu",
        "-f kafkamirrormaker2.yaml --secrets /run/secrets",
    ),
    "warm": ("",),
    "lag": (
        "mm2.properties",
        "mm2.properties --flow 'us->eu' --watch",
        "--rest http://localhost:8083/us/eu --json",
    ),
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
    "plan": ("mm2.properties", "mm2.properties --flow 'us->eu' --all", "mm2.properties --json"),
    "drift": ("mm2.properties", "mm2.properties --ignore acl --ignore setting"),
    "topology": ("mm2.properties", "mm2.properties --stale-after 10 --json"),
    "takeover": ("mm2.properties --check", "mm2.properties --check --flow 'us->eu' --all"),
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
    "connectors list": ("", "--url http://worker:8083 --json"),
    "connectors create": ("mirror-source.json", "mirror-source.properties --replace", "- --state stopped"),
    "connectors status": ("mirror-source", "mirror-source --json"),
    "connectors pause": ("mirror-source mirror-checkpoint",),
    "connectors resume": ("mirror-source",),
    "connectors stop": ("mirror-source",),
    "connectors delete": ("mirror-source",),
    "connectors restart": ("mirror-source --tasks --failed", "mirror-source --task 0"),
    "connectors offsets": (
        "mirror-source --json > offsets.json",
        "mirror-source --set offsets.json",
        "mirror-source --reset",
    ),
}


def examples(command: str) -> tuple[str, ...]:
    """Whole lines, as they are typed; none for a command that has none."""
    return tuple(f"heliograph {command} {each}".rstrip() for each in EXAMPLES.get(command, ()))


def taught(group: Any) -> Any:
    """The command group with examples at the end of each command's help."""
    _teach(group, "")
    return group


def _teach(group: Any, above: str) -> None:
    for name, command in group.commands.items():
        words = f"{above}{name}"
        if hasattr(command, "commands"):
            _teach(command, f"{words} ")
        elif lines := examples(words):
            # The mark keeps a paragraph's lines as they are.
            command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


_PROGRAM: Final = "heliograph"
_ASKED: Final = "_HELIOGRAPH_COMPLETE"


class Shell(StrEnum):
    """Those that there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="Whose script.", show_default=False)]) -> None:
    """Print the script that makes a shell complete commands and options, for its folder of completions.

    bash: ~/.local/share/bash-completion/completions/heliograph; zsh: a file _heliograph in a folder of $fpath; fish:
    ~/.config/fish/completions/heliograph.fish."""
    script = typer.completion.get_completion_script  # type: ignore[attr-defined]  # no word on what it exports
    print(script(prog_name=_PROGRAM, complete_var=_ASKED, shell=shell.value))


def prepare() -> None:
    """Where a shell asks what may come next: let the library know how shells ask."""
    if _ASKED in os.environ:
        typer.completion.completion_init()  # type: ignore[attr-defined]  # as above


class RunMode(StrEnum):
    """How it runs: a process of its own for its flows, or connectors in a Connect group."""

    DEDICATED = "dedicated"
    CONNECT = "connect"


class Policy(StrEnum):
    """How a topic is called on the target."""

    DEFAULT = "default"
    IDENTITY = "identity"


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """A cluster: what the files call it, and its addresses, ``host:port`` with commas between."""

    alias: str
    servers: str

    @classmethod
    def parse(cls, text: str, key: str) -> ClusterAddress:
        """From ``alias=host:port,...``; raises ConfigError."""
        alias, equals, servers = (part.strip() for part in text.partition("="))
        if not equals or not alias or not all(char.isalnum() or char in "._-" for char in alias):
            raise ConfigError(f"'{text}' should be an alias and addresses, such as us=us-kafka:9092", key)
        # It loads the clients.
        from connect.kafka.security.connection_settings import parse_bootstrap

        parse_bootstrap(servers, f"cluster {alias}")
        return cls(alias, servers)


@dataclass(frozen=True, slots=True)
class Answers:
    """What the files are to do; ``topics`` and ``groups`` are lists of regular expressions."""

    source: ClusterAddress
    target: ClusterAddress
    mode: RunMode = RunMode.DEDICATED
    policy: Policy = Policy.DEFAULT
    topics: str = ".*"
    groups: str = ".*"
    moves_groups: bool = False
    both_ways: bool = False


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to look at.", show_default=False)],
    kind: Annotated[
        FileKind | None, typer.Option(help="What it is for, where its content does not tell.", show_default=False)
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Look at the file alone, and ask no cluster.")] = False,
    secrets: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Secrets of a resource as Kubernetes mounts them: DIR/NAME/KEY.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what would come of a file, and change nothing: an mm2.properties, a worker's properties, a connector's
    JSON or properties, the two files of kafka-mirror-maker, a Strimzi resource.

    It says what each flow or connector would do, which clusters answer and of which release they are, which rights are
    missing, and which keys are refused, unknown or without effect, each with its line.

    Exit codes: 0 nothing is against it, 2 something is, 1 an error, or a cluster that could not be asked."""
    from connect.cli.check.check_file import EXIT_UNKNOWN, run_check

    configure_logging("CRITICAL")
    looked = partial(run_check, file, kind=kind, offline=offline, as_json=as_json, secrets=secrets)
    raise typer.Exit(run_command("heliograph", looked, EXIT_UNKNOWN))


class DetailedExit(TyperCommand):
    """A command whose exit code 2 says something: wrong arguments end in 1."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # the class of wrong arguments is not one that typer shows
            if getattr(error, "exit_code", None) == EXIT_ERROR:
                error.exit_code = EXIT_DIFFERENT  # type: ignore[attr-defined]
            raise


Source = Annotated[
    str | None,
    typer.Option("--from", metavar="CLUSTER", help="Where readers are now; else as the file has it.", hidden=True),
]
Target = Annotated[str, typer.Option("--to", metavar="CLUSTER", help="Where readers go.", show_default=False)]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="GROUP", help="Only this group, or those that match; else those of the file."),
]
Rest = Annotated[
    list[str] | None,
    typer.Option("--rest", metavar="URL", help="A worker of each flow, or the mirror, to stop and start flows by."),
]
Execute = Annotated[bool, typer.Option("--execute", help="Do it, after a question; without this nothing is changed.")]
Yes = Annotated[bool, typer.Option("--yes", help="Ask no question.")]
Timeout = Annotated[
    float, typer.Option("--timeout", min=1, help="How long to wait for a flow, in seconds.", hidden=True)
]
LeaveUnreplicated = Annotated[
    bool,
    typer.Option(
        "--leave-unreplicated",
        "--leave-stranded",
        help="Leave records that only one cluster holds as they are.",
        hidden=True,
    ),
]
Accept = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WHAT=GROUP",
        help="Move a group in spite of: not-mirrored, checkpoints, deleted, copy-time, diverged.",
        hidden=True,
    ),
]
Rewind = Annotated[
    list[str] | None,
    typer.Option("--rewind", metavar="GROUP", help="This group may go back on the target.", hidden=True),
]
KeepOffset = Annotated[
    list[str] | None,
    typer.Option(
        "--keep-offset", metavar="GROUP", help="This group keeps what lies further on the target.", hidden=True
    ),
]
UndoFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Has no effect: the journal on the target is what undo reads.", hidden=True),
]
Sample = Annotated[
    int, typer.Option(min=0, help="Compare so many next records of each partition of a group.", hidden=True)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.", hidden=True)]
Everything = Annotated[bool, typer.Option("--all", help="Name every offset, however many there are.", hidden=True)]


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        for one in ctx.command.params:
            one.hidden = False  # type: ignore[attr-defined]
        print(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show the rare options too, and exit.")
]


class FailoverCommand(DetailedExit):
    """``--source-gone`` may stand without its value, and ``--rewind`` too, for one more release."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from connect.cli.commands.failover import with_values

        return super().parse_args(ctx, with_values(args))
