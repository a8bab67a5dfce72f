"""Validates a connector's config before it is stored, including its client overrides.

The rules are Kafka's ``AbstractHerder.validateConnectorConfig``. Overrides such as ``producer.override.*`` are checked
key by key against the worker's policy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from connect.api.plugins import PluginDescription, PluginKind
from connect.api.source import ExactlyOnceSupport, SourceConnector, TransactionBoundaries
from connect.core.config import connector_settings
from connect.core.config.client_settings import CLIENTS, OverridePolicy
from connect.core.config.config_def import (
    REQUIRED,
    ConfigDef,
    ConfigValue,
    Importance,
    InvalidValue,
    PluginClass,
    Value,
    Width,
    class_name,
    convert,
    flag,
    split_list,
    text,
)
from connect.core.config.connector_access import NotAllowed
from connect.core.config.properties import ConfigTransformer
from connect.core.config.security_settings import HIDDEN, hidden, is_secret
from connect.core.config.validation import Valid, key_info, valid, value_info
from connect.core.config.worker_config import ClientKind, WorkerConfig
from connect.core.errors import ConfigError, HeliographError
from connect.core.herder_api import BadRequest, Config, ConfigInfo, ConfigInfos, ConfigInfosWithWarnings
from connect.kafka.threads import PluginThread
from connect.runtime.plugins.ineffective_plugin_keys import warnings_of
from connect.runtime.plugins.plugin_errors import SecretMask, has_reference, masked, passwords, plugin_call, secrets_of
from connect.runtime.plugins.plugin_registry import (
    CONNECTORS,
    CONVERTERS,
    InvalidRange,
    PluginNotFound,
    Plugins,
    SinkRefused,
    VersionNotFound,
    parse_range,
)


def client_overrides(kind: ClientKind, props: Mapping[str, str], policy: OverridePolicy) -> ConfigInfos:
    """Check each override against the policy (Kafka's ``AbstractHerder.validateClientOverrides``). Raises ConfigError
    if a value has the wrong type for its key."""
    declared = CLIENTS[kind]
    prefix = f"{kind}.override."
    infos: list[ConfigInfo] = []
    groups: list[str] = []
    for key, written in props.items():
        if not key.startswith(prefix):
            continue
        name = key.removeprefix(prefix)
        setting = declared.settings.get(name)
        objection = policy.objection(name)
        found = written if setting is None else _converted(name, written, kind)
        value = ConfigValue(name, found, () if objection is None else (objection,))
        infos.append(ConfigInfo(None if setting is None else key_info(setting, prefix), value_info(value, prefix)))
        if setting is not None and setting.group is not None:
            groups.append(setting.group)
    return ConfigInfos("", sum(1 for each in infos if each.value.errors), tuple(dict.fromkeys(groups)), tuple(infos))


def _converted(name: str, text: str, kind: ClientKind) -> Value:
    try:
        return convert(name, text, CLIENTS[kind].settings[name].type)
    except InvalidValue as error:
        raise ConfigError(str(error), f"{kind}.override.{name}") from None


log = logging.getLogger(__name__)

_CLASS: Final = "connector.class"
_VERSION: Final = "connector.plugin.version"
#: In the order of validation.
_CONVERTERS: Final = (CONVERTERS[2], *CONVERTERS[:2])
#: A resolved config without nulls.
_Props = dict[str, str]
_Values = dict[str, ConfigValue]


async def validate_connector(
    config: Config, plugins: Plugins, worker: WorkerConfig, transformer: ConfigTransformer
) -> ConfigInfos:
    """Return all errors of a config by key; neither the result nor an exception contains a secret. Raises BadRequest if
    the class is missing or unknown, ConfigError if a provider cannot resolve a reference, or an override has the wrong
    type (500), and RetriableError or PermanentError if the connector's own validation failed."""
    raw = {key: value for key, value in config.items() if value is not None}
    nulls = [key for key, value in config.items() if value is None]
    if _CLASS not in raw:
        raise BadRequest(f"Connector config {{{', '.join(_shown(config))}}} contains no connector type")
    try:
        props = transformer.connector_props(raw)
    except NotAllowed as error:
        raise BadRequest(str(error)) from None
    secrets = secrets_of(transformer, raw).with_more(passwords(ConfigDef(), props))
    try:
        plugin, refusals = _plugin(plugins, props)
        if plugin is None:
            found = _only_framework(props, nulls, plugins, refusals)
        else:
            secrets = secrets.with_more(passwords(plugin.config_def, props))
            with plugin_call(f"the validation of {props[_CLASS]}"):
                found = await _outcome(plugin, props, nulls, plugins, worker)
    except Exception as error:
        if not isinstance(error, HeliographError):
            log.error("could not validate a config of %s\n%s", secrets.mask(props[_CLASS]), secrets.trace(error))
        raise masked(error, secrets) from None
    return replace(found, configs=tuple(_drawn(each, raw, props, secrets) for each in found.configs))


def error_message(infos: ConfigInfos) -> str:
    """Return the text of the 400 for a config with errors."""
    lines = [f"Connector configuration is invalid and contains the following {infos.error_count} error(s):"]
    lines += (error for each in infos.configs for error in each.value.errors)
    lines.append(
        "You can also find the above list of errors at the endpoint "
        "`/connector-plugins/{connectorType}/config/validate`"
    )
    return "\n".join(lines)


def _plugin(plugins: Plugins, props: _Props) -> tuple[PluginDescription | None, dict[str, str]]:
    """Return the connector's plugin, or the errors of the keys that name one that does not run here. Raises BadRequest
    if there is none."""
    try:
        return plugins.connector(props[_CLASS], props.get(_VERSION)), {}
    except SinkRefused as error:
        return None, {_CLASS: str(error)}
    except VersionNotFound as error:
        return None, {_CLASS: str(error), _VERSION: str(error)}
    except (PluginNotFound, InvalidRange) as error:
        raise BadRequest(str(error)) from None


async def _outcome(
    plugin: PluginDescription, props: _Props, nulls: list[str], plugins: Plugins, worker: WorkerConfig
) -> ConfigInfos:
    name, connector = props[_CLASS], plugin.factory()
    assert isinstance(connector, SourceConnector), name
    given = {**props, **dict.fromkeys(nulls)}
    framework = enrich(_with_plugins(connector_settings.SOURCE_CONNECTOR, name, props, plugins, worker), given, plugins)
    values = framework.validate(given)
    for key, wanted, errors in (
        ("exactly.once.support", "required", _exactly_once_errors(props, connector, worker)),
        ("transaction.boundary", "connector", _boundary_errors(props, connector)),
    ):
        if not values[key].errors and str(values[key].value).lower() == wanted:
            values[key] = values[key].with_error(*errors)
    own = _with_versions_shown(plugin.config_def, props, plugins)
    async with PluginThread(f"validation of {name}") as thread:
        own_values = await thread.call(connector.validate, props, own.validate(given))
    converters = [_converter(props, values, plugins, *each) for each in _CONVERTERS]
    # As in Java, the connector's result for a key replaces the framework's.
    merged = _with_nulls({**values, **own_values}, nulls)
    parts = [_infos(name, framework | own, merged), *_overrides(props, plugins, worker), *converters]
    infos = (
        name,
        sum(each.error_count for each in parts),
        tuple(dict.fromkeys(group for each in parts for group in each.groups)),
        tuple(info for each in parts for info in each.configs),
    )
    warnings = warnings_of(plugin, connector, props, {**framework.settings, **own.settings}, plugins, worker)
    return ConfigInfosWithWarnings(*infos, warnings) if warnings else ConfigInfos(*infos)


def _only_framework(props: _Props, nulls: list[str], plugins: Plugins, errors: Mapping[str, str]) -> ConfigInfos:
    """Return the outcome without a connector's own validation."""
    config = _with_versions_shown(connector_settings.CONNECTOR, props, plugins)
    found = config.validate({**props, **dict.fromkeys(nulls)})
    found |= {key: found[key].with_error(error) for key, error in errors.items()}
    return _infos(props[_CLASS], config, _with_nulls(found, nulls))


def _with_nulls(values: _Values, nulls: Iterable[str]) -> _Values:
    error = "Null value can not be supplied as the configuration value."
    return values | {key: values.get(key, ConfigValue(key, None)).with_error(error) for key in nulls}


def _infos(name: str, config: ConfigDef, values: _Values) -> ConfigInfos:
    """Return unknown keys first, then all declared ones (``AbstractHerder.generateResult``)."""
    unknown = [ConfigInfo(None, value_info(value)) for key, value in values.items() if key not in config]
    known = [
        ConfigInfo(key_info(setting), value_info(values.get(key, ConfigValue(key, None))))
        for key, setting in config.settings.items()
    ]
    count = sum(len(value.errors) for value in values.values())
    return ConfigInfos(name, count, config.groups(), (*unknown, *known))


# checks across several values


def _with_plugins(base: ConfigDef, name: str, props: _Props, plugins: Plugins, worker: WorkerConfig) -> ConfigDef:
    """Return ``base`` with the installed plugins as checks, recommended values and defaults, a converter's default
    being the worker's (Kafka's ``ConnectorConfig.enrichedConfigDef``)."""
    found = dict(base.settings)
    versions = plugins.versions_of(CONNECTORS, name)
    found[_VERSION] = replace(found[_VERSION], default=versions[-1], check=_range, recommended=versions)
    for key, kind, _ in _CONVERTERS:
        of_worker = worker.values.string(key)
        found[key] = replace(
            found[key],
            default=plugins.full_name(of_worker) or of_worker,
            check=PluginClass(plugins.full_name, _of_kind(plugins, kind)),
            recommended=plugins.names_of(kind),
        )
        named = props.get(key, of_worker)
        versions = plugins.versions_of((kind,), named)
        newest = versions[-1] if versions else None
        wanted = None if key in props else worker.props.get(f"{key}.plugin.version")
        version = found[f"{key}.plugin.version"]
        found[version.name] = replace(
            version,
            default=wanted or newest,
            check=_range,
            recommended=versions,
            visible=plugins.full_name(named) is not None,
        )
    return ConfigDef(found)


def _with_versions_shown(own: ConfigDef, props: _Props, plugins: Plugins) -> ConfigDef:
    """Make a converter's version visible if the config names the converter (Kafka's
    ``ConverterPluginVersionRecommender``); for keys that the connector declares itself only its own config counts."""
    shown = {
        f"{key}.plugin.version": replace(own.settings[f"{key}.plugin.version"], visible=True)
        for key, _, _ in _CONVERTERS
        if f"{key}.plugin.version" in own and key in props and plugins.full_name(props[key]) is not None
    }
    return ConfigDef({**own.settings, **shown})


def _of_kind(plugins: Plugins, kind: PluginKind) -> Valid:
    def check(name: str, value: Value) -> None:
        if isinstance(value, str):
            plugins.checked(kind, value, None)

    return Valid("", check)


@valid("")
def _range(name: str, value: Value) -> None:
    try:
        parse_range(value if isinstance(value, str) else "latest")
    except InvalidRange as error:
        raise InvalidValue(str(error)) from None


def _exactly_once_errors(props: _Props, connector: SourceConnector, worker: WorkerConfig) -> Iterator[str]:
    """Check as Kafka's ``DistributedHerder.validateSourceConnectorExactlyOnceSupport``."""
    if not worker.exactly_once_enabled:
        yield "This worker does not have exactly-once source support enabled."
    match _answer(lambda: connector.exactly_once_support(props)):
        case ExactlyOnceSupport.SUPPORTED:
            pass
        case ExactlyOnceSupport.UNSUPPORTED:
            yield "The connector does not support exactly-once semantics with the provided configuration."
        case str(failure):
            yield failure
        case _:
            yield (
                "The connector does not implement the API required for preflight validation of exactly-once source "
                "support. Please consult the documentation for the connector to determine whether it supports "
                'exactly-once semantics, and then consider reconfiguring the connector to use the value "requested" '
                "for this property (which will disable this preflight check and allow the connector to be created)."
            )


def _boundary_errors(props: _Props, connector: SourceConnector) -> Iterator[str]:
    """Check as Kafka's ``DistributedHerder.validateSourceConnectorTransactionBoundary``."""
    match _answer(lambda: connector.can_define_transaction_boundaries(props)):
        case TransactionBoundaries.SUPPORTED:
            pass
        case str(failure):
            yield failure
        case _:
            yield (
                "The connector does not support connector-defined transaction boundaries with the given "
                "configuration. Please reconfigure it to use a different transaction boundary definition."
            )


def _answer(ask: Callable[[], object]) -> object:
    """Return a connector's answer, or its exception as a sentence, because its bug must not fail the validation."""
    try:
        return ask()
    except Exception as error:
        return f"An unexpected error occurred during validation: {error}"


# transforms and predicates, which configs name by alias


@dataclass(frozen=True, slots=True)
class _Aliases:
    kind: PluginKind
    key: str
    group: str
    interface: str
    implicit: ConfigDef


_TRANSFORMS: Final = _Aliases(
    PluginKind.TRANSFORMATION,
    "transforms",
    connector_settings.TRANSFORMS_GROUP,
    "Transformation",
    ConfigDef.of(
        text("predicate", None, "Alias of the predicate that selects the records to transform.", Importance.MEDIUM),
        flag("negate", False, "Negate the predicate.", Importance.MEDIUM),
    ),
)
_PREDICATES: Final = _Aliases(
    PluginKind.PREDICATE, "predicates", connector_settings.PREDICATES_GROUP, "Predicate", ConfigDef()
)


def _type_check(aliases: _Aliases, alias: str, props: Mapping[str, str | None], plugins: Plugins) -> Valid:
    """Return the check of ``<alias>.type`` in Java's ``EnrichablePlugin``."""

    def check(name: str, value: Value) -> None:
        prefix = f"{aliases.key}.{alias}."
        negate, predicate = f"{prefix}negate", f"{prefix}predicate"
        if aliases is _TRANSFORMS and negate in props and predicate not in props:
            raise InvalidValue(
                f"Config '{negate}' was provided but there is no config '{predicate}' defining a predicate to be "
                "negated."
            )
        if isinstance(value, str):
            plugins.checked(aliases.kind, value, props.get(f"{prefix}plugin.version"))

    return Valid(f"valid configs for {alias} {aliases.interface.lower()}", check)


def _version_check(kind: PluginKind, plugin: str | None, plugins: Plugins) -> Valid:
    """Return the check that a class is available in the requested version; :func:`_type_check` reports a missing
    class."""

    def check(name: str, value: Value) -> None:
        if isinstance(value, str) and plugin is not None and plugins.versions_of((kind,), plugin):
            plugins.checked(kind, plugin, value)

    return Valid("a version, or a range of versions", check)


def enrich(base: ConfigDef, props: Mapping[str, str | None], plugins: Plugins) -> ConfigDef:
    """Return ``base`` with the configs that the aliases in ``props`` add (Kafka's ``ConnectorConfig.enrich``)."""
    for aliases in (_TRANSFORMS, _PREDICATES):
        for alias in dict.fromkeys(split_list(props.get(aliases.key) or "")):
            base |= _of_alias(aliases, alias, props, plugins)
    return base


def _of_alias(aliases: _Aliases, alias: str, props: Mapping[str, str | None], plugins: Plugins) -> ConfigDef:
    prefix, group = f"{aliases.key}.{alias}.", f"{aliases.group}: {alias}"
    kind = aliases.interface.lower()

    name = props.get(f"{prefix}type")
    full_name = None if name is None else plugins.full_name(name.strip())
    versions = plugins.versions_of((aliases.kind,), full_name) if full_name is not None else ()
    type_ = class_name(
        f"{prefix}type",
        REQUIRED,
        f"Class for the '{alias}' {kind}.",
        Importance.HIGH,
        PluginClass(plugins.full_name, _type_check(aliases, alias, props, plugins)),
    ).under(group, 0, f"{aliases.interface} type for {alias}", Width.LONG)
    version = text(
        f"{prefix}plugin.version",
        versions[-1] if versions else None,
        f"Version of the '{alias}' {kind}.",
        Importance.HIGH,
        _version_check(aliases.kind, full_name, plugins),
    ).under(group, 1, f"{aliases.interface} version for {alias}", Width.LONG)
    found = ConfigDef.of(
        replace(type_, recommended=plugins.names_of(aliases.kind)), replace(version, recommended=versions)
    )
    if full_name is None:
        return found
    try:
        own = plugins.checked(aliases.kind, full_name, props.get(version.name)).config_def
    except InvalidValue:
        return found
    return found | (own | aliases.implicit).embedded(prefix, group, 2)


# converters and overrides


def _converter(props: _Props, values: _Values, plugins: Plugins, key: str, kind: PluginKind, type_: str) -> ConfigInfos:
    """Validate the settings of a converter that the connector names itself."""
    name = props.get(key)
    if name is None or values[key].errors:
        return ConfigInfos("", 0, (), ())
    prefix = f"{key}."
    own = {each[len(prefix) :]: value for each, value in props.items() if each.startswith(prefix)}
    try:
        config = plugins.find((kind,), name, props.get(f"{key}.plugin.version")).config_def
    except VersionNotFound:
        # As in Java: the task will report it.
        return ConfigInfos("", 0, (), ())
    outcome = config.validate({"converter.type": type_, **own})
    infos = tuple(
        ConfigInfo(key_info(config.settings[each.name], prefix), value_info(each, prefix)) for each in outcome.values()
    )
    return ConfigInfos("", sum(1 for each in outcome.values() if each.errors), config.groups(), infos)


def _overrides(props: _Props, plugins: Plugins, worker: WorkerConfig) -> list[ConfigInfos]:
    """Check the overrides of all clients that the connector uses against the policy."""
    own_offsets = worker.exactly_once_enabled or bool(props.get("offsets.storage.topic", "").strip())
    used: dict[ClientKind, bool] = {
        "producer": True,
        "admin": connector_settings.uses_topic_creation(props) or own_offsets,
        "consumer": own_offsets,
    }
    policy = plugins.override_policy(worker)
    return [client_overrides(kind, props, policy) for kind, is_used in used.items() if is_used]


# masking


def _drawn(info: ConfigInfo, raw: Mapping[str, str], props: _Props, secrets: SecretMask) -> ConfigInfo:
    """Show a value as written, without what its references resolve to."""
    value = info.value
    written, resolved = raw.get(value.name), props.get(value.name)
    errors = tuple(map(secrets.mask, value.errors))
    if written is None or not has_reference(written) or written == resolved:
        return replace(info, value=replace(value, errors=errors))
    if resolved:
        errors = tuple(secrets.mask(each.replace(resolved, written)) for each in value.errors)
    shown = value.value if value.value in (None, "[hidden]") else written
    return replace(info, value=replace(value, value=shown, errors=errors))


def _shown(config: Config) -> Iterable[str]:
    """Format a config for a message, without values that may be secret."""
    for key, value in config.items():
        yield f"{key}={HIDDEN if is_secret(key) else value}"


def without_secrets(config: Mapping[str, str], connector: Mapping[str, str], plugins: Plugins) -> dict[str, str]:
    """Return a config as written, with its secrets hidden. ``connector``: the config of the connector to which it, or
    the task that it configures, belongs."""
    props = {_CLASS: "", **connector}
    own = ConfigDef()
    try:
        own = plugins.connector(props[_CLASS], props.get(_VERSION)).config_def
    except (PluginNotFound, InvalidRange):
        log.debug("a connector class is not known here")
    try:
        own |= enrich(ConfigDef(), props, plugins)
    except InvalidValue:
        log.debug("a transform or predicate is not known here")
    return hidden(config, own)
