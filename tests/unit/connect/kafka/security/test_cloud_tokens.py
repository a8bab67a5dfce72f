"""Tokens of cloud providers, against the examples that they publish."""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from connect.core.errors import ConfigError, SecurityError
from connect.kafka.security import cloud_tokens
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings
from connect.kafka.security.oauth import Tokens

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
MSK = "b-1.demo.abc.c2.kafka.eu-west-1.amazonaws.com:9098,b-2.demo.abc.c2.kafka.eu-west-1.amazonaws.com:9098"
GOOGLE = "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler"


def test_the_signing_key_of_the_reference() -> None:
    """Of "Examples of how to derive a signing key for Signature Version 4"."""
    key = cloud_tokens.signing_key(SECRET, "20120215", "us-east-1", "iam")
    assert key.hex() == "f4780e2d9f65fa895f9c67b32ce1baf0b0d8a43505a000a1a9e090d414db404d"


def test_the_signed_url_of_the_reference() -> None:
    """Of "Authenticating Requests: Using Query Parameters (AWS Signature Version 4)"."""
    url = cloud_tokens.signed_url(
        "examplebucket.s3.amazonaws.com",
        "/test.txt",
        {},
        ("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", None),
        ("us-east-1", "s3"),
        datetime(2013, 5, 24, tzinfo=UTC),
        expires_s=86_400,
        payload="UNSIGNED-PAYLOAD",
    )
    signature = "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    assert url.endswith(f"&X-Amz-Signature={signature}")


def settings(**properties: str) -> ConnectionSettings:
    given = {key.replace("_", "."): value for key, value in properties.items()}
    given = {"bootstrap.servers": MSK, "security.protocol": "SASL_SSL", **given}
    made = connection_settings(given, client_id="x", where="cluster us")
    return ConnectionSettings.from_wire(made.to_wire())


def token_of(made: ConnectionSettings) -> tuple[str, float]:
    assert made.sasl_mechanism == "OAUTHBEARER"
    assert made.oauth is not None
    return Tokens(made.oauth)._new()


class Botocore:
    """What is used of ``botocore.session``."""

    profiles: tuple[str | None, ...] = ()

    def __init__(self, keys: object) -> None:
        self._keys = keys

    def Session(self, profile: str | None) -> Any:  # its name there
        self.profiles = (*self.profiles, profile)
        found = None if self._keys is None else SimpleNamespace(get_frozen_credentials=lambda: self._keys)
        return SimpleNamespace(get_credentials=lambda: found)


def test_msk_gets_a_signed_url_for_its_region(monkeypatch: pytest.MonkeyPatch) -> None:
    botocore = Botocore(SimpleNamespace(access_key="AKIAIOSFODNN7EXAMPLE", secret_key=SECRET, token="session/token+"))
    monkeypatch.setitem(sys.modules, "botocore.session", botocore)
    made = settings(
        sasl_mechanism="AWS_MSK_IAM",
        sasl_jaas_config='software.amazon.msk.auth.iam.IAMLoginModule required awsProfileName="mirror";',
        sasl_client_callback_handler_class="software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    )
    token, life_s = token_of(made)
    assert (life_s, botocore.profiles) == (900, ("mirror",))
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    found = {name: value for name, (value,) in parse_qs(url.query).items()}
    assert (url.hostname, found["Action"]) == ("kafka.eu-west-1.amazonaws.com", "kafka-cluster:Connect")
    assert found["X-Amz-Credential"].endswith("/eu-west-1/kafka-cluster/aws4_request")
    assert (found["X-Amz-Security-Token"], found["X-Amz-Expires"]) == ("session/token+", "900")
    assert len(found["X-Amz-Signature"]) == 64
    assert SECRET not in url.query


def test_msk_without_credentials_or_region_or_with_a_role_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", Botocore(None))
    monkeypatch.delenv("AWS_REGION", raising=False)
    module = "software.amazon.msk.auth.iam.IAMLoginModule required"
    for properties, said in (
        ({"sasl_mechanism": "AWS_MSK_IAM"}, "no AWS credentials"),
        ({"sasl_mechanism": "AWS_MSK_IAM", "bootstrap_servers": "kafka:9098"}, "no AWS region"),
        ({"sasl_mechanism": "AWS_MSK_IAM", "sasl_jaas_config": f'{module} awsRoleArn="x";'}, "awsRoleArn"),
    ):
        with pytest.raises(SecurityError, match=said):
            token_of(settings(**properties))


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(SecurityError, match=r"install heliograph\[aws\]"):
        token_of(settings(sasl_mechanism="AWS_MSK_IAM"))


def test_google_gets_its_kind_of_token(monkeypatch: pytest.MonkeyPatch) -> None:
    expiry = datetime.now(UTC) + timedelta(seconds=3000)
    credentials = SimpleNamespace(
        refresh=lambda request: None,
        expiry=expiry.replace(tzinfo=None),
        service_account_email="mirror@project.iam.gserviceaccount.com",
        token="ya29.access",
    )
    auth = SimpleNamespace(
        default=lambda scopes: (credentials, "project"), exceptions=SimpleNamespace(GoogleAuthError=KeyError)
    )
    monkeypatch.setitem(sys.modules, "google.auth", auth)
    monkeypatch.setitem(sys.modules, "google.auth.transport.requests", SimpleNamespace(Request=object))
    made = settings(
        sasl_mechanism="OAUTHBEARER",
        sasl_login_callback_handler_class=GOOGLE,
        sasl_jaas_config="org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
    )
    token, life_s = token_of(made)
    header, claims, access = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.split("."))
    assert json.loads(header) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    found = json.loads(claims)
    assert (found["iss"], found["scope"], found["sub"]) == ("Google", "kafka", credentials.service_account_email)
    assert found["exp"] == expiry.timestamp()
    assert access == b"ya29.access"
    assert 2990 < life_s <= 3000


def test_a_mechanism_of_no_package_is_unknown() -> None:
    with pytest.raises(ConfigError, match=r"sasl\.mechanism 'NONE' is unknown"):
        settings(sasl_mechanism="NONE", sasl_jaas_config="x required;")
