"""Who works on a failover now: one at a time, and the next one is told who it is.

A record beside the offset map says who holds it and until when. It is written under a transactional id, which whoever
takes it over claims: two that read «free» at the same time cannot both write.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import platform
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import psutil

from connect.core.bounded_json import decode_json
from connect.core.errors import HeliographError, PermanentError, RetriableError, UnreadableRecord
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope
from connect.kafka.producer import OutRecord, TransactionalWriter, partition_of
from connect.kafka.topiclog import LogRecord, partition_count, read_to_end
from connect.kafka.transactions import Partition, Superseded
from connectors.failover.site import Site
from connectors.positions import Kind, front, text
from connectors.record_settings import record_settings

LEASE_S: Final = 20.0
_RENEW_S: Final = 4.0
#: Who is killed within one leaves it open, and the next run waits for its end before it can look.
TRANSACTION_TIMEOUT_MS: Final = 10_000
PARTITION_KEY: Final = b"failover"


class InHand(PermanentError):
    """Somebody else works on it."""


@dataclass(frozen=True, slots=True)
class Record:
    """``owner`` is a person at ``host``, with the process ``pid``; ``until_ms`` is 0 where nobody works on it. ``step``
    is the last that was begun; ``denied`` topics of the source refuse writers because of it; ``marks``: of all that was
    appended since there is such a record there are marks beside it; an older version writes none, and says so
    by leaving this out."""

    owner: str
    host: str
    pid: int
    command: str
    since_ms: int
    until_ms: int
    step: str = ""
    is_finished: bool = False
    denied: tuple[str, ...] = ()
    marks: bool = False

    def is_held(self, now_ms: int) -> bool:
        """As far as clocks tell; one that reaches too far into the future is by another clock than ours."""
        return now_ms < self.until_ms <= now_ms + int(2 * LEASE_S * 1000)

    @property
    def is_of_the_dead(self) -> bool:
        """Whether its process was one of this machine, and has ended."""
        return self.host == platform.node() and not psutil.pid_exists(self.pid)

    def is_of(self, other: Record) -> bool:
        return (self.host, self.pid, self.since_ms) == (other.host, other.pid, other.since_ms)


def encode_key(flow: str) -> bytes:
    return front(Kind.FAILOVER) + text(flow)


def encode(record: Record) -> bytes:
    return json.dumps({"format": 1, **asdict(record)}).encode()


def decode(value: bytes) -> Record:
    """Raises PermanentError for what a later version wrote."""
    document = decode_object(value)
    if document.pop("format", None) != 1:
        raise PermanentError("a later Heliograph has worked on this failover: use that one")
    known = {name: document[name] for name in Record.__dataclass_fields__ if name in document}
    return Record(**{**known, "denied": tuple(known.get("denied", ()))})


def decode_object(value: bytes) -> dict[str, Any]:
    """Return the JSON object in a record. Raises UnreadableRecord."""
    try:
        document = decode_json(value)
    except ValueError as error:
        raise UnreadableRecord(f"it cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise UnreadableRecord("it holds no JSON object")
    return document


async def look(target: Cluster, map_topic: str, flow: str) -> Record | None:
    """What is stored; None for nothing. Raises as ``read_to_end``."""
    value = (await stored(target, map_topic, flow)).get(encode_key(flow))
    return None if value is None else decode(value)


async def stored(target: Cluster, map_topic: str, flow: str) -> dict[bytes, bytes]:
    """By its key, which begins with that of the record, that and all that is kept beside it. Raises as
    ``read_to_end``."""
    known = (await target.metadata({map_topic})).topics.get(map_topic)
    if known is None or not known.partitions:
        return {}
    found: dict[bytes, bytes] = {}

    def take(record: LogRecord) -> None:
        if record.key is None or not record.key.startswith(encode_key(flow)):
            return
        if record.value is None:
            found.pop(record.key, None)
        else:
            decode_object(record.value)
            found[record.key] = record.value

    _, index = await log_of(target, map_topic)
    await read_to_end(target, map_topic, take, partitions={index}, read_committed=True, only_last=True)
    return found


async def log_of(target: Cluster, map_topic: str) -> Partition:
    """Return the partition that the record is in. Raises as the cluster."""
    return map_topic, partition_of(PARTITION_KEY, await partition_count(target, map_topic))


def in_words(record: Record) -> str:
    """Who is at it, for who is told."""
    since = time.strftime("%H:%M:%S UTC", time.gmtime(record.since_ms / 1000))
    return (
        f"{record.owner} is at it (process {record.pid}): {record.command}, since {since}, step "
        f"«{record.step or 'begin'}»; wait for its end, or for {LEASE_S:g} s after it died"
    )


class Lease:
    """See :func:`hold`."""

    def __init__(self, target: Cluster, map_topic: str, flow: str, record: Record) -> None:
        self._target = target
        self._topic = map_topic
        self._flow = flow
        self._writer = self._new_writer()
        self._writing = asyncio.Lock()
        self.record = record
        #: Of who held it before; nobody did: nothing is left to be gone on with.
        self.was_finished = True
        self.lost: HeliographError | None = None
        self._stored_until_ms = 0

    async def claim(self) -> None:
        """Raises InHand, and as the cluster."""
        known = await await_free(self._look, self.record)
        await self._writer.open()
        # Somebody may have claimed it and written since the first look; now nobody else can.
        before = await self._look()
        if before is not None and before != known and not _is_free(before, self.record):
            raise InHand(in_words(before))
        if before is not None:
            self.was_finished = before.is_finished
            self.record = replace(self.record, denied=before.denied, marks=before.marks)
        await self.store()

    async def store(
        self,
        *,
        step: str | None = None,
        denied: tuple[str, ...] | None = None,
        records: Sequence[OutRecord] = (),
    ) -> None:
        """Renew it, with what is known now, and write ``records`` with it. Raises InHand if it was taken over."""
        async with self._writing:
            self.record = replace(
                self.record,
                until_ms=_now_ms() + int(LEASE_S * 1000),
                step=self.record.step if step is None else step,
                denied=self.record.denied if denied is None else denied,
            )
            await self._write(records)

    async def check(self) -> None:
        """Before something that nobody else may do meanwhile: who stood still for too long goes on before the next
        renewal. Raises InHand where it was taken over, and as the cluster where it ran out."""
        if self.lost is not None:
            raise self.lost
        if _now_ms() >= self._stored_until_ms:
            await self.store()

    async def release(self, *, is_finished: bool) -> None:
        async with self._writing:
            self.record = replace(self.record, until_ms=0, is_finished=is_finished)
            await self._write()

    async def renew_forever(self) -> None:
        """Until cancelled, or until it was taken over: ``lost`` says so then."""
        while True:
            await asyncio.sleep(_RENEW_S)
            try:
                await self.store()
            except InHand as error:
                self.lost = error
                return
            except RetriableError:
                continue  # the next one may pass; whoever takes it over meanwhile is noticed then
            except HeliographError as error:
                self.lost = error
                return

    async def _write(self, more: Sequence[OutRecord] = ()) -> None:
        records = [OutRecord(self._topic, encode_key(self._flow), encode(self.record), PARTITION_KEY), *more]
        try:
            try:
                await self._writer.write(records)
            except Superseded:
                await self._take_back()
                await self._writer.write(records)
        except Superseded:
            raise self._taken_over() from None
        self._stored_until_ms = self.record.until_ms

    async def _take_back(self) -> None:
        """Who looked before this one had written has shut it out, and ends at finding its record there: without this
        neither would go on. Raises InHand where another's is there, and as the cluster."""
        await self._check_is_ours()
        writer = self._new_writer()
        await writer.open()
        await self._check_is_ours()  # nobody else can write any more
        self._writer = writer  # not before: one that was never opened claims the id at its first write, whosever it is

    async def _check_is_ours(self) -> None:
        known = await self._look()
        if known is None or not known.is_of(self.record):
            raise self._taken_over()

    def _taken_over(self) -> InHand:
        return InHand(f"somebody else has taken the failover {self._flow} over: this one stops")

    def _new_writer(self) -> TransactionalWriter:
        name = f"heliograph-failover-{self._flow}"
        return TransactionalWriter(self._target, name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)

    async def _look(self) -> Record | None:
        return await look(self._target, self._topic, self._flow)


async def await_free(
    read: Callable[[], Awaitable[Record | None]], mine: Record, *, watch_s: float = LEASE_S, look_s: float = 1.0
) -> Record | None:
    """The record as it was left. One that nobody has given back is watched for ``watch_s``: clocks of two machines may
    differ, but who lives renews it. Raises InHand where somebody does, and as ``read``."""
    known = await read()
    clock = asyncio.get_running_loop().time
    give_up_s = clock() + watch_s
    while not _is_free(known, mine) and clock() < give_up_s:
        await asyncio.sleep(look_s)
        now = await read()
        if now is not None and now != known and not _is_free(now, mine):
            raise InHand(in_words(now))
        known = now
    return known


def _is_free(known: Record | None, mine: Record) -> bool:
    return known is None or not known.until_ms or known.is_of(mine) or known.is_of_the_dead


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


#: By this process, each with its site; a failback has two.
_HELD: Final[list[tuple[Site, Lease]]] = []


async def await_no_way_back(site: Site, mine: Record) -> None:
    """Raises InHand where somebody moves readers the other way, and as the source; to be called with a lease that is
    held, which whoever begins that later finds."""
    await await_free(lambda: look(site.source, site.back.map_topic, site.back.flow), mine)


def is_held_at(site: Site, record: Record) -> bool:
    """Whether it is of who works at this very site. A process and a host say little of that: containers may share a
    host's name, and in each the process is number 1."""
    return any(record.is_of(lease.record) and one.target in (site.target, site.source) for one, lease in _HELD)


@contextlib.asynccontextmanager
async def hold(site: Site, command: str, *, ends: bool = True) -> AsyncIterator[Lease]:
    """Work alone on what moves to the site's target; who comes through without an error ``ends`` what a run before has
    left undone, or leaves that as it is. Raises InHand where somebody else does."""
    flow = site.flow.flow
    await record_settings(site.flow).make_topic(site.target_admin)
    host = platform.node()
    since_ms = time.time_ns() // 1_000_000
    mine = Record(f"{_user()}@{host}", host, os.getpid(), command, since_ms, 0, marks=True)
    lease = Lease(site.target, site.flow.map_topic, flow, mine)
    await lease.claim()
    scope = Scope(f"failover {flow}")
    scope.spawn(lease.renew_forever(), f"lease of failover {flow}")
    is_finished = False
    held = (site, lease)
    _HELD.append(held)
    try:
        yield lease
        is_finished = ends or lease.was_finished
    finally:
        _HELD.remove(held)
        await scope.close()
        with contextlib.suppress(HeliographError):  # it runs out by itself
            await lease.release(is_finished=is_finished)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"  # without an entry among the machine's users
