"""``producer.override.*`` and its kin, checked key by key against the worker's policy."""

from __future__ import annotations

from collections.abc import Mapping

from connect.core.client_defs import CLIENTS
from connect.core.config import ConfigValue, InvalidValue, Value, convert
from connect.core.config_infos import key_info, value_info
from connect.core.errors import ConfigError
from connect.core.herding import ConfigInfo, ConfigInfos
from connect.core.overrides import OverridePolicy
from connect.core.worker_config import ClientKind


def client_overrides(kind: ClientKind, props: Mapping[str, str], policy: OverridePolicy) -> ConfigInfos:
    """What the policy says of each override (Kafka's ``AbstractHerder.validateClientOverrides``).

    Raises:
        ConfigError: A value is not of its key's type.
    """
    declared = CLIENTS[kind]
    prefix = f"{kind}.override."
    infos: list[ConfigInfo] = []
    groups: list[str] = []
    for key, text in props.items():
        if not key.startswith(prefix):
            continue
        name = key.removeprefix(prefix)
        setting = declared.settings.get(name)
        objection = policy.objection(name)
        found = text if setting is None else _converted(name, text, kind)
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
