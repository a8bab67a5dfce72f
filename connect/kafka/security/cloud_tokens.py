"""Tokens of cloud providers for OAUTHBEARER: Amazon MSK's IAM and Google's Managed Service for Apache Kafka.

Entry points of the group ``heliograph.token_sources`` name them, and those of other packages, by ``sasl.mechanism`` or
``sasl.login.callback.handler.class``. MSK offers OAUTHBEARER wherever it offers AWS_MSK_IAM, and its token is a URL
that is signed as for AWS_MSK_IAM (``aws-msk-iam-sasl-signer``). Both take the identity of the machine that connects.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib
import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from connect.core.errors import SecurityError

_REGION: Final = re.compile(r"\.(?:kafka|kafka-serverless)\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?(?::|,|$)")
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_EXPIRES_S: Final = 900
_EMPTY: Final = hashlib.sha256(b"").hexdigest()
_GOOGLE_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


def amazon_msk(options: Mapping[str, str]) -> tuple[str, float]:
    """Return a token and its life in seconds. ``options``: those of ``IAMLoginModule`` and ``bootstrap.servers``.

    Raises:
        SecurityError: There is no region, there are no credentials, or ``botocore`` is not installed.
    """
    unsupported = sorted(set(options) & {"awsRoleArn", "awsStsRegion", "awsRoleSessionName", "awsRoleExternalId"})
    if unsupported:
        raise SecurityError(f"{unsupported[0]} in sasl.jaas.config is not supported; name a profile with this role")
    region = _REGION.search(options.get("bootstrap.servers", ""))
    name = region[1] if region else os.environ.get("AWS_REGION", "")
    if not name:
        raise SecurityError("the addresses of the brokers name no AWS region; set AWS_REGION in the environment")
    session = _installed("botocore.session", "aws").Session(profile=options.get("awsProfileName"))
    credentials = session.get_credentials()
    if credentials is None:
        raise SecurityError("there are no AWS credentials on this machine; see the documentation of botocore")
    keys = credentials.get_frozen_credentials()
    url = signed_url(
        f"kafka.{name}.amazonaws.com",
        "/",
        {"Action": "kafka-cluster:Connect"},
        (keys.access_key, keys.secret_key, keys.token),
        (name, "kafka-cluster"),
        datetime.now(UTC),
    )
    return _base64url(f"{url}&User-Agent=heliograph".encode()), float(_EXPIRES_S)


def signed_url(
    host: str,
    path: str,
    query: Mapping[str, str],
    keys: tuple[str, str, str | None],
    region_and_service: tuple[str, str],
    now: datetime,
    *,
    expires_s: int = _EXPIRES_S,
    payload: str = _EMPTY,
) -> str:
    """Return a URL for GET that is signed in its query by Signature Version 4.

    Args:
        keys: Access key, secret key and session token.
        payload: The hash of the body, or its replacement.
    """
    access_key, secret_key, session_token = keys
    date, time = f"{now:%Y%m%d}", f"{now:%Y%m%dT%H%M%SZ}"
    scope = "/".join((date, *region_and_service, "aws4_request"))
    signed = {
        **query,
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{access_key}/{scope}",
        "X-Amz-Date": time,
        "X-Amz-Expires": str(expires_s),
        "X-Amz-SignedHeaders": "host",
        **({} if session_token is None else {"X-Amz-Security-Token": session_token}),
    }
    canonical_query = urlencode(sorted(signed.items()), quote_via=quote, safe="-_.~")
    canonical = "\n".join(("GET", quote(path), canonical_query, f"host:{host}\n", "host", payload))
    text = "\n".join((_ALGORITHM, time, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    signature = hmac.new(signing_key(secret_key, date, *region_and_service), text.encode(), "sha256").hexdigest()
    return f"https://{host}{quote(path)}?{canonical_query}&X-Amz-Signature={signature}"


def signing_key(secret_key: str, *parts: str) -> bytes:
    """Return the key for a date, a region and a service (Signature Version 4)."""
    key = f"AWS4{secret_key}".encode()
    for part in (*parts, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def google(options: Mapping[str, str]) -> tuple[str, float]:
    """Return a token of ``GcpLoginCallbackHandler`` and its life in seconds, from the application default credentials.

    Raises:
        SecurityError: There are no credentials, or ``google-auth`` is not installed.
    """
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
