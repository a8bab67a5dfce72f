"""Run a process of MirrorMaker 1: its streams, on one Spark and one control link, until it is stopped or one ends. A
stream is a member of the source's consumer group, with its copy in each generation. Rebalances are eager, as with
Java's assignors: a member stops and stores before it joins, so no partition is copied twice at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple

from connect.core.errors import RetriableError
from connect.core.wording import named
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.concurrency import Scope, is_set_within, unless
from connect.kafka.group_member import GroupMember, LeftGroup, Membership
from connect.kafka.log.topic_admin import Admin
from connect.kafka.threads import LeaseThread, PluginThread
from connectors.control_link.server import LinkServer, LinkSettings
from connectors.flow_facts import FlowProgress, Tally
from connectors.flow_progress import PartitionView
from connectors.formats.types import FlowName, TopicPartition
from connectors.mirror_maker_1 import consumer_group
from connectors.mirror_maker_1.config import MirrorConsumerSettings, MirrorSettings
from connectors.mirror_maker_1.consumer_group import GroupOffsets
from connectors.mirror_maker_1.generation import Copying
from connectors.mirror_maker_1.process_context import ProcessContext
from connectors.mirror_maker_1.topics import TopicRefusals
from connectors.source.positions.partition_pairs import Clusters
from connectors.source.positions.stored_positions import MissingRights
from connectors.spark.engine import SparkEngine
from connectors.topic_sync.partition_assignment import selected

log = logging.getLogger(__name__)

_WITHIN_S: Final = 10.0
_METHODS: Final = {"assigned": "on_partitions_assigned", "revoked": "on_partitions_revoked"}


class RebalanceListener:
    """Is called before partitions are copied here, and after. Its exceptions are logged, and the copy continues.
    ``made`` is the user's, None if there is none."""

    def __init__(self, made: Any) -> None:
        self._made = made
        self._thread = PluginThread("rebalance listener")

    async def report(self, what: str, partitions: Collection[TopicPartition]) -> None:
        """Call the listener; ``what``: ``assigned`` or ``revoked``."""
        method = getattr(self._made, _METHODS[what], None)
        if method is None:
            return
        try:
            async with asyncio.timeout(_WITHIN_S):
                await self._thread.call(method, sorted(partitions))
        except Exception as error:  # third-party code
            log.error("the rebalance listener failed at %s: %s", _METHODS[what], type(error).__name__)


#: Share of the rebalance timeout, after which the group continues without us. A drain without progress ends earlier.
_STOP_SHARE: Final = 0.8
_AGAIN_S: Final = 1.0
_PREPARE_S: Final = 30.0


class PartitionCounts(NamedTuple):
    """Partition counts of all the source's topics, of topics to be copied, and of the target's topics of the same
    names."""

    source: Mapping[str, int]
    here: Mapping[str, int]
    there: Mapping[str, int]


_NOTHING: Final = PartitionCounts({}, {}, {})


class Stream:
    """A member of the group; see the module."""

    def __init__(self, context: ProcessContext) -> None:
        self._context = context
        self._listener = RebalanceListener(context.settings.options.listener)
        self._cluster = context.clusters.source
        self._round = asyncio.Event()
        self._lost = asyncio.Event()
        self._stopping = asyncio.Event()
        self._copying: Copying | None = None
        self._present = _NOTHING
        #: The counts by which we assigned the partitions of all members; None if another member did.
        self._assigned: Mapping[str, int] | None = None
        #: Topics that were logged because they are wanted and not copied.
        self._left_out: set[str] = set()
        self._refused = TopicRefusals(context.name)
        source = context.source
        client_id = f"{source.group.client_id}-{context.number}"
        self._member = GroupMember(self._cluster, source.group_settings(client_id), self, context.leases)
        self._offsets = GroupOffsets(
            self._cluster, source.group.group_id, lambda: (self._member.generation, self._member.member_id)
        )

    def view(self) -> list[PartitionView]:
        return self._copying.view() if self._copying is not None else []

    def stop(self) -> None:
        """Ask for a clean end: what was sent is acknowledged and stored, and we leave the group."""
        self._stopping.set()
        self._round.set()

    async def run(self) -> None:
        """Run until :meth:`stop`. Raises PermanentError, UnsendableRecord if a record can never be sent."""
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
        """Wait for Spark before joining a group with members, because a new member is assigned partitions at once, and
        their copy would pause until Spark is up."""
        with contextlib.suppress(RetriableError):
            if not await self._member.members():
                return
            await unless(self._stopping, self._context.engine.ready(), f"Spark of {self._name}", _PREPARE_S)

    async def _joined(self) -> Membership | None:
        protocols = [
            (name, consumer_group.encode_subscription(self._present.here)) for name in self._context.source.strategies
        ]
        with contextlib.suppress(LeftGroup):
            joined = await unless(self._stopping, self._member.join(protocols), f"join of {self._name}")
            if joined is not None and joined.leader != joined.member:
                self._assigned = None
            return joined
        return None

    async def _generation(self, joined: Membership) -> None:
        """Copy our partitions until the next rebalance, or the end."""
        mine = consumer_group.decode_assignment(joined.assignment)
        assigned = named(sorted(mine), 10) or "no partition"
        log.info("%s: generation %d assigns us %s", self._name, joined.generation, assigned)
        await self._listener.report("assigned", mine)
        copying = self._copying = Copying(self._context, self._offsets, mine, self._refused, lambda: self._member.holds)
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
                within_s = _STOP_SHARE * self._context.source.group.rebalance_timeout_ms / 1000
                await asyncio.wait({running, waiting[1]}, timeout=within_s, return_when="FIRST_COMPLETED")
            if running.done():
                running.result()
            else:
                log.warning("%s: its copy did not end cleanly; its successor finds out what had arrived", self._name)
            if looking.done():
                looking.result()
        finally:
            await scope.close()
            self._copying = None
        await self._listener.report("revoked", mine)

    async def _look_for_changes(self) -> None:
        """Wait until there are other topics to copy, or other partition counts."""
        while True:
            await asyncio.sleep(self._context.source.look_s)
            try:
                found = await self._look()
            except RetriableError as error:
                log.warning("%s: topics cannot be looked up: %s; retrying", self._name, error)
                continue
            if self._has_other_source(found) or self._has_other_target(found.there):
                log.info("%s: the topics to copy, or their partition counts, have changed", self._name)
                return

    def _has_other_source(self, found: PartitionCounts) -> bool:
        """Whether other topics are wanted than when we joined, or have other counts than were assigned. The leader
        compares with what it assigned, for all members' topics (``assignmentSnapshot`` of Java's
        ``ConsumerCoordinator``): a lagging broker may have shown fewer partitions, and then no member has the
        others."""
        if self._assigned is None:
            return found.here != self._present.here
        if found.here.keys() != self._present.here.keys():
            return True
        return any(found.source.get(name, 0) != count for name, count in self._assigned.items())

    def _has_other_target(self, counts: Mapping[str, int]) -> bool:
        """Whether a target topic has another partition count than when its way of copying was decided, or when we
        joined; topics created since are ours."""
        decided = self._copying.target_counts if self._copying is not None else {}
        before = {**self._present.there, **decided}
        return any(counts[name] != count for name, count in before.items() if name in counts)

    async def _looked(self) -> PartitionCounts:
        while True:
            try:
                found = await self._look()
            except RetriableError as error:
                log.warning("%s: topics could not be read: %s; retrying", self._name, error)
                if self._stopping.is_set():
                    return _NOTHING
                await is_set_within(self._stopping, _AGAIN_S)
            else:
                if not found.here:
                    log.warning("%s: the source has no topic that is to be copied yet", self._name)
                return found

    async def _look(self) -> PartitionCounts:
        source = (await self._cluster.metadata(None)).topics
        self._report_left_out(source)
        here = {topic.name: len(topic.partitions) for topic in selected(self._context.settings.options.takes, source)}
        there = (await self._context.clusters.target.metadata(set(here))).topics if here else {}
        return PartitionCounts(_counts(source), here, {name: count for name, count in _counts(there).items() if count})

    def _report_left_out(self, source: Collection[str]) -> None:
        """Log each topic once, from one of this process's members."""
        found = self._context.settings.options.takes.left_out(source) - self._left_out
        if found and self._context.number == 0:
            log.info(
                "%s: these topics have names of internal topics (__..., ....internal, ...-internal), so they are not "
                "copied, whatever the command line says: %s",
                self._context.source.flow,
                named(sorted(found), 10),
            )
        self._left_out |= found

    async def assign(self, protocol: str, leader: str, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        del leader
        wanted = {member: consumer_group.decode_subscription(member, said) for member, said in members.items()}
        topics = {topic for names in wanted.values() for topic in names}
        known = _counts((await self._cluster.metadata(topics)).topics) if topics else {}
        # A lagging broker may show too few: the next check finds that out.
        counts = {topic: known.get(topic, 0) for topic in topics}
        self._assigned = counts
        shares = consumer_group.assign(protocol, wanted, counts)
        return {member: consumer_group.encode_assignment(share) for member, share in shares.items()}

    def rebalance_begun(self) -> None:
        self._round.set()

    def membership_lost(self, reason: str) -> None:
        if not self._stopping.is_set():
            log.warning("%s: %s; joining again", self._name, reason)
        self._lost.set()

    def lease_lost(self) -> None:
        """Keep copying until a successor fences us; a copy by key is not fenced, so it ends before that."""
        if self._copying is not None and self._copying.copies_by_key:
            self.membership_lost("no heartbeat was answered within the lease")

    def heartbeat_answered(self) -> None:
        """Do nothing: nothing depends on it."""

    @property
    def _name(self) -> str:
        return self._context.name


def _counts(topics: Mapping[str, TopicMetadata]) -> dict[str, int]:
    return {name: len(topic.partitions) for name, topic in topics.items()}


_INSTANCE_BYTES: Final = 5
#: How long the loop may be blocked before heartbeats and leases stop.
_PROGRESS_TIMEOUT_S: Final = 30.0


class MirrorMaker1:
    """Runs the streams of ``settings`` on a started ``engine``, which the caller stops."""

    def __init__(self, settings: MirrorSettings, engine: SparkEngine) -> None:
        self._settings, self._engine = settings, engine
        self._instance = secrets.token_hex(_INSTANCE_BYTES)
        self._streams: dict[FlowName, list[Stream]] = {}
        self._over = asyncio.Event()
        self._leases = LeaseThread(_PROGRESS_TIMEOUT_S)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set. Raises the PermanentError that ended a stream, once the others are stopped
        cleanly."""
        async with AsyncExitStack() as closing:
            self._leases.start()
            closing.push_async_callback(self._leases.stop)
            links = LinkServer(LinkSettings(), self._leases, self._engine.code)
            await links.start()
            closing.push_async_callback(links.stop)
            admin = Admin(self._settings.target, "target", fewer_replicas="set their default.replication.factor lower")
            closing.push_async_callback(admin.close)
            # Independently, so that a source that does not answer delays no other.
            async with Scope("kafka-mirror-maker") as scope:
                sources = [
                    scope.spawn(self._copy(source, closing, links, admin), f"copy {source.flow}")
                    for source in self._settings.sources
                ]
                stopping = scope.spawn(stop.wait(), "stop of kafka-mirror-maker")
                await asyncio.wait([*sources, stopping], return_when="FIRST_COMPLETED")
                self._over.set()
                await asyncio.wait(sources)
                _raise_first(sources)

    def progress(self) -> list[FlowProgress]:
        return [
            FlowProgress(flow, "running", 0, Tally.of([one for stream in streams for one in stream.view()]))
            for flow, streams in self._streams.items()
        ]

    async def _copy(
        self, source: MirrorConsumerSettings, closing: AsyncExitStack, links: LinkServer, admin: Admin
    ) -> None:
        """Run the streams of one source until the end. Raises the error that ended one of them."""
        clusters = await self._clusters(source, closing)
        if clusters is None:
            return
        shared = self._instance, self._engine, links, self._leases, clusters, admin
        streams = self._streams[source.flow_name] = [
            Stream(ProcessContext(self._settings, source, number, *shared))
            for number in range(self._settings.options.streams)
        ]
        async with Scope(source.flow) as scope:
            running = [scope.spawn(stream.run(), f"{source.flow} stream {at}") for at, stream in enumerate(streams)]
            over = scope.spawn(self._over.wait(), f"end of {source.flow}")
            await asyncio.wait([*running, over], return_when="FIRST_COMPLETED")
            for stream in streams:
                stream.stop()
            # The others end cleanly; then the error that ended one of them is raised.
            await asyncio.wait(running)
            _raise_first(running)

    async def _clusters(self, source: MirrorConsumerSettings, closing: AsyncExitStack) -> Clusters | None:
        """Return both clusters once they answer; None if the process ended before."""
        here = Cluster(source.connection.with_client_id(f"{source.group.client_id}-admin"), source.name)
        closing.push_async_callback(here.close)
        there = Cluster(self._settings.target.with_client_id(f"{self._settings.target.client_id}-admin"), "target")
        closing.push_async_callback(there.close)
        for cluster in (here, there):
            if not await reached(cluster, self._over):
                return None
        return Clusters(here, there, missing_rights=MissingRights(source.flow, f"{source.group.group_id}-"))


def _raise_first(ended: Iterable[asyncio.Task[None]]) -> None:
    """Raise the error of the first task that failed; log the errors of the others."""
    failed = [error for task in ended if (error := task.exception()) is not None]
    for error in failed[1:]:
        log.error("%s", error)
    if failed:
        raise failed[0]


async def reached(cluster: Cluster, stop: asyncio.Event) -> bool:
    """Whether a broker answers before ``stop`` is set. Raises SecurityError if a broker refuses us."""

    async def reach() -> bool:
        await cluster.wait_reachable(lambda error: log.warning("cluster is not reachable: %s; retrying", error))
        return True

    return await unless(stop, reach(), f"reach cluster {cluster.name}") is not None
