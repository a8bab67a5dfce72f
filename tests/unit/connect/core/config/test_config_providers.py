"""References to config providers in values."""

from __future__ import annotations

from pathlib import Path

import pytest

from connect.core.config.connector_access import NotAllowed
from connect.core.config.properties import ClientProperties, ConfigTransformer, parse_properties
from connect.core.errors import ConfigError

JAVA = "org.apache.kafka.common.config.provider."


def declared(name: str, class_name: str, **params: str) -> dict[str, str]:
    return {
        "config.providers": name,
        f"config.providers.{name}.class": JAVA + class_name,
        **{f"config.providers.{name}.param.{key.replace('_', '.')}": value for key, value in params.items()},
    }


def test_a_file_of_properties(tmp_path: Path) -> None:
    path = tmp_path / "secrets.properties"
    path.write_text("user=bob\npassword=pässword\n", "utf-8")
    transformer = ConfigTransformer(declared("f", "FileConfigProvider"))
    value = f"u=${{f:{path}:user}} p=${{f:{path}:password}} x=${{f:{path}:absent}} y=${{other:{path}:user}} z=${{f}}"
    assert transformer.transform({"a": value, "b": "plain"}) == {
        "a": f"u=bob p=pässword x=${{f:{path}:absent}} y=${{other:{path}:user}} z=${{f}}",
        "b": "plain",
    }


def test_of_a_folder_only_the_files_that_are_asked_for_are_read(tmp_path: Path) -> None:
    (tmp_path / "user.p12").write_bytes(b"\x30\x82\xff")
    (tmp_path / "user.password").write_bytes(b"s3cret\r\n")
    transformer = ConfigTransformer(declared("d", "DirectoryConfigProvider"))
    assert transformer.transform({"a": f"${{d:{tmp_path}:user.password}}"}) == {"a": "s3cret\r\n"}
    with pytest.raises(ConfigError, match=r"^b: \$\{d:.*:user.p12\} cannot be resolved: the file user.p12 is not UTF"):
        transformer.transform({"b": f"${{d:{tmp_path}:user.p12}}"})


def test_the_environment_within_its_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MM2_PASSWORD", "s3cret")
    monkeypatch.setenv("OTHER", "x")
    transformer = ConfigTransformer(declared("env", "EnvVarConfigProvider", allowlist_pattern="MM2_.*"))
    assert transformer.transform({"a": "${env:MM2_PASSWORD}", "b": "${env:OTHER}"}) == {
        "a": "s3cret",
        "b": "${env:OTHER}",
    }


def test_paths_outside_the_allowed_ones_hold_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "in").mkdir()
    for path in (tmp_path / "in" / "f", tmp_path / "f"):
        path.write_text("k=v")
    transformer = ConfigTransformer(declared("f", "FileConfigProvider", allowed_paths=str(tmp_path / "in")))
    escaping = f"${{f:{tmp_path}/in/../f:k}}"
    assert transformer.transform({"a": f"${{f:{tmp_path}/in/f:k}}", "b": escaping}) == {"a": "v", "b": escaping}
    assert "/in/../f, which is not within its allowed.paths" in caplog.text


def test_a_file_that_cannot_be_read_names_the_key_that_refers_to_it(tmp_path: Path) -> None:
    transformer = ConfigTransformer(declared("f", "FileConfigProvider"))
    with pytest.raises(ConfigError, match="No such file") as caught:
        transformer.transform({"us.sasl.jaas.config": f"${{f:{tmp_path}/absent:k}}"})
    assert caught.value.key == "us.sasl.jaas.config"


@pytest.mark.parametrize(("short", "java"), [("file", "FileConfigProvider"), ("directory", "DirectoryConfigProvider")])
def test_providers_go_by_short_names_and_javas(tmp_path: Path, short: str, java: str) -> None:
    (tmp_path / "f").write_text("k=v")
    path, key, value = (tmp_path / "f", "k", "v") if short == "file" else (tmp_path, "f", "k=v")
    for name in (short, java, JAVA + java):
        transformer = ConfigTransformer({"config.providers": "p", "config.providers.p.class": name})
        assert transformer.transform({"a": f"${{p:{path}:{key}}}"}) == {"a": value}


@pytest.mark.parametrize(
    ("class_name", "params", "message"),
    [
        ("FileConfigProvider", {"allowed_paths": "relative/folder"}, "is not absolute"),
        ("DirectoryConfigProvider", {"allowed_paths": "/no/such/folder"}, "does not exist"),
        ("EnvVarConfigProvider", {"allowlist_pattern": "("}, r"allowlist\.pattern"),
        ("VaultConfigProvider", {}, "VaultConfigProvider"),
    ],
)
def test_wrong_declarations_are_refused_at_start(class_name: str, params: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        ConfigTransformer(declared("p", class_name, **params))
    assert caught.value.key == "config.providers.p.class"


def test_what_comes_out_of_a_provider_is_not_resolved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTER", "${env:INNER}")
    monkeypatch.setenv("INNER", "x")
    transformer = ConfigTransformer(declared("env", "EnvVarConfigProvider"))
    assert transformer.transform({"a": "${env:OUTER}"}) == {"a": "${env:INNER}"}


def test_only_the_file_of_the_worker_declares_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_WORD", "word")
    file = declared("env", "EnvVarConfigProvider")
    worker = ConfigTransformer(file)
    for own in (
        {"config.providers": "env,mine"},
        {"config.providers.mine.class": "file"},
        {"config.providers.env.class": "file"},
        {"config.providers.env.param.allowlist.pattern": ".*"},
    ):
        with pytest.raises(NotAllowed, match=f"^{min(own)}: .* only in the worker's file"):
            worker.transform({**own, "a": "${env:SECRET_WORD}"})
    # A connector config of mm2.properties has the declarations of the same file, as in Java.
    assert worker.transform({**file, "a": "${env:SECRET_WORD}"})["a"] == "word"


def test_providers_of_packages() -> None:
    others = {"acme": lambda params: lambda path: {"k": params["x"] + path}}
    props = {"config.providers": "p", "config.providers.p.class": "acme", "config.providers.p.param.x": "1"}
    assert ConfigTransformer(props, others).transform({"a": "${p:2:k}"}) == {"a": "12"}
    with pytest.raises(ConfigError, match="it can be file, directory, env, acme"):
        ConfigTransformer({**props, "config.providers.p.class": "nope"}, others)


DECLARED = "config.providers=env\nconfig.providers.env.class=env\n"


def test_a_clients_file_resolves_by_its_own_providers_and_keeps_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "s3cret")
    found = ClientProperties(parse_properties(DECLARED + "a=${env:WORD}\nb=${env:NOBODYS}\n", "c.properties"))
    assert (found["a"], found["b"]) == ("s3cret", "${env:NOBODYS}")
    assert found.secret_variables == {"WORD", "NOBODYS"}
    assert str(found.error("a is s3cret", "a")) == "c.properties:3: a is ${env:WORD}"
    assert str(found.error("z is missing", "z")) == "c.properties: z is missing"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DECLARED + "a=${env:path:NAME}\n", r"^c.properties:3: a: .* has no paths"),
        ("config.providers=x\nconfig.providers.x.class=nope\n", r"^c.properties:2: config.providers.x.class is 'nope'"),
    ],
)
def test_what_a_clients_file_cannot_resolve_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClientProperties(parse_properties(text, "c.properties"))
