r"""Reads Java properties files with the line of every key, and resolves references in their values.

Files are read as by ``java.util.Properties.load(InputStream)``: Latin-1 with ``\uXXXX`` escapes; the last of several
equal keys wins.

References such as ``${file:/etc/secrets.properties:password}`` follow Kafka's ``ConfigTransformer``: a reference to a
missing provider or key is left unchanged; a file that cannot be read is an error.
"""

from __future__ import annotations

import codecs
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Self

import javaproperties
from javaproperties import KeyValue

from connect.core.config.config_def import split_list
from connect.core.config.connector_access import PROVIDERS, ConnectorAccess, NotAllowed, allowed_providers
from connect.core.config.java_regex import UnsupportedRegex, compile_java
from connect.core.errors import ConfigError

#: A larger file is not a properties file, but for example a log or a jar.
MAX_FILE_BYTES: Final = 1024 * 1024
_LINE_END: Final = re.compile(r"\r\n|\r|\n")


class Properties(Mapping[str, str]):
    """Keys and values in the file's order, with their lines. ``repr`` contains only the keys, because values may be
    passwords."""

    def __init__(
        self,
        values: Mapping[str, str],
        lines: Mapping[str, int] | None = None,
        file: str | None = None,
        replaced: Mapping[str, int] | None = None,
    ) -> None:
        self._values = dict(values)
        self._lines = dict(lines or {})
        #: By key, the line of a value that a later line replaces.
        self.replaced = dict(replaced or {})
        #: The path that the user gave; None if the properties are not from a file.
        self.file = file

    def __getitem__(self, key: str) -> str:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Properties({list(self._values)}, file={self.file!r})"

    def line(self, key: str) -> int | None:
        """Return the line (from 1) on which the effective value begins; None if the file does not contain ``key``."""
        return self._lines.get(key)

    def warning(self, text: str) -> str:
        """Return a sentence that begins with a key, behind the file and the key's line."""
        return str(self.error(text, text.partition(" ")[0]))

    def error(self, message: str, key: str) -> ConfigError:
        """Return a :class:`ConfigError` with the file and the key's line."""
        return ConfigError(message, key, self.file, self.line(key))


def load_properties(path: str | Path) -> Properties:
    """Read a properties file. Raises ConfigError if the path is not a readable file, or the file is too large or
    malformed; it names the line."""
    file = str(path)
    try:
        if Path(path).is_dir():
            raise ConfigError("is a folder, not a properties file", file=file)
        with open(path, "rb") as source:
            data = source.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or type(error).__name__}", file=file) from None
    except ValueError as error:
        raise ConfigError(f"cannot be read: {error}", file=file) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"is larger than {MAX_FILE_BYTES} bytes; is it a properties file?", file=file)
    if b"\0" in data:
        raise ConfigError("holds binary data; is it a properties file?", file=file)
    return parse_properties(data, file)


def parse_properties(text: bytes | str, file: str | None = None) -> Properties:
    r"""Parse properties. Bytes are Latin-1 as in Java; a UTF-8 byte order mark is skipped. Raises ConfigError if a
    ``\u`` escape is malformed."""
    if isinstance(text, bytes):
        text = text.removeprefix(codecs.BOM_UTF8).decode("latin-1")
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    replaced: dict[str, int] = {}
    line = 1
    try:
        for element in javaproperties.parse(text):
            if isinstance(element, KeyValue):
                if element.key in lines:
                    replaced[element.key] = lines[element.key]
                values[element.key] = element.value
                lines[element.key] = line
            line += len(_LINE_END.findall(element.source))
    except javaproperties.InvalidUEscapeError:
        # The message names only the line, because the escape may be part of a password.
        raise ConfigError(
            "malformed \\u escape: four hexadecimal digits must follow; a plain backslash is written twice",
            None,
            file,
            line,
        ) from None
    return Properties(values, lines, file, replaced)


log = logging.getLogger(__name__)

#: Returns the values at a path, by key.
Provider = Callable[[str], Mapping[str, str]]

#: Creates a provider from its ``config.providers.<name>.param.*``; raises ValueError if a parameter is invalid.
ProviderFactory = Callable[[Mapping[str, str]], Provider]

_REFERENCE: Final = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")
_JAVA: Final = "org.apache.kafka.common.config.provider."
_NAMES: Final = "config.providers"
NOTHING: Final[Mapping[str, ProviderFactory]] = {}


class Resolved(str):
    """A value with references to files, which may change: ``written`` has them, ``again`` resolves them as they are
    now."""

    __slots__ = ("again", "written")

    written: str
    again: Callable[[], str]

    @classmethod
    def of(cls, text: str, written: str, again: Callable[[], str]) -> Self:
        found = cls(text)
        found.written, found.again = written, again
        return found


class ConfigTransformer:
    """A resolver of references to the config providers that ``props`` declare. ``others``: further classes of providers
    by name. ``trusted``: connector configs that have the same owner as ``props``. Raises ConfigError if the class of a
    provider is missing, unknown or not allowed, or a parameter is invalid."""

    def __init__(
        self,
        props: Mapping[str, str],
        others: Mapping[str, ProviderFactory] = NOTHING,
        trusted: Iterable[Mapping[str, str]] = (),
    ) -> None:
        self._access = ConnectorAccess(props, trusted)
        self._declared = _declarations(props)
        allowed = allowed_providers(props)
        self._providers: dict[str, Provider] = {}
        self._of_environment: set[str] = set()
        for name in split_list(props.get(_NAMES, "")):
            key = f"{_NAMES}.{name}.class"
            class_name = props.get(key, "").strip()
            factory = others.get(class_name) or _BY_NAME.get(class_name)
            if factory is None:
                known = ", ".join(("file", "directory", "env", *others))
                raise ConfigError(f"{key} is '{class_name}'; it can be {known}, or Java's class for one of them", key)
            if allowed is not None and factory not in [_BY_NAME.get(each, others.get(each)) for each in allowed]:
                raise ConfigError(f"{key}: {class_name} is not allowed; add it to {PROVIDERS}", key)
            prefix = f"{_NAMES}.{name}.param."
            params = {each[len(prefix) :]: value for each, value in props.items() if each.startswith(prefix)}
            try:
                self._providers[name] = factory(params)
            except ValueError as error:
                raise ConfigError(f"{prefix}{error}", key) from None
            if factory is _environment:
                self._of_environment.add(name)

    def transform(self, props: Mapping[str, str]) -> dict[str, str]:
        """Return ``props`` with references resolved. Each path of a provider is read once. Raises ConfigError if a
        provider cannot resolve a reference, naming the key with the reference, and NotAllowed if ``props``, such as a
        connector config, declares other providers than this transformer."""
        own = _declarations(props).items() - self._declared.items()
        if own:
            key = min(own)[0]
            raise NotAllowed(
                f"{key}: config providers can be declared only in the worker's file; declare them there", key
            )
        if not self._providers:
            return dict(props)
        read: dict[tuple[str, str], Mapping[str, str]] = {}
        return {key: self._resolved(key, value, read) for key, value in props.items()}

    def connector_props(self, raw: Mapping[str, str]) -> dict[str, str]:
        """Return a connector's or task's config with references resolved. Raises ConfigError as :meth:`transform`, and
        NotAllowed if the config names files, URLs or brokers that the owner of the worker did not allow."""
        props = self.transform(raw)
        self._access.check(raw, props, lambda value: self._resolved("", value, {}))
        return props

    def variables(self, props: Mapping[str, str]) -> frozenset[str]:
        """Return the names of environment variables that ``props`` refers to. Their values are probably secrets."""
        found = (match for value in props.values() for match in _REFERENCE.finditer(value))
        return frozenset(match.group(4) for match in found if match.group(1) in self._of_environment)

    def _resolved(self, key: str, value: str, read: dict[tuple[str, str], Mapping[str, str]]) -> str:
        def replacement(match: re.Match[str]) -> str:
            provider, path = match.group(1), match.group(3) or ""
            if provider not in self._providers:
                return match.group()
            try:
                if (provider, path) not in read:
                    read[provider, path] = self._providers[provider](path)
                return read[provider, path].get(match.group(4), match.group())
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                raise ConfigError(f"{key}: {match.group()} cannot be resolved: {reason}", key) from None

        text = _REFERENCE.sub(replacement, value)
        files = (one.group(1) for one in _REFERENCE.finditer(value) if one.group(1) not in self._of_environment)
        if text == value or not any(name in self._providers for name in files):
            return text

        def again() -> str:
            now = self._resolved(key, value, {})
            for one in _REFERENCE.finditer(value):
                if one.group() in now and one.group() not in text:
                    raise ConfigError(f"{key}: {one.group()} has no value at the moment", key)
            return now

        return Resolved.of(text, value, again)


def _declarations(props: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in props.items() if key == _NAMES or key.startswith(f"{_NAMES}.")}


class ClientProperties(Properties):
    """A client's properties file, resolved by the providers that it declares (Kafka's ``AbstractConfig``). Errors show
    references, not their values. Raises ConfigError if the declaration of a provider is invalid, or a reference cannot
    be resolved; it names the line."""

    def __init__(self, raw: Properties) -> None:
        try:
            transformer = ConfigTransformer(raw)
            values = transformer.transform(raw)
        except ConfigError as error:
            raise raw.error(error.message, error.key or "") from None
        super().__init__(values, {key: line for key in raw if (line := raw.line(key)) is not None}, raw.file)
        self._raw = raw
        #: Environment variables that the file refers to and no other process needs.
        self.secret_variables = transformer.variables(raw)

    def error(self, message: str, key: str) -> ConfigError:
        value = self.get(key, "")
        if value and value != self._raw[key]:
            message = message.replace(value, self._raw[key])
        return super().error(message, key)


def _allowed(params: Mapping[str, str]) -> Callable[[str], bool]:
    """Return a predicate for paths within ``allowed.paths``; if that is not set, all paths are allowed."""
    folders = [Path(part) for part in split_list(params.get("allowed.paths", ""))]
    for folder in folders:
        if not folder.is_absolute():
            raise ValueError(f"allowed.paths: {folder} is not absolute")
        if not folder.exists():
            raise ValueError(f"allowed.paths: {folder} does not exist")
    resolved = [folder.resolve() for folder in folders]

    def allowed(path: str) -> bool:
        within = not resolved or any(Path(path).resolve().is_relative_to(folder) for folder in resolved)
        if not within:
            log.warning("Config provider did not read %s, which is not within its allowed.paths", path)
        return within

    return allowed


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
        return _Folder(Path(path))

    return read


class _Folder(Mapping[str, str]):
    """The files of a folder by name, each read on access: a folder may hold key stores next to passwords."""

    def __init__(self, path: Path) -> None:
        self._files = {each.name: each for each in path.iterdir() if each.is_file()}

    def __getitem__(self, name: str) -> str:
        try:
            return self._files[name].read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"the file {name} is not UTF-8 text") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _environment(params: Mapping[str, str]) -> Provider:
    try:
        pattern = compile_java(params.get("allowlist.pattern", ".*"))
    except UnsupportedRegex as error:
        raise ValueError(f"allowlist.pattern: {error}") from None

    def read(path: str) -> Mapping[str, str]:
        if path:
            raise ValueError("the environment has no paths; use ${env:NAME}")
        return {name: value for name, value in os.environ.items() if pattern.fullmatch(name)}

    return read


_PROVIDERS: Final[Mapping[str, ProviderFactory]] = {
    "FileConfigProvider": _file,
    "DirectoryConfigProvider": _directory,
    "EnvVarConfigProvider": _environment,
}
_BY_NAME: Final[Mapping[str, ProviderFactory]] = {
    **{_JAVA + name: factory for name, factory in _PROVIDERS.items()},
    **_PROVIDERS,
    "file": _file,
    "directory": _directory,
    "env": _environment,
}
#: The parameter that each of these classes reads.
_PARAMETER: Final[Mapping[ProviderFactory, str]] = {
    _file: "allowed.paths",
    _directory: "allowed.paths",
    _environment: "allowlist.pattern",
}


def provider_notice(key: str, props: Mapping[str, str]) -> str | None:
    """Return why a key that begins with ``config.providers.`` has no effect, without its subject; None if it has one
    or its provider's class is not one of Kafka's."""
    rest = key.removeprefix(f"{_NAMES}.")
    name = next((one for one in split_list(props.get(_NAMES, "")) if rest.startswith(f"{one}.")), None)
    if name is None:
        return f"has no effect: {_NAMES} does not name '{rest.partition('.')[0]}'"
    what = rest.removeprefix(f"{name}.")
    if what == "class":
        return None
    factory = _BY_NAME.get(props.get(f"{_NAMES}.{name}.class", "").strip())
    known = "" if factory is None else _PARAMETER[factory]
    if what.startswith("param.") and (not known or what == f"param.{known}"):
        return None
    return f"is not known and has no effect; known are {_NAMES}.{name}.class and {_NAMES}.{name}.param.{known or '*'}"
