"""The Strimzi resources of a file looked at, as ``heliograph mirror -f`` would take it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from connect.cli.check_clusters import Looked, look_at_flow
from connect.cli.check_connector import ConnectorFile, does_of, sides_of
from connect.cli.check_connectors import objections_of, plugins_of
from connect.cli.check_report import Finding, Level, Outcome, Report, of_error
from connect.cli.check_values import Written, declares, of_values
from connect.core.config import split_list
from connect.core.errors import ConfigError, HeliographError
from connect.core.worker_config import WorkerConfig
from connect.runtime.discovery import config_providers
from connectors.strimzi.documents import Node, read_documents
from connectors.strimzi.resource import resource, resources_in
from connectors.strimzi.secrets import PROVIDER
from connectors.strimzi.translating import Translation, Wanted, translate

#: Those that Strimzi's operator declares for every worker; a secret that is not there has a finding of its own.
_PROVIDERS: Final = ("strimzienv", "strimzifile", "strimzidir", PROVIDER)


async def check_strimzi(text: str, report: Report, *, offline: bool) -> Report:
    """``report`` with what is found of the resources, one after another."""
    try:
        nodes = resources_in(read_documents(text, report.file), report.file)
    except ConfigError as error:
        return report.with_findings([of_error(error)])
    for node in nodes:
        report = await _check(node, report, is_alone=len(nodes) == 1, offline=offline)
    return report


async def _check(node: Node, report: Report, *, is_alone: bool, offline: bool) -> Report:
    try:
        found = translate(node, None, {})
    except ConfigError as error:
        return report.with_findings([of_error(error)])
    findings = [Finding(Level.WARNING, f"{one.path}: {one.text}", one.path, one.line) for one in found.notices]
    findings += [
        Finding(Level.NOTE, f"{one.node.path} needs secret {one.secret}, key {one.key}: say --secrets DIR at the start",
                one.node.path, one.node.line)
        for one in found.missing
    ]  # fmt: skip
    report = report.with_findings([*findings, *_of_values(node)])
    try:
        worker = WorkerConfig.parse(found.worker, config_providers())
    except ConfigError as error:
        return report.with_findings([of_error(found.located(error))])
    report = report.with_findings(_of_worker(found, text) for text in worker.warnings)
    # Without its secrets nobody can be asked.
    looked = Looked()
    for wanted in found.connectors:
        looked.does = []
        looked.findings += await _refusals(found, wanted, worker)
        if not looked.findings:
            await _look(wanted, worker, looked, offline=offline or bool(found.missing))
        what = wanted.name if is_alone else f"{found.name}: {wanted.name}"
        report = replace(report, outcomes=(*report.outcomes, Outcome(what, tuple(looked.does))))
    clusters = dict.fromkeys((*report.clusters, *looked.clusters.values()))
    return replace(report, clusters=tuple(clusters)).with_findings(looked.findings)


def _of_values(node: Node) -> Iterator[Finding]:
    """Of the clusters and mirrors, each field once. What a worker declares is there for all its connectors."""
    found = resource(node)
    parts = [
        found.target,
        *(part for mirror in found.mirrors for part in (mirror.target, mirror.source, mirror.fields)),
    ]
    texts = {text.path: text for part in parts for text in part.texts()}
    values = [Written(path, text.value, text.line) for path, text in texts.items()]
    own = (name for one in values if declares(one.key) for name in split_list(one.value))
    return of_values(values, frozenset([*_PROVIDERS, *own]))


def _of_worker(found: Translation, text: str) -> Finding:
    return of_error(found.located(ConfigError(text, text.partition(" ")[0])), Level.WARNING)


async def _refusals(found: Translation, wanted: Wanted, worker: WorkerConfig) -> list[Finding]:
    async with plugins_of(worker.props) as plugins:
        refused = await objections_of(wanted.config, plugins, worker, worker.transformer)
    return [of_error(found.located(ConfigError(reason, key), wanted)) for key, reason in refused]


async def _look(wanted: Wanted, worker: WorkerConfig, looked: Looked, *, offline: bool) -> None:
    java_class = wanted.config["connector.class"]
    file = ConnectorFile("", wanted.name, dict(wanted.config), {})
    try:
        looked.does += does_of(java_class, wanted.config, worker)
        if not offline:
            await look_at_flow(sides_of(file, java_class, wanted.config, worker), looked)
    except HeliographError as error:
        looked.findings.append(of_error(error))
