"""What connectors may override of their clients' settings (``ConnectorClientConfigOverridePolicy``, KIP-458)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from connect.core.errors import ConfigError

_KEY: Final = "connector.client.config.override.policy"
_JAVA: Final = "org.apache.kafka.connect.connector.policy."
_SUFFIX: Final = "ConnectorClientConfigOverridePolicy"
_PRINCIPAL: Final = frozenset({"sasl.jaas.config", "sasl.mechanism", "security.protocol"})


@dataclass(frozen=True, slots=True)
class OverridePolicy:
    """A policy by name; ``allows`` is asked with a client's key, without ``producer.override.`` and its like."""

    name: str
    allows: Callable[[str], bool]

    def objection(self, key: str) -> str | None:
        """Java's sentence on a key that may not be overridden, None where it may."""
        if self.allows(key):
            return None
        return f"The '{self.name}' policy does not allow '{key}' to be overridden in the connector configuration."


_NONE: Final[Mapping[str, OverridePolicy]] = {}


def make_policy(
    name: str, allowlist: Sequence[str] = (), others: Mapping[str, OverridePolicy] = _NONE
) -> OverridePolicy:
    """The policy of that name: short (``None``), simple or full class name of Java's, or one of ``others``.

    Raises:
        ConfigError: There is none.
    """
    if name in others:
        return others[name]
    match name.removeprefix(_JAVA).removesuffix(_SUFFIX):
        case "All":
            return OverridePolicy("All", lambda key: True)
        case "None":
            return OverridePolicy("None", lambda key: False)
        case "Principal":
            return OverridePolicy("Principal", _PRINCIPAL.__contains__)
        case "Allowlist":
            return OverridePolicy("Allowlist", frozenset(allowlist).__contains__)
    raise ConfigError(
        f"{_KEY} is '{name}'; it can be {', '.join(('All', 'None', 'Principal', 'Allowlist', *others))}", _KEY
    )
