"""One partition, copied by the product's own decisions under crashes, freezes, held requests and faults of brokers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import patch
from uuid import UUID

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, ClusterMetadata, LeaderEpochs, PartitionMetadata, TopicMetadata
from connect.kafka.log.offsets import EARLIEST
from connect.kafka.log.transactions import ProducerIdentity, Superseded, TransactionalIdRefused
from connect.wire import batch as wire
from connectors.control_link.protocol import PartitionPlan, SliceSettings
from connectors.dataplane import fetch_api, log_divergence, resume
from connectors.dataplane.batches import error_codes
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.batches.outgoing_batches import Outgoing
from connectors.dataplane.batches.send_queue import TargetTruncated
from connectors.dataplane.batches.sequencer import CopiesUnderWay
from connectors.dataplane.resume import Resumer
from connectors.formats.position import Position
from connectors.formats.types import Compression, TopicPartition
from connectors.source.positions import position_checks, stored_positions, takeover
from connectors.source.positions.ledger import Ledger
from connectors.source.positions.partition_pairs import Clusters, Entry, PartitionPair, position_of
from connectors.source.positions.stored_positions import MissingRights, PositionsTaken, Predecessors, Start
from connectors.source.positions.takeover import take_over
from connectors.topic_sync import partition_assignment
from tests.kit import virtual_time
from tests.simulation.resume_logs import Coordinator, Leader, Source

SOURCE: Final = TopicPartition("orders", 0)
TARGET: Final = TopicPartition("us.orders", 0)
IDS: Final = {"orders": UUID(int=1), "us.orders": UUID(int=2)}
_FENCED: Final = 47
_TIMED_OUT: Final = 7
_NOT_ENOUGH_REPLICAS: Final = 19
_LONG_S: Final = 500.0


class Violation(AssertionError):
    """The target does not hold what it should, or something appeared again unannounced."""


class Ended(Exception):
    """A successor ends, as a slice does that is lost."""


class World:
    """All that is random comes of ``seed``."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        chance = self.chance
        self.compression = Compression(random.Random(f"codec {seed}").choice([0, 0, 4]))
        self.source = Source.drawn(chance)
        self.coordinator = Coordinator(refuses=chance.random() < 0.2)
        self.target = Leader(compacted=bool(self.source.refused))
        self.is_compacted = chance.random() < 0.5
        self.loses_source = chance.random() < 0.5
        self.is_quiet = False
        self.stored: Position | None = None
        self.claimant = ""
        #: How often the store was written.
        self.writes = 0
        self.announced = 0
        self.stopped: list[str] = []
        self.story: list[str] = []
        self._held: set[asyncio.Task[None]] = set()
        self._alive: list[asyncio.Task[None]] = []

    # -- what is asked of brokers ---------------------------------------------------------------------

    @contextmanager
    def brokers(self) -> Iterator[None]:
        """Answer in the place of the modules that talk to brokers."""
        answers: dict[Any, list[str]] = {
            takeover: ["fence", "init_producer_id", "new_producer_id", "list_offsets"],
            position_checks: ["known_topics", "list_offsets", "min_insync_replicas", "unknown_ends"],
            partition_assignment: ["list_offsets"],
            resume: ["list_offset"],
            stored_positions: ["init_producer_id"],
            log_divergence: ["explain_topic"],
            fetch_api: ["fetch_one"],
        }
        with ExitStack() as stack:
            for module, names in answers.items():
                for name in names:
                    stack.enter_context(patch.object(module, name, getattr(self, f"_{name}")))
            stack.enter_context(patch.object(stored_positions, "TransactionalWriter", self._writer))
            yield

    async def pause(self) -> None:
        """Others may go on here; now and then for long, as while a process is frozen."""
        if self.is_quiet:
            await asyncio.sleep(0)
            return
        roll = self.chance.random()
        await asyncio.sleep(self.chance.uniform(5, _LONG_S) if roll < 0.01 else self.chance.choice([0, 0.01, 0.3]))

    async def _fence(self, _: object, name: str, partitions: Collection[Any], **__: object) -> ProducerIdentity:
        await self.pause()
        first = self.coordinator.claim(name)
        await self.pause()
        self.coordinator.check(name, first)
        if not self.is_quiet and self.chance.random() < 0.1:
            self.story.append("unclean")
            self.target.elect(self.chance, is_clean=False)
        if partitions:
            await self.pause()
            self.target.mark(first.producer_id, first.epoch)
            self.target.replicate()
        await self.pause()
        return self.coordinator.claim(name, first)

    async def _init_producer_id(self, _: object, name: str, **__: object) -> ProducerIdentity:
        await self.pause()
        return self.coordinator.claim(name)

    async def _new_producer_id(self, _: object) -> ProducerIdentity:
        return self.coordinator.new_id()

    async def _list_offsets(self, _: object, partitions: Collection[Any], at: int, *__: object) -> dict[Any, int]:
        return {one: await self._list_offset(None, one, at) for one in partitions}

    async def _list_offset(self, _: object, partition: Any, at: int) -> int:
        await self.pause()
        if tuple(partition) == TARGET:
            return self.target.log_start if at == EARLIEST else self.target.high_watermark
        return self.source.log_start if at == EARLIEST else self.source.end

    async def _known_topics(self, _: object, names: Collection[str]) -> dict[str, TopicMetadata]:
        return {name: TopicMetadata(name, IDS[name], 0, {}) for name in names}

    async def _min_insync_replicas(self, _: object, topics: Collection[str]) -> dict[str, int]:
        return dict.fromkeys(topics, 1)

    async def _unknown_ends(self, *_: object) -> dict[Any, str]:
        return {}

    async def _explain_topic(self, *_: object) -> None:
        return None

    async def _fetch_one(self, name: str, _topic: object, _index: int, position: Any, _limits: object) -> Any:
        await self.pause()
        if name == "source":
            found, start, end = self.source.fetch(position[0], self.chance), self.source.log_start, self.source.end
        else:
            found, start, end = self.target.shown(position[0]), self.target.log_start, self.target.high_watermark
            if not self.is_quiet and self.chance.random() < 0.1:  # a leader that is behind
                found, end = memoryview(b""), min(end, position[0])
        if not start <= position[0] <= end:
            return SimpleNamespace(error_code=error_codes.OFFSET_OUT_OF_RANGE)
        return SimpleNamespace(
            error_code=0, records=found, aborted=(), diverging=None, last_stable_offset=end, high_watermark=end
        )

    def _writer(self, _: object, name: str) -> Writer:
        return Writer(self, name)

    # -- the store ------------------------------------------------------------------------------------

    async def read(self, partitions: Collection[TopicPartition] = (SOURCE,)) -> dict[TopicPartition, Start]:
        await self.pause()
        stored = self.stored
        committed = None if stored is None or not stored.next_source_offset else stored.next_source_offset - 1
        return {one: Start(stored, committed, False, claimant=self.claimant) for one in partitions}

    # -- late requests, and brokers' faults -----------------------------------------------------------

    def hold(self, batches: list[tuple[bytes, list[int]]]) -> None:
        """Let these arrive later, in order, whatever became of who sent them."""

        async def deliver() -> None:
            for batch, offsets in batches:
                await asyncio.sleep(self.chance.choice([0.02, 1, 50, 2 * _LONG_S]))
                self.target.produce(batch, offsets)
                self.target.replicate()

        task = asyncio.create_task(deliver(), name="held requests")
        self._held.add(task)

    def _is_anything_left(self) -> bool:
        return any(not one.done() for one in (*self._alive, *self._held))

    async def _faults(self) -> None:
        chance, target = self.chance, self.target
        while True:
            await asyncio.sleep(chance.choice([0.05, 0.5, 4, 30]))
            match chance.randrange(8):
                case 0 | 1:
                    target.replicate()
                case 2:
                    target.elect(chance, is_clean=True)
                case 3 if chance.random() < 0.3 and not self.coordinator.refuses:
                    self.story.append("unclean")
                    target.elect(chance, is_clean=False)
                case 4 if not self._is_anything_left():
                    target.expire()  # after a day, in which no request stays under way
                case 5 if self.is_compacted:
                    target.clean(chance)
                case 6 if self.loses_source:
                    # Which one of two records that are alike was compacted away makes no difference to a reader.
                    chance.choice([self.source.retain, *([] if self.source.are_alike else [self.source.compact])])(
                        chance
                    )
                case 7 if chance.random() < 0.2 and "unclean" not in self.story:
                    # Once an election has cut the log before a stored end, other records have grown up to that end and
                    # retention has deleted them all, no log shows it any more.
                    target.retain(chance)

    # -- the whole run --------------------------------------------------------------------------------

    async def play(self) -> None:
        with self.brokers():
            faults = asyncio.create_task(self._faults(), name="faults")
            alive = self._alive
            for number in range(self.chance.randrange(1, 7)):
                name = f"mm2-{self.chance.randrange(3)}"
                alive.append(asyncio.create_task(Successor(self, name).run(), name=f"{number} as {name}"))
                await asyncio.sleep(self.chance.choice([0, 0.05, 0.5, 3, 20, 100]))
                if self.coordinator.refuses or self.chance.random() < 0.6:
                    alive[-1].cancel()
                    await asyncio.gather(alive[-1], return_exceptions=True)
            faults.cancel()
            ended = await asyncio.gather(*alive, *self._held, faults, return_exceptions=True)
            for error in ended:
                if isinstance(error, Exception):
                    raise error
            await self._last()
        self.judge()

    async def _last(self) -> None:
        """A successor that nothing interrupts, unless others do."""
        self.target.replicate()
        self.is_quiet = True
        for number in range(4):
            await Successor(self, f"mm2-last-{number}").run()
        self.is_quiet = False

    def judge(self) -> None:
        if self.stopped:
            return
        source = self.source
        expected = [one for one in range(source.end) if one not in source.refused]
        place = {offset: index for index, offset in enumerate(expected)}
        may_miss = source.compacted | source.named_lost
        seen = [place[offset] for _, offsets in sorted(self.target.history) for offset in offsets]
        if missing := [one for one in expected if place[one] not in seen and one not in may_miss]:
            raise Violation(self._said(f"{missing} are missing"))
        doubled = len(seen) - len(set(seen))
        self._judge_order(seen, [place[one] for one in expected if one not in may_miss])
        if doubled > self.announced:
            raise Violation(self._said(f"{doubled} doubled, {self.announced} announced"))

    def _judge_order(self, seen: list[int], needed: list[int]) -> None:
        """Records come in order, or earlier ones again; after an unclean election their last places are in order."""
        if "unclean" in self.story:
            last = {index: at for at, index in enumerate(seen) if index in set(needed)}
            if sorted(last, key=lambda index: last[index]) != sorted(last):
                raise Violation(self._said("the last ones are not in order"))
            return
        for before, index in zip([-1, *seen], seen, strict=False):
            if missing := [one for one in needed if before < one < index]:
                raise Violation(self._said(f"{missing} are missing before {index}"))
        if missing := [one for one in needed if one > seen[-1]] if seen else needed:
            raise Violation(self._said(f"{missing} are not behind the last rewind"))

    def _said(self, what: str) -> str:
        lines = "\n  ".join([*self.story, f"history {sorted(self.target.history)}"])
        return f"seed {self.seed}: {what}\n  {lines}"


class Writer:
    """Of one transactional id: who opened it last may write."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._identity: ProducerIdentity | None = None

    async def open(self) -> None:
        await self._world.pause()
        self._identity = self._world.coordinator.claim(self._name, self._identity)

    async def write(self, position: Position, read_to: int | None = None) -> None:
        """``read_to``: only if nothing else was written since so many writes."""
        await self._world.pause()
        assert self._identity is not None
        self._world.coordinator.check(self._name, self._identity)
        if read_to not in (None, self._world.writes):
            raise PositionsTaken([SOURCE])
        self._world.stored, self._world.claimant = position, ""
        self._world.writes += 1

    async def claim(self, claimant: str) -> None:
        """Name another task beside the position."""
        await self._world.pause()
        assert self._identity is not None
        self._world.coordinator.check(self._name, self._identity)
        self._world.claimant = claimant
        self._world.writes += 1


class Successor:
    """One task in one process, under its transactional id, up to its first trouble."""

    def __init__(self, world: World, own: str) -> None:
        self._world = world
        self._own = own
        self._rights = MissingRights()
        self._writer = Writer(world, stored_positions.store_id(own))
        self._predecessors = Predecessors(
            cast(Cluster, None), stored_positions.store_id(own), self._rights, is_atomic=False
        )
        self._is_plain = False
        self._read_to: int | None = None
        self._takeover: takeover.Takeover | None = None

    async def run(self) -> None:
        world = self._world
        try:
            plan = await self._begin()
            if plan is not None:
                await self._copy(plan)
        except (Ended, RetriableError, Superseded, CopiesUnderWay) as error:
            self._report(f"ends: {error}")
        except TargetTruncated as error:
            world.stopped.append(str(error))
            self._report(f"stops: {error}")

    def _report(self, what: str) -> None:
        self._world.story.append(f"{self._own}: {what}")

    async def _begin(self) -> PartitionPlan | None:
        world = self._world
        try:
            await self._writer.open()
        except TransactionalIdRefused:
            self._is_plain = True
        starts: Mapping[TopicPartition, Start] = await world.read()
        self._read_to = world.writes if stored_positions.is_unowned(starts[SOURCE]) else None
        starts = await self._predecessors.fence_predecessors(starts, world.read, self._claim)
        entry = Entry(PartitionPair(SOURCE, IDS["orders"], TARGET, IDS["us.orders"]))
        clusters = Clusters(_cluster("source"), _cluster("target"))
        takeover = self._takeover = await take_over(clusters, self._own, [entry], starts, reset_to=EARLIEST)
        if entry.is_stopped:
            world.stopped.append(entry.reason)
            return None
        (plan,) = takeover.plans
        if plan.proof is not None:
            resumer = Resumer(clusters.source, clusters.target, SliceSettings("us->eu", 0, {}, {}))
            found = await resumer.resume(plan)
            self._report(f"{starts[SOURCE].position}\n    {found}")
            if found.refusal:
                world.stopped.append(found.refusal)
                return None
            if found.later:
                raise Ended(found.later)
            world.announced += found.may_double
            plan = found.plan
        if starts[SOURCE].position is None:
            world.source.named_lost |= set(range(plan.next_source_offset))
        self._ledger = Ledger([entry.pair])
        position = position_of(plan, *takeover.writer_of(plan))
        await self._store(position)
        self._ledger.begin(SOURCE, position, is_fenced=SOURCE not in takeover.unfenced)
        return plan

    async def _store(self, position: Position) -> None:
        if self._is_plain:
            await self._world.pause()
            self._world.stored = position
            return
        await self._writer.write(position, self._read_to)
        self._read_to = None

    async def _claim(self, writer: Any, _: object) -> None:
        await writer.claim(stored_positions.store_id(self._own))

    async def _copy(self, plan: PartitionPlan) -> None:
        world, chance = self._world, self._world.chance
        assert self._takeover is not None
        self._report(f"copies from {plan.next_source_offset}, {plan.producer or self._takeover.producer}")
        copies = PartitionCopier(
            plan,
            self._takeover.producer,
            read_committed=False,
            skip_refused=True,
            compression=world.compression,
            batch_bytes=chance.choice([0, 0, 0, 500, 5000]),
        )
        faulted = 0
        while True:
            await world.pause()
            if copies.fetch_offset < world.source.log_start:
                if copies.has_unsent or copies.has_unacknowledged:
                    pass
                else:  # on.source.gap = skip, which begins anew behind it
                    world.source.named_lost |= set(range(copies.fetch_offset, world.source.log_start))
                    copies.fetch_offset = copies.next_source_offset = world.source.log_start
            elif not copies.has_unsent:
                copies.take(world.source.fetch(copies.fetch_offset, chance))
            if not copies.has_unsent and not copies.has_unacknowledged:
                if world.is_quiet or chance.random() < 0.5:
                    break
                continue
            await self._send(copies)
            if copies.faulted:
                faulted += 1
                if faulted > 20:
                    raise Ended("no end of faults")
                await self._recover(copies)
            if world.is_quiet or chance.random() < 0.4:
                await self._store(self._position(copies, is_handed_over=False))
        if world.is_quiet or chance.random() < 0.5:
            await self._store(self._position(copies, is_handed_over=True))

    def _position(self, copies: PartitionCopier, *, is_handed_over: bool) -> Position:
        assert self._takeover is not None
        begun = position_of(copies.plan, *self._takeover.writer_of(copies.plan))
        if (report := copies.report()) is not None:
            self._world.announced += self._ledger.late_records(report)
        return replace(
            begun,
            next_source_offset=copies.next_source_offset,
            source_leader_epoch=copies.last_source_epoch,
            target_end=copies.target_end,
            next_sequence=copies.next_sequence,
            is_handed_over=is_handed_over,
        )

    async def _send(self, copies: PartitionCopier) -> None:
        """A round of requests on one connection, each with its fate."""
        world, chance = self._world, self._world.chance
        sent: list[Outgoing] = []
        while (outgoing := copies.next_batch(chance.choice([0.0, 1.0]))) is not None:
            sent.append(outgoing)
        held: list[tuple[bytes, list[int]]] = []
        is_cut = False
        for outgoing in sent:
            await world.pause()
            fate = "good" if world.is_quiet else chance.choice(["good"] * 12 + ["refused", "timed out", "lost", "cut"])
            offsets = [at for first, count in outgoing.segments for at in range(first, first + count)]
            if is_cut or fate == "cut":
                if (is_cut and held) or (not is_cut and chance.random() < 0.7):
                    held.append((bytes(outgoing.batch), offsets))
                is_cut = True
                copies.failed(outgoing, None)
            elif fate == "refused":
                copies.failed(outgoing, _NOT_ENOUGH_REPLICAS)
            else:
                self._deliver(copies, outgoing, offsets, fate)
        if held:
            world.hold(held)

    def _deliver(self, copies: PartitionCopier, outgoing: Outgoing, offsets: list[int], fate: str) -> None:
        target = self._world.target
        known = len(target.refusals)
        error, base = target.produce(bytes(outgoing.batch), offsets)
        if len(target.refusals) > known:
            copies.refused(outgoing, target.refusals[-1])
        elif error == _FENCED:
            raise Ended("fenced")
        elif error:
            copies.failed(outgoing, error)
        elif fate == "good":
            target.replicate()
            copies.acknowledged(outgoing, base)
        else:
            copies.failed(outgoing, _TIMED_OUT if fate == "timed out" else None)

    async def _recover(self, copies: PartitionCopier) -> None:
        """As ``Recoveries`` does: ask the leader what it has, find it in the log, send the rest again."""
        world, wrote = self._world, copies.producer
        await world.pause()
        world.target.replicate()
        epoch, last = world.target.last_sequence(wrote.producer_id) or (-1, -1)
        if epoch > wrote.epoch:
            raise Ended("fenced")
        unknown = copies.appended_unknown(last if epoch == wrote.epoch and last >= 0 else None)
        found = {}
        for batch in world.target.batches:
            header = wire.read_header(batch)
            if (header.producer_id, header.producer_epoch) == (wrote.producer_id, wrote.epoch):
                found[header.base_sequence] = header.base_offset
        if any(one.base_sequence not in found for one in unknown):
            raise Ended("what was appended is gone")
        copies.settle({one.base_sequence: found[one.base_sequence] for one in unknown})
        copies.split_or_skip()


def _cluster(name: str) -> Cluster:
    """What a cluster is asked for here; connections are known by its name."""

    async def metadata(names: Collection[str]) -> ClusterMetadata:
        partitions = {0: PartitionMetadata(1, 0, (1,), 0, (1,))}
        return ClusterMetadata(None, 1, {}, {one: TopicMetadata(one, IDS[one], 0, partitions) for one in names})

    async def connection(*_: object) -> str:
        return name

    return cast(
        Cluster, SimpleNamespace(name=name, metadata=metadata, connection=connection, leader_epochs=LeaderEpochs(name))
    )


def play(seed: int) -> World:
    world = World(seed)
    virtual_time.run(world.play())
    return world
