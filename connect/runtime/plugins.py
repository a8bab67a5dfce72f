"""Which plugins there are, and how they are found: by class name, by its end, and by that without its kind.

Kafka's ``Plugins``, ``DelegatingClassLoader`` and ``PluginUtils``; versions as KIP-891 asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, Self

from connect.api.plugins import PluginDescription, PluginKind
from connect.api.source import SourceConnector
from connect.core.alias_defs import AliasKind
from connect.core.config import ConfigDef, InvalidValue
from connect.core.config_infos import key_info
from connect.core.connector_defs import SOURCE_CONNECTOR
from connect.core.errors import PermanentError
from connect.core.herding import BadRequest, ConfigKeyInfo, NotFound, PluginInfo
from connect.core.overrides import OverridePolicy, make_policy
from connect.core.versions import InvalidRange, VersionRange, parse_range, version_key
from connect.core.worker_config import WorkerConfig
from connect.runtime.discovery import installed, override_policies

#: The kinds in the order in which ``GET /connector-plugins`` lists them.
_ORDER: Final = (
    PluginKind.SINK,
    PluginKind.SOURCE,
    PluginKind.TRANSFORMATION,
    PluginKind.PREDICATE,
    PluginKind.CONVERTER,
    PluginKind.HEADER_CONVERTER,
)
CONNECTORS: Final = (PluginKind.SOURCE, PluginKind.SINK)
_READS_FILES: Final = {
    "org.apache.kafka.connect.file.FileStreamSourceConnector": "FileStreamSource reads any file that the worker can "
    "read, so it is off by default; set file.stream.source.enable = true in the worker's file"
}
#: The interface behind a kind: the word that an alias may leave out, and that messages name.
INTERFACES: Final = {
    PluginKind.SINK: "Connector",
    PluginKind.SOURCE: "Connector",
    PluginKind.TRANSFORMATION: "Transformation",
    PluginKind.PREDICATE: "Predicate",
    PluginKind.CONVERTER: "Converter",
    PluginKind.HEADER_CONVERTER: "HeaderConverter",
}


class PluginNotFound(PermanentError):
    """No plugin of that name and kind."""


class VersionNotFound(PluginNotFound):
    """The plugin is there, in no version that was asked for."""


class SinkRefused(PluginNotFound):
    """A sink connector, or a task of one, which a group with workers of Java may hand to us."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is a sink connector, and this worker runs source connectors only; run it on a group of Java's "
            "Kafka Connect workers"
        )


def simple_name(name: str) -> str:
    """What stands behind the last dot, and the last ``$`` of a class within a class."""
    return name.rpartition(".")[2].rpartition("$")[2]


def is_sink(name: str) -> bool:
    """Whether a class of Java that is not here is a sink's, by its name."""
    return "Sink" in simple_name(name)


class Plugins:
    """All plugins of this process.

    Args:
        descriptions: Of two by the same name and version the first one counts.
        policies: Override policies beside Java's, by name.
        refused: Classes of ``descriptions`` that this worker does not have, each with the sentence that says why.
    """

    def __init__(
        self,
        descriptions: Iterable[PluginDescription],
        policies: Mapping[str, OverridePolicy] = MappingProxyType({}),
        refused: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._policies = policies
        unique = {(each.kind, each.name, each.version): each for each in reversed(list(descriptions))}
        aliases = _aliases(each for each in unique.values() if each.name in refused)
        self._refused = {**refused, **{alias: refused[name] for alias, name in aliases.items()}}
        unique = {key: each for key, each in unique.items() if each.name not in refused}
        self._all = sorted(
            unique.values(), key=lambda each: (_ORDER.index(each.kind), each.name, version_key(each.version))
        )
        self._names = {each.name for each in self._all}
        self._aliases = _aliases(self._all)

    @classmethod
    def discover(cls, extra: Iterable[PluginDescription] = (), *, may_read_files: bool = False) -> Self:
        """Those of installed packages by their entry points, and ``extra``. One that cannot be loaded is logged.
        FileStreamSource is among them if connectors ``may_read_files``."""
        return cls([*extra, *installed()], override_policies(), {} if may_read_files else _READS_FILES)

    # finding and making

    def full_name(self, name: str) -> str | None:
        """The class that ``name`` means, of whatever kind; None where there is none, or more than one."""
        return name if name in self._names else self._aliases.get(name)

    def find(self, kinds: Sequence[PluginKind], name: str, version: str | None = None) -> PluginDescription:
        """The newest plugin of that name and one of these kinds.

        Args:
            kinds: One is enough for all but connectors.
            name: Full or short.
            version: A range such as ``[1.0,2.0)``; a bare one means itself alone, None any.

        Raises:
            PluginNotFound: There is none.
            VersionNotFound: None of its versions is in the range.
            InvalidRange: The range is malformed.
        """
        wanted = None if version is None else parse_range(version)
        full_name = self.full_name(name.strip())
        found = [each for each in self._all if each.name == full_name and each.kind in kinds]
        if not found:
            if name.strip() in self._refused:
                raise PluginNotFound(self._refused[name.strip()])
            interface = INTERFACES[kinds[0]]
            known = ", ".join(each.name for each in self._all if each.kind in kinds)
            raise PluginNotFound(
                f"Failed to find any class that implements {interface} and which name matches {name}, available "
                f"{interface.lower()}s are: {known}"
            )
        return _in_range(found, wanted)

    def connector(self, name: str, version: str | None = None) -> PluginDescription:
        """A source connector.

        Raises:
            SinkRefused: It is a sink.
            PluginNotFound: There is none, see :meth:`find`.
        """
        try:
            found = self.find(CONNECTORS, name, version)
        except VersionNotFound:
            raise
        except PluginNotFound:
            if is_sink(name):
                raise SinkRefused(name) from None
            raise
        if found.kind is PluginKind.SINK:
            raise SinkRefused(found.name)
        return found

    def connector_type(self, name: str | None) -> str:
        """source, sink or unknown."""
        full_name = None if name is None else self.full_name(name.strip())
        kinds = {each.kind for each in self._all if each.name == full_name and each.kind in CONNECTORS}
        if kinds:
            return PluginKind.SOURCE.value if PluginKind.SOURCE in kinds else PluginKind.SINK.value
        return PluginKind.SINK.value if name is not None and is_sink(name) else "unknown"

    def new_connector(self, name: str, version: str | None = None) -> SourceConnector:
        """An instance that was not started; raises as :meth:`connector`."""
        made = self.connector(name, version).factory()
        assert isinstance(made, SourceConnector), name
        return made

    def new(self, kind: PluginKind, name: str, version: str | None = None) -> Any:
        """Return an instance of the class behind a kind, such as Converter, that was not configured; raises as
        :meth:`find`."""
        return self.find((kind,), name, version).factory()

    def override_policy(self, worker: WorkerConfig) -> OverridePolicy:
        """The policy that a worker's file names. Raises ConfigError where there is none."""
        return make_policy(worker.override_policy, worker.override_allowlist, self._policies)

    # REST

    def plugins(self, *, connectors_only: bool) -> Sequence[PluginInfo]:
        """As ``GET /connector-plugins`` lists them."""
        return [
            PluginInfo(each.name, each.kind.value, each.version)
            for each in self._all
            if not connectors_only or each.kind in CONNECTORS
        ]

    def plugin_config(self, plugin: str, version: str | None = None) -> Sequence[ConfigKeyInfo]:
        """As ``GET /connector-plugins/{plugin}/config`` shows it: the plugin's own settings, then the framework's.

        Raises:
            NotFound: No such plugin.
            BadRequest: No such version of it, or no version at all.
        """
        full_name = self.full_name(plugin)
        found = [each for each in self._all if each.name == full_name]
        if not found:
            raise NotFound(f"Unknown plugin {plugin}.")
        try:
            chosen = _in_range(found, None if version is None else parse_range(version))
        except VersionNotFound as error:
            raise BadRequest(str(error)) from None
        except InvalidRange:
            raise BadRequest(f"Invalid version specification: {version}") from None
        base = _framework(chosen) if chosen.kind in CONNECTORS else ConfigDef()
        own = chosen.config_def.settings
        framework = (each for key, each in base.settings.items() if key not in own)
        return [key_info(each) for each in (*own.values(), *framework)]

    # what connector configs name by alias (connect.core.alias_defs.Definitions)

    def definition(self, kind: AliasKind, name: str, version: str | None) -> ConfigDef:
        return self.checked(PluginKind(kind), name, version).config_def

    def names(self, kind: AliasKind) -> Sequence[str]:
        return self.names_of(PluginKind(kind))

    def versions(self, kind: AliasKind, name: str) -> Sequence[str]:
        return self.versions_of((PluginKind(kind),), name)

    def names_of(self, kind: PluginKind) -> tuple[str, ...]:
        """All classes of a kind."""
        return tuple(dict.fromkeys(each.name for each in self._all if each.kind is kind))

    def versions_of(self, kinds: Sequence[PluginKind], name: str) -> tuple[str, ...]:
        """All versions of a class, the newest last; none where it is not there, or of another kind."""
        full_name = self.full_name(name)
        return tuple(each.version for each in self._all if each.name == full_name and each.kind in kinds)

    def checked(self, kind: PluginKind, name: str, version: str | None) -> PluginDescription:
        """:meth:`find` for the check of a setting.

        Raises:
            InvalidValue: With Java's words, ``name`` is of another kind, or of no such version.
        """
        try:
            return self.find((kind,), name, version)
        except VersionNotFound as error:
            raise InvalidValue(str(error)) from None
        except PluginNotFound:
            raise InvalidValue(f"Class class {name} does not implement the {INTERFACES[kind]} interface") from None
        except InvalidRange as error:
            raise InvalidValue(str(error)) from None


def _framework(connector: PluginDescription) -> ConfigDef:
    """The framework's settings of a connector; its own version is the default of the one that may be asked for."""
    version = replace(SOURCE_CONNECTOR.settings["connector.plugin.version"], default=connector.version)
    return SOURCE_CONNECTOR | ConfigDef.of(version)


def _in_range(found: Sequence[PluginDescription], wanted: VersionRange | None) -> PluginDescription:
    """The newest of several versions of a plugin."""
    if wanted is None:
        return found[-1]
    newest = wanted.newest(each.version for each in found)
    if newest is None:
        available = ", ".join(each.version for each in found)
        raise VersionNotFound(
            f"Plugin {found[0].name} not found that matches the version range {wanted}, available versions: "
            f"[{available}]"
        )
    return next(each for each in found if each.version == newest)


def _aliases(descriptions: Iterable[PluginDescription]) -> dict[str, str]:
    """Short names that mean one class (Kafka's ``PluginUtils.computeAliases``)."""
    meant: dict[str, set[str]] = {}
    for each in descriptions:
        simple = simple_name(each.name)
        at = simple.rfind(INTERFACES[each.kind])
        for alias in (simple, simple[:at] if at > 0 else simple):
            meant.setdefault(alias, set()).add(each.name)
    return {alias: names.pop() for alias, names in meant.items() if len(names) == 1}
