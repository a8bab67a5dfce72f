"""Whoever moves readers is killed at every act by which something changes, or the source is: run again it ends well."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.kit.brokers import KafkaCluster
from tests.kit.copied import AHEAD, LATE, RECORDS, Copied
from tests.kit.copies import read_all, send
from tests.kit.dying import Ended, run_dying

pytestmark = [pytest.mark.integration, pytest.mark.long]

_MANY = 60


@pytest.fixture(scope="module")
def doomed() -> Iterator[KafkaCluster]:
    """A source that is killed and started again."""
    with KafkaCluster.start("doomed") as cluster:
        yield cluster


def command(name: str, copied: Copied, target: str) -> list[str]:
    where = [str(copied.file), "--to", target]
    return [name, *where, "--leave-unreplicated", "--timeout", "60", "--execute", "--yes"]


async def end_though_killed(arguments: Sequence[str]) -> list[str]:
    """Kill it at its first act, its second, and so on; the acts it got to, of which one may be passed over."""
    acts = list[str]()
    for act in range(1, _MANY):
        ended = await asyncio.to_thread(run_dying, act, 0, arguments)
        if not ended.act:
            assert ended.exit_code == 0, ended.errors
            return acts
        assert ended.exit_code < 0, "it was killed"
        acts.append(ended.act.partition(" ")[0])
    raise AssertionError("it never ends")


@pytest.mark.timeout(2400)  # some forty runs of the command, each from the beginning
async def test_a_failover_and_the_failback_end_as_if_nobody_had_killed_them(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path
) -> None:
    copied = Copied(us, eu, tmp_path)
    await copied.make()
    acts = await end_though_killed(command("failover", copied, copied.eu))
    assert {"TxnOffsetCommitRequest", "ProduceRequest", "EndTxnRequest"} <= set(acts)
    assert await copied.stored() == copied.wanted()
    assert await copied.before(copied.eu) == dict.fromkeys(copied.groups), "what was there at first"

    await copied.go_on_at_target(4)
    acts = await end_though_killed(command("failback", copied, copied.us))
    assert {"TxnOffsetCommitRequest", "EndTxnRequest"} <= set(acts)
    used_meanwhile = {group: min(offset + 4, RECORDS) for group, offset in copied.groups.items()}
    assert await copied.stored(copied.us) == used_meanwhile
    assert await copied.before(copied.us) == {
        group: offset for group, offset in copied.groups.items() if offset != used_meanwhile[group]
    }


@pytest.mark.parametrize("act", [1, 4, 7, 9, 11, 13, 14])
async def test_a_source_that_dies_on_the_way_is_told_of_and_done_without(
    act: int, doomed: KafkaCluster, eu: KafkaCluster, tmp_path: Path
) -> None:
    copied = Copied(doomed, eu, tmp_path)
    await copied.make()
    await copied.write_checkpoints()
    arguments = command("failover", copied, copied.eu)
    try:
        ended = await asyncio.to_thread(run_dying, act, doomed.nodes[0].pid, arguments)
        moved = await copied.stored()
        again = await asyncio.to_thread(run_dying, _MANY, 0, arguments)
        gone = await asyncio.to_thread(run_dying, _MANY, 0, [*arguments, "--source-gone", copied.us])
    finally:
        if not doomed.alive(0):
            doomed.start_node(0)
    assert ended.act, "the source was killed"
    assert_reported(ended, copied)
    assert again.exit_code == 2 and "--source-gone" in again.output, again.errors
    assert gone.exit_code == 0, gone.output + gone.errors
    by_checkpoint = {group: max(offset - LATE, 0) + AHEAD for group, offset in copied.groups.items()}
    wanted = {group: by_checkpoint[group] if at is None else at for group, at in moved.items()}
    assert await copied.stored() == wanted, "whom it had moved already stays at the record that is next"


@pytest.mark.timeout(1200)  # what a killed append left open is aborted after 40 s
async def test_an_append_that_is_killed_appends_every_record_once(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path
) -> None:
    """Each batch has two of the records."""
    copied = Copied(us, eu, tmp_path)
    await copied.make()
    unreplicated = [os.urandom(200_000) for _ in range(9)]
    await send(copied.bootstrap[copied.us], copied.topic, unreplicated)
    append = ["unreplicated", str(copied.file), "--from", copied.us, "--to", copied.eu, "--append"]
    acts = list[str]()
    for act in range(5, _MANY):
        ended = await asyncio.to_thread(run_dying, act, 0, append)
        if not ended.act:
            break
        acts.append(ended.act.partition(" ")[0])
    assert ended.exit_code == 0, ended.errors
    assert {"ProduceRequest", "EndTxnRequest"} <= set(acts)
    assert len(acts) > 4
    values = [record.value for record in await read_all(copied.bootstrap[copied.eu], copied.topic)]
    assert values[-len(unreplicated) :] == unreplicated
    assert len(values) == AHEAD + RECORDS + len(unreplicated)


def assert_reported(ended: Ended, copied: Copied) -> None:
    """Not with a traceback; nothing is left to be told where everything was done before it could be noticed."""
    assert "Traceback" not in ended.errors
    assert ended.exit_code == 0 or (ended.exit_code == 1 and f"cluster {copied.us} was lost" in ended.errors), ended
