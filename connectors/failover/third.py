"""Clusters of the file that are on neither side of a failover, whose topics may be copied to both."""

from __future__ import annotations

from dataclasses import dataclass

from connect.core.errors import ConfigError
from connectors.flows import Flow, MirrorMakerConfig
from connectors.settings import MirrorSourceSettings


@dataclass(frozen=True, slots=True)
class Third:
    """One of them, and its flows to the cluster that readers leave and to the one where they go; none need be
    enabled."""

    alias: str
    to_source: MirrorSourceSettings
    to_target: MirrorSourceSettings

    def turned(self) -> Third:
        """The same for who goes the other way."""
        return Third(self.alias, self.to_target, self.to_source)


def third_clusters(config: MirrorMakerConfig, source: str, target: str) -> tuple[tuple[Third, ...], tuple[str, ...]]:
    """Beside them why others cannot be used: readers move without them, as where their secrets are not here."""
    found, errors = [], []
    for alias in config.clusters:
        if alias in (source, target):
            continue
        try:
            found.append(Third(alias, Flow(config, alias, source).settings(), Flow(config, alias, target).settings()))
        except ConfigError as error:
            errors.append(f"topics of cluster {alias} are looked for on neither side: {error}")
    return tuple(found), tuple(errors)
