"""``heliograph failover``, ``failback``, ``undo`` and ``unreplicated``.

* ``failover``, ``failback`` and ``undo`` move groups between clusters. They change nothing without ``--execute``.
* ``unreplicated`` shows the records that only the old primary holds.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from connect.cli.console import EXIT_OK, counted
from connect.cli.tables import printable, show_json
from connect.core.errors import ConfigError, PermanentError

if TYPE_CHECKING:
    from connect.cli.commands.rest_client import RestControl
    from connectors.config.mm2_properties import MirrorMakerConfig
    from connectors.failover.clusters_and_lease import Site
    from connectors.failover.execute import Failover
    from connectors.failover.failback_and_undo import Failback
    from connectors.failover.journal import FailoverRun
    from connectors.failover.plan import Plan, Wish
    from connectors.failover.unreplicated import AppendResult, Unreplicated

_Controls = tuple["RestControl | None", "RestControl | None"]
#: A value of --group that is the name of a group: letters, digits, - and _, a dot between two of them, and whatever a
#: backslash precedes. Every other value is a regular expression.
_NAME: Final = re.compile(r"(?:[\w-]|(?<=\w)\.(?=\w)|\\[^\w])+", re.ASCII)
#: An error, such as a cluster that does not answer.
EXIT_FAILED: Final = 1
#: Nothing could be moved, or taken back.
EXIT_NO_GO: Final = 2
#: Some groups were left.
EXIT_SOME_LEFT: Final = 3
#: Old words of --accept that were options of all groups.
_AHEAD: Final = "ahead"
#: In a list of groups: every group.
EVERY: Final = "*"


@dataclass(frozen=True, slots=True)
class FailoverArguments:
    """As they were given. ``source`` None is found in the file; ``gone`` is the alias behind ``--source-gone``;
    ``undo`` is an undo file of an earlier version; ``asks``: before anything changes."""

    file: Path
    source: str | None
    target: str
    groups: Sequence[str] = ()
    rest: Sequence[str] = ()
    executes: bool = False
    asks: bool = False
    gone: str | None = None
    denies_writes: bool = False
    rewinds: Sequence[str] = ()
    keeps: Sequence[str] = ()
    leaves_unreplicated: bool = False
    at: str | None = None
    undo: Path | None = None
    rehearses: bool = False
    on_done: str | None = None
    sample: int = 10
    timeout_s: float = 600.0
    as_json: bool = False
    everything: bool = False
    accepts: Sequence[str] = ()


def run_failover(arguments: FailoverArguments) -> int:
    """Print what would be done, or do it; the exit code: 0 all groups move or have moved, 2 none can, 3 some are left.

    Raises ConfigError for arguments or a file that are wrong, and what the clusters raise.
    """
    from connectors.failover.execute import Failover

    return _run(arguments, partial(_failover, kind=Failover))


def run_failback(arguments: FailoverArguments) -> int:
    """As :func:`run_failover`, with what has to be done for the flow back before."""
    from connectors.failover.failback_and_undo import Failback

    return _run(arguments, partial(_failover, kind=Failback))


def run_undo(arguments: FailoverArguments) -> int:
    """Print what would be taken back, or take it back; the exit code as of :func:`run_failover`."""
    return _run(arguments, _undo)


def _run(
    arguments: FailoverArguments,
    work: Callable[[Site, Wish, FailoverArguments, _Controls], Coroutine[object, object, int]],
) -> int:
    from connectors.config.mm2_properties import load
    from connectors.failover.clusters_and_lease import site

    config = load(arguments.file)
    source = arguments.source or find_source(config, arguments.target)
    if arguments.source and sources_of(config, arguments.target) == [source]:
        warn(f"--from {source} is found in the file; the next release has --from for files with several sources alone")
    if arguments.gone not in (None, "", source):
        raise ConfigError(f"readers leave cluster {source}, and not {arguments.gone}", "--source-gone")
    arguments = replace(arguments, source=source)

    async def at_place(controls: _Controls) -> int:
        async with site(config, source, arguments.target) as place:
            return await work(place, wish_of(arguments, config), arguments, controls)

    with ExitStack() as closing:
        return asyncio.run(at_place(find_controls(closing, arguments, config)))


def find_source(config: MirrorMakerConfig, target: str) -> str:
    """The cluster that readers leave. Raises ConfigError if the file has none, or several."""
    if target not in config.clusters:
        raise ConfigError(f"{target} is no cluster of the file, which has {', '.join(config.clusters)}", "--to")
    found = sources_of(config, target)
    if not found:
        raise ConfigError(f"it has no flow to {target}, and none from there", "--to", config.file)
    if len(found) > 1:
        raise ConfigError(f"readers may leave {' or '.join(found)}: say which with --from", "--to", config.file)
    return found[0]


def sources_of(config: MirrorMakerConfig, target: str) -> list[str]:
    """The sources of the file's flows to ``target``, else where its flows from there go."""
    from connectors.config.mm2_properties import Flow

    others = [alias for alias in config.clusters if alias != target]
    there = [alias for alias in others if Flow(config, alias, target).enabled]
    return there or [alias for alias in others if Flow(config, target, alias).enabled]


def find_controls(closing: ExitStack, arguments: FailoverArguments, config: MirrorMakerConfig) -> _Controls:
    """Of the flow and of the flow back, if ``--rest`` names workers to ask.

    Raises ConfigError if none of them runs the flow, or runs it under another name than ``config`` has: what is stored
    of a flow is stored under the name that its workers know.
    """
    from connect.cli.commands.rest_client import find_control
    from connectors.config.mm2_properties import Flow

    if not arguments.rest:
        return None, None
    found: list[RestControl | None] = []
    assert arguments.source is not None
    for ends in ((arguments.source, arguments.target), (arguments.target, arguments.source)):
        flow = Flow(config, *ends)
        name = flow.connector_config()["name"]
        control = find_control(closing, arguments.rest, *ends, name)
        if control is not None and control.name != name:
            raise ConfigError(
                f"the workers that mirror {flow} call their connector {control.name}, and by this file it is {name}: "
                f"set {flow}.name = {control.name}, and beside it their group.id and offset.storage.topic as "
                f"{flow.target}.group.id and {flow.target}.offset.storage.topic",
                f"{flow}.name",
                config.file,
            )
        found.append(control)
    if found[0] is None:
        raise ConfigError(f"none of the workers mirrors {arguments.source}->{arguments.target}", "--rest")
    return found[0], found[1]


def tell_on_stderr(line: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {line}", file=sys.stderr, flush=True)


def warn(line: str) -> None:
    """Of what works for one more release."""
    print(f"warning: {line}", file=sys.stderr, flush=True)


def wish_of(arguments: FailoverArguments, config: MirrorMakerConfig) -> Wish:
    """Raises ConfigError if a pattern, a time or a word is wrong."""
    from connectors.failover.plan import ACCEPTABLE, Wish

    accepts: dict[str, frozenset[str]] = {}
    for one in arguments.accepts:
        word, _, group = one.partition("=")
        if word not in (*ACCEPTABLE, _AHEAD):
            raise ConfigError(f"{word} is nothing that can be accepted, which is {', '.join(ACCEPTABLE)}", "--accept")
        if not group:
            warn(f"--accept {word} is for every group: name them, --accept {word}=GROUP; the next release demands it")
        accepts[word] = accepts.get(word, frozenset()) | {group or EVERY}
    return Wish(
        takes=_takes(arguments, config),
        rewinds=frozenset(arguments.rewinds),
        keeps=frozenset(arguments.keeps) | accepts.pop(_AHEAD, frozenset()),
        accepts={ACCEPTABLE[word]: groups for word, groups in accepts.items()},
        named=_names(arguments.groups),
        at_ms=None if arguments.at is None else _at_ms(arguments.at),
        is_gone=arguments.gone is not None,
        sample=arguments.sample,
        denies_writes=arguments.denies_writes,
        leaves_unreplicated=arguments.leaves_unreplicated,
        timeout_s=arguments.timeout_s,
    )


async def _failover(
    site: Site, wish: Wish, arguments: FailoverArguments, controls: _Controls, kind: type[Failover] | type[Failback]
) -> int:
    from connect.cli.commands.failover_view import as_json, show_done, show_plan, show_rehearsal
    from connect.kafka.security.connection_settings import format_address

    if arguments.rehearses:
        from connectors.failover.execute import rehearse

        rehearsal = await rehearse(site, wish)
        show_rehearsal(rehearsal)
        return exit_code(rehearsal.plan)
    steps = kind(site, wish, tell_on_stderr, controls)
    looked = await steps.look()
    source, error = looked.snapshot.source, looked.snapshot.source_error
    if error and not wish.is_gone and arguments.executes and can_ask(arguments):
        print(f"cluster {source} does not answer: {error}")
        if ask(f"If it is gone, and no producer writes there, type its alias ({source}): ") == source:
            steps = kind(site, replace(wish, is_gone=True), tell_on_stderr, controls)
            looked = await steps.look()
    goes = arguments.executes and looked.can_go
    if not arguments.as_json:
        show_plan(looked, everything=arguments.everything)
        if looked.can_go and not goes:
            print("nothing was changed; --execute does it")
    elif not goes:
        show_json(as_json(looked, None))
    if not goes:
        return exit_code(looked)
    if not confirmed(arguments, f"Move {counted(len(looked.ready), 'group')} to {site.flow.target_alias}?"):
        print("nothing was changed")
        return exit_code(looked)
    done = await steps.run(f"heliograph {kind.__name__.lower()}", looked)
    if arguments.as_json:
        show_json(as_json(done.plan, done))
    else:
        show_done(done, looked, arguments.file, everything=arguments.everything)
        servers = ",".join(format_address(*one) for one in site.target.settings.bootstrap)
        print(f"clients there: bootstrap.servers = {servers}")
    if arguments.on_done is not None:
        await _on_done(arguments.on_done, exit_code(done.plan))
    return exit_code(done.plan)


async def _on_done(command: str, code: int) -> None:
    """Run a command of the operator's, which finds the exit code in its environment. Raises PermanentError if it
    fails."""
    environment = {**os.environ, "HELIOGRAPH_EXIT_CODE": str(code)}
    running = await asyncio.create_subprocess_shell(command, env=environment)
    if failed := await running.wait():
        raise PermanentError(f"the groups were moved, and --on-done ended with exit code {failed}: {command}")


def exit_code(plan: Plan) -> int:
    """0: all groups are ready, or at their target offsets; 2: none is; 3: some are blocked."""
    if not plan.can_go:
        return EXIT_NO_GO
    return EXIT_SOME_LEFT if plan.blocked else EXIT_OK


def can_ask(arguments: FailoverArguments) -> bool:
    """Whether there is anybody to answer."""
    return arguments.asks and sys.stdin.isatty()


def ask(question: str) -> str:
    """What the operator types; nothing at the end of the input."""
    try:
        return input(question).strip()
    except EOFError:
        return ""


def confirmed(arguments: FailoverArguments, question: str) -> bool:
    """Raises ConfigError if there is a question, and no terminal to answer it."""
    if not arguments.asks:
        return True
    if not can_ask(arguments):
        raise ConfigError("the input is no terminal, and so the question cannot be asked: say --yes", "--execute")
    return ask(f"{question} [yes/no] ").lower() in ("y", "yes")


async def _undo(site: Site, _wish: Wish, arguments: FailoverArguments, controls: _Controls) -> int:
    from connect.kafka.concurrency import wall_ms
    from connectors.failover import failback_and_undo, journal
    from connectors.failover.clusters_and_lease import hold
    from connectors.failover.drain import how_to_start

    runs: list[FailoverRun] = []
    if arguments.undo is not None:
        warn("--undo FILE is for files of earlier versions: heliograph undo takes back what this one has done")
        run = failback_and_undo.read_file(arguments.undo)
        if (run.source, run.target) != (site.flow.source_alias, site.flow.target_alias):
            raise ConfigError(f"it is of a failover from {run.source} to {run.target}", "--undo", str(arguments.undo))
    else:
        runs = await journal.read_runs(site)
        if (newest := failback_and_undo.newest(runs)) is None:
            print(f"the journal on cluster {site.flow.target_alias} has nothing to take back of {site.flow.flow}")
            return EXIT_NO_GO
        run = newest
    print(f"to take back: {_described(run)}")
    _, would_stay = await failback_and_undo.look(site, run)
    for line in would_stay:
        print(f"would be left: {line}")
    before = failback_and_undo.newest([one for one in runs if one.id < run.id and journal.is_open(one, wall_ms())])
    if not arguments.executes or not confirmed(arguments, "Take this back?"):
        print("nothing was changed" + ("" if arguments.executes else "; --execute does it"))
        return _undo_code(would_stay, run)
    async with hold(site, "heliograph undo") as lease:
        run = await failback_and_undo.read_again(site, run) if runs else run
        left = await failback_and_undo.take_back(site, run, lease, tell_on_stderr, controls)
    print(f"{site.flow.flow} stays as it is; if the failover has stopped it: {how_to_start(controls[0])}")
    for line in left:
        print(f"left as it is: {line}")
    if before is not None:
        print(
            f"not taken back, because another run has changed it: {_described(before)}; to take it back, run this again"
        )
    return _undo_code(left, run)


def _described(run: FailoverRun) -> str:
    """What it has changed, who did, and when."""
    from connectors.failover.collect_snapshot import in_utc

    begins = counted(len(run.starts) + len(run.begins), "begin")
    rules = f"access rules of {counted(len(run.denied), 'topic')}"
    what = f"offsets of {counted(len(run.groups), 'group')}, {begins} of flows and {rules}"
    return what + (f"; changed by {run.owner} at {in_utc(run.updated_ms)}: {run.command}" if run.owner else "")


def _undo_code(left: Sequence[str], run: FailoverRun) -> int:
    """0: all is taken back; 2: nothing is; 3: some is left."""
    if not left:
        return EXIT_OK
    return EXIT_SOME_LEFT if len(left) < len(run.groups) + bool(run.starts) + bool(run.begins) else EXIT_NO_GO


def _takes(arguments: FailoverArguments, config: MirrorMakerConfig) -> Callable[[str], bool]:
    from connectors.config.connector_configs import checkpoint_settings
    from connectors.config.mm2_properties import Connector, Flow

    if not arguments.groups:
        source = arguments.source or find_source(config, arguments.target)
        flow = Flow(config, source, arguments.target)
        of_file = checkpoint_settings(config.resolved(flow.connector_config(Connector.CHECKPOINT)))
        return of_file.group_filter.should_replicate_group
    names = _names(arguments.groups)
    try:
        patterns = [re.compile(one) for one in arguments.groups if not _NAME.fullmatch(one)]
    except re.error as error:
        raise ConfigError(f"this is no regular expression: {error}", "--group") from None
    return lambda group: group in names or any(pattern.fullmatch(group) for pattern in patterns)


def _names(groups: Sequence[str]) -> frozenset[str]:
    """The groups that values of ``--group`` name."""
    return frozenset(re.sub(r"\\(.)", r"\1", one) for one in groups if _NAME.fullmatch(one))


def _at_ms(text: str) -> int:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"'{text}' is no time such as 2026-11-20T11:00Z", "--at") from None
    if when.tzinfo is None:
        raise ConfigError(f"'{text}' names no zone; a Z behind it is UTC", "--at")
    if when.timestamp() < 0:
        # Kafka's -1 and -2 stand for the end and the beginning of a log.
        raise ConfigError(f"'{text}' is before 1970, and no record is", "--at")
    return int(when.timestamp() * 1000)


#: What an option means without a value: any cluster, every group.
_WITHOUT: Final = {"--source-gone": "", "--rewind": "*"}


def with_values(args: Sequence[str]) -> list[str]:
    """The same arguments, with values behind options that lack one, and a warning of each."""
    found: list[str] = []
    for at, word in enumerate(args):
        found.append(word)
        behind = args[at + 1] if at + 1 < len(args) else "--"
        if word in _WITHOUT and (behind.startswith("-") or Path(behind).is_file()):
            found.append(_WITHOUT[word])
            print(f"warning: {word} takes a value by now; the next release demands it", file=sys.stderr, flush=True)
    return found


def run_unreplicated(
    file: Path, source: str | None, target: str, *, export_to: Path | None, appends: bool, as_json: bool
) -> int:
    """Print them, with ``export_to`` write them, with ``appends`` append them; the exit code: 0 none are left.

    Raises ConfigError for a file or arguments that are wrong, and what the clusters raise.
    """
    from connectors.config.mm2_properties import load

    config = load(file)
    source = source or find_source(config, target)
    done, files = asyncio.run(_unreplicated(config, source, target, export_to, appends))
    found, left, appended, reasons = done
    if as_json:
        show_json(
            {
                "format": 1,
                "from": source,
                "to": target,
                "records": sum(one.own.records for one in found),
                "partitions": [asdict(one.own) for one in found],
                "files": [str(one) for one in files],
                "appended": appended,
                "left": [{**asdict(one.own), "why": reasons.get(one.source, "")} for one in left],
            }
        )
    else:
        _show(found, files, source, target, appended)
    return EXIT_NO_GO if left else EXIT_OK


async def _unreplicated(
    config: MirrorMakerConfig, source: str, target: str, export_to: Path | None, appends: bool
) -> tuple[AppendResult, list[Path]]:
    from connectors.failover import unreplicated
    from connectors.failover.clusters_and_lease import hold, site

    async with site(config, source, target) as place:
        found = await unreplicated.find(place)
        files = await unreplicated.export(place, found, export_to) if export_to is not None else []
        done = unreplicated.AppendResult(found, found, 0, {})
        if appends and found:
            async with hold(place, "heliograph unreplicated --append") as lease:
                done = await unreplicated.append_all(place, lease, None, tell_on_stderr)
        return done, files


def _show(found: Sequence[Unreplicated], files: Sequence[Path], source: str, target: str, appended: int) -> None:
    from connectors.failover.unreplicated import HEADER

    if not found:
        print(f"cluster {source} holds nothing that cluster {target} lacks, of what was mirrored")
        return
    count = counted(len(found), "partition")
    print(f"only cluster {source} holds {sum(one.own.records for one in found)} records, in {count}:")
    for one in found:
        print(f"  {printable(str(one.own))}")
        if one.doubt:
            print(f"    some may be on cluster {target} already: {one.doubt}")
    for file in files:
        print(f"exported to {file}")
    if appended:
        print(
            f"{appended} records appended to cluster {target}; {target}->{source} brings them to cluster {source} too, "
            f"behind those that are there: readers there meet them twice, the second time with the header {HEADER}"
        )
