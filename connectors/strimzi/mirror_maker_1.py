"""``KafkaMirrorMaker``, Strimzi's resource of MirrorMaker 1 until 0.45: which command line and files take its place."""

from __future__ import annotations

import shlex
from typing import Final

from connect.core.errors import ConfigError
from connectors.strimzi.documents import Node

KIND: Final = "KafkaMirrorMaker"

#: Options by the fields that they are of, the first of a name that is there.
_OPTIONS: Final = (
    ("--include", ("spec.include", "spec.whitelist")),
    ("--num.streams", ("spec.consumer.numStreams",)),
    ("--offset.commit.interval.ms", ("spec.consumer.offsetCommitInterval",)),
    ("--abort.on.send.failure", ("spec.producer.abortOnSendFailure",)),
)
#: Keys of the two files likewise; ``config`` has others.
_FILES: Final = (
    ("source.properties", "spec.consumer", {"bootstrap.servers": "bootstrapServers", "group.id": "groupId"}),
    ("target.properties", "spec.producer", {"bootstrap.servers": "bootstrapServers"}),
)
_NOT_SAID: Final = "..."


def taken_elsewhere(resource: Node) -> ConfigError:
    """The error for such a resource. Raises ConfigError where a field that it needs has another shape."""
    return resource.error(
        f"{KIND} is MirrorMaker 1, which is a command here: {_command(resource)}; {_files(resource)}; "
        "docs/mirrormaker-1.md has the rest"
    )


def _command(resource: Node) -> str:
    words = ["kafka-mirror-maker", "--consumer.config", "source.properties", "--producer.config", "target.properties"]
    for option, paths in _OPTIONS:
        text = next(filter(None, (_at(resource, path).text() for path in paths)), None)
        if text is not None:
            words += [option, text]
    return shlex.join(words)


def _files(resource: Node) -> str:
    said = []
    for file, path, keys in _FILES:
        cluster = _at(resource, path)
        lines = [f"{key}={cluster.field(name).text() or _NOT_SAID}" for key, name in keys.items()]
        if "config" in cluster:
            lines.append(f"the keys of {path}.config")
        secured = [f"{path}.{name}" for name in ("tls", "authentication") if name in cluster]
        if secured:
            lines.append(f"the keys of docs/security.md for {' and '.join(secured)}")
        said.append(f"{file} has {', '.join(lines)}")
    return "; ".join(said)


def _at(resource: Node, path: str) -> Node:
    node = resource
    for name in path.split("."):
        node = node.field(name)
    return node
