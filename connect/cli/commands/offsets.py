"""``heliograph offsets``, which shows the offsets of groups and flows, in the columns of the old
``ConsumerOffsetChecker``; ``heliograph map``, which shows offset maps, translates an offset, and rebuilds lost maps."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.live import Live
from rich.text import Text

from connect.cli.commands.flow_looks import readers_of
from connect.cli.console import EXIT_ERROR, EXIT_OK, exit_code, stop_signals
from connect.cli.tables import console, show, show_json, table
from connect.core.config.properties import ClientProperties, load_properties
from connect.core.errors import ConfigError
from connect.core.wording import counted, printable
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import is_set_within, unless
from connect.kafka.log.committed_offsets import committed, owners
from connect.kafka.log.offsets import LATEST, known_offsets
from connect.kafka.security.connection_settings import connection_settings
from connectors.config.mm2_properties import Flow, chosen_flows, load
from connectors.lag_reader import LagReader
from connectors.offset_map.view_and_rebuild import MEANING, MapQuery, PairView, Rebuilt, read_map, rebuild_maps

#: The columns of ConsumerOffsetChecker, and its widths.
_HEADER: Final = ("Group", "Topic", "Pid", "Offset", "logSize", "Lag", "Owner")
_WIDTHS: Final = (15, 30, 3, 15, 15, 15, 0)
_UNKNOWN: Final = "unknown"
_NO_OWNER: Final = "none"
_CLIENT_ID: Final = "heliograph-offsets"


@dataclass(frozen=True, slots=True)
class Row:
    """One partition. ``offset`` is that of the next record to read, ``log_size`` the end offset; -1 is unknown."""

    group: str
    topic: str
    pid: int
    offset: int
    log_size: int
    owner: str

    @property
    def lag(self) -> int:
        """In records; -1 is unknown."""
        return -1 if min(self.offset, self.log_size) < 0 else max(self.log_size - self.offset, 0)

    def to_json(self) -> dict[str, Any]:
        shown = {"group": self.group, "topic": self.topic, "partition": self.pid, "offset": self.offset}
        return {**shown, "log_size": self.log_size, "lag": self.lag, "owner": self.owner}


@dataclass(frozen=True, slots=True)
class OffsetsAnswer:
    """What is printed. ``unknown``: why partitions could not be checked. ``nothing``: groups that have neither a
    committed offset nor a member. ``unread``: topics asked for of which there is no partition."""

    rows: tuple[Row, ...]
    brokers: tuple[tuple[str, int, str], ...] = ()
    unknown: tuple[str, ...] = ()
    nothing: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        brokers = [{"cluster": cluster, "id": node, "address": at} for cluster, node, at in self.brokers]
        rows = [row.to_json() for row in self.rows]
        found = {"partitions": rows, "brokers": brokers, "unknown": list(self.unknown), "nothing": list(self.nothing)}
        return {**found, "unread": list(self.unread)}


@dataclass(frozen=True, slots=True)
class OffsetsQuestion:
    """What to show: groups of a cluster, by its alias in a file or its address, or the flows of a file; ``topics`` is
    empty for all."""

    file: Path | None
    cluster: str | None
    bootstrap: str | None
    command_config: Path | None
    groups: Sequence[str]
    flow: str | None
    topics: frozenset[str]
    with_brokers: bool


def run_offsets(question: OffsetsQuestion, *, as_json: bool, every_s: float | None) -> int:
    """Print the offsets, repeatedly with ``every_s``, and return the exit code: 0, or 1 for an incomplete check. Raises
    ConfigError if a file or an argument is wrong, HeliographError if a cluster does not answer."""
    if every_s is not None and (as_json or not sys.stdout.isatty()):
        raise ConfigError("--watch needs a terminal and cannot be combined with --json", "--watch")
    return asyncio.run(_run(question, as_json=as_json, every_s=every_s))


async def _run(question: OffsetsQuestion, *, as_json: bool, every_s: float | None) -> int:
    async with _asked(question) as ask:
        if every_s is None:
            reported = await ask()
            if as_json:
                show_json(reported.to_json())
            else:
                print("\n".join(lines(reported, console().width)))
            return exit_code(unknown=bool(reported.unknown), found=False)
        async with stop_signals() as stop:
            with Live(auto_refresh=False) as shown:
                while (seen := await unless(stop, ask(), "look at offsets")) is not None:
                    text = Text("\n".join(lines(seen, shown.console.width)), no_wrap=True)
                    shown.update(text, refresh=True)
                    await is_set_within(stop, every_s)
        return EXIT_OK


def lines(reported: OffsetsAnswer, columns: int) -> Iterator[str]:
    """Format an answer as ConsumerOffsetChecker does, or with narrower columns for a terminal of fewer ``columns``."""
    rows: list[Sequence[str]] = [_HEADER]
    for row in reported.rows:
        numbers = (_UNKNOWN if number < 0 else str(number) for number in (row.offset, row.log_size, row.lag))
        rows.append([printable(cell) for cell in (row.group, row.topic, str(row.pid), *numbers, row.owner)])
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    wide = list(map(max, widths, _WIDTHS))
    if sum(wide) + len(wide) - 1 <= columns:
        widths = wide
    for cells in rows:
        yield " ".join(map(str.ljust, cells, widths)).rstrip()
    yield from (printable(f"group {group} has no committed offset and no member") for group in reported.nothing)
    yield from (printable(f"no partition of topic {topic} is read") for topic in reported.unread)
    yield from (printable(f"not checked: {why}") for why in reported.unknown)
    if reported.brokers:
        yield "BROKER INFO"
        yield from (printable(f"{node} -> {address}") for _, node, address in reported.brokers)


@asynccontextmanager
async def _asked(question: OffsetsQuestion) -> AsyncIterator[Callable[[], Coroutine[Any, Any, OffsetsAnswer]]]:
    async with AsyncExitStack() as stack:
        if question.groups:
            cluster = _cluster(question)
            stack.push_async_callback(cluster.close)
            yield lambda: _of_groups(cluster, question)
            return
        if question.file is None or question.cluster or question.bootstrap:
            raise ConfigError("name a group, or give only mm2.properties for its flows", "--group")
        readers = await stack.enter_async_context(readers_of(question.file, question.flow))
        yield lambda: _of_flows(readers, question)


def _cluster(question: OffsetsQuestion) -> Cluster:
    if (question.file is None) == (question.bootstrap is None):
        raise ConfigError("give either --bootstrap-server or mm2.properties with --cluster")
    if question.bootstrap is not None:
        config = ClientProperties(load_properties(question.command_config)) if question.command_config else {}
        props = {**config, "bootstrap.servers": question.bootstrap}
        return Cluster(connection_settings(props, client_id=_CLIENT_ID, where="--bootstrap-server"), question.bootstrap)
    assert question.file is not None
    if question.flow is not None:
        raise ConfigError("--group cannot be combined with --flow", "--flow")
    if question.command_config is not None:
        raise ConfigError("--command-config needs --bootstrap-server", "--command-config")
    if question.cluster is None:
        raise ConfigError("name the cluster of the groups", "--cluster")
    mirror = load(question.file)
    if question.cluster not in mirror.clusters:
        known = ", ".join(mirror.clusters)
        raise ConfigError(f"{question.cluster} is not a cluster of the file, which has {known}", "--cluster")
    props = mirror.client_properties(question.cluster)
    return Cluster(connection_settings(props, client_id=_CLIENT_ID, where=question.cluster), question.cluster)


async def _of_groups(cluster: Cluster, question: OffsetsQuestion) -> OffsetsAnswer:
    rows: list[Row] = []
    unknown: dict[str, None] = {}
    nothing: list[str] = []
    for group in question.groups:
        stored = await committed(cluster, group)
        held = await owners(cluster, group)
        if not stored and not held:
            nothing.append(group)
        asked = [one for one in sorted(stored.keys() | held.keys()) if not question.topics or one[0] in question.topics]
        ends, endless = await known_offsets(cluster, asked, LATEST)
        unknown |= dict.fromkeys(endless.values())
        at = {one: stored[one].offset if one in stored else -1 for one in asked}
        rows += (Row(group, *one, at[one], ends.get(one, -1), held.get(one, _NO_OWNER)) for one in asked)
    brokers = await _brokers([cluster]) if question.with_brokers else ()
    return OffsetsAnswer(tuple(rows), brokers, tuple(unknown), tuple(nothing), _unread(question, rows))


async def _of_flows(readers: dict[str, LagReader], question: OffsetsQuestion) -> OffsetsAnswer:
    rows: list[Row] = []
    unknown: list[str] = []
    for flow, reader in readers.items():
        lag = await reader.all()
        asked = [one for one in lag.partitions if not question.topics or one.topic in question.topics]
        rows += (Row(flow, one.topic, one.partition, one.position, one.end, _UNKNOWN) for one in asked)
        unknown += lag.unknown.values()
    clusters = [reader.source for reader in readers.values()]
    brokers = await _brokers(clusters) if question.with_brokers else ()
    return OffsetsAnswer(tuple(rows), brokers, tuple(unknown), unread=_unread(question, rows))


def _unread(question: OffsetsQuestion, rows: Collection[Row]) -> tuple[str, ...]:
    return tuple(sorted(question.topics - {row.topic for row in rows}))


async def _brokers(clusters: Collection[Cluster]) -> tuple[tuple[str, int, str], ...]:
    found = {
        (cluster.name, node): f"{broker.host}:{broker.port}"
        for cluster in clusters
        for node, broker in (await cluster.metadata(frozenset())).brokers.items()
    }
    return tuple((cluster, node, at) for (cluster, node), at in sorted(found.items()))


_COLUMNS = ("partition", "remote", "copied to", "source offsets", "target offsets")


def run_map(file: Path, question: MapQuery, *, flow: str | None, as_json: bool) -> int:
    """Print the offset maps. Raises ConfigError if the file or the question is wrong, HeliographError if a cluster does
    not answer."""
    if question.offset is not None and question.topic is None:
        raise ConfigError("--offset needs --topic", "--offset")
    if question.is_reverse and question.offset is None:
        raise ConfigError("--reverse needs --offset", "--reverse")
    found = asyncio.run(_read(chosen_flows(file, flow), question))
    if as_json:
        show_json([{"flow": one, "pairs": [view.to_json() for view in views]} for one, views in found.items()])
    else:
        for one, views in found.items():
            _show(one, views, question)
    return EXIT_OK


def run_rebuild(file: Path, question: MapQuery, *, flow: str | None, as_json: bool) -> int:
    """Rebuild maps, print each partition when it is done, and return the exit code: not 0 if a partition failed. Raises
    ConfigError if the file or an option is wrong, HeliographError if a cluster does not answer."""
    if question.offset is not None or question.is_reverse:
        raise ConfigError("--rebuild cannot be combined with --offset or --reverse", "--rebuild")
    found = asyncio.run(_rebuild(chosen_flows(file, flow), question, is_quiet=as_json))
    if as_json:
        show_json([{"flow": one, "pairs": [asdict(each) for each in rebuilt]} for one, rebuilt in found.items()])
    failed = any(each.failure for rebuilt in found.values() for each in rebuilt)
    return EXIT_ERROR if failed else EXIT_OK


async def _rebuild(flows: list[Flow], question: MapQuery, *, is_quiet: bool) -> dict[str, list[Rebuilt]]:
    found: dict[str, list[Rebuilt]] = {}
    for flow in flows:
        reported = found[str(flow)] = []

        def report(rebuilt: Rebuilt, name: str = str(flow), reported: list[Rebuilt] = reported) -> None:
            reported.append(rebuilt)
            if not is_quiet:
                print(f"{name}: {outcome(rebuilt)}", flush=True)

        await rebuild_maps(flow.settings(), flow.clients(), question.is_about, report)
        if not reported and not is_quiet:
            print(f"{flow}: no position of {_asked_for(question)} is stored, so there is nothing to rebuild")
    return found


def outcome(rebuilt: Rebuilt) -> str:
    source = f"{rebuilt.source_topic}-{rebuilt.source_partition}"
    if rebuilt.failure:
        return f"{source} could not be checked: {rebuilt.failure}"
    top, _ = rebuilt.top
    if not top:
        return f"{source}: the map starts at offset 0, so there is nothing to rebuild"
    if not rebuilt.records:
        return f"{source}: nothing could be proven below source offset {top}, where the map starts"
    remote = f"{rebuilt.target_topic}-{rebuilt.target_partition}"
    begin = f"source offset {rebuilt.source_begin} ({remote} offset {rebuilt.target_begin})"
    return f"{source}: added {rebuilt.records} records to the map, from {begin} up to {top}"


async def _read(flows: list[Flow], question: MapQuery) -> dict[str, list[PairView]]:
    return {str(flow): await read_map(flow.settings(), flow.clients(), question) for flow in flows}


def _show(flow: str, views: list[PairView], question: MapQuery) -> None:
    if not views:
        print(f"{flow}: no map of {_asked_for(question)} is stored")
        return
    if question.offset is not None:
        for view in views:
            print(f"{flow}: {_answer(view, question.offset, is_reverse=question.is_reverse)}")
        return
    print(f"{flow}: {counted(len(views), 'pair')} of partitions")
    show(table(_COLUMNS, map(_cells, views), right=_COLUMNS[2:]))


def _asked_for(question: MapQuery) -> str:
    partition = "" if question.partition is None else f" partition {question.partition}"
    return f"{question.topic or 'any topic'}{partition}"


def _cells(view: PairView) -> tuple[str, ...]:
    remote = f"{view.target_topic}-{view.target_partition}"
    return (
        f"{view.source_topic}-{view.source_partition}",
        remote if view.is_current else f"{remote} (previous)",
        str(view.copied_to) if view.copied_to >= 0 else "",
        _range(view.source_begin, view.source_end),
        _range(view.target_begin, view.target_end),
    )


def _answer(view: PairView, offset: int, *, is_reverse: bool) -> str:
    ends = (f"{view.source_topic}-{view.source_partition}", f"{view.target_topic}-{view.target_partition}")
    asked, other = reversed(ends) if is_reverse else ends
    before = "" if view.is_current else ", which is no longer copied to"
    if view.answer is None:
        return f"{asked} offset {offset} is unknown: there is no map to {other}{before}"
    return f"{asked} offset {offset} is {other} offset {view.answer.offset}{before}: {MEANING[view.answer.place]}"


def _range(begin: int, end: int) -> str:
    return "" if end < 0 else f"{begin} to {end - 1}"
