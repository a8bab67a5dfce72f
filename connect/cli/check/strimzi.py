"""Checks of a file's Strimzi resources, read as ``heliograph mirror -f`` would.

Clusters are contacted if their secrets are available; missing secrets are findings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from connect.api.plugins import config_providers
from connect.cli.check import connector_config
from connect.cli.check.clusters import Looked, look_at_flow
from connect.cli.check.connector_config import WrittenValue, plugins_of, sides_of, validated
from connect.cli.check.findings import CheckFinding, CheckOutcome, CheckReport, Level, SeenCluster, of_error
from connect.cli.daemons.strimzi_resource import plugin_key_warnings
from connect.core.config.config_def import split_list
from connect.core.config.properties import Provider
from connect.core.config.worker_config import WorkerConfig
from connect.core.errors import ConfigError, HeliographError
from connect.core.wording import named
from connect.runtime.plugins.plugin_errors import secrets_of
from connectors.strimzi.resource import Node, read_documents, resource, resources_in
from connectors.strimzi.security import PROVIDER, PROVIDER_CLASS, SecretKey, keys_in, mounted_secrets
from connectors.strimzi.translation import TranslatedResource, WantedConnector, translate

_REFERENCE: Final = re.compile(rf"\$\{{{PROVIDER}:([^}}:]*):[^}}]*\}}")


@dataclass(frozen=True, slots=True)
class Given:
    """The folder of ``--secrets``, None without it, and the keys of each secret there."""

    folder: Path | None
    keys: Mapping[str, frozenset[str]]


def given(folder: Path | None) -> Given:
    """Read the names of secrets. Raises ConfigError if ``folder`` is not a folder or cannot be read."""
    if folder is None:
        return Given(None, {})
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder", "--secrets")
    try:
        return Given(folder, keys_in(folder))
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror or type(error).__name__}", "--secrets") from None


def _mounted(params: Mapping[str, str]) -> Provider:
    """Return a provider that leaves references to a missing secret unresolved, as it has a finding already."""
    read = mounted_secrets(params)

    def read_if_there(path: str) -> Mapping[str, str]:
        try:
            return read(path)
        except FileNotFoundError:
            return {}

    return read_if_there


def of_missing(secrets: Given, missing: SecretKey) -> CheckFinding:
    """Report a secret that a start would need."""
    path, said = missing.node.path, f"{missing.node.path} needs secret {missing.secret}, key {missing.key}"
    if secrets.folder is None:
        return CheckFinding(Level.NOTE, f"{said}. Start with --secrets DIR", path, missing.node.line)
    return CheckFinding(Level.ERROR, f"{said}, which is not in {secrets.folder}", path, missing.node.line)


def not_asked(found: TranslatedResource, config: Mapping[str, str], secrets: Given) -> CheckFinding | None:
    """Report that the clusters cannot be checked, if a resolved ``config`` still refers to secrets. The line is that of
    the first field that needs one."""
    paths = (path for value in config.values() for path in _REFERENCE.findall(value))
    names = list(dict.fromkeys(path.rpartition("/")[2] for path in paths))
    if not names:
        return None
    where = "set --secrets DIR" if secrets.folder is None else f"not in {secrets.folder}"
    line = next((one.node.line for one in found.missing if one.secret in names), None)
    words = f"secret{'s' if len(names) > 1 else ''} {named(names, 3)}"
    return CheckFinding(Level.UNKNOWN, f"the clusters were not checked without {words}: {where}", line=line)


#: Providers that Strimzi's operator declares for every worker. A missing secret is a finding by itself.
_PROVIDERS: Final = ("strimzienv", "strimzifile", "strimzidir", PROVIDER)


async def check_strimzi(text: str, report: CheckReport, *, secrets: Path | None, offline: bool) -> CheckReport:
    """Return ``report`` with the findings about each resource. Raises ConfigError if ``secrets`` is not a folder."""
    there = given(secrets)
    try:
        nodes = resources_in(read_documents(text, report.file), report.file)
    except ConfigError as error:
        return report.with_findings([of_error(error)])
    for node in nodes:
        report = await _check(node, report, there, is_alone=len(nodes) == 1, offline=offline)
    return report


async def _check(node: Node, report: CheckReport, secrets: Given, *, is_alone: bool, offline: bool) -> CheckReport:
    folder = None if secrets.folder is None else str(secrets.folder.resolve())
    try:
        found = translate(node, folder, secrets.keys)
    except ConfigError as error:
        return report.with_findings([of_error(error)])
    notices = found.start_notices(os.environ)
    findings = [CheckFinding(Level.WARNING, f"{one.path}: {one.text}", one.path, one.line) for one in notices]
    findings += [of_missing(secrets, one) for one in found.missing]
    report = report.with_findings([*findings, *_of_values(node)])
    try:
        providers = {**config_providers(), PROVIDER_CLASS: _mounted}
        worker = WorkerConfig.parse(found.worker, providers, [one.config for one in found.connectors])
    except ConfigError as error:
        return report.with_findings([of_error(found.located(error))])
    said = [found.located(ConfigError(text, text.partition(" ")[0])) for text in worker.warnings]
    report = report.with_findings(of_error(one, Level.WARNING) for one in (*said, *plugin_key_warnings(found)))
    starts = await connector_config.of_start(worker)
    report = report.with_findings(of_error(found.located(ConfigError(one.text, one.key)), one.level) for one in starts)
    clusters: dict[str, SeenCluster] = {}
    for wanted in found.connectors:
        looked = Looked(clusters)
        async with plugins_of(worker) as plugins:
            reasons, _ = await validated(wanted.config, plugins, worker, worker.transformer)
        refused = [of_error(found.located(ConfigError(reason, key), wanted)) for key, reason in reasons]
        if not refused:
            await _look(found, wanted, worker, secrets, looked, offline=offline)
        what = wanted.name if is_alone else f"{found.name}: {wanted.name}"
        report = replace(report, outcomes=(*report.outcomes, CheckOutcome(what, tuple(looked.does))))
        report = report.with_findings([*refused, *looked.findings])
    return replace(report, clusters=tuple(dict.fromkeys((*report.clusters, *clusters.values()))))


def _of_values(node: Node) -> Iterator[CheckFinding]:
    """Check the values of clusters and mirrors, each field once. Connectors may use all providers of the worker."""
    found = resource(node)
    parts = (part for mirror in found.mirrors for part in (mirror.target, mirror.source, mirror.fields))
    texts = {text.path: text for part in (found.target, *parts) for text in part.texts()}
    values = [WrittenValue(path, text.value, text.line) for path, text in texts.items()]
    own = (name for one in values if connector_config.declares(one.key) for name in split_list(one.value))
    return connector_config.of_values(values, frozenset([*_PROVIDERS, *own]))


async def _look(
    found: TranslatedResource,
    wanted: WantedConnector,
    worker: WorkerConfig,
    secrets: Given,
    looked: Looked,
    *,
    offline: bool,
) -> None:
    config, transformer = wanted.config, worker.transformer
    hiding = secrets_of(transformer, config, worker.raw)
    props = transformer.transform(config)
    missing = not_asked(found, props, secrets)
    try:
        looked.does += connector_config.does_of(config["connector.class"], props, worker)
        if missing is None:
            sides = sides_of(wanted.name, config["connector.class"], props, worker)
            if not offline:
                await look_at_flow(sides, looked)
        elif not offline:
            looked.findings.append(missing)
    except HeliographError as error:
        looked.findings.append(of_error(found.located(error, wanted) if isinstance(error, ConfigError) else error))
    looked.does = [hiding.mask(one) for one in looked.does]
    looked.findings = [replace(one, text=hiding.mask(one.text)) for one in looked.findings]
