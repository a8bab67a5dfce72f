"""Stop a flow's writers and then the flow: deny writes on the source, copy to its end, and fence the copy.

The ACLs that deny writes are recognized by their form, and removed again. After the fence nothing more of the flow
reaches the target, in whatever process it ran.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from connect.api.policy import ReplicationPolicy
from connect.core.errors import PermanentError, RetriableError
from connect.core.wording import counted, named
from connect.kafka import authorization
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.concurrency import gather_limited
from connect.kafka.log.committed_offsets import Partition, group_state
from connect.kafka.log.log_ranges import Range, merged
from connect.kafka.log.offsets import EARLIEST, LATEST, list_offsets
from connect.kafka.log.topic_admin import is_perhaps_true
from connect.kafka.log.transactions import FenceRefused, fence
from connect.wire import batch as wire
from connectors.dataplane import fetch_api
from connectors.dataplane.batches import error_codes
from connectors.dataplane.log_divergence import known_topics
from connectors.failover.clusters_and_lease import Site, read_positions
from connectors.failover.log_comparison import is_kept
from connectors.flow_progress import FlowLag, PartitionLag, together
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.lag_reader import LagReader

#: With this setting Kafka's authorizer opens a resource without ACLs to everyone; its first ACL closes it.
_OPEN: Final = "allow.everyone.if.no.acl.found"
_KEEP_OPEN: Final = (
    "Add an ACL that keeps each open (kafka-acls --add --allow-principal User:* --operation All --topic NAME)"
)


def rules(topics: Collection[str]) -> list[authorization.AclBinding]:
    """Return the ACLs that deny writes to everyone; the cluster's super users can still write."""
    return [authorization.refusal_of_writers(topic) for topic in sorted(topics)]


class FirstRules(NamedTuple):
    """Topics without ACLs. ``why_not``: no ACL may be added; ``doubt``: that is not known. Empty: no objection."""

    why_not: str = ""
    doubt: str = ""


async def first_rules(source: Cluster, topics: Collection[str]) -> FirstRules:
    """Check what a first ACL would do: on a topic that is open for want of ACLs it also denies readers, the mirror and
    lag readers. Raises what :func:`connect.kafka.authorization.describe_acls` raises."""
    is_open = await is_perhaps_true(source, _OPEN) if topics else False
    if is_open is False:
        return FirstRules()
    # Any ACL, even one that denies, closes its topic to principals it does not name (Kafka StandardAuthorizerData).
    there = await authorization.describe_acls(source, authorization.AclFilter(resource_type="TOPIC"))
    closing = named(sorted(topic for topic in topics if not any(rule.is_of_topic(topic) for rule in there)))
    if not closing:
        return FirstRules()
    if is_open:
        return FirstRules(
            f"cluster {source.name} opens topics without ACLs to everyone ({_OPEN}), or does not show that setting: "
            f"the ACL that denies writes to {closing} would be the first, and also deny readers and the mirror. "
            f"{_KEEP_OPEN}, or stop the writers without --deny-writes"
        )
    return FirstRules(
        doubt=f"cluster {source.name} does not show this command {_OPEN}, because it lacks DESCRIBE_CONFIGS on the "
        f"cluster. If a broker's file says true, the ACL that denies writes to {closing} is the first, and also denies "
        f"readers and the mirror. Check that file first. {_KEEP_OPEN} if it says true"
    )


async def denied_already(source: Cluster, topics: Collection[str]) -> set[str]:
    """Return topics that have exactly this ACL. Raises what :func:`connect.kafka.authorization.describe_acls` does."""
    there = await authorization.describe_acls(
        source, authorization.AclFilter(resource_type="TOPIC", principal=authorization.ALL_USERS, permission="DENY")
    )
    return {one.resource_name for one in rules(topics) if one in there}


async def deny_writes(source: Cluster, topics: Collection[str]) -> None:
    """Add the ACLs. Raises SecurityDisabled if the cluster has no authorizer, and what
    :func:`connect.kafka.authorization.create_acls` raises."""
    _raise_first((await authorization.create_acls(source, rules(topics))).values())


async def allow_writes(source: Cluster, topics: Collection[str]) -> None:
    """Delete the ACLs. Raises SecurityDisabled if the cluster has no authorizer."""
    _raise_first((await authorization.delete_acls(source, rules(topics))).values())


def _raise_first(outcomes: Collection[Exception | None]) -> None:
    for error in outcomes:
        if error is not None:
            raise error


#: Between two checks.
LOOK_S: Final = 1.0
#: A stopped task hands its positions over within this time, or cannot, for example because its source is gone.
_HAND_OVER_S: Final = 15.0
_HEADERS: Final = fetch_api.FetchLimits(500, 1, 1 << 20, 1 << 20, fetch_api.READ_UNCOMMITTED)
_V2: Final = 2

#: Reports progress to the operator's terminal.
Report = Callable[[str], None]
StillOurs = Callable[[], None]


class FlowControl(Protocol):
    """The source connector of one flow, over the REST API of its workers. Raises HeliographError. ``start_command`` is
    what an operator runs to start it."""

    start_command: str

    async def state(self) -> str:
        """Return Connect's state: RUNNING, STOPPED, ..."""

    async def stop(self) -> None: ...

    async def resume(self) -> None: ...


def how_to_start(control: FlowControl | None) -> str:
    """Return what an operator does to start a stopped flow."""
    if control is None:
        return "start its mirror and, if its connectors are STOPPED, run heliograph connectors resume"
    return control.start_command


async def drain(
    site: Site,
    report: Report,
    still_ours: StillOurs,
    timeout_s: float,
    stalled_s: float = 60.0,
    denied: Collection[str] = (),
    left_out: Collection[str] = (),
) -> None:
    """Wait until the flow has copied all that the source holds. Writes to ``denied`` topics are denied; ``left_out``
    partitions, such as ``orders-0``, are not waited for. Raises PermanentError if a denied topic exists but is no
    longer visible, so what is left to copy is unknown, and RetriableError if the flow takes longer than ``timeout_s``,
    or copies nothing for ``stalled_s``."""
    clock = asyncio.get_running_loop().time
    give_up_s = clock() + timeout_s
    least, moved_s, said = -1, clock(), ""
    while True:
        still_ours()
        now = await behind(site, left_out)
        if now.lag.unknown:
            raise RetriableError("; ".join(f"{name}: {why}" for name, why in now.lag.unknown.items()))
        unseen = {*denied} - {one.topic for one in now.lag.partitions}
        # Named in a request, a deleted topic is distinguished from a hidden one. Of a topic that was deleted since its
        # writes were denied nothing is left to copy.
        if hidden := await known_topics(site.source, {one for one in unseen if site.flow.should_mirror(one)}):
            raise PermanentError(
                f"cluster {site.flow.source_alias} hides {named(sorted(hidden))}, whose writers it refuses. Grant this "
                "command and the mirror READ on each topic, or allow writes with heliograph undo"
            )
        denied = {*denied} - unseen
        if now.is_copied:
            count = counted(len(now.lag.partitions), "partition")
            report(f"{site.flow.flow} has copied everything: 0 records behind in {count}")
            return
        if now.records != least or now.open:
            least, moved_s = now.records, clock()
        words = f"{site.flow.flow}: {now}, waiting until all is copied"
        if words != said:
            report(words)
            said = words
        if clock() > give_up_s:
            raise RetriableError(
                f"{words}; not done within {timeout_s:g} s. Stop its producers, or deny their writes (--deny-writes); "
                "the cluster aborts an abandoned transaction after its transaction.timeout.ms"
            )
        if clock() - moved_s > stalled_s:
            raise RetriableError(f"{words}; nothing was copied for {stalled_s:g} s. Check that the flow runs")
        await asyncio.sleep(LOOK_S)


async def stop_flow(
    site: Site, control: FlowControl | None, report: Report, still_ours: StillOurs, timeout_s: float
) -> None:
    """Stop the flow through its workers, or wait until it is stopped. Raises RetriableError after ``timeout_s``."""
    name = site.flow.flow
    if control is not None:
        await control.stop()
        report(f"{name}: asked its workers to stop it")
    clock = asyncio.get_running_loop().time
    began_s, reported = clock(), False
    while True:
        still_ours()
        why = await why_running(site, control)
        waited_s = clock() - began_s
        # What tasks wrote without handing over is found in the log.
        if not why and (control is None or waited_s > _HAND_OVER_S or _are_handed_over(await read_positions(site))):
            break
        if why and not reported and control is None:
            report(f"{name} runs: {why}. Stop it now (SIGTERM to its mirror); this command waits")
            reported = True
        if waited_s > timeout_s:
            raise RetriableError(
                f"{name} still runs after {timeout_s:g} s: {why or 'its tasks hand positions over'}. "
                "Stop its mirror, or name a worker with --rest, then run this again"
            )
        await asyncio.sleep(LOOK_S)
    report(f"{name} is stopped")


async def why_running(site: Site, control: FlowControl | None) -> str:
    """Why the flow counts as running; empty if it does not."""
    if control is not None:
        state = await control.state()
        return "" if state == "STOPPED" else f"its connector is {state}"
    members = (await group_state(site.target, site.flow_workers)).members
    if not members:
        return ""
    positions = await read_positions(site)
    if positions and _are_handed_over(positions):
        return ""
    count = counted(len(members), "member")
    return f"group {site.flow_workers} on cluster {site.target.name} has {count}, such as {members[0]}"


async def why_back_runs(site: Site, control: FlowControl | None) -> str:
    """Why the reverse flow counts as running; empty if it does not."""
    back = site.turned()
    if control is None and not back.flow.enabled and not await read_positions(back):
        return ""  # its worker group then only emits heartbeats
    return await why_running(back, control)


def _are_handed_over(positions: Mapping[TopicPartition, Position]) -> bool:
    return all(one.is_handed_over for one in positions.values())


class CopiedEnd(NamedTuple):
    """The target offset after the last record that the flow wrote. ``surplus`` records, at ``written``, came after its
    last stored position."""

    offset: int
    surplus: int = 0
    written: tuple[Range, ...] = ()


def written_on(
    positions: Mapping[TopicPartition, Position], ends: Mapping[TopicPartition, CopiedEnd]
) -> dict[TopicPartition, list[Range]]:
    """Return by target partition what a flow wrote after its stored position; ``ends`` are by source partition."""
    found: dict[TopicPartition, list[Range]] = {}
    for one, position in positions.items():
        found.setdefault(position.target, []).extend(ends[one].written if one in ends else ())
    return {target: merged(ranges) for target, ranges in found.items()}


async def copied_ends(
    site: Site, report: Report | None = None, *, among: Collection[TopicPartition] | None = None
) -> dict[TopicPartition, CopiedEnd]:
    """Return the ends by source partition of those copied to ``among`` these target partitions (None: all). With
    ``report``, writers that did not hand over are fenced first, and reported. Raises what
    :func:`connect.kafka.log.transactions.fence` raises."""
    positions = {
        one: position
        for one, position in (await read_positions(site)).items()
        if among is None or position.target in among
    }
    if report is not None:
        await fence_writers(site, report)
    if not positions:
        return {}
    topics = (await site.target.metadata({position.target_topic for position in positions.values()})).topics
    ends = await gather_limited(
        lambda position: _end_of(site.target, position, topics.get(position.target_topic)), positions.values()
    )
    return dict(zip(positions, ends, strict=True))


async def fence_writers(site: Site, report: Report) -> None:
    """Fence writers of the flow that ended without handing over."""
    unclean = [one for one in (await read_positions(site)).values() if not one.is_handed_over and one.transactional_id]
    there = await known_topics(site.target, {one.target_topic for one in unclean})
    by_id: dict[str, list[tuple[str, int]]] = {}
    for one in unclean:
        # A deleted topic has no log for a marker, and without a leader nothing is written.
        known = there[one.target_topic].partitions.get(one.target_partition) if one.target_topic in there else None
        if known is not None and known.leader >= 0:
            by_id.setdefault(one.transactional_id, []).append((one.target_topic, one.target_partition))

    async def block_writers(name: str) -> None:
        try:
            await fence(site.target, name, by_id[name])
        except FenceRefused as error:
            report(f"{site.flow.flow}: its last writer cannot be fenced: {error}")
        else:
            report(f"{site.flow.flow}: its last writer, {name}, did not hand over and was fenced")

    await gather_limited(block_writers, sorted(by_id))


async def _end_of(target: Cluster, position: Position, known: TopicMetadata | None) -> CopiedEnd:
    """Find the end of the last batch of a position's writer: the log shows what came after the last commit.
    ``known`` is the topic as it is now."""
    name, index = position.target_topic, position.target_partition
    if known is None or not is_kept(position, known):
        return CopiedEnd(0)  # recreated or deleted: nothing was copied into it yet
    end = CopiedEnd(position.target_end)
    if position.is_handed_over or position.producer_id < 0 or position.is_atomic:
        return end  # what an exactly-once flow had not stored was aborted
    log_end = (await list_offsets(target, [(name, index)], LATEST))[name, index]
    at = max(position.target_end, (await list_offsets(target, [(name, index)], EARLIEST))[name, index])
    topic = fetch_api.TopicOnWire(name, known.topic_id)
    while at < log_end:
        row = await fetch_api.fetch_from_leader(target, topic, index, at, _HEADERS)
        if row.error_code:
            raise RetriableError(
                f"cluster {target.name}: {name}-{index} cannot be read: {error_codes.code_name(row.error_code)}"
            )
        before = at
        for start, size, magic in wire.extents(row.records):
            if magic != _V2:
                raise PermanentError(f"cluster {target.name}: {name}-{index} holds batches older than format 2")
            header = wire.read_header(row.records[start : start + size])
            at = header.last_offset + 1
            of_writer = (header.producer_id, header.producer_epoch) == (position.producer_id, position.producer_epoch)
            if of_writer and not header.is_control:
                written = merged([*end.written, (header.base_offset, at)])
                end = CopiedEnd(at, end.surplus + header.record_count, tuple(written))
        if at == before:
            return end  # the rest is not replicated yet
    return end


@dataclass(frozen=True, slots=True)
class Behind:
    """The lag. ``open``: partitions with records that wait for the end of their transaction."""

    lag: FlowLag
    open: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        return together(self.lag.partitions).records

    @property
    def is_copied(self) -> bool:
        return not self.records and not self.open

    def __str__(self) -> str:
        if self.records:
            return f"{counted(self.records, 'record')} behind"
        return f"a producer's transaction is open in {named(self.open, 1)}" if self.open else "0 records behind"


async def behind(site: Site, left_out: Collection[str] = ()) -> Behind:
    """Read the lag without ``left_out`` partitions, such as ``orders-0``."""
    lag = await LagReader(site.flow, site.source, site.target).all()
    kept = [
        one
        for one in without_heartbeats(lag.partitions, site.flow.policy)
        if f"{one.topic}-{one.partition}" not in left_out
    ]
    unknown = {name: why for name, why in lag.unknown.items() if name not in left_out}
    lag = replace(lag, partitions=tuple(kept), unknown=unknown)
    if not site.flow.read_committed or not lag.partitions:
        return Behind(lag)
    # Read afterwards: what is written meanwhile counts as open, and is checked again.
    ends = await list_offsets(site.source, [(one.topic, one.partition) for one in lag.partitions], LATEST)
    return Behind(lag, still_open(lag.partitions, ends))


def without_heartbeats(lags: Iterable[PartitionLag], policy: ReplicationPolicy) -> list[PartitionLag]:
    """Leave out heartbeats, which are emitted while readers move."""
    return [one for one in lags if not policy.is_heartbeats_topic(one.topic)]


def still_open(lags: Iterable[PartitionLag], ends: Mapping[Partition, int]) -> tuple[str, ...]:
    """Return partitions whose ``ends`` are past what may be copied now."""
    return tuple(f"{one.topic}-{one.partition}" for one in lags if one.end < ends[one.topic, one.partition])
