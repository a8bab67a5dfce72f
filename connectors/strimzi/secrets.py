"""Kubernetes' secrets as files: ``DIR/<secret>/<key>``, the way a pod mounts them.

References are written as Strimzi's operator writes them, ``${strimzisecrets:<namespace>/<secret>:<key>}``, so that a
connector's stored config holds no secret and workers of Java can read it too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from connect.core.providers import Provider
from connectors.strimzi.documents import Node

#: Names of providers that Strimzi's operator gives to every worker.
PROVIDER: Final = "strimzisecrets"
#: The entry point of :func:`mounted_secrets`.
PROVIDER_CLASS: Final = "mounted-secrets"
DIRECTORY: Final = "directory"
_REFERENCE: Final = re.compile(rf"\$\{{{PROVIDER}:([^}}:]*):([^}}]*)\}}")
#: They would lead out of the folder, or be the folder itself.
_OUTSIDE: Final = ("", ".", "..")


def mounted_secrets(params: Mapping[str, str]) -> Provider:
    """A provider of the secrets below the folder that ``directory`` names; a :data:`ProviderFactory`.

    The line end behind a value is left out: those who write such files by hand do not mean it.

    Raises:
        ValueError: There is no such folder.
    """
    folder = Path(params.get(DIRECTORY, ""))
    if not params.get(DIRECTORY) or not folder.is_dir():
        raise ValueError(f"{DIRECTORY}: {params.get(DIRECTORY) or 'nothing'} is no folder")

    def read(path: str) -> Mapping[str, str]:
        name = path.rpartition("/")[2]
        if name in _OUTSIDE:
            raise ValueError(f"'{path}' names no secret")
        # Kubernetes mounts keys as links beside a folder of its own that begins with two dots.
        files = [each for each in (folder / name).iterdir() if each.is_file() and not each.name.startswith("..")]
        return {each.name: text.removesuffix("\n") for each in files if (text := _text(each)) is not None}

    return read


def _text(file: Path) -> str | None:
    """None of one that holds no text: key stores stand beside what they were made of."""
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class SecretKey:
    """One value that a resource needs, and the field that says so."""

    secret: str
    key: str
    node: Node


@dataclass
class Secrets:
    """Makes references, and keeps what they need. ``keys`` are those that each secret has, by its name; a secret that
    is not there is missing in it."""

    namespace: str | None
    keys: Mapping[str, frozenset[str]]
    used: list[SecretKey] = field(default_factory=list)

    def reference(self, secret: str, key: str, node: Node) -> str:
        """To be written where the value is to stand."""
        self.used.append(SecretKey(secret, key, node))
        path = f"{self.namespace}/{secret}" if self.namespace else secret
        return f"${{{PROVIDER}:{path}:{key}}}"

    def matching(self, secret: str, pattern: str, node: Node) -> list[str]:
        """References to all keys that a pattern such as ``*.crt`` matches, in order of their names."""
        found = sorted(key for key in self.keys.get(secret, ()) if fnmatchcase(key, pattern))
        return [self.reference(secret, key, node) for key in found or [pattern]]

    def written(self, text: Node) -> None:
        """Keep what the references need that a text of the resource holds itself."""
        for path, key in _REFERENCE.findall(text.value):
            self.used.append(SecretKey(path.rpartition("/")[2], key, text))

    def missing(self) -> list[SecretKey]:
        """What is needed and is not there."""
        needed = {(one.secret, one.key, one.node.path): one for one in self.used}
        return [one for one in needed.values() if one.key not in self.keys.get(one.secret, ())]


def keys_in(folder: Path) -> dict[str, frozenset[str]]:
    """The keys of each secret below ``folder``. Raises OSError where it cannot be read."""
    return {
        secret.name: frozenset(each.name for each in secret.iterdir() if each.is_file())
        for secret in folder.iterdir()
        if secret.is_dir() and not secret.name.startswith("..")
    }
