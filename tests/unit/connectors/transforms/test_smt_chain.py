"""Connect's transforms on mirrored records: what they see, what comes out, and what cannot."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from connect.api.convert import Predicate, Transformation
from connect.api.source import BYTES, Header, SourceRecord
from connect.api.transformations import named_steps
from connect.core.errors import ConfigError
from connect.runtime.plugins.plugin_registry import Plugins
from connect.wire.records import Record
from connectors.dataplane.smt_stage import ChainStage, outcome_of
from connectors.formats.types import TopicPartition, Ways
from connectors.policy import DefaultReplicationPolicy
from connectors.transforms.smt_chain import (
    Chain,
    ChainPlan,
    ChainStep,
    MadePlugin,
    Outcome,
    TopicRoutes,
    TransformUnusable,
    Untransformable,
)
from connectors.transforms.target_names import RemoteNames, chain_plan, check_chain
from tests.kit.logs import plan

PLAN = plan(partition=3)
RECORD = Record(7, 1700000000000, b"k", b"v", [("trace", b"1"), ("kind", None)])
CONVERTER = MadePlugin("connect.plugins.converters:ByteArrayConverter")


class Shown(Transformation):
    """Its value becomes what a transform sees of the record."""

    def apply(self, record: SourceRecord) -> SourceRecord:
        seen = [
            dict(record.source_partition), dict(record.source_offset), record.topic, record.partition,
            record.timestamp_ms, record.key_schema and record.key_schema.type,
            record.value_schema and record.value_schema.type, [header.key for header in record.headers],
        ]  # fmt: skip
        return replace(record, value=orjson.dumps(seen))


class Moved(Transformation):
    """Changes what it is told to, in one of the ways that cannot be copied."""

    def configure(self, props) -> None:
        ways: dict[str, dict[str, Any]] = {
            "elsewhere": {"topic": "us.other"},
            "a long one": {"topic": "x" * 250},
            "an odd one": {"topic": "card 5500 0000"},
            "none": {"topic": None},
            "no partition": {"partition": None},
            "long ago": {"timestamp_ms": -5},
        }
        self.change = ways[props["to"]]

    def apply(self, record: SourceRecord) -> SourceRecord:
        return replace(record, **self.change)


class Kept(Transformation):
    """Each value is told what transforms see, one header is added, and the others stay."""

    def apply(self, record: SourceRecord) -> SourceRecord:
        seen = "".join(header.key for header in record.headers).encode()
        return replace(record, value=seen, headers=(*record.headers, Header("a", b"", BYTES)))


class Half(Transformation):
    def apply(self, record: SourceRecord) -> SourceRecord:
        return replace(record, headers=(Header("\ud800", b"", BYTES),))


class Broken(Transformation):
    def apply(self, record: SourceRecord) -> SourceRecord:
        raise RuntimeError(f"no place for {record.value!r}")


class Greedy(Transformation):
    def apply(self, record: SourceRecord) -> SourceRecord:
        raise MemoryError


class Short(Predicate):
    def test(self, record: SourceRecord) -> bool:
        return len(record.value or b"") < 3


def chain(*steps: ChainStep) -> Chain:
    made = ChainPlan("us", CONVERTER, steps)
    return Chain(ChainPlan.from_wire(orjson.loads(orjson.dumps(made.to_wire()))))


def mine(kind: type, **props: str) -> MadePlugin:
    return MadePlugin(f"{__name__}:{kind.__name__}", kind.__name__, props)


def named(**props: str) -> ChainPlan:
    written = {key.replace("_", "."): value for key, value in props.items()}
    made = chain_plan(named_steps(written), "us", Plugins.discover().find)
    assert made is not None
    return made


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules[Shown.__module__])


def test_a_transform_sees_what_javas_task_hands_over() -> None:
    after = chain(ChainStep(mine(Shown))).transform(PLAN, RECORD)
    assert isinstance(after, Record) and after.value is not None
    assert orjson.loads(after.value) == [
        {"cluster": "us", "partition": 3, "topic": "orders"}, {"offset": 7}, "us.orders", 3, 1700000000000,
        "bytes", "bytes", ["trace", "kind"],
    ]  # fmt: skip
    assert after._replace(value=b"v") == RECORD


def test_a_lack_of_memory_is_no_fault_of_the_record() -> None:
    with pytest.raises(MemoryError):
        chain(ChainStep(mine(Greedy))).transform(PLAN, RECORD)


def test_what_no_transform_touches_is_the_same_record() -> None:
    one = chain(ChainStep(mine(Shown), mine(Short), negate=True))
    assert one.transform(PLAN, RECORD) is RECORD
    assert one.transform(PLAN, RECORD._replace(value=b"long")) != RECORD


def one_of(**props: str) -> Chain:
    """A chain of one transform."""
    return Chain(named(transforms="x", **{f"transforms_x_{key}": value for key, value in props.items()}))


def test_javas_transforms_drop_records_and_headers_and_fail_at_bytes_as_there() -> None:
    lean = one_of(type="DropHeaders", headers="trace")
    after = lean.transform(PLAN, RECORD)
    assert isinstance(after, Record) and after.headers == [("kind", None)]
    props = {
        "transforms": "x", "transforms_x_type": "Filter", "transforms_x_predicate": "p",
        "predicates_p_type": "RecordIsTombstone",
    }  # fmt: skip
    live = Chain(named(**props))
    assert live.transform(PLAN, RECORD._replace(value=None)) is None
    assert live.transform(PLAN, RECORD) is RECORD
    cards = {"type": "org.apache.kafka.connect.transforms.MaskField$Value", "fields": "card"}
    failed = one_of(**cards).transform(PLAN, RECORD)
    assert isinstance(failed, Untransformable) and "MaskField$Value: " in failed.reason and not failed.stops
    header = one_of(type="InsertHeader", header="h", value_literal="1")
    failed = header.transform(PLAN, RECORD)
    assert isinstance(failed, Untransformable) and "ByteArrayConverter" in failed.reason


def test_a_record_that_is_sent_elsewhere_stops_whatever_is_tolerated() -> None:
    failed = chain(ChainStep(mine(Moved, to="elsewhere"))).transform(PLAN, RECORD)
    neither = "which is neither in transform.topic nor in transform.other.topics"
    assert failed == Untransformable(f"a transform sends it to us.other, {neither}", True)
    for odd in ("a long one", "an odd one", "none"):
        failed = chain(ChainStep(mine(Moved, to=odd))).transform(PLAN, RECORD)
        assert failed == Untransformable(f"a transform sends it to an invalid topic name, {neither}", True)
    failed = chain(ChainStep(mine(Moved, to="no partition"))).transform(PLAN, RECORD)
    said = "a transform sends it to us.orders; mirrored records must keep the number of their partition"
    assert failed == Untransformable(said, stops=True)
    failed = chain(ChainStep(mine(Moved, to="long ago"))).transform(PLAN, RECORD)
    assert isinstance(failed, Untransformable) and "Invalid record timestamp -5" in failed.reason


def test_what_others_fill_is_left_out() -> None:
    short = chain(ChainStep(mine(Moved, to="elsewhere"), mine(Short)))
    long = RECORD._replace(value=b"long")
    usual = replace(PLAN, ways=Ways("us.orders", named=("us.orders", "us.other")))
    assert (short.transform(usual, RECORD), short.transform(usual, long)) == (None, long)
    other = replace(PLAN, target=TopicPartition("us.other", 3), ways=Ways("us.orders", named=("us.other", "us.orders")))
    assert (short.transform(other, RECORD), short.transform(other, long)) == (RECORD, None)


def test_what_a_stranger_raises_is_not_repeated() -> None:
    assert chain(ChainStep(mine(Broken))).transform(PLAN, RECORD) == Untransformable("Broken raised RuntimeError")


def test_what_cannot_be_imported_or_made_is_refused() -> None:
    with pytest.raises(TransformUnusable, match="Install its package"):
        chain(ChainStep(MadePlugin("not.there:Transform", "my.Transform")))
    with pytest.raises(TransformUnusable, match="cannot be created: KeyError"):
        chain(ChainStep(mine(Moved)))
    with pytest.raises(TransformUnusable, match="is not a transformation"):
        chain(ChainStep(mine(Short)))


def router(**more: str) -> ChainPlan:
    return named(
        transforms="x,y",
        transforms_x_type="RegexRouter",
        transforms_x_regex="us.(.*)",
        transforms_x_replacement="$1.here",
        transforms_y_type="DropHeaders",
        transforms_y_headers="kind",
        **more,
    )


def test_records_come_out_under_the_name_that_their_topic_has_there() -> None:
    short = Chain(router())
    after = short.transform(replace(PLAN, target=TopicPartition("orders.here", 3), ways=Ways("us.orders")), RECORD)
    assert after == RECORD._replace(headers=[("trace", b"1")])
    of_topic = {"predicates_p_type": "TopicNameMatches", "predicates_p_pattern": "a"}
    elsewhere = Chain(router(transforms_x_predicate="p", **of_topic))
    assert elsewhere.transform(PLAN, RECORD) == after


@pytest.mark.parametrize(
    ("props", "said"),
    [
        ({"type": "RegexRouter", "predicate": "p"}, "depends on more than a record's topic"),
        ({"type": "org.apache.kafka.connect.transforms.TimestampRouter"}, "to an unlimited number of topics"),
        ({"type": "my.Transform"}, "Failed to find any class"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused_with_its_key(props: dict[str, str], said: str) -> None:
    own = {f"transforms_x_{key}": value for key, value in props.items()}
    with pytest.raises(ConfigError, match=said) as refused:
        named(transforms="x", predicates_p_type="RecordIsTombstone", **own)
    assert refused.value.key == "transforms.x.type"


def test_what_only_renames_topics_opens_no_record() -> None:
    props = {"transforms": "x", "transforms.x.type": "RegexRouter"}
    assert chain_plan(named_steps(props), "us", Plugins.discover().find) is None
    with pytest.raises(ConfigError, match="version"):
        chain_plan(named_steps({**props, "transforms.x.plugin.version": "[99,)"}), "us", Plugins.discover().find)


def test_a_router_for_some_records_needs_names_for_all() -> None:
    props = {
        "transforms": "x", "transforms.x.type": "RegexRouter", "transforms.x.regex": "us.(.*)",
        "transforms.x.replacement": "us.$1.gone", "transforms.x.predicate": "p",
        "predicates.p.type": "RecordIsTombstone",
    }  # fmt: skip
    names = RemoteNames("us", DefaultReplicationPolicy(), routes=TopicRoutes("${topic}.gone", ("${topic}",)))
    find = Plugins.discover().find
    made = chain_plan(named_steps(props), "us", find, names)
    assert made is not None
    gone = replace(PLAN, target=TopicPartition("us.orders.gone", 3), ways=names.ways("orders"))
    tombstone = RECORD._replace(value=None)
    assert (Chain(made).transform(gone, RECORD), Chain(made).transform(gone, tombstone)) == (None, tombstone)
    with pytest.raises(ConfigError, match=r"and so does transform\.sql"):
        chain_plan(named_steps(props), "us", find, replace(names, by_query=True))


def test_settings_that_a_transform_refuses_are_refused() -> None:
    with pytest.raises(ConfigError, match="headers"):
        check_chain(named(transforms="x", transforms_x_type="DropHeaders"))


class Held:
    """A stage before the transforms, which gives back when it is told to."""

    def __init__(self) -> None:
        self.waiting: list = []

    async def start(self, broken) -> None: ...

    async def stop(self) -> None: ...

    def submit(self, plan, part, done) -> None:
        self.waiting.append((part, done))


async def test_a_stage_keeps_the_order_and_passes_on_what_came_before() -> None:
    held = Held()
    stage = ChainStage(chain(ChainStep(mine(Broken), mine(Short))), held)
    await stage.start(lambda error: pytest.fail(str(error)))
    asked = [asyncio.create_task(outcome_of(stage, PLAN, [RECORD])) for _ in range(3)]
    await asyncio.sleep(0)
    long = RECORD._replace(value=b"long")
    given: list[Outcome] = [[None], [long], [RECORD]]
    for (_, done), outcome in zip(held.waiting, given, strict=True):
        done(outcome)
    assert await asyncio.gather(*asked) == [[None], [long], [Untransformable("Broken raised RuntimeError")]]
    await stage.stop()


async def test_a_stage_leaves_the_loop_to_others() -> None:
    stage = ChainStage(chain(ChainStep(mine(Shown))))
    await stage.start(lambda error: pytest.fail(str(error)))
    turns = 0
    asked = asyncio.create_task(outcome_of(stage, PLAN, [RECORD] * 20_000))
    while not asked.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 3
    assert len(asked.result()) == 20_000
    await stage.stop()


def test_keys_of_headers_that_are_no_text_are_shown_as_javas_and_kept() -> None:
    record = RECORD._replace(headers=[("\udce9t\udce9", b"1"), ("n", None)])
    after = chain(ChainStep(mine(Kept))).transform(PLAN, record)
    assert after == record._replace(value="\ufffdt\ufffdn".encode(), headers=[*record.headers, ("a", b"")])
    assert chain(ChainStep(mine(Half))).transform(PLAN, RECORD) == Untransformable(
        "the conversion to bytes: a header key contains half of a surrogate pair, which UTF-8 cannot encode"
    )
