"""A member against a coordinator that answers what the test says, in virtual time."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

import pytest
from kafka.protocol.consumer.group import HeartbeatResponse, JoinGroupResponse, LeaveGroupResponse, SyncGroupResponse

from connect.core.errors import PermanentError, RetriableError, SecurityError
from connect.kafka.cluster import Cluster, NotAuthorized
from connect.kafka.group_member import GroupMember, LeftGroup, Membership
from connect.kafka.group_protocol import GroupRefused, GroupSettings
from tests.kit.one_loop import OneLoop
from tests.kit.virtual_time import in_virtual_time, run

SETTINGS = GroupSettings(
    "workers",
    "client",
    session_timeout_ms=10_000,
    rebalance_timeout_ms=60_000,
    heartbeat_interval_ms=3_000,
    lease_ms=8_000,
)
PROTOCOLS = [("sessioned", b"metadata 2"), ("default", b"metadata 0")]

#: What a request is answered with: a response, what it raises, or what its sender has to wait for.
Answer = Any


class Request(NamedTuple):
    name: str
    node: int
    purpose: str
    at_s: float
    message: Any


class FakeCluster:
    """One group's coordinator: broker ``coordinator``, which answers each API with what is in ``answers``, in turn, and
    then with what stands in ``always``."""

    name = "us"

    class settings:
        request_timeout_ms = 40_000

    def __init__(self) -> None:
        self.coordinator = 1
        self.lookups = 0
        self.client_id = ""
        self.requests: list[Request] = []
        self.hung_up: list[tuple[int, str]] = []
        self.answers: dict[str, deque[Answer]] = defaultdict(deque)
        self.always: dict[str, Callable[[Any], Answer]] = {
            "JoinGroupRequest": lambda request: joined(request.member_id or "client-1"),
            "SyncGroupRequest": lambda _: synced(b"ours"),
            "HeartbeatRequest": lambda _: HeartbeatResponse(error_code=0),
            "LeaveGroupRequest": lambda _: LeaveGroupResponse(error_code=0, members=[]),
        }

    def seen_by(self, client_id: str) -> FakeCluster:
        self.client_id = client_id
        return self

    async def find_coordinator(self, key: str, kind: str, *, timeout_ms: int) -> int:
        assert (key, kind) == ("workers", "group")
        self.lookups += 1
        await asyncio.sleep(0.001)
        return self.coordinator

    async def connection(self, node: int, purpose: str) -> FakeConnection:
        return FakeConnection(self, node, purpose)

    async def disconnect(self, node: int, purpose: str) -> None:
        self.hung_up.append((node, purpose))

    async def close(self) -> None:
        pass

    def sent(self, name: str) -> list[Request]:
        return [request for request in self.requests if request.name == name]


class FakeConnection:
    def __init__(self, cluster: FakeCluster, node: int, purpose: str) -> None:
        self.cluster, self.node, self.purpose = cluster, node, purpose

    async def call(self, request: Any, *, at_most: int | None, timeout_ms: int) -> Any:
        name = request.name
        now_s = asyncio.get_running_loop().time()
        self.cluster.requests.append(Request(name, self.node, self.purpose, now_s, request))
        queued = self.cluster.answers[name]
        answer = queued.popleft() if queued else self.cluster.always[name](request)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.sleep(0.001)
                if isinstance(answer, Awaitable):
                    answer = await answer
        except TimeoutError as error:
            raise RetriableError("no answer") from error
        if isinstance(answer, Exception):
            raise answer
        return answer


class Events:
    """What was heard, and when."""

    def __init__(self, assign: Callable[[str, str, Mapping[str, bytes]], Mapping[str, bytes]] | None = None) -> None:
        self.heard: list[tuple[str, float]] = []
        self._assign = assign

    async def assign(self, protocol: str, leader: str, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        assert self._assign is not None
        return self._assign(protocol, leader, members)

    def rebalance_begun(self) -> None:
        self._hear("rebalance")

    def membership_lost(self, reason: str) -> None:
        self._hear(f"lost: {reason}")

    def lease_lost(self) -> None:
        self._hear("lease")

    def heartbeat_answered(self) -> None:
        self._hear("answered")

    def reported(self) -> list[str]:
        """But for what every heartbeat says."""
        return [what for what, _ in self.heard if what != "answered"]

    def _hear(self, what: str) -> None:
        self.heard.append((what, asyncio.get_running_loop().time()))


def joined(member: str, generation: int = 5, leader: str = "other", code: int = 0, **members: bytes) -> Any:
    return JoinGroupResponse(
        error_code=code,
        generation_id=generation,
        protocol_type="connect",
        protocol_name="sessioned",
        leader=leader,
        member_id=member,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(member_id=name, metadata=metadata)
            for name, metadata in members.items()
        ],
    )


def refused(code: int, member: str = "") -> Any:
    return JoinGroupResponse(error_code=code, generation_id=-1, leader="", member_id=member, members=[])


def synced(assignment: bytes, code: int = 0) -> Any:
    return SyncGroupResponse(error_code=code, assignment=assignment)


def beat(code: int) -> Any:
    return HeartbeatResponse(error_code=code)


def made(cluster: FakeCluster, events: Events, settings: GroupSettings = SETTINGS) -> GroupMember:
    return GroupMember(cast("Cluster", cluster), settings, events, OneLoop())


@asynccontextmanager
async def a_member(
    assign: Callable[..., Mapping[str, bytes]] | None = None, leases: OneLoop | None = None
) -> AsyncIterator[tuple[GroupMember, FakeCluster, Events]]:
    cluster, events = FakeCluster(), Events(assign)
    member = GroupMember(cast("Cluster", cluster), SETTINGS, events, leases or OneLoop())
    yield member, cluster, events
    await member.close()


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def after(seconds: float, answer: Any) -> Any:
    await asyncio.sleep(seconds)
    return answer


@in_virtual_time
async def test_a_member_takes_its_id_and_joins() -> None:
    async with a_member() as (member, cluster, _):
        cluster.answers["JoinGroupRequest"].append(refused(79, "client-7"))
        assert await member.join(PROTOCOLS) == Membership(5, "client-7", "other", "sessioned", b"ours")
        assert cluster.client_id == "client"
        asked = [request.message for request in cluster.sent("JoinGroupRequest")]
        assert [each.member_id for each in asked] == ["", "client-7"]
        assert {each.protocol_type for each in asked} == {"connect"}
        assert [(each.name, each.metadata) for each in asked[1].protocols] == PROTOCOLS
        assert (asked[1].session_timeout_ms, asked[1].rebalance_timeout_ms) == (10_000, 60_000)
        (sync,) = (request.message for request in cluster.sent("SyncGroupRequest"))
        assert (sync.generation_id, sync.member_id, sync.protocol_name) == (5, "client-7", "sessioned")
        assert sync.assignments == []


@in_virtual_time
async def test_the_leader_assigns() -> None:
    def assign(protocol: str, leader: str, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        assert (protocol, leader) == ("sessioned", "a")
        return {name: b"for " + metadata for name, metadata in members.items()}

    async with a_member(assign) as (member, cluster, _):
        cluster.answers["JoinGroupRequest"].append(joined("a", leader="a", a=b"1", b=b"2"))
        await member.join(PROTOCOLS)
        (sync,) = cluster.sent("SyncGroupRequest")
        found = {each.member_id: each.assignment for each in sync.message.assignments}
        assert found == {"a": b"for 1", "b": b"for 2"}


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (23, GroupRefused, r"INCONSISTENT_GROUP_PROTOCOL \(23\); its members share no protocol .* group\.id"),
        (24, GroupRefused, r"choose another group\.id"),
        (26, GroupRefused, r"session\.timeout\.ms=10000 is not between the brokers' group\.min\.session\.timeout\.ms"),
        (30, NotAuthorized, r"grant READ on group workers"),
        (81, GroupRefused, r"stop a worker, or raise the brokers' group\.max\.size"),
        (42, GroupRefused, r"INVALID_REQUEST"),
    ],
)
@in_virtual_time
async def test_what_does_not_pass_ends_the_join(code: int, kind: type[PermanentError], advice: str) -> None:
    async with a_member() as (member, cluster, _):
        cluster.answers["JoinGroupRequest"].append(refused(code))
        with pytest.raises(kind, match=rf"cluster us: JoinGroup of group workers: .*{advice}"):
            await member.join(PROTOCOLS)
        assert (await member.join(PROTOCOLS)).assignment == b"ours"  # which does not keep it from being asked again


@pytest.mark.parametrize("code", [14, 15, 16, 22, 25, 27, 7])
@pytest.mark.parametrize("at", ["JoinGroupRequest", "SyncGroupRequest"])
@in_virtual_time
async def test_what_passes_is_waited_out(code: int, at: str) -> None:
    async with a_member() as (member, cluster, _):
        answer = refused(code) if at == "JoinGroupRequest" else synced(b"", code)
        cluster.answers["JoinGroupRequest"].append(refused(79, "client-7"))
        cluster.answers[at].extend([answer] * 3)
        got = await member.join(PROTOCOLS)
        # An id that the coordinator does not know is not used again.
        assert got.member == ("client-1" if code == 25 else "client-7")
        assert (cluster.lookups > 1) == (code in (15, 16))


@pytest.mark.parametrize("trouble", [RetriableError("cut"), never])
def test_a_lost_coordinator_is_looked_for(trouble: Any) -> None:
    """Also one that says nothing at all, once another broker has its place."""

    async def main() -> float:
        cluster, events = FakeCluster(), Events()
        cluster.answers["JoinGroupRequest"].append(trouble() if callable(trouble) else trouble)
        member = made(cluster, events)
        joining = asyncio.create_task(member.join(PROTOCOLS))
        await asyncio.sleep(0.0015)
        cluster.coordinator = 2
        await joining
        assert [request.node for request in cluster.sent("JoinGroupRequest")] == [1, 2]
        assert (1, "join") in cluster.hung_up
        took_s = asyncio.get_running_loop().time()
        await member.close()
        return took_s

    assert run(main()) < 11


@in_virtual_time
async def test_a_broker_that_is_stuck_is_not_asked_twice() -> None:
    """The look-up itself has to find that there is no answer: that is what closes the connection to that broker."""
    async with a_member() as (member, cluster, _):
        given_up: list[float] = []

        async def stuck(key: str, kind: str, *, timeout_ms: int) -> int:
            if given_up:
                return 1
            await asyncio.sleep(timeout_ms / 1000)
            given_up.append(asyncio.get_running_loop().time())
            raise RetriableError("no answer")

        cluster.find_coordinator = stuck  # type: ignore[method-assign]
        await member.join(PROTOCOLS)
        assert given_up
        assert given_up[0] <= SETTINGS.session_timeout_ms / 5_000


@in_virtual_time
async def test_heartbeats_and_the_next_round() -> None:
    async with a_member() as (member, cluster, events):
        await member.join(PROTOCOLS)
        await asyncio.sleep(10)
        beats = cluster.sent("HeartbeatRequest")
        assert [round(request.at_s) for request in beats] == [3, 6, 9]
        assert {(each.message.member_id, each.message.generation_id) for each in beats} == {("client-1", 5)}
        assert events.reported() == []
        cluster.always["HeartbeatRequest"] = lambda _: beat(27)
        await asyncio.sleep(10)
        assert events.reported() == ["rebalance"]  # said once, answered as often as asked
        assert [what for what, _ in events.heard].count("answered") == 6

        # The round waits for another member for a while; the coordinator goes on to another generation.
        cluster.answers["JoinGroupRequest"].append(after(20, joined("client-1", 6)))
        again = await member.join(PROTOCOLS)
        assert (again.member, again.generation) == ("client-1", 6)
        assert events.reported() == ["rebalance"]
        while_joining = [each for each in cluster.sent("HeartbeatRequest") if 21 < each.at_s < 39]
        assert len(while_joining) >= 5
        assert {each.purpose for each in while_joining}.isdisjoint(
            each.purpose for each in cluster.sent("JoinGroupRequest")
        )
        await asyncio.sleep(4)
        assert events.reported() == ["rebalance", "rebalance"]


@pytest.mark.parametrize(("code", "next_id"), [(25, ""), (22, "client-1"), (82, "client-1"), (30, "")])
@in_virtual_time
async def test_who_is_not_a_member_any_more_hears_it_once(code: int, next_id: str) -> None:
    async with a_member() as (member, cluster, events):
        await member.join(PROTOCOLS)
        cluster.always["HeartbeatRequest"] = lambda _: beat(code)
        await asyncio.sleep(100)
        (reported,) = events.reported()
        assert reported.startswith("lost: ")
        assert len(cluster.sent("HeartbeatRequest")) == 1
        cluster.always["HeartbeatRequest"] = lambda _: beat(0)
        await member.join(PROTOCOLS)
        assert cluster.sent("JoinGroupRequest")[-1].message.member_id == next_id
        await asyncio.sleep(4)
        assert len(cluster.sent("HeartbeatRequest")) > 1


@pytest.mark.parametrize("code", [22, 25])
@in_virtual_time
async def test_heartbeats_of_the_generation_before_do_not_count(code: int) -> None:
    """A round has ended, and its answer is still under way to us."""
    async with a_member() as (member, cluster, events):
        await member.join(PROTOCOLS)
        cluster.answers["JoinGroupRequest"].append(after(5, joined("client-1", 6)))
        cluster.always["HeartbeatRequest"] = lambda request: beat(code if request.generation_id == 5 else 0)
        joining = asyncio.create_task(member.join(PROTOCOLS))
        await asyncio.sleep(4)
        assert member.holds
        await joining
        await asyncio.sleep(10)
        assert events.reported() == []


@in_virtual_time
async def test_a_join_that_begins_before_the_end_is_heard_of_goes_on_with_heartbeats() -> None:
    """The lease thread has ended them, and the main loop hears of it when it is a member again."""

    class Behind(OneLoop):
        def post(self, function: Callable[..., object], *args: object) -> None:
            asyncio.get_running_loop().call_later(2, function, *args)

    cluster, events = FakeCluster(), Events()
    member = GroupMember(cast("Cluster", cluster), SETTINGS, events, Behind())
    await member.join(PROTOCOLS)
    cluster.answers["HeartbeatRequest"].append(beat(22))
    await asyncio.sleep(4)
    held = [member.holds]
    cluster.answers["JoinGroupRequest"].append(joined("client-1", 6))
    await member.join(PROTOCOLS)
    sent = len(cluster.sent("HeartbeatRequest"))
    await asyncio.sleep(100)
    held.append(member.holds)
    assert events.reported() == []
    assert len(cluster.sent("HeartbeatRequest")) > sent + 30
    await member.close()
    assert [*held, member.holds] == [False, True, False]


@in_virtual_time
async def test_a_round_whose_answer_comes_when_the_lease_is_over_is_followed_by_another() -> None:
    """Its assignment would be worked on without a lease, and nothing would tell of its end any more."""
    async with a_member() as (member, cluster, _):
        cluster.answers["SyncGroupRequest"].append(after(8.5, synced(b"too late")))
        cluster.answers["HeartbeatRequest"].extend([RetriableError("cut")] * 40)
        assert (await member.join(PROTOCOLS)).assignment == b"ours"
        assert len(cluster.sent("JoinGroupRequest")) == 2
        assert asyncio.get_running_loop().time() > 8


@in_virtual_time
async def test_a_member_that_is_thrown_out_while_it_joins_hears_it_and_joins() -> None:
    async with a_member() as (member, cluster, events):
        await member.join(PROTOCOLS)
        cluster.answers["JoinGroupRequest"].extend([refused(25), refused(79, "client-2")])
        assert (await member.join(PROTOCOLS)).member == "client-2"
        (reported,) = events.reported()
        assert reported == "lost: client in group workers: JoinGroup: UNKNOWN_MEMBER_ID (25)"


@in_virtual_time
async def test_the_lease_ends_unless_heartbeats_are_answered() -> None:
    async with a_member() as (member, cluster, events):
        await member.join(PROTOCOLS)
        await asyncio.sleep(1_000)
        assert events.reported() == []
        last_s = max(at_s for what, at_s in events.heard if what == "answered")
        cluster.always["HeartbeatRequest"] = lambda _: never()
        await asyncio.sleep(100)
        assert events.reported() == ["lease"]
        ((_, lost_s),) = (heard for heard in events.heard if heard[0] == "lease")
        # From when the last one that was answered had been sent.
        assert lost_s == pytest.approx(last_s - 0.001 + 8, abs=0.0001)

        cluster.always["HeartbeatRequest"] = lambda _: beat(0)
        await asyncio.sleep(100)
        cluster.always["HeartbeatRequest"] = lambda _: RetriableError("cut")
        await asyncio.sleep(100)
        assert events.reported() == ["lease", "lease"]


@in_virtual_time
async def test_the_lease_ends_where_the_lease_thread_may_not_renew() -> None:
    leases = OneLoop()
    async with a_member(leases=leases) as (member, cluster, events):
        await member.join(PROTOCOLS)
        await asyncio.sleep(10)
        leases.may_renew = False
        sent = len(cluster.sent("HeartbeatRequest"))
        await asyncio.sleep(20)
        assert len(cluster.sent("HeartbeatRequest")) == sent
        assert events.reported() == ["lease"]
        leases.may_renew = True
        await asyncio.sleep(5)
        assert len(cluster.sent("HeartbeatRequest")) > sent


@in_virtual_time
async def test_how_long_the_coordinator_has_been_silent() -> None:
    async with a_member() as (member, cluster, _):
        await member.join(PROTOCOLS)
        await asyncio.sleep(1_000)
        assert member.silent_s <= 3.1
        cluster.always["HeartbeatRequest"] = lambda _: RetriableError("cut")
        await asyncio.sleep(100)
        assert 100 <= member.silent_s <= 104
        cluster.always["HeartbeatRequest"] = lambda _: beat(0)
        await asyncio.sleep(10)
        assert member.silent_s <= 3.1
        # Outside the group a join may wait for the others, and nothing else is asked.
        cluster.always["HeartbeatRequest"] = lambda _: beat(25)
        await asyncio.sleep(10)
        cluster.answers["JoinGroupRequest"].append(never())
        joining = asyncio.create_task(member.join(PROTOCOLS))
        await asyncio.sleep(50)
        assert member.silent_s < 3.1
        await asyncio.sleep(100)
        assert member.silent_s > 80
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)


@in_virtual_time
async def test_the_lease_ends_in_a_round_that_nothing_is_heard_of() -> None:
    """The network to the coordinator is gone, and with it what a JoinGroup that was sent before is answered with."""
    async with a_member() as (member, cluster, events):
        await member.join(PROTOCOLS)
        cluster.answers["JoinGroupRequest"].append(never())
        cluster.always["HeartbeatRequest"] = lambda _: never()
        joining = asyncio.create_task(member.join(PROTOCOLS))
        await asyncio.sleep(9)
        assert events.reported() == ["lease"]
        joining.cancel()


@in_virtual_time
async def test_a_silent_coordinator_costs_a_part_of_the_session_only() -> None:
    async with a_member() as (member, cluster, events):
        await member.join(PROTOCOLS)
        cluster.answers["HeartbeatRequest"].append(never())
        await asyncio.sleep(7)
        assert len([request for request in cluster.sent("HeartbeatRequest") if request.at_s < 7]) == 2
        await asyncio.sleep(60)
        assert events.reported() == []


@in_virtual_time
async def test_leaving() -> None:
    async with a_member() as (member, cluster, events):
        await member.leave("never was in it")
        assert cluster.requests == []
        await member.join(PROTOCOLS)
        await member.leave("the worker stops" + "!" * 300)
        (left,) = cluster.sent("LeaveGroupRequest")
        (row,) = left.message.members
        assert (row.member_id, len(row.reason)) == ("client-1", 255)
        assert member.member_id == ""
        await asyncio.sleep(100)
        assert len(cluster.sent("HeartbeatRequest")) == 0
        assert events.reported() == []
        await member.join(PROTOCOLS)
        assert cluster.sent("JoinGroupRequest")[-1].message.member_id == ""


@pytest.mark.parametrize(
    "trouble", [never, lambda: RetriableError("cut"), lambda: SecurityError("no"), lambda: refused(25)]
)
@in_virtual_time
async def test_leaving_is_tried_for_seconds(trouble: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
    async with a_member() as (member, cluster, _):
        await member.join(PROTOCOLS)
        cluster.answers["LeaveGroupRequest"].append(trouble())
        before_s = asyncio.get_running_loop().time()
        await member.leave("the worker stops")
        assert asyncio.get_running_loop().time() - before_s <= 5.1
    assert "client in group workers cannot leave the group" in caplog.text


@in_virtual_time
async def test_leaving_ends_a_join() -> None:
    async with a_member() as (member, cluster, _):
        cluster.answers["JoinGroupRequest"].extend([refused(79, "client-7"), never()])
        joining = asyncio.create_task(member.join(PROTOCOLS))
        await asyncio.sleep(30)
        await member.leave("the worker stops")
        with pytest.raises(LeftGroup):
            await joining
        # The round waits for whoever has been sent an id, so that one leaves as well.
        (left,) = cluster.sent("LeaveGroupRequest")
        assert left.message.members[0].member_id == "client-7"
        assert left.purpose != "join"


def test_a_join_may_be_cancelled_at_any_time() -> None:
    """And the next one goes on as the same member."""

    async def main(steps: int) -> bool:
        cluster, events = FakeCluster(), Events()
        cluster.answers["JoinGroupRequest"].append(refused(79, "client-7"))
        member = made(cluster, events)
        joining = asyncio.create_task(member.join(PROTOCOLS))
        for step in range(steps):
            await asyncio.sleep(0 if step % 8 else 0.001)
        was_done = joining.done()
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        got = await member.join(PROTOCOLS)
        assert got.member in ("client-7", "client-1")  # the second where no id had come yet
        assert got.assignment == b"ours"
        await asyncio.sleep(10)
        assert {each.message.member_id for each in cluster.sent("HeartbeatRequest")} == {got.member}
        assert events.reported() == []
        await member.close()
        assert len(asyncio.all_tasks()) == 1
        return was_done

    steps = 1
    while not run(main(steps)):
        steps += 1
    assert steps > 10


@in_virtual_time
async def test_one_join_at_a_time() -> None:
    async with a_member() as (member, cluster, _):
        cluster.answers["JoinGroupRequest"].append(never())
        joining = asyncio.create_task(member.join(PROTOCOLS))
        await asyncio.sleep(1)
        with pytest.raises(RuntimeError, match="another join is running"):
            await member.join(PROTOCOLS)
        joining.cancel()


@in_virtual_time
async def test_what_the_assignor_raises_ends_the_join() -> None:
    def assign(*_: object) -> Mapping[str, bytes]:
        raise ZeroDivisionError

    async with a_member(assign) as (member, cluster, _):
        cluster.answers["JoinGroupRequest"].append(joined("a", leader="a", a=b"1"))
        with pytest.raises(ZeroDivisionError):
            await member.join(PROTOCOLS)
        assert (await member.join(PROTOCOLS)).member == "a"


@in_virtual_time
async def test_news_of_the_next_round_does_not_overtake_the_last() -> None:
    """Hanging up takes its time, and heartbeats go on meanwhile."""
    async with a_member() as (member, cluster, events):
        cluster.always["HeartbeatRequest"] = lambda _: beat(27)

        async def slowly(node: int, purpose: str) -> None:
            await asyncio.sleep(20)

        cluster.disconnect = slowly  # type: ignore[method-assign]
        await member.join(PROTOCOLS)
        assert events.reported() == []
        await asyncio.sleep(4)
        assert events.reported() == ["rebalance"]
