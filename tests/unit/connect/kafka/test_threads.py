"""What the lease thread renews while the main loop stands still, and when it stops."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest

from connect.kafka.cluster import Cluster
from connect.kafka.group_member import GroupMember
from connect.kafka.group_protocol import GroupSettings
from connect.kafka.threads import LeaseThread
from tests.kit.members import until
from tests.unit.connect.kafka.test_group_member import PROTOCOLS, Events, FakeCluster, beat

_DEADLINE_S = 60.0
_SETTINGS = GroupSettings("workers", "client", heartbeat_interval_ms=200, session_timeout_ms=4_000, lease_ms=2_000)


def block_until(seen: Callable[[], bool], what: str) -> None:
    """Hold up the loop, as heavy work or a careless plugin does."""
    deadline_s = time.monotonic() + _DEADLINE_S
    while not seen():
        assert time.monotonic() < deadline_s, f"not within {_DEADLINE_S:g} s: {what}"
        time.sleep(0.01)


@asynccontextmanager
async def running(progress_timeout_s: float) -> AsyncIterator[LeaseThread]:
    leases = LeaseThread(progress_timeout_s)
    leases.start()
    try:
        yield leases
    finally:
        await leases.stop()


async def test_a_membership_outlives_a_main_loop_that_stands_still_for_longer_than_the_lease() -> None:
    async with running(_DEADLINE_S) as leases:
        cluster, events = FakeCluster(), Events()
        member = GroupMember(cast("Cluster", cluster), _SETTINGS, events, leases)
        await member.join(PROTOCOLS)
        answered, until_s = len(events.heard), time.monotonic() + 1.5 * _SETTINGS.lease_ms / 1000
        block_until(lambda: time.monotonic() > until_s, "the lease would have been over")
        await until(lambda: len(events.heard) > answered + 3, "the answers are heard of")
        assert events.reported() == []
        assert member.silent_s < _SETTINGS.lease_ms / 1000
        await member.close()


@pytest.mark.parametrize(("code", "holds"), [(22, False), (25, False), (82, False), (27, True)])
async def test_what_is_not_ours_any_more_is_known_while_the_main_loop_stands_still(code: int, holds: bool) -> None:
    """And no heartbeat follows; but who is only to join again is still a member."""
    async with running(_DEADLINE_S) as leases:
        cluster, events = FakeCluster(), Events()
        settings = replace(_SETTINGS, session_timeout_ms=600_000, lease_ms=600_000)
        member = GroupMember(cast("Cluster", cluster), settings, events, leases)
        await member.join(PROTOCOLS)
        assert member.holds
        cluster.always["HeartbeatRequest"] = lambda _: beat(code)
        beats = len(cluster.sent("HeartbeatRequest"))
        if holds:
            block_until(lambda: len(cluster.sent("HeartbeatRequest")) > beats + 3, "it goes on")
        else:
            block_until(lambda: not member.holds, "it is heard of")
            until_s = time.monotonic() + 5 * settings.heartbeat_interval_ms / 1000
            block_until(lambda: time.monotonic() > until_s, "more would have been sent")
            assert len(cluster.sent("HeartbeatRequest")) <= beats + 2
        assert member.holds is holds
        assert events.reported() == [], "nothing is told in the lease thread"
        await until(lambda: events.reported() != [], "the main loop hears of it")
        await member.close()


async def test_nothing_is_renewed_once_the_main_loop_has_stood_still_for_its_limit() -> None:
    async with running(0.5) as leases:
        assert leases.may_renew
        block_until(lambda: not leases.may_renew, "the limit is over")
        await until(lambda: leases.may_renew, "it turns again")


async def test_a_stop_may_be_repeated_and_come_before_the_start() -> None:
    leases = LeaseThread(_DEADLINE_S)
    await leases.stop()
    leases.start()
    await leases.stop()
    await leases.stop()


async def test_the_longest_stall_counts_and_a_frozen_process_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(_DEADLINE_S) as leases:
        until_s = time.monotonic() + 0.75
        block_until(lambda: time.monotonic() > until_s, "it stood still")
        await until(lambda: leases.longest_stall_s > 0.25, "the stall is counted")
        stall_s, beat_s = leases.longest_stall_s, leases.longest_beat_s
        # As after SIGCONT: an hour has passed for both, and neither has used the processor.
        hour_s = time.monotonic
        monkeypatch.setattr("connect.kafka.threads.time.monotonic", lambda: hour_s() + 3600)
        thawed_s = leases.thawed_s
        await until(lambda: leases.thawed_s > thawed_s and leases.moved_s > hour_s() + 3000, "both turned again")
        assert leases.longest_stall_s < stall_s + 60
        assert leases.longest_beat_s < beat_s + 60
        assert leases.may_renew
