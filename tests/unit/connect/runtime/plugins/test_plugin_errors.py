"""Errors as text, without secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from connect.core.config.config_def import ConfigDef, Setting, Type
from connect.core.config.properties import ConfigTransformer
from connect.core.errors import ConfigError, PermanentError
from connect.runtime.plugins.plugin_errors import SecretMask, has_reference, passwords, secrets_of

FILES = {
    "config.providers": "file",
    "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
}


def test_a_trace_shows_causes_and_hides_secrets() -> None:
    def fail() -> None:
        try:
            raise OSError("cannot log in with hunter2")
        except OSError as error:
            raise PermanentError("no connection") from error

    with pytest.raises(PermanentError) as raised:
        fail()
    trace = SecretMask(["hunter2", "abc"]).trace(raised.value)
    assert "OSError: cannot log in with [hidden]" in trace
    assert "PermanentError: no connection" in trace
    assert "test_plugin_errors.py" in trace
    assert SecretMask(["hunter2"]).line(raised.value) == "no connection: OSError: cannot log in with [hidden]"


def test_a_trace_is_bounded() -> None:
    trace = SecretMask().trace(ValueError("x" * 1_000_000))
    assert len(trace) < 70_000
    assert "characters omitted" in trace
    assert trace.startswith("ValueError: xxx")


def test_secrets_are_what_references_stand_for(tmp_path: Path) -> None:
    file = tmp_path / "secrets.properties"
    file.write_text("user=jane-doe\npassword=hunter2\n")
    raw = {"url": f"db://${{file:{file}:user}}:${{file:{file}:password}}@host", "plain": "not-secret"}
    secrets = secrets_of(ConfigTransformer(FILES), raw, {"missing": f"${{file:{file}:none}}"})
    assert secrets.mask("jane-doe hunter2 not-secret db://") == "[hidden] [hidden] not-secret db://"
    with pytest.raises(ConfigError):
        secrets_of(ConfigTransformer(FILES), {"a": f"${{file:{tmp_path}/none:b}}"})


@pytest.mark.parametrize(("value", "has"), [("${file:a:b}", True), ("x${env:B}y", True), ("${b}", False), ("b", False)])
def test_a_reference_is_seen(value: str, has: bool) -> None:
    assert has_reference(value) is has


def test_passwords_are_secret_by_their_keys() -> None:
    declared = ConfigDef.of(Setting("token", Type.PASSWORD, None, ""), Setting("user", Type.STRING, None, ""))
    jaas = 'org.x.PlainLoginModule required username="jane-doe" password="hunter2";'
    props = {
        "token": "abcdef",
        "user": "jane-doe",
        "producer.override.sasl.jaas.config": jaas,
        "source.cluster.ssl.key.password": "sesame",
    }
    found = list(passwords(declared, props))
    assert found == ["abcdef", jaas, "hunter2", "sesame"]
    secrets = SecretMask(["first"]).with_more(found)
    assert secrets.mask("first abcdef jane-doe hunter2") == "[hidden] [hidden] jane-doe [hidden]"


def test_a_lone_surrogate_in_an_error_fits_into_a_record() -> None:
    error = OSError("no such file: caf\udce9")
    assert SecretMask().trace(error).encode().endswith(b"caf\\udce9\n")
    assert SecretMask().line(error) == "OSError: no such file: caf\\udce9"
