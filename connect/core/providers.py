"""References such as ``${file:/etc/secrets.properties:password}`` in values (Kafka's ``ConfigTransformer``).

A reference whose provider or key is not there stays as it is, as in Java; a file that cannot be read is an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from connect.core.config import split_list
from connect.core.errors import ConfigError
from connect.core.properties import parse_properties

#: What a provider answers: the values at a path, by key.
Provider = Callable[[str], Mapping[str, str]]

_REFERENCE: Final = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")
_JAVA: Final = "org.apache.kafka.common.config.provider."


class ConfigTransformer:
    """Replaces references in settings by what the declared providers hold.

    Args:
        props: Where ``config.providers`` and the keys below it stand.

    Raises:
        ConfigError: A provider has no class, or one that is not known.
    """

    def __init__(self, props: Mapping[str, str]) -> None:
        self._providers: dict[str, Provider] = {}
        self._of_environment: set[str] = set()
        for name in split_list(props.get("config.providers", "")):
            key = f"config.providers.{name}.class"
            class_name = props.get(key, "").strip()
            if class_name not in _PROVIDERS:
                known = ", ".join(each.removeprefix(_JAVA) for each in _PROVIDERS)
                raise ConfigError(f"{key} is '{class_name}'; it can be {_JAVA} with {known}", key)
            prefix = f"config.providers.{name}.param."
            params = {each[len(prefix) :]: value for each, value in props.items() if each.startswith(prefix)}
            self._providers[name] = _PROVIDERS[class_name](params)
            if _PROVIDERS[class_name] is _environment:
                self._of_environment.add(name)

    def transform(self, props: Mapping[str, str]) -> dict[str, str]:
        """``props`` with references resolved, each path of a provider read once.

        Raises:
            ConfigError: A provider cannot read what a reference names; the key that holds it is named.
        """
        if not self._providers:
            return dict(props)
        read: dict[tuple[str, str], Mapping[str, str]] = {}
        return {key: self._resolved(key, value, read) for key, value in props.items()}

    def variables(self, props: Mapping[str, str]) -> frozenset[str]:
        """The names of the environment variables that ``props`` refers to, which are likely to hold secrets."""
        found = (match for value in props.values() for match in _REFERENCE.finditer(value))
        return frozenset(match.group(4) for match in found if match.group(1) in self._of_environment)

    def _resolved(self, key: str, value: str, read: dict[tuple[str, str], Mapping[str, str]]) -> str:
        def replacement(match: re.Match[str]) -> str:
            provider, path = match.group(1), match.group(3) or ""
            if provider not in self._providers:
                return match.group()
            if (provider, path) not in read:
                try:
                    read[provider, path] = self._providers[provider](path)
                except (OSError, ValueError) as error:
                    reason = error.strerror if isinstance(error, OSError) else str(error)
                    raise ConfigError(f"{key}: ${{{provider}:{path}:...}} cannot be resolved: {reason}", key) from None
            return read[provider, path].get(match.group(4), match.group())

        return _REFERENCE.sub(replacement, value)


def _allowed(params: Mapping[str, str]) -> Callable[[str], bool]:
    """Whether a path lies in ``allowed.paths``, everywhere if that is not set."""
    text = params.get("allowed.paths", "").strip()
    folders = [Path(part).resolve() for part in split_list(text)]
    return lambda path: not folders or any(Path(path).resolve().is_relative_to(folder) for folder in folders)


def _file(params: Mapping[str, str]) -> Provider:
    allowed = _allowed(params)

    def read(path: str) -> Mapping[str, str]:
        if not path or not allowed(path):
            return {}
        try:
            return parse_properties(Path(path).read_text("utf-8"), path)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    return read


def _directory(params: Mapping[str, str]) -> Provider:
    allowed = _allowed(params)

    def read(path: str) -> Mapping[str, str]:
        if not path or not allowed(path):
            return {}
        return {each.name: each.read_text("utf-8") for each in Path(path).iterdir() if each.is_file()}

    return read


def _environment(params: Mapping[str, str]) -> Provider:
    pattern = re.compile(params.get("allowlist.pattern", ".*"))

    def read(path: str) -> Mapping[str, str]:
        if path:
            raise ValueError("the environment has no paths; write ${env:NAME}")
        return {name: value for name, value in os.environ.items() if pattern.fullmatch(name)}

    return read


_PROVIDERS: Final[Mapping[str, Callable[[Mapping[str, str]], Provider]]] = {
    _JAVA + "FileConfigProvider": _file,
    _JAVA + "DirectoryConfigProvider": _directory,
    _JAVA + "EnvVarConfigProvider": _environment,
}
