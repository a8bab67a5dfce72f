"""Sharing out records among target partitions, in a slice's loop: by key as Java's producer, or as a handler says."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from connect.api.message_handler import MessageHandler, MirroredRecord
from connect.core.errors import PermanentError, RetriableError
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.offsets import LATEST, list_offsets
from connect.kafka.producer import partition_of
from connect.wire.records import Record
from connectors.dataplane import codes
from connectors.dataplane.handling import NoTarget, answers
from connectors.dataplane.plan import PartitionPlan, Skip, SliceSettings, TopicPartition
from connectors.dataplane.records_copier import UNFIT, Opened
from connectors.dataplane.refusals import add_skip
from connectors.dataplane.spread import SpreadCopier, SpreadPart

log = logging.getLogger(__name__)

#: So long sharing out keeps the loop to itself.
_TURN_S: Final = 0.01
_AGAIN_S: Final = 0.5
#: A topic that a handler names may have been made just now.
_APPEAR_S: Final = 10.0
#: So long nobody looks again for one that is not there.
_MISSED_S: Final = 5.0
_MOST_MISSING: Final = 1_024
_WORD_S: Final = 10.0
_KEYS_KEPT: Final = 16_384
#: Longer keys are hashed each time.
_KEY_BYTES: Final = 256
#: What no waiting mends.
_NEVER: Final[Mapping[int, str]] = {
    codes.INVALID_TOPIC: "{name} is no name that a topic can have",
    codes.TOPIC_AUTHORIZATION_FAILED: "the right to DESCRIBE and WRITE target topic {name} is missing; grant it",
}


@dataclass(frozen=True, slots=True)
class _Topic:
    """What is known of a target topic: its id and where each partition ended when it was first asked for."""

    topic_id: Any
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class _Missing:
    """A topic that is not there, or not for us: why, and until when nobody looks again."""

    why: str
    until_s: float


class Spreading:
    """Of one slice. ``add`` is told of new parts, ``ready`` which copiers may have something to send."""

    def __init__(
        self,
        target: Cluster,
        settings: SliceSettings,
        handler: MessageHandler | None,
        *,
        add: Callable[[Sequence[SpreadPart]], None],
        ready: Callable[[SpreadCopier], None],
    ) -> None:
        self._target = target
        self._settings = settings
        self._handler = handler
        self._add = add
        self._ready = ready
        self._topics: dict[str, _Topic] = {}
        self._missing: dict[str, _Missing] = {}
        self._waiting: deque[tuple[SpreadCopier, Opened]] = deque()
        self._some = asyncio.Event()
        self._turns = 0

    def submit(self, copier: SpreadCopier, part: Opened) -> None:
        self._waiting.append((copier, part))
        self._some.set()

    async def run(self) -> None:
        """Share out what comes, until cancelled."""
        until_s = time.monotonic() + _TURN_S
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                copier, part = self._waiting.popleft()
                if copier.wants(part):
                    await self._share(copier, part)
                else:
                    self._ready(copier)  # as there is room now
                if time.monotonic() > until_s:
                    await asyncio.sleep(0)
                    until_s = time.monotonic() + _TURN_S

    async def _share(self, copier: SpreadCopier, part: Opened) -> None:
        shares: dict[TopicPartition, list[Record]] = {}
        skips: list[Skip] = []
        self._turns += 1
        for record in part.records:
            try:
                # All that becomes of a record is known before any of it is sent.
                placed = [(await self._place(sent), sent) for sent in self._sent(copier.plan, record)]
            except PermanentError as error:
                told = f"source {copier.plan.source}: the record at offset {record.offset} cannot be sent: {error}"
                if not copier.skips_refused:
                    copier.distribute(replace(part, following=record.offset), shares, skips)
                    copier.stop_at(told, UNFIT)
                    self._ready(copier)
                    return
                log.warning("%s; it is left out", told)
                add_skip(skips, record.offset, codes.NOT_TRANSFORMED)
                continue
            for target, sent in placed:
                if copier.part(target) is None:
                    self._enlist(copier, target)
                one = Record(record.offset, sent.timestamp_ms, sent.key, sent.value, list(sent.headers))
                shares.setdefault(target, []).append(one)
        copier.distribute(part, shares, skips)
        self._ready(copier)

    def _sent(self, plan: PartitionPlan, record: Record) -> Sequence[MirroredRecord]:
        """What is sent in the place of a record. Raises PermanentError where its handler gives nothing to send."""
        source, headers = plan.source, tuple(record.headers)
        if self._handler is None:
            name = plan.target.topic
            return [MirroredRecord(name, None, record.offset, record.timestamp_ms, record.key, record.value, headers)]
        given = MirroredRecord(
            source.topic, source.partition, record.offset, record.timestamp_ms, record.key, record.value, headers
        )
        return answers(self._handler, given)

    async def _place(self, record: MirroredRecord) -> TopicPartition:
        """Which partition a record goes to. Raises NoTarget where there is none."""
        topic = self._topics.get(record.topic) or await self._look(record.topic)
        count = len(topic.ends)
        if record.partition is not None:
            if record.partition not in topic.ends:
                raise NoTarget(f"target topic {record.topic} has no partition {record.partition}")
            return TopicPartition(record.topic, record.partition)
        if record.key is None:
            # As Java's producer: all of a batch to one, the next one's to the next.
            return TopicPartition(record.topic, self._turns % count)
        return TopicPartition(record.topic, _home(record.key, count))

    async def _look(self, name: str) -> _Topic:
        """A topic of the target that is not known yet; whatever may pass is waited for. Raises NoTarget."""
        began_s = time.monotonic()
        missing = self._missing.get(name)
        if missing is not None and began_s < missing.until_s:
            raise NoTarget(missing.why)
        # One that was waited for before is not waited for with every record.
        until_s = began_s + (_APPEAR_S if missing is None else 0)
        word_s = began_s + _WORD_S
        while True:
            try:
                found = (await self._target.metadata({name})).topics.get(name)
                if found is not None and not found.error_code and found.partitions:
                    return await self._known(name, found)
                code = found.error_code if found is not None else codes.UNKNOWN_TOPIC_OR_PARTITION
                if code in _NEVER or (code == codes.UNKNOWN_TOPIC_OR_PARTITION and time.monotonic() >= until_s):
                    raise self._missed(name, _NEVER.get(code, "there is no target topic {name}; make it"))
                trouble = codes.name(code)
            except RetriableError as error:
                trouble = str(error)
            if time.monotonic() >= word_s:
                log.warning("%s: target topic %s: %s; trying again", self._settings.flow, name, trouble)
                word_s = time.monotonic() + _WORD_S
            await asyncio.sleep(_AGAIN_S)

    async def _known(self, name: str, found: TopicMetadata) -> _Topic:
        ends = await list_offsets(self._target, [(name, index) for index in found.partitions], LATEST)
        topic = self._topics[name] = _Topic(found.topic_id, {index: end for (_, index), end in ends.items()})
        self._missing.pop(name, None)
        return topic

    def _missed(self, name: str, why: str) -> NoTarget:
        if len(self._missing) >= _MOST_MISSING:
            self._missing.clear()
        told = why.format(name=name)
        self._missing[name] = _Missing(told, time.monotonic() + _MISSED_S)
        return NoTarget(told)

    def _enlist(self, copier: SpreadCopier, target: TopicPartition) -> None:
        topic = self._topics[target.topic]
        plan = replace(
            copier.plan,
            target=target,
            target_topic_id=topic.topic_id,
            next_source_offset=copier.given_to,
            last_source_epoch=copier.given_epoch,
            target_end=topic.ends[target.partition],
            next_sequence=0,
            pipelined=False,
            spreads=False,
        )
        settings = self._settings
        part = SpreadPart(
            plan,
            copier.producer,
            read_committed=settings.read_committed,
            skip_refused=settings.skip_refused,
            compression=settings.compression,
        )
        copier.enlist(part)
        self._add([part])


def _home(key: bytes, count: int) -> int:
    return _of_key(key, count) if len(key) <= _KEY_BYTES else partition_of(key, count)


@lru_cache(_KEYS_KEPT)
def _of_key(key: bytes, count: int) -> int:
    return partition_of(key, count)
