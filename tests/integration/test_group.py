"""Members of a group of type ``connect`` on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from kafka.protocol.admin.groups import DescribeGroupsRequest

from connect.embedded.brokers import KafkaCluster
from connect.kafka.group_protocol import GroupRefused, GroupSettings
from connect.kafka.threads import LeaseThread
from tests.kit.clients import cluster_at
from tests.kit.members import SETTINGS, Joiner, agree, until

pytestmark = pytest.mark.integration

Begin = Callable[..., Joiner]


@pytest.fixture
async def begin(us: KafkaCluster) -> AsyncIterator[Begin]:
    group, begun = f"group-{uuid4()}", []

    def one(name: str, settings: GroupSettings = SETTINGS, **more: Any) -> Joiner:
        begun.append(Joiner(us.bootstrap, group, name, settings, **more))
        return begun[-1]

    yield one
    await asyncio.gather(*(joiner.leave() for joiner in begun))


async def described(us: KafkaCluster, group: str) -> Any:
    async with cluster_at(us.bootstrap) as cluster:
        answer = await (await cluster.coordinator(group, "group")).call(DescribeGroupsRequest(groups=[group]))
        return answer.groups[0]


async def test_members_share_a_group_of_connects_type(us: KafkaCluster, begin: Begin) -> None:
    first = begin("first")
    await until(lambda: agree(first), "one member is a group")
    assert first.last.member.startswith("first-")
    assert first.last.leader == first.last.member
    second = begin("second")
    await until(lambda: agree(first, second), "both are in one round")
    assert first.reported == ["rebalance"]
    # Of two protocols in common it is the one that both prefer, and each member's metadata for it.
    assert second.last.protocol == "sessioned"
    assert sorted(first.assigned[-1].values()) == [b"first sessioned", b"second sessioned"]
    group = await described(us, first.group)
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "connect", "sessioned")
    assert {row.member_id for row in group.members} == {first.last.member, second.last.member}
    assert {row.client_id for row in group.members} == {"first", "second"}


async def test_another_leads_when_the_leader_leaves(begin: Begin) -> None:
    first = begin("first")
    await until(lambda: agree(first), "one member is a group")
    second, third = begin("second"), begin("third")
    await until(lambda: agree(first, second, third), "all are in one round")
    await first.leave()
    # Long before its session would have ended.
    await until(lambda: agree(second, third), "the others are in a round", 0.7 * SETTINGS.session_timeout_ms / 1_000)
    assert second.last.leader in (second.last.member, third.last.member)
    assert not [what for what in second.reported + third.reported if what != "rebalance"]


async def test_a_round_that_waits_for_somebody_keeps_whoever_is_ready(begin: Begin) -> None:
    """Heartbeats are answered while a JoinGroup waits, so that no lease ends by somebody else's slowness."""
    ready, slow = begin("ready"), begin("slow")
    await until(lambda: agree(ready, slow), "both are in one round")
    slow.ready.clear()
    third = begin("third")
    await until(lambda: ready.joining, "a round has begun")
    answered = ready.answered
    await until(lambda: ready.answered > answered + 5, "heartbeats are answered while it waits")
    assert ready.joining
    slow.ready.set()
    await until(lambda: agree(ready, slow, third), "all are in one round")
    assert set(ready.reported + slow.reported) == {"rebalance"}


async def test_who_is_too_slow_is_thrown_out_and_comes_back(begin: Begin) -> None:
    settings = replace(SETTINGS, rebalance_timeout_ms=1_000)
    first, slow = begin("first", settings), begin("slow", settings)
    await until(lambda: agree(first, slow), "both are in one round")
    member = slow.last.member
    slow.ready.clear()
    third = begin("third", settings)
    await until(lambda: agree(first, third), "two go on")
    await until(lambda: any(what.startswith("lost") for what in slow.reported), "who was too slow is told")
    slow.ready.set()
    await until(lambda: agree(first, slow, third), "all are in one round")
    assert slow.last.member != member


async def test_a_cancelled_join_goes_on_as_the_same_member(us: KafkaCluster, begin: Begin) -> None:
    first = begin("first")
    await until(lambda: agree(first), "one member is a group")
    first.ready.clear()
    second = begin("second")
    await until(lambda: second.member.member_id, "the second has its id")
    member = second.member.member_id
    await second.join_again()
    first.ready.set()
    await until(lambda: agree(first, second), "both are in one round")
    assert second.last.member == member
    assert len((await described(us, first.group)).members) == 2


async def test_what_the_group_gives_away_is_known_while_the_main_loop_stands_still(us: KafkaCluster) -> None:
    """Another member joins, and this one, which would have to join too, does not turn: the broker drops it."""
    group, settings = f"group-{uuid4()}", replace(SETTINGS, rebalance_timeout_ms=2_000)
    is_over = threading.Event()

    async def join_elsewhere() -> None:
        async with alone(Joiner(us.bootstrap, group, "second", settings)):
            await asyncio.to_thread(is_over.wait)

    second = threading.Thread(target=lambda: asyncio.run(join_elsewhere()), name="second", daemon=True)
    leases = LeaseThread(progress_timeout_s=600)
    leases.start()
    try:
        async with alone(Joiner(us.bootstrap, group, "first", settings, leases=leases)) as first:
            await until(lambda: agree(first), "it is in the group")
            began_s = time.monotonic()
            second.start()
            while first.member.holds:
                assert time.monotonic() - began_s < settings.lease_ms / 1000, "by the clock its lease would be over"
                time.sleep(0.01)  # noqa: ASYNC251
            held_s = time.monotonic() - began_s
            assert held_s > settings.rebalance_timeout_ms / 1000, "the broker waits for it until then"
            assert first.reported == []
            await until(
                lambda: [one for one in first.reported if one.startswith("lost: ")], "its main loop hears of it"
            )
    finally:
        is_over.set()
        await leases.stop()
        await asyncio.to_thread(second.join)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"session_timeout_ms": 10}, r"INVALID_SESSION_TIMEOUT \(26\); session\.timeout\.ms=10 is not between"),
        ({"group_id": ""}, r"INVALID_GROUP_ID \(24\)"),
    ],
)
async def test_what_a_broker_refuses(us: KafkaCluster, change: dict[str, Any], said: str) -> None:
    settings = replace(SETTINGS, **{"group_id": f"group-{uuid4()}", **change})
    async with alone(Joiner(us.bootstrap, settings.group_id, "refused", settings)) as joiner:
        with pytest.raises(GroupRefused, match=said):
            await joiner.ended()


async def test_a_group_of_another_kind_is_refused(us: KafkaCluster, begin: Begin) -> None:
    first = begin("first")
    await until(lambda: agree(first), "one member is a group")
    stranger = begin("stranger", protocols=("range",))
    with pytest.raises(
        GroupRefused, match=r"INCONSISTENT_GROUP_PROTOCOL \(23\); its members share no protocol with this one"
    ):
        await stranger.ended()


@contextlib.asynccontextmanager
async def alone(joiner: Joiner) -> AsyncIterator[Joiner]:
    try:
        yield joiner
    finally:
        await joiner.leave()
