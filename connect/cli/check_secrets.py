"""Secrets of a Strimzi resource that are at hand, and the clusters that cannot be asked without the others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from connect.cli.check_report import Finding, Level, one_line
from connect.core.errors import ConfigError
from connect.core.providers import Provider, ProviderFactory
from connect.runtime.discovery import config_providers
from connectors.strimzi.secrets import PROVIDER, PROVIDER_CLASS, SecretKey, keys_in, mounted_secrets
from connectors.strimzi.translating import Translation

_REFERENCE: Final = re.compile(rf"\$\{{{PROVIDER}:([^}}:]*):[^}}]*\}}")


@dataclass(frozen=True, slots=True)
class Given:
    """What ``--secrets`` says: a folder, None without it, and the keys of each secret there."""

    folder: Path | None
    keys: Mapping[str, frozenset[str]]

    @property
    def directory(self) -> str | None:
        return None if self.folder is None else str(self.folder.resolve())


def given(folder: Path | None) -> Given:
    """Raises ConfigError where it is no folder that can be read."""
    if folder is None:
        return Given(None, {})
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder", "--secrets")
    try:
        return Given(folder, keys_in(folder))
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror or type(error).__name__}", "--secrets") from None


def lenient_providers() -> dict[str, ProviderFactory]:
    """Those of workers, but that a secret which is not there leaves its references as they are: it is told once."""
    return {**config_providers(), PROVIDER_CLASS: _mounted}


def _mounted(params: Mapping[str, str]) -> Provider:
    read = mounted_secrets(params)

    def read_if_there(path: str) -> Mapping[str, str]:
        try:
            return read(path)
        except FileNotFoundError:
            return {}

    return read_if_there


def of_missing(secrets: Given, missing: SecretKey) -> Finding:
    """What a start would need."""
    path, needed = missing.node.path, f"secret {missing.secret}, key {missing.key}"
    if secrets.folder is None:
        return Finding(Level.NOTE, f"{path} needs {needed}: say --secrets DIR at the start", path, missing.node.line)
    return Finding(Level.WARNING, f"{path} needs {needed}, which is not in {secrets.folder}", path, missing.node.line)


def not_asked(found: Translation, config: Mapping[str, str], secrets: Given) -> Finding | None:
    """Say that the clusters cannot be asked, if a resolved ``config`` still refers to secrets; the line is that of the
    field that needs the first."""
    paths = (path for value in config.values() for path in _REFERENCE.findall(value))
    names = list(dict.fromkeys(path.rpartition("/")[2] for path in paths))
    if not names:
        return None
    where = "say --secrets DIR" if secrets.folder is None else f"not in {secrets.folder}"
    line = next((one.node.line for one in found.missing if one.secret in names), None)
    word = "secret" if len(names) == 1 else "secrets"
    return Finding(
        Level.UNKNOWN, f"the clusters could not be asked for want of {word} {one_line(names)}: {where}", line=line
    )
