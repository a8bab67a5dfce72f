"""Finds plugins by class name and version, and checks that the plugins of a worker's file exist.

* A plugin has three names: the class name, its last part, and that part without the plugin's kind (Kafka's ``Plugins``,
  ``DelegatingClassLoader`` and ``PluginUtils``).
* Versions and version ranges follow KIP-891 (Maven's ``VersionRange``).
* The check of a worker's file runs before anything is started.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from types import MappingProxyType
from typing import Any, Final, Literal, Self

from connect.api.plugins import PluginDescription, PluginKind, installed, override_policies
from connect.api.source import SourceConnector
from connect.core.config.client_settings import OverridePolicy, make_policy
from connect.core.config.config_def import ConfigDef, InvalidValue
from connect.core.config.connector_settings import SOURCE_CONNECTOR
from connect.core.config.validation import key_info
from connect.core.config.worker_config import WorkerConfig, meant
from connect.core.errors import ConfigError, PermanentError
from connect.core.herder_api import BadRequest, ConfigKeyInfo, NotFound, PluginInfo

_PART: Final = re.compile(r"\d+|[a-z]+")
#: Qualifiers that sort before a release; patches and unknown words sort after it.
_BEFORE: Final = (("alpha", "a"), ("beta", "b"), ("milestone", "m"), ("rc", "cr"), ("snapshot",))
_WORDS: Final = {word: place - len(_BEFORE) for place, words in enumerate(_BEFORE) for word in words}
_RELEASE: Final = frozenset({"ga", "final", "release"})
_SET: Final = re.compile(r"[\[(][^\])]*[\])]")


class InvalidRange(ValueError):
    """A malformed range; the text is Maven's."""


_Key = tuple[tuple[int, ...], tuple[tuple[int, int, str], ...]]


def version_key(version: str) -> _Key:
    """Return the sort key of a version: ``1.10`` is above ``1.9``, ``2.0`` equals ``2``, ``2.0-rc1`` is below it."""
    parts = [part for part in _PART.findall(version.lower()) if part not in _RELEASE]
    numbers = list(map(int, takewhile(str.isdigit, parts)))
    rest = parts[len(numbers) :]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    words = [(1, int(part), "") if part.isdigit() else (0, _WORDS.get(part, 1), part) for part in rest]
    # The release itself comes after the last word: above its candidates, below its patches.
    return tuple(numbers), (*words, (0, 0, ""))


@dataclass(frozen=True, slots=True)
class _Interval:
    low: _Key | None
    high: _Key | None
    with_low: bool
    with_high: bool

    def __contains__(self, key: _Key) -> bool:
        if self.low is not None and (key < self.low or (key == self.low and not self.with_low)):
            return False
        return self.high is None or key < self.high or (key == self.high and self.with_high)


@dataclass(frozen=True, slots=True)
class VersionRange:
    """One or several ranges; ``str`` formats them as Java does."""

    text: str
    _intervals: tuple[_Interval, ...]

    def newest(self, versions: Iterable[str]) -> str | None:
        """Return the highest of ``versions`` in the range; None if there is none."""
        fitting = [each for each in versions if any(version_key(each) in interval for interval in self._intervals)]
        return max(fitting, key=version_key, default=None)

    def __str__(self) -> str:
        return self.text


def parse_range(text: str) -> VersionRange | None:
    """Parse the range in a ``*.plugin.version``: ``[1.0,2.0)``, several with commas between, or a bare version, which
    matches only itself; None for the latest. Raises InvalidRange if it is malformed."""
    text = text.strip()
    if text in ("", "latest"):
        return None
    if text[0] not in "[(":
        text = f"[{text},{text}]"
    intervals: list[_Interval] = []
    rest = text
    while rest.startswith(("[", "(")):
        match = _SET.match(rest)
        if match is None:
            raise InvalidRange(f"Unbounded range: {text}")
        intervals.append(_interval(match.group()))
        rest = rest[match.end() :].strip().removeprefix(",").strip()
    if rest:
        raise InvalidRange(f"Only fully-qualified sets allowed in multiple set scenario: {text}")
    for before, after in pairwise(intervals):
        if before.high is None or after.low is None or after.low < before.high:
            raise InvalidRange(f"Ranges overlap: {text}")
    return VersionRange(text, tuple(intervals))


def _interval(text: str) -> _Interval:
    with_low, with_high = text[0] == "[", text[-1] == "]"
    low, comma, high = (each.strip() for each in text[1:-1].partition(","))
    if not comma:
        if not (with_low and with_high):
            raise InvalidRange(f"Single version must be surrounded by []: {text}")
        high = low
    lower, upper = (version_key(low) if low else None), (version_key(high) if high else None)
    empty = lower == upper and not (with_low and with_high)
    if lower is not None and upper is not None and (upper < lower or empty):
        raise InvalidRange(f"Range defies version ordering: {text}")
    return _Interval(lower, upper, with_low, with_high)


#: The interface of each kind, omitted from aliases and named in messages, in the order of ``GET /connector-plugins``.
INTERFACES: Final = {
    PluginKind.SINK: "Connector",
    PluginKind.SOURCE: "Connector",
    PluginKind.TRANSFORMATION: "Transformation",
    PluginKind.PREDICATE: "Predicate",
    PluginKind.CONVERTER: "Converter",
    PluginKind.HEADER_CONVERTER: "HeaderConverter",
}
_ORDER: Final = tuple(INTERFACES)
CONNECTORS: Final = (PluginKind.SOURCE, PluginKind.SINK)
#: The role of a converter: Java's ``converter.type``.
Role = Literal["key", "value", "header"]
#: The key, kind and role of each converter.
CONVERTERS: Final[tuple[tuple[str, PluginKind, Role], ...]] = (
    ("key.converter", PluginKind.CONVERTER, "key"),
    ("value.converter", PluginKind.CONVERTER, "value"),
    ("header.converter", PluginKind.HEADER_CONVERTER, "header"),
)
_READS_FILES: Final = {
    "org.apache.kafka.connect.file.FileStreamSourceConnector": "FileStreamSource reads any file that the worker can "
    "read, so it is off by default; set file.stream.source.enable = true in the worker's file"
}


class PluginNotFound(PermanentError):
    """There is no plugin of this name and kind."""


class VersionNotFound(PluginNotFound):
    """The plugin exists, but not in a requested version."""


class SinkRefused(PluginNotFound):
    """A sink connector, or a task of one, which a group with Java workers may assign to this worker."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is a sink connector, and this worker runs source connectors only. Run it in a group of Java's "
            "Kafka Connect workers."
        )


def simple_name(name: str) -> str:
    """Return the part after the last dot, and after the last ``$`` of a nested class."""
    return name.rpartition(".")[2].rpartition("$")[2]


def is_sink(name: str) -> bool:
    """Return whether a Java class that is not here is a sink connector, by its name."""
    return "Sink" in simple_name(name)


class Plugins:
    """All plugins of this process.

    Args:
        descriptions: Of two with the same name and version the first one counts.
        policies: Override policies in addition to Java's, by name.
        refused: Classes of ``descriptions`` that this worker refuses, each with the message that says why.
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
        self._runs: dict[tuple[str, str | None], bool] = {}

    @classmethod
    def discover(cls, extra: Iterable[PluginDescription] = (), *, may_read_files: bool = False) -> Self:
        """Collect installed packages' plugins by their entry points, and ``extra``. Log those that cannot be loaded.
        FileStreamSource is included only if connectors ``may_read_files``."""
        return cls([*extra, *installed()], override_policies(), {} if may_read_files else _READS_FILES)

    # finding and creating

    def full_name(self, name: str) -> str | None:
        """Return the class that ``name`` means, of any kind; None if there is none, or several."""
        return name if name in self._names else self._aliases.get(name)

    def find(self, kinds: Sequence[PluginKind], name: str, version: str | None = None) -> PluginDescription:
        """Return the newest plugin with a full or short name and one of ``kinds``: one kind, or both kinds of
        connectors. ``version`` is a range such as ``[1.0,2.0)``; a bare version matches only itself, None any. Raises
        PluginNotFound if there is none, VersionNotFound if none of its versions is in the range, and InvalidRange for a
        malformed range."""
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
        """Return a source connector. Raises SinkRefused for a sink connector; other errors as :meth:`find`."""
        try:
            found = self.find(CONNECTORS, name, version)
        except PluginNotFound as error:
            if is_sink(name) and not isinstance(error, VersionNotFound):
                raise SinkRefused(name) from None
            raise
        if found.kind is PluginKind.SINK:
            raise SinkRefused(found.name)
        return found

    def connector_type(self, name: str | None) -> str:
        """Return source, sink or unknown."""
        full_name = None if name is None else self.full_name(name.strip())
        kinds = {each.kind for each in self._all if each.name == full_name and each.kind in CONNECTORS}
        if kinds:
            return PluginKind.SOURCE.value if PluginKind.SOURCE in kinds else PluginKind.SINK.value
        return PluginKind.SINK.value if name is not None and is_sink(name) else "unknown"

    def runs(self, config: Mapping[str, str]) -> bool:
        """Return whether this worker has the connector class of a raw config, in a wanted version."""
        named = config.get("connector.class", ""), config.get("connector.plugin.version")
        if named not in self._runs:
            with suppress(PluginNotFound, InvalidRange):
                self.connector(*named)
                self._runs[named] = True
        return self._runs.setdefault(named, False)

    def new_connector(self, name: str, version: str | None = None) -> SourceConnector:
        """Create a connector without starting it; errors as :meth:`connector`."""
        made = self.connector(name, version).factory()
        assert isinstance(made, SourceConnector), name
        return made

    def new(self, kind: PluginKind, name: str, version: str | None = None) -> Any:
        """Create an unconfigured instance of the class of a kind, such as Converter; errors as :meth:`find`."""
        return self.find((kind,), name, version).factory()

    def override_policy(self, worker: WorkerConfig) -> OverridePolicy:
        """Return the policy that a worker's file names. Raises ConfigError if there is none."""
        return make_policy(worker.override_policy, worker.override_allowlist, self._policies)

    # REST

    def plugins(self, *, connectors_only: bool) -> Sequence[PluginInfo]:
        """Return the plugins as in ``GET /connector-plugins``."""
        return [
            PluginInfo(each.name, each.kind.value, each.version)
            for each in self._all
            if not connectors_only or each.kind in CONNECTORS
        ]

    def plugin_config(self, plugin: str, version: str | None = None) -> Sequence[ConfigKeyInfo]:
        """Return ``GET /connector-plugins/{plugin}/config``: the plugin's own settings, then the framework's. Raises
        NotFound if there is no such plugin, and BadRequest if it has no such version, or the version is malformed."""
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

    def names_of(self, kind: PluginKind) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.name for each in self._all if each.kind is kind))

    def versions_of(self, kinds: Sequence[PluginKind], name: str) -> tuple[str, ...]:
        """Return all versions of a class, newest last; empty if it is missing or of another kind."""
        full_name = self.full_name(name)
        return tuple(each.version for each in self._all if each.name == full_name and each.kind in kinds)

    def checked(self, kind: PluginKind, name: str, version: str | None) -> PluginDescription:
        """Call :meth:`find` for the check of a setting. Raises InvalidValue in Java's words."""
        try:
            return self.find((kind,), name, version)
        except (VersionNotFound, InvalidRange) as error:
            raise InvalidValue(str(error)) from None
        except PluginNotFound:
            raise InvalidValue(f"Class class {name} does not implement the {INTERFACES[kind]} interface") from None


def _framework(connector: PluginDescription) -> ConfigDef:
    """Return the framework's settings of a connector; the default version is the connector's own."""
    version = replace(SOURCE_CONNECTOR.settings["connector.plugin.version"], default=connector.version)
    return SOURCE_CONNECTOR | ConfigDef.of(version)


def _in_range(found: Sequence[PluginDescription], wanted: VersionRange | None) -> PluginDescription:
    """Return the newest version of a plugin in the range."""
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
    """Return the short names that mean exactly one class (Kafka's ``PluginUtils.computeAliases``)."""
    meant: dict[str, set[str]] = {}
    for each in descriptions:
        simple = simple_name(each.name)
        at = simple.rfind(INTERFACES[each.kind])
        for alias in (simple, simple[:at] if at > 0 else simple):
            meant.setdefault(alias, set()).add(each.name)
    return {alias: names.pop() for alias, names in meant.items() if len(names) == 1}


def check_worker(worker: WorkerConfig, plugins: Plugins) -> list[str]:
    """Raise ConfigError for a missing converter or override policy, or a wrong setting of a converter; return the
    :func:`unknown_keys` of the converters."""
    try:
        plugins.override_policy(worker)
        return [text for converter in CONVERTERS for text in _check_converter(worker, plugins, *converter)]
    except ConfigError as error:
        raise worker.located(error) from None


def _check_converter(worker: WorkerConfig, plugins: Plugins, key: str, kind: PluginKind, type_: str) -> Iterator[str]:
    version = f"{key}.plugin.version"
    name = worker.values.string(key)
    try:
        found = plugins.find((kind,), name, worker.props.get(version))
    except (VersionNotFound, InvalidRange) as error:
        raise ConfigError(str(error), version) from None
    except PluginNotFound:
        known = ", ".join(plugins.names_of(kind))
        raise ConfigError(
            f"Invalid value {name} for configuration {key}: Class {name} could not be found. It can be {known}", key
        ) from None
    try:
        found.config_def.parse({"converter.type": type_, **worker.with_prefix(f"{key}.")})
    except ConfigError as error:
        raise ConfigError(error.message, f"{key}.{error.key}") from None
    own = worker.with_prefix(f"{key}.")
    yield from unknown_keys(found, own, f"{key}.", ("plugin.version", "converter.type"))


def unknown_keys(found: PluginDescription, keys: Iterable[str], prefix: str, implied: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each of ``keys`` that a plugin does not declare and Connect does not use; it begins with
    ``prefix`` and the key."""
    declared, used = found.config_def.settings, frozenset(implied)
    is_kafkas = found.name.startswith("org.apache.kafka.")
    for key in keys:
        if key in declared or key in used or not (declared or is_kafkas):
            continue
        name, hint = found.name.rpartition(".")[2], meant(key, (*declared, *used), prefix)
        if is_kafkas:
            yield f"{prefix}{key} is not known to {name} and has no effect{hint}"
        else:
            yield f"{prefix}{key} is not a setting that {name} declares, so it may have no effect{hint}"
