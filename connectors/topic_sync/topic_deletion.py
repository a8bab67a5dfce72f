"""``topic.deletion.policy = delete-after``: delete remote topics some time after their source topics were deleted."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from connect.api.policy import ReplicationPolicy
from connect.core.audit import state_changed
from connect.core.errors import PermanentError
from connect.core.wording import in_utc
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.concurrency import wall_ms
from connect.kafka.log.topic_admin import Admin
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.formats.position import KeyKind, text
from connectors.internal_topics import RecordKind, Records, read_all_positions, record_settings
from connectors.topic_sync.cluster_changes import DeleteTopic
from connectors.transforms.target_names import RemoteNames

log = logging.getLogger(__name__)

#: Checks within the delay, and their shortest and longest interval.
_LOOKS: Final = 10
_BETWEEN_S: Final = (1.0, 600.0)


class Copy(NamedTuple):
    """A connector has copied ``topic`` of the source into ``remote``, according to its stored positions."""

    connector: str
    topic: str
    topic_id: UUID | None
    remote: str
    remote_id: UUID | None


@dataclass(frozen=True, slots=True)
class DeletionPlan:
    """Source topics that are newly deleted, those that need nothing any more, and deletions, now or later."""

    newly: frozenset[str]
    settled: frozenset[str]
    deletions: tuple[DeleteTopic, ...]

    def due(self, now_ms: int) -> list[DeleteTopic]:
        return [change for change in self.deletions if change.due_ms <= now_ms]


def deletable(
    connector: str,
    names: RemoteNames,
    should_mirror: Callable[[str], bool],
    copies: Collection[Copy],
    source: Collection[str],
    target: Mapping[str, UUID | None],
) -> dict[str, str]:
    """Return remote topics by source topic, if the source does not list the source topic. ``connector`` has filled the
    remote topic and would fill it now, its id is still the same, and no topic that the source lists fills it or has
    records sent there. ``copies``: of all connectors. ``source``: the source's topics. ``target``: the target's topics
    and their ids. Without ids a recreated topic looks like ours, so nothing is deleted."""
    ours = {
        copy
        for copy in copies
        if copy.connector == connector
        and copy.topic not in source
        and copy.remote_id is not None
        and target.get(copy.remote) == copy.remote_id
        and should_mirror(copy.topic)
        and not names.policy.is_heartbeats_topic(copy.topic)
        and copy.remote in _sent_to(names, copy.topic)[:1]
    }
    filled = {(copy.remote, copy.remote_id) for copy in copies if copy.topic in source}
    sent = {name for topic in source for name in _sent_to(names, topic)} if ours else set()
    return {
        copy.topic: copy.remote
        for copy in ours
        if copy.remote not in sent and filled.isdisjoint({(copy.remote, copy.remote_id), (copy.remote, None)})
    }


def is_copied_cluster(
    policy: ReplicationPolicy, copied: Iterable[tuple[str, UUID | None]], listed: Mapping[str, UUID | None]
) -> bool:
    """Whether the cluster that answers still has a topic that was copied, by its id. A rebuilt cluster, or another one
    with the same address, has none, whatever the names of its topics: the remote topics are then the only copy. Without
    ids (before Kafka 2.8) a name counts, except heartbeats, which every mirror creates. ``copied``: source topics and
    their ids, according to stored positions. ``listed``: the source's topics now."""
    if any(listed.values()):
        return any(topic_id is not None and listed.get(topic) == topic_id for topic, topic_id in copied)
    return any(topic in listed and not policy.is_heartbeats_topic(topic) for topic, _ in copied)


def _sent_to(names: RemoteNames, topic: str) -> tuple[str, ...]:
    try:
        return names.all_of(topic)
    except PermanentError:
        return ()


def plan_deletions(gone: Mapping[str, str], since_ms: Mapping[str, int], now_ms: int, delay_ms: int) -> DeletionPlan:
    """Plan. ``gone``: remote topics by deleted source topics. ``since_ms``: when they were found deleted, if known."""
    newly = frozenset(gone.keys() - since_ms.keys())
    deletions = []
    for topic in sorted(gone):
        since = since_ms.get(topic, now_ms)
        deletions.append(DeleteTopic(gone[topic], topic, since, since + delay_ms))
    return DeletionPlan(newly, frozenset(since_ms.keys() - gone.keys()), tuple(deletions))


_SINCE: Final = struct.Struct(">q")  # milliseconds since 1970


#: Milliseconds since 1970, by source topic.
GONE: Final[RecordKind[str, int]] = RecordKind(
    KeyKind.GONE,
    b"gone",
    lambda connector, topic: text(connector) + text(topic),
    lambda reader: (reader.text(), reader.text()),
    _SINCE.pack,
    lambda reader: reader.fixed(_SINCE)[0],
)


class TopicDeletion:
    def __init__(
        self, settings: MirrorSourceSettings, delay_ms: int, source: Cluster, target: Cluster, admin: Admin
    ) -> None:
        self._settings, self._delay_ms, self._source, self._target = settings, delay_ms, source, target
        self._admin = admin
        self._records = Records(GONE, target, admin, record_settings(settings))
        self._since_ms: dict[str, int] | None = None
        self._said_unknown = False
        self._has_read = False
        #: Source topics that have been listed, or mirrored.
        self._known: set[str] = set()
        #: Of the target's topics by name, as of the last plan.
        self._remote_ids: Mapping[str, UUID | None] = {}

    @property
    def interval_s(self) -> float:
        """How often to call :meth:`run`, in seconds."""
        shortest, longest = _BETWEEN_S
        return min(max(self._delay_ms / 1000 / _LOOKS, shortest), longest)

    def expect(self, topics: Collection[str]) -> None:
        """Add source topics that were mirrored: if one is not listed, the next runs look for it."""
        self._known.update(topics)

    async def run(self) -> None:
        """Find deleted source topics, record when they were first missing, and delete remote topics that are due.
        Raises RetriableError if a cluster does not answer, SecurityError if a right is missing."""
        if self._since_ms is None:
            self._since_ms = await self._records.load()
        now_ms = wall_ms()
        plan = await self._plan(self._since_ms, now_ms)
        newly = dict.fromkeys(plan.newly, now_ms)
        if newly or plan.settled:
            await self._records.store({**newly, **dict.fromkeys(plan.settled)})
            self._since_ms.update(newly)
            for topic in plan.settled:
                del self._since_ms[topic]
                log.info("%s: topic %s is back, or its remote topic was deleted: nothing to delete", self._flow, topic)
        for change in plan.deletions:
            if change.source_topic in newly:
                log.warning(
                    "%s: topic %s was deleted from cluster %s; unless it comes back, its remote topic %s will be "
                    "deleted at %s (topic.deletion.policy)",
                    self._flow,
                    change.source_topic,
                    self._settings.source_alias,
                    change.topic,
                    in_utc(change.due_ms),
                )
        for change in plan.due(now_ms):
            await self._delete(change)

    async def plan(self) -> DeletionPlan:
        """Return what :meth:`run` would find now, and change nothing. Raises RetriableError or SecurityError."""
        return await self._plan(await self._records.read(), wall_ms())

    async def _plan(self, since_ms: Mapping[str, int], now_ms: int) -> DeletionPlan:
        target = (await self._target.metadata(None)).topics
        return plan_deletions(await self._gone(target), since_ms, now_ms, self._delay_ms)

    @property
    def _flow(self) -> str:
        return self._settings.flow

    async def _gone(self, target: Mapping[str, TopicMetadata]) -> dict[str, str]:
        """Return remote topics of this flow by source topics that no longer exist."""
        settings = self._settings
        listed = (await self._source.metadata(None)).topics
        if self._has_read and self._known <= listed.keys():  # none is missing, so stored positions are not needed
            self._known |= listed.keys()
            return {}
        copies = await self._copies()
        self._has_read = True
        ours = [copy for copy in copies if copy.connector == settings.name]
        self._known |= listed.keys() | {copy.topic for copy in ours}
        ids = self._remote_ids = {name: topic.topic_id for name, topic in target.items()}
        maybe = deletable(settings.name, settings.names, settings.should_mirror, copies, listed, ids)
        if not maybe or not self._is_copied_cluster(ours, listed):
            return {}
        asked = (await self._source.metadata(maybe.keys())).topics
        return {topic: remote for topic, remote in maybe.items() if topic in asked and not asked[topic].exists}

    def _is_copied_cluster(self, ours: Sequence[Copy], listed: Mapping[str, TopicMetadata]) -> bool:
        ids = {name: topic.topic_id for name, topic in listed.items()}
        known = is_copied_cluster(self._settings.names.policy, [(copy.topic, copy.topic_id) for copy in ours], ids)
        if not known and not self._said_unknown:
            log.warning(
                "%s: cluster %s has none of the topics that were copied from it, by their ids: it is another cluster "
                "or was recreated, or DESCRIBE on its topics is missing; no remote topic is deleted "
                "(topic.deletion.policy)",
                self._flow,
                self._settings.source_alias,
            )
        self._said_unknown = not known
        return known

    async def _copies(self) -> set[Copy]:
        """Read the copies of all connectors of this source."""
        positions = await read_all_positions(self._target, self._settings.map_topic)
        return {
            Copy(connector, one.source_topic, one.source_topic_id, one.target_topic, one.target_topic_id)
            for (connector, _), one in positions.items()
        }

    async def _delete(self, change: DeleteTopic) -> None:
        # Reading the positions may have taken minutes, and a topic is deleted by its name.
        now = (await self._target.metadata({change.topic})).topics.get(change.topic)
        if now is None or now.topic_id != self._remote_ids.get(change.topic):
            log.warning("%s: %s is not deleted: it was deleted or recreated meanwhile", self._flow, change.topic)
            return
        said = "%s: deleting %s: its source topic %s was deleted at %s (topic.deletion.policy)"
        log.warning(said, self._flow, change.topic, change.source_topic, in_utc(change.gone_since_ms))
        outcome = (await self._admin.delete_topics([change.topic])).get(change.topic)
        if outcome is None:
            said = "%s: deleted %s, because topic %s was deleted (topic.deletion.policy)"
            about = self._flow, change.topic, change.source_topic
            state_changed(log, logging.WARNING, "topic-deleted", change.topic, said, *about)
        elif isinstance(outcome, PermanentError):
            log.error("%s: remote topic was not deleted: %s", self._flow, outcome)
        else:
            log.warning("%s: remote topic was not deleted: %s; retrying", self._flow, outcome)
