"""The type of the properties that configure plugins, and the names with which a plugin declares its settings."""

from __future__ import annotations

from collections.abc import Mapping

from connect.core.config.config_def import REQUIRED, ConfigDef, Setting, Type

__all__ = ["REQUIRED", "ConfigDef", "Props", "Setting", "Type"]

#: Properties of a config: values by key, both strings.
Props = Mapping[str, str]
