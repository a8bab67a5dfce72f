"""Translation of a Strimzi cluster's ``tls`` and ``authentication`` to properties of Java clients, and its secrets.

The properties are those of ``KafkaMirrorMaker2Connectors`` in Strimzi's operator, for ``oauth``, which API version v1
does not have, those of release 0.45. Kubernetes' secrets are read from files, ``DIR/<secret>/<key>``, as a pod mounts
them. References are Strimzi's, ``${strimzisecrets:<namespace>/<secret>:<key>}``, so that Java workers can read them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from connect.core.config.properties import Provider
from connectors.strimzi.resource import Node

#: The config provider for secrets that Strimzi's operator gives to every worker.
PROVIDER: Final = "strimzisecrets"
#: The entry point of :func:`mounted_secrets`.
PROVIDER_CLASS: Final = "mounted-secrets"
DIRECTORY: Final = "directory"
_REFERENCE: Final = re.compile(rf"\$\{{{PROVIDER}:([^}}:]*):([^}}]*)\}}")
#: Names that lead out of the folder, or are the folder itself.
_OUTSIDE: Final = ("", ".", "..")


def mounted_secrets(params: Mapping[str, str]) -> Provider:
    """Return a provider of the secrets in the folder that ``directory`` names; a :data:`ProviderFactory`. A line end
    after a value is removed, because editors add it. Raises ValueError if the folder does not exist."""
    folder = Path(params.get(DIRECTORY, ""))
    if not params.get(DIRECTORY) or not folder.is_dir():
        raise ValueError(f"{DIRECTORY}: {params.get(DIRECTORY) or 'nothing'} is not a folder")

    def read(path: str) -> Mapping[str, str]:
        name = path.rpartition("/")[2]
        if name in _OUTSIDE:
            raise ValueError(f"'{path}' is not the name of a secret")
        # Kubernetes mounts keys as links, next to its own folder, whose name starts with two dots.
        files = [each for each in (folder / name).iterdir() if each.is_file() and not each.name.startswith("..")]
        return {each.name: text.removesuffix("\n") for each in files if (text := _text(each)) is not None}

    return read


def mounted_provider(folder: str) -> dict[str, str]:
    """Return the properties of a worker's provider of the secrets in ``folder``."""
    provider = f"config.providers.{PROVIDER}"
    return {f"{provider}.class": PROVIDER_CLASS, f"{provider}.param.{DIRECTORY}": folder}


def _text(file: Path) -> str | None:
    """Read a file; None if it is not text, such as a key store."""
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class SecretKey:
    """A key of a secret that a resource needs, and the field that refers to it."""

    secret: str
    key: str
    node: Node


@dataclass
class SecretReferences:
    """A factory of references that collects the needed keys. ``keys`` has those of each existing secret, by name."""

    namespace: str | None
    keys: Mapping[str, frozenset[str]]
    used: list[SecretKey] = field(default_factory=list)

    def reference(self, secret: str, key: str, node: Node) -> str:
        self.used.append(SecretKey(secret, key, node))
        path = f"{self.namespace}/{secret}" if self.namespace else secret
        return f"${{{PROVIDER}:{path}:{key}}}"

    def named_in(self, node: Node, name: str) -> str:
        """Return the reference to the secret of ``node``, and to the key that its field ``name`` has."""
        return self.reference(node.required("secretName"), node.required(name), node)

    def matching(self, secret: str, pattern: str, node: Node) -> list[str]:
        """Return references to all keys that a pattern such as ``*.crt`` matches, sorted by name."""
        found = sorted(key for key in self.keys.get(secret, ()) if fnmatchcase(key, pattern))
        return [self.reference(secret, key, node) for key in found or [pattern]]

    def written(self, text: Node) -> None:
        """Collect the keys of references in a text of the resource."""
        for path, key in _REFERENCE.findall(text.value):
            self.used.append(SecretKey(path.rpartition("/")[2], key, text))

    def missing(self) -> list[SecretKey]:
        needed = {(one.secret, one.key, one.node.path): one for one in self.used}
        return [one for one in needed.values() if one.key not in self.keys.get(one.secret, ())]


def keys_in(folder: Path) -> dict[str, frozenset[str]]:
    """Return the keys of each secret in ``folder``. Raises OSError if it cannot be read."""
    return {
        secret.name: frozenset(each.name for each in secret.iterdir() if each.is_file())
        for secret in folder.iterdir()
        if secret.is_dir() and not secret.name.startswith("..")
    }


_JAVA: Final = "org.apache.kafka.common.security."
_PLAIN: Final = f"{_JAVA}plain.PlainLoginModule"
_SCRAM: Final = f"{_JAVA}scram.ScramLoginModule"
_OAUTH: Final = f"{_JAVA}oauthbearer.OAuthBearerLoginModule"
_OAUTH_HANDLER: Final = "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler"
#: Prefixes of the keys that ``custom`` allows (``KafkaClientAuthenticationCustom``).
_CUSTOM: Final = ("sasl.", "ssl.keystore.")

#: Options of Strimzi's login module by the fields of ``oauth``.
_OAUTH_TEXTS: Final = {
    "clientId": "oauth.client.id",
    "username": "oauth.password.grant.username",
    "tokenEndpointUri": "oauth.token.endpoint.uri",
    "scope": "oauth.scope",
    "audience": "oauth.audience",
    "maxTokenExpirySeconds": "oauth.max.token.expiry.seconds",
    "connectTimeoutSeconds": "oauth.connect.timeout.seconds",
    "readTimeoutSeconds": "oauth.read.timeout.seconds",
    "httpRetries": "oauth.http.retries",
    "httpRetryPauseMs": "oauth.http.retry.pause.millis",
    "accessTokenLocation": "oauth.access.token.location",
    "clientAssertionLocation": "oauth.client.assertion.location",
    "clientAssertionType": "oauth.client.assertion.type",
}
_OAUTH_SECRETS: Final = {
    "clientSecret": "oauth.client.secret",
    "accessToken": "oauth.access.token",
    "refreshToken": "oauth.refresh.token",
    "clientAssertion": "oauth.client.assertion",
}
#: Flags by their value that is not the default, with the option and value for it.
_OAUTH_FLAGS: Final = {
    "disableTlsHostnameVerification": ("true", "oauth.ssl.endpoint.identification.algorithm", ""),
    "accessTokenIsJwt": ("false", "oauth.access.token.is.jwt", "false"),
    "includeAcceptHeader": ("false", "oauth.include.accept.header", "false"),
}


def client_security(cluster: Node, secrets: SecretReferences) -> dict[str, str]:
    """Return the security properties of a client of ``cluster``, with references to secrets. Raises ConfigError if a
    field is missing or wrong, or the type of authentication is not one of Strimzi's."""
    tls, authentication = cluster.field("tls"), cluster.field("authentication")
    props = _trust(tls, secrets)
    is_sasl = False
    if authentication.value is not None:
        kind = authentication.required("type")
        make = _TYPES.get(kind)
        if make is None:
            known = ", ".join(_TYPES)
            raise authentication.field("type").error(f"authentication.type is '{kind}'. Use one of {known}")
        props |= make(authentication, secrets)
        is_sasl = authentication.field("sasl").text() == "true" if kind == "custom" else kind != "tls"
    protocol = "PLAINTEXT" if tls.value is None else "SSL"
    return props | {"security.protocol": f"SASL_{protocol}" if is_sasl else protocol}


def _trust(tls: Node, secrets: SecretReferences) -> dict[str, str]:
    found: list[str] = []
    for each in tls.field("trustedCertificates").items():
        if "certificate" in each:
            found.append(secrets.named_in(each, "certificate"))
        else:
            found += secrets.matching(each.required("secretName"), each.required("pattern"), each)
    return {"ssl.truststore.certificates": "\n".join(found), "ssl.truststore.type": "PEM"} if found else {}


def _tls(authentication: Node, secrets: SecretReferences) -> dict[str, str]:
    pair = authentication.field("certificateAndKey")
    return {
        "ssl.keystore.certificate.chain": secrets.named_in(pair, "certificate"),
        "ssl.keystore.key": secrets.named_in(pair, "key"),
        "ssl.keystore.type": "PEM",
    }


def _password(mechanism: str, module: str) -> Callable[[Node, SecretReferences], dict[str, str]]:
    def make(authentication: Node, secrets: SecretReferences) -> dict[str, str]:
        password = secrets.named_in(authentication.field("passwordSecret"), "password")
        options = {"username": authentication.required("username"), "password": password}
        return {"sasl.mechanism": mechanism, "sasl.jaas.config": _jaas(module, options)}

    return make


def _oauth(authentication: Node, secrets: SecretReferences) -> dict[str, str]:
    texts = _OAUTH_TEXTS.items()
    options = {option: authentication.required(name) for name, option in texts if name in authentication}
    for name, (unusual, option, value) in _OAUTH_FLAGS.items():
        if authentication.field(name).text() == unusual:
            options[option] = value
    for name, each in authentication.field("saslExtensions").fields():
        options[f"oauth.sasl.extension.{name}"] = each.text() or ""
    for name, option in _OAUTH_SECRETS.items():
        if name in authentication:
            options[option] = secrets.named_in(authentication.field(name), "key")
    if "passwordSecret" in authentication:
        password = secrets.named_in(authentication.field("passwordSecret"), "password")
        options["oauth.password.grant.password"] = password
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": _jaas(_OAUTH, options),
        "sasl.login.callback.handler.class": _OAUTH_HANDLER,
    }


def _custom(authentication: Node, secrets: SecretReferences) -> dict[str, str]:
    config = authentication.field("config")
    for name, each in config.fields():
        if not name.startswith(_CUSTOM):
            raise each.error(f"{each.path}: custom authentication allows only keys with prefix {' or '.join(_CUSTOM)}")
    return config.settings()


_TYPES: Final[Mapping[str, Callable[[Node, SecretReferences], dict[str, str]]]] = {
    "tls": _tls,
    "scram-sha-256": _password("SCRAM-SHA-256", _SCRAM),
    "scram-sha-512": _password("SCRAM-SHA-512", _SCRAM),
    "plain": _password("PLAIN", _PLAIN),
    "oauth": _oauth,
    "custom": _custom,
}


def _jaas(module: str, options: Mapping[str, str]) -> str:
    written = " ".join(f'{name}="{value}"' for name, value in options.items())
    return f"{module} required {written};"
