"""References to config providers in values."""

from __future__ import annotations

from pathlib import Path

import pytest

from connect.core.errors import ConfigError
from connect.core.providers import ConfigTransformer

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


def test_a_folder_of_files_is_read_untrimmed(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    transformer = ConfigTransformer(declared("d", "DirectoryConfigProvider"))
    assert transformer.transform({"a": f"${{d:{tmp_path}:password}}"}) == {"a": "s3cret\n"}


def test_the_environment_within_its_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MM2_PASSWORD", "s3cret")
    monkeypatch.setenv("OTHER", "x")
    transformer = ConfigTransformer(declared("env", "EnvVarConfigProvider", allowlist_pattern="MM2_.*"))
    assert transformer.transform({"a": "${env:MM2_PASSWORD}", "b": "${env:OTHER}"}) == {
        "a": "s3cret",
        "b": "${env:OTHER}",
    }


def test_paths_outside_the_allowed_ones_hold_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for path in (tmp_path / "in" / "f", tmp_path / "f"):
        path.write_text("k=v")
    transformer = ConfigTransformer(declared("f", "FileConfigProvider", allowed_paths=str(tmp_path / "in")))
    escaping = f"${{f:{tmp_path}/in/../f:k}}"
    assert transformer.transform({"a": f"${{f:{tmp_path}/in/f:k}}", "b": escaping}) == {"a": "v", "b": escaping}


def test_without_providers_nothing_is_touched() -> None:
    assert ConfigTransformer({}).transform({"a": "${file:/x:y}"}) == {"a": "${file:/x:y}"}


def test_a_file_that_cannot_be_read_names_the_key_that_refers_to_it(tmp_path: Path) -> None:
    transformer = ConfigTransformer(declared("f", "FileConfigProvider"))
    with pytest.raises(ConfigError, match="No such file") as caught:
        transformer.transform({"us.sasl.jaas.config": f"${{f:{tmp_path}/absent:k}}"})
    assert caught.value.key == "us.sasl.jaas.config"


def test_an_unknown_provider_class_is_refused() -> None:
    with pytest.raises(ConfigError, match="VaultConfigProvider") as caught:
        ConfigTransformer(declared("v", "VaultConfigProvider"))
    assert caught.value.key == "config.providers.v.class"
