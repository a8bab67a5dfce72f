"""Who may move readers, when, and what is said where it is not to be: against brokers, with no mirror."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from connect.cli.commands.failover import (
    EXIT_NO_GO,
    EXIT_SOME_LEFT,
    FailoverArguments,
    run_failback,
    run_failover,
    run_undo,
    run_unreplicated,
)
from connect.cli.daemons.flow_worker import worker_config
from connect.kafka.authorization import AclBinding, describe_acls
from connect.kafka.log.committed_offsets import list_groups
from connect.kafka.log.topic_admin import Admin
from connect.kafka.tracing import trace_with
from connect.runtime.audit import AuditLog
from connectors.config.mm2_properties import Flow, load
from connectors.failover.clusters_and_lease import FailoverInProgress, hold, site
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_at
from tests.kit.copied import AHEAD, RECORDS, Copied
from tests.kit.copies import send
from tests.kit.moving import commit
from tests.kit.rules import guarded

pytestmark = [pytest.mark.integration]

Capture = pytest.CaptureFixture[str]


@pytest.fixture
async def copied(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> Copied:
    made = Copied(us, eu, tmp_path)
    await made.make()
    return made


async def run(arguments: FailoverArguments, capsys: Capture) -> tuple[int, Any]:
    capsys.readouterr()
    code = await asyncio.to_thread(run_failover, arguments)
    return code, json.loads(capsys.readouterr().out)


async def test_records_that_only_the_target_holds_are_not_passed_over_in_silence(
    copied: Copied, capsys: Capture
) -> None:
    """The flow back would begin behind them."""
    code, reported = await run(copied.arguments(executes=True), capsys)
    assert code == EXIT_NO_GO
    assert f"{AHEAD} records, offsets 0 to {AHEAD - 1}" in reported["obstacles"][0]
    assert set((await copied.stored()).values()) == {None}
    with copied.file.open("a") as file:
        file.write("audit.enable = true\nconfig.storage.replication.factor = 1\n")
    exporter = InMemorySpanExporter()
    trace_with(SimpleSpanProcessor(exporter), "test")
    try:
        code, reported = await run(copied.arguments(executes=True, leaves_unreplicated=True), capsys)
    finally:
        trace_with(None, "")
    assert (code, await copied.stored()) == (0, copied.wanted())
    steps = [span.name for span in exporter.get_finished_spans()]
    assert steps[-1] == "failover" and steps.index("drain") < steps.index("move the groups") and "done" in steps
    (entry,) = await audited(copied)
    assert (entry["by"], entry["action"], entry["subject"]) == ("command", "failover", f"{copied.us}->{copied.eu}")
    assert "@" in entry["user"]


async def audited(copied: Copied) -> list[dict[str, Any]]:
    flow = Flow(load(copied.file), copied.us, copied.eu)
    async with cluster_at(copied.bootstrap[copied.eu]) as cluster:
        audit = AuditLog(cluster, cast(Admin, None), worker_config(flow).audit_topic, "")
        return list((await audit.report({}))["entries"])


async def test_two_at_once_and_the_second_is_told(copied: Copied, capsys: Capture) -> None:
    go = copied.arguments(executes=True, leaves_unreplicated=True)
    async with site(load(copied.file), copied.us, copied.eu) as place, hold(place, "the first") as lease:
        code, reported = await run(go, capsys)
        assert code == EXIT_NO_GO
        assert "the first" in reported["obstacles"][0]
        with pytest.raises(FailoverInProgress, match="the first"):
            async with hold(place, "the second"):
                pass
        await lease.store(step="still mine")
    assert (await run(go, capsys))[0] == 0


async def test_a_group_that_somebody_uses_is_not_moved(copied: Copied, capsys: Capture) -> None:
    group, *_ = copied.groups
    for alias, words in ((copied.us, "stop its consumers"), (copied.eu, "has members")):
        async with AIOKafkaConsumer(
            copied.topic,
            bootstrap_servers=copied.bootstrap[alias],
            group_id=group,
            enable_auto_commit=False,
            session_timeout_ms=120_000,
        ):
            code, reported = await run(copied.arguments(executes=True, leaves_unreplicated=True), capsys)
        assert code == EXIT_SOME_LEFT
        assert [one for one in reported["blocked"] if one["group"] == group and words in one["why"] + one["remedy"]]
        others = {name: offset for name, offset in copied.wanted().items() if name != group}
        assert await copied.stored() == {group: None, **others}, "it is left, and keeps no other"


async def test_what_groups_are_named_and_to_what_time_they_go(copied: Copied, capsys: Capture) -> None:
    look = copied.arguments(leaves_unreplicated=True)
    code, reported = await run(replace(look, groups=(f"{copied.name}-ha.*",)), capsys)
    assert (code, [one["new"] for one in reported["moves"]]) == (0, [15 + AHEAD])
    code, reported = await run(replace(look, at="2020-01-01T00:00Z"), capsys)
    assert (code, {one["new"] for one in reported["moves"]}) == (0, {0})
    code, reported = await run(replace(look, at="2100-01-01T00:00Z"), capsys)
    assert (code, {one["new"] for one in reported["moves"]}) == (0, {RECORDS + AHEAD})
    code, reported = await run(replace(look, groups=("nobody",)), capsys)
    assert (code, reported["go"], reported["moves"]) == (EXIT_NO_GO, False, [])


async def test_a_source_that_does_not_answer_is_only_gone_where_somebody_says_so(
    copied: Copied, capsys: Capture
) -> None:
    copied.bootstrap[copied.us] = "127.0.0.1:1"
    copied.configure()
    code, reported = await run(copied.arguments(), capsys)
    assert code == EXIT_NO_GO
    assert "--source-gone" in reported["obstacles"][0]


async def test_what_only_the_source_has_is_noted(copied: Copied, capsys: Capture) -> None:
    name = f"payments-{copied.name}"
    at_us = AIOKafkaProducer(bootstrap_servers=copied.bootstrap[copied.us], transactional_id=name)
    async with at_us as producer, producer.transaction():
        await producer.send_and_wait(copied.topic, b"1")
    _, reported = await run(copied.arguments(leaves_unreplicated=True), capsys)
    (note,) = [note for note in reported["notes"] if "has these transactional ids" in note]
    assert note.startswith(f"only cluster {copied.us}") and (name in note or "more" in note)
    assert not [note for note in reported["notes"] if "does not show" in note]


async def test_a_rehearsal_changes_nothing_and_says_what_a_failover_would(copied: Copied, capsys: Capture) -> None:
    rehearsal = replace(copied.arguments(leaves_unreplicated=True, rehearses=True), as_json=False)
    assert await asyncio.to_thread(run_failover, rehearsal) == 0
    said = capsys.readouterr().out
    assert "3 groups ready, 0 blocked; nothing was changed" in said
    assert "read from 3 of 3 target offsets" in said
    for words in ("RTO: ", "; estimated: drain 0.0 s, stop 2.0 s, moves ", f"RPO, if {copied.us} were lost now: "):
        assert words in said
    assert set((await copied.stored()).values()) == {None}
    async with cluster_at(copied.bootstrap[copied.eu]) as cluster:
        assert not [group for group in await list_groups(cluster) if group.startswith("heliograph-rehearse-")]


@pytest.mark.parametrize("damaged", [{3: b"another"}, {}], ids=["it differs", "it is equal"])
async def test_groups_move_only_once_the_whole_copy_is_verified(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path, capsys: Capture, damaged: dict[int, bytes]
) -> None:
    copied = Copied(us, eu, tmp_path)
    copied.damaged = damaged
    await copied.make()
    look = replace(copied.arguments(leaves_unreplicated=True), as_json=False)
    assert await asyncio.to_thread(run_failover, look) == 0
    assert "the copy was never verified; --verify compares every record" in capsys.readouterr().out
    go = replace(look, as_json=True, executes=True, verifies=True, verify_within_s=300)
    code = await asyncio.to_thread(run_failover, go)
    said = capsys.readouterr()
    if damaged:
        assert (code, set((await copied.stored()).values())) == (EXIT_NO_GO, {None})
        assert " difference" in said.err and "No group was moved." in said.err
    else:
        assert (code, await copied.stored()) == (0, copied.wanted()), said.err
        assert json.loads(said.out)["verification"].endswith("equal, 30 records of 1 partition compared")
    _, looked = await run(replace(look, as_json=True), capsys)
    assert (looked["verified"]["differences"] > 0, looked["verified"]["new_offsets"]) == (bool(damaged), 0)


async def test_a_command_is_run_once_groups_were_moved(copied: Copied, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "done"
    go = copied.arguments(executes=True, leaves_unreplicated=True, on_done=f"echo $HELIOGRAPH_EXIT_CODE > {file}")
    assert (await run(replace(go, executes=False), capsys))[0] == 0
    assert not file.exists()
    assert (await run(go, capsys))[0] == 0
    assert file.read_text() == "0\n"


async def test_a_group_that_went_on_is_not_taken_back(copied: Copied, capsys: Capture) -> None:
    """The others are, by any operator."""
    assert (await run(copied.arguments(executes=True, leaves_unreplicated=True), capsys))[0] == 0
    first, *others = copied.groups
    went_on = copied.wanted()[first] + 1
    await commit(copied.bootstrap[copied.eu], first, {copied.topic: went_on})
    assert await asyncio.to_thread(run_undo, copied.arguments()) == EXIT_SOME_LEFT, "a look says it as well"
    assert f"would not be undone: group {first} was not changed" in capsys.readouterr().out
    assert await asyncio.to_thread(run_undo, copied.arguments(executes=True)) == EXIT_SOME_LEFT
    assert f"group {first} was not changed in any partition" in capsys.readouterr().out
    assert await copied.stored() == {first: went_on, **dict.fromkeys(others)}
    assert await asyncio.to_thread(run_undo, copied.arguments(executes=True)) == EXIT_NO_GO, "that is still there"


@pytest.mark.long
async def test_writers_are_refused_until_the_undo_lets_them_in_again(
    eu: KafkaCluster, tmp_path: Path, capsys: Capture
) -> None:
    with guarded("guarded") as on:
        copied = Copied(on.cluster, eu, tmp_path)
        await copied.make()
        go = copied.arguments(executes=True, leaves_unreplicated=True, denies_writes=True)
        assert (await run(go, capsys))[0] == 0
        (rule,) = await rules_of(on.cluster)
        assert str(rule) == f"DENY WRITE to User:* from * on LITERAL TOPIC {copied.topic}"
        assert await asyncio.to_thread(run_undo, go) == 0
        assert await rules_of(on.cluster) == []
        assert set((await copied.stored()).values()) == {None}


@pytest.mark.long
async def test_an_old_primary_with_another_tail_holds_up_who_reads_it_and_says_what_it_has(
    eu: KafkaCluster, tmp_path: Path, capsys: Capture
) -> None:
    with KafkaCluster.start("tailless") as tailless:
        copied = Copied(tailless, eu, tmp_path)
        copied.left = RECORDS - 10
        await copied.make()
        await copied.go_on_at_target(0)
        tailless.stop_node(0)
        tailless.start_node(0)  # its log goes on in another leader epoch
        await send(copied.bootstrap[copied.us], copied.topic, [b"of its own"] * 4)
        back = replace(copied.arguments(leaves_unreplicated=True), target=copied.us)
        capsys.readouterr()
        assert await asyncio.to_thread(run_failback, back) == EXIT_NO_GO
        reported = json.loads(capsys.readouterr().out)
        assert reported["obstacles"] == []
        assert {one["group"] for one in reported["blocked"]} == copied.groups.keys()
        for one in reported["blocked"]:
            assert f"cluster {copied.us} has lost the end of {copied.topic}-0" in one["why"]
            assert "the same up to offset 20 of 30" in one["why"] and "4 other records, offsets 20" in one["why"]
        assert any("begins where" in note for note in reported["notes"])
        accepts = tuple(f"diverged={group}" for group in copied.groups)
        assert await asyncio.to_thread(run_failback, replace(back, accepts=accepts, rewinds=("*",))) == 0
        capsys.readouterr()
        export = tmp_path / "export"
        code = await asyncio.to_thread(
            run_unreplicated, copied.file, copied.us, copied.eu, export_to=export, appends=False, as_json=True
        )
        assert (code, json.loads(capsys.readouterr().out)["records"]) == (EXIT_NO_GO, 4)
        assert len((export / f"{copied.topic}-0.jsonl").read_text().splitlines()) == 4


@pytest.mark.long
async def test_a_failback_moves_groups_only_once_what_came_back_is_verified(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for damaged in ({}, {3: b"another"}):
        monkeypatch.setattr("tests.kit.copied.AHEAD", 0)
        copied = Copied(us, eu, tmp_path)
        copied.damaged = damaged
        await copied.make()
        await copied.go_on_at_target(5)
        back = replace(copied.arguments(executes=True, verifies=True), target=copied.us, leaves_unreplicated=True)
        code = await asyncio.to_thread(run_failback, back)
        said = capsys.readouterr()
        assert code == (EXIT_NO_GO if damaged else 0), said
        assert "1 difference" in said.err if damaged else "equal, 30 records" in json.loads(said.out)["verification"]


async def rules_of(kafka: KafkaCluster) -> list[AclBinding]:
    async with cluster_at(kafka.bootstrap) as cluster:
        return await describe_acls(cluster)
