"""The keys of Java's Kafka clients by name, and by what they mean here.

Names are those of Kafka 4.3 (``ConsumerConfig``, ``ProducerConfig``, ``AdminClientConfig``).
"""

from __future__ import annotations

from typing import Final

from connect.core import client_defs
from connect.core.security_defs import SECURITY

BOOTSTRAP_SERVERS: Final = "bootstrap.servers"
#: What a cluster's settings hand on to every client of it (Kafka's ``MirrorClientConfig.CLIENT_CONFIG_DEF``).
CONNECTION_KEYS: Final = (BOOTSTRAP_SERVERS, *SECURITY.settings)

#: The security keys that :func:`connect.kafka.settings.connection_settings` heeds.
SUPPORTED_SECURITY: Final = frozenset(
    name
    for name in SECURITY.settings
    if name.startswith(("ssl.truststore.", "ssl.keystore."))
    or name
    in (
        "security.protocol",
        "ssl.key.password",
        "ssl.enabled.protocols",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "sasl.mechanism",
        "sasl.jaas.config",
        "sasl.kerberos.service.name",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.scope",
    )
)


CONSUMER_KEYS: Final = frozenset(client_defs.CONSUMER.settings) - frozenset(CONNECTION_KEYS)
PRODUCER_KEYS: Final = frozenset(client_defs.PRODUCER.settings) - frozenset(CONNECTION_KEYS)
ADMIN_KEYS: Final = frozenset(client_defs.ADMIN.settings) - frozenset(CONNECTION_KEYS)
