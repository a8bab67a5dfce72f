"""The ``heliograph`` command. Each subcommand imports what it needs when it runs, so that this module loads fast."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from connect.cli.commands import connectors
from connect.cli.console import EXIT_DIFFERENT, EXIT_OK, configure_logging, run_command
from connect.cli.dev import dev
from connect.cli.init import init
from connect.cli.options_and_help import (
    Accept,
    DetailedExit,
    Everything,
    Execute,
    FailoverCommand,
    Groups,
    HelpAll,
    Json,
    KeepOffset,
    LeaveUnreplicated,
    Rest,
    Rewind,
    Sample,
    Source,
    Target,
    Timeout,
    UndoFile,
    Yes,
    check,
    completion,
    prepare,
    taught,
)

PROGRAM: Final = "heliograph"

app = typer.Typer(
    name=PROGRAM,
    help="Kafka Connect's distributed worker and MirrorMaker 2 in Python, with the copying done on Apache Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from connect.cli.console import version_line

        print(version_line())
        raise typer.Exit


@app.callback()
def _heliograph(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version


@app.command(short_help="Mirror sample orders between two clusters, and show it.")
def demo(
    records: Annotated[
        int | None,
        typer.Option(min=1, help="Write this many records, wait until they are mirrored, compare, exit 0 if equal."),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder that keeps mm2.properties and the log.", show_default=False)
    ] = None,
    rate: Annotated[
        int | None, typer.Option(min=1, help="Records a second to write; with --records as fast as possible.")
    ] = None,
) -> None:
    """Mirror sample orders between two Kafka clusters on this machine, and show it."""
    from connect.cli.demo import demo as run_demo

    raise typer.Exit(run_demo(records=records, directory=directory, rate=rate))


app.command(short_help="Start Kafka clusters on this machine, until Ctrl-C.")(dev)
app.command(short_help="Print the script that completes commands in a shell.")(completion)
app.command(short_help="Write the first files of a mirror.")(init)
app.add_typer(connectors.app)


@app.command(short_help="Record Spark's classes once, for quicker starts.")
def warm() -> None:
    """Record the classes that Spark loads, once for this Java and Spark, so that every later start takes less time."""
    from connect.cli.daemons.spark import warm as record

    raise typer.Exit(record())


@app.command(cls=DetailedExit, short_help="Print how far each flow is behind.")
def lag(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="mm2.properties", help="Which flows, and where their clusters are.", show_default=False),
    ] = None,
    rest: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Ask this running worker instead; of a mirror http://host:port/SOURCE/TARGET."
        ),
    ] = None,
    flow: Annotated[str | None, typer.Option(help="Only this one, such as us->eu.", show_default=False)] = None,
    top: Annotated[int, typer.Option(min=0, help="Name so many partitions that are furthest behind.")] = 10,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.5, help="How often, in seconds.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print how far each flow is behind: asked of its clusters, so that no worker has to run, or of a worker.

    Exit codes: 0 it was told, 1 an error, a partition that could not be looked at, or a flow that copies nothing, as no
    topic is selected or its connector is stopped or paused."""
    from connect.cli.commands.lag import EXIT_UNKNOWN, run_lag

    configure_logging("CRITICAL")
    told = partial(run_lag, file, flow=flow, top=top, as_json=as_json, rest=rest, watch=watch, every_s=every)
    raise typer.Exit(run_command(PROGRAM, told, EXIT_UNKNOWN))


@app.command(cls=DetailedExit, short_help="Print position, lag and owner by group or by flow.")
def offsets(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="mm2.properties", help="Which flows, and where their clusters are.", show_default=False),
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(metavar="GROUP", help="A consumer group; more than once for several.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ALIAS", help="Which cluster of the file the groups are of.")
    ] = None,
    bootstrap_server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A cluster by its address, without a file.")
    ] = None,
    command_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --bootstrap-server: a client's properties.")
    ] = None,
    flow: Annotated[str | None, typer.Option(help="Only this flow of the file, such as us->eu.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="A,B", help="Only these topics.", show_default=False)] = None,
    broker_info: Annotated[bool, typer.Option("--broker-info", help="Name the brokers as well.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.5, help="How often, in seconds.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print offset, log size, lag and owner of every partition of consumer groups, or of the flows of a file.

    The columns are those of the old ConsumerOffsetChecker. Exit codes: 0 it was told, 1 an error, or a partition that
    could not be looked at."""
    from connect.cli.commands.offsets import EXIT_UNKNOWN, OffsetsQuestion, run_offsets

    configure_logging("CRITICAL")
    topics = frozenset(filter(None, (name.strip() for name in (topic or "").split(","))))
    question = OffsetsQuestion(file, cluster, bootstrap_server, command_config, group or (), flow, topics, broker_info)
    told = partial(run_offsets, question, as_json=as_json, watch=watch, every_s=every)
    raise typer.Exit(run_command(PROGRAM, told, EXIT_UNKNOWN))


@app.command("map", short_help="Print which target offset each source offset has.")
def offset_map(
    file: Annotated[Path, typer.Argument(metavar="mm2.properties", help="Which flows, and where their clusters are.")],
    flow: Annotated[str | None, typer.Option(help="Only this one, such as us->eu.", show_default=False)] = None,
    topic: Annotated[str | None, typer.Option(help="Only this topic of the source.", show_default=False)] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.", show_default=False)] = None,
    offset: Annotated[
        int | None, typer.Option(min=0, help="Say where this offset of the topic leads.", show_default=False)
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="It is an offset of the remote topic.")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Find out from both clusters what the map should say below its beginning.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what the offset map says: which offset of the target each offset of the source has, and the reverse.

    With --rebuild both logs are read and compared, and what is proven is added to the map. The flow may run
    meanwhile."""
    from connect.cli.commands.offsets import run_map, run_rebuild
    from connectors.offset_map.view_and_rebuild import MapQuery

    question = MapQuery(topic, partition, offset, reverse)
    run = run_rebuild if rebuild else run_map
    raise typer.Exit(run(file, question, flow=flow, as_json=as_json))


app.command(cls=DetailedExit, short_help="Print what would come of a file, and change nothing.")(check)


@app.command(cls=DetailedExit, short_help="Print what a run would change on the clusters.")
def plan(
    file: Annotated[Path, typer.Argument(metavar="mm2.properties", help="Which flows, and where their clusters are.")],
    flow: Annotated[str | None, typer.Option(help="Only this one, such as us->eu.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Name every change, however many there are.")] = False,
) -> None:
    """Print what a run would change on the clusters, and change nothing.

    Exit codes: 0 nothing to change, 2 changes, 1 an error, or something that could not be looked at."""
    from connect.cli.commands.plan import EXIT_UNKNOWN, run_plan

    configure_logging("CRITICAL")  # what is found is printed
    planned = partial(run_plan, file, flow=flow, as_json=as_json, everything=everything)
    raise typer.Exit(run_command(PROGRAM, planned, EXIT_UNKNOWN))


@app.command(cls=DetailedExit, short_help="Print what differs from what the flows set.")
def drift(
    file: Annotated[Path, typer.Argument(metavar="mm2.properties", help="Which flows, and where their clusters are.")],
    flow: Annotated[str | None, typer.Option(help="Only this one, such as us->eu.", show_default=False)] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Leave this kind of difference out, such as acl.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Name every difference, however many there are.")] = False,
) -> None:
    """Print what differs from what the flows set: what a run would put right, and what it would leave as it is.

    Exit codes: 0 nothing differs, 2 something does, 1 an error, or something that could not be looked at."""
    from connect.cli.commands.plan import run_drift

    configure_logging("CRITICAL")
    looked = partial(run_drift, file, flow=flow, as_json=as_json, everything=everything, ignored=ignore or ())
    raise typer.Exit(run_command(PROGRAM, looked, EXIT_DIFFERENT))


@app.command(cls=DetailedExit, short_help="Draw clusters and flows as their heartbeats show them.")
def topology(
    file: Annotated[Path, typer.Argument(metavar="mm2.properties", help="Which flows, and where their clusters are.")],
    stale_after: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="A flow whose last heartbeat is older has stopped.")
    ] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Draw the clusters and flows of a file as their heartbeats show them: who is alive, and what reaches whom.

    Exit codes: 0 all are alive, 2 a flow has stopped or never began, or records do not pass over one, 1 an error, or a
    cluster that does not answer."""
    from connect.cli.commands.topology import EXIT_UNKNOWN, run_topology

    configure_logging("CRITICAL")
    looked = partial(run_topology, file, stale_after_s=stale_after, as_json=as_json)
    raise typer.Exit(run_command(PROGRAM, looked, EXIT_UNKNOWN))


@app.command(cls=DetailedExit, short_help="Print what a start would continue, and from where.")
def takeover(
    file: Annotated[Path, typer.Argument(metavar="mm2.properties", help="Which flows, and where their clusters are.")],
    check: Annotated[bool, typer.Option("--check", help="Look, and change nothing; a start does the rest.")] = False,
    flow: Annotated[str | None, typer.Option(help="Only this one, such as us->eu.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Name every partition, however many there are.")] = False,
) -> None:
    """Print what a start would continue, of MirrorMaker 2 (Java's or ours) or a MirrorMaker 1 group, and from where.

    Exit codes: 0 it can start, 2 something is in the way, 1 an error, or something that could not be looked at."""
    from connect.cli.commands.takeover import run_check

    configure_logging("CRITICAL")
    checked = partial(run_check, file, flow=flow, as_json=as_json, everything=everything, is_asked=check)
    raise typer.Exit(run_command(PROGRAM, checked, EXIT_DIFFERENT))


@app.command(cls=FailoverCommand, short_help="Move groups to the other cluster, record by record.")
def failover(
    file: Annotated[Path, typer.Argument(metavar="mm2.properties", help="Which flows, and where their clusters are.")],
    target: Target,
    execute: Execute = False,
    yes: Yes = False,
    groups: Groups = None,
    rest: Rest = None,
    source_gone: Annotated[
        str | None,
        typer.Option(metavar="CLUSTER", help="This cluster is lost: go by what the target knows.", show_default=False),
    ] = None,
    deny_writes: Annotated[
        bool,
        typer.Option("--deny-writes", help="Refuse writers of the mirrored topics at the source, by access rules."),
    ] = False,
    help_all: HelpAll = False,
    source: Source = None,
    leave_unreplicated: LeaveUnreplicated = False,
    accept: Accept = None,
    rewind: Rewind = None,
    keep_offset: KeepOffset = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="By time, such as 2026-11-20T11:00Z, not by offset.", show_default=False, hidden=True
        ),
    ] = None,
    undo: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take back what a file of an earlier version says.", hidden=True),
    ] = None,
    undo_file: UndoFile = None,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Change nothing; say how long it takes, and what it leaves.", hidden=True)
    ] = False,
    on_done: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Run this once groups were moved.", hidden=True)
    ] = None,
    sample: Sample = 10,
    timeout: Timeout = 600.0,
    as_json: Json = False,
    everything: Everything = False,
) -> None:
    """Move groups of readers to the other cluster of a flow, each to exactly the record it would read next.

    Without --execute it is a look: which groups would move, and what blocks others. With it the flow is drained and
    stopped, the next records of each group are compared, and groups move. Interrupted anywhere, it is run again.

    Exit codes: 0 all groups moved, 2 none could, 3 some were left, 1 an error."""
    from connect.cli.commands.failover import EXIT_FAILED, FailoverArguments, run_failover, run_undo

    configure_logging("CRITICAL")
    _warn_of_old(undo_file)
    arguments = FailoverArguments(
        file, source, target, groups or (), rest or (), executes=execute, asks=not yes, gone=source_gone,
        denies_writes=deny_writes, rewinds=rewind or (), keeps=keep_offset or (),
        leaves_unreplicated=leave_unreplicated, at=at, undo=undo, rehearses=rehearse, on_done=on_done, sample=sample,
        timeout_s=timeout, as_json=as_json,
        everything=everything, accepts=accept or (),
    )  # fmt: skip
    run = run_failover if undo is None else run_undo
    raise typer.Exit(run_command(PROGRAM, partial(run, arguments), EXIT_FAILED))


def _warn_of_old(undo_file: Path | None) -> None:
    from connect.cli.commands.failover import warn

    if undo_file is not None:
        warn("--undo-file has no effect: what is done is in a journal on the target, and heliograph undo reads it")


@app.command(cls=FailoverCommand, short_help="Move groups back to the cluster they came from.")
def failback(
    file: Annotated[Path, typer.Argument(metavar="mm2.properties", help="Which flows, and where their clusters are.")],
    target: Target,
    execute: Execute = False,
    yes: Yes = False,
    groups: Groups = None,
    rest: Rest = None,
    help_all: HelpAll = False,
    source: Source = None,
    leave_unreplicated: LeaveUnreplicated = False,
    accept: Accept = None,
    rewind: Rewind = None,
    keep_offset: KeepOffset = None,
    undo_file: UndoFile = None,
    sample: Sample = 10,
    timeout: Timeout = 600.0,
    as_json: Json = False,
    everything: Everything = False,
) -> None:
    """Move groups of readers back to the cluster that they came from, the old primary.

    The flow to there begins where the flow from there ended, and copies nothing that came from there; then it is
    drained and stopped, and the groups move. Writers must have stopped by then. Without --execute it is a look.

    Exit codes: 0 all groups moved, 2 none could, 3 some were left, 1 an error."""
    from connect.cli.commands.failover import EXIT_FAILED, FailoverArguments, run_failback

    configure_logging("CRITICAL")
    _warn_of_old(undo_file)
    arguments = FailoverArguments(
        file, source, target, groups or (), rest or (), executes=execute, asks=not yes, rewinds=rewind or (),
        keeps=keep_offset or (), leaves_unreplicated=leave_unreplicated, sample=sample, timeout_s=timeout,
        as_json=as_json, everything=everything, accepts=accept or (),
    )  # fmt: skip
    raise typer.Exit(run_command(PROGRAM, partial(run_failback, arguments), EXIT_FAILED))


@app.command(cls=DetailedExit, short_help="Take back what a failover or failback has changed.")
def undo(
    file: Annotated[Path, typer.Argument(metavar="mm2.properties", help="Which flows, and where their clusters are.")],
    target: Annotated[
        str, typer.Option("--to", metavar="CLUSTER", help="Where the readers were moved.", show_default=False)
    ],
    execute: Execute = False,
    yes: Yes = False,
    rest: Rest = None,
    help_all: HelpAll = False,
    source: Source = None,
) -> None:
    """Take back what the last failover or failback to a cluster has changed, of any operator, on any machine.

    A group that has gone on in any of its partitions stays as it is, in all of them.

    Exit codes: 0 all was taken back, 2 nothing could be, 3 some was left, 1 an error."""
    from connect.cli.commands.failover import EXIT_FAILED, FailoverArguments, run_undo

    configure_logging("CRITICAL")
    arguments = FailoverArguments(file, source, target, rest=rest or (), executes=execute, asks=not yes)
    raise typer.Exit(run_command(PROGRAM, partial(run_undo, arguments), EXIT_FAILED))


@app.command(cls=DetailedExit, short_help="Name the records that only the old primary holds.")
def unreplicated(
    file: Annotated[Path, typer.Argument(metavar="mm2.properties", help="Which flows, and where their clusters are.")],
    target: Annotated[str, typer.Option("--to", metavar="CLUSTER", help="The new primary.", show_default=False)],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="CLUSTER", help="The old primary; else as the file has it.", show_default=False),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write them there, a file a partition.", show_default=False)
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Append them to the new primary.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Name the records that only the old primary holds, once it is back after a failover that was not planned.

    Exit codes: 0 there are none, or they were appended; 2 there are some; 1 an error."""
    from connect.cli.commands.failover import EXIT_FAILED, run_unreplicated

    configure_logging("CRITICAL")
    found = partial(run_unreplicated, file, source, target, export_to=export, appends=append, as_json=as_json)
    raise typer.Exit(run_command(PROGRAM, found, EXIT_FAILED))


@app.command("stranded", cls=DetailedExit, hidden=True)
def stranded_records(
    file: Annotated[Path, typer.Argument(metavar="mm2.properties")],
    target: Annotated[str, typer.Option("--to")],
    source: Annotated[str | None, typer.Option("--from")] = None,
    export: Annotated[Path | None, typer.Option()] = None,
    append: Annotated[bool, typer.Option("--append")] = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """The old name of ``unreplicated``, for one more release."""
    from connect.cli.commands.failover import warn

    warn("heliograph stranded is heliograph unreplicated now; the next release drops the old name")
    unreplicated(file, target, source, export, append, as_json)


@app.command(short_help="Print the reference of all settings, as Markdown.")
def config(
    pages: Annotated[list[str] | None, typer.Argument(metavar="PAGE...", help="worker, source, mirror, ...")] = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Print every setting: all pages, or those named.")
    ] = False,
) -> None:
    """Print the reference of all settings, as Markdown."""
    from connect.cli.reference import pages as known
    from connect.cli.reference import reference as text

    print(text(pages or ()) if reference or pages else "\n".join(known()))


@app.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Mirror every enabled flow of a file until stopped.",
)
def mirror(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="mm2.properties [--clusters ALIAS ...] | -f FILE")
    ] = None,
) -> None:
    """Mirror every enabled flow of a file until stopped: connect-mirror-maker under another name.

    With -f FILE the file is a KafkaMirrorMaker2 resource of Strimzi's; heliograph mirror -f FILE --help says more."""
    from connect.cli.daemons import connect_mirror_maker, strimzi_resource

    run = strimzi_resource if strimzi_resource.is_of_resource(arguments or []) else connect_mirror_maker
    raise typer.Exit(run.run_with_arguments(f"{PROGRAM} mirror", arguments or []))


def main() -> NoReturn:
    """Entry point of the ``heliograph`` command."""
    sys.exit(run_command(PROGRAM, _invoke))


def _invoke() -> int:
    prepare()
    taught(typer.main.get_command(app))(prog_name=PROGRAM)
    return EXIT_OK
