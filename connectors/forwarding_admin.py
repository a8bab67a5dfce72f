"""``forwarding.admin.class`` (KIP-787): a class through which a mirror changes topics and ACLs, instead of at the
cluster itself.

A package provides one through an entry point of ``heliograph.forwarding_admins``. The entry point refers to a callable,
usually a subclass of :class:`~connect.kafka.log.topic_admin.Admin`, that takes the connector's whole config with
references resolved, the settings of the connection, and the alias of the cluster. It overrides ``create_topics``,
``create_partitions``, ``alter_topic_configs``, ``delete_topics``, ``create_acls`` or ``delete_acls``; what it does not
override goes to the cluster. Its methods raise or return errors of :mod:`connect.core.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from connect.core.errors import ConfigError
from connectors.policy import make, offered

if TYPE_CHECKING:
    from connect.kafka.log.topic_admin import Admin
    from connect.kafka.security.connection_settings import ConnectionSettings

_KEY: Final = "forwarding.admin.class"
#: Java's class, which asks the cluster itself.
DEFAULT: Final = "org.apache.kafka.clients.admin.ForwardingAdmin"
_GROUP: Final = "heliograph.forwarding_admins"


def find_forwarding_admin(name: str) -> str | None:
    """Return ``name`` if there is such a class."""
    return name if name == DEFAULT or name in offered(_GROUP) else None


def known_forwarding_admins() -> list[str]:
    """Return the names of all classes, and how to add one."""
    return [DEFAULT, *offered(_GROUP), f"and classes in Python with an entry point in {_GROUP}"]


def forwards(props: Mapping[str, str]) -> bool:
    """Return whether a config names another class than Java's default."""
    return props.get(_KEY, DEFAULT).strip() != DEFAULT


def open_admin(props: Mapping[str, str], settings: ConnectionSettings, cluster: str, *remedy: str) -> Admin:
    """Return the admin of a connector's cluster, which the caller closes; ``remedy`` is what :class:`Admin` advises if
    a replication factor is too high. Raises ConfigError if the class is unknown, rejects ``props`` or
    makes something else."""
    # Loaded here, because checking a file needs the names only.
    from connect.kafka.log.topic_admin import Admin

    if not forwards(props):
        return Admin(settings, cluster, *remedy)
    name = props[_KEY].strip()
    admin = make(_KEY, name, {}, _GROUP, props, settings, cluster)
    if not isinstance(admin, Admin):
        what = f"is a {type(admin).__name__}; it has to be a subclass of {Admin.__module__}.{Admin.__name__}"
        raise ConfigError(f"{_KEY} {name} {what}", _KEY)
    return admin
