"""Clusters that ask who one is: TLS, mutual TLS, SASL over both, and what a user writes to be let in."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

from connect.core.errors import SecurityError
from connect.embedded.brokers import QUICK_JVM
from connect.kafka.connection import Connection
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings
from tests.kit.brokers import PROXIED, KafkaCluster
from tests.kit.certificates import Party, make_party
from tests.kit.clients import stock_admin
from tests.kit.mirror import in_sync
from tests.kit.pipe import Direction
from tests.kit.proxied import ConnectionState
from tests.kit.proxy import put_before
from tests.kit.stage import Stage

PASSWORD: Final = 'p"\\;= {}s'
STORE_PASSWORD: Final = "changeit"
PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
#: How a listener is spoken to. ``SCRAM`` is there without TLS too, for whoever looks at the bytes.
LISTENERS: Final = {
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "PLAIN": "SASL_SSL",
    "SCRAM": "SASL_PLAINTEXT",
    "SCRAM_TLS": "SASL_SSL",
    "OAUTH": "SASL_SSL",
    # Those who present what they should not: a certificate of yesterday, and one of another host.
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
}
#: A session has to be proven anew so often (KIP-368). Half of it may a machine that is very busy take for that.
REAUTH_MS: Final = 10_000
_TAKEN_DEADLINE_S: Final = 120.0

#: A slice's connection on which more than this was sent carries batches; the proxy cannot read what it passes.
_CARRIES_BATCHES_BYTES: Final = 30_000


def quoted(text: str) -> str:
    """As an option of a JAAS line."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def jaas(module: str, password: str = PASSWORD, user: str = "bob") -> str:
    return f"{module} required username={quoted(user)} password={quoted(password)};"


@dataclass(frozen=True)
class Secured:
    """A cluster with every way in: ``bob`` has ``PASSWORD``; ``client`` is the party of mutual TLS."""

    cluster: KafkaCluster
    authority: Party
    client: Party
    directory: Path
    proxied_protocol: str = "SSL"
    #: Its client shows a certificate out of a PKCS#12 store; PEM else.
    has_pkcs12: bool = False

    def properties(self, listener: str, bootstrap: str | None = None) -> dict[str, str]:
        """What a Java client's file says to get in through a listener."""
        protocol = {**LISTENERS, PROXIED: self.proxied_protocol}[listener]
        found = {"bootstrap.servers": bootstrap or self.cluster.bootstrap_of(listener), "security.protocol": protocol}
        if protocol.endswith("SSL"):
            found |= self.trusting()
        if listener in ("MUTUAL", PROXIED):
            found |= self.own_pkcs12() if self.has_pkcs12 else self.own_store()
        if listener == "PLAIN":
            found |= {"sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas(PLAIN)}
        elif listener == "OAUTH":
            line = f'{OAUTH} required unsecuredLoginStringClaim_sub="bob";'
            found |= {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": line}
        elif protocol.startswith("SASL"):
            found |= {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas(SCRAM)}
        return found

    def settings(self, listener: str, **properties: str) -> ConnectionSettings:
        """The settings for a listener; keys with underscores instead of dots."""
        named = {key.replace("_", "."): value for key, value in properties.items()}
        return connection_settings(
            {**self.properties(listener), **named}, client_id="us->eu|a test", where=f"cluster {self.cluster.name}"
        )

    def trusting(self) -> dict[str, str]:
        store = self.directory / "trust.p12"
        trusted = [pkcs12.PKCS12Certificate(self.authority.certificate, b"authority")]
        store.write_bytes(
            pkcs12.serialize_java_truststore(trusted, serialization.BestAvailableEncryption(STORE_PASSWORD.encode()))
        )
        return {
            "ssl.truststore.type": "PKCS12",
            "ssl.truststore.location": str(store),
            "ssl.truststore.password": STORE_PASSWORD,
        }

    def own_store(self) -> dict[str, str]:
        store = self.directory / "client.pem"
        store.write_text(self.client.key_pem(STORE_PASSWORD) + self.client.pem)
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store), "ssl.key.password": STORE_PASSWORD}

    def own_pkcs12(self) -> dict[str, str]:
        store = self.directory / "client.p12"
        secret = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
        store.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"client", self.client.key, self.client.certificate, [self.authority.certificate], secret
            )
        )
        return {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(store),
            "ssl.keystore.password": STORE_PASSWORD,
        }


@contextlib.contextmanager
def start_secured(
    name: str,
    directory: Path,
    *,
    reauth_ms: int = REAUTH_MS,
    advertised: Callable[[int, int], tuple[str, int]] | None = None,
    proxied_protocol: str = "SSL",
    nodes: int = 1,
    has_pkcs12: bool = False,
    config: Mapping[str, str] | None = None,
    jvm_options: Sequence[str] = QUICK_JVM,
) -> Iterator[Secured]:
    """Start a :class:`Secured`; a proxied listener wants mutual TLS, and SCRAM too if ``SASL_SSL``."""
    authority = make_party("authority", None)
    yesterday = datetime.timedelta(minutes=-30)
    reported = {
        **_presenting(directory, "", make_party("broker", authority, "localhost")),
        **_presenting(directory, "expired", make_party("late", authority, "localhost", valid=yesterday)),
        **_presenting(directory, "elsewhere", make_party("far", authority, "far.example", address="192.0.2.1")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority.pem.replace("\n", " "),
        "connections.max.reauth.ms": str(reauth_ms),
        "listener.name.mutual.ssl.client.auth": "required",
        f"listener.name.{PROXIED.lower()}.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        # Takes tokens that nobody has signed.
        "listener.name.oauth.oauthbearer.sasl.jaas.config": f'{OAUTH} required unsecuredLoginStringClaim_sub="broker";',
        "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.plain.plain.sasl.jaas.config": f"{PLAIN} required user_bob={quoted(PASSWORD)};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    for listener in ("scram", "scram_tls", PROXIED.lower()):
        prefix = f"listener.name.{listener}"
        reported[f"{prefix}.sasl.enabled.mechanisms"] = "SCRAM-SHA-256,SCRAM-SHA-512"
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            reported[f"{prefix}.{mechanism}.sasl.jaas.config"] = f"{SCRAM} required;"
    if nodes > 1:  # controllers vote for one another before there are access rules
        reported["super.users"] = "User:ANONYMOUS"
    listeners = LISTENERS if advertised is None else {**LISTENERS, PROXIED: proxied_protocol}
    started = KafkaCluster.start(
        name,
        nodes=nodes,
        config={**reported, **(config or {})},
        listeners=listeners,
        advertised=advertised,
        jvm_options=jvm_options,
    )
    with started as cluster:
        set_password(cluster, "bob", PASSWORD)
        client = make_party("client", authority, "client")
        yield Secured(cluster, authority, client, directory, proxied_protocol, has_pkcs12)


def _presenting(directory: Path, listener: str, party: Party) -> dict[str, str]:
    """What a listener, or with no name every other, shows to its clients."""
    store = directory / f"broker{listener}.pem"
    store.write_text(party.key_pem() + party.pem)
    prefix = f"listener.name.{listener}." if listener else ""
    return {f"{prefix}ssl.keystore.type": "PEM", f"{prefix}ssl.keystore.location": str(store)}


def set_password(cluster: KafkaCluster, user: str, password: str) -> None:
    """Make a user for SCRAM, or give it another password, once every broker takes it."""
    with stock_admin(cluster.bootstrap) as admin:
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            # One call each: a user's credentials cannot be altered twice in one request.
            refused = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, mechanism, password)])
            assert not any(refused.values()), refused
    properties = {
        "bootstrap.servers": cluster.bootstrap_of("SCRAM"),
        "security.protocol": LISTENERS["SCRAM"],
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": jaas(SCRAM, password, user),
    }
    settings = connection_settings(properties, client_id="test-kit", where=f"cluster {cluster.name}")
    with ThreadPoolExecutor(1) as thread:  # the caller may have a loop of its own
        thread.submit(asyncio.run, _until_taken(settings)).result()


async def _until_taken(settings: ConnectionSettings) -> None:
    async with asyncio.timeout(_TAKEN_DEADLINE_S):
        for host, port in settings.bootstrap:
            while not await _is_taken(settings, host, port):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def _is_taken(settings: ConnectionSettings, host: str, port: int) -> bool:
    try:
        await (await Connection.open(settings, host, port)).close()
    except SecurityError:
        return False
    return True


def as_lines(alias: str, properties: dict[str, str]) -> dict[str, str]:
    """The settings of a cluster as they stand in ``mm2.properties``, where a backslash is written twice."""
    return {f"{alias}.{key}": value.replace("\\", "\\\\") for key, value in properties.items()}


class SecuredStage(Stage):
    """A stage with SCRAM over TLS at the source, mutual TLS at the target, and sessions of a few seconds."""

    target_protocol = "SSL"
    has_pkcs12 = False

    def _start_source(self, exits: contextlib.ExitStack) -> KafkaCluster:
        self.source = exits.enter_context(start_secured("us", self._folder("us")))
        return self.source.cluster

    def _start_target(self, exits: contextlib.ExitStack) -> KafkaCluster:
        started = start_secured(
            "eu",
            self._folder("eu"),
            advertised=put_before(exits, self.proxies, self._seed),
            proxied_protocol=self.target_protocol,
            nodes=self._target_nodes,
            config=in_sync(self._target_nodes),
            has_pkcs12=self.has_pkcs12,
        )
        self.target = exits.enter_context(started)
        return self.target.cluster

    def _folder(self, name: str) -> Path:
        folder = self._directory / name
        folder.mkdir()
        return folder

    def _ways_in(self) -> dict[str, str]:
        return {
            **as_lines("us", self.source.properties("SCRAM_TLS")),
            **as_lines("eu", self.target.properties(PROXIED, self.eu.proxied_bootstrap)),
        }

    def _produces(self, state: ConnectionState) -> bool:
        return state.passed_bytes[Direction.REQUESTS] > _CARRIES_BATCHES_BYTES

    def asked(self, api_keys: Collection[int]) -> int:
        """What is asked cannot be read; who asks first comes on a new connection."""
        return sum(max((state.index for state in proxy.connections()), default=0) for proxy in self.proxies)
