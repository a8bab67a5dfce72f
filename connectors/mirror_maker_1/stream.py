"""One stream of MirrorMaker 1: a member of the source's consumer group, and what it copies in each generation.

The rounds are eager, as those of Java's range and round-robin assignors: whoever joins has stopped and stored before,
so whoever is given a partition finds nothing of it under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from connect.core.errors import RetriableError
from connect.kafka.cluster import TopicMetadata
from connect.kafka.concurrency import Scope, unless
from connect.kafka.group import GroupMember, Left, Membership
from connectors.dataplane.plan import TopicPartition
from connectors.mirror_maker_1 import assignors
from connectors.mirror_maker_1.copying import Copying
from connectors.mirror_maker_1.group_store import GroupOffsets
from connectors.mirror_maker_1.lent import Lent
from connectors.mirror_maker_1.listener import Listener
from connectors.mirror_maker_1.target_topics import Refused
from connectors.source.progress import PartitionView
from connectors.source.topology import selected

log = logging.getLogger(__name__)

#: Of the rebalance time-out, after which the group goes on without us. A drain without progress ends earlier by itself.
_STOP_SHARE: Final = 0.8
_AGAIN_S: Final = 1.0
_PREPARE_S: Final = 30.0


class Look(NamedTuple):
    """Partition counts: of all the source's topics, of those that are to be copied, and of the target's topics of these
    names."""

    source: Mapping[str, int]
    here: Mapping[str, int]
    there: Mapping[str, int]


_NOTHING: Final = Look({}, {}, {})


class Stream:
    """See the module."""

    def __init__(self, lent: Lent, listener: Listener | None) -> None:
        self._lent = lent
        self._listener = listener
        self._cluster = lent.clusters.source
        self._round = asyncio.Event()
        self._lost = asyncio.Event()
        self._stopping = asyncio.Event()
        self._copying: Copying | None = None
        self._present = _NOTHING
        #: The counts by which we shared out the partitions of all members; None where another member did.
        self._assigned: Mapping[str, int] | None = None
        #: Topics that were told of, since they are wanted and are not copied.
        self._left_out: set[str] = set()
        self._refused = Refused(lent.name)
        source = lent.source
        client_id = f"{source.group.client_id}-{lent.number}"
        self._member = GroupMember(self._cluster, source.group_settings(client_id), self, lent.leases)
        self._offsets = GroupOffsets(
            self._cluster, source.group.group_id, lambda: (self._member.generation, self._member.member_id)
        )

    def view(self) -> list[PartitionView]:
        """A picture of every partition that is copied here."""
        return self._copying.view() if self._copying is not None else []

    def stop(self) -> None:
        """Ask for a clean end: what was sent is acknowledged and stored, and the group is told."""
        self._stopping.set()
        self._round.set()

    async def run(self) -> None:
        """Until :meth:`stop`.

        Raises:
            PermanentError: the group does not take us, rights are missing, a record can never be sent (SendFailed).
        """
        try:
            await self._prepared()
            while not self._stopping.is_set():
                self._present = await self._looked()
                self._round.clear()
                self._lost.clear()
                if self._stopping.is_set():
                    return
                joined = await self._joined()
                if joined is not None:
                    await self._generation(joined)
        finally:
            await self._member.leave("kafka-mirror-maker was stopped")
            await self._member.close()

    async def _prepared(self) -> None:
        """Where others are at work, whoever joins is given some of it at once: not before Spark is up, so that it goes
        on there until then."""
        with contextlib.suppress(RetriableError):
            if not await self._member.others():
                return
            await unless(self._stopping, self._lent.engine.ready(), f"Spark of {self._name}", _PREPARE_S)

    async def _joined(self) -> Membership | None:
        protocols = [(name, assignors.encode_subscription(self._present.here)) for name in self._lent.source.strategies]
        with contextlib.suppress(Left):
            joined = await unless(self._stopping, self._member.join(protocols), f"join of {self._name}")
            if joined is not None and joined.leader != joined.member:
                self._assigned = None
            return joined
        return None

    async def _generation(self, joined: Membership) -> None:
        """Copy what we were given until the next round, or the end."""
        mine = assignors.decode_assignment(joined.assignment)
        log.info("%s: generation %d gives us %s", self._name, joined.generation, _told(mine))
        await self._tell("assigned", mine)
        copying = self._copying = Copying(self._lent, self._offsets, mine, self._refused, lambda: self._member.holds)
        scope = Scope(self._name)
        running = scope.spawn(copying.run(), f"generation {joined.generation} of {self._name}")
        looking = scope.spawn(self._look_for_changes(), f"topics of {self._name}")
        waiting = [
            scope.spawn(event.wait(), f"{what} of {self._name}")
            for event, what in ((self._round, "round"), (self._lost, "membership"))
        ]
        try:
            await asyncio.wait([running, looking, *waiting], return_when="FIRST_COMPLETED")
            if running.done():
                running.result()
            if not self._lost.is_set():
                copying.stop()
                within_s = _STOP_SHARE * self._lent.source.group.rebalance_timeout_ms / 1000
                await asyncio.wait({running, waiting[1]}, timeout=within_s, return_when="FIRST_COMPLETED")
            if running.done():
                running.result()
            else:
                log.warning("%s: its copy did not end in order; who copies next finds out what had arrived", self._name)
            if looking.done():
                looking.result()
        finally:
            await scope.close()
            self._copying = None
        await self._tell("revoked", mine)

    async def _tell(self, what: str, partitions: Collection[TopicPartition]) -> None:
        if self._listener is not None:
            await self._listener.tell(what, partitions)

    # -- topics -----------------------------------------------------------------------------------

    async def _look_for_changes(self) -> None:
        """Until there are other topics to copy, or other counts of partitions."""
        while True:
            await asyncio.sleep(self._lent.source.look_s)
            try:
                found = await self._look()
            except RetriableError as error:
                log.warning("%s: topics cannot be looked for: %s; trying again", self._name, error)
                continue
            if self._has_other_source(found) or self._has_other_target(found.there):
                log.info("%s: other topics are to be copied now, or in another way", self._name)
                return

    def _has_other_source(self, found: Look) -> bool:
        """Whether other topics are wanted than we joined for, or have other counts than were shared out.

        The leader compares with what it shared out, of all members' topics (``assignmentSnapshot`` of Java's
        ``ConsumerCoordinator``): by a broker that lagged there were fewer partitions, and nobody has the others.
        """
        if self._assigned is None:
            return found.here != self._present.here
        if found.here.keys() != self._present.here.keys():
            return True
        return any(found.source.get(name, 0) != count for name, count in self._assigned.items())

    def _has_other_target(self, counts: Mapping[str, int]) -> bool:
        """Whether a target topic has another number of partitions than when was decided how it is copied, or when we
        joined; one made since is ours."""
        decided = self._copying.target_counts if self._copying is not None else {}
        before = {**self._present.there, **decided}
        return any(counts[name] != count for name, count in before.items() if name in counts)

    async def _looked(self) -> Look:
        while True:
            try:
                found = await self._look()
            except RetriableError as error:
                log.warning("%s: %s; trying again", self._name, error)
                if self._stopping.is_set():
                    return _NOTHING
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_AGAIN_S):
                        await self._stopping.wait()
            else:
                if not found.here:
                    log.warning("%s: the source has no topic that is to be copied yet", self._name)
                return found

    async def _look(self) -> Look:
        source = (await self._cluster.metadata(None)).topics
        self._tell_left_out(source)
        here = {topic.name: _count(topic) for topic in selected(self._lent.settings.options.takes, source)}
        there = (await self._lent.clusters.target.metadata(set(here))).topics if here else {}
        return Look(_counts(source), here, {name: count for name, count in _counts(there).items() if count})

    def _tell_left_out(self, source: Collection[str]) -> None:
        """Once of each, by one of this process's members for all of them."""
        found = self._lent.settings.options.takes.left_out(source) - self._left_out
        if found and self._lent.number == 0:
            log.info(
                "%s: these are taken for internal by their names (__..., ....internal, ...-internal) and not copied, "
                "whatever the command line says: %s",
                self._lent.source.flow,
                _some(sorted(found)),
            )
        self._left_out |= found

    # -- what the member tells --------------------------------------------------------------------

    async def assign(self, protocol: str, leader: str, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        del leader
        wanted = {member: assignors.decode_subscription(member, said) for member, said in members.items()}
        topics = {topic for names in wanted.values() for topic in names}
        known = _counts((await self._cluster.metadata(topics)).topics) if topics else {}
        # A broker that lags may tell of too few: the next look finds that it does.
        counts = {topic: known.get(topic, 0) for topic in topics}
        self._assigned = counts
        shares = assignors.assign(protocol, wanted, counts)
        return {member: assignors.encode_assignment(share) for member, share in shares.items()}

    def rebalance_begun(self) -> None:
        self._round.set()

    def membership_lost(self, reason: str) -> None:
        if not self._stopping.is_set():
            log.warning("%s: %s; joining again", self._name, reason)
        self._lost.set()

    def lease_lost(self) -> None:
        """Copy on until a successor fences us; by key nothing is fenced, so that copy ends before there can be one."""
        if self._copying is not None and self._copying.copies_by_key:
            self.membership_lost("no heartbeat was answered for as long as its lease lasts")

    def heartbeat_answered(self) -> None:
        """Nothing depends on it."""

    @property
    def _name(self) -> str:
        return self._lent.name


def _count(topic: TopicMetadata) -> int:
    return len(topic.partitions)


def _counts(topics: Mapping[str, TopicMetadata]) -> dict[str, int]:
    return {name: _count(topic) for name, topic in topics.items()}


def _told(partitions: Collection[TopicPartition]) -> str:
    return _some([str(one) for one in sorted(partitions)]) or "no partition"


def _some(names: Sequence[str]) -> str:
    most = 10
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
