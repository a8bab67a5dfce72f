"""Calls plugins safely, and formats errors for statuses without secrets.

An exception of a plugin becomes an error like any other. The text of an error is whole, with its causes.
"""

from __future__ import annotations

import asyncio
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from connect.core.config.config_def import ConfigDef, Type
from connect.core.config.properties import ConfigTransformer
from connect.core.config.security_settings import SECURITY
from connect.core.errors import ConfigError, HeliographError, PermanentError, RetriableError
from connect.core.herder_api import BadRequest

_REFERENCE: Final = re.compile(r"\$\{[^}]*?:[^}]*?\}")
#: Whatever stands before them: ``producer.override.``, ``source.cluster.``.
_PASSWORDS: Final = tuple(name for name, setting in SECURITY.settings.items() if setting.type is Type.PASSWORD)
_WITHIN_JAAS: Final = re.compile(r'(?:password|clientSecret)\s*=\s*"([^"]+)"')
_HIDDEN: Final = "[hidden]"
#: Shorter ones would blot out half of any text, and are no secrets worth the name.
_SHORTEST: Final = 4
_CAUSES_AT_MOST: Final = 4
#: A status must fit into a record with room to spare.
_LONGEST_TRACE: Final = 64 * 1024


class SecretMask:
    """Texts that must not be shown."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        # The longest first, since one may contain another.
        self._texts = frozenset(text for text in texts if len(text) >= _SHORTEST)
        wanted = sorted(self._texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, wanted))) if wanted else None

    def with_more(self, texts: Iterable[str]) -> SecretMask:
        """These and ``texts``."""
        return SecretMask(self._texts.union(texts))

    def mask(self, text: str) -> str:
        """``text`` without the secrets."""
        hidden = text if self._pattern is None else self._pattern.sub(_HIDDEN, text)
        # A lone surrogate, as of a file's name that is not UTF-8, fits into no record.
        return hidden.encode("utf-8", "backslashreplace").decode()

    def line(self, error: BaseException) -> str:
        """``error`` and its causes in a line for the log; errors that are not ours are named with their type."""
        told: list[str] = []
        cause: BaseException | None = error
        while cause is not None and len(told) < _CAUSES_AT_MOST:
            text = " ".join(self.mask(str(cause)).split())
            told.append(text if isinstance(cause, HeliographError) else f"{type(cause).__name__}: {text}")
            cause = cause.__cause__
        return ": ".join(told)

    def trace(self, error: BaseException) -> str:
        """The traceback of ``error`` and of its causes."""
        text = self.mask("".join(traceback.format_exception(error)))
        if len(text) > _LONGEST_TRACE:
            half = _LONGEST_TRACE // 2
            text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
        return text


def secrets_of(transformer: ConfigTransformer, *configs: Mapping[str, str]) -> SecretMask:
    """What the references in raw ``configs`` stand for.

    Raises:
        ConfigError: A reference cannot be resolved.
    """
    references = {found for config in configs for value in config.values() for found in _REFERENCE.findall(value)}
    resolved = transformer.transform({reference: reference for reference in references})
    return SecretMask(text for reference, text in resolved.items() if text != reference)


def passwords(declared: ConfigDef, props: Mapping[str, str]) -> Iterator[str]:
    """What is secret in a resolved config by its key's type: of the connector's own, and of clients' security."""
    for key, value in props.items():
        setting = declared.settings.get(key)
        if (setting is not None and setting.type is Type.PASSWORD) or key.endswith(_PASSWORDS):
            yield value
            yield from _WITHIN_JAAS.findall(value)


def has_reference(value: str) -> bool:
    """Whether a raw value refers to a config provider."""
    return _REFERENCE.search(value) is not None


class PluginBroke(PermanentError):
    """A plugin raised what is meant to end a process or an asyncio task, and not to tell of an error."""


@contextmanager
def plugin_call(what: str) -> Iterator[None]:
    """Around a call of a plugin; ``what`` begins the sentence that says what it raised.

    SystemExit would end the whole process. CancelledError would end the asyncio task as if somebody had wanted that: it
    passes only where somebody did, so the call may be of our own code as well, where that calls plugins.

    Raises:
        PluginBroke: What was raised is no Exception; the reason is the cause.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise PluginBroke(f"{what}: something that it waited for was cancelled, though nobody stops it") from error
    except BaseException as error:
        raise PluginBroke(f"{what}: it wants to end the whole process: {error!r}") from error


def masked(error: Exception, secrets: SecretMask) -> HeliographError:
    """The same for whoever asked for it: retriable or not, the request's fault or not; without the secrets."""
    text = secrets.mask(str(error))
    match error:
        case BadRequest():
            return BadRequest(text)
        case ConfigError():
            return ConfigError(text)
        case RetriableError():
            return RetriableError(text)
        case HeliographError():
            return PermanentError(text)
    return PermanentError(f"{type(error).__name__}: {text}")
