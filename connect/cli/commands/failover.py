"""``heliograph failover``, ``failback`` and ``undo``, which move groups between clusters and change nothing without
``--execute``; ``unreplicated``, which shows the records that only the old primary holds."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from connect.cli.console import EXIT_OK, warn
from connect.cli.tables import show_json
from connect.core.errors import ConfigError
from connect.core.wording import counted, named, parsed_time_ms, printable

if TYPE_CHECKING:
    from connect.cli.commands.rest_client import RestControl
    from connect.cli.commands.verify import CopyVerifier
    from connectors.config.mm2_properties import MirrorMakerConfig
    from connectors.failover.clusters_and_lease import Site
    from connectors.failover.execute import Failover
    from connectors.failover.failback_and_undo import Failback
    from connectors.failover.journal import FailoverRun
    from connectors.failover.plan import FailoverOptions, Plan
    from connectors.failover.unreplicated import AppendResult, Unreplicated

_Controls = tuple["RestControl | None", "RestControl | None"]
#: An error, such as a cluster that does not answer.
EXIT_FAILED: Final = 1
#: Nothing was or could be moved, or undone; also after a no to the question.
EXIT_NO_GO: Final = 2
#: Some groups were not moved.
EXIT_SOME_LEFT: Final = 3
VERIFY: Final = "--verify"
#: An old value of --accept, which applied to all groups.
_AHEAD: Final = "ahead"
_KEEP_OFFSET: Final = "--keep-offset"


@dataclass(frozen=True, slots=True)
class FailoverArguments:
    """The command line. ``source`` None is found in the file; ``gone`` is the value of ``--source-gone``;
    ``asks``: whether to ask before any change."""

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
    retired: Sequence[str] = ()
    leaves_unreplicated: bool = False
    at: str | None = None
    rehearses: bool = False
    on_done: str | None = None
    sample: int = 10
    timeout_s: float = 600.0
    as_json: bool = False
    everything: bool = False
    accepts: Sequence[str] = ()
    verifies: bool = False
    verify_within_s: float | None = None


def run_failover(arguments: FailoverArguments) -> int:
    """Print a failover's plan or execute it, and return the exit code: 0 all groups are ready or moved, 2 none, 3 some.
    Raises ConfigError if the file or an argument is wrong, HeliographError if a cluster does not answer."""
    from connectors.failover.execute import Failover

    return _run("failover", arguments, partial(_failover, kind=Failover))


def run_failback(arguments: FailoverArguments) -> int:
    """Fail back, as :func:`run_failover`, after the flow back is prepared."""
    from connectors.failover.failback_and_undo import Failback

    return _run("failback", arguments, partial(_failover, kind=Failback))


def run_undo(arguments: FailoverArguments) -> int:
    """Print what an undo would revert, or revert it, and return the exit code: 0 all, 2 nothing, 3 some."""
    return _run("undo", arguments, _undo)


def _run(
    command: str,
    arguments: FailoverArguments,
    work: Callable[[Site, FailoverOptions, FailoverArguments, _Controls], Coroutine[object, object, int]],
) -> int:
    from connect.cli.daemons.flow_worker import worker_config
    from connect.kafka.tracing import configure_tracing
    from connect.runtime.audit import audited
    from connectors.config.mm2_properties import Flow, load
    from connectors.failover.clusters_and_lease import site

    if arguments.rehearses and arguments.executes:
        raise ConfigError("a rehearsal changes nothing. Use either --rehearse or --execute", "--rehearse")
    configure_tracing(f"heliograph {command}")
    config = load(arguments.file)
    source = arguments.source or find_source(config, arguments.target)
    if arguments.source and sources_of(config, arguments.target) == [source]:
        warn(f"--from {source} is not needed; the next release takes --from only if the file has several sources")
    if arguments.gone not in (None, "", source):
        raise ConfigError(f"the source of the groups is {source}, not {arguments.gone}", "--source-gone")
    if arguments.gone is not None and (arguments.verifies or arguments.verify_within_s is not None):
        raise ConfigError(f"a copy cannot be compared with a source that is gone. Leave out {VERIFY}", VERIFY)
    flow = Flow(config, source, arguments.target)
    if command == "failover" and not flow.enabled:
        text = f"the file enables no flow {source}->{arguments.target}. To move groups back, use heliograph failback"
        raise ConfigError(text, "--to", config.file)
    arguments = replace(arguments, source=source)

    async def at_place(controls: _Controls) -> int:
        async with site(config, source, arguments.target) as place:
            options = options_of(arguments, config)
            if not arguments.executes:
                return await work(place, options, arguments, controls)
            topic = worker_config(flow).audit_topic
            async with audited(command, str(flow), place.target, place.target_admin, topic) as outcome:
                outcome.detail = f"groups {named(arguments.groups) or 'of the file'}"
                outcome.code = await work(place, options, arguments, controls)
                return outcome.code

    with ExitStack() as closing:
        return asyncio.run(at_place(find_controls(closing, arguments, config)))


def find_source(config: MirrorMakerConfig, target: str) -> str:
    """Return the cluster that groups leave. Raises ConfigError if the file has none, or several."""
    if target not in config.clusters:
        raise ConfigError(f"{target} is not a cluster of the file, which has {', '.join(config.clusters)}", "--to")
    found = sources_of(config, target)
    if not found:
        raise ConfigError(f"there is no flow to or from {target}", "--to", config.file)
    if len(found) > 1:
        raise ConfigError(f"groups may leave {' or '.join(found)}. Name one with --from", "--to", config.file)
    return found[0]


def sources_of(config: MirrorMakerConfig, target: str) -> list[str]:
    """Return the sources of the file's flows to ``target``; if there are none, the targets of its flows from there."""
    from connectors.config.mm2_properties import Flow

    others = [alias for alias in config.clusters if alias != target]
    there = [alias for alias in others if Flow(config, alias, target).enabled]
    return there or [alias for alias in others if Flow(config, target, alias).enabled]


def find_controls(closing: ExitStack, arguments: FailoverArguments, config: MirrorMakerConfig) -> _Controls:
    """Return the controls of the flow and the flow back, if ``--rest`` names workers. Raises ConfigError if no worker
    runs the flow, or its connector there has another name than in ``config``, under which positions are stored."""
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
            text = (
                f"the workers of {flow} have the connector {control.name}, this file has {name}. "
                f"Set {flow}.name = {control.name}, and the workers' group.id and offset.storage.topic as "
                f"{flow.target}.group.id and {flow.target}.offset.storage.topic"
            )
            raise ConfigError(text, f"{flow}.name", config.file)
        found.append(control)
    if found[0] is None:
        said = f"no worker at {', '.join(arguments.rest)} mirrors {arguments.source}->{arguments.target}"
        raise ConfigError(said, "--rest")
    return found[0], found[1]


def report_on_stderr(line: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {line}", file=sys.stderr, flush=True)


def options_of(arguments: FailoverArguments, config: MirrorMakerConfig) -> FailoverOptions:
    """Parse the arguments. Raises ConfigError if a pattern, a time or a value of --accept is wrong."""
    from connectors.failover.plan import ACCEPTABLE, EVERY, FailoverOptions

    accepts: dict[str, frozenset[str]] = {}
    for one in arguments.accepts:
        word, _, group = one.partition("=")
        if word not in (*ACCEPTABLE, _AHEAD):
            raise ConfigError(f"{word} cannot be accepted. Use one of {', '.join(ACCEPTABLE)}", "--accept")
        if not group:
            now = f"{_KEEP_OFFSET} GROUP" if word == _AHEAD else f"--accept {word}=GROUP"
            warn(f"--accept {word} applies to every group; the next release requires {now}")
        elif word == _AHEAD:
            warn(f"--accept {one} is {_KEEP_OFFSET} {group} now; the next release drops the old name")
        accepts[word] = accepts.get(word, frozenset()) | {group or EVERY}
    return FailoverOptions(
        takes=_takes(arguments, config),
        rewinds=frozenset(arguments.rewinds),
        keeps=frozenset(arguments.keeps) | accepts.pop(_AHEAD, frozenset()),
        retired=frozenset(arguments.retired),
        accepts={ACCEPTABLE[word]: groups for word, groups in accepts.items()},
        named=_names(arguments.groups),
        at_ms=None if arguments.at is None else parsed_time_ms(arguments.at, "--at"),
        is_gone=arguments.gone is not None,
        sample=arguments.sample,
        denies_writes=arguments.denies_writes,
        leaves_unreplicated=arguments.leaves_unreplicated,
        timeout_s=arguments.timeout_s,
        verifies=arguments.verifies,
        verify_within_s=arguments.verify_within_s,
    )


async def _failover(
    site: Site,
    failover_options: FailoverOptions,
    arguments: FailoverArguments,
    controls: _Controls,
    kind: type[Failover] | type[Failback],
) -> int:
    from connect.cli.commands.failover_view import as_json, show_done, show_plan, show_rehearsal
    from connect.kafka.security.connection_settings import format_address
    from connectors.failover.execute import rehearse
    from connectors.failover.log_comparison import NotProved

    if arguments.rehearses:
        rehearsal = await rehearse(site, failover_options)
        show_rehearsal(rehearsal)
        return exit_code(rehearsal.plan)
    verifier = _verifier(arguments) if arguments.executes else None
    make: Callable[..., Failover | Failback] = partial(kind, verify=verifier)
    steps = make(site, failover_options, report_on_stderr, controls)
    looked = await steps.look()
    source, error = looked.snapshot.source, looked.snapshot.source_error
    if error and not failover_options.is_gone and arguments.executes and verifier is None and can_ask(arguments):
        print(f"cluster {source} does not answer: {error}")
        if ask(f"If it is lost, and no producer writes to it, type its alias ({source}): ") == source:
            steps = make(site, replace(failover_options, is_gone=True), report_on_stderr, controls)
            looked = await steps.look()
    goes = arguments.executes and looked.can_go
    if not arguments.as_json:
        show_plan(looked, everything=arguments.everything)
        if looked.can_go and not goes:
            print("nothing was changed; run again with --execute to move the groups")
    elif not goes:
        show_json(as_json(looked, None))
    if not goes:
        return exit_code(looked)
    if not confirmed(arguments, f"Move {counted(len(looked.ready), 'group')} to {site.flow.target_alias}?"):
        print("nothing was changed")
        return EXIT_NO_GO
    try:
        if verifier is not None:
            verifier.begin()
        done = await steps.run(f"heliograph {kind.__name__.lower()}", looked)
    except NotProved as error:
        print(f"heliograph: error: {error}", file=sys.stderr)
        return EXIT_NO_GO
    finally:
        if verifier is not None:
            await verifier.stop()
    if arguments.as_json:
        show_json(as_json(done.plan, done))
    else:
        show_done(done, looked, arguments.file, everything=arguments.everything)
        servers = ",".join(format_address(*one) for one in site.target.settings.bootstrap)
        print(f"for its clients: bootstrap.servers = {servers}")
    code = exit_code(done.plan)
    return code if arguments.on_done is None else await _on_done(arguments.on_done, code)


def _verifier(arguments: FailoverArguments) -> CopyVerifier | None:
    if not arguments.verifies and arguments.verify_within_s is None:
        return None
    from connect.cli.commands.verify import CopyVerifier
    from connectors.config.mm2_properties import Flow, load

    assert arguments.source is not None
    return CopyVerifier(Flow(load(arguments.file), arguments.source, arguments.target), report_on_stderr)


async def _on_done(command: str, code: int) -> int:
    """Run the operator's command with the exit code in its environment. Return that code, or 1 if only this fails."""
    running = await asyncio.create_subprocess_shell(command, env={**os.environ, "HELIOGRAPH_EXIT_CODE": str(code)})
    if failed := await running.wait():
        warn(f"--on-done failed with exit code {failed}: {command}")
    return code or (EXIT_FAILED if failed else EXIT_OK)


def exit_code(plan: Plan) -> int:
    """Return 0 if all groups are ready or at their target offsets, 2 if none is, 3 if some are blocked."""
    if not plan.can_go:
        return EXIT_NO_GO
    return EXIT_SOME_LEFT if plan.blocked else EXIT_OK


def can_ask(arguments: FailoverArguments) -> bool:
    """Whether the operator can be asked at a terminal."""
    return arguments.asks and sys.stdin.isatty()


def ask(question: str) -> str:
    """Return what the operator types; empty at the end of the input. Raises KeyboardInterrupt."""
    # The handler of asyncio would do nothing before the line is complete.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(question).strip()
    except EOFError:
        return ""
    finally:
        signal.signal(signal.SIGINT, before)


def confirmed(arguments: FailoverArguments, question: str) -> bool:
    """Ask, unless --yes was given. Raises ConfigError if there is no terminal."""
    if not arguments.asks:
        return True
    if not can_ask(arguments):
        raise ConfigError("the input is not a terminal, so no question can be asked. Use --yes", "--execute")
    return ask(f"{question} [yes/no] ").lower() in ("y", "yes")


async def _undo(site: Site, _options: FailoverOptions, arguments: FailoverArguments, controls: _Controls) -> int:
    from connect.kafka.concurrency import wall_ms
    from connectors.failover import failback_and_undo, journal
    from connectors.failover.clusters_and_lease import hold
    from connectors.failover.drain import how_to_start
    from connectors.failover.words import described

    runs = await journal.read_runs(site)
    run = failback_and_undo.newest(runs)
    if run is None:
        print(f"the journal on cluster {site.flow.target_alias} has nothing to undo for {site.flow.flow}")
        return EXIT_NO_GO
    print(f"to undo: {described(run)}")
    _, would_stay = await failback_and_undo.look(site, run)
    for line in would_stay:
        print(f"would not be undone: {line}")
    before = failback_and_undo.newest([one for one in runs if one.id < run.id and journal.is_open(one, wall_ms())])
    if not arguments.executes:
        print("nothing was changed; run again with --execute to undo it")
        return _undo_code(would_stay, run)
    if not confirmed(arguments, "Undo this?"):
        print("nothing was changed")
        return EXIT_NO_GO
    async with hold(site, "heliograph undo") as lease:
        run = await failback_and_undo.read_again(site, run)
        left = await failback_and_undo.roll_back(site, run, lease, report_on_stderr, controls)
    print(f"{site.flow.flow} is not changed; if the failover stopped it: {how_to_start(controls[0])}")
    for line in left:
        print(f"not undone: {line}")
    if before is not None:
        print(f"not undone, because an earlier run changed it: {described(before)}; run this again to undo it")
    return _undo_code(left, run)


def _undo_code(left: Sequence[str], run: FailoverRun) -> int:
    if not left:
        return EXIT_OK
    return EXIT_SOME_LEFT if len(left) < len(run.groups) + bool(run.starts) + bool(run.begins) else EXIT_NO_GO


def _takes(arguments: FailoverArguments, config: MirrorMakerConfig) -> Callable[[str], bool]:
    from connectors.config.connector_configs import checkpoint_settings
    from connectors.config.mm2_properties import Connector, Flow
    from connectors.failover.words import LITERAL_GROUP

    if not arguments.groups:
        source = arguments.source or find_source(config, arguments.target)
        flow = Flow(config, source, arguments.target)
        of_file = checkpoint_settings(config.resolved(flow.connector_config(Connector.CHECKPOINT)))
        return of_file.group_filter.should_replicate_group
    names = _names(arguments.groups)
    try:
        patterns = [re.compile(one) for one in arguments.groups if not LITERAL_GROUP.fullmatch(one)]
    except re.error as error:
        raise ConfigError(f"not a valid regular expression: {error}", "--group") from None
    return lambda group: group in names or any(pattern.fullmatch(group) for pattern in patterns)


def _names(groups: Sequence[str]) -> frozenset[str]:
    """Return the groups that values of ``--group`` name literally."""
    from connectors.failover.words import LITERAL_GROUP

    return frozenset(re.sub(r"\\(.)", r"\1", one) for one in groups if LITERAL_GROUP.fullmatch(one))


#: What an option means without a value: any cluster, every group.
_WITHOUT: Final = {"--source-gone": "", "--rewind": "*"}


def with_values(args: Sequence[str]) -> list[str]:
    """Add values to options that lack one, each with a warning."""
    found: list[str] = []
    for at, word in enumerate(args):
        found.append(word)
        behind = args[at + 1] if at + 1 < len(args) else "--"
        if word in _WITHOUT and (behind.startswith("-") or Path(behind).is_file()):
            found.append(_WITHOUT[word])
            warn(f"{word} takes a value; the next release requires it")
    return found


def run_unreplicated(
    file: Path, source: str | None, target: str, *, export_to: Path | None, appends: bool, as_json: bool
) -> int:
    """Print unreplicated records, also export or append them, and return the exit code: 0 if none are left. Raises
    ConfigError if the file or an argument is wrong, HeliographError if a cluster does not answer."""
    from connectors.config.mm2_properties import load

    config = load(file)
    source = source or find_source(config, target)
    if export_to is not None and export_to.exists() and not export_to.is_dir():
        raise ConfigError(f"{export_to} is not a folder", "--export")
    done, files = asyncio.run(_unreplicated(config, source, target, export_to, appends))
    found, left, appended, reasons = done
    if as_json:
        document = {
            "format": 1,
            "from": source,
            "to": target,
            "records": sum(one.own.records for one in found),
            "partitions": [asdict(one.own) for one in found],
            "files": [str(one) for one in files],
            "appended": appended,
            "left": [{**asdict(one.own), "why": reasons.get(one.source, "")} for one in left],
        }
        show_json(document)
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
                done = await unreplicated.append_all(place, lease, None, report_on_stderr)
        return done, files


def _show(found: Sequence[Unreplicated], files: Sequence[Path], source: str, target: str, appended: int) -> None:
    from connectors.failover.unreplicated import HEADER

    if not found:
        print(f"cluster {target} has all records of the mirrored topics of cluster {source}")
        return
    records = counted(sum(one.own.records for one in found), "record")
    print(f"only cluster {source} has {records} in {counted(len(found), 'partition')}:")
    for one in found:
        print(f"  {printable(str(one.own))}")
        if one.doubt:
            print(f"    cluster {target} may have some of them: {one.doubt}")
    for file in files:
        print(f"exported to {file}")
    if appended:
        twice = f"so consumers there read them twice, the second time with the header {HEADER}"
        done = f"appended {counted(appended, 'record')} to cluster {target}"
        print(f"{done}. {target}->{source} copies them to cluster {source} too, {twice}")
