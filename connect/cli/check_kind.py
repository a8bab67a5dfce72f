"""What a configuration file is, told by what is in it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from connect.core.errors import ConfigError


class Kind(StrEnum):
    """What ``heliograph check`` knows, as ``--kind`` has it."""

    MIRROR = "mirror"
    WORKER = "worker"
    CONNECTOR = "connector"
    CONSUMER = "consumer"
    PRODUCER = "producer"
    STRIMZI = "strimzi"


_FLOW_KEY: Final = re.compile(r"[^.=\s]+->[^\s]+\.")
_RESOURCE: Final = frozenset({"apiVersion", "kind"})
_OF_RESOURCE: Final = re.compile(r"^(apiVersion|kind)\s*:", re.MULTILINE)
#: What nearly every consumer's and producer's file has, of today and from before Kafka 0.9.
_OF_CONSUMER: Final = frozenset({"group.id", "groupid", "auto.offset.reset", "autooffset.reset", "zookeeper.connect"})
_OF_PRODUCER: Final = frozenset(
    {"acks", "request.required.acks", "metadata.broker.list", "broker.list", "compression.type", "producer.type"}
)
_OF_WORKER: Final = (
    "config.storage.topic",
    "offset.storage.topic",
    "status.storage.topic",
    "offset.storage.file.filename",
)


def kind_of_text(text: str) -> Kind | None:
    """Of what is no properties file; None of what may be one."""
    if text.lstrip().startswith(("{", "[")):
        return Kind.STRIMZI if _is_resource(text) else Kind.CONNECTOR
    found = {match.group(1) for match in _OF_RESOURCE.finditer(text)}
    return Kind.STRIMZI if found == _RESOURCE else None


def _is_resource(text: str) -> bool:
    """Whether JSON is what ``kubectl get -o json`` prints."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.keys() >= _RESOURCE


def kind_of_properties(props: Mapping[str, str], file: str) -> Kind:
    """Raises ConfigError where nothing tells."""
    if "clusters" in props or any(_FLOW_KEY.match(key) for key in props):
        return Kind.MIRROR
    if "connector.class" in props:
        return Kind.CONNECTOR
    if any(key in props for key in _OF_WORKER) or "key.converter" in props:
        return Kind.WORKER
    consumer, producer = len(props.keys() & _OF_CONSUMER), len(props.keys() & _OF_PRODUCER)
    if consumer != producer:
        return Kind.CONSUMER if consumer > producer else Kind.PRODUCER
    raise ConfigError(
        f"nothing in it tells what it is for: neither clusters, nor connector.class, nor config.storage.topic; "
        f"say --kind, one of {', '.join(Kind)}",
        file=file,
    )
