"""Tokens of cloud providers for OAUTHBEARER: Amazon MSK's IAM and Google's Managed Service for Apache Kafka.

Entry points of the group ``heliograph.token_sources`` name them, and those of other packages, by ``sasl.mechanism`` or
``sasl.login.callback.handler.class``. MSK offers OAUTHBEARER wherever it offers AWS_MSK_IAM, and its token is a URL
that is signed as for AWS_MSK_IAM (``aws-msk-iam-sasl-signer``). Both take the identity of the machine that connects.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from connect.core.errors import SecurityError

_REGION: Final = re.compile(r"\.(?:kafka|kafka-serverless)\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?(?::|,|$)")
_EXPIRES_S: Final = 900
_GOOGLE_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


def amazon_msk(options: Mapping[str, str]) -> tuple[str, float]:
    """Return a token and its life in seconds. ``options``: those of ``IAMLoginModule`` and ``bootstrap.servers``.
    Raises SecurityError if there is no region, there are no credentials, or ``botocore`` is not installed."""
    unsupported = sorted(set(options) & {"awsRoleArn", "awsStsRegion", "awsRoleSessionName", "awsRoleExternalId"})
    if unsupported:
        raise SecurityError(f"{unsupported[0]} in sasl.jaas.config is not supported; name a profile with this role")
    region = _REGION.search(options.get("bootstrap.servers", ""))
    name = region[1] if region else os.environ.get("AWS_REGION", "")
    if not name:
        raise SecurityError("the addresses of the brokers name no AWS region; set AWS_REGION in the environment")
    session, auth, web = (_installed(f"botocore.{module}", "aws") for module in ("session", "auth", "awsrequest"))
    credentials = session.Session(profile=options.get("awsProfileName")).get_credentials()
    if credentials is None:
        raise SecurityError("there are no AWS credentials on this machine; see the documentation of botocore")
    url = f"https://kafka.{name}.amazonaws.com/"
    request = web.AWSRequest("GET", url, params={"Action": "kafka-cluster:Connect"})
    keys = credentials.get_frozen_credentials()
    auth.SigV4QueryAuth(keys, "kafka-cluster", name, expires=_EXPIRES_S).add_auth(request)
    return _base64url(f"{request.url}&User-Agent=heliograph".encode()), float(_EXPIRES_S)


def google(options: Mapping[str, str]) -> tuple[str, float]:
    """Return a token of ``GcpLoginCallbackHandler`` and its life in seconds, from the application default credentials.
    Raises SecurityError if there are no credentials, or ``google-auth`` is not installed."""
    auth = _installed("google.auth", "gcp")
    request = _installed("google.auth.transport.requests", "gcp").Request()
    try:
        credentials, _ = auth.default(scopes=[_GOOGLE_SCOPE])
        credentials.refresh(request)
    except auth.exceptions.GoogleAuthError as error:
        raise SecurityError(f"Google gives no token: {type(error).__name__}") from None
    now = datetime.now(UTC)
    expiry = credentials.expiry.replace(tzinfo=UTC)
    header = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    claims = {
        "exp": expiry.timestamp(),
        "iss": "Google",
        "iat": now.timestamp(),
        "scope": "kafka",
        "sub": credentials.service_account_email,
    }
    parts = (json.dumps(header), json.dumps(claims), credentials.token)
    return ".".join(_base64url(part.encode()) for part in parts), (expiry - now).total_seconds()


def _installed(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SecurityError(f"{module} is not installed; install heliograph[{extra}]") from None


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
