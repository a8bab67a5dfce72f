"""Runs Connect's single message transforms on mirrored records, and selects the records for a connector's topic.

A transform sees records as in Java: the topic is the remote one; key, value and headers are bytes (Kafka's
``MirrorSourceTask.convertRecord``). The result goes through ``ByteArrayConverter``.

A query or a transform may send records of a topic to several topics (``transform.topic``, ``transform.other.topics``).
Each of these topics has its own connector with the same query and transforms: it copies the records of its topic and
drops those of the other topics. A record for any other topic stops its partition, so that no record is lost because a
topic was not configured.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from connect.api.convert import Converter, DataError, HeaderConverter, Predicate, Transformation
from connect.api.source import BYTES, OPTIONAL_BYTES, Header, SourceRecord
from connect.api.transformations import TransformationStep
from connect.core.config.config_def import Values
from connect.core.errors import ConfigError, HeliographError, PermanentError
from connect.wire.batch import NO_TIMESTAMP, is_text, readable
from connectors.control_link.protocol import PartitionPlan
from connectors.formats.types import Wired
from connectors.policy import IN_NAMES, LONGEST_NAME

if TYPE_CHECKING:
    from connect.wire.records import Record

TOPIC_KEY: Final = "transform.topic"
OTHERS_KEY: Final = "transform.other.topics"
#: The placeholder for the source topic.
UNCHANGED: Final = "${topic}"


@dataclass(frozen=True, slots=True)
class TopicRoutes:
    """The topics that a query or transforms may set, with ``${topic}`` for the source topic: this connector writes
    ``own``, other connectors write ``others``."""

    own: str = UNCHANGED
    others: tuple[str, ...] = ()

    @property
    def fills_the_usual(self) -> bool:
        """Whether this connector writes the unchanged topic, as Java does."""
        return self.own == UNCHANGED

    def asked(self, topic: str) -> tuple[str, ...]:
        """Return the topics that a query may set for records of ``topic``; the first is this connector's."""
        return tuple(one.replace(UNCHANGED, topic) for one in (self.own, *self.others))


NO_ROUTES: Final = TopicRoutes()


def routes_message(topic: object) -> str:
    """Return the text for a topic computed from a record. An invalid topic name is not shown, because it may contain
    any part of the record."""
    is_name = isinstance(topic, str) and len(topic) <= LONGEST_NAME and IN_NAMES.issuperset(topic)
    return str(topic) if is_name else "an invalid topic name"


def topic_routes(values: Values) -> TopicRoutes:
    """Return the topics in the settings. Raises ConfigError if a name is invalid, or ``own`` is in ``others``."""
    routes = TopicRoutes(values.string(TOPIC_KEY).strip(), values.strings(OTHERS_KEY))
    for key, name in ((TOPIC_KEY, routes.own), *((OTHERS_KEY, other) for other in routes.others)):
        if not name or not IN_NAMES.issuperset(name.replace(UNCHANGED, "")):
            raise ConfigError(f"{key} has '{name}', which is not a topic name; {UNCHANGED} is the source topic", key)
    if routes.own in routes.others:
        raise ConfigError(
            f"{OTHERS_KEY} has {routes.own}, which is also {TOPIC_KEY}; remove it from one of them", OTHERS_KEY
        )
    return routes


class TransformUnusable(PermanentError):
    """A transform cannot be created in the process that copies records."""


@dataclass(frozen=True, slots=True)
class Untransformable:
    """A record that could not be transformed. ``reason`` contains no content of the record except a computed topic.
    ``stops``: the partition stops instead of skipping the record, regardless of ``errors.tolerance``."""

    reason: str
    stops: bool = False


#: The results for the records of a call, in order; None for a dropped record.
Outcome = list["Record | Untransformable | None"]
Done = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class MadePlugin(Wired):
    """A plugin to create. ``reference``: its class as ``package.module:Class``; ``name``: as the user wrote it."""

    reference: str
    name: str = ""
    props: Mapping[str, str] = field(default_factory=dict, repr=False)

    def make(self) -> Any:
        """Create and configure an instance. Raises TransformUnusable if that fails."""
        try:
            made = pkgutil.resolve_name(self.reference)()
            made.configure(self.props)
        except HeliographError as error:
            raise TransformUnusable(f"{self.name} cannot be used: {error}") from error
        except (ImportError, AttributeError) as error:
            raise TransformUnusable(
                f"{self.name} cannot be imported on an executor ({type(error).__name__}: {self.reference}). Install "
                "its package for the Python of every executor"
            ) from error
        except MemoryError:  # because the transform is not the cause
            raise
        except Exception as error:  # from foreign code; its message may contain a secret setting
            raise TransformUnusable(f"{self.name} cannot be created: {type(error).__name__}") from error
        return made


@dataclass(frozen=True, slots=True)
class ChainStep(Wired):
    """A transform and its predicate. ``renames``: it only renames topics, independently of the record."""

    transformation: MadePlugin
    predicate: MadePlugin | None = None
    negate: bool = False
    renames: bool = False


@dataclass(frozen=True, slots=True)
class ChainPlan(Wired):
    """The transforms of a flow. ``cluster`` is the alias of the source; ``converter`` converts results to bytes."""

    cluster: str
    converter: MadePlugin
    steps: tuple[ChainStep, ...]


class Chain:
    """A chain of created transforms. Raises TransformUnusable if one cannot be created."""

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

    def transform(self, plan: PartitionPlan, record: Record) -> Record | Untransformable | None:
        """Transform a source record; None if a transform drops it or its topic belongs to another connector."""
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
            return Untransformable(f"{doing}: {error}")
        except _Routed as routed:
            return Untransformable(str(routed), stops=True)
        except MemoryError:  # because the record is not the cause
            raise
        except Exception as error:  # from foreign code; its message may contain content of the record
            return Untransformable(f"{doing} raised {type(error).__name__}")

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
            where = routes_message(after.topic) + ("" if after.partition is None else f"-{after.partition}")
            raise _Routed(f"a transform sends it to {where}; mirrored records must keep the number of their partition")
        if after.topic != ours and after.topic not in others:
            raise _Routed(
                f"a transform sends it to {routes_message(after.topic)}, which is neither in {TOPIC_KEY} nor in "
                f"{OTHERS_KEY}"
            )
        return after.topic != ours

    def _converted(self, before: Record, shown: SourceRecord, after: SourceRecord) -> Record:
        topic = after.topic
        time_ms = before.timestamp_ms if after.timestamp_ms is None else after.timestamp_ms
        if time_ms < NO_TIMESTAMP:
            raise DataError(f"Invalid record timestamp {time_ms}")
        convert = self._converter
        # A header that no transform replaced keeps the bytes of its key, even if they are not UTF-8.
        own = {id(one): key for one, (key, _) in zip(shown.headers, before.headers, strict=True)}
        return before._replace(
            timestamp_ms=time_ms,
            key=convert.from_connect(topic, after.key_schema, after.key),
            value=convert.from_connect(topic, after.value_schema, after.value),
            headers=[
                (own.get(id(it)) or _written(it.key), convert.from_connect_header(topic, it.key, it.schema, it.value))
                for it in after.headers
            ],
        )

    def _name(self, seen: str) -> str:
        """Return the topic to which the renaming steps rename ``seen``."""
        name = self._names.get(seen)
        if name is None:
            name = self._names[seen] = renamed(self._renaming, seen)
        return name


def _written(key: str) -> str:
    """Return a header key from a transform. Raises DataError if UTF-8 cannot encode it."""
    if not is_text(key):
        raise DataError("a header key contains half of a surrogate pair, which UTF-8 cannot encode")
    return key


class _Routed(Exception):
    """A transform sends a record to a topic or partition that no connector writes."""


def _seen(plan: PartitionPlan) -> str:
    return plan.ways.seen_as or plan.target.topic


def renamed(renaming: Iterable[TransformationStep], topic: str) -> str:
    """Return the topic name after the renaming steps."""
    record: SourceRecord | None = SourceRecord({}, {}, topic, None)
    for step in renaming:
        assert record is not None, "a renaming step drops no records"
        record = step.apply(record)
    assert record is not None, "a renaming step drops no records"
    return record.topic


def made_step(step: ChainStep) -> TransformationStep:
    """Create a step. Raises TransformUnusable if a class is not a transformation or predicate, or cannot be created."""
    transformation = step.transformation.make()
    predicate = None if step.predicate is None else step.predicate.make()
    if not isinstance(transformation, Transformation):
        raise TransformUnusable(f"{step.transformation.name} is not a transformation")
    if predicate is not None and not isinstance(predicate, Predicate):
        raise TransformUnusable(f"{step.predicate and step.predicate.name} is not a predicate")
    return TransformationStep(transformation, predicate, step.negate)
