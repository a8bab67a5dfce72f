"""What a verification between drain and move decides, and what the next run does if this one is killed in it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from connectors.failover import collect_snapshot, execute
from connectors.failover.drain import Behind
from connectors.failover.execute import Failover, GroupMover
from connectors.failover.log_comparison import NotProved, proved
from connectors.failover.plan import FailoverOptions, plan
from connectors.failover.reverse_flow import ReverseFlow
from connectors.failover.snapshot import GroupMove, Groups, How, Snapshot
from connectors.flow_progress import FlowLag, lag_of
from connectors.verification.report import PartitionResult, VerificationResult
from tests.kit.answers import put

EQUAL = VerificationResult("us->eu", 0, 1, {}, (PartitionResult("t", 0, "t", 0, 6, 0, 0, 0, 6, 6, 1),))
LATE = replace(EQUAL, is_complete=False, partitions=(replace(EQUAL.partitions[0], copied_to=2006),))
UNREAD = replace(EQUAL, is_complete=False, unread=("t-1: its broker is silent",))
DIFFERS = replace(EQUAL, partitions=(replace(EQUAL.partitions[0], differences_total=2),))
SO_FAR = "us->eu: no difference so far, 6 records of 1 partition compared; "


@pytest.mark.parametrize("is_whole_wanted", [True, False])
def test_groups_move_with_an_equal_copy_and_never_with_another(*, is_whole_wanted: bool) -> None:
    assert proved(EQUAL, is_whole_wanted=is_whole_wanted) == "us->eu: equal, 6 records of 1 partition compared"
    with pytest.raises(
        NotProved, match=r"2 differences.*No group was moved.*heliograph verify --flow 'us->eu'.*--full"
    ):
        proved(DIFFERS, is_whole_wanted=is_whole_wanted)


@pytest.mark.parametrize(
    ("result", "missing"),
    [
        (LATE, "2,000 records not compared in time"),
        (UNREAD, "t-1: its broker is silent"),
        (replace(EQUAL, is_complete=False), "not all was compared in time"),
    ],
)
def test_what_is_missing_is_named_and_stops_a_move_of_the_whole(result: VerificationResult, missing: str) -> None:
    assert proved(result, is_whole_wanted=False) == SO_FAR + missing
    with pytest.raises(NotProved, match=r"No group was moved\. Run this again"):
        proved(result, is_whole_wanted=True)


class Killed(BaseException):
    """Nothing of the run is executed after it."""


class Flow:
    """The steps of a failover, each with what it did. ``is_stopped`` and ``waiting`` outlive a run that is killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[str] = []
        self.is_stopped, self.waiting, self.start_command = False, 0, "start it"
        move = GroupMove("readers", ("t", 0), 4, ("t", 0), None, "", 4, "", How.EXACT)
        self.plan = plan(Snapshot("us", "eu", lag=FlowLag(()), groups=Groups(("readers",), (move,))), FailoverOptions())
        assert self.plan.ready
        put(monkeypatch, execute, copied_ends={}, reverse_flow_check=ReverseFlow([], []), starts_due=([], [], None))
        put(monkeypatch, execute, prove=[])
        put(monkeypatch, Failover, look=self.plan)
        put(monkeypatch, collect_snapshot, groups_now=Groups())
        monkeypatch.setattr(execute, "used_meanwhile", lambda *_: [])
        for owner, name in ((execute, "behind"), (execute, "drain"), (execute, "stop_flow"), (GroupMover, "move_all")):
            monkeypatch.setattr(owner, name, getattr(self, name))
        monkeypatch.setattr(GroupMover, "__init__", lambda *_: None)

    async def behind(self, *_: Any) -> Behind:
        return Behind(FlowLag((lag_of("t", 0, "t", 6, 0, 6 + self.waiting, -1),)))

    async def drain(self, *_: Any) -> None:
        assert not self.waiting or not self.is_stopped, "else it waits without end"
        self.did.append("drain")
        self.waiting = 0

    async def stop_flow(self, *_: Any) -> None:
        self.did.append("stop")
        self.is_stopped = True

    async def state(self) -> str:
        return "STOPPED" if self.is_stopped else "RUNNING"

    async def resume(self) -> None:
        self.did.append("start")
        self.is_stopped = False

    async def move_all(self, *_: Any) -> list[Any]:
        self.did.append("move")
        return []

    async def run(self, found: VerificationResult | Killed) -> None:
        async def verify(_: float | None) -> VerificationResult:
            self.did.append("verify")
            if isinstance(found, Killed):
                raise found
            return found

        flow, back = SimpleNamespace(flow="us->eu", source_alias="us"), SimpleNamespace(flow="eu->us")
        site: Any = SimpleNamespace(flow=flow, turned=lambda: site, back=back)
        lease: Any = MagicMock(store=AsyncMock())
        journal: Any = MagicMock(store=AsyncMock(), denied=frozenset(), run=SimpleNamespace(changes={}))
        controls: Any = self, None
        failover = Failover(site, FailoverOptions(verifies=True), lambda _: None, controls, verify=verify)
        await failover.run_under(lease, self.plan, journal)


@pytest.mark.parametrize(("written", "first"), [(0, []), (3, ["start"])])
async def test_after_a_kill_in_the_proof_the_next_run_drains_and_verifies_before_it_moves(
    monkeypatch: pytest.MonkeyPatch, written: int, first: list[str]
) -> None:
    """Producers may have ``written`` meanwhile: the flow, which the first run has stopped, has to copy that."""
    flow = Flow(monkeypatch)
    with pytest.raises(Killed):
        await flow.run(Killed())
    assert flow.did == ["drain", "stop", "verify"]
    flow.did, flow.waiting = [], written
    with pytest.raises(NotProved):
        await flow.run(DIFFERS)
    assert flow.did == [*first, "drain", "stop", "verify"]
    flow.did = []
    await flow.run(EQUAL)
    assert flow.did == ["drain", "stop", "verify", "move"]
