"""Examples that ``--help`` ends with, a few for each command; ``docs/commands.md`` has them all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
