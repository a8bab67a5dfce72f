"""``kafka-mirror-maker`` between two brokers: names, partitions, keys, positions in the consumer's own group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord

from connect.embedded.brokers import KafkaCluster
from tests.kit.maker_1 import DEADLINE_S, QUICK, SpreadJudge, maker_1, numbers, read, stored, write
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

GROUP = "mm1-names"
RECORDS = 300


async def test_topics_keep_their_names_and_positions_are_the_groups(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path
) -> None:
    await make_topics(us.bootstrap, {"mm1.alike": 2, "mm1.fewer": 3, "mm1.new": 2, "mm1.secret-internal": 1})
    await make_topics(eu.bootstrap, {"mm1.alike": 2, "mm1.fewer": 2})
    for topic, partitions in (("mm1.alike", 2), ("mm1.fewer", None), ("mm1.new", 2), ("mm1.secret-internal", 1)):
        await write(us.bootstrap, topic, range(RECORDS), partitions=partitions)
    # Nobody is killed: no session may end, and nothing be copied twice, because the machine stands still.
    calm = {**QUICK, "session.timeout.ms": "60000"}
    options = ("--whitelist", "none,mm1[.].*")
    with maker_1(tmp_path, us.bootstrap, eu.bootstrap, GROUP, *options, consumer=calm) as maker:
        maker.start()

        async def is_stored() -> bool:
            at = await stored(us.bootstrap, GROUP)
            return sum(one.offset for one in at.values()) == 3 * RECORDS

        await maker.until(is_stored, "the group stands at the ends", DEADLINE_S)
        assert maker.stop() == 0, maker.log_lines()[-20:]
        maker.assert_gone()
    assert {topic for topic, _ in await stored(us.bootstrap, GROUP)} == {"mm1.alike", "mm1.fewer", "mm1.new"}
    for topic in ("mm1.alike", "mm1.new"):
        here, there = await read(us.bootstrap, topic), await read(eu.bootstrap, topic)
        assert {index: _plain(found) for index, found in there.items()} == {
            index: _plain(found) for index, found in here.items()
        }
    judge = SpreadJudge(await read(eu.bootstrap, "mm1.fewer"))
    assert judge.numbers == list(range(RECORDS))
    assert judge.homes_in_use == {0, 1}, "keys in one partition only would show nothing"
    assert await numbers(eu.bootstrap, "mm1.secret-internal") == {}


def _plain(records: list[ConsumerRecord[Any, Any]]) -> list[tuple[Any, ...]]:
    return [(one.key, one.value, one.timestamp, one.headers) for one in records]
