"""What is to be said of single values, wherever they stand: Kerberos, and references that nobody resolves. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from connect.cli.check_report import Finding, Level
from connect.core.config import split_list
from connect.core.properties import Properties

_MECHANISM: Final = "sasl.mechanism"
_PROVIDERS: Final = "config.providers"
#: As references of :mod:`connect.core.providers`, of names that a provider may have.
_REFERENCE: Final = re.compile(r"\$\{([A-Za-z][\w-]*):[^}]*\}")
#: What providers are called. Another name may be a piece of a password that looks like a reference.
_USUAL: Final = frozenset(
    [
        *("env", "environment", "file", "directory", "dir", "secret", "secrets", "configmaps", "vault"),
        *("strimzienv", "strimzifile", "strimzidir", "strimzisecrets"),
    ]
)


@dataclass(frozen=True, slots=True)
class Written:
    """A value as a file has it."""

    key: str
    value: str = field(repr=False)
    line: int | None


def in_properties(props: Properties) -> list[Written]:
    """Those of a properties file."""
    return [Written(key, value, props.line(key)) for key, value in props.items()]


def in_config(config: Mapping[str, str | None], lines: Mapping[str, int]) -> list[Written]:
    """Those of a connector's config, but for nulls."""
    return [Written(key, value, lines.get(key)) for key, value in config.items() if value is not None]


def of_values(values: Sequence[Written], declared: Collection[str] = ()) -> Iterator[Finding]:
    """What a start would take otherwise than may be meant. ``declared`` are providers beside those of the file."""
    yield from of_kerberos(values)
    for one, name in undeclared(values, declared):
        said = f"{_named(one.key, name)} stays as it is, as in Java: config.providers does not name it"
        yield Finding(Level.WARNING, said, one.key, one.line)


def of_connector(values: Sequence[Written]) -> Iterator[Finding]:
    """The same of a connector's config, which a worker is sent that may have the providers."""
    yield from of_kerberos(values)
    for one, name in undeclared(values):
        said = f"{_named(one.key, name)} is resolved only where config.providers of the worker names it"
        yield Finding(Level.NOTE, said, one.key, one.line)


def of_kerberos(values: Iterable[Written]) -> Iterator[Finding]:
    """A sentence for each client that is to log in by it."""
    for one in values:
        if one.key.endswith(_MECHANISM) and one.value.strip() == "GSSAPI":
            said = f"{one.key}: Kerberos; its keys are read, but no login at a real one has been tried yet"
            yield Finding(Level.WARNING, said, one.key, one.line)


def undeclared(values: Sequence[Written], declared: Collection[str] = ()) -> Iterator[tuple[Written, str]]:
    """References to providers that nothing declares, each with the provider's name."""
    known = _declared(values)
    for one in values:
        for name in dict.fromkeys(_REFERENCE.findall(one.value)):
            own = (names for prefix, names in known.items() if one.key.startswith(prefix))
            if name not in declared and not any(name in names for names in own):
                yield one, name


def _declared(values: Sequence[Written]) -> dict[str, tuple[str, ...]]:
    """Names of providers by the beginning of the keys that they are declared for: a cluster's, a flow's, all."""
    return {one.key.removesuffix(_PROVIDERS): split_list(one.value) for one in values if declares(one.key)}


def declares(key: str) -> bool:
    """Whether it is ``config.providers``, of a part of the file perhaps."""
    return key == _PROVIDERS or key.endswith(f".{_PROVIDERS}")


def _named(key: str, provider: str) -> str:
    if provider in _USUAL:
        return f"{key}: a reference to the config provider {provider}"
    return f"{key}: what looks like a reference to a config provider"
