"""What all plugins are configured by."""

from __future__ import annotations

from collections.abc import Mapping

#: Properties as they stand in a config: texts by key.
Props = Mapping[str, str]
