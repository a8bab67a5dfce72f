"""Interfaces for authors of plugins: connectors, converters, transforms, predicates, policies, filters, handlers.

A plugin declares its settings with the names here.
"""

from connect.core.config.config_def import REQUIRED, ConfigDef, Setting, Type

__all__ = ["REQUIRED", "ConfigDef", "Setting", "Type"]
