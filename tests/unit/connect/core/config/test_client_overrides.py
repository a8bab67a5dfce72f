"""Which client settings a connector may override."""

from __future__ import annotations

import pytest

from connect.core.config.client_settings import OverridePolicy, make_policy
from connect.core.errors import ConfigError

KEYS = ["acks", "sasl.jaas.config", "sasl.mechanism", "security.protocol", "client.id"]


@pytest.mark.parametrize(
    ("name", "allowed"), [("All", KEYS), ("None", []), ("Principal", KEYS[1:4]), ("Allowlist", ["acks", "client.id"])]
)
def test_policies_by_each_of_their_names(name: str, allowed: list[str]) -> None:
    simple = f"{name}ConnectorClientConfigOverridePolicy"
    for each in (name, simple, f"org.apache.kafka.connect.connector.policy.{simple}"):
        policy = make_policy(each, ("acks", "client.id"))
        assert [key for key in KEYS if policy.objection(key) is None] == allowed


def test_the_objection_is_javas() -> None:
    assert make_policy("Allowlist").objection("acks") == (
        "The 'Allowlist' policy does not allow 'acks' to be overridden in the connector configuration."
    )


def test_policies_of_others() -> None:
    others = {"acme": OverridePolicy("Acme", "acks".__eq__)}
    assert make_policy("acme", (), others).objection("acks") is None
    with pytest.raises(ConfigError, match="'nope'; it can be All, None, Principal, Allowlist, acme"):
        make_policy("nope", (), others)
