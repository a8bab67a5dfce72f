"""A consumer's or producer's properties looked at, as ``kafka-mirror-maker`` would take them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from connect.cli.check_clusters import look_at_cluster
from connect.cli.check_places import placed
from connect.cli.check_report import Finding, Level, Outcome, Report, of_error
from connect.core.errors import HeliographError
from connect.core.properties import Properties
from connect.kafka.offsets import LATEST
from connectors.mirror_maker_1.settings import MirrorSettings, Options, mirror_settings
from connectors.mirror_maker_1.topics import takes

_WRITES: Final = ("passes batches on as they are, acknowledged by all in-sync replicas",)
#: Which topics are copied is said in the command line, not in the files. By whether it is the consumer's.
_NOT_LOOKED_AT: Final = {
    True: "rights on topics were not looked at, as the command line names them: DESCRIBE and READ, DESCRIBE_CONFIGS "
    "where the target lacks them",
    False: "rights on topics and transactional ids were not looked at, as the command line and the group name them: "
    "DESCRIBE and WRITE on topics and on transactional ids that begin with the group's name, CREATE where topics are "
    "missing",
}
#: The other file of the command, which is not this one's matter.
_OTHER: Final = Properties({"bootstrap.servers": "localhost:9092", "group.id": "other"})


async def check_client(props: Properties, report: Report, *, is_consumer: bool, offline: bool) -> Report:
    """``report`` with what is found of the file."""
    sources, target = ([props], _OTHER) if is_consumer else ([_OTHER], props)
    said: list[str] = []
    try:
        settings = mirror_settings(sources, target, Options(takes(".*", None)), said.append)
    except HeliographError as error:
        return report.with_findings([*_of_keys(props, said), placed(of_error(error), props.line)])
    report = report.with_findings(_of_keys(props, said))
    (source,) = settings.sources
    reads = Outcome(f"group {source.group.group_id}", _reads(settings))
    outcome = reads if is_consumer else Outcome("the copy", _WRITES)
    report = replace(report, outcomes=(outcome,))
    if offline:
        return report
    if is_consumer:
        looked = await look_at_cluster("source", source.connection, source.group.group_id, ())
    else:
        looked = await look_at_cluster("target", settings.target, None, ())
    findings = [*looked.findings, Finding(Level.NOTE, _NOT_LOOKED_AT[is_consumer])]
    return replace(report, clusters=tuple(looked.clusters.values())).with_findings(findings)


def _reads(settings: MirrorSettings) -> tuple[str, ...]:
    (source,) = settings.sources
    begins = "end" if source.reset_to == LATEST else "beginning"
    return (f"shares partitions with its other members, and begins at the {begins} of those that it has no offset of",)


def _of_keys(props: Properties, said: Sequence[str]) -> Iterator[Finding]:
    """What the command would log of the file, with lines."""
    for sentence in said:
        prefix = f"{props.file}: "
        if sentence.startswith(prefix):
            text = sentence.removeprefix(prefix)
            key = text.partition(":")[0]
            yield Finding(Level.WARNING, text, key, props.line(key))
