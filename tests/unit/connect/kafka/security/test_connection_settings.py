"""A Java client's properties as arguments of the Python clients."""

from __future__ import annotations

import inspect
import json
import re
from contextlib import nullcontext
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.conn import create_conn
from hypothesis import given
from hypothesis import strategies as st

from connect.core.errors import ConfigError
from connect.kafka.security.connection_settings import (
    ConnectionSettings,
    connection_settings,
    format_address,
    parse_bootstrap,
)

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def settings(**properties: str) -> ConnectionSettings:
    """The settings for keys written with underscores instead of dots."""
    named = {key.replace("_", "."): value for key, value in properties.items()}
    return connection_settings({"bootstrap.servers": "a:9092", **named}, client_id="tool", where="cluster us")


def scram() -> ConnectionSettings:
    line = f'{SCRAM} required username="bob" password="s3cret";'
    return settings(security_protocol="sasl_plaintext", sasl_mechanism="SCRAM-SHA-512", sasl_jaas_config=line)


@pytest.mark.parametrize(
    ("value", "addresses"),
    [
        ("a:9092", (("a", 9092),)),
        (" a:1 , b:2,a:1", (("a", 1), ("b", 2))),
        ("[::1]:9092", (("::1", 9092),)),
        ("::1:9092", (("::1", 9092),)),
        ("SASL_SSL://broker-1.example.com:9092", (("broker-1.example.com", 9092),)),
    ],
)
def test_addresses(value: str, addresses: tuple[tuple[str, int], ...]) -> None:
    assert parse_bootstrap(value, "cluster us") == addresses


@pytest.mark.parametrize("value", ["a", "a:", ":9092", "a:0", "a:65536", "a:9092,", "a b:9092", "a:9092/x", "a:-1"])
def test_addresses_that_are_none(value: str) -> None:
    with pytest.raises(ConfigError, match="is not host:port") as caught:
        parse_bootstrap(value, "cluster us")
    assert caught.value.key == "bootstrap.servers"


@pytest.mark.parametrize("value", [None, "", " "])
def test_missing_addresses(value: str | None) -> None:
    with pytest.raises(ConfigError, match=r"cluster us: bootstrap\.servers is missing"):
        parse_bootstrap(value, "cluster us")


@given(st.ip_addresses(), st.integers(1, 65535))
def test_formatted_addresses_parse_back(host: Any, port: int) -> None:
    assert parse_bootstrap(format_address(str(host), port), "x") == ((str(host), port),)


def test_a_plain_connection() -> None:
    assert settings() == ConnectionSettings((("a", 9092),), "tool")
    assert settings(request_timeout_ms="1000").request_timeout_ms == 1000


def test_user_and_password_reach_the_libraries_and_no_log() -> None:
    scrammed = scram()
    assert (scrammed.security_protocol, scrammed.sasl_mechanism) == ("SASL_PLAINTEXT", "SCRAM-SHA-512")
    for arguments in (scrammed.create_conn_arguments(), scrammed.aiokafka_arguments()):
        assert (arguments["sasl_plain_username"], arguments["sasl_plain_password"]) == ("bob", "s3cret")
        assert "s3cret" not in repr(arguments)
    assert "s3cret" not in repr(scrammed)


def test_arguments_are_those_the_libraries_know() -> None:
    for each in (settings(), scram()):
        inspect.signature(create_conn).bind("host", 1, **each.create_conn_arguments())
        inspect.signature(AIOKafkaConsumer.__init__).bind(None, **each.aiokafka_arguments())
        inspect.signature(AIOKafkaProducer.__init__).bind(None, **each.aiokafka_arguments())


def test_the_wire_form_is_json_and_whole() -> None:
    for each in (settings(), scram()):
        assert ConnectionSettings.from_wire(json.loads(json.dumps(each.to_wire()))) == each


def test_another_client_id() -> None:
    assert settings().with_client_id("x") == ConnectionSettings((("a", 9092),), "x")


def test_values_are_trimmed_as_java_trims_them() -> None:
    assert settings(security_protocol=" PLAINTEXT\t").security_protocol == "PLAINTEXT"


GSSAPI = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"}


@pytest.mark.parametrize(
    ("properties", "key", "message"),
    [
        ({"security_protocol": "TLS"}, "security.protocol", "it can be PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"request_timeout_ms": "1s"}, "request.timeout.ms", "not a number of milliseconds"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, "sasl.jaas.config", "is missing"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "DIGEST"}, "sasl.mechanism", "is unknown"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}, "sasl.jaas.config", "is missing"),
        (GSSAPI, "sasl.kerberos.service.name", "is missing"),
    ],
)
def test_wrong_settings_name_their_key(properties: dict[str, str], key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        settings(**properties)
    assert caught.value.key == key
    assert str(caught.value).startswith("cluster us: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('username="bob"', "has no password for PLAIN"),
        ('password="s3cret"', "has no username for PLAIN"),
        ('username="bob" password="s3cret" tokenauth="true"', "delegation tokens"),
        ('username="bob" password=s3cret#', "an option without a value"),
    ],
)
def test_wrong_jaas_lines_name_the_key_and_no_secret(options: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        settings(
            security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_jaas_config=f"x.Y required {options};"
        )
    assert caught.value.key == "sasl.jaas.config"
    assert "s3cret" not in str(caught.value)


def test_socket_buffers_are_the_systems_unless_they_are_set() -> None:
    def buffers(**given: str) -> tuple[int | None, int | None]:
        props = {"bootstrap.servers": "a:1", **{key.replace("_", "."): value for key, value in given.items()}}
        found = connection_settings(props, client_id="c", where="cluster us")
        return found.send_buffer_bytes, found.receive_buffer_bytes

    assert buffers() == (None, None)
    assert buffers(send_buffer_bytes="-1", receive_buffer_bytes="-1") == (None, None)
    assert buffers(send_buffer_bytes="131072", receive_buffer_bytes="65536") == (131072, 65536)
    with pytest.raises(ConfigError, match=r"receive\.buffer\.bytes is '-2', not a number of bytes"):
        buffers(receive_buffer_bytes="-2")


@pytest.mark.parametrize(
    ("protocol", "key", "value", "is_refused"),
    [
        ("SSL", "ssl.engine.factory.class", "com.x.Engines", True),
        ("PLAINTEXT", "ssl.engine.factory.class", "com.x.Engines", False),
        ("SASL_PLAINTEXT", "sasl.login.class", "com.x.Login", True),
        ("SASL_PLAINTEXT", "sasl.oauthbearer.assertion.algorithm", "RS256", False),
        ("SASL_PLAINTEXT", "sasl.oauthbearer.assertion.file", "/a", True),
        ("SASL_PLAINTEXT", "sasl.login.callback.handler.class", "com.x.Handler", True),
        ("SASL_PLAINTEXT", "sasl.login.callback.handler.class", "a.b.OAuthBearerLoginCallbackHandler", False),
        ("SASL_PLAINTEXT", "sasl.oauthbearer.jwt.retriever.class", "a.b.JwtBearerJwtRetriever", True),
        ("SASL_PLAINTEXT", "sasl.login.retry.backoff.ms", "7", False),
        ("SASL_PLAINTEXT", "sasl.client.callback.handler.class", "com.x.Handler", True),
        ("SSL", "ssl.engine.factory.class", "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory", False),
        ("SSL", "ssl.provider", "SunJSSE", False),
        ("SSL", "ssl.protocol", "TLSv1.3", False),
    ],
)
def test_a_key_that_changes_whom_to_trust_is_refused(protocol: str, key: str, value: str, is_refused: bool) -> None:
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";'
    props = {"bootstrap.servers": "a:1", "security.protocol": protocol, "sasl.mechanism": "PLAIN", key: value}
    with pytest.raises(ConfigError, match=re.escape(key)) if is_refused else nullcontext():
        connection_settings({**props, "sasl.jaas.config": login}, client_id="c", where="cluster us")
