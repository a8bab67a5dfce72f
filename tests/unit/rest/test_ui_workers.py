"""The dashboard of a flow whose tasks run on two workers: what both know is added up, and a silent one is named."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from connect.core.config.rest_settings import REST
from connect.core.model import ConnectorStateInfo, State, Status
from connect.kafka.concurrency import wall_ms
from rest.rest_config import RestSettings
from rest.ui import flows_and_workers, snapshots
from rest.ui.flows_and_workers import KeptAnswers, details_together
from tests.kit.rest_herder import DictHerder
from tests.unit.rest.conftest import running_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

RATES = {"records_per_s": None, "bytes_per_s": None, "is_whole": False}


def report(records_per_s: float, at_ms: int, *samples_ms: int) -> dict[str, Any]:
    """The rates report of a worker whose clock is at ``at_ms``, with samples of one lag and rate."""
    history = {
        key: [records_per_s] * len(samples_ms) for key in ("records_per_s", "bytes_per_s", "lag_records", "lag_ms")
    }
    return {
        "at_ms": at_ms,
        "records_per_s": records_per_s,
        "bytes_per_s": 10 * records_per_s,
        "history": {"at_ms": list(samples_ms), **history},
        "batches": [{"kind": "shallow", "reason": "", "count": 3}],
        "spark": {"epoch": 1, "place": "local", "slots": 2, "used": 1, "problem": ""},
    }


class OneOfTwo(DictHerder):
    """A worker's view of the flow us->eu, whose task 0 it has, and task 1 the worker ``other``."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        config = {"source.cluster.alias": "us", "target.cluster.alias": "eu"}
        self.add("m m", **{"connector.class": "MirrorSourceConnector", **config})
        self.rate, self.other = rate, ""
        #: Kinds of reports that are late until the event.
        self.late: set[str] = set()
        self.come = asyncio.Event()

    def connector_status(self, name: str) -> ConnectorStateInfo:
        tasks = {number: Status(State.RUNNING, one, 1) for number, one in enumerate((self.worker_id, self.other))}
        return ConnectorStateInfo(name, tasks[0], tasks, "source")

    async def connector_report(self, name: str, kind: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        if kind in self.late:
            await self.come.wait()
        now_ms = wall_ms()
        if kind == "rates":
            return report(self.rate, now_ms, now_ms - 20_000, now_ms - 10_000, now_ms)
        names = [{"worker_id": one, "tasks": {"RUNNING": 1}} for one in (self.worker_id, self.other)]
        return {"rates": RATES, "workers": names}


@pytest.fixture
def users(tmp_path: Path) -> Path:
    (file := tmp_path / "users").write_text("ann = a-pass\n")
    return file


@asynccontextmanager
async def two_workers(users: Path) -> AsyncIterator[tuple[list[OneOfTwo], httpx.AsyncClient]]:
    """Two workers of a group that know users by password, and a client of the first."""
    access = {"rest.auth.basic.file": str(users), "rest.auth.viewers": "User:ann"}
    settings = RestSettings.of(REST.parse({"listeners": "http://127.0.0.1:0", **access}))
    herders = [OneOfTwo(5.0), OneOfTwo(7.0)]
    async with running_server(settings, herders[0]) as first, running_server(settings, herders[1]) as second:
        places = [f"127.0.0.1:{server.ports[0]}" for server in (first, second)]
        for herder, own, other in zip(herders, places, reversed(places), strict=True):
            herder.worker_id, herder.other = own, other
        async with httpx.AsyncClient(base_url=f"http://{places[0]}", auth=("ann", "a-pass")) as client:
            yield herders, client


async def test_both_workers_are_asked_and_a_silent_one_is_named(users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows_and_workers, "WITHIN_S", 60.0)
    monkeypatch.setattr(flows_and_workers, "_FRESH_S", 0.0)
    monkeypatch.setattr(flows_and_workers, "_AGAIN_S", 0.0)
    async with two_workers(users) as (herders, client):

        async def asked(path: str) -> Any:
            return (await client.get(f"/ui/api/flows{path}")).json()

        flow = (await asked(""))["flows"]["us->eu"]
        assert flow["overview"]["rates"] == {
            "records_per_s": 12.0, "bytes_per_s": 120.0, "is_whole": True, "silent": []
        }  # fmt: skip
        details = await asked("/us-%3Eeu/details")
        assert [one["records_per_s"] for one in details["workers"] if one["is_this"]] == [5.0]
        assert [one["records_per_s"] for one in details["workers"] if not one["is_this"]] == [7.0]
        assert details["history"]["records_per_s"][-1] == 12.0 and details["history"]["lag_ms"][-1] == 7.0
        assert sorted(one["records_per_s"][-1] for one in details["histories"]) == [5.0, 7.0]
        assert details["batches"] == [{"kind": "shallow", "reason": "", "count": 6}]

        herders[0].has_key = False
        (silent,) = (await asked(""))["flows"]["us->eu"]["overview"]["rates"]["silent"]
        assert silent["worker_id"] == herders[0].other and "has no session key" in silent["reason"]

        herders[0].has_key = True
        herders[1].late.add("rates")
        monkeypatch.setattr(flows_and_workers, "WITHIN_S", 0.2)
        flow = (await asked(""))["flows"]["us->eu"]
        (silent,) = flow["overview"]["rates"]["silent"]
        assert silent["worker_id"] == herders[0].other and silent["reason"].startswith("It has not answered within")
        assert flow["overview"]["rates"]["is_whole"] is False
        details = await asked("/us-%3Eeu/details")
        assert [bool(one["problem"]) for one in details["workers"] if not one["is_this"]] == [True]
        assert details["history"]["records_per_s"][-1] == 5.0
        herders[1].come.set()


async def test_an_overview_that_takes_long_is_shown_when_it_comes_and_stays_while_the_next_one_is_late(
    users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_WITHIN_S", 0.1)
    async with two_workers(users) as (herders, client):
        herders[0].late.add("overview")

        async def shown() -> Any:
            return (await client.get("/ui/api/flows")).json()["flows"]["us->eu"]

        first = await shown()
        assert first["overview"] is None and re.match(r"us->eu has given no overview for \d+ s", first["error"])
        herders[0].come.set()
        monkeypatch.setattr(snapshots, "_WITHIN_S", 60.0)
        second = await shown()
        assert second["overview"] is not None and second["error"] is None
        herders[0].come.clear()
        monkeypatch.setattr(snapshots, "_WITHIN_S", 0.1)
        third = await shown()
        herders[0].come.set()
        assert third["overview"] is not None and re.search(r"What you see is \d+ s old", third["error"])


async def test_after_an_error_the_question_is_not_asked_again_at_once() -> None:
    answers, calls = KeptAnswers(), 0

    async def ask() -> Mapping[str, Any]:
        nonlocal calls
        calls += 1
        raise LookupError("a secret")

    for _ in range(2):
        answer = await answers.get("x", ask, within_s=1, again_s=60)
        assert answer.data is None and answer.problem == "LookupError; see the worker's log."
    assert calls == 1
    await answers.close()


async def test_sums_are_of_times_by_this_workers_clock_and_of_workers_that_had_begun() -> None:
    now_ms = 1_000_000
    # The other clock is an hour ahead. It samples two seconds later, and began 20 s ago.
    ahead_ms = 3_600_000
    reports = {
        "a:1": report(1.0, now_ms, *range(now_ms - 40_000, now_ms, 10_000)),
        "b:1": report(2.0, now_ms + ahead_ms, *(now_ms + ahead_ms - ms for ms in (18_000, 8_000))),
    }
    found = details_together({"workers": []}, reports, now_ms)["history"]
    assert found["at_ms"] == [960_000, 970_000, 980_000, 990_000]
    assert found["records_per_s"] == [1.0, 1.0, 3.0, 3.0]
    # Longer than two intervals nothing was sampled: then it is not known what was copied.
    gap = report(1.0, now_ms, now_ms - 60_000, now_ms - 10_000)
    found = details_together({"workers": []}, {"a:1": gap}, now_ms)["history"]
    assert found["records_per_s"] == [1.0, 1.0, 1.0, None, None, 1.0]
