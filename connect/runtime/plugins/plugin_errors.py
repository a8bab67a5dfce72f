"""Calls plugins safely, and formats errors for statuses without secrets.

Any exception of a plugin becomes an ordinary error. The text of an error is complete, with its causes.
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
from connect.core.config.security_settings import HIDDEN, SECRETS
from connect.core.errors import ConfigError, HeliographError, PermanentError, RetriableError
from connect.core.herder_api import BadRequest

_REFERENCE: Final = re.compile(r"\$\{[^}]*?:[^}]*?\}")
_WITHIN_JAAS: Final = re.compile(r'(?:password|clientSecret)\s*=\s*"([^"]+)"')
#: Shorter texts are hardly secrets, and masking them would hide half of any text.
_SHORTEST: Final = 4
_CAUSES_AT_MOST: Final = 4
#: A status must fit well into a record.
_LONGEST_TRACE: Final = 64 * 1024


class SecretMask:
    """Masks secret texts."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        # The longest first, because one may contain another.
        self._texts = frozenset(text for text in texts if len(text) >= _SHORTEST)
        wanted = sorted(self._texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, wanted))) if wanted else None

    def with_more(self, texts: Iterable[str]) -> SecretMask:
        return SecretMask(self._texts.union(texts))

    def mask(self, text: str) -> str:
        hidden = text if self._pattern is None else self._pattern.sub(HIDDEN, text)
        # A lone surrogate, e.g. from a file name that is not UTF-8, cannot be written to a record.
        return hidden.encode("utf-8", "backslashreplace").decode()

    def line(self, error: BaseException) -> str:
        """Format ``error`` and its causes in one line for the log; errors of other libraries with their type."""
        reported: list[str] = []
        cause: BaseException | None = error
        while cause is not None and len(reported) < _CAUSES_AT_MOST:
            text = " ".join(self.mask(str(cause)).split())
            reported.append(text if isinstance(cause, HeliographError) else f"{type(cause).__name__}: {text}")
            cause = cause.__cause__
        return ": ".join(reported)

    def trace(self, error: BaseException) -> str:
        """Format the traceback of ``error`` and its causes."""
        text = self.mask("".join(traceback.format_exception(error)))
        if len(text) > _LONGEST_TRACE:
            half = _LONGEST_TRACE // 2
            text = f"{text[:half]}\n... {len(text) - 2 * half} characters omitted ...\n{text[-half:]}"
        return text


def secrets_of(transformer: ConfigTransformer, *configs: Mapping[str, str]) -> SecretMask:
    """Return a mask of the references in raw ``configs``. Raises ConfigError, with the key, if one cannot be
    resolved."""
    keys = {found: key for config in configs for key, value in config.items() for found in _REFERENCE.findall(value)}
    try:
        resolved = transformer.transform({reference: reference for reference in keys})
    except ConfigError as error:
        reference = error.key or ""
        raise ConfigError(error.message.replace(reference, keys[reference], 1), keys[reference]) from None
    return SecretMask(text for reference, text in resolved.items() if text != reference)


def passwords(declared: ConfigDef, props: Mapping[str, str]) -> Iterator[str]:
    """Yield the secrets in a resolved config: values of type password, the connector's own and the clients'."""
    for key, value in props.items():
        setting = declared.settings.get(key)
        if (setting is not None and setting.type is Type.PASSWORD) or key.endswith(SECRETS):
            yield value
            yield from _WITHIN_JAAS.findall(value)


def has_reference(value: str) -> bool:
    return _REFERENCE.search(value) is not None


class PluginBroke(PermanentError):
    """A plugin raised an exception that would end the process or the asyncio task."""


@contextmanager
def plugin_call(what: str) -> Iterator[None]:
    """Guard a call of a plugin; ``what`` begins the message about its exception. SystemExit would end the whole
    process. CancelledError would end the asyncio task as if it had been cancelled: it passes only if it was, so the
    guarded code may also be ours and call plugins. Raises PluginBroke if the plugin raised something that is not an
    Exception; the cause is the reason."""
    try:
        yield
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise PluginBroke(f"{what}: a cancellation ended it, although it was not asked to stop") from error
    except BaseException as error:
        raise PluginBroke(f"{what}: it tried to end the whole process: {error!r}") from error


def masked(error: Exception, secrets: SecretMask) -> HeliographError:
    """Return the error without the secrets: as retriable as before, and still the request's fault if it was."""
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
