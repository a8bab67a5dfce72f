"""All that a flow keeps in step, of 2,000 partitions with an authorizer, seen with stock clients; one mirror."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from tests.kit.copies import read_all
from tests.kit.java_mm2 import run_tool
from tests.kit.outside import (
    BACKWARDS,
    COLLIDING,
    IN_THE_WAY,
    LONGEST,
    MOVED,
    PARTITIONS,
    SECRET,
    SHAPED,
    TOO_LONG,
    Command,
    Outside,
    Topic,
    bulk,
    outside,
)
from tests.kit.processes import wait_until
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.long]

DEADLINE_S = 120.0
#: What a broker does not answer in this time is asked again.
_ASKED_S = 40.0
_LEDGER = re.compile(r"^(\S+):(\d+):(\d+)$", re.MULTILINE)
_SYNC = re.compile(r"OffsetSync\{topicPartition=(\S+)-(\d+), upstreamOffset=(\d+), downstreamOffset=(\d+)\}")
#: What `config.properties.exclude` and its default leave to the target.
_EXCLUDED = {"min.insync.replicas", "unclean.leader.election.enable", "message.timestamp.type"}
BY_NAME = {topic.name: topic for topic in SHAPED}
#: Nobody changes these meanwhile.
STILL = [one for one in SHAPED if one.name not in ("o.growing", "o.configured", "o.goes", LONGEST)]
Row = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...], int]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Outside, Command]]:
    """All that was written before is copied; and what a plan said before the first start."""
    with outside(tmp_path_factory.mktemp("outside")) as found:
        plan = found.run("plan", "--json")
        found.mirror.start()
        counts = {**{topic.name: topic.partitions for topic in STILL if not topic.is_compacted}, **bulk()}
        until(found, lambda: is_level(found, counts), "all is copied", 2 * DEADLINE_S)
        yield found, plan
        assert found.mirror.stop() == 0
        assert "Traceback" not in found.mirror.log_file.read_text()


@pytest.fixture(scope="module")
def world(begun: tuple[Outside, Command]) -> Outside:
    return begun[0]


def until(world: Outside, holds: Callable[[], Awaitable[Any]], what: str, deadline_s: float = DEADLINE_S) -> None:
    def asked() -> Any:
        assert world.mirror.is_running, world.mirror.log_lines()[-20:]
        return asyncio.run(_ask(holds))

    wait_until(asked, deadline_s, what)


async def _ask(holds: Callable[[], Awaitable[Any]]) -> Any:
    """None where the brokers are just making what is asked for."""
    with contextlib.suppress(KafkaError, TimeoutError):
        async with asyncio.timeout(_ASKED_S):
            return await holds()


async def ends(bootstrap: str, counts: dict[str, int], alias: str = "") -> dict[tuple[str, int], int]:
    """By name without alias; none where one of them is not there."""
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        if not {f"{alias}{name}" for name in counts} <= await consumer.topics():
            return {}
        wanted = [TopicPartition(f"{alias}{name}", index) for name, count in counts.items() for index in range(count)]
        found = await consumer.end_offsets(wanted)
    return {(one.topic.removeprefix(alias), one.partition): end for one, end in found.items()}


async def is_level(world: Outside, counts: dict[str, int]) -> bool:
    found = await ends(world.eu.bootstrap, counts, "us.")
    return bool(found) and all(
        end == len(world.written[key]) if key in world.written else end == 1 for key, end in found.items()
    )


async def rows(bootstrap: str, topic: str) -> list[Row]:
    return [
        (one.partition, one.key, one.value, tuple(one.headers), one.timestamp)
        for one in await read_all(bootstrap, topic)
    ]


def written(world: Outside, topic: Topic) -> list[Row]:
    return [
        (index, *record) for index in range(topic.partitions) for record in world.written.get((topic.name, index), [])
    ]


@pytest.mark.parametrize("name", [one.name for one in STILL if not one.is_compacted])
def test_a_consumer_of_the_remote_topic_sees_what_one_of_the_source_sees(world: Outside, name: str) -> None:
    arrived = asyncio.run(rows(world.eu.bootstrap, f"us.{name}"))
    assert arrived == asyncio.run(rows(world.us.bootstrap, name))
    if name != "o.append-time":
        assert arrived == written(world, BY_NAME[name])


@pytest.mark.parametrize("name", [one.name for one in STILL if one.is_compacted])
def test_a_compacted_topic_keeps_the_order_and_the_last_of_each_key(world: Outside, name: str) -> None:
    every = written(world, BY_NAME[name])
    last = {row[1]: row for row in every}

    async def is_whole() -> bool:
        return {row[1]: row for row in await rows(world.eu.bootstrap, f"us.{name}")} == last

    until(world, is_whole, "the last record of each key is there")
    left = iter(every)
    assert all(row in left for row in asyncio.run(rows(world.eu.bootstrap, f"us.{name}"))), "a subsequence, in order"


def test_kafkas_own_tools_count_the_same_on_both_sides(world: Outside) -> None:
    """Partitions and ends, by Kafka's ``kafka-get-offsets``."""
    us, eu = (
        {
            (name.removeprefix("us."), int(index)): int(end)
            for name, index, end in _LEDGER.findall(
                run_tool("org.apache.kafka.tools.GetOffsetShell", ["--bootstrap-server", where, "--topic", pattern])
            )
        }
        for where, pattern in ((world.us.bootstrap, r"o.*"), (world.eu.bootstrap, r"us\.o.*"))
    )
    counts = {**{topic.name: topic.partitions for topic in SHAPED}, **bulk()}
    assert sum(counts.values()) == PARTITIONS
    wanted = {(name, index) for name, count in counts.items() for index in range(count) if name != "o.goes"}
    assert wanted <= eu.keys() and wanted <= us.keys()
    plain = {key for key in wanted if key[0] in bulk() or key[0] in {one.name for one in STILL}}
    plain = {key for key in plain if key[0] != "o.transactions" and not BY_NAME.get(key[0], Topic("")).is_compacted}
    assert {key: eu[key] for key in plain} == {key: us[key] for key in plain}


def test_what_cannot_be_named_or_seen_is_said_and_the_others_go_on(world: Outside) -> None:
    said = world.mirror.log_file.read_text()
    assert f"topic {TOO_LONG} is not mirrored: its remote name us.{TOO_LONG[:37]}... has 250 characters" in said
    assert f"us.{COLLIDING}" in said and IN_THE_WAY in said, "why it cannot be made"
    assert SECRET not in said
    for name in (TOO_LONG, COLLIDING, SECRET):
        assert asyncio.run(world.eu_stock.partitions(f"us.{name}"[:249])) == 0


def test_settings_are_the_sources_but_for_those_that_are_excluded(world: Outside) -> None:
    for topic in STILL:
        wanted = {key: value for key, value in topic.configs.items() if key not in _EXCLUDED}
        assert asyncio.run(world.eu_stock.configs(f"us.{topic.name}")) == wanted, topic.name


def test_settings_follow_and_what_somebody_set_at_the_target_goes(world: Outside) -> None:
    name, remote = "o.configured", "us.o.configured"

    async def change() -> None:
        await world.eu_stock.alter(remote, {"segment.jitter.ms": "5", "min.insync.replicas": "1"})
        await world.us_stock.alter(name, {"retention.ms": "777777777"})

    asyncio.run(change())
    wanted = {"segment.ms": "86400000", "retention.ms": "777777777", "min.insync.replicas": "1"}

    async def is_so() -> bool:
        return await world.eu_stock.configs(remote) == wanted

    until(world, is_so, f"{remote} has {wanted}")


def test_the_sources_defaults_are_set_where_they_are_wanted(world: Outside) -> None:
    async def is_set() -> bool:
        found = await world.us_stock.configs("eu.back-a")
        return found.get("retention.ms") == "1209600000" and "flush.ms" in found and "min.insync.replicas" not in found

    until(world, is_set, "eu.back-a has the source's defaults too")


def test_partitions_are_added_and_a_later_topic_is_found(world: Outside) -> None:
    grown, later = BY_NAME["o.growing"], Topic("o.later", 3)
    asyncio.run(world.us_stock.grow("o.growing", 5))
    asyncio.run(make_topics(world.us.bootstrap, {"o.later": 3}))
    asyncio.run(world.us_stock.until_partitions("o.growing", 5))
    asyncio.run(world.us_stock.until_partitions("o.later", 3))
    asyncio.run(world.write(world.us, grown, first=1_000, partitions=range(5)))
    asyncio.run(world.write(world.us, later))
    counts = {"o.growing": 5, "o.later": 3}
    until(world, lambda: is_level(world, counts), "all records of new partitions are there")
    for topic in (Topic("o.growing", 5), later):
        assert asyncio.run(rows(world.eu.bootstrap, f"us.{topic.name}")) == written(world, topic)


def rules(guarded: Any, *resources: str) -> set[str]:
    return {line for line in guarded.rules() if line.split()[-1] in resources}


async def has_rules(guarded: Any, wanted: Collection[str], *resources: str) -> bool:
    return await asyncio.to_thread(rules, guarded, *resources) == set(wanted)


def test_access_rules_as_java_has_them(world: Outside) -> None:
    topic = "o-dashes-in-its-name"
    world.us_rules.add(
        f"ALLOW READ User:ann TOPIC LITERAL {topic}",
        f"ALLOW ALL User:joe TOPIC LITERAL {topic}",
        f"ALLOW WRITE User:ann TOPIC LITERAL {topic}",
        f"DENY READ User:eve TOPIC LITERAL {topic}",
        "ALLOW READ User:ann TOPIC PREFIXED o-dashes",
        "ALLOW READ User:ann GROUP LITERAL app-java",
    )
    wanted = {
        f"ALLOW READ User:ann TOPIC LITERAL us.{topic}",
        f"ALLOW READ User:joe TOPIC LITERAL us.{topic}",
        f"DENY READ User:eve TOPIC LITERAL us.{topic}",
    }
    names = (f"us.{topic}", "us.o-dashes", "app-java")
    until(world, lambda: has_rules(world.eu_rules, wanted, *names), f"{wanted}")
    world.us_rules.remove(f"ALLOW READ User:ann TOPIC LITERAL {topic}")
    world.us_rules.add(f"ALLOW READ User:zoe TOPIC LITERAL {topic}")
    wanted.add(f"ALLOW READ User:zoe TOPIC LITERAL us.{topic}")
    until(world, lambda: has_rules(world.eu_rules, wanted, *names), "nothing goes")


def test_access_rules_in_full(world: Outside) -> None:
    world.eu_rules.add(
        "ALLOW READ User:ann TOPIC LITERAL back-a",
        "ALLOW READ User:ann TOPIC PREFIXED back-",
        "ALLOW READ User:ann GROUP PREFIXED app-full",
        "DENY WRITE User:eve TRANSACTIONAL_ID LITERAL tx-full",
    )
    wanted = {
        "ALLOW READ User:ann TOPIC LITERAL eu.back-a",
        "ALLOW READ User:ann TOPIC PREFIXED eu.back-",
        "ALLOW READ User:ann GROUP PREFIXED app-full",
        "DENY WRITE User:eve TRANSACTIONAL_ID LITERAL tx-full",
    }
    names = ("eu.back-a", "eu.back-", "app-full", "tx-full")
    until(world, lambda: has_rules(world.us_rules, wanted, *names), f"{wanted}")
    world.eu_rules.remove("ALLOW READ User:ann GROUP PREFIXED app-full")
    wanted.remove("ALLOW READ User:ann GROUP PREFIXED app-full")
    until(world, lambda: has_rules(world.us_rules, wanted, *names), "what the flow has made goes with its original")


def test_a_topic_that_is_deleted_leaves_its_copy_or_takes_it_along(world: Outside) -> None:
    async def are_copied() -> bool:
        found = await ends(world.us.bootstrap, {one.name: one.partitions for one in BACKWARDS}, "eu.")
        return {key: len(records) for key, records in world.written.items() if key in found} == found != {}

    until(world, are_copied, "the flow back has copied all")
    asyncio.run(world.us_stock.delete("o.goes"))
    asyncio.run(world.eu_stock.delete("back-goes"))

    async def is_gone() -> bool:
        return await world.us_stock.partitions("eu.back-goes") == 0

    until(world, is_gone, "eu.back-goes is deleted (delete-after)")
    assert asyncio.run(rows(world.eu.bootstrap, "us.o.goes")) == written(world, BY_NAME["o.goes"]), "ignore"


def test_javas_formatter_reads_offset_syncs_and_each_is_true(world: Outside) -> None:
    syncs = "mm2-offset-syncs.eu.internal"
    reported = asyncio.run(ends(world.us.bootstrap, {syncs: 1}))[syncs, 0]
    out = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        [
            *("--bootstrap-server", world.us.bootstrap, "--topic", syncs, "--from-beginning"),
            *("--formatter", "org.apache.kafka.connect.mirror.formatters.OffsetSyncFormatter"),
            # Heartbeats bring more all the time.
            *("--max-messages", str(reported), "--timeout-ms", "60000"),
        ],
    )
    found = defaultdict(list)
    for name, index, upstream, downstream in _SYNC.findall(out):
        found[name, int(index)].append((int(upstream), int(downstream)))
    counts = {**{topic.name: topic.partitions for topic in STILL}, **bulk()}
    assert {(name, index) for name, count in counts.items() for index in range(count)} <= found.keys()
    for topic in STILL:
        source, target = (
            {(one.partition, one.offset): one.timestamp for one in asyncio.run(read_all(where, name))}
            for where, name in ((world.us.bootstrap, topic.name), (world.eu.bootstrap, f"us.{topic.name}"))
        )
        for index in range(topic.partitions):
            for upstream, downstream in found[topic.name, index]:
                here, there = source.get((index, upstream)), target.get((index, downstream))
                may_be_cleaned = topic.is_compacted and None in (here, there)
                assert here == there or may_be_cleaned, (topic.name, upstream, downstream)


def test_a_group_goes_along_and_heartbeats_tell_that_the_way_is_open(world: Outside) -> None:
    name, group, offset = "o.dots.in.its.name", f"{MOVED}-app", 7
    asyncio.run(commit(world.us.bootstrap, group, TopicPartition(name, 1), offset))

    async def is_moved() -> bool:
        async with AIOKafkaConsumer(bootstrap_servers=world.eu.bootstrap, group_id=group) as consumer:
            return bool(await consumer.committed(TopicPartition(f"us.{name}", 1)) == offset)

    until(world, is_moved, f"group {group} stands at {offset} of us.{name}-1")
    assert asyncio.run(rows(world.eu.bootstrap, "heartbeats"))


async def commit(bootstrap: str, group: str, partition: TopicPartition, offset: int) -> None:
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        await consumer.commit({partition: offset})


def test_plan_and_drift_at_this_scale(begun: tuple[Outside, Command]) -> None:
    world, before = begun
    (there, back) = json.loads(before.out)["flows"]
    made, made_back = (
        {change["topic"]: change for change in flow["changes"] if change["action"] == "create-topic"}
        for flow in (there, back)
    )
    counts = {**{topic.name: topic.partitions for topic in SHAPED}, **bulk()}
    assert before.code == 2, [flow["unknown"] for flow in (there, back)]
    assert {name: made[f"us.{name}"]["partitions"] for name in counts} == counts
    assert made_back["eu.back-a"]["partitions"] == 2
    assert any(TOO_LONG in note for note in there["notes"])

    def reported(command: str) -> Command:
        done = world.run(command, "--json")
        print(f"heliograph {command}: {done.cost}")
        return done

    def is_only_what_cannot_be_made() -> bool:
        flows = json.loads(reported("plan").out)["flows"]
        left = [(one["action"], one.get("topic")) for flow in flows for one in flow["changes"]]
        return left == [("create-topic", f"us.{COLLIDING}")]

    print(f"heliograph plan before the first start: {before.cost}")
    wait_until(is_only_what_cannot_be_made, DEADLINE_S, "the plan has nothing but what cannot be made")
    drift = reported("drift")
    assert drift.code == 2
    assert f"us.{COLLIDING}" in {change.get("topic") for change in json.loads(drift.out)["flows"][0]["sets"]}
