"""Calls of what authors of plugins wrote: whatever they raise is an error like any other, and shows no secret."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from connect.core.errors import ConfigError, HeliographError, PermanentError, RetriableError
from connect.core.herding import BadRequest
from connect.runtime.traces import Secrets


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


def masked(error: Exception, secrets: Secrets) -> HeliographError:
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
