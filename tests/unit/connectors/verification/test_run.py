"""A verification that is run again, and that cannot store for a while."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock
from uuid import UUID

import pytest

from connect.core.errors import ConfigError, PermanentError, RetriableError
from connect.kafka.cluster import Cluster, ClusterMetadata, TopicMetadata
from connect.kafka.log.topic_admin import Admin
from connectors.config.mm2_properties import Flow, load
from connectors.formats.types import TopicPartition
from connectors.spark.config import SparkSettings
from connectors.verification import run
from connectors.verification.planning import FlowClusters, VerifyOptions
from connectors.verification.report import PartitionResult
from connectors.verification.run import Verification
from connectors.verification.state import LastVerification, Verified
from tests.kit.answers import put


@pytest.fixture
def verification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verification:
    file = tmp_path / "mm2.properties"
    servers = "us.bootstrap.servers = a:1\neu.bootstrap.servers = b:1\n"
    file.write_text(f"clusters = us, eu\n{servers}us->eu.enabled = true\n")
    flow = Flow(load(file), "us", "eu")
    clients = flow.clients()
    source, target = Cluster(clients.source_admin(), "us"), Cluster(clients.target_admin(), "eu")
    clusters = FlowClusters(source, target, target, Admin(clients.target_admin(), "eu"))

    put(monkeypatch, run, plan_partitions=([], []))
    unused = cast(Any, None)
    return Verification(flow, clusters, unused, unused, VerifyOptions(), lambda *_: unused, lambda _: None)


class Stored:
    def __init__(self, *errors: Exception) -> None:
        self.errors, self.values = list(errors), dict[object, object]()

    async def load(self) -> dict[object, object]:
        return dict(self.values)

    async def store(self, values: Mapping[object, object]) -> None:
        if self.errors:
            raise self.errors.pop()
        self.values.update(values)


async def test_it_may_be_run_again(verification: Verification) -> None:
    """As --watch does; the last run to end is stored."""
    last = stored(verification)
    for _ in range(3):
        found = await verification.run()
        assert found.is_equal and found.is_complete
        assert last.values == {"": LastVerification(ended_ms=found.ended_ms)}


async def test_a_run_ends_in_time_and_is_not_the_last_that_ended(verification: Verification) -> None:
    last, forever = stored(verification), asyncio.Event()
    verification._options = replace(verification._options, within_s=0.01)
    cast(Any, verification)._task = forever.wait
    found = await verification.run()
    assert (found.is_complete, found.unread, last.values) == (False, (), {})


async def test_offsets_are_read_within_the_time(verification: Verification, monkeypatch: pytest.MonkeyPatch) -> None:
    """What earlier runs found still counts."""
    last, part = stored(verification), PartitionResult("t", 0, "t", 0, 6, 0, 0, 0, 6, 9, 1, (), 2)
    verification._options = replace(verification._options, within_s=0.01)
    cast(Any, verification._records).values = {TopicPartition("t", 0): Verified(part, 6, "", "")}
    forever = asyncio.Event()
    monkeypatch.setattr(run, "plan_partitions", lambda *_: forever.wait())
    found = await verification.run()
    assert (found.is_complete, found.differences_total, last.values) == (False, 2, {})
    assert found.unread == ("offsets could not be read within 0.01 s, so nothing more was compared",)
    monkeypatch.setattr(verification._records, "load", forever.wait)
    with pytest.raises(RetriableError, match="what earlier runs found is not known"):
        await verification.run()


async def test_what_a_late_run_found_is_stored(verification: Verification, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alert must not wait for a run that reaches the end."""
    last, forever = stored(verification), asyncio.Event()
    verification._options = replace(verification._options, within_s=0.01)
    part = PartitionResult("t", 0, "t", 0, 6, 0, 0, 0, 6, 9, 1, (), 2)
    scope = MagicMock(verified=Verified(part, 6, "", ""), source=TopicPartition("t", 0), first=0, offsets=9, failure="")

    put(monkeypatch, run, plan_partitions=([scope], []))
    cast(Any, verification)._task = forever.wait
    assert not (await verification.run()).is_complete
    found = cast(LastVerification, last.values[""])
    assert (found.ended_ms, found.differences, found.verified_to) == (-1, 2, {"t": [6]})


@pytest.mark.parametrize("id_now", [1, 2])
async def test_findings_of_a_gone_log_go(
    verification: Verification, monkeypatch: pytest.MonkeyPatch, id_now: int
) -> None:
    """Neither if offsets are not read in time, nor beside a run over other topics."""
    now = TopicMetadata("t", UUID(int=id_now), 0, {})
    found = MagicMock(metadata=AsyncMock(return_value=ClusterMetadata(None, -1, {}, {"t": now})))
    verification._clusters = replace(verification._clusters, source=found, target=found)
    last, before = stored(verification), scope_of(0, str(UUID(int=1)), 5, 2)
    cast(Any, verification._records).values = {before.source: before.verified}
    verification._options = replace(verification._options, topics=("other",))
    monkeypatch.setattr(verification, "_next", AsyncMock(return_value=None))
    await verification.run()
    assert cast(LastVerification, last.values[""]).differences == (2 if id_now == 1 else 0)
    verification._options = replace(verification._options, topics=(), within_s=0.05)
    forever = asyncio.Event()
    monkeypatch.setattr(run, "plan_partitions", lambda *_: forever.wait())
    assert (await verification.run()).differences_total == (2 if id_now == 1 else 0)


def scope_of(partition: int, topic_id: str, verified_ms: int = 0, differences: int = 0) -> Any:
    part = PartitionResult("t", partition, "us.t", partition, 6, 0, 0, 0, 6, 9, verified_ms, (), differences)
    source = TopicPartition("t", partition)
    return MagicMock(verified=Verified(part, 6, topic_id, ""), source=source, first=0, offsets=0, failure="")


@pytest.mark.parametrize("unread", [[], ["t-2: no leader"]])
async def test_what_is_stored_of_logs_that_are_gone_or_recreated_does_not_stay(
    verification: Verification, monkeypatch: pytest.MonkeyPatch, unread: list[str]
) -> None:
    last, scopes = stored(verification), [scope_of(0, "new"), scope_of(1, "new", 5)]
    before = [scope_of(0, "old", 5, 2), scope_of(1, "new", 5), scope_of(2, "new", 5)]
    values = {one.source: one.verified for one in before}
    cast(Any, verification._records).values = values

    put(monkeypatch, run, plan_partitions=(scopes, list(unread)))
    monkeypatch.setattr(verification, "_next", AsyncMock(return_value=None))
    assert (await verification.run()).is_equal
    gone = {} if unread else {before[2].source: None}
    assert values == {**{one.source: one.verified for one in (*scopes, before[2])}, **gone}
    assert cast(LastVerification, last.values[""]).ids == {"t": ["new", "us.t", ""]}


async def test_an_unstored_result_is_returned(verification: Verification, caplog: pytest.LogCaptureFixture) -> None:
    stored(verification).errors.append(PermanentError("the record is too large"))
    assert (await verification.run()).is_complete
    assert "do not show this verification: the record is too large" in caplog.text


async def test_another_timeout_is_an_error(verification: Verification, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(verification)
    monkeypatch.setattr(run, "plan_partitions", AsyncMock(side_effect=TimeoutError("of a socket")))
    with pytest.raises(TimeoutError, match="of a socket"):
        await verification.run()


def stored(verification: Verification) -> Stored:
    """Return what the verification stores of its last run."""
    last = Stored()
    verification._records, verification._last = cast(Any, Stored()), cast(Any, last)
    return last


async def test_the_link_takes_another_port_than_a_mirror_on_this_machine(tmp_path: Path) -> None:
    servers = "us.bootstrap.servers = a:1\neu.bootstrap.servers = b:1\n"
    with socket.create_server(("127.0.0.1", 0)) as mirror:
        port = mirror.getsockname()[1]
        file = tmp_path / "mm2.properties"
        link = f"link.listener = 127.0.0.1:{port}\nlink.advertised.address = localhost:{port}\n"
        file.write_text(f"clusters = us, eu\n{servers}us->eu.enabled = true\n{link}")
        engine: Any = MagicMock(code="")
        flow = Flow(load(file), "us", "eu")
        async with run.verifying(flow, engine, VerifyOptions(), MagicMock(), MagicMock()) as verification:
            address = verification._links.address
        assert address.host == "localhost" and address.port not in (0, port)


async def test_a_link_that_cannot_be_opened_for_another_reason_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    servers = "us.bootstrap.servers = a:1\neu.bootstrap.servers = b:1\nlink.listener = 203.0.113.1:5\n"
    file.write_text(f"clusters = us, eu\n{servers}us->eu.enabled = true\n")
    flow = Flow(load(file), "us", "eu")
    with pytest.raises(ConfigError, match=r"203\.0\.113\.1:5: cannot listen there"):
        async with run.verifying(flow, MagicMock(code=""), VerifyOptions(), MagicMock(), MagicMock()):
            pass


async def test_a_task_with_no_slot_says_why(verification: Verification, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    settings = SparkSettings(None, {"spark.master": "spark://a:1"}, slices=2, slices_key="--tasks")
    job, ticket = MagicMock(finished=loop.create_future()), MagicMock(linked=loop.create_future())
    start = AsyncMock(return_value=job)
    verification._engine = MagicMock(settings=settings, may_be_full=True, start_job=start)
    verification._links = MagicMock(expect=MagicMock(return_value=ticket))
    monkeypatch.setattr(run, "_START_S", 0)
    with pytest.raises(RetriableError, match=r"\(spark://a:1\) has run no task.* no free slot: 2 .* or lower --tasks"):
        async with verification._opened():
            pass


async def test_what_could_not_be_stored_is_stored_later(verification: Verification) -> None:
    stored = Stored(RetriableError("no leader"))
    verification._records = cast(Any, stored)
    verification._unstored = cast(Any, {"a": 1, "b": 1})
    with pytest.raises(RetriableError):
        await verification._store()
    verification._unstored.update(cast(Any, {"b": 2}))
    await verification._store()
    assert stored.values == {"a": 1, "b": 2}


async def test_what_a_run_stores_as_it_ends_stays(verification: Verification, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next run compares it again."""
    stored(verification)
    records, storing = cast(Any, verification._records), asyncio.Event()
    at_once = records.store

    async def slow(values: Mapping[object, object]) -> None:
        if not storing.is_set():
            storing.set()
            await asyncio.Event().wait()
        await at_once(values)

    async def found_last() -> None:
        verification._unstored[TopicPartition("t", 0)] = None
        await storing.wait()

    monkeypatch.setattr(run, "_STORE_S", 0)
    monkeypatch.setattr(records, "store", slow)
    monkeypatch.setattr(verification, "_task", found_last)
    assert (await verification.run()).is_complete
    assert records.values == {TopicPartition("t", 0): None}
