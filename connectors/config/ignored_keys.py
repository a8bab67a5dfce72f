"""Find keys of an ``mm2.properties`` that may not do what its user expects, and say why."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Literal

from connect.core.config import client_settings, worker_settings
from connect.core.config.client_settings import (
    ADMIN_KEYS,
    BOOTSTRAP_SERVERS,
    CONSUMER_KEYS,
    OF_CONNECTIONS,
    PRODUCER_KEYS,
)
from connect.core.config.connector_access import ACCESS
from connect.core.config.properties import provider_notice
from connect.core.config.rest_settings import ADMIN_HTTPS_PREFIX, EXTENSIONS, HTTPS_PREFIX, REST, REST_INTERNAL
from connect.core.config.security_settings import SECURITY, suites_notice
from connect.core.config.worker_config import NOT_KNOWN, NOT_SUPPORTED, listener_notice, unlisted_step
from connectors.config.connector_configs import PRODUCER
from connectors.config.definitions import CHECKPOINT, HEARTBEAT, SOURCE

#: ``unsupported``: Java uses the key, we do not yet. ``pointless``: it has nothing to act on here. ``misplaced``: it is
#: used elsewhere. ``unknown``: no program knows it. ``forgiven``: a mistake that was corrected. ``risky``: it does
#: what it says, which may be more than the user meant.
NoticeKind = Literal["unsupported", "pointless", "misplaced", "unknown", "forgiven", "risky"]


@dataclass(frozen=True, slots=True)
class IgnoredKey:
    """A notice. ``key`` is as in the file; ``text`` is a whole sentence for the log."""

    key: str
    kind: NoticeKind
    text: str


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class _Word:
    """What to say about a key: its kind, and the sentence without its subject. ``meant`` is the known name that is like
    ``end``, which ends the key."""

    kind: NoticeKind
    text: str
    end: str = ""
    meant: str = ""

    def of(self, key: str) -> IgnoredKey:
        hint = f"; is {key.removesuffix(self.end)}{self.meant} meant?" if self.meant else ""
        return IgnoredKey(key, self.kind, f"{key} {self.text}{hint}")


_UNSUPPORTED: Final = _Word("unsupported", NOT_SUPPORTED)
_POINTLESS: Final = _Word(
    "pointless", "has no effect here: batches are copied unchanged or merged, in order, with acks=all"
)
_NO_EXTENSIONS: Final = _Word(
    "pointless", "has no effect: only the public REST API has extensions; see dedicated.mode.enable.public.rest"
)
_NO_ADMIN: Final = _Word("pointless", "has no effect: a mirror serves loggers on listeners")
_ALL_OVERRIDES: Final = _Word(
    "pointless", "has no effect: connectors of a mirror may override every setting of clients, as in Java"
)
_OWN_OFFSETS: Final = "offsets.storage.topic"
_OVERRIDES: Final = "connector.client.config.override."
_STEP: Final = re.compile(r"(.*->.*?\.)?(transforms|predicates)\.(.+)")
_FORCED: Final = _Word("pointless", "has no effect: the copy keeps its own positions and needs no group")

_CONNECTOR_KNOWN: Final = frozenset({*SOURCE.settings, *CHECKPOINT.settings, *HEARTBEAT.settings}) | {
    "use.defaults.from",
    "transaction.boundary",
    "transaction.boundary.interval.ms",
    _OWN_OFFSETS,
    "topic.creation.groups",
    "exactly.once.support",
}
#: In addition to those of connections.
_CONNECTOR_UNSUPPORTED: Final = _names(
    """
    config.action.reload connector.plugin.version key.converter.plugin.version value.converter.plugin.version
    header.converter.plugin.version metric.names.formats metric.reporters
    tasks.max.enforce topic.creation.groups
    """
)
#: Keys, and beginnings of keys, that have nothing to act on.
_NOT_NEEDED: Final = {
    "consumer.poll.timeout.ms": "fetches wait for fetch.max.wait.ms",
    "errors.log.include.messages": "a skipped record is logged by its offset, never its content",
    "errors.retry.": "temporary errors are retried without a limit",
}
#: Names that Kafka 4 has removed.
_RENAMED: Final = {
    "topics.whitelist": "topics",
    "topics.blacklist": "topics.exclude",
    "groups.whitelist": "groups",
    "groups.blacklist": "groups.exclude",
    "config.properties.blacklist": "config.properties.exclude",
}
_CONNECTOR_PREFIXES: Final = ("topic.creation.", "config.providers.")
_OF_TRANSFORMS: Final = ("transforms.", "predicates.")
#: Java uses these in a flow's own keys and ignores them at the top level without a message.
_FLOW_ONLY: Final = _CONNECTOR_KNOWN - {*SOURCE.settings, *CHECKPOINT.settings, *HEARTBEAT.settings}

_OF_CONNECTIONS: Final = OF_CONNECTIONS - {BOOTSTRAP_SERVERS}
#: Java uses these; we do not, or they have nothing to act on.
_WORKER_UNSUPPORTED: Final = _names(f"plugin.path plugin.discovery {EXTENSIONS}") | (
    ADMIN_KEYS - _OF_CONNECTIONS - worker_settings.WORKER.settings.keys()
)
_WORKER_KNOWN: Final = ADMIN_KEYS | worker_settings.WORKER.settings.keys()
_TOP_KNOWN: Final = REST_INTERNAL.settings.keys() | _names(
    f"dedicated.mode.enable.internal.rest dedicated.mode.enable.public.rest {EXTENSIONS}"
)

_CLIENT_SUPPORTED: Final = {
    "consumer": _names(
        """
        isolation.level auto.offset.reset fetch.max.bytes max.partition.fetch.bytes fetch.max.wait.ms fetch.min.bytes
        client.id client.rack request.timeout.ms connections.max.idle.ms check.crcs
        send.buffer.bytes receive.buffer.bytes
        """
    ),
    "producer": frozenset({"acks", *_OF_CONNECTIONS, *PRODUCER.settings}),
    "admin": _OF_CONNECTIONS,
}
_CLIENT_KNOWN: Final = {"consumer": CONSUMER_KEYS, "producer": PRODUCER_KEYS, "admin": ADMIN_KEYS}
_CLIENT_POINTLESS: Final = {
    "consumer": _names(
        """
        enable.auto.commit auto.commit.interval.ms group.id group.instance.id group.protocol group.remote.assignor
        heartbeat.interval.ms session.timeout.ms max.poll.interval.ms max.poll.records partition.assignment.strategy
        key.deserializer value.deserializer allow.auto.create.topics exclude.internal.topics
        """
    ),
    "producer": PRODUCER_KEYS - ADMIN_KEYS - {"interceptor.classes"},
    "admin": frozenset[str](),
}


def notices(props: Mapping[str, str], clusters: Sequence[str], *, public_rest: bool) -> list[IgnoredKey]:
    """Return a notice for every key that needs one, in order."""
    found = {key: _word(key, props, clusters) for key in props}
    if EXTENSIONS in props and not public_rest:
        found[EXTENSIONS] = _NO_EXTENSIONS
    return [word.of(key) for key, word in found.items() if word is not None]


def connector_notices(props: Mapping[str, str]) -> list[IgnoredKey]:
    """Return notices for one connector's config, as REST takes it."""
    keys = [key for key in props if not key.startswith(("spark.", "config.providers")) and not _is_of_file(key, props)]
    own_offsets = _OWN_OFFSETS in props
    found = []
    for key in keys:
        suites = _of_text(suites_notice(key, props[key]), "risky")
        if (word := _of_flow(key, own_offsets=own_offsets) or _of_step(key, props) or suites) is not None:
            found.append(word.of(key))
    return found


def _is_of_file(key: str, props: Mapping[str, str]) -> bool:
    """Return whether an ``mm2.properties`` gives each connector this key, as in Java's ``MirrorMakerConfig``: the alias
    of a cluster, its settings for workers, and its addresses and security again for each kind of client."""
    side, _, rest = key.partition(".")
    kind, _, name = rest.partition(".")
    return side in ("source", "target") and (
        (kind == "cluster" and (name == "alias" or name in _WORKER_KNOWN))
        or (kind in _CLIENT_KNOWN and name == BOOTSTRAP_SERVERS)
        or (kind in _CLIENT_KNOWN and name in SECURITY.settings and props.get(f"{side}.cluster.{name}") == props[key])
    )


def _word(key: str, props: Mapping[str, str], clusters: Sequence[str]) -> _Word | None:
    if key in ("clusters", "config.providers") or key.startswith("spark."):
        return None
    if key.startswith("config.providers."):
        return _of_text(provider_notice(key, props))
    flows = (f"{one}->{other}" for one in clusters for other in clusters)
    for prefix in (f"{one}." for one in (*clusters, *flows)):
        if key.startswith(f"{prefix}config.providers."):  # of the worker of that cluster or flow
            own = {one.removeprefix(prefix): value for one, value in props.items() if one.startswith(prefix)}
            return _of_text(provider_notice(key.removeprefix(prefix), {**props, **own}))
    # An unsupported feature that is switched off needs no notice.
    off = key.endswith(".enabled") and props[key].strip().lower() == "false"
    word = _place(key, props, clusters) or _of_step(key, props) or _of_text(suites_notice(key, props[key]), "risky")
    return None if word is _UNSUPPORTED and off else word


def _of_step(key: str, props: Mapping[str, str]) -> _Word | None:
    """Find a setting of a transformation or predicate that the connector does not have."""
    found = _STEP.fullmatch(key)
    if found is None:
        return None
    prefix, names = found[1] or "", found[2]
    text = unlisted_step(f"{names}.{found[3]}", props.get(prefix + names, props.get(names, "")), prefix)
    return _of_text(text, "unknown")


def _of_text(text: str | None, kind: NoticeKind | None = None) -> _Word | None:
    if text is None:
        return None
    return _Word(kind or ("unknown" if text.startswith("is not known") else "pointless"), text)


def _place(key: str, props: Mapping[str, str], clusters: Sequence[str]) -> _Word | None:
    # "us" and "us.west" may both be aliases; the longest match counts.
    prefixes = sorted((f"{alias}." for alias in clusters), key=len, reverse=True)
    source, arrow, rest = key.partition("->")
    if arrow and source in clusters:
        own = next(rest.removeprefix(prefix) for prefix in prefixes if rest.startswith(prefix))
        return _of_flow(own, own_offsets=f"{key.removesuffix(own)}{_OWN_OFFSETS}" in props)
    for prefix in prefixes:
        if key.startswith(prefix):
            return _of_cluster(key.removeprefix(prefix), prefix)
    return _of_all(key, clusters)


def _of_all(key: str, clusters: Sequence[str]) -> _Word | None:
    if key in _TOP_KNOWN or key in ACCESS:
        return None
    if key == "admin.listeners" or key.startswith(ADMIN_HTTPS_PREFIX):
        return _NO_ADMIN
    if key.startswith(HTTPS_PREFIX):
        return _of_text(listener_notice(key.removeprefix(HTTPS_PREFIX), HTTPS_PREFIX))
    if worker_settings.why_ignored(key) is not None:
        return _of_text(worker_settings.why_ignored(key))
    if key.startswith(_OVERRIDES):
        return _ALL_OVERRIDES
    kind = _client_kind(key) if key not in _CONNECTOR_KNOWN else None
    if key in _FLOW_ONLY or key.startswith(_OF_TRANSFORMS) or kind is not None:
        flow, of_flow = f"{clusters[0]}->{clusters[-1]}", key
        if kind == "producer" and not key.startswith("producer.override."):
            of_flow = f"producer.override.{key.removeprefix('producer.')}"  # because that is the one of records
        said = f"has no effect at top level, as in Java; set it for a flow, such as {flow}.{of_flow}"
        return _of_flow(of_flow, own_offsets=False) or _Word("misplaced", said)
    if key.startswith(worker_settings.STORAGE_PREFIXES):
        return _of_text(worker_settings.storage_notice(key))
    if key.startswith(("task.", "worker.")) and key in _WORKER_KNOWN:
        return _UNSUPPORTED if key in _WORKER_UNSUPPORTED else None
    if _is_connection(key):
        return _of_connection(key)
    word = _of_connector(key)
    if word is not None and word.kind == "unknown" and key in _WORKER_KNOWN:
        if key in _WORKER_UNSUPPORTED:
            return _UNSUPPORTED
        return _Word("misplaced", f"has no effect at top level, as in Java; set it for a cluster: {clusters[-1]}.{key}")
    if word is not None and word.kind == "unknown" and key.endswith(".bootstrap.servers"):
        stranger = key.removesuffix(".bootstrap.servers")
        return _Word("unknown", f"has no effect: clusters does not name '{stranger}'")
    return word


def _of_cluster(rest: str, prefix: str) -> _Word | None:
    kind = _client_kind(rest)
    if kind is not None:
        return _of_client(kind, rest.partition(".")[2])
    if rest in _WORKER_UNSUPPORTED:
        return _UNSUPPORTED
    if worker_settings.why_ignored(rest) is not None:
        return _of_text(worker_settings.why_ignored(rest))
    if rest in REST.settings or rest.startswith((HTTPS_PREFIX, ADMIN_HTTPS_PREFIX)):
        return _Word("misplaced", f"has no effect on a cluster, as in Java; set {rest} without a prefix")
    if rest.startswith(_OVERRIDES):
        return _ALL_OVERRIDES
    if rest.startswith(worker_settings.STORAGE_PREFIXES):
        return _of_text(worker_settings.storage_notice(rest, prefix))
    if rest in _WORKER_KNOWN or _is_connection(rest):
        return _of_connection(rest)
    if rest.startswith(worker_settings.CONVERTER_PREFIXES):
        return _of_text(worker_settings.converter_notice(rest))
    return _unknown(rest, _WORKER_KNOWN)


def _of_flow(rest: str, *, own_offsets: bool) -> _Word | None:
    """``own_offsets``: the flow has a topic of source offsets of its own."""
    for side in ("source.", "target."):
        inner = rest.removeprefix(side)
        kind = _client_kind(inner)
        if rest.startswith(side) and kind is not None:
            return _of_flow_client(side[:-1], kind, inner.partition(".")[2])
        if rest.startswith(f"{side}cluster.") and _is_connection(rest.removeprefix(f"{side}cluster.")):
            return _of_connection(rest.removeprefix(f"{side}cluster."))
    for kind in ("producer", "consumer", "admin"):
        if rest.startswith(f"{kind}.override."):
            key = rest.removeprefix(f"{kind}.override.")
            return _of_client(kind, key) if kind == "producer" else _of_override(kind, key, own_offsets=own_offsets)
    # Two of a connector's own keys have the prefix of a client's keys.
    kind = _client_kind(rest) if rest not in _CONNECTOR_KNOWN else None
    if kind is not None:
        return _of_flow_client("source" if kind == "consumer" else "target", kind, rest.partition(".")[2])
    word = _of_connector(rest)
    if word is not None and word.kind == "unknown" and rest in worker_settings.WORKER.settings:
        return _Word("misplaced", f"has no effect on a flow, as in Java; set {rest} for its target cluster")
    return word


def _of_override(kind: str, key: str, *, own_offsets: bool) -> _Word | None:
    """As in Java, Connect's own consumer and admin client of a mirror only serve the topic of its own offsets."""
    word = _of_client(kind, key)
    if word is not None or (own_offsets and (key in OF_CONNECTIONS or _is_connection(key))):
        return word
    of_copy = "consumer of records" if kind == "consumer" else "admin clients that manage topics"
    return _Word("misplaced", f"has no effect on the {of_copy}, as in Java; set {kind}.{key} for that")


def _of_flow_client(side: str, kind: str, key: str) -> _Word | None:
    """Of clients inside a connector, the consumer reads only the source, and the producer writes only offset syncs."""
    if kind == "producer":
        if (word := _of_client(kind, key)) is not None:
            return word
        hint = f"affects only the producer of offset syncs, as in Java; set producer.override.{key} for that of records"
        return _Word("misplaced", hint)
    if kind == "consumer" and side == "target":
        return _UNSUPPORTED
    return _of_client(kind, key)


def _of_client(kind: str, key: str) -> _Word | None:
    if _is_connection(key):
        return _of_connection(key)
    if key in _CLIENT_SUPPORTED[kind]:
        return None
    if key in _CLIENT_POINTLESS[kind]:
        return _FORCED if kind == "consumer" else _POINTLESS
    return _UNSUPPORTED if key in _CLIENT_KNOWN[kind] else _unknown(key, _CLIENT_KNOWN[kind])


def _of_connector(key: str) -> _Word | None:
    if reason := _NOT_NEEDED.get("errors.retry." if key.startswith("errors.retry.") else key):
        return _Word("pointless", f"has no effect here: {reason}")
    if key in SECURITY.settings:
        return _Word("misplaced", "has no effect on a flow, as in Java; set it for a cluster")
    if key in _CONNECTOR_UNSUPPORTED or key.startswith(_CONNECTOR_PREFIXES):
        return _UNSUPPORTED
    if key in _CONNECTOR_KNOWN or key.startswith(("spark.", *_OF_TRANSFORMS)):
        return None
    if key.startswith(worker_settings.CONVERTER_PREFIXES):
        return _of_text(worker_settings.converter_notice(key))
    return _unknown(key, _CONNECTOR_KNOWN)


def _of_connection(key: str) -> _Word | None:
    return _UNSUPPORTED if key in client_settings.IGNORED_SECURITY else None


def _is_connection(key: str) -> bool:
    return key == BOOTSTRAP_SERVERS or key in SECURITY.settings


def _client_kind(key: str) -> str | None:
    kind, dot, _ = key.partition(".")
    return kind if dot and kind in _CLIENT_KNOWN else None


def _unknown(key: str, known: frozenset[str]) -> _Word:
    close = [_RENAMED[key]] if key in _RENAMED else get_close_matches(key, known, 1, 0.8)
    return _Word("unknown", NOT_KNOWN, key, "".join(close))
