"""An ``mm2.properties`` looked at: each flow as its node would start it, and as its connectors would be validated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from connect.cli.check_clusters import Looked, Sides, look_at_flow
from connect.cli.check_connectors import objections_of, of_checkpoints, of_heartbeats, of_source, plugins_of
from connect.cli.check_places import list_with, placed
from connect.cli.check_report import Finding, Level, Outcome, Report, of_error
from connect.cli.flow_worker import worker_config
from connect.cli.plan import internal_topics
from connect.core.errors import ConfigError, HeliographError
from connect.core.properties import Properties
from connect.runtime.traces import secrets_of
from connect.runtime.worker_check import check_worker
from connectors.checkpoint.connector import objections
from connectors.checkpoint.settings import checkpoint_settings
from connectors.flows import Connector, Flow, MirrorMakerConfig, mirrored


async def check_mirror(props: Properties, report: Report, *, offline: bool) -> Report:
    """``report`` with what is found of the file."""
    try:
        config = MirrorMakerConfig(props)
        flows = config.flows_to_run()
        secrets = secrets_of(config.transformer, config.raw)
    except ConfigError as error:
        return report.with_findings([placed(of_error(error), props.line)])
    report = report.with_findings(_of_keys(config, flows))
    looked = Looked()
    for flow in flows:
        found = await _refusals(flow)
        looked.findings += found
        looked.does = []
        try:
            if not found:
                looked.does, sides = _does(flow), _sides(flow)
                if not offline:
                    await look_at_flow(sides, looked)
        except HeliographError as error:  # of a flow that is not enabled, whose settings nothing else has read
            looked.findings.append(of_error(error, Level.ERROR if flow.enabled else Level.WARNING))
        outcome = Outcome(str(flow), tuple(map(secrets.mask, looked.does)))
        report = replace(report, outcomes=(*report.outcomes, outcome))
    if not any(one.level is Level.ERROR for one in looked.findings):
        looked.findings += _of_whole(config)
    looked.findings += _twins(looked)
    report = replace(report, clusters=tuple(looked.clusters.values()))
    places = (placed(one, props.line) for one in looked.findings)
    return report.with_findings(replace(one, text=secrets.mask(one.text)) for one in places)


def _of_keys(config: MirrorMakerConfig, flows: Sequence[Flow]) -> Iterator[Finding]:
    """What is to be said of keys by themselves."""
    for notice in config.key_notices():
        yield Finding(Level.WARNING, notice.text, notice.key, config.raw.line(notice.key))
    if not mirrored(flows):
        yield Finding(Level.WARNING, "no flow is enabled: it would write heartbeats and mirror nothing")


def _of_whole(config: MirrorMakerConfig) -> Iterator[Finding]:
    """What values and pairs of flows bring."""
    for notice in config.notices():
        yield Finding(Level.WARNING, notice.text, notice.key, config.raw.line(notice.key))


def _twins(looked: Looked) -> Iterator[Finding]:
    """Aliases of one cluster, which is seldom meant."""
    aliases: dict[str, list[str]] = defaultdict(list)
    for one in looked.clusters.values():
        aliases[one.cluster_id or one.name].append(one.name)
    for names in aliases.values():
        if len(names) > 1:
            yield Finding(Level.WARNING, f"{' and '.join(names)} are one cluster by its id; is another one meant?")


async def _refusals(flow: Flow) -> list[Finding]:
    """Everything that keeps a flow from starting, or a connector of it from being configured."""
    # What is there for heartbeats alone is tried again, and holds up no other flow.
    level = Level.ERROR if flow.enabled else Level.WARNING
    told: list[Finding] = []
    try:
        worker = worker_config(flow)
        async with plugins_of(worker) as plugins:
            try:
                check_worker(worker, plugins)
            except ConfigError as error:
                raise flow.located(error) from None
            for connector in _connectors(flow):
                config = flow.connector_config(connector)
                refused = await objections_of(config, plugins, worker, flow.config.transformer)
                # What the connectors have in common is told once, in the words of the first.
                before = {one.key for one in told}
                found = [_located(flow, key, reason, level) for key, reason in refused]
                told += [one for one in found if one.key not in before]
        if flow.enabled:
            flow.settings()
        flow.clients()
    except HeliographError as error:
        last = _of_error(flow, error, level)
        if last.key not in {one.key for one in told}:
            told.append(last)
    return told


def _connectors(flow: Flow) -> Iterator[Connector]:
    """Those that the leader would put."""
    if not flow.enabled:
        yield Connector.HEARTBEAT
        return
    for connector in Connector:
        if connector is not Connector.CHECKPOINT or not objections(flow.connector_config(connector)):
            yield connector


def _located(flow: Flow, key: str, reason: str, level: Level) -> Finding:
    written, line = flow.written(key)
    if line is None and (names := list_with(key)) is not None:
        named_by, line = flow.written(names)
        written = named_by.removesuffix(names) + key
    named = reason.replace(key, written, 1) if key in reason else f"{written}: {reason}"
    return Finding(level, f"{flow}: {named}" if line is None else named, written, line)


def _of_error(flow: Flow, error: HeliographError, level: Level) -> Finding:
    if isinstance(error, ConfigError) and error.line is None and list_with(error.key or "") is not None:
        return _located(flow, error.key or "", error.message, level)
    return of_error(error, level)


def _does(flow: Flow) -> list[str]:
    found: list[str] = []
    if flow.enabled:
        checkpoints = flow.config.resolved(flow.connector_config(Connector.CHECKPOINT))
        settings = None if objections(checkpoints) else checkpoint_settings(checkpoints)
        found += of_source(flow.settings(), flow.connector_config())
        found += of_checkpoints(settings, checkpoints)
    found += of_heartbeats(flow.config.resolved(flow.connector_config(Connector.HEARTBEAT)))
    return found if flow.enabled else [f"mirrors nothing; {found[0]}"]


def _sides(flow: Flow) -> Sides:
    settings, clients = flow.settings(), flow.clients()
    internal = internal_topics(flow, settings)
    _, line = flow.config.written([f"{flow}.enabled", "enabled"], "")
    return Sides(
        str(flow),
        flow.source,
        flow.target,
        clients.source_admin(),
        clients.target_admin(),
        settings if flow.enabled else None,
        (*internal.on_target, *internal.of_tasks),
        worker_config(flow).group_id,
        line,
    )
