"""Connect the clusters of a failover, and hold the lease that lets one operator at a time work on it.

Kafka itself fences the previous holder. A record in the offset map's topic names the holder for people; it is renewed
while a command runs. A command commits on the target under the flow's transactional ids. Each run claims all of them
first, beginning with the record's: once its record is written, no earlier run can commit anything, at whatever step it
stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import platform
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import psutil

from connect.core.errors import ConfigError, HeliographError, PermanentError, RetriableError, UnreadableRecord
from connect.core.jackson import decode_json
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope, closing, gather_limited, wall_ms
from connect.kafka.log.compacted_topic import LogRecord, partition_count, read_to_end
from connect.kafka.log.producer import OutRecord, TransactionalWriter, partition_of
from connect.kafka.log.topic_admin import Admin, known_topic
from connect.kafka.log.transactions import Superseded
from connect.kafka.security.connection_settings import open_stores
from connectors import internal_topics
from connectors.config.connector_configs import (
    BYTE_ARRAY_CONVERTER,
    CONVERTERS,
    CheckpointSettings,
    MirrorSourceSettings,
    checkpoint_settings,
    source_settings,
)
from connectors.config.mm2_properties import Connector, Flow, MirrorMakerConfig
from connectors.failover.offset_lookup import Maps
from connectors.formats.position import KeyKind, Position, front, text
from connectors.formats.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Site:
    """The two clusters. ``flow`` copies to the cluster that readers move to; ``back``, the reverse flow, may be off."""

    flow: MirrorSourceSettings
    back: MirrorSourceSettings
    checkpoints: CheckpointSettings
    source: Cluster
    target: Cluster
    target_admin: Admin
    source_admin: Admin
    #: The groups of the workers that run either flow.
    flow_workers: str
    back_workers: str
    #: Aliases of the file's other clusters.
    others: tuple[str, ...] = ()
    #: Runs that hold a lease with these connections.
    held: set[str] = field(default_factory=set)
    maps: Maps = field(default_factory=Maps)

    def turned(self) -> Site:
        """Return the same for the other direction. ``checkpoints`` stay: they only say what groups have committed."""
        return replace(
            self,
            flow=self.back,
            back=self.flow,
            source=self.target,
            target=self.source,
            target_admin=self.source_admin,
            source_admin=self.target_admin,
            flow_workers=self.back_workers,
            back_workers=self.flow_workers,
        )


async def read_positions(site: Site) -> dict[TopicPartition, Position]:
    """Read the positions of the site's flow, by source partition. Errors are those of the function that it calls."""
    return await internal_topics.read_positions(site.target, site.flow.map_topic, site.flow.name)


@asynccontextmanager
async def site(config: MirrorMakerConfig, source: str, target: str) -> AsyncIterator[Site]:
    """Open a site; send no request yet. Raises ConfigError if the file lacks a cluster, or a flow between the two."""
    for alias in (source, target):
        if alias not in config.clusters:
            raise ConfigError(
                f"cluster {alias} is not in the file. It has {', '.join(config.clusters)}", None, config.file
            )
    if source == target:
        raise ConfigError("--from and --to are the same cluster", None)
    flow, back = Flow(config, source, target), Flow(config, target, source)
    if not flow.enabled and not back.enabled:
        raise ConfigError(f"the file enables neither {flow} nor {back}", f"{flow}.enabled", config.file)
    clients = flow.clients()
    ends = Cluster(clients.source_admin(), source), Cluster(clients.target_admin(), target)
    admins = Admin(clients.source_admin(), source), Admin(clients.target_admin(), target)
    async with closing(*ends, *admins):
        yield Site(
            flow=flow.settings(),
            back=back.settings(),
            checkpoints=checkpoint_settings(config.resolved(flow.connector_config(Connector.CHECKPOINT))),
            source=ends[0],
            target=ends[1],
            source_admin=admins[0],
            target_admin=admins[1],
            flow_workers=flow.worker_config()["group.id"],
            back_workers=back.worker_config()["group.id"],
            others=tuple(alias for alias in config.clusters if alias not in (source, target)),
        )


_OTHER: Final = {"source": "target", "target": "source"}
#: For each of the two reads that find names.
_LOOK_S: Final = 5.0


@asynccontextmanager
async def flow_site(props: Mapping[str, str], worker: Mapping[str, str]) -> AsyncIterator[Site]:
    """Open a site for reading. ``props`` is the config of a checkpoint connector, ``worker`` that of its worker. A
    worker has no ``mm2.properties``. So what the file says of the reverse flow is derived: the names are the defaults,
    and the flow counts as enabled if it has stored an offset map. Raises ConfigError if a setting is invalid."""
    await open_stores(props)
    checkpoints = checkpoint_settings(props)
    here, there = checkpoints.source_alias, checkpoints.target_alias
    source_client = checkpoints.connection("source", "admin", "checkpoint-source-admin")
    target_client = checkpoints.connection("target", "admin", "checkpoint-target-admin")
    source, target = Cluster(source_client, here), Cluster(target_client, there)
    admins = Admin(source_client, here), Admin(target_client, there)
    async with closing(source, target, *admins):
        flow = _settings(props, worker, await _connector(checkpoints, target))
        back_worker = {**worker, "group.id": f"{there}-mm2", "offset.storage.topic": f"mm2-offsets.{there}.internal"}
        back = _settings(turned_config(props), back_worker, Connector.SOURCE.value)
        yield Site(
            flow=flow,
            back=replace(back, enabled=await _has_map(source, back.map_topic)),
            checkpoints=checkpoints,
            source=source,
            target=target,
            source_admin=admins[0],
            target_admin=admins[1],
            flow_workers=worker["group.id"],
            back_workers=back_worker["group.id"],
        )


def turned_config(props: Mapping[str, str]) -> dict[str, str]:
    """Return a connector's config with source and target exchanged."""
    changed = {}
    for key, value in props.items():
        side, dot, rest = key.partition(".")
        changed[f"{_OTHER[side]}.{rest}" if dot and side in _OTHER else key] = value
    return changed


def _settings(props: Mapping[str, str], worker: Mapping[str, str], name: str) -> MirrorSourceSettings:
    # Checkpoints may have other converters than records.
    return source_settings({**props, **dict.fromkeys(CONVERTERS, BYTE_ARRAY_CONVERTER), "name": name}, worker)


async def _connector(checkpoints: CheckpointSettings, target: Cluster) -> str:
    """Return the name under which the flow's positions are stored; a dedicated mirror's unless there is just one."""
    usual = Connector.SOURCE.value
    try:
        async with asyncio.timeout(_LOOK_S):
            stored = await internal_topics.read_all_positions(target, checkpoints.map_topic)
    except (HeliographError, TimeoutError):
        return usual  # the reads that follow say what is wrong
    names = {name for name, _ in stored}
    return names.pop() if len(names) == 1 else usual


async def _has_map(source: Cluster, map_topic: str) -> bool:
    try:
        async with asyncio.timeout(_LOOK_S):
            return await known_topic(source, map_topic) is not None
    except (HeliographError, TimeoutError):
        return False


LEASE_S: Final = 20.0
_RENEW_S: Final = 4.0
#: A process killed within a transaction leaves it open, and the next run waits for its end before it can read.
TRANSACTION_TIMEOUT_MS: Final = 10_000
PARTITION_KEY: Final = b"failover"
#: Groups moved at the same time, each under its own transactional id, because a move takes some twenty round trips.
LANES: Final = 32


class FailoverInProgress(PermanentError):
    """Another operator holds the lease."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The holder: ``owner`` is a person at ``host``, ``pid`` their process, ``run`` their command's id. ``until_ms`` is
    0 once it has ended; ``step`` is the last step that it started."""

    owner: str
    host: str
    pid: int
    command: str
    since_ms: int
    until_ms: int
    step: str = ""
    run: str = ""

    def is_held(self, now_ms: int) -> bool:
        """Compare by wall clock; an end too far in the future comes from a clock that differs from ours."""
        return now_ms < self.until_ms <= now_ms + int(2 * LEASE_S * 1000) and not self.owner_process_exited

    @property
    def owner_process_exited(self) -> bool:
        """Whether its process ran on this machine, and has ended."""
        return self.host == platform.node() and not psutil.pid_exists(self.pid)

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S UTC", time.gmtime(self.since_ms / 1000))
        return (
            f"{self.owner} is working on this failover (process {self.pid}): {self.command}, since {since}, step "
            f"«{self.step or 'begin'}». Wait for its end, or for {LEASE_S:g} s after its process died"
        )


def encode_key(flow: str) -> bytes:
    return front(KeyKind.FAILOVER) + text(flow)


def encode(record: LeaseRecord) -> bytes:
    return json.dumps({"format": 1, **asdict(record)}).encode()


def decode(value: bytes) -> LeaseRecord:
    """Decode a record. Raises PermanentError if a later version wrote it, UnreadableRecord if it is not a lease."""
    document = decode_object(value)
    if document.pop("format", None) != 1:
        raise PermanentError("a later version of Heliograph wrote this failover's records. Run that version")
    try:
        return LeaseRecord(**{name: document[name] for name in LeaseRecord.__dataclass_fields__ if name in document})
    except TypeError as error:
        raise UnreadableRecord(f"a failover's lease lacks a field: {error}") from error


def decode_object(value: bytes) -> dict[str, Any]:
    """Return the JSON object in a record. Raises UnreadableRecord."""
    try:
        document = decode_json(value)
    except ValueError as error:
        raise UnreadableRecord(f"its JSON cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise UnreadableRecord("it does not hold a JSON object")
    return document


async def look(target: Cluster, map_topic: str, flow: str) -> LeaseRecord | None:
    """Read the lease; None if there is none."""
    value = (await stored(target, map_topic, flow)).get(encode_key(flow))
    return None if value is None else decode(value)


async def stored(target: Cluster, map_topic: str, flow: str) -> dict[bytes, bytes]:
    """Read the lease and all that is stored with it, by key; each key begins with that of the lease. Raises
    UnreadableRecord, and what :func:`connect.kafka.log.compacted_topic.read_to_end` raises."""
    found: dict[bytes, bytes] = {}
    if await known_topic(target, map_topic) is None:
        return found

    def take(record: LogRecord) -> None:
        if record.key is None or not record.key.startswith(encode_key(flow)):
            return
        found.pop(record.key, None)
        if record.value is not None:
            decode_object(record.value)
            found[record.key] = record.value

    index = partition_of(PARTITION_KEY, await partition_count(target, map_topic))
    await read_to_end(target, map_topic, take, partitions={index}, read_committed=True, only_last=True)
    return found


class Lease:
    """See :func:`hold`. ``lanes`` are the writers that move groups."""

    def __init__(self, target: Cluster, map_topic: str, flow: str, record: LeaseRecord) -> None:
        self._target, self._topic, self._flow = target, map_topic, flow
        name = f"heliograph-failover-{flow}"
        self._writer, *self.lanes = (
            TransactionalWriter(target, one, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
            for one in (name, *(f"{name}:move-{lane}" for lane in range(LANES)))
        )
        self.record = record
        self.lost: HeliographError | None = None

    async def claim(self) -> None:
        """Take the lease. Raises FailoverInProgress. Of two runs that start at the same moment the later one wins."""
        await await_free(lambda: look(self._target, self._topic, self._flow), self.record)
        await self._writer.open()
        await gather_limited(lambda lane: lane.open(), self.lanes, LANES)
        await self.store()

    async def store(self, *, step: str | None = None, records: Sequence[OutRecord] = ()) -> None:
        """Renew the lease and write ``records`` with it. Raises FailoverInProgress if another operator took it over."""
        until_ms, now = wall_ms() + int(LEASE_S * 1000), self.record.step if step is None else step
        await self._store(replace(self.record, until_ms=until_ms, step=now), records)

    async def _store(self, record: LeaseRecord, more: Sequence[OutRecord] = ()) -> None:
        self.record = record
        lease = OutRecord(self._topic, encode_key(self._flow), encode(record), PARTITION_KEY)
        try:
            await self._writer.write([lease, *more])
        except Superseded:
            taken = f"another operator has taken over the failover {self._flow}; this run stops"
            raise FailoverInProgress(taken) from None

    async def check(self) -> None:
        """Renew before a change outside a transaction: another operator may have taken over while this process was
        frozen. Raises FailoverInProgress."""
        self.check_not_lost()
        await self.store()

    def check_not_lost(self) -> None:
        """Raise the error of the last renewal."""
        if self.lost is not None:
            raise self.lost

    async def release(self) -> None:
        await self._store(replace(self.record, until_ms=0))

    async def renew_forever(self) -> None:
        """Renew until cancelled or taken over; then ``lost`` has the error."""
        while True:
            await asyncio.sleep(_RENEW_S)
            try:
                await self.store()
            except RetriableError:
                continue  # the next one may succeed, and notices if another operator has taken over
            except HeliographError as error:
                self.lost = error
                return


async def await_free(
    read: Callable[[], Awaitable[LeaseRecord | None]],
    mine: LeaseRecord,
    *,
    watch_s: float = LEASE_S,
    look_s: float = 1.0,
) -> None:
    """Return once the lease is free. Clocks of two machines may differ, so a lease that was not released is watched for
    ``watch_s``, in which a live holder renews it. Raises FailoverInProgress if it is renewed."""
    known = await read()
    clock = asyncio.get_running_loop().time
    give_up_s = clock() + watch_s
    while known is not None and not _is_free(known, mine) and clock() < give_up_s:
        await asyncio.sleep(look_s)
        now = await read()
        if now is not None and now != known and not _is_free(now, mine):
            raise FailoverInProgress(str(now))
        known = now


def _is_free(known: LeaseRecord, mine: LeaseRecord) -> bool:
    return not known.until_ms or known.run == mine.run or known.owner_process_exited


async def await_no_failback(site: Site, mine: LeaseRecord) -> None:
    """Wait until no operator moves readers in the other direction, while holding a lease that a later run there finds.
    Raises FailoverInProgress."""
    await await_free(lambda: look(site.source, site.back.map_topic, site.back.flow), mine)


@contextlib.asynccontextmanager
async def hold(site: Site, command: str) -> AsyncIterator[Lease]:
    """Hold the lease on what moves to the site's target. Raises FailoverInProgress if another operator holds it."""
    flow = site.flow.flow
    await internal_topics.record_settings(site.flow).make_topic(site.target_admin)
    host = platform.node()
    mine = LeaseRecord(f"{_user()}@{host}", host, os.getpid(), command, wall_ms(), 0, run=uuid.uuid4().hex)
    lease = Lease(site.target, site.flow.map_topic, flow, mine)
    await lease.claim()
    site.held.add(mine.run)
    try:
        async with Scope(f"failover {flow}") as scope:
            scope.spawn(lease.renew_forever(), f"lease of failover {flow}")
            yield lease
    finally:
        site.held.discard(mine.run)
        with contextlib.suppress(HeliographError):  # the lease expires by itself
            await lease.release()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"  # the user has no entry on this machine


def returns(back: MirrorSourceSettings, source_topic: str, target_topic: str) -> bool:
    """Whether the reverse flow would copy ``target_topic`` into ``source_topic``, which it was copied from."""
    return back.should_mirror(target_topic) and back.remote_topic(target_topic) == source_topic
