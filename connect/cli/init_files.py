"""The files that ``heliograph init`` writes, from its answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from connect.cli.options_and_help import Answers, ClusterAddress, Policy, RunMode
from connect.core.config.properties import parse_properties
from connect.core.config.worker_config import WorkerConfig
from connect.core.errors import ConfigError
from connectors.config.connector_configs import checkpoint_settings, source_settings
from connectors.config.mm2_properties import MirrorMakerConfig

_MIRROR: Final = "org.apache.kafka.connect.mirror."
_BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
MM2: Final = "mm2.properties"
WORKER: Final = "worker.properties"
#: The brokers' default, which fits a single broker and many.
_ANY_FACTOR: Final = "-1"


def files(answers: Answers) -> dict[str, str]:
    """Return the text of each file by its name; each has been parsed.

    Raises:
        ConfigError: The answers contradict each other, or result in an invalid setting.
    """
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
        raise ConfigError(
            "a Connect group writes to one cluster. For both ways create a second group for the other cluster"
        )
    found = {WORKER: _worker(answers), **_connectors(answers)}
    worker = WorkerConfig.parse(parse_properties(found[WORKER], WORKER))
    source_settings(parse_properties(found["mirror-source.properties"]), worker.props)
    checkpoint_settings(parse_properties(found["mirror-checkpoint.properties"]))
    return found


def _mm2(answers: Answers) -> str:
    us, eu = answers.source, answers.target
    back = (
        [
            "",
            "# The way back. Topic names must show the source cluster, or records would be copied in circles.",
            *_pairs(_flow(eu, us, answers)),
        ]
        if answers.both_ways
        else []
    )
    lines = [
        f"# Mirrors {us.alias} to {eu.alias}. To check it: heliograph plan {MM2}",
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
        "# Replication factors of new topics; -1 is the brokers' default.",
        *_pairs(_factors()),
        "",
        "# Several nodes with this file share the work. They need:",
        "# dedicated.mode.enable.internal.rest = true",
        "# listeners = http://this-host:8080",
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
        "# The REST API has no authentication and listens on this machine only. For other machines set",
        "# http://:8083.",
        *_pairs({"listeners": "http://localhost:8083"}),
    ]
    return "\n".join(lines) + "\n"


def _connectors(answers: Answers) -> dict[str, str]:
    clusters: dict[str, str] = {}
    for side, place in (("source", answers.source), ("target", answers.target)):
        clusters |= {f"{side}.cluster.alias": place.alias, f"{side}.cluster.bootstrap.servers": place.servers}
    factors = _factors()
    own: dict[str, tuple[str, list[str]]] = {
        "Source": (
            "Copies records and topics.",
            [
                *_pairs({"topics": answers.topics, "tasks.max": "4"}),
                *_policy(answers),
                *_pairs({key: factors[key] for key in ("replication.factor", "offset-syncs.topic.replication.factor")}),
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
    return {
        f"mirror-{kind.lower()}.properties": "\n".join(
            [
                f"# {what}",
                *_pairs({"name": f"mirror-{kind.lower()}", "connector.class": f"{_MIRROR}Mirror{kind}Connector"}),
                *_pairs(clusters),
                *lines,
            ]
        )
        + "\n"
        for kind, (what, lines) in own.items()
    }


def _factors() -> dict[str, str]:
    topics = ("replication.factor", *(f"{each}.topic.replication.factor" for each in ("heartbeats", "checkpoints")))
    storage = (f"{each}.storage.replication.factor" for each in ("config", "offset", "status"))
    return dict.fromkeys((*topics, "offset-syncs.topic.replication.factor", *storage), _ANY_FACTOR)


def _policy(answers: Answers) -> list[str]:
    if answers.policy is Policy.IDENTITY:
        told = f"# Topics keep their names on {answers.target.alias}."
        return [told, *_pairs({"replication.policy.class": f"{_MIRROR}IdentityReplicationPolicy"})]
    return [f"# Topic orders of {answers.source.alias} is {answers.source.alias}.orders on {answers.target.alias}."]


def _moving(answers: Answers) -> list[str]:
    told = f"# Whether to sync group offsets to {answers.target.alias}."
    return [told, *_pairs({"sync.group.offsets.enabled": str(answers.moves_groups).lower()})]


def _pairs(settings: Mapping[str, str]) -> list[str]:
    # A properties file needs two backslashes for one.
    return [f"{key} = {value}".replace("\\", "\\\\") for key, value in settings.items()]
