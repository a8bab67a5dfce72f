"""Several of ``kafka-mirror-maker``: shared work, a refused record, a message handler."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kit.brokers import KafkaCluster
from tests.kit.checker import Checker, TopicPair
from tests.kit.clients import cluster_at
from tests.kit.groups import describe
from tests.kit.maker_1 import DEADLINE_S, SpreadJudge, maker_1, numbers, read, stored, until, write
from tests.kit.mirror import Mirror
from tests.kit.topics import make_topics
from tests.kit.writer import Load, Writer

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]

PARTITIONS = 6


async def stable(bootstrap: str, group: str, makers: Sequence[Mirror], members: int) -> None:
    async def is_so() -> bool:
        for maker in makers:
            assert maker.is_running, maker.log_lines()[-20:]
        picture = await describe(cluster, group)
        if picture is None or picture.state != "Stable":
            return False
        assert picture.protocol_type == "consumer"
        return len([one for one in picture.members.values() if one.assignment]) == members

    async with cluster_at(bootstrap) as cluster:
        await until(is_so, f"{members} members share the work")


@pytest.mark.kill
async def test_a_fleet_shares_the_work_across_a_kill_and_a_join(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path
) -> None:
    topic, group = "mm1-fleet", "mm1-fleet-group"
    await make_topics(us.bootstrap, {topic: PARTITIONS})
    first, second, third, fourth = (
        maker_1(tmp_path / str(number), us.bootstrap, eu.bootstrap, group, "--include", topic) for number in range(4)
    )
    with (
        first,
        second,
        third,
        fourth,
        Writer(us.bootstrap, [Load(topic, PARTITIONS)], records_per_s=400, seed=1) as load,
    ):
        for maker in (first, second, third):
            maker.start()
        await stable(us.bootstrap, group, (first, second, third), 3)

        async def flows(count: int) -> bool:
            found = await stored(us.bootstrap, group)
            return len(found) == PARTITIONS and all(one.offset > count for one in found.values())

        await until(lambda: flows(20), "all partitions are copied")
        second.kill()
        await stable(us.bootstrap, group, (first, third), 2)
        fourth.start()
        await stable(us.bootstrap, group, (first, third, fourth), 3)
        before = max(one.offset for one in (await stored(us.bootstrap, group)).values())
        await until(lambda: flows(before + 20), "all partitions are copied on")
        await asyncio.to_thread(load.stop)
        async with Checker(us.bootstrap, eu.bootstrap, [TopicPair(topic, topic, PARTITIONS)]) as checker:
            report = await checker.caught_up(DEADLINE_S)
            assert report.is_exact, report.summary()
        for maker in (first, third, fourth):
            assert await asyncio.to_thread(maker.stop) == 0, maker.log_lines()[-20:]
        async with Checker(us.bootstrap, eu.bootstrap, [TopicPair(topic, topic, PARTITIONS)]) as checker:
            report = await checker.check()
            assert report.is_exact, report.summary()
        assert report.total("source_records") > 0


@pytest.mark.parametrize("partitions", [1, 2])
async def test_a_record_that_can_never_be_sent(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path, partitions: int
) -> None:
    """Records without a key, to a compacted topic: the process ends of the first, or leaves them out by name."""
    topic, group = f"mm1-refused-{partitions}", f"mm1-refused-group-{partitions}"
    await make_topics(us.bootstrap, {topic: 1})
    await make_topics(eu.bootstrap, {topic: partitions}, {"cleanup.policy": "compact"})
    await write(us.bootstrap, topic, range(1, 40), partitions=1)
    way = (us.bootstrap, eu.bootstrap, group, "--include", topic)
    with maker_1(tmp_path / "abort", *way) as maker:
        maker.start()

        async def ended() -> bool:
            return not maker.is_running

        await until(ended, "it ends of a record that cannot be sent")
        log = maker.log_lines()
        assert maker.stop() == 1, log[-5:]
        assert any(f"{topic}-0 cannot be copied further than source offset" in line for line in log), log[-5:]
    with maker_1(tmp_path / "skip", *way, "--abort.on.send.fail", "false") as maker:
        maker.start()

        async def is_stored() -> bool:
            return [one.offset for one in (await stored(us.bootstrap, group)).values()] == [39]

        await maker.until(is_stored, "the others are copied", DEADLINE_S)
        assert maker.stop() == 0, maker.log_lines()[-20:]
        named = [line for line in maker.log_lines() if "skipped the record of topic" in line]
    assert [line.partition("at offset ")[2].partition(":")[0] for line in named] == ["10", "21", "32"]
    wanted = {number for number in range(1, 40) if number % 11}
    found = [number for part in (await numbers(eu.bootstrap, topic)).values() for number in part]
    assert set(found) == wanted
    assert partitions > 1 or len(found) == len(wanted), "by key the first process may have copied some already"


async def test_more_partitions_at_the_target_across_a_kill(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    topic, group = "mm1-more", "mm1-more-group"
    await make_topics(us.bootstrap, {topic: 2})
    await make_topics(eu.bootstrap, {topic: 5})
    await write(us.bootstrap, topic, range(2000), keys=40)
    options = ("--include", topic, "--num.streams", "2")
    with maker_1(tmp_path, us.bootstrap, eu.bootstrap, group, *options) as maker:
        maker.start()

        async def arrived(count: int) -> bool:
            found = await numbers(eu.bootstrap, topic)
            return {number for part in found.values() for number in part} >= set(range(count))

        await maker.until(lambda: arrived(2000), "all is copied", DEADLINE_S)
        maker.kill()
        await write(us.bootstrap, topic, range(2000, 4000), keys=40)
        maker.start()
        await maker.until(lambda: arrived(4000), "the rest is copied", DEADLINE_S)
        assert maker.stop() == 0, maker.log_lines()[-20:]
    found = await read(eu.bootstrap, topic)
    # At least once: what was copied beyond the stored position is copied again, in the order that it had.
    assert {int(one.value) for part in found.values() for one in part} == set(range(4000))
    last_of_each = {index: {int(one.value): one for one in part}.values() for index, part in found.items()}
    assert len(SpreadJudge({index: list(part) for index, part in last_of_each.items()}).homes_in_use) > 1


async def test_a_message_handler_gives_topics_other_names(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "mm1-handled"
    # Where a user's package is installed; also for Spark's workers.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    await make_topics(us.bootstrap, {topic: 2})
    await make_topics(eu.bootstrap, {f"us.{topic}": 2})
    await write(us.bootstrap, topic, range(200))
    handler = ("--message.handler", "tests.kit.renaming:Renaming", "--message.handler.args", "us.")
    with maker_1(tmp_path, us.bootstrap, eu.bootstrap, "mm1-handled-group", "--include", topic, *handler) as maker:
        maker.start()

        async def arrived() -> bool:
            return sum(map(len, (await numbers(eu.bootstrap, f"us.{topic}")).values())) == 200

        await maker.until(arrived, "all is under the other name", DEADLINE_S)
        assert maker.stop() == 0, maker.log_lines()[-20:]
    assert SpreadJudge(await read(eu.bootstrap, f"us.{topic}")).numbers == list(range(200))
