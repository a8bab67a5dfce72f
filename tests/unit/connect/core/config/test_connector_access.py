"""What a connector's config may make a worker read, fetch or connect to."""

from __future__ import annotations

from pathlib import Path

import pytest

from connect.core.config.connector_access import FILES, OAUTH_FILES, OAUTH_URLS, PROVIDERS, TOKENS, NotAllowed
from connect.core.config.properties import ConfigTransformer
from connect.core.errors import ConfigError

JAAS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
PREFIXES = ("", "producer.override.", "admin.override.", "source.cluster.", "source.consumer.", "us->eu.target.admin.")
ASSERTION_FILES = ("file", "private.key.file", "template.file")
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    ("setting", "value", "list_key"),
    [
        *((f"ssl.{store}.location", "/etc/shadow", FILES) for store in ("keystore", "truststore")),
        *((f"sasl.oauthbearer.assertion.{name}", "/etc/shadow", OAUTH_FILES) for name in ASSERTION_FILES),
        ("sasl.oauthbearer.jwks.endpoint.url", "file:///etc/shadow", OAUTH_URLS),
        (ENDPOINT, "https://169.254.169.254/token", OAUTH_URLS),
        ("sasl.mechanism", "AWS_MSK_IAM", TOKENS),
        ("sasl.login.callback.handler.class", "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler", TOKENS),
        ("sasl.jaas.config", f'{JAAS} oauth.access.token.location="/etc/shadow";', OAUTH_FILES),
        ("sasl.jaas.config", f'{JAAS} oauth.token.endpoint.uri="https://169.254.169.254/";', OAUTH_URLS),
        ("sasl.jaas.config", 'com.sun.security.auth.module.Krb5LoginModule required keyTab="/etc/krb5.keytab";', FILES),
    ],
)
def test_files_and_urls_are_refused_unless_listed(prefix: str, setting: str, value: str, list_key: str) -> None:
    key = prefix + setting
    with pytest.raises(
        NotAllowed, match=f"{key} is not one of .*; add it to {list_key} in the worker's file"
    ) as caught:
        ConfigTransformer({}).connector_props({key: value})
    assert caught.value.key == key
    named = value.split('"')[1] if '"' in value else value
    allowed = {key: value}
    assert ConfigTransformer({list_key: f"/srv/x, {named}"}).connector_props(allowed) == allowed


def test_folders_are_listed_but_not_left(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls" / "link").symlink_to("/etc/shadow")
    transformer = ConfigTransformer({FILES: f"{tmp_path}/tls"})
    transformer.connector_props({"source.cluster.ssl.truststore.location": f"{tmp_path}/tls/new/ca.pem"})
    for outside in (f"{tmp_path}/tls/../key.pem", f"{tmp_path}/tlsx/ca.pem", f"{tmp_path}/tls/link", "bad\0name"):
        with pytest.raises(NotAllowed):
            transformer.connector_props({"source.cluster.ssl.truststore.location": outside})


@pytest.mark.parametrize("listed", ["/srv/tls,", ",", "/srv/tls, ,/srv/other"])
def test_an_empty_part_of_a_list_allows_no_folder(listed: str) -> None:
    with pytest.raises(NotAllowed):
        ConfigTransformer({FILES: listed}).connector_props({"ssl.keystore.location": "key.pem"})


def test_another_client_of_the_worker_makes_no_setting_safe() -> None:
    owner = {
        "producer.sasl.jaas.config": "x",
        "producer.security.protocol": "SASL_SSL",
        "consumer.security.protocol": "SASL_PLAINTEXT",
    }
    key = "producer.override.security.protocol"
    with pytest.raises(NotAllowed, match=r"set producer\.override\.sasl\.jaas\.config too"):
        ConfigTransformer(owner).connector_props({key: "SASL_PLAINTEXT"})
    same = {key: "SASL_SSL"}
    assert ConfigTransformer(owner).connector_props(same) == same
    flow = {key: "SASL_PLAINTEXT"}
    assert ConfigTransformer(owner, trusted=[flow]).connector_props(flow) == flow


def test_a_url_is_allowed_as_a_whole() -> None:
    transformer = ConfigTransformer({OAUTH_URLS: "https://login.example/token"})
    transformer.connector_props({ENDPOINT: " https://login.example/token "})
    for other in ("https://login.example/token/../other", "https://login.example/", "https://login.example/token?x"):
        with pytest.raises(NotAllowed):
            transformer.connector_props({ENDPOINT: other})


def test_a_broken_jaas_line_names_nothing() -> None:
    broken = {"producer.override.sasl.jaas.config": 'x required keyTab="/etc/krb5.keytab"'}
    assert ConfigTransformer({}).connector_props(broken) == broken


def test_what_the_owner_wrote_is_allowed() -> None:
    own = {"producer.ssl.keystore.location": "/tls/worker.pem", "ssl.truststore.location": "${env:TRUST}"}
    flow = {"source.cluster.ssl.truststore.location": "/tls/us.pem"}
    transformer = ConfigTransformer(own, trusted=[flow])
    transformer.connector_props(
        {
            "producer.override.ssl.keystore.location": "/tls/worker.pem",
            "source.cluster.ssl.truststore.location": "${env:TRUST}",
            "source.admin.ssl.truststore.location": "/tls/us.pem",
        }
    )
    with pytest.raises(NotAllowed):  # another setting with the same value
        transformer.connector_props({"source.cluster.ssl.keystore.location": "/tls/us.pem"})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("bootstrap.servers", "evil:9092"),
        ("security.protocol", "SASL_PLAINTEXT"),
        ("sasl.mechanism", "PLAIN"),
        ("ssl.endpoint.identification.algorithm", ""),
        ("ssl.truststore.certificates", "-----BEGIN CERTIFICATE-----"),
    ],
)
@pytest.mark.parametrize("kind", ["producer", "admin"])
def test_the_workers_credentials_are_shown_as_its_file_says(kind: str, setting: str, value: str) -> None:
    worker = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "secret",
        "producer.sasl.jaas.config": "secret",
    }
    transformer = ConfigTransformer(worker)
    changed = {f"{kind}.override.{setting}": value}
    with pytest.raises(NotAllowed, match=rf"the worker's sasl\.jaas\.config is shown; set {kind}\.override"):
        transformer.connector_props(changed)
    transformer.connector_props({**changed, f"{kind}.override.sasl.jaas.config": "own"})
    if setting in worker:
        transformer.connector_props({f"{kind}.override.{setting}": worker[setting]})
    # The worker's file has no credentials for these clients.
    transformer.connector_props({f"consumer.override.{setting}": value, f"source.cluster.{setting}": value})


SCRAM = 'ScramLoginModule required username="mirror" password="'


@pytest.mark.parametrize(
    ("own", "override", "is_refused"),
    [
        ("${file:F:line}", "${file:F:line}", True),
        ("${file:F:line}", "${file:D/../D/f:line}", True),
        ("${file:F:line}", f'{SCRAM}${{file:F:word}}";', True),
        ("${file:F:line}", "x.Module required username='${file:F:line}' password=\"\";", True),
        (f'{SCRAM}${{file:F:word}}";', "${file:F:line}", True),
        (f'{SCRAM}${{file:F:word}}";', f'{SCRAM}${{file:F:other}}";', False),
        ("${file:F:line}", f'{SCRAM}s3cret";', False),  # its author knows it
    ],
)
def test_a_reference_to_the_workers_password_is_no_credential_of_a_connector(
    tmp_path: Path, own: str, override: str, is_refused: bool
) -> None:
    file = tmp_path / "f"
    file.write_text(f'line={SCRAM}s3cret";\nword=s3cret\nother=mine\n')

    def at(text: str) -> str:
        return text.replace(":F:", f":{file}:").replace(":D/", f":{tmp_path}/").replace("/D/", f"/{tmp_path.name}/")

    worker = {"config.providers": "file", "config.providers.file.class": "file", "producer.sasl.jaas.config": at(own)}
    key = "producer.override.sasl.jaas.config"
    config = {key: at(override), "producer.override.bootstrap.servers": "evil:9092"}
    if not is_refused:
        ConfigTransformer(worker).connector_props(config)
        return
    with pytest.raises(NotAllowed, match="refers to the same secret") as caught:
        ConfigTransformer(worker).connector_props(config)
    assert caught.value.key == key and "s3cret" not in str(caught.value)


MSK = {"sasl.mechanism": "AWS_MSK_IAM", "producer.sasl.mechanism": "AWS_MSK_IAM", "bootstrap.servers": "a:1"}


@pytest.mark.parametrize(
    "config",
    [
        {"source.cluster.sasl.mechanism": "AWS_MSK_IAM"},
        {"consumer.override.bootstrap.servers": "evil:1", "consumer.override.sasl.mechanism": "AWS_MSK_IAM"},
        {"producer.override.bootstrap.servers": "evil:1"},
        {"admin.override.bootstrap.servers": "evil:1"},
        {"producer.override.bootstrap.servers": "evil:1", "producer.override.sasl.mechanism": "AWS_MSK_IAM"},
    ],
)
def test_a_token_that_the_worker_shows_to_its_brokers_is_not_shown_to_others(config: dict[str, str]) -> None:
    with pytest.raises(NotAllowed, match=TOKENS):
        ConfigTransformer(MSK).connector_props(config)
    ConfigTransformer({**MSK, TOKENS: "AWS_MSK_IAM"}).connector_props(config)
    ConfigTransformer(MSK, trusted=[config]).connector_props(config)
    same = {"producer.override.sasl.mechanism": "AWS_MSK_IAM", "producer.override.bootstrap.servers": "a:1"}
    ConfigTransformer(MSK).connector_props(same)


@pytest.mark.parametrize("name", ["org.apache.kafka.common.config.provider.EnvVarConfigProvider", "env"])
def test_providers_of_the_automatic_list_only(name: str) -> None:
    declared = {"config.providers": "e", "config.providers.e.class": name}
    java = "org.apache.kafka.common.config.provider."
    for allowed in (f"{java}FileConfigProvider, {java}EnvVarConfigProvider", "env"):
        ConfigTransformer({**declared, PROVIDERS: allowed})
    for allowed in ("none", "", f"{java}FileConfigProvider"):
        with pytest.raises(ConfigError, match=f"{name} is not allowed; add it to {PROVIDERS}") as caught:
            ConfigTransformer({**declared, PROVIDERS: allowed})
        assert caught.value.key == "config.providers.e.class"
