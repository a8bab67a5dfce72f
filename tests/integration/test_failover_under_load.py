"""Readers are moved there and back by commands under load, and each processes every record once, by both policies."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from connect.embedded.brokers import KafkaCluster
from tests.conftest import EAGER
from tests.kit.commanded import Commanded
from tests.kit.java_client import DEFAULT, IDENTITY
from tests.kit.mirror import Mirror
from tests.kit.moving import COMPACTED, KINDS, PLACES, Feed, not_once

# Four starts of Spark, on a machine that may be busy.
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(2400)]

_ROUNDS = 60
#: Written at least while the command is at work.
_MORE_ROUNDS = 10
_ATOMIC = {"exactly.once.source.support": "enabled"}
Keep = Callable[[str, object], None]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def three() -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    with KafkaCluster.start("us3", nodes=3, config=EAGER) as us, KafkaCluster.start("eu3", nodes=3, config=EAGER) as eu:
        yield us, eu


@pytest.mark.parametrize(
    ("policy", "more"),
    [(DEFAULT, {}), (IDENTITY, {}), (IDENTITY, _ATOMIC)],
    ids=["default", "identity", "identity-exactly-once"],
)
def test_every_record_is_processed_once(
    policy: str,
    more: Mapping[str, str],
    us: KafkaCluster,
    eu: KafkaCluster,
    tmp_path: Path,
    capsys: Capture,
    record_property: Keep,
) -> None:
    there_and_back(Commanded(us, eu, tmp_path, uuid.uuid4().hex[:6], policy, more), capsys, record_property)


def test_so_it_is_with_three_brokers_on_each_side(
    three: tuple[KafkaCluster, KafkaCluster], tmp_path: Path, capsys: Capture, record_property: Keep
) -> None:
    there_and_back(Commanded(*three, tmp_path, uuid.uuid4().hex[:6], IDENTITY, {}), capsys, record_property)


def there_and_back(on: Commanded, capsys: Capture, keep: Keep) -> None:
    """``keep`` puts a number into the report of the run."""
    with on.mirror(on.us, on.eu) as there, on.mirror(on.eu, on.us) as back:
        asyncio.run(go_over(on, there, capsys))
        back.start()
        asyncio.run(return_home(on, back, capsys))
        asyncio.run(on.finish(on.us))
        keep("records", judge(on))
        assert there.stop() == 0
        assert back.stop() == 0


async def go_over(on: Commanded, there: Mirror, capsys: Capture) -> None:
    feed = on.feeds[on.us]
    await feed.make()
    await feed.write(_ROUNDS)
    there.start()
    loading = asyncio.create_task(feed.load(), name="load")
    # Of the compacted topic there would be nothing left where groups were, if they left before anything was copied.
    await on.await_copied(on.us, on.eu, there)
    await on.leave(on.us, list(PLACES), has_copies=False)
    await on.await_copied(on.us, on.eu, there)
    move = asyncio.to_thread(on.command, "failover", there.properties_file, on.us, on.eu, capsys)
    assert_all_moved(on, await moved_under_load(feed, loading, move))


async def return_home(on: Commanded, back: Mirror, capsys: Capture) -> None:
    """From other places than those that the groups came to, behind records that were written there."""
    feed = on.feeds[on.eu]
    if not on.keeps_names:
        await feed.make()
    await feed.write(_ROUNDS)
    loading = asyncio.create_task(feed.load(), name="load")
    await on.await_copied(on.eu, on.us, back)
    await on.leave(on.eu, list(PLACES)[::-1], has_copies=True)
    await on.await_copied(on.eu, on.us, back)
    move = asyncio.to_thread(on.command, "failback", back.properties_file, on.eu, on.us, capsys)
    assert_all_moved(on, await moved_under_load(feed, loading, move))


async def moved_under_load(feed: Feed, loading: asyncio.Task[None], move: Coroutine[Any, Any, str]) -> Any:
    """What the command has said; producers are stopped while it waits for them."""
    moving = asyncio.create_task(move, name="move")
    rounds = feed.rounds
    while feed.rounds < rounds + _MORE_ROUNDS and not loading.done():  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    feed.stop()
    await loading
    return json.loads(await moving)


def assert_all_moved(on: Commanded, reported: Any) -> None:
    assert {one["group"] for one in reported["moves"]} == {mover.group for mover in on.movers}
    assert {one["by"] for one in reported["moves"]} <= {"exact", "gap", "end of the copy", "begin of the copy"}
    assert "differs" not in {one["outcome"] for one in reported["proof"]}
    assert [one for one in reported["proof"] if one["outcome"] == "same"]


def judge(on: Commanded) -> int:
    """How many records readers had to get."""
    faults, records = [], 0
    for kind in KINDS:
        written = [one for feed in on.feeds.values() for one in feed.written[kind]]
        assert len(written) > 2 * _ROUNDS
        records += len(written)
        for mover in on.movers:
            found = not_once(mover.seen[kind], written, is_compacted=kind == COMPACTED)
            faults += [f"{mover.group} {kind}: {fault}" for fault in found[:3]]
    assert not faults, "\n".join(faults)
    return records
