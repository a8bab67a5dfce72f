"""Why records that only the old primary holds are not appended to the new one."""

from __future__ import annotations

from collections.abc import Collection

from connectors.dataplane.plan import TopicPartition
from connectors.failover.appended import HEADER, where
from connectors.failover.proving import compacted
from connectors.failover.site import Site
from connectors.failover.starting import returns
from connectors.failover.stranded import Stranded
from connectors.failover.uncopied import not_there


async def before_look(site: Site, looked: Collection[Stranded]) -> dict[TopicPartition, str]:
    """Why, by its source, nothing is appended of a partition, as far as no look at the target's log is needed for it.
    Raises as the target."""
    missing = await not_there(site, {one.target for one in looked})
    cleaned = await compacted(site.target, {one.target.topic for one in looked if one.target not in missing})
    found = {one.source: objection(site, one, cleaned, missing) for one in looked}
    return {source: why for source, why in found.items() if why}


def objection(
    site: Site, one: Stranded, compacted_topics: Collection[str], missing: Collection[TopicPartition] = ()
) -> str:
    """Why these are never appended, whatever was appended before (pure); empty: they may be."""
    if not returns(site.flow, site.back, one.source.topic, one.target.topic):
        return (
            f"{site.flow.flow} copies {one.source.topic} into {one.target.topic}, where nobody else writes: start it, "
            "and it appends them"
        )
    if key := site.flow.changing_key:
        return (
            f"{site.flow.flow} changes records on their way ({key}), and these would be appended as they are: export "
            "them, and write by hand what it would have made of them"
        )
    if one.target in missing:
        return (
            f"cluster {site.flow.target_alias} has no {one.target}: make the topic there with as many partitions as "
            f"{one.source.topic} has on cluster {site.flow.source_alias}, and run this again"
        )
    if one.target.topic in compacted_topics:
        return (
            f"{one.target.topic} of cluster {site.flow.target_alias} is compacted, or does not tell: what is appended "
            "would be newer than what was written there since, and win over it; export the records, and write by hand "
            "those whose keys are still the newest"
        )
    return ""


def not_writable(site: Site, one: Stranded) -> str:
    """What to say of a target that takes nothing of ours (pure)."""
    topic = one.target.topic
    return f"cluster {site.flow.target_alias} does not let us write to {one.target}: grant WRITE on topic {topic}"


def doubt(site: Site, one: Stranded) -> str:
    """Why some of these may be there already (pure); empty: none is."""
    if one.doubtful:
        return (
            f"{one.doubtful} of the records of {one.source} arrived on cluster {site.flow.target_alias}, and nobody "
            "can tell which: export them, and compare"
        )
    if one.may_be_appended:
        return (
            f"some of the records of {one.source}, from offset {one.own.first} on, may have been appended before: "
            f"cluster {site.flow.target_alias} has deleted the beginning of {one.target}, where headers would say so; "
            "export them, and compare"
        )
    if one.unclear:
        return (
            f"cluster {site.flow.target_alias}: a header {HEADER} says {one.unclear}, and it should be "
            f"{where(site.flow.source_alias, one.source, one.own.first)}, with the offset of its record there: which "
            f"of {one.source} it is nobody can tell; write those that are missing by hand, with headers like that"
        )
    if one.may_have_arrived:
        return (
            f"only a stored offset tells how far {one.source} was copied, as Java's MirrorMaker 2 leaves it, and some "
            f"of these records may have arrived on cluster {site.flow.target_alias}: export them, and compare"
        )
    return ""
