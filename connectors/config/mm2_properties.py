"""``mm2.properties``: its clusters and flows, and the settings of each (Kafka's ``MirrorMakerConfig``).

A prefix says what a key belongs to: ``us.x`` to a cluster, ``us->eu.x`` to a flow, a plain ``x`` to all that know it.
Inheritance follows Java's rules exactly, including odd cases. Refused is what Java reads without effect: a flow between
clusters that the file does not declare, a flow with a space in its key, a switch that is neither true nor false.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from connect.core.config.client_settings import CONNECTION_KEYS
from connect.core.config.config_def import ConfigDef, Importance, Setting, Type, ValidList
from connect.core.config.connector_access import ACCESS
from connect.core.config.connector_settings import ENABLED as AUTO_RESTART_ENABLED
from connect.core.config.properties import ConfigTransformer, Properties, load_properties
from connect.core.config.security_settings import SECURITY
from connect.core.errors import ConfigError
from connect.core.model import CLEANED_SOON
from connectors.config import connector_configs
from connectors.config.client_config import ClientKind, ClusterSide, FlowClients, flow_clients, properties_with_prefix
from connectors.config.definitions import CHECKPOINT, HEARTBEAT, SOURCE
from connectors.config.ignored_keys import IgnoredKey, notices
from connectors.formats.types import FlowName
from connectors.policy import sees_cycles
from connectors.transforms.target_names import RemoteNames

_INTERNAL_REST: Final = "dedicated.mode.enable.internal.rest"
_PUBLIC_REST: Final = "dedicated.mode.enable.public.rest"
_TOP_LEVEL: Final = SECURITY | ConfigDef.of(
    Setting("clusters", Type.LIST, (), "Aliases of the clusters.", ValidList(), Importance.HIGH),
    Setting(_INTERNAL_REST, Type.BOOLEAN, False, "Serve requests between workers."),
    Setting(_PUBLIC_REST, Type.BOOLEAN, False, "Serve the REST API of each flow."),
)
#: Top-level keys with these prefixes reach every worker.
_WORKER_BEGINNINGS: Final = (
    *("offset.storage", "config.storage", "status.storage", *connector_configs.CONVERTERS),
    *("task", "worker", "audit.", "replication.policy", *ACCESS.settings),
)
_CLIENT_BEGINNINGS: Final = ("producer", "consumer", "admin")
_CONNECTOR_KEYS: Final = frozenset({*SOURCE.settings, *CHECKPOINT.settings, *HEARTBEAT.settings})


class Connector(Enum):
    """The three connectors of a flow; the value is the simple class name, which is also the connector's name."""

    SOURCE = "MirrorSourceConnector"
    CHECKPOINT = "MirrorCheckpointConnector"
    HEARTBEAT = "MirrorHeartbeatConnector"

    @property
    def java_class(self) -> str:
        return f"org.apache.kafka.connect.mirror.{self.value}"


@dataclass(frozen=True, slots=True)
class Flow:
    """Mirroring from one cluster of a file to another."""

    config: MirrorMakerConfig
    source: str
    target: str

    def __str__(self) -> str:
        return str(self.name)

    @property
    def name(self) -> FlowName:
        return FlowName(self.source, self.target)

    @property
    def has_worker(self) -> bool:
        """Whether Java would run a herder for it: it is enabled itself, or has heartbeats."""
        flag = self.config.flag
        heartbeats = flag("emit.heartbeats.enabled", True)
        return flag(f"{self}.enabled", False) or flag(f"{self}.emit.heartbeats.enabled", heartbeats)

    @property
    def enabled(self) -> bool:
        """Whether records are mirrored; a flow may exist for its heartbeats alone. The top-level ``enabled`` gives no
        flow a herder, but reaches the connectors of each flow that has one."""
        return self.has_worker and self.config.flag(f"{self}.enabled", self.config.flag("enabled", False))

    def worker_config(self) -> dict[str, str]:
        """Return the configuration of the flow's worker, references resolved."""
        config = self.config
        props = config.cluster_properties(self.target)
        props |= {key: value for key, value in config.raw.items() if key.startswith(_WORKER_BEGINNINGS)}
        return {
            "client.id": str(self),
            "group.id": f"{self.source}-mm2",
            "offset.storage.topic": f"mm2-offsets.{self.source}.internal",
            "status.storage.topic": f"mm2-status.{self.source}.internal",
            "config.storage.topic": f"mm2-configs.{self.source}.internal",
            **dict.fromkeys(connector_configs.CONVERTERS, connector_configs.BYTE_ARRAY_CONVERTER),
            **{f"offset.storage.{key}": value for key, value in CLEANED_SOON.items()},
            **config.resolved(props),
            **self._providers(),
        }

    def connector_config(self, connector: Connector = Connector.SOURCE) -> dict[str, str]:
        """Return the configuration of one of its connectors as stored, with references."""
        raw = self.config.raw
        props = {key: value for key, value in raw.items() if key in _CONNECTOR_KEYS}
        props |= self._providers()
        # In addition to Java's keys: spark.* reaches every flow, because all flows share one Spark.
        props |= {key: value for key, value in raw.items() if key.startswith(("replication.policy", "spark."))}
        for side, alias in (("source", self.source), ("target", self.target)):
            for key, value in self.config.cluster_properties(alias).items():
                of_client = key.startswith(_CLIENT_BEGINNINGS)
                props[f"{side}.{key}" if of_client else f"{side}.cluster.{key}"] = value
        defaults = {
            "name": connector.value,
            "connector.class": connector.java_class,
            AUTO_RESTART_ENABLED: "true",
            "source.cluster.alias": self.source,
            "target.cluster.alias": self.target,
        }
        props = {**defaults, **props} | properties_with_prefix(raw, f"{self}.")
        props.setdefault("enabled", "false")
        return props

    def _providers(self) -> dict[str, str]:
        """Return the declarations of config providers, including the flow's own, with which its worker resolves."""
        props = {**self.config.raw, **properties_with_prefix(self.config.raw, f"{self}.")}
        return {key: value for key, value in props.items() if key.startswith("config.providers")}

    def settings(self) -> connector_configs.MirrorSourceSettings:
        """Return the typed settings of its source connector. Raises ConfigError with the key and line in the file."""
        try:
            return connector_configs.source_settings(
                self.config.resolved(self.connector_config()), self.worker_config()
            )
        except ConfigError as error:
            raise self.located(error) from None

    def clients(self) -> FlowClients:
        """Return the connections of the flow, with key stores read. Raises ConfigError with the key and line."""
        return flow_clients(
            str(self),
            self.config.resolved(self.connector_config()),
            self.worker_config(),
            source=self.source,
            target=self.target,
            locate=self._located_client_error,
        )

    def located(self, error: ConfigError) -> ConfigError:
        """Add the place in the file to an error of the flow's worker or source connector."""
        return self.config.located(error, self._places(error.key or ""))

    def written(self, key: str) -> tuple[str, int | None]:
        """Return a key of its worker or connectors as written in the file, and its line; the key itself if absent."""
        return self.config.written(self._places(key), key)

    def _places(self, key: str) -> list[str]:
        """Return where the file may hold a key of the connector or its worker, in order of precedence."""
        for side, alias in (("source", self.source), ("target", self.target)):
            if key.startswith(prefix := f"{side}.cluster."):
                return [f"{self}.{key}", f"{alias}.{key.removeprefix(prefix)}", key.removeprefix(prefix)]
        if key.startswith("consumer.") and key not in _CONNECTOR_KEYS:
            return [f"{self}.source.{key}", f"{self.source}.{key}", f"{self}.{key}"]
        if key.startswith("producer."):
            return [f"{self}.producer.override.{key.removeprefix('producer.')}", f"{self.target}.{key}"]
        if key in connector_configs.WORKER:
            return [key, f"{self.target}.{key}"] if key.startswith(_WORKER_BEGINNINGS) else [f"{self.target}.{key}"]
        return [f"{self}.{key}", key, f"{self.target}.{key}"]

    def _located_client_error(self, error: ConfigError, side: ClusterSide, kind: ClientKind | None) -> ConfigError:
        alias, key = (self.source if side == "source" else self.target), error.key or ""
        inherited = [f"{alias}.{key}", key] if key in CONNECTION_KEYS else []
        match kind:
            case None:
                places = [f"{alias}.{key}", *inherited]
            case "producer":
                places = [f"{self}.producer.override.{key}", f"{alias}.producer.{key}", *inherited]
            case _:
                places = [f"{self}.{side}.{kind}.{key}", f"{alias}.{kind}.{key}", *inherited, f"{self}.{kind}.{key}"]
        return self.config.located(error, places, missing=f"{alias}.{key}")


def mirrored(flows: Iterable[Flow]) -> tuple[Flow, ...]:
    """Return the flows that mirror records; others have only heartbeats."""
    return tuple(flow for flow in flows if flow.enabled)


def load(path: str | Path) -> MirrorMakerConfig:
    """Load a file. Raises ConfigError if it cannot be read, or if its clusters or flows are invalid."""
    return MirrorMakerConfig(load_properties(path))


def chosen_flows(file: str | Path, flow: str | None, *, mirroring: bool = True) -> list[Flow]:
    """Return the flows of a file, or the one named: those that mirror records, or all that have a worker. Raises
    ConfigError as :func:`load`, and if there is no such flow."""
    flows = load(file).flows_to_run()
    known = mirrored(flows) if mirroring else flows
    found = [one for one in known if flow in (None, str(one))]
    if not found:
        which = f" {flow}, but {' and '.join(map(str, known))}" if flow and known else ""
        raise ConfigError(f"{file} {'mirrors' if mirroring else 'has'} no flow{which}")
    return found


class MirrorMakerConfig:
    """The contents of an ``mm2.properties``. Raises ConfigError: no clusters, a flow of an undeclared cluster, an
    invalid security protocol, an unknown provider."""

    def __init__(self, properties: Properties) -> None:
        #: The file as written, with references.
        self.raw = properties
        try:
            #: Resolves the file's references.
            self.transformer = ConfigTransformer(properties)
            # Resolve only these keys, so that no secret is read before it is needed.
            top = self.transformer.transform({key: properties[key] for key in _TOP_LEVEL.settings if key in properties})
            values = _TOP_LEVEL.parse(top)
        except ConfigError as error:
            raise self.located(error, [error.key or ""]) from None
        if not values.strings("clusters"):
            raise ConfigError(
                "clusters is missing. Set it to the aliases of your clusters", "clusters", properties.file
            )
        #: Aliases, in the file's order.
        self.clusters: tuple[str, ...] = values.strings("clusters")
        #: Whether workers of several nodes can send each other requests.
        self.internal_rest: bool = values.boolean(_INTERNAL_REST)
        #: Whether users have the REST API of each flow.
        self.public_rest: bool = values.boolean(_PUBLIC_REST)
        self._warnings = values.warnings
        self._flags: dict[str, bool] = {}
        self._refuse_unknown_flows()

    @property
    def file(self) -> str | None:
        """The file's name as the user gave it."""
        return self.raw.file

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean, references resolved. Raises ConfigError if it is neither true nor false, because Java reads
        any word but true as false, ``yes`` too; and if its reference cannot be resolved."""
        if key not in self.raw:
            return default
        if key not in self._flags:
            # Once, as in Java: a changed file of secrets changes nothing that runs.
            try:
                value = self.resolved({key: self.raw[key]})[key].strip().lower()
            except ConfigError as error:
                raise self.located(error, [key]) from None
            if value not in ("true", "false"):
                raise self.raw.error(f"{key} is neither true nor false. Set it to true or false", key)
            self._flags[key] = value == "true"
        return self._flags[key]

    def flows(self, targets: Sequence[str] = ()) -> tuple[Flow, ...]:
        """Return every flow that Java would run a herder for, mirrored flows and those with heartbeats; only those to
        ``targets``, if any are given."""
        pairs = (Flow(self, source, target) for source in self.clusters for target in self.clusters if source != target)
        return tuple(flow for flow in pairs if flow.has_worker and (not targets or flow.target in targets))

    def flows_to_run(self, targets: Sequence[str] = ()) -> tuple[Flow, ...]:
        """Return the :meth:`flows` that a node runs workers for. Raises ConfigError if there is none, or if one of
        their clusters has no address."""
        flows = self.flows(targets)
        if not flows:
            raise self._no_flow(targets)
        for alias in dict.fromkeys(alias for flow in flows for alias in (flow.source, flow.target)):
            if "bootstrap.servers" not in self.cluster_properties(alias):
                key = f"{alias}.bootstrap.servers"
                raise ConfigError(f"{key} is missing. Set it to host:port of cluster {alias}", key, self.file)
        return flows

    def cluster_properties(self, alias: str) -> dict[str, str]:
        """Return a cluster's keys without their prefix, and the connection keys that each client inherits."""
        props = properties_with_prefix(self.raw, f"{alias}.")
        for holder in (dict(props), self.raw):
            for key in CONNECTION_KEYS:
                if key in holder:
                    for kind in _CLIENT_BEGINNINGS:
                        props.setdefault(f"{kind}.{key}", holder[key])
                    props.setdefault(key, holder[key])
        return props

    def client_properties(self, alias: str) -> dict[str, str]:
        """Return what a tool needs to connect to a cluster: top-level keys, overridden by the cluster's, resolved."""
        return self.resolved({**self.raw, **self.cluster_properties(alias)})

    def resolved(self, props: Mapping[str, str]) -> dict[str, str]:
        """Return ``props`` with references to config providers resolved."""
        # A cluster may declare providers for its worker: they belong to this file too.
        declared = {key: value for key, value in props.items() if key.startswith("config.providers")}
        return self.transformer.transform({key: props[key] for key in props if key not in declared}) | declared

    def top_level_properties(self) -> dict[str, str]:
        """Return what configures a node's REST server: the keys that belong to no cluster and no flow."""
        prefixes = tuple(f"{alias}{end}" for alias in self.clusters for end in (".", "->"))
        return self.resolved({key: value for key, value in self.raw.items() if not key.startswith(prefixes)})

    def key_notices(self) -> list[IgnoredKey]:
        """Return the :meth:`notices` that follow from keys alone, whether values are valid or not."""
        return notices(self.raw, self.clusters, public_rest=self.public_rest)

    def secret_variables(self) -> frozenset[str]:
        """Return the environment variables that the file refers to: no other process needs them."""
        return self.transformer.variables(self.raw)

    def notices(self) -> list[IgnoredKey]:
        """Return notices about what may not do what the user expects, each key once. Raises ConfigError if a setting of
        an enabled flow is refused."""
        of_flows = (warning for flow in self.flows() if flow.enabled for warning in flow.settings().warnings)
        forgiven = [
            IgnoredKey(text.partition(" ")[0], "forgiven", text) for text in dict.fromkeys([*self._warnings, *of_flows])
        ]
        return forgiven + self._circles() + self.key_notices()

    def _circles(self) -> list[IgnoredKey]:
        """Find flows in both directions whose names do not say where a topic came from (Java says nothing)."""
        enabled = {(flow.source, flow.target): flow for flow in mirrored(self.flows())}
        found = []
        for (source, target), flow in enabled.items():
            back = enabled.get((target, source))
            if back is None or source > target:
                continue
            names, back_names = flow.settings().names, back.settings().names
            if not (_sees_cycles(names, back_names) and _sees_cycles(back_names, names)):
                key = "replication.policy.class"
                text = (
                    f"{key}: topic names do not say where a topic came from, and {flow} and {back} are both enabled: a "
                    "topic that both select is copied back and forth without end. Make sure that their topics and "
                    "topics.exclude share no topic"
                )
                found.append(IgnoredKey(key, "risky", text))
        return found

    def located(self, error: ConfigError, places: Sequence[str], missing: str = "") -> ConfigError:
        """Return an error, which has the key without its prefix, with the file, the line of the first of ``places`` in
        it, and the key as written there; ``missing`` is the key to report if the file has none of them."""
        written, line = self.written(places, missing or error.key or "")
        message = error.message.replace(error.key, written, 1) if error.key else error.message
        return ConfigError(message, written or None, self.file, line)

    def written(self, places: Sequence[str], missing: str) -> tuple[str, int | None]:
        """Return the first of ``places`` that the file has, else ``missing``, and its line."""
        found = next((place for place in places if place in self.raw), missing)
        return found, self.raw.line(found)

    def _no_flow(self, targets: Sequence[str]) -> ConfigError:
        strangers = [alias for alias in targets if alias not in self.clusters]
        if strangers:
            return ConfigError(
                f"no cluster '{strangers[0]}' in clusters ({', '.join(self.clusters)}), so no flow leads there",
                "clusters",
                self.file,
            )
        first = self.clusters[0]
        target = targets[0] if targets else next((alias for alias in self.clusters if alias != first), "<target>")
        source = next((alias for alias in self.clusters if alias != target), "<source>")
        where = f" to {', '.join(targets)}" if targets else ""
        key = f"{source}->{target}.enabled"
        return ConfigError(f"no flow{where} is enabled. Set, for instance, {key} = true", key, self.file)

    def _refuse_unknown_flows(self) -> None:
        """Refuse keys of flows between undeclared clusters; Java drops them, and lists of topics, without a message."""
        cluster_prefixes = tuple(f"{alias}." for alias in self.clusters)
        for key, value in self.raw.items():
            if (value.startswith("->") or key.endswith("->")) and "." not in key:
                text = f"{key} {value.partition('=')[0].strip()}"
                flow = re.sub(r"\s*->\s*", "->", text)
                raise self.raw.error(f"a key ends at its first space, so '{text}' names no flow. Write {flow}", key)
            source, arrow, rest = key.partition("->")
            if not arrow or key.startswith(cluster_prefixes):
                continue
            # "us" and "us.west" may both be aliases; the longest match counts.
            target = max((alias for alias in self.clusters if rest.startswith(f"{alias}.")), key=len, default=None)
            stranger = source if source not in self.clusters else rest.partition(".")[0] if target is None else None
            if stranger is not None:
                known = ", ".join(self.clusters)
                raise self.raw.error(f"{key} names the cluster '{stranger}', which is not in clusters ({known})", key)
            if source == target:
                raise self.raw.error(f"{key} is a flow from {source} to itself", key)


def _sees_cycles(there: RemoteNames, back: RemoteNames) -> bool:
    return sees_cycles(there.policy, back.policy, there.source_alias, are_renamed=not there.are_the_policys)
