"""The ``heliograph`` command. Each subcommand imports what it needs when it runs, so that this module loads fast."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
import typer.completion

from connect.cli import options_and_help as options
from connect.cli.commands import connectors
from connect.cli.console import EXIT_ERROR, EXIT_OK, checked_log_options, configure_logging, run_command, version_line
from connect.cli.dev import dev
from connect.cli.init import init
from connect.core.errors import ConfigError

app = typer.Typer(
    name=options.PROGRAM,
    cls=options.GroupedCommands,
    help="Kafka Connect's distributed worker and MirrorMaker 2 in Python, copying on Apache Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(version_line())
        raise typer.Exit


@app.callback()
def _heliograph(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version


@app.command(short_help="Mirror sample orders between two local clusters.")
def demo(
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Folder for mm2.properties and the log.")
    ] = None,
    rate: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Records to write per second. Default: 5000.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the output as a picture.")] = None,
) -> None:
    """Mirror sample orders between two Kafka clusters on this machine, kill the mirror, compare, and move a group.

    Exit codes: 0 nothing was lost or duplicated, and the group continued at its record; 2 otherwise; 1 an error."""
    from connect.cli.demo import demo as run_demo

    raise typer.Exit(run_demo(directory=directory, rate=rate, svg=svg))


app.command(short_help="Start Kafka clusters on this machine, until Ctrl-C.")(dev)
app.command(short_help="Print a shell's completion script.")(options.completion)
app.command(short_help="Write the first files of a mirror.")(init)
app.add_typer(connectors.app)


@app.command(short_help="Cache Spark's classes once, for faster starts.")
def warm() -> None:
    """Cache the classes that Spark loads, so that later starts are faster. Run it once for a machine or an image."""
    from connect.cli.daemons.spark import warm as record

    raise typer.Exit(record())


@app.command(short_help="Show what runs, what is behind or stopped, and what to do.")
def status(
    file: options.MirrorFile,
    rest: options.AlsoRest = None,
    watch: options.Watch = False,
    every: options.Every = None,
    as_json: options.AsJson = False,
) -> None:
    """Show each flow of a file: its state, how far behind it is, why, what to do, and what a failover would lose now.

    It reads the clusters, so no worker has to run. Exit codes: 0 all flows run, 2 something needs a hand, 1 an error,
    or something could not be checked. With --watch it is a page until Ctrl-C, which ends with 0."""
    from connect.cli.commands.lag_and_status import run_status

    options.finish(run_status, file, rest=rest or (), as_json=as_json, every_s=options.refresh_s(every, watch=watch))


@app.command(short_help="Print the lag of each flow.")
def lag(
    context: typer.Context,
    file: options.AnyMirrorFile = None,
    rest: options.InsteadRest = None,
    flow: options.OneFlow = None,
    top: Annotated[
        int, typer.Option(min=0, metavar="N", help="Number of partitions with the largest lag to list.")
    ] = 10,
    watch: options.Watch = False,
    every: options.Every = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the lag of each flow, read from its clusters, so that no worker has to run, or from a worker.

    Exit codes: 0 the lag is known, 1 an error, a partition that could not be checked, or a flow that copies nothing
    because it selects no topic or its connector is stopped or paused."""
    from connect.cli.commands.lag_and_status import run_lag

    source = context.get_parameter_source("rest")
    if file is not None and source is not None and source.name == "ENVIRONMENT":
        rest = None  # because a file says what to read, and the variable is a default
    options.finish(
        run_lag, file, flow=flow, top=top, as_json=as_json, rest=rest, every_s=options.refresh_s(every, watch=watch)
    )


@app.command(short_help="Print offset, lag and owner for each partition of groups or flows.")
def offsets(
    file: options.AnyMirrorFile = None,
    group: Annotated[list[str] | None, typer.Option(metavar="GROUP", help="A consumer group. May be repeated.")] = None,
    cluster: Annotated[str | None, typer.Option(metavar="ALIAS", help="The groups' cluster in the file.")] = None,
    bootstrap_server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The groups' cluster, without a file.")
    ] = None,
    command_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Client properties for --bootstrap-server.")
    ] = None,
    flow: options.OneFlow = None,
    topic: Annotated[str | None, typer.Option(metavar="A,B", help="Only these topics.")] = None,
    broker_info: Annotated[bool, typer.Option("--broker-info", help="Print the brokers too.")] = False,
    watch: options.Watch = False,
    every: options.Every = None,
    as_json: options.AsJson = False,
) -> None:
    """Print offset, log size, lag and owner of every partition of consumer groups, or of the flows of a file.

    The columns are those of Kafka's former ConsumerOffsetChecker. Exit codes: 0 all partitions were checked, 1 an
    error, or a partition that could not be checked."""
    from connect.cli.commands.offsets import OffsetsQuestion, run_offsets

    topics = frozenset(filter(None, (name.strip() for name in (topic or "").split(","))))
    question = OffsetsQuestion(file, cluster, bootstrap_server, command_config, group or (), flow, topics, broker_info)
    options.finish(run_offsets, question, as_json=as_json, every_s=options.refresh_s(every, watch=watch))


@app.command("map", short_help="Print the offset map: which target offset each source offset has.")
def offset_map(
    file: options.MirrorFile,
    flow: options.OneFlow = None,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only this source topic.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, metavar="N", help="Only this partition.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, metavar="N", help="Translate this source offset.")] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="The offset is of the remote topic.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Rebuild the map below its start from both logs.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Print the offset map, or translate an offset of the source to the target, or the reverse.

    With --rebuild both logs are read and compared, and proven pairs are added to the map. The flow may run
    meanwhile."""
    from connect.cli.commands.offsets import run_map, run_rebuild
    from connectors.offset_map.view_and_rebuild import MapQuery

    question = MapQuery(topic, partition, offset, reverse)
    run = run_rebuild if rebuild else run_map
    raise typer.Exit(run(file, question, flow=flow, as_json=as_json))


app.command(short_help="Check a configuration file.")(options.check)


@app.command(short_help="Print what a run would change on the clusters.")
def plan(
    file: options.MirrorFile,
    flow: options.OneFlow = None,
    drift: Annotated[
        bool, typer.Option("--drift", help="Print also differences from the file that no run changes.")
    ] = False,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="With --drift: leave out this kind, such as acl.")
    ] = None,
    as_json: options.AsJson = False,
    everything: options.All = False,
) -> None:
    """Print what a run would change on the clusters, and change nothing.

    Exit codes: 0 nothing to change, with --drift no differences; 2 there are some; 1 an error or an incomplete
    check."""
    from connect.cli.commands.plan import run_drift, run_plan

    if ignore and not drift:
        raise ConfigError("--ignore needs --drift", "--ignore")
    if drift:
        options.finish(run_drift, file, flow=flow, as_json=as_json, everything=everything, ignored=ignore or ())
    options.finish(run_plan, file, flow=flow, as_json=as_json, everything=everything)


@app.command(short_help="Show clusters and flows from their heartbeats.")
def topology(
    file: options.MirrorFile,
    stale_after: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="A flow without a heartbeat for this time has stopped.")
    ] = 30.0,
    as_json: options.AsJson = False,
) -> None:
    """Show the clusters and flows of a file from their heartbeats: which flows are alive, and where records come from.

    Exit codes: 0 all are alive, 2 a flow has stopped, never started, or carries no heartbeats, 1 an error, or a cluster
    that does not answer."""
    from connect.cli.commands.topology import run_topology

    options.finish(run_topology, file, stale_after_s=stale_after, as_json=as_json)


@app.command(short_help="Check where a start would continue, and what blocks it.")
def takeover(
    file: options.MirrorFile,
    flow: options.OneFlow = None,
    as_json: options.AsJson = False,
    everything: options.All = False,
) -> None:
    """Check where a start would continue, and change nothing.

    It may follow MirrorMaker 2, Java's or Heliograph's, or a MirrorMaker 1 group.

    Exit codes: 0 it can start, 2 a start is blocked, 1 an error or an incomplete check."""
    from connect.cli.commands.takeover import run_check

    options.finish(run_check, file, flow=flow, as_json=as_json, everything=everything)


@app.command(short_help="Compare what a flow has copied with its source.")
def verify(
    file: options.AnyMirrorFile = None,
    flow: options.OneFlow = None,
    topics: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Only these source topics, by name or pattern.")
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="From this time on, as 2026-11-20T11:00Z.")
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="TIME", help="Only records before this time.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Compare what earlier runs have verified too.")] = False,
    rate: Annotated[
        int, typer.Option(min=0, metavar="BYTES", help="Limit of source bytes read a second; 0: unlimited.")
    ] = 0,
    memory: Annotated[int, typer.Option(min=1, metavar="MB", help="Memory for the records of each task.")] = 64,
    tasks: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Spark tasks at once. Default: one a core.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report to a .txt, .json or .html file.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Verify what is copied meanwhile too, until Ctrl-C.")] = False,
    as_json: options.AsJson = False,
    check_report: Annotated[
        Path | None,
        typer.Option(
            "--check", metavar="REPORT", help="Only check the SHA-256 of a .json or .html report, and what it shows."
        ),
    ] = None,
) -> None:
    """Compare what a flow has copied with its source, record by record, in a Spark job of its own.

    It continues where the last run ended. Progress is printed to standard error, with --json as JSON lines.

    Exit codes: 0 equal (undecided records do not count), 2 differences, 1 an error, or no difference and partitions
    that could not be compared."""
    from connect.cli.commands import verify as command

    if check_report is not None:
        options.finish(command.check_report, check_report)
    arguments = command.VerifyArguments(
        file, flow, tuple(topics or ()), begin, to, full, rate, memory, tasks, report, watch, as_json
    )
    options.finish(command.run_verify, arguments)


@app.command(cls=options.FailoverCommand, short_help="Move groups to the other cluster of a flow.")
def failover(
    file: options.MirrorFile,
    target: options.Target,
    execute: options.Execute = False,
    yes: options.Yes = False,
    groups: options.Groups = None,
    rest: options.Rest = None,
    source_gone: options.Gone = None,
    deny_writes: options.DenyWrites = False,
    verify: options.Verify = False,
    help_all: options.HelpAll = False,
    source: options.Source = None,
    leave_unreplicated: options.LeaveUnreplicated = False,
    accept: options.Accept = None,
    rewind: options.Rewind = None,
    keep_offset: options.KeepOffset = None,
    retired: options.Retired = None,
    at: options.At = None,
    verify_within: options.VerifyWithin = None,
    undo_file: options.UndoFile = None,
    rehearse: Annotated[
        bool, options.rare_option("--rehearse", help="Change nothing; print durations and blocked groups.")
    ] = False,
    on_done: Annotated[
        str | None, options.rare_option(metavar="COMMAND", help="Run this command after groups are moved.")
    ] = None,
    sample: options.Sample = 10,
    timeout: options.Timeout = 600.0,
    as_json: options.Json = False,
    everything: options.Everything = False,
) -> None:
    """Move consumer groups to the other cluster of a flow, each to exactly the record it would read next.

    Without --execute nothing is changed: it prints which groups would move, and what blocks others. With --execute the
    flow is drained and stopped, the next records of each group are compared, with --verify all that was copied, and
    groups move. After an interruption run it again.

    Exit codes: 0 all groups moved, 2 none moved, 3 some moved, 1 an error. A no to the question is 2. If all groups
    moved and the command of --on-done fails, it is 1."""
    from connect.cli.commands.failover import FailoverArguments, run_failover

    arguments = FailoverArguments(
        file, source, target, groups or (), rest or (), executes=execute, asks=not yes, gone=source_gone,
        denies_writes=deny_writes, rewinds=rewind or (), keeps=keep_offset or (), retired=retired or (),
        leaves_unreplicated=leave_unreplicated, at=at, rehearses=rehearse, on_done=on_done, sample=sample,
        timeout_s=timeout, as_json=as_json, everything=everything, accepts=accept or (), verifies=verify,
        verify_within_s=verify_within,
    )  # fmt: skip
    options.finish(run_failover, arguments)


@app.command(cls=options.FailoverCommand, short_help="Move groups back to their original cluster.")
def failback(
    file: options.MirrorFile,
    target: options.Target,
    execute: options.Execute = False,
    yes: options.Yes = False,
    groups: options.Groups = None,
    rest: options.Rest = None,
    verify: options.Verify = False,
    help_all: options.HelpAll = False,
    source: options.Source = None,
    leave_unreplicated: options.LeaveUnreplicated = False,
    accept: options.Accept = None,
    rewind: options.Rewind = None,
    keep_offset: options.KeepOffset = None,
    retired: options.Retired = None,
    verify_within: options.VerifyWithin = None,
    undo_file: options.UndoFile = None,
    sample: options.Sample = 10,
    timeout: options.Timeout = 600.0,
    as_json: options.Json = False,
    everything: options.Everything = False,
) -> None:
    """Move consumer groups back to the cluster that they came from, the old primary.

    The flow back starts where the flow from the old primary ended, and copies none of its records. Then it is drained
    and stopped, with --verify all that was copied is compared, and groups move. Stop producers before. Without
    --execute nothing is changed.

    Exit codes: 0 all groups moved, 2 none moved, 3 some moved, 1 an error. A no to the question is 2."""
    from connect.cli.commands.failover import FailoverArguments, run_failback

    arguments = FailoverArguments(
        file, source, target, groups or (), rest or (), executes=execute, asks=not yes, rewinds=rewind or (),
        keeps=keep_offset or (), retired=retired or (), leaves_unreplicated=leave_unreplicated, sample=sample,
        timeout_s=timeout, as_json=as_json, everything=everything, accepts=accept or (), verifies=verify,
        verify_within_s=verify_within,
    )  # fmt: skip
    options.finish(run_failback, arguments)


@app.command(short_help="Undo the last failover or failback.")
def undo(
    file: options.MirrorFile,
    target: Annotated[str, typer.Option("--to", metavar="CLUSTER", help="Cluster that groups were moved to.")],
    execute: options.Execute = False,
    yes: options.Yes = False,
    rest: options.Rest = None,
    help_all: options.HelpAll = False,
    source: options.Source = None,
) -> None:
    """Undo the last failover or failback to a cluster, by any operator on any machine.

    A group with a newer offset in any of its partitions is not changed.

    Exit codes: 0 all was undone, 2 nothing was, 3 some was, 1 an error. A no to the question is 2."""
    from connect.cli.commands.failover import FailoverArguments, run_undo

    arguments = FailoverArguments(file, source, target, rest=rest or (), executes=execute, asks=not yes)
    options.finish(run_undo, arguments)


@app.command(short_help="Print unreplicated records, which only the old primary has.")
def unreplicated(
    file: options.MirrorFile,
    target: Annotated[str, typer.Option("--to", metavar="CLUSTER", help="The new primary.")],
    source: Annotated[
        str | None, typer.Option("--from", metavar="CLUSTER", help="The old primary. Default: the file's only source.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Export the records, one file per partition.")
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Append the records to the new primary.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Print the records that only the old primary has. Run it when the old primary is back after an unplanned failover.

    Exit codes: 0 there are none, or they were appended; 2 there are some; 1 an error."""
    from connect.cli.commands.failover import run_unreplicated

    options.finish(run_unreplicated, file, source, target, export_to=export, appends=append, as_json=as_json)


@app.command(short_help="Print the reference of all settings, as Markdown.")
def config(
    pages: Annotated[list[str] | None, typer.Argument(metavar="PAGE...", help="worker, source, mirror, ...")] = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Print the settings of the named pages, or of all.")
    ] = False,
) -> None:
    """Print the reference of all settings, as Markdown."""
    from connect.cli.reference import pages as known
    from connect.cli.reference import reference as text

    print(text(pages or ()) if reference or pages else "\n".join(known()))


@app.command(cls=options.MirrorCommand, short_help="Mirror every enabled flow of a file until stopped.")
def mirror(
    file: options.AnyMirrorFile = None,
    clusters: Annotated[
        list[str] | None, typer.Option(metavar="ALIAS ...", help="Only flows to these clusters.")
    ] = None,
    resource: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="FILE", help="A Strimzi KafkaMirrorMaker2 resource; - for stdin."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the resource, if the file has several.")
    ] = None,
    secrets: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Secrets of the resource, mounted as DIR/NAME/KEY.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a worker setting of the resource.")
    ] = None,
    prints: Annotated[bool, typer.Option("--print", help="Print the resource's files, and start nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --print: print JSON.")] = False,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
    log_format: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="Log lines as text or json. Default: $HELIOGRAPH_LOG_FORMAT, or text."),
    ] = None,
) -> None:
    """Mirror every enabled flow of a file until SIGTERM or Ctrl-C, like connect-mirror-maker.

    With -f the flows are those of a Strimzi resource; see docs/strimzi.md.

    Exit codes: 0 stopped cleanly, 1 an error."""
    program = f"{options.PROGRAM} mirror"
    configure_logging(*checked_log_options(log_level, log_format))
    if resource is not None:
        if file is not None or clusters:
            raise ConfigError("-f takes no other file and no --clusters", "-f")
        from connect.cli.daemons.strimzi_resource import ResourceArguments, run_resource

        code = run_resource(program, ResourceArguments(resource, name, secrets, settings or (), prints, as_json))
    elif file is not None:
        from connect.cli.daemons.connect_mirror_maker import mirror as run_mirror

        code = run_mirror(program, file, clusters or ())
    else:
        raise ConfigError("give mm2.properties, or a Strimzi resource with -f")
    raise typer.Exit(EXIT_ERROR if code else EXIT_OK)


def main() -> NoReturn:
    sys.exit(run_command(options.PROGRAM, _invoke))


def _invoke() -> int:
    if options.ASKED in os.environ:
        typer.completion.completion_init()  # type: ignore[attr-defined]  # because it has no __all__
    options.taught(typer.main.get_command(app))(prog_name=options.PROGRAM)
    return EXIT_OK
