"""How a client proves who it is, by each of Strimzi's ways; and secrets as mounted files."""

from __future__ import annotations

from pathlib import Path

import pytest

from connect.core.config.properties import ConfigTransformer
from connect.core.errors import ConfigError
from connectors.strimzi.security import keys_in, mounted_secrets
from tests.unit.connectors.strimzi.resources import NEW, source_of, translation

SECRETS = {"ca": frozenset({"a.crt", "b.crt", "ca.key"}), "mirror": frozenset({"password", "user.crt", "user.key"})}
TLS = "    tls: {trustedCertificates: [{secretName: ca, pattern: '*.crt'}]}\n"


def of_target(*fields: str) -> dict[str, str]:
    """The properties of the target's clients, as the source connector has them."""
    found = translation(NEW.replace("    alias: eu\n", f"    alias: eu\n{''.join(fields)}"), SECRETS)
    assert not found.missing
    prefix = "target.cluster."
    config = source_of(found).config
    props = {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}
    del props["alias"], props["bootstrap.servers"]
    # A worker's own clients have the same, each kind by its prefix.
    for client in ("", "producer.", "consumer.", "admin."):
        assert {key: found.worker[client + key] for key in props} == props
    return props


def authentication(text: str) -> str:
    return f"    authentication: {{{text}}}\n"


def test_certificates_of_a_pattern_in_order_and_of_a_name() -> None:
    assert of_target(TLS) == {
        "security.protocol": "SSL",
        "ssl.truststore.certificates": "${strimzisecrets:mirrors/ca:a.crt}\n${strimzisecrets:mirrors/ca:b.crt}",
        "ssl.truststore.type": "PEM",
    }
    named = of_target("    tls: {trustedCertificates: [{secretName: ca, certificate: b.crt}]}\n")
    assert named["ssl.truststore.certificates"] == "${strimzisecrets:mirrors/ca:b.crt}"


def test_tls_that_trusts_what_the_machine_trusts() -> None:
    assert of_target("    tls: {}\n") == {"security.protocol": "SSL"}


def test_mutual_tls() -> None:
    pair = "type: tls, certificateAndKey: {secretName: mirror, certificate: user.crt, key: user.key}"
    props = of_target(TLS, authentication(pair))
    assert props["security.protocol"] == "SSL"
    assert props["ssl.keystore.type"] == "PEM"
    assert props["ssl.keystore.certificate.chain"] == "${strimzisecrets:mirrors/mirror:user.crt}"
    assert props["ssl.keystore.key"] == "${strimzisecrets:mirrors/mirror:user.key}"


@pytest.mark.parametrize(
    ("kind", "mechanism", "module"),
    [
        ("scram-sha-256", "SCRAM-SHA-256", "scram.ScramLoginModule"),
        ("scram-sha-512", "SCRAM-SHA-512", "scram.ScramLoginModule"),
        ("plain", "PLAIN", "plain.PlainLoginModule"),
    ],
)
def test_passwords(kind: str, mechanism: str, module: str) -> None:
    block = authentication(f"type: {kind}, username: me, passwordSecret: {{secretName: mirror, password: password}}")
    assert of_target(block) == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
        'username="me" password="${strimzisecrets:mirrors/mirror:password}";',
    }
    assert of_target(TLS, block)["security.protocol"] == "SASL_SSL"


def test_oauth_in_the_words_of_strimzis_login() -> None:
    block = (
        "type: oauth, clientId: me, tokenEndpointUri: 'https://login/token', scope: s, audience: a, "
        "clientSecret: {secretName: mirror, key: password}, accessTokenIsJwt: false, httpRetries: 2"
    )
    props = of_target(authentication(block))
    assert props["sasl.mechanism"] == "OAUTHBEARER"
    assert props["sasl.login.callback.handler.class"].startswith("io.strimzi.")
    assert props["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'oauth.client.id="me" oauth.token.endpoint.uri="https://login/token" oauth.scope="s" oauth.audience="a" '
        'oauth.http.retries="2" oauth.access.token.is.jwt="false" '
        'oauth.client.secret="${strimzisecrets:mirrors/mirror:password}";'
    )


def test_fields_that_nobody_reads_are_named() -> None:
    fields = """\
    tls:
      trustedCertificate: []
      trustedCertificates:
        - {secretName: ca, certificate: a.crt,
           certificat: b.crt}
    authentication:
      type: plain
      username: me
      passwrod: x
      clientId: me
      passwordSecret:
        secretName: mirror
        password: password
        bogus: x
"""
    found = translation(NEW.replace("    alias: eu\n", f"    alias: eu\n{fields}"), SECRETS)
    assert [(one.line, one.path.removeprefix("spec.target.")) for one in found.notices] == [
        (10, "tls.trustedCertificate"),
        (13, "tls.trustedCertificates[0].certificat"),
        (17, "authentication.passwrod"),
        (18, "authentication.clientId"),
        (22, "authentication.passwordSecret.bogus"),
    ]


@pytest.mark.parametrize(
    "option",
    [
        *("grantType", "connectTimeoutSeconds", "readTimeoutSeconds", "httpRetries", "httpRetryPauseMs"),
        *("maxTokenExpirySeconds", "accessTokenIsJwt", "includeAcceptHeader", "enableMetrics"),
        *("tlsTrustedCertificates", "disableTlsHostnameVerification", "nonsense"),
    ],
)
def test_options_of_oauth_that_nobody_heeds_are_named(option: str) -> None:
    block = authentication(f"type: oauth, clientId: me, tokenEndpointUri: 'https://login/token', scope: s, {option}: 1")
    (notice,) = translation(NEW.replace("    alias: eu\n", f"    alias: eu\n{block}"), SECRETS).notices
    assert notice.path == f"spec.target.authentication.{option}"


def test_custom_settings_as_they_are() -> None:
    custom = authentication("type: custom, sasl: true, config: {sasl.mechanism: X, sasl.jaas.config: Y1}")
    props = of_target(TLS, custom)
    assert (props["security.protocol"], props["sasl.mechanism"], props["sasl.jaas.config"]) == ("SASL_SSL", "X", "Y1")
    keystore = of_target(authentication("type: custom, config: {ssl.keystore.type: JKS}"))
    assert keystore == {"security.protocol": "PLAINTEXT", "ssl.keystore.type": "JKS"}
    with pytest.raises(ConfigError, match=r"config\.group\.id: custom authentication allows only keys"):
        of_target(authentication("type: custom, config: {group.id: x}"))


def test_secrets_that_are_not_there_are_named_once() -> None:
    found = translation(NEW.replace("    alias: eu\n", f"    alias: eu\n{TLS}"), {"ca": frozenset({"ca.key"})})
    assert [(one.secret, one.key, one.node.line) for one in found.missing] == [("ca", "*.crt", 9)]


def test_references_of_the_resource_itself_are_resolved_and_what_they_lack_is_named() -> None:
    jaas = 'Login x="${strimzisecrets:mirrors/ca:a.crt}" y="${strimzisecrets:other:token}" z="${strimzienv:ZONE}";'
    block = f"    authentication:\n      type: custom\n      config:\n        sasl.jaas.config: {jaas}\n"
    found = translation(NEW.replace("    alias: eu\n", f"    alias: eu\n{block}"), SECRETS)
    assert found.worker["config.providers.strimzisecrets.param.directory"] == "/run/secrets"
    assert [(one.secret, one.key, one.node.line) for one in found.missing] == [("other", "token", 12)]
    assert [(name, node.line) for name, node in found.variables] == [("ZONE", 12)]


def test_mounted_secrets_are_read_as_kubernetes_mounts_them(tmp_path: Path) -> None:
    data = tmp_path / "mirror" / "..data"
    data.mkdir(parents=True)
    (data / "password").write_text("s3cret\n")
    (tmp_path / "mirror" / "password").symlink_to("..data/password")
    (tmp_path / "mirror" / "user.p12").write_bytes(b"\x30\x82\xff")
    assert keys_in(tmp_path) == {"mirror": frozenset({"password", "user.p12"})}
    prefix = "config.providers.strimzisecrets"
    declared = {"config.providers": "strimzisecrets", f"{prefix}.class": "mounted-secrets"}
    declared[f"{prefix}.param.directory"] = str(tmp_path)
    transformer = ConfigTransformer(declared, {"mounted-secrets": mounted_secrets})
    asked = {"a": "${strimzisecrets:mirrors/mirror:password}", "b": "x${strimzisecrets:mirror:password}y"}
    assert transformer.transform(asked) == {"a": "s3cret", "b": "xs3crety"}
    with pytest.raises(ConfigError, match="cannot be resolved: No such file"):
        transformer.transform({"c": "${strimzisecrets:mirrors/other:password}"})
    (tmp_path / "beside").write_text("not for them")
    for outside in ("mirrors/..", "mirrors/.", ".."):
        with pytest.raises(ConfigError, match="is not the name of a secret"):
            transformer.transform({"c": f"${{strimzisecrets:{outside}:beside}}"})
    with pytest.raises(ConfigError, match="is not a folder"):
        ConfigTransformer({**declared, f"{prefix}.param.directory": "/none"}, {"mounted-secrets": mounted_secrets})
