"""Our declarations against those of Kafka 4.3.1, read from its classes.

A line of ``java_settings.tsv``: where it is declared, name, type, default (``=`` before a text), importance, group and
place in it, width, name in a form. ``security`` stands once for all that have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connect.core.config.client_settings import ADMIN, CONSUMER, PRODUCER
from connect.core.config.config_def import ConfigDef
from connect.core.config.connector_settings import AUTO_RESTART, CONNECTOR, SOURCE_CONNECTOR
from connect.core.config.rest_settings import OWN_REST
from connect.core.config.security_settings import SECURITY
from connect.core.config.validation import key_info
from connect.core.config.worker_settings import OWN, WORKER
from connect.core.herder_api import ConfigKeyInfo
from connectors.config import definitions

ROWS = [line.split("\t") for line in (Path(__file__).parent / "java_settings.tsv").read_text("utf-8").splitlines()]
_UNSTABLE = "internal.throw.on.fetch.stable.offset.unsupported"
#: Ours, with what belongs to others left out, and the keys that Java's snapshot of the same name lacks or has alone.
DECLARED: dict[str, tuple[ConfigDef, frozenset[str]]] = {
    "security": (SECURITY, frozenset()),
    "source": (SOURCE_CONNECTOR, frozenset(AUTO_RESTART.settings)),
    "worker": (WORKER, frozenset({*OWN.settings, *OWN_REST.settings, "connector.client.config.override.allowlist"})),
    "mirror-source": (definitions.SOURCE, frozenset(definitions.OWN.settings)),
    "mirror-checkpoint": (definitions.CHECKPOINT, frozenset()),
    "mirror-heartbeat": (definitions.HEARTBEAT, frozenset()),
    "producer": (PRODUCER, frozenset()),
    # Two of groups that share partitions, and a hidden one.
    "consumer": (CONSUMER, frozenset({_UNSTABLE, "share.acknowledgement.mode", "share.acquire.mode"})),
    "admin": (ADMIN, frozenset()),
}
#: REST shows these in order.
SHOWN = ("security", "source", "mirror-source", "mirror-checkpoint", "mirror-heartbeat")


def ours(name: str) -> Iterator[list[str]]:
    config, others = DECLARED[name]
    left_out = {*others, *(() if name == "security" else SECURITY.settings)}
    if name.startswith("mirror"):
        left_out |= set(CONNECTOR.settings)
    for key, setting in config.settings.items():
        if key not in left_out:
            yield row(name, key_info(setting))


def row(name: str, info: ConfigKeyInfo) -> list[str]:
    default = "required" if info.required else "null" if info.default_value is None else f"={info.default_value}"
    declared = info.name, info.type, default, info.importance, info.group or "-", str(info.order_in_group)
    return [name, *declared, info.width, info.display_name]


@pytest.mark.parametrize("name", list(DECLARED))
def test_every_setting_is_declared_as_in_java(name: str) -> None:
    left_out = DECLARED[name][1]
    # Java prints a list of classes as such. It listens on all interfaces, which docs/differences.md says of ours.
    java = [
        [cell.replace("class org.", "org.").replace("=http://:8083", "=http://localhost:8083") for cell in each]
        for each in ROWS
        if each[0] == name and each[1] not in left_out
    ]
    found = list(ours(name))
    if name not in SHOWN:
        java.sort()
        found.sort()
    assert found == java
