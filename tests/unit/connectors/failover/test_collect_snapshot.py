"""What a look before a failover does with slow clusters, and what it says of the source."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.cli.commands.failover_view import show_plan, show_rehearsal
from connect.core.errors import PermanentError, RetriableError
from connect.kafka.concurrency import Scope
from connect.kafka.log import offsets
from connect.kafka.log.offsets import LATEST, known_offsets
from connectors.failover import collect_snapshot, execute
from connectors.failover.execute import Rehearsal
from connectors.failover.plan import FailoverOptions, plan
from connectors.failover.snapshot import GroupMove, Groups, How, LastKnown, Snapshot
from connectors.flow_progress import FlowLag, PartitionLag
from tests.kit.answers import answers, fails
from tests.kit.virtual_time import run

MOVE = GroupMove("readers", ("orders", 0), 40, ("us.orders", 0), None, "", 37, "", How.EXACT)


def test_what_a_cluster_does_not_answer_by_its_deadline_is_named_and_holds_up_nothing() -> None:
    async def never() -> int:
        await asyncio.Event().wait()
        return 1

    async def look() -> tuple[list[int], list[str], float]:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        async with Scope("look") as scope:
            looks = collect_snapshot._Looks(scope, "us or eu")
            asked = (("lag", never(), 0, "us"), ("groups", never(), 0), ("x", answers(2)(), 0))
            found = [await one for one in [looks.begin(*each) for each in asked]]
        return found, looks.obstacles, clock() - began_s

    found, unknown, took_s = run(look())
    assert (found, took_s) == ([0, 0, 2], collect_snapshot.DEADLINE_S)
    silent = {"lag": "us", "groups": "us or eu"}
    assert unknown == [
        f"{one} could not be read: cluster {name} did not answer within 60 s" for one, name in silent.items()
    ]


def test_a_leader_that_is_slow_keeps_no_other_from_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(_: Any, leader: int, led: Any, *__: Any) -> Any:
        if leader == 1:
            await asyncio.Event().wait()
        if leader == 2:
            raise RetriableError("it refuses")
        return dict.fromkeys(led, 7), {}

    monkeypatch.setattr(offsets, "_ask_leader", ask)
    cluster: Any = SimpleNamespace(
        metadata=answers(SimpleNamespace(leader=lambda _, index: index if index < 4 else None))
    )
    places = [("orders", index) for index in range(1, 5)]
    found, missing = run(known_offsets(cluster, places, LATEST, leader_s=10))
    assert found == {("orders", 3): 7}
    assert missing == {
        ("orders", 1): "broker 1 did not answer within 10 s",
        ("orders", 2): "it refuses",
        ("orders", 4): "orders-4 has no leader now",
    }


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (
            LastKnown(950_000, 3, 12),
            ", by stored positions of 3 partitions, last stored 50 s ago: at least 12 records behind, by checkpoints",
        ),
        (LastKnown(-1, 1, 0), ", by stored positions of 1 partition: no checkpoint is ahead"),
        (LastKnown(), ": unknown, because cluster eu has no stored position of the flow"),
    ],
)
def test_the_last_known_lag_of_a_source_that_is_gone_is_told_with_its_age(
    known: LastKnown, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("connect.cli.commands.failover_view.wall_ms", lambda: 1_000_000)
    groups = Groups(("readers",))
    snapshot = Snapshot("us", "eu", is_gone=True, copied_until_ms=960_000, last_known=known, groups=groups)
    show_plan(plan(snapshot, FailoverOptions()), everything=False)
    said = capsys.readouterr().out
    assert "copied until 1970-01-01 00:16:00 UTC (40 s ago), by the last mirrored heartbeat of us" in said
    assert f"last known lag{words}" in said


def test_a_rehearsal_marks_its_estimates(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []
    monkeypatch.setattr(execute, "time", SimpleNamespace(monotonic=lambda: 0.05 * len(asked)))

    async def ask(_: Any, group: str) -> None:
        asked.append(group)

    async def estimate() -> Rehearsal:
        names = tuple(f"g{number:02}" for number in range(70))
        moves = tuple(GroupMove(one, *[getattr(MOVE, name) for name in MOVE.__slots__[1:]]) for one in names)
        lag = FlowLag((PartitionLag("orders", 0, "us.orders", 30, 35, 5, 0, 4000),))
        found = plan(Snapshot("us", "eu", lag=lag, groups=Groups(names, moves)), FailoverOptions())
        site: Any = SimpleNamespace(target="eu")
        estimated_s = await execute._estimate(site, found.snapshot, found)
        return Rehearsal(found, (), {"collect": 1.0, "plan": 0.0, "sample": 0.5}, estimated_s, 20)

    monkeypatch.setattr(execute, "listed_group", ask)
    monkeypatch.setattr(execute, "committed", ask)
    done = asyncio.run(estimate())
    assert len(asked) == 2 * execute._MEASURED
    assert (done.estimated_s["drain"], done.estimated_s["stop"]) == (4.0, 2.0)
    assert done.estimated_s["moves"] == pytest.approx(3 * 8 * 0.05), (
        "three turns of 32 groups, with eight requests of 50 ms"
    )
    show_rehearsal(done)
    said = capsys.readouterr().out
    assert "(measured: collect 1.0 s, plan 0.0 s, sample 0.5 s; estimated: drain 4.0 s, stop 2.0 s, moves " in said


async def test_what_only_the_source_has_is_named_and_what_is_hidden_too(monkeypatch: pytest.MonkeyPatch) -> None:
    us, eu = (SimpleNamespace(name=name) for name in ("us", "eu"))

    def has(here: set[str], there: set[str]) -> Any:
        async def look(cluster: Any) -> set[str]:
            return here if cluster is us else there

        return look

    looks = {
        "SCRAM users": has({f"user{number}" for number in range(7)} | {"both"}, {"both"}),
        "quotas": has({"user ann"}, {"user ann", "user bob"}),
        "ACLs": fails(PermanentError("not allowed")),
    }
    monkeypatch.setattr(collect_snapshot, "_LOOKS", looks)
    clusters: Any = (us, eu)
    assert await collect_snapshot.only_at_source(*clusters) == [
        "only cluster us has these SCRAM users: user0, user1, user2, user3, user4 and 2 more",
        "not compared, because a cluster does not show them: ACLs",
    ]


async def test_transactional_ids_of_the_mirror_are_none_that_clients_need(monkeypatch: pytest.MonkeyPatch) -> None:
    us, eu = (SimpleNamespace(name=name) for name in ("us", "eu"))

    async def ids(cluster: Any) -> set[str]:
        ours = {"eu-mm2-MirrorSourceConnector-0", "eu-mm2-MirrorSourceConnector-0-commit", "connect-cluster-eu-mm2"}
        return {*ours, "heliograph-failover-eu->us", "payments", "eu-mm2000"} if cluster is us else set()

    monkeypatch.setattr(collect_snapshot, "_LOOKS", {"transactional ids": ids, "SCRAM users": ids})
    here, there = cast(Any, us), cast(Any, eu)
    said = await collect_snapshot.only_at_source(here, there, ("us-mm2", "eu-mm2"))
    assert said[0] == "only cluster us has these transactional ids: eu-mm2000, payments"
    assert "SCRAM users: connect-cluster-eu-mm2, eu-mm2-" in said[1], "a user is no id"
