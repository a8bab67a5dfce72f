"""``heliograph map``: what the offset maps of a properties file's flows say, where an offset leads, and what they
should say where they were lost."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from connect.cli.connectors_view import console, show_json
from connect.cli.console import EXIT_ERROR, EXIT_OK, counted
from connect.core.errors import ConfigError
from connectors.flows import Flow, chosen_flows
from connectors.map_rebuild import Rebuilt, rebuild_maps
from connectors.map_view import MEANING, PairView, Question, read_map

_COLUMNS = ("partition", "remote", "copied to", "source offsets", "target offsets", "chunks", "runs in the last")


def run_map(file: Path, question: Question, *, flow: str | None, as_json: bool) -> int:
    """Print it. Raises ConfigError for a file or a question that is wrong, and what the clusters raise."""
    if question.offset is not None and question.topic is None:
        raise ConfigError("an offset is one of a partition: name its --topic", None)
    found = asyncio.run(_read(chosen_flows(file, flow), question))
    if as_json:
        show_json([{"flow": one, "pairs": [view.to_json() for view in views]} for one, views in found.items()])
    else:
        for one, views in found.items():
            _show(one, views, question)
    return EXIT_OK


def run_rebuild(file: Path, question: Question, *, flow: str | None, as_json: bool) -> int:
    """Rebuild, and print each partition as it is done. Exit code 1 where a partition could not be looked at.

    Raises ConfigError for a file or options that are wrong, and what the clusters raise."""
    if question.offset is not None or question.is_reverse:
        raise ConfigError("--rebuild is about whole partitions: leave --offset and --reverse out", None)
    found = asyncio.run(_rebuild(chosen_flows(file, flow), question, is_quiet=as_json))
    if as_json:
        show_json([{"flow": one, "pairs": [asdict(each) for each in rebuilt]} for one, rebuilt in found.items()])
    failed = any(each.failure for rebuilt in found.values() for each in rebuilt)
    return EXIT_ERROR if failed else EXIT_OK


async def _rebuild(flows: list[Flow], question: Question, *, is_quiet: bool) -> dict[str, list[Rebuilt]]:
    found: dict[str, list[Rebuilt]] = {}
    for flow in flows:
        told = found[str(flow)] = []

        def tell(rebuilt: Rebuilt, name: str = str(flow), told: list[Rebuilt] = told) -> None:
            told.append(rebuilt)
            if not is_quiet:
                print(f"{name}: {_outcome(rebuilt)}", flush=True)

        await rebuild_maps(flow.settings(), flow.clients(), question.is_about, tell)
        if not told and not is_quiet:
            print(f"{flow}: no position of {question.topic or 'any topic'} is stored, so there is nothing to rebuild")
    return found


def _outcome(rebuilt: Rebuilt) -> str:
    source = f"{rebuilt.source_topic}-{rebuilt.source_partition}"
    if rebuilt.failure:
        return f"{source} could not be looked at: {rebuilt.failure}"
    top, _ = rebuilt.top
    if not rebuilt.records:
        return f"{source}: below source offset {top}, where its map begins, nothing is proven"
    remote = f"{rebuilt.target_topic}-{rebuilt.target_partition}"
    return (
        f"{source}: {rebuilt.records} records from source offset {rebuilt.source_begin} ({remote} offset "
        f"{rebuilt.target_begin}) up to {top} were added to its map"
    )


async def _read(flows: list[Flow], question: Question) -> dict[str, list[PairView]]:
    return {str(flow): await read_map(flow.settings(), flow.clients(), question) for flow in flows}


def _show(flow: str, views: list[PairView], question: Question) -> None:
    if not views:
        print(f"{flow}: no map of {question.topic or 'any topic'} is stored")
        return
    if question.offset is not None:
        for view in views:
            print(f"{flow}: {_answer(view, question.offset, is_reverse=question.is_reverse)}")
        return
    print(f"{flow}: {counted(len(views), 'pair')} of partitions")
    table = Table(box=None)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in _COLUMNS[:2] else "right")
    for view in views:
        remote = f"{view.target_topic}-{view.target_partition}"
        table.add_row(
            f"{view.source_topic}-{view.source_partition}",
            remote if view.is_current else f"{remote} (before)",
            str(view.copied_to) if view.copied_to >= 0 else "",
            _range(view.source_begin, view.source_end),
            _range(view.target_begin, view.target_end),
            str(view.chunks),
            str(view.runs),
        )
    console().print(table)


def _answer(view: PairView, offset: int, *, is_reverse: bool) -> str:
    ends = (f"{view.source_topic}-{view.source_partition}", f"{view.target_topic}-{view.target_partition}")
    asked, other = reversed(ends) if is_reverse else ends
    before = "" if view.is_current else ", which is not copied to any more"
    if view.answer is None:
        return f"{asked} offset {offset} is unknown: there is no map to {other}{before}"
    return f"{asked} offset {offset} is {other} offset {view.answer.offset}{before}: {MEANING[view.answer.place]}"


def _range(begin: int, end: int) -> str:
    return "" if end < 0 else f"{begin} to {end - 1}"
