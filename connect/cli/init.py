"""``heliograph init``: ask for what the first files of a mirror need, and write them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from connect.cli.options_and_help import Answers, ClusterAddress, Policy, RunMode
from connect.core.errors import ConfigError
from connect.core.model import FACTOR_KEYS

_MIRROR: Final = "org.apache.kafka.connect.mirror."
_BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
MM2: Final = "mm2.properties"
WORKER: Final = "worker.properties"
#: The brokers' default, which fits a single broker and many.
_ANY_FACTOR: Final = "-1"


def files(answers: Answers) -> dict[str, str]:
    """Return the text of each file by its name; each has been parsed. Raises ConfigError if the answers contradict each
    other, or result in an invalid setting."""
    # Imported here, because the module is loaded for every command.
    from connect.core.config.properties import parse_properties
    from connect.core.config.worker_config import WorkerConfig
    from connectors.config.connector_configs import checkpoint_settings, source_settings
    from connectors.config.mm2_properties import MirrorMakerConfig

    if answers.source.alias == answers.target.alias:
        raise ConfigError(f"source and target have the same alias {answers.source.alias}. Use different aliases")
    if answers.both_ways and answers.policy is Policy.IDENTITY:
        raise ConfigError("--both-ways with --policy identity would copy records in circles. Use --policy default")
    if answers.mode is RunMode.DEDICATED:
        found = {MM2: _mm2(answers)}
        for flow in MirrorMakerConfig(parse_properties(found[MM2], MM2)).flows_to_run():
            flow.settings()
        return found
    if answers.both_ways:
        text = "a Connect group writes to one cluster. For both ways create a second group for the other cluster"
        raise ConfigError(text)
    found = {WORKER: _worker(answers), **_connectors(answers)}
    worker = WorkerConfig.parse(parse_properties(found[WORKER], WORKER))
    source_settings(parse_properties(found["mirror-source.properties"]), worker.props)
    checkpoint_settings(parse_properties(found["mirror-checkpoint.properties"]))
    return found


def _mm2(answers: Answers) -> str:
    us, eu = answers.source, answers.target
    why = "# The way back. Topic names must show the source cluster, or records would be copied in circles."
    back = ["", why, *_pairs(_flow(eu, us, answers))] if answers.both_ways else []
    lines = [
        f"# Mirrors {us.alias} to {eu.alias}. To check it: heliograph check {MM2}",
        f"# To start it: heliograph mirror {MM2}",
        "",
        "# Cluster aliases; they appear in names of remote topics and of the mirror's groups.",
        *_pairs({"clusters": f"{us.alias}, {eu.alias}"}),
        *_pairs({f"{place.alias}.bootstrap.servers": place.servers for place in (us, eu)}),
        "# For TLS and authentication see docs/security.md. Prefix each key with an alias, such as",
        f"# {us.alias}.security.protocol = SSL",
        "",
        "# Topics and groups: regular expressions, separated by commas.",
        *_pairs(_flow(us, eu, answers)),
        *back,
        "",
        *_policy(answers),
        *_moving(answers),
        "",
        "# How often new topics are looked for; the default is 600.",
        *_pairs({"refresh.topics.interval.seconds": "30"}),
        "",
        "# Replication factors of new topics; -1 is the brokers' default.",
        *_pairs(dict.fromkeys(FACTOR_KEYS, _ANY_FACTOR)),
        "",
        "# Several nodes with this file share the work. They need:",
        "# dedicated.mode.enable.internal.rest = true",
        "# listeners = http://this-host:8080",
        "# For health and metrics alone: metrics.listeners = http://:9404",
    ]
    return "\n".join(lines) + "\n"


def _flow(source: ClusterAddress, target: ClusterAddress, answers: Answers) -> dict[str, str]:
    flow = f"{source.alias}->{target.alias}"
    return {f"{flow}.enabled": "true", f"{flow}.topics": answers.topics, f"{flow}.groups": answers.groups}


def _worker(answers: Answers) -> str:
    group = f"mirror-{answers.source.alias}-{answers.target.alias}"
    topics = {f"{each}.storage.topic": f"{group}-{each}s" for each in ("config", "offset")}
    lines = [
        f"# A worker of the group {group}, whose topics are on {answers.target.alias}:",
        f"#   connect-distributed {WORKER}",
        "# and then, once for the group:",
        *(f"#   heliograph connectors create {name}" for name in _connectors(answers)),
        "",
        "# The target cluster. For TLS and authentication see docs/security.md.",
        *_pairs({"bootstrap.servers": answers.target.servers}),
        "",
        "# Workers of a group share the work and these topics.",
        *_pairs({"group.id": group, **topics, "status.storage.topic": f"{group}-status"}),
        *_pairs({f"{each}.storage.replication.factor": _ANY_FACTOR for each in ("config", "offset", "status")}),
        "",
        "# Records are copied unchanged.",
        *_pairs({"key.converter": _BYTES, "value.converter": _BYTES}),
        "",
        "# The REST API listens on this machine only. Other machines need https://:8443 or http://:8083 here, and",
        "# users: rest.auth.basic.file = /etc/heliograph/users.properties. See docs/security/rest.md.",
        *_pairs({"listeners": "http://localhost:8083"}),
    ]
    return "\n".join(lines) + "\n"


def _connectors(answers: Answers) -> dict[str, str]:
    clusters: dict[str, str] = {}
    for side, place in (("source", answers.source), ("target", answers.target)):
        clusters |= {f"{side}.cluster.alias": place.alias, f"{side}.cluster.bootstrap.servers": place.servers}
    own: dict[str, tuple[str, list[str]]] = {
        "Source": (
            "Copies records and topics.",
            [
                *_pairs({"topics": answers.topics, "tasks.max": "4"}),
                *_policy(answers),
                *_pairs(dict.fromkeys(("replication.factor", "offset-syncs.topic.replication.factor"), _ANY_FACTOR)),
            ],
        ),
        "Checkpoint": (
            "Translates the offsets of groups.",
            [
                *_pairs({"groups": answers.groups}),
                *_policy(answers),
                *_moving(answers),
                *_pairs({"checkpoints.topic.replication.factor": _ANY_FACTOR}),
            ],
        ),
        "Heartbeat": ("Shows that the flow is alive.", _pairs({"heartbeats.topic.replication.factor": _ANY_FACTOR})),
    }
    found = {}
    for kind, (what, lines) in own.items():
        name = f"mirror-{kind.lower()}"
        settings = {"name": name, "connector.class": f"{_MIRROR}Mirror{kind}Connector", **clusters}
        found[f"{name}.properties"] = "\n".join([f"# {what}", *_pairs(settings), *lines, ""])
    return found


def _policy(answers: Answers) -> list[str]:
    if answers.policy is Policy.IDENTITY:
        comment = f"# Topics keep their names on {answers.target.alias}."
        return [comment, *_pairs({"replication.policy.class": f"{_MIRROR}IdentityReplicationPolicy"})]
    return [f"# Topic orders of {answers.source.alias} is {answers.source.alias}.orders on {answers.target.alias}."]


def _moving(answers: Answers) -> list[str]:
    comment = f"# Whether to sync group offsets to {answers.target.alias}."
    return [comment, *_pairs({"sync.group.offsets.enabled": str(answers.moves_groups).lower()})]


def _pairs(settings: Mapping[str, str]) -> list[str]:
    # A properties file needs two backslashes for one.
    return [f"{key} = {value}".replace("\\", "\\\\") for key, value in settings.items()]


T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
_PLACE: Final = "ALIAS=HOST:PORT,..."


def init(
    source: Annotated[str | None, typer.Option(metavar=_PLACE, help="The source cluster.")] = None,
    target: Annotated[str | None, typer.Option(metavar=_PLACE, help="The target cluster.")] = None,
    mode: Annotated[RunMode | None, typer.Option(help="A dedicated process, or connectors in a Connect group.")] = None,
    policy: Annotated[Policy | None, typer.Option(help="Name topics ALIAS.topic on the target, or keep names.")] = None,
    topics: Annotated[str | None, typer.Option(metavar="REGEX,...", help="Topics to mirror.")] = None,
    groups: Annotated[str | None, typer.Option(metavar="REGEX,...", help="Consumer groups.")] = None,
    sync_groups: Annotated[
        bool | None, typer.Option("--sync-groups/--no-sync-groups", help="Sync group offsets to the target.")
    ] = None,
    both_ways: Annotated[bool | None, typer.Option("--both-ways/--one-way", help="Mirror in both directions.")] = None,
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder for the files.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write the first files of a mirror. With --source and --target all other options have defaults.

    Without one of the two it asks, if there is a terminal. The files are checked and have comments. Existing files are
    kept without --force."""

    # Pasted lines behind a complete command would be taken as answers.
    asks = sys.stdin.isatty() and (source is None or target is None)
    places = []
    for each, key, example in ((source, "--source", "us=us-kafka:9092"), (target, "--target", "eu=eu-kafka:9092")):
        if each is None and not asks:
            raise ConfigError(f"{key} is missing, and there is no terminal to ask for it", key)
        question = f"{key[2:].capitalize()} cluster: alias and addresses, such as {example}"
        parse = partial(ClusterAddress.parse, key=key)
        places.append(_answered(asks, question, parse, None) if each is None else parse(each))
    begun = Answers(places[0], places[1])
    us, eu = begun.source.alias, begun.target.alias
    question = "Run as dedicated (its own process) or connect (in a Connect group)?"
    mode = mode or _answered(asks, question, partial(_one_of, RunMode, "--mode"), begun.mode)
    question = f"Name of topic orders of {us} on {eu}: {us}.orders (default) or orders (identity)?"
    answers = Answers(
        begun.source,
        begun.target,
        mode,
        policy or _answered(asks, question, partial(_one_of, Policy, "--policy"), begun.policy),
        topics or _answered(asks, "Topics (regular expressions)", str, begun.topics),
        groups or _answered(asks, "Consumer groups (regular expressions)", str, begun.groups),
        _yes(sync_groups, asks, f"Sync group offsets to {eu}, so that groups can move at any time?"),
        _yes(both_ways, asks and mode is RunMode.DEDICATED, f"Also mirror {eu} to {us}?"),
    )
    written = _written(files(answers), directory, force=force)
    for path in written:
        print(f"wrote {path}")
    if answers.mode is RunMode.DEDICATED:
        print(f"check: heliograph check {written[0]}\nstart: heliograph mirror {written[0]}")
    else:
        print(f"start: connect-distributed {written[0]}")
        for path in written[1:]:
            print(f"then:  heliograph connectors create {path}")


def _one_of(kind: type[E], key: str, text: str) -> E:
    try:
        return kind(text.strip())
    except ValueError:
        raise ConfigError(f"'{text}' is not one of {', '.join(kind)}", key) from None


def _answered(asks: bool, question: str, parse: Callable[[str], T], default: T | None) -> T:
    """Return the answer to a question, repeated until it is valid; the default if there is no terminal to ask."""
    if not asks and default is not None:
        return default
    while True:
        try:
            with _at_prompt():
                answer = typer.prompt(question, default=None if default is None else str(default))
            return parse(str(answer))
        except ConfigError as error:
            print(f"{error.message}", file=sys.stderr)


def _yes(given: bool | None, asks: bool, question: str) -> bool:
    if given is not None or not asks:
        return bool(given)
    with _at_prompt():
        return typer.confirm(question, default=False)


@contextmanager
def _at_prompt() -> Iterator[None]:
    """End the command at Ctrl-C and at the end of the input with the exit code of every other command."""
    try:
        yield
    except typer.Abort:
        print(file=sys.stderr)
        raise KeyboardInterrupt from None


def _written(texts: dict[str, str], directory: Path, *, force: bool) -> list[Path]:
    """Write all files or none. Raises ConfigError if one exists."""
    paths = {directory / name: text for name, text in texts.items()}
    there = ", ".join(str(path) for path in paths if path.exists())
    if there and not force:
        raise ConfigError(f"{there} exists. Overwrite it with --force, or set another folder with --dir", "--force")
    directory.mkdir(parents=True, exist_ok=True)
    for path, text in paths.items():
        path.write_text(text, "utf-8")
    return list(paths)
