"""Settings and their values as REST shows them (Kafka's ``AbstractHerder.convertConfigKey`` and its kin)."""

from __future__ import annotations

from connect.core.config import ConfigValue, Required, Setting, Value
from connect.core.herding import ConfigKeyInfo, ConfigValueInfo


def key_info(setting: Setting, prefix: str = "") -> ConfigKeyInfo:
    """A setting's definition; ``prefix`` stands before its key."""
    required = isinstance(setting.default, Required)
    return ConfigKeyInfo(
        name=prefix + setting.name,
        type=setting.type.name,
        required=required,
        default_value=None if isinstance(setting.default, Required) else text_of(setting.default),
        importance=setting.importance.name,
        documentation=setting.doc,
        group=setting.group,
        order_in_group=setting.order,
        width=setting.width.name,
        display_name=setting.display_name or setting.name,
        dependents=setting.dependents,
    )


def value_info(value: ConfigValue, prefix: str = "") -> ConfigValueInfo:
    """The outcome of validating a setting."""
    return ConfigValueInfo(prefix + value.name, text_of(value.value), value.recommended, value.errors, value.visible)


def text_of(value: Value) -> str | None:
    """A value as REST shows it (``ConfigDef.convertToString``)."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(value)
        case _:
            return str(value)
