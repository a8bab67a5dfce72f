"""Run Connect's single message transforms on mirrored records, and tell which of several topics a connector fills.

A record looks to a transform as Java's does: its topic is the remote one, key and value are bytes, headers too
(Kafka's ``MirrorSourceTask.convertRecord``), and what comes out goes through ``ByteArrayConverter``.

A query or a transform may send records of one topic to several (``transform.topic``, ``transform.other.topics``). Each
of these is filled by a connector of its own, with the same query and transforms: it copies the records of its topic and
drops those of topics that others fill. A record that goes anywhere else stops its partition, so no record is lost
because its topic was forgotten.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from connect.api.convert import Converter, DataError, HeaderConverter, Predicate, Transformation
from connect.api.source import BYTES, OPTIONAL_BYTES, Header, SourceRecord
from connect.api.transformations import TransformationStep
from connect.core.config.config_def import Values
from connect.core.errors import ConfigError, HeliographError, PermanentError
from connect.wire.batch import NO_TIMESTAMP, is_text, readable
from connectors.control_link.protocol import PartitionPlan
from connectors.policy import LONGEST_NAME

if TYPE_CHECKING:
    from connect.wire.records import Record

TOPIC_KEY: Final = "transform.topic"
OTHERS_KEY: Final = "transform.other.topics"
#: Stands for the source topic.
UNCHANGED: Final = "${topic}"
_IN_NAMES: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@dataclass(frozen=True, slots=True)
class TopicRoutes:
    """Names of topics as a query gives them, with ``${topic}`` for the source topic: ``own`` is filled, ``others`` are
    left to others."""

    own: str = UNCHANGED
    others: tuple[str, ...] = ()

    @property
    def fills_the_usual(self) -> bool:
        """Whether we fill the topic that records go to where nothing sends them elsewhere: where Java's would go."""
        return self.own == UNCHANGED

    def asked(self, topic: str) -> tuple[str, ...]:
        """What a query may call the topic of a record of ``topic``; the first is ours."""
        return tuple(one.replace(UNCHANGED, topic) for one in (self.own, *self.others))


NO_ROUTES: Final = TopicRoutes()


def routes_message(topic: object) -> str:
    """A topic that was computed from a record, for people. What is no topic's name may be anything that stands in the
    record, so it is not told."""
    is_name = isinstance(topic, str) and len(topic) <= LONGEST_NAME and _IN_NAMES.issuperset(topic)
    return str(topic) if is_name else "what is no topic's name"


def topic_routes(values: Values) -> TopicRoutes:
    """Raises ConfigError where a name is none, or ours is among the others."""
    routes = TopicRoutes(values.string(TOPIC_KEY).strip(), values.strings(OTHERS_KEY))
    for key, name in ((TOPIC_KEY, routes.own), *((OTHERS_KEY, other) for other in routes.others)):
        if not name or not _IN_NAMES.issuperset(name.replace(UNCHANGED, "")):
            raise ConfigError(f"{key} has '{name}', which is no topic's name; {UNCHANGED} is the source topic", key)
    if routes.own in routes.others:
        raise ConfigError(
            f"{OTHERS_KEY} has {routes.own}, which is {TOPIC_KEY}: either we fill it or others", OTHERS_KEY
        )
    return routes


class TransformUnusable(PermanentError):
    """A transform cannot be made where records are copied."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """A record that could not be transformed: ``reason`` for people, without what stands in the record but for
    a topic that is made of it.

    ``stops``: it is not to be left out, whatever ``errors.tolerance`` says.
    """

    reason: str
    stops: bool = False


#: Of the records of one call, in their order; None for each that is dropped.
Outcome = list["Record | Unfit | None"]
Done = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class MadePlugin:
    """``reference``: where its class is imported from, ``package.module:Class``; ``name``: as its user wrote it."""

    reference: str
    name: str = ""
    props: Mapping[str, str] = field(default_factory=dict, repr=False)

    def make(self) -> Any:
        """An instance, configured. Raises TransformUnusable."""
        try:
            made = pkgutil.resolve_name(self.reference)()
            made.configure(self.props)
        except HeliographError as error:
            raise TransformUnusable(f"{self.name} cannot be used: {error}") from error
        except (ImportError, AttributeError) as error:
            raise TransformUnusable(
                f"{self.name} cannot be imported where records are copied ({type(error).__name__}: {self.reference}); "
                "install its package for the Python of every executor"
            ) from error
        except MemoryError:  # which says nothing of the record
            raise
        except Exception as error:  # of other people; what it says may hold a setting that is secret
            raise TransformUnusable(f"{self.name} cannot be made: {type(error).__name__}") from error
        return made


@dataclass(frozen=True, slots=True)
class ChainStep:
    """``renames``: it does nothing but give topics other names, whatever stands in a record."""

    transformation: MadePlugin
    predicate: MadePlugin | None = None
    negate: bool = False
    renames: bool = False


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """The transforms of a flow. ``cluster`` is the source's alias; ``converter`` makes bytes of what comes out."""

    cluster: str
    converter: MadePlugin
    steps: tuple[ChainStep, ...]

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        steps = tuple(
            ChainStep(
                MadePlugin(**step["transformation"]),
                MadePlugin(**step["predicate"]) if step["predicate"] else None,
                step["negate"],
                step["renames"],
            )
            for step in data["steps"]
        )
        return cls(data["cluster"], MadePlugin(**data["converter"]), steps)


class Chain:
    """The transforms, made. Raises TransformUnusable where one cannot be."""

    def __init__(self, plan: ChainPlan) -> None:
        self._cluster = plan.cluster
        self._converter = plan.converter.make()
        assert isinstance(self._converter, Converter) and isinstance(self._converter, HeaderConverter)
        self._steps = [(step.transformation.name, made_step(step)) for step in plan.steps]
        self._renaming = [made for (_, made), step in zip(self._steps, plan.steps, strict=True) if step.renames]
        self._names: dict[str, str] = {}

    def close(self) -> None:
        for _, step in self._steps:
            step.close()

    def transform(self, plan: PartitionPlan, record: Record) -> Record | Unfit | None:
        """What becomes of a source record; None where a transform drops it."""
        doing = "the conversion to bytes"
        try:
            before = current = self._source_record(plan, record)
            for name, step in self._steps:
                doing = name
                after = step.apply(current)
                if after is None:
                    return None
                current = after
            if current is before and not plan.ways.named:
                return record
            if self._goes_to_others(plan, current):
                return None
            doing = "the conversion to bytes"
            return record if current is before else self._converted(record, before, current)
        except DataError as error:
            return Unfit(f"{doing}: {error}")
        except _Routed as routed:
            return Unfit(str(routed), stops=True)
        except MemoryError:  # which says nothing of the record
            raise
        except Exception as error:  # of other people; what it says may hold what stands in the record
            return Unfit(f"{doing} raised {type(error).__name__}")

    def _source_record(self, plan: PartitionPlan, record: Record) -> SourceRecord:
        source = plan.source
        return SourceRecord(
            {"cluster": self._cluster, "partition": source.partition, "topic": source.topic},
            {"offset": record.offset},
            _seen(plan),
            record.value,
            BYTES,
            record.key,
            OPTIONAL_BYTES,
            source.partition,
            record.timestamp_ms,
            tuple(Header(readable(key), value, BYTES) for key, value in record.headers),
        )

    def _goes_to_others(self, plan: PartitionPlan, after: SourceRecord) -> bool:
        ours, *others = plan.ways.named or (self._name(_seen(plan)),)
        if after.partition != plan.source.partition:
            where = (
                routes_message(after.topic)
                if after.partition is None
                else f"{routes_message(after.topic)}-{after.partition}"
            )
            raise _Routed(f"a transform sends it to {where}; mirrored records stay in the partition of their number")
        if after.topic != ours and after.topic not in others:
            raise _Routed(
                f"a transform sends it to {routes_message(after.topic)}, which neither {TOPIC_KEY} nor {OTHERS_KEY} "
                f"stands for"
            )
        return after.topic != ours

    def _converted(self, before: Record, shown: SourceRecord, after: SourceRecord) -> Record:
        topic = after.topic
        time_ms = before.timestamp_ms if after.timestamp_ms is None else after.timestamp_ms
        if time_ms < NO_TIMESTAMP:
            raise DataError(f"Invalid record timestamp {time_ms}")
        convert = self._converter
        # A header that no transform has replaced keeps the bytes of its key, UTF-8 or not.
        own = {id(one): key for one, (key, _) in zip(shown.headers, before.headers, strict=True)}
        return before._replace(
            timestamp_ms=time_ms,
            key=convert.from_connect(topic, after.key_schema, after.key),
            value=convert.from_connect(topic, after.value_schema, after.value),
            headers=[
                (
                    own.get(id(one)) or _written(one.key),
                    convert.from_connect_header(topic, one.key, one.schema, one.value),
                )
                for one in after.headers
            ],
        )

    def _name(self, seen: str) -> str:
        """What all records come out under that go in under ``seen``."""
        name = self._names.get(seen)
        if name is None:
            name = self._names[seen] = renamed(self._renaming, seen)
        return name


def _written(key: str) -> str:
    """A header's key that a transform gives."""
    if not is_text(key):
        raise DataError("a header's key holds half of a surrogate pair, which is no text")
    return key


class _Routed(Exception):
    """A transform asks for a place that is nobody's."""


def _seen(plan: PartitionPlan) -> str:
    return plan.ways.seen_as or plan.target.topic


def renamed(renaming: Iterable[TransformationStep], topic: str) -> str:
    """What such steps make of a topic's name."""
    record: SourceRecord | None = SourceRecord({}, {}, topic, None)
    for step in renaming:
        assert record is not None, "what gives other names drops nothing"
        record = step.apply(record)
    assert record is not None, "what gives other names drops nothing"
    return record.topic


def made_step(step: ChainStep) -> TransformationStep:
    """Raises TransformUnusable."""
    transformation = step.transformation.make()
    predicate = None if step.predicate is None else step.predicate.make()
    if not isinstance(transformation, Transformation):
        raise TransformUnusable(f"{step.transformation.name} is no transformation")
    if predicate is not None and not isinstance(predicate, Predicate):
        raise TransformUnusable(f"{step.predicate and step.predicate.name} is no predicate")
    return TransformationStep(transformation, predicate, step.negate)
