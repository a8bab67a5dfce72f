"""What the offset map of a flow says, for people: asked of the target alone, whether a worker runs or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from connect.kafka.cluster import Cluster
from connectors.clients import FlowClients
from connectors.dataplane.plan import TopicPartition
from connectors.map_reader import MapReader
from connectors.offset_map import Pair, Place
from connectors.settings import MirrorSourceSettings


@dataclass(frozen=True, slots=True)
class Question:
    """Which part of the map, and which offset to translate, if any; ``is_reverse``: it is one of the target."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    is_reverse: bool = False

    def is_about(self, source: TopicPartition) -> bool:
        return self.topic in (None, source.topic) and self.partition in (None, source.partition)


@dataclass(frozen=True, slots=True)
class Answer:
    """Where an offset leads, and how that place lies to the map (``Place``)."""

    offset: int
    place: str


@dataclass(frozen=True, slots=True)
class PairView:
    """The map of one pair. Offsets are -1 where the map is empty; ``is_current``: it is copied to now.

    ``chunks`` and ``runs`` say how long it is: ``runs`` are those of the last chunk only.
    """

    source_topic: str
    source_partition: int
    target_topic: str
    target_partition: int
    target_topic_id: str
    is_current: bool
    copied_to: int
    source_begin: int
    source_end: int
    target_begin: int
    target_end: int
    chunks: int
    runs: int
    answer: Answer | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def read_map(settings: MirrorSourceSettings, clients: FlowClients, question: Question) -> list[PairView]:
    """The pairs asked for, in order. Errors as ``MapReader.follow``."""
    store = Cluster(clients.offsets(), settings.target_alias)
    wanted = None
    if question.topic is not None and question.partition is not None:
        wanted = [TopicPartition(question.topic, question.partition)]
    try:
        reader = MapReader(store, settings.map_topic, connector=settings.name, partitions=wanted)
        await reader.follow()
        views = []
        for source in reader.sources():
            if question.is_about(source):
                views += [await _view(reader, source, pair, question) for pair in _pairs(reader, source)]
        return views
    finally:
        await store.close()


def _pairs(reader: MapReader, source: TopicPartition) -> Sequence[Pair]:
    """The one copied to now first, though nothing may be mapped of it."""
    current = reader.current(source)
    others = sorted((pair for pair in reader.pairs(source) if pair != current), key=str)
    return [*([current] if current else []), *others]


async def _view(reader: MapReader, source: TopicPartition, pair: Pair, question: Question) -> PairView:
    chunks = reader.chunks(pair)
    newest = await reader.runs(pair, chunks[-1]) if chunks else None
    last = newest.last if newest else None
    begin, position = chunks[0].begin if chunks else (-1, -1), reader.position(source)
    is_current = pair == reader.current(source)
    return PairView(
        source_topic=pair.source_topic,
        source_partition=pair.source_partition,
        target_topic=pair.target_topic,
        target_partition=pair.target_partition,
        target_topic_id=str(pair.target_topic_id or ""),
        is_current=is_current,
        copied_to=position.next_source_offset if position and is_current else -1,
        source_begin=begin[0],
        source_end=last.upstream_end if last else -1,
        target_begin=begin[1],
        target_end=last.downstream_end if last else -1,
        chunks=len(chunks),
        runs=len(newest) if newest else 0,
        answer=await _answer(reader, pair, question),
    )


async def _answer(reader: MapReader, pair: Pair, question: Question) -> Answer | None:
    if question.offset is None:
        return None
    look_up = reader.reverse if question.is_reverse else reader.forward
    found = await look_up(pair, question.offset)
    return None if found is None else Answer(found.offset, found.place.value)


#: What a place means, to somebody who asked for it.
MEANING = {
    Place.INSIDE.value: "exact",
    Place.GAP.value: "nothing of it was mirrored; the nearest that was",
    Place.BELOW.value: "before the map begins: that part of the target is gone, or was copied by something else",
    Place.BEYOND.value: "not copied yet",
}
