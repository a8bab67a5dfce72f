"""One failover at a time, in either direction: who holds the lease, and how others learn of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from connect.core.errors import RetriableError
from connect.kafka.log.transactions import Superseded
from connectors.failover import clusters_and_lease, collect_snapshot, execute
from connectors.failover.plan import FailoverOptions, Plan
from connectors.failover.snapshot import Snapshot
from tests.kit.answers import answers, put


def place() -> Any:
    """The flow back has the map."""
    flow = SimpleNamespace(flow="us->eu", source_alias="us", target_alias="eu", map_topic="map")
    back = SimpleNamespace(flow="eu->us", map_topic="map back")
    return SimpleNamespace(flow=flow, back=back, source="us", target="eu", target_admin=None, held=set())


def record_of(name: str, **more: Any) -> clusters_and_lease.LeaseRecord:
    return clusters_and_lease.LeaseRecord(f"{name}@there", name, 1, "failover", 1, 5, run=name, **more)


class Coordinator:
    """Transactional ids: who opened one last writes, and all others are shut out."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.owners: dict[str, Any] = {}

    def writer(self, _: Any, name: str, **__: Any) -> Any:
        async def opened() -> None:
            self.owners[name] = one

        async def write(records: list[Any], *_: Any) -> None:
            if self.owners.get(name) is not one:
                raise Superseded("another one has it")
            self.log += [each.value for each in records]

        one = SimpleNamespace(open=opened, write=write)
        return one

    async def look(self, *_: Any) -> clusters_and_lease.LeaseRecord | None:
        return clusters_and_lease.decode(self.log[-1]) if self.log else None


async def test_a_lease_counts_as_long_as_it_is_renewed_whatever_the_clocks_say() -> None:
    mine, theirs = record_of("ann"), record_of("bob")
    renewed = iter((theirs, theirs, replace(theirs, until_ms=6)))
    silent = iter([theirs] * 1000)

    def each(records: Iterator[clusters_and_lease.LeaseRecord]) -> Any:
        return AsyncMock(side_effect=lambda: next(records))

    with pytest.raises(clusters_and_lease.FailoverInProgress, match="bob@there"):
        await clusters_and_lease.await_free(each(renewed), mine, watch_s=60, look_s=0.001)
    await clusters_and_lease.await_free(each(silent), mine, watch_s=0.05, look_s=0.001)
    assert not replace(theirs, until_ms=10**9).is_held(0), "by another clock than ours"


async def test_a_failover_the_other_way_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its lease on the source; a source that is gone is not asked."""
    now_ms = time.time_ns() // 1_000_000
    theirs = replace(record_of("bob"), until_ms=now_ms + 10_000)
    renewed = iter(range(1, 100))
    asked: list[Any] = []

    async def look(cluster: str, map_topic: str, flow: str) -> clusters_and_lease.LeaseRecord | None:
        asked.append((cluster, map_topic, flow))
        return replace(theirs, until_ms=theirs.until_ms + next(renewed)) if cluster == "us" else None

    monkeypatch.setattr(clusters_and_lease, "look", look)
    monkeypatch.setattr(clusters_and_lease.await_free, "__kwdefaults__", {"watch_s": 60.0, "look_s": 0.001})
    site = place()
    with pytest.raises(clusters_and_lease.FailoverInProgress, match="bob@there"):
        await clusters_and_lease.await_no_failback(site, record_of("ann"))
    assert set(asked) == {("us", "map back", "eu->us")}
    (line,) = await collect_snapshot._operators(site, has_source=True)
    assert "bob@there is working on this failover" in line
    assert await collect_snapshot._operators(site, has_source=False) == []


async def test_a_run_finds_another_in_its_way_and_not_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Itself by its last look, which the JSON is of: a success used to say no-go."""
    there, site = Coordinator(), place()
    monkeypatch.setattr(clusters_and_lease, "TransactionalWriter", there.writer)
    monkeypatch.setattr(clusters_and_lease, "look", there.look)
    made = SimpleNamespace(make_topic=answers())
    monkeypatch.setattr("connectors.internal_topics.record_settings", lambda _: made)
    async with clusters_and_lease.hold(site, "failback"):
        assert await collect_snapshot._operators(site, has_source=True) == []
        other = place()
        (line, _) = await collect_snapshot._operators(other, has_source=True)
        assert "is working on this failover" in line and "failback" in line
    assert await collect_snapshot._operators(other, has_source=True) == [], "it is given back"


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_failover_looks_for_a_failback_under_its_lease(monkeypatch: pytest.MonkeyPatch, is_gone: bool) -> None:
    done: list[str] = []

    @contextlib.asynccontextmanager
    async def hold(*_: Any) -> AsyncIterator[Any]:
        done.append("hold")
        yield SimpleNamespace(record=None)

    monkeypatch.setattr(execute, "hold", hold)
    monkeypatch.setattr(execute, "await_no_failback", AsyncMock(side_effect=lambda *_: done.append("look")))
    monkeypatch.setattr(execute.Failover, "run_under", AsyncMock(side_effect=lambda *_: done.append("run")))
    failover_options = FailoverOptions(lambda _: True, is_gone=is_gone)
    await execute.Failover(place(), failover_options, print).run("failover", Plan(Snapshot("us", "eu")))
    assert done == (["hold", "run"] if is_gone else ["hold", "look", "run"])


def leases(monkeypatch: pytest.MonkeyPatch) -> tuple[Coordinator, clusters_and_lease.Lease, clusters_and_lease.Lease]:
    """Of two operators, of whom neither finds the other at work."""
    there, eu = Coordinator(), cast(Any, None)
    monkeypatch.setattr(clusters_and_lease, "TransactionalWriter", there.writer)
    put(monkeypatch, clusters_and_lease, await_free=None)
    first, second = (clusters_and_lease.Lease(eu, "map", "us->eu", record_of(name)) for name in ("ann", "bob"))
    return there, first, second


async def test_of_two_who_begin_at_the_same_time_the_later_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other learns of it before a renewal says so, also if it has stood still."""
    there, first, second = leases(monkeypatch)
    await first.claim()
    await first.check()
    await second.claim()
    for step in (first.check(), first.store(step="drain")):
        with pytest.raises(clusters_and_lease.FailoverInProgress, match="taken over the failover us->eu"):
            await step
    for lane in first.lanes:
        with pytest.raises(Superseded):
            await lane.write([])
    first.lost = RetriableError("lost")
    with pytest.raises(RetriableError, match="lost"):
        first.check_not_lost()
    await second.store(step="drain")
    record = clusters_and_lease.decode(there.log[-1])
    assert (record.owner, record.step) == ("bob@there", "drain")


async def test_who_is_overtaken_while_it_claims_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writers of groups may be the ones that count by then: it must not come through."""
    _, first, second = leases(monkeypatch)
    (lane, *_), opened = first.lanes, first.lanes[0].open

    async def overtaken() -> None:
        await second.claim()
        await opened()

    lane.open = overtaken  # type: ignore[method-assign]
    with pytest.raises(clusters_and_lease.FailoverInProgress):
        await first.claim()
