"""Select the topics that MirrorMaker 1 copies from its command line's lists, as the source has them now, and create
those that the target lacks, with the source's partition count and settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from connect.core.config.java_regex import UnsupportedRegex, compile_java
from connect.core.errors import ConfigError, HeliographError, PermanentError, SecurityError
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.log.topic_admin import Admin, describe
from connectors.dataplane.batches import error_codes
from connectors.dataplane.log_divergence import known_topics
from connectors.filters import DefaultConfigPropertyFilter
from connectors.source.positions.partition_pairs import Clusters
from connectors.topic_sync.cluster_changes import CreateTopic, Refusals, make_topics
from connectors.topic_sync.remote_topics import configs_of_new

_QUOTES: Final = "\"'"
_INTERNAL_ENDS: Final = ("-internal", ".internal")


def is_internal(topic: str) -> bool:
    """Whether a topic is Kafka's own, or a mirror's internal topic, which under its own name would be mistaken for the
    target's."""
    return topic.startswith("__") or topic.endswith(_INTERNAL_ENDS)


def pattern_of(raw: str) -> str:
    """Return the regular expression of a list: commas mean alternatives, blanks and surrounding quotes are ignored
    (Kafka's ``TopicFilter``)."""
    text = raw.strip().replace(",", "|").replace(" ", "")
    return text.lstrip(_QUOTES).rstrip(_QUOTES)


@dataclass(frozen=True, slots=True)
class TopicList:
    """Says whether a topic is copied: its user ``wants`` it and it is not internal."""

    wants: Callable[[str], bool]

    def __call__(self, topic: str) -> bool:
        return not is_internal(topic) and self.wants(topic)

    def left_out(self, topics: Iterable[str]) -> set[str]:
        """Return topics that are wanted but not copied."""
        return {topic for topic in topics if is_internal(topic) and self.wants(topic)}


def is_lone_asterisk(include: str | None) -> bool:
    """Whether a list is ``*``, which Kafka's documentation of 0.8 to 2.8 has for all topics, and not an expression."""
    return include is not None and pattern_of(include) == "*"


def takes(include: str | None, exclude: str | None, option: str = "") -> TopicList:
    """Select topics by exactly one of the two lists. ``option`` is the one that the user wrote. Raises ConfigError if
    both or none are given, or the expression is invalid."""
    if (include is None) == (exclude is None):
        raise ConfigError("exactly one of --include (--whitelist) and --exclude (--blacklist) is required", "include")
    default, raw = ("--include", include) if include is not None else ("--exclude", exclude)
    written = option or default
    key, expression = written.lstrip("-"), ".*" if is_lone_asterisk(include) else pattern_of(raw or "")
    if not expression:
        raise ConfigError(f"{written} names no topic", key)
    try:
        matches = compile_java(expression).fullmatch
    except UnsupportedRegex as error:
        about = "it is a Java regular expression, in which .* matches any text"
        raise ConfigError(f"{written} {raw}: {error}; {about}", key) from None
    if include is not None:
        return TopicList(lambda topic: matches(topic) is not None)
    return TopicList(lambda topic: matches(topic) is None)


#: How long to ask for a topic that a broker may not know yet; later it is looked up again.
_SHOWN_WITHIN_S: Final = 2.0


async def shown(source: Cluster, names: Collection[str]) -> dict[str, TopicMetadata]:
    """Return those of ``names`` that the source has. Errors are those of ``source.topics``."""
    known = await known_topics(source, names, _SHOWN_WITHIN_S)
    return dict((await source.topics(known)).topics)


log = logging.getLogger(__name__)

_APPEAR_S: Final = 30.0
_LOOK_S: Final = 0.1
#: The brokers' own default.
_REPLICATION_FACTOR: Final = -1
_PROPERTIES: Final = DefaultConfigPropertyFilter((), source_defaults=False)


class TopicRefusals(Refusals):
    """Reasons why topics cannot be created on the target, each logged once by one member."""

    def __init__(self, flow: str) -> None:
        super().__init__(flow)
        self._not_shown: Collection[str] = ()

    def take(self, topic: str, error: Exception) -> None:
        """Log a refusal. Raises it if a right is missing."""
        if isinstance(error, SecurityError):
            raise error
        rest = f"{topic} is not copied until the target has it; the other topics are. It is retried"
        choice = "Create the topic there yourself, or exclude it with --include or --exclude"
        super().take(topic, PermanentError(f"{error}; {rest}. {choice}"))

    def not_shown(self, late: Collection[str]) -> None:
        """Log topics that were created, by us or others, but that the target does not show."""
        if new := sorted(set(late).difference(self._not_shown)):
            names = ", ".join(new)
            log.error("%s: the target does not show %s yet, the other topics are copied; retrying", self.flow, names)
        self._not_shown = late


async def make_missing(
    clusters: Clusters,
    admin: Admin,
    wanted: Mapping[str, TopicMetadata],
    refused: TopicRefusals,
    stopping: asyncio.Event,
) -> dict[str, TopicMetadata]:
    """Create missing topics, and return the target's topics of these names that exist, after at most half a minute.
    ``wanted``: the source's; ``refused`` logs the others; with ``stopping`` nothing is waited for. Raises
    RetriableError if a cluster does not answer, and SecurityError if a right is missing; the error names it."""
    found = await _there(clusters, wanted)
    missing = [name for name in wanted if name not in found]
    if not missing:
        return found
    changes = []
    for name, known in (await describe(clusters.source, missing)).items():
        # Without its settings a compacted topic would lose records.
        if isinstance(known, HeliographError):
            refused.take(name, known)
        else:
            configs = configs_of_new(known, _PROPERTIES)
            changes.append(CreateTopic(name, name, len(wanted[name].partitions), _REPLICATION_FACTOR, configs))
    late = made = {change.topic for change in await make_topics(admin, changes, refused)}
    until_s = asyncio.get_running_loop().time() + _APPEAR_S
    while late and not stopping.is_set():
        await asyncio.sleep(_LOOK_S)
        found = await _there(clusters, wanted)
        late = made - found.keys()
        if asyncio.get_running_loop().time() > until_s:
            break
    if not stopping.is_set():
        refused.not_shown(late)
    return found


async def _there(clusters: Clusters, wanted: Mapping[str, TopicMetadata]) -> dict[str, TopicMetadata]:
    known = (await clusters.target.metadata(set(wanted))).topics
    # Otherwise a hidden topic would count as one that was not created.
    if hidden := {name for name, topic in known.items() if topic.error_code == error_codes.TOPIC_AUTHORIZATION_FAILED}:
        await clusters.target.topics(hidden)
    return {name: topic for name, topic in known.items() if not topic.error_code and topic.partitions}
