"""The Strimzi resources of a file looked at, as ``heliograph mirror -f`` would take it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from connect.cli.check_clusters import Looked, look_at_flow
from connect.cli.check_connector import does_of
from connect.cli.check_connectors import objections_of, plugins_of
from connect.cli.check_report import Finding, Level, Outcome, Report, SeenCluster, of_error
from connect.cli.check_secrets import Given, given, lenient_providers, not_asked, of_missing
from connect.cli.check_sides import sides_of
from connect.cli.check_values import Written, declares, of_values
from connect.core.config import split_list
from connect.core.errors import ConfigError, HeliographError
from connect.core.worker_config import WorkerConfig
from connect.runtime.traces import secrets_of
from connectors.strimzi.documents import Node, read_documents
from connectors.strimzi.resource import Mirror, resource, resources_in
from connectors.strimzi.secrets import PROVIDER
from connectors.strimzi.translating import Translation, Wanted, translate

#: Those that Strimzi's operator declares for every worker; a secret that is not there has a finding of its own.
_PROVIDERS: Final = ("strimzienv", "strimzifile", "strimzidir", PROVIDER)


async def check_strimzi(text: str, report: Report, *, secrets: Path | None, offline: bool) -> Report:
    """``report`` with what is found of the resources, one after another; ``secrets`` is the folder of ``--secrets``.

    Raises:
        ConfigError: It is no folder.
    """
    there = given(secrets)
    try:
        nodes = resources_in(read_documents(text, report.file), report.file)
    except ConfigError as error:
        return report.with_findings([of_error(error)])
    for node in nodes:
        report = await _check(node, report, there, is_alone=len(nodes) == 1, offline=offline)
    return report


async def _check(node: Node, report: Report, secrets: Given, *, is_alone: bool, offline: bool) -> Report:
    try:
        found = translate(node, secrets.directory, secrets.keys)
    except ConfigError as error:
        return report.with_findings([of_error(error)])
    findings = [Finding(Level.WARNING, f"{one.path}: {one.text}", one.path, one.line) for one in found.notices]
    findings += [of_missing(secrets, one) for one in found.missing]
    report = report.with_findings([*findings, *_of_values(node)])
    try:
        worker = WorkerConfig.parse(found.worker, lenient_providers())
    except ConfigError as error:
        return report.with_findings([of_error(found.located(error))])
    report = report.with_findings(_of_worker(found, text) for text in worker.warnings)
    clusters: dict[str, SeenCluster] = {}
    for wanted in found.connectors:
        looked = Looked(clusters)
        refused = await _refusals(found, wanted, worker)
        if not refused:
            await _look(_Part(found, wanted, _mirror_of(node, wanted), worker, secrets), looked, offline=offline)
        what = wanted.name if is_alone else f"{found.name}: {wanted.name}"
        report = replace(report, outcomes=(*report.outcomes, Outcome(what, tuple(looked.does))))
        report = report.with_findings([*refused, *looked.findings])
    return replace(report, clusters=tuple(dict.fromkeys((*report.clusters, *clusters.values()))))


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
    async with plugins_of(worker) as plugins:
        refused = await objections_of(wanted.config, plugins, worker, worker.transformer)
    return [of_error(found.located(ConfigError(reason, key), wanted)) for key, reason in refused]


@dataclass(frozen=True, slots=True)
class _Part:
    """A connector that nothing refuses, and what it is a part of."""

    found: Translation
    wanted: Wanted
    mirror: Mirror
    worker: WorkerConfig
    secrets: Given

    def of_error(self, error: HeliographError) -> Finding:
        """With the line of the cluster's field, or of the connector's."""
        if not isinstance(error, ConfigError):
            return of_error(error)
        for side, cluster in (("source.cluster.", self.mirror.source), ("target.cluster.", self.mirror.target)):
            key = (error.key or "").removeprefix(side)
            if key != error.key:
                places = (f"{cluster.path}.{part}.{key}" for part in ("config", "authentication.config"))
                field = cluster.field("tls" if key.startswith("ssl.truststore") else "authentication")
                line = next((cluster.lines[place] for place in places if place in cluster.lines), field.line)
                return of_error(ConfigError(error.message, error.key, cluster.file, line))
        return of_error(self.found.located(error, self.wanted))


def _mirror_of(node: Node, wanted: Wanted) -> Mirror:
    return next(one for one in resource(node).mirrors if wanted.name.startswith(f"{one.name}."))


async def _look(part: _Part, looked: Looked, *, offline: bool) -> None:
    config, worker = part.wanted.config, part.worker
    transformer = worker.transformer
    hiding = secrets_of(transformer, config, worker.raw)
    props = transformer.transform(config)
    missing = not_asked(part.found, props, part.secrets)
    try:
        looked.does += does_of(config["connector.class"], props, worker)
        if missing is None:
            sides = sides_of(part.wanted.name, config["connector.class"], props, worker)
            if not offline:
                await look_at_flow(sides, looked)
        elif not offline:
            looked.findings.append(missing)
    except HeliographError as error:
        looked.findings.append(part.of_error(error))
    looked.does = [hiding.mask(one) for one in looked.does]
    looked.findings = [replace(one, text=hiding.mask(one.text)) for one in looked.findings]
