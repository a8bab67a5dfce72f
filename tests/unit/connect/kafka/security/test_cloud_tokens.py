"""Tokens of cloud providers: what their libraries, which are faked, are given, and the token that comes of it."""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest

from connect.core.errors import ConfigError, SecurityError
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings
from connect.kafka.security.oauth import Tokens

MSK = "b-1.demo.abc.c2.kafka.eu-west-1.amazonaws.com:9098,b-2.demo.abc.c2.kafka.eu-west-1.amazonaws.com:9098"
GOOGLE = "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler"


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
    """What is used of ``botocore``. It signs by adding what it was given to the URL."""

    profiles: tuple[str | None, ...] = ()

    def __init__(self, monkeypatch: pytest.MonkeyPatch, keys: object) -> None:
        self._keys = keys
        for module in ("session", "auth", "awsrequest"):
            monkeypatch.setitem(sys.modules, f"botocore.{module}", self)

    def Session(self, profile: str | None) -> Any:  # its name there
        self.profiles = (*self.profiles, profile)
        found = None if self._keys is None else SimpleNamespace(get_frozen_credentials=lambda: self._keys)
        return SimpleNamespace(get_credentials=lambda: found)

    def AWSRequest(self, method: str, url: str, params: dict[str, str]) -> Any:
        return SimpleNamespace(url=f"{url}?{urlencode(params)}")

    def SigV4QueryAuth(self, keys: object, service: str, region: str, expires: int) -> Any:
        def add_auth(request: Any) -> None:
            request.url += f"&X-Amz-Credential={keys}/{region}/{service}&X-Amz-Expires={expires}"

        return SimpleNamespace(add_auth=add_auth)


def test_msk_gets_a_signed_url_for_its_region(monkeypatch: pytest.MonkeyPatch) -> None:
    botocore = Botocore(monkeypatch, "keys")
    made = settings(
        sasl_mechanism="AWS_MSK_IAM",
        sasl_jaas_config='software.amazon.msk.auth.iam.IAMLoginModule required awsProfileName="mirror";',
        sasl_client_callback_handler_class="software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    )
    token, life_s = token_of(made)
    assert (life_s, botocore.profiles) == (900, ("mirror",))
    assert base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode() == (
        "https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect"
        "&X-Amz-Credential=keys/eu-west-1/kafka-cluster&X-Amz-Expires=900&User-Agent=heliograph"
    )


def test_msk_without_credentials_or_region_or_with_a_role_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    Botocore(monkeypatch, None)
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
