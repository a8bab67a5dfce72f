"""Exact resume over a source that was truncated behind the crash, and over logs that move while they are read:
nothing is skipped that was not copied, and what may come twice is said."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from connect.wire import batch as wire
from connectors.dataplane import codes, reading, resuming
from connectors.dataplane.copier import PartitionCopier
from connectors.dataplane.resumed import Resumed
from tests.unit.dataplane.test_copier import plan
from tests.unit.dataplane.test_resuming import START, WRITER, Query, Row, Site, left, source_batch

OLD_EPOCH = 4


def rows(first: int, behind: int, tag: bytes) -> list[Row]:
    return [(offset, 1000 + offset, b"%s%d" % (tag, offset), b"v") for offset in range(first, behind)]


def at(offset: int, row: Row) -> Row:
    """The same record, sent again: its producer's time is that of before."""
    return (offset, *row[1:])


OLD = rows(START, START + 5, b"old")


async def resumed(site: Site, *, skip_refused: bool = False) -> Resumed:
    arrived = replace(left(len(OLD) - 1), last_source_epoch=OLD_EPOCH)
    return await site.resumer(skip_refused=skip_refused).resume(arrived)


def copied(site: Site, *parts: Sequence[Row]) -> None:
    """Each part as a batch of its own."""
    copier = PartitionCopier(plan(next_source_offset=START), WRITER, read_committed=False)
    copier.pipelined = True
    for part in parts:
        copier.take(memoryview(bytearray(source_batch(part))))
    while (outgoing := copier.next_batch()) is not None:
        site.target.append(bytes(outgoing.batch))


def truncated(site: Site, to: int, grown: Sequence[Row], *, without: int | None = None) -> None:
    """What was copied stands there up to ``to``; behind it a later leader wrote. The target lost one record of it."""
    copied(site, *([row] for row in OLD))
    if without is not None:
        del site.target.batches[without]
    kept = [row for row in OLD if row[0] < to]
    site.source = [source_batch(part) for part in (kept, grown) if part]
    site.epoch_end = to


@pytest.fixture(params=[False, True], ids=["plain", "compacted"])
def site(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch, compacted=request.param)


async def test_what_a_later_leader_wrote_is_copied(site: Site) -> None:
    truncated(site, 7, rows(7, 20, b"new"))
    found = await resumed(site)
    assert found.plan.next_source_offset == 7
    assert not found.verified
    assert found.may_double == 5


async def test_a_truncation_before_the_stored_position_is_left_to_the_copy_to_see(site: Site) -> None:
    truncated(site, 3, rows(3, 20, b"new"))
    found = await resumed(site)
    assert (found.plan.next_source_offset, found.plan.last_source_epoch) == (START, OLD_EPOCH)
    assert not found.verified


async def test_a_record_that_is_sent_again_proves_no_place(site: Site) -> None:
    truncated(site, 6, [*rows(6, 8, b"new"), at(8, OLD[4]), *rows(9, 20, b"new")])
    assert (await resumed(site)).plan.next_source_offset == 6


async def test_the_last_record_again_at_its_old_offset_proves_no_place(site: Site) -> None:
    truncated(site, 6, [*rows(6, 9, b"new"), OLD[4], *rows(10, 20, b"new")])
    assert (await resumed(site)).plan.next_source_offset == 6


async def test_what_was_written_instead_was_not_left_out(site: Site) -> None:
    again = [at(row[0] + 5, row) for row in OLD[2:]]
    truncated(site, 7, [*rows(7, 12, b"new"), *again, *rows(15, 20, b"new")])
    found = await resumed(site, skip_refused=True)
    assert found.plan.next_source_offset == 7
    assert not found.left_out


async def test_a_source_that_ends_before_what_arrived_is_copied_on_from_its_end(site: Site) -> None:
    truncated(site, 7, [])
    found = await resumed(site)
    assert found.plan.next_source_offset == 7
    assert not found.verified


async def test_a_leader_that_follows_on_the_one_before_costs_nothing(site: Site) -> None:
    site.copied(OLD)
    site.source = [source_batch(OLD[:2]), source_batch([*OLD[2:], *rows(10, 20, b"new")])]
    site.epoch_end = 7
    found = await resumed(site)
    assert (found.plan.next_source_offset, found.verified, found.may_double) == (10, True, 0)


@pytest.mark.parametrize("seed", range(200))
async def test_whatever_was_written_instead_nothing_new_is_skipped(site: Site, seed: int) -> None:
    chance = random.Random(seed)
    to = chance.randrange(START - 2, START + len(OLD) + 1)
    grown = [
        at(row[0], chance.choice(OLD)) if chance.random() < 0.4 else row
        for row in rows(to, to + chance.randrange(0, 12), b"new")
    ]
    truncated(site, to, grown, without=chance.choice([None, *range(len(OLD))]))
    if not site.source:
        site.source = [source_batch(rows(0, 1, b"first"))]
    found = await resumed(site, skip_refused=chance.random() < 0.3)
    contents = {row[1:] for row in OLD}
    skipped = [row for row in grown if START <= row[0] < found.plan.next_source_offset and row[1:] not in contents]
    assert not skipped, f"cut at {to}, goes on at {found.plan.next_source_offset}"
    assert to >= START or found.plan.last_source_epoch == OLD_EPOCH


# logs that move while they are read


def copied_in_batches(site: Site) -> None:
    """Ten records, three batches."""
    copied(site, *(rows(first, behind, b"k") for first, behind in ((5, 8), (8, 12), (12, 15))))
    site.source = [source_batch(rows(5, 30, b"k"))]


@pytest.mark.parametrize("is_transformed", [False, True])
async def test_a_target_that_does_not_show_all_yet_is_read_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, is_transformed: bool
) -> None:
    copied_in_batches(site)
    fetch, looks = reading.fetch_one, 0
    first_end = wire.read_header(site.target.batches[0]).last_offset + 1

    async def of_a_new_leader(connection: Any, *more: Any) -> Any:
        nonlocal looks
        row = await fetch(connection, *more)
        if connection == "target":
            looks += 1
            if looks < 4:
                shown = bytes(site.target.batches[0]) if more[2][0] < first_end else b""
                return SimpleNamespace(**{**vars(row), "records": memoryview(shown), "high_watermark": first_end})
        return row

    monkeypatch.setattr(reading, "fetch_one", of_a_new_leader)
    stage: Any = Query(lambda _: True) if is_transformed else None
    found = await site.resumer(stage=stage).resume(left(9))
    assert looks >= 4
    assert (found.plan.next_source_offset, found.verified) == (15, True)


@pytest.mark.parametrize("is_transformed", [False, True])
async def test_a_target_that_loses_its_beginning_meanwhile_is_read_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, is_transformed: bool
) -> None:
    copied_in_batches(site)
    fetch = reading.fetch_one

    async def of_a_log_that_is_cut(connection: Any, *more: Any) -> Any:
        position = more[2][0]
        if connection != "target":
            return await fetch(connection, *more)
        if position < site.target_start:
            return SimpleNamespace(error_code=codes.OFFSET_OUT_OF_RANGE)
        if site.target_start:
            return await fetch(connection, *more)
        site.target_start = site.target.end
        row = await fetch(connection, *more)
        return SimpleNamespace(**{**vars(row), "records": memoryview(bytes(site.target.batches[0]))})

    monkeypatch.setattr(reading, "fetch_one", of_a_log_that_is_cut)
    stage: Any = Query(lambda _: True) if is_transformed else None
    found = await site.resumer(stage=stage).resume(left(9))
    assert not found.verified
    assert found.may_double


async def test_a_target_that_never_shows_all_is_left_to_a_later_take_over(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied_in_batches(site)
    monkeypatch.setattr(resuming, "_PATIENCE_S", 0.0)
    fetch = reading.fetch_one

    async def of_a_new_leader(connection: Any, *more: Any) -> Any:
        row = await fetch(connection, *more)
        return SimpleNamespace(**{**vars(row), "high_watermark": 1}) if connection == "target" else row

    monkeypatch.setattr(reading, "fetch_one", of_a_new_leader)
    found = await site.resumer().resume(left(9))
    assert "does not show all" in found.later


async def test_a_target_that_has_nothing_left_to_compare_proves_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was scanned, and is empty when its records are to be laid along the source."""
    copied_in_batches(site)
    fetch = reading.fetch_one

    async def then_cut(connection: Any, *more: Any) -> Any:
        row = await fetch(connection, *more)
        if connection == "target":
            site.target_start = site.target.end
        return row

    monkeypatch.setattr(reading, "fetch_one", then_cut)
    stage: Any = Query(lambda _: True)
    found = await site.resumer(stage=stage).resume(left(9))
    assert (found.plan.next_source_offset, found.verified, found.may_double) == (START, False, 10)


async def test_a_source_that_shows_less_than_it_had_is_copied_on_from_where_it_is_as_it_was(site: Site) -> None:
    """As where a transaction is open in what a later leader wrote: its records are not given yet."""
    truncated(site, 7, rows(7, 20, b"new"))
    fetch = site._fetch

    async def before_a_transaction(connection: str, *more: Any) -> Any:
        row = await fetch(connection, *more)
        if connection != "source":
            return row
        found = source_batch(OLD[:2]) if more[2][0] < 7 else b""
        return SimpleNamespace(**{**vars(row), "records": memoryview(bytearray(found)), "last_stable_offset": 7})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "fetch_one", before_a_transaction)
        resumer = site.resumer()
        resumer._settings = replace(resumer._settings, read_committed=True)
        found = await resumer.resume(replace(left(len(OLD) - 1), last_source_epoch=OLD_EPOCH))
    assert found.plan.next_source_offset == 7


@pytest.mark.parametrize("epoch", [-1, OLD_EPOCH])
async def test_the_log_of_a_leader_of_before_is_not_taken_for_the_one_that_was_copied(site: Site, epoch: int) -> None:
    """Two unclean elections: the first leader is back, with a longer log and nothing of the epoch that was copied."""
    site.copied(OLD)
    site.source = [source_batch(rows(0, 20, b"other"))]
    site.epoch_end, site.has_epoch = 20, False
    found = await site.resumer().resume(replace(left(len(OLD) - 1), last_source_epoch=epoch))
    assert (found.plan.next_source_offset, found.plan.last_source_epoch) == (START, epoch)
    assert not found.verified


async def test_without_an_epoch_the_last_record_again_proves_no_place(site: Site) -> None:
    truncated(site, 6, [*rows(6, 9, b"new"), OLD[4], *rows(10, 20, b"new")])
    found = await site.resumer().resume(replace(left(len(OLD) - 1), last_source_epoch=-1))
    assert found.plan.next_source_offset <= 6


async def test_without_an_epoch_the_beginning_of_a_cut_source_is_named_as_before(site: Site) -> None:
    site.copied(OLD)
    site.source, site.source_start = [source_batch(rows(11, 20, b"new"))], 11
    found = await site.resumer().resume(replace(left(len(OLD) - 1), last_source_epoch=-1))
    assert found.plan.next_source_offset == 10


@pytest.mark.parametrize("kept_epoch_end", [9, 2**62])
async def test_what_was_left_out_before_a_new_leader_came_stays_left_out(
    monkeypatch: pytest.MonkeyPatch, kept_epoch_end: int
) -> None:
    site = Site(monkeypatch, compacted=False)
    copied(site, OLD[:1], rows(7, 11, b"more"))
    site.source = [source_batch([*OLD[:1], *rows(6, 7, b"refused"), *rows(7, 20, b"more")])]
    site.epoch_end = kept_epoch_end
    found = await resumed(site, skip_refused=True)
    assert (found.plan.next_source_offset, found.verified, found.left_out) == (11, True, 1)
