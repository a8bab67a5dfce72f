"""The type of the properties that configure plugins."""

from __future__ import annotations

from collections.abc import Mapping

#: Properties of a config: values by key, both strings.
Props = Mapping[str, str]
