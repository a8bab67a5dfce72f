"""Headers that the worker's file asks for in every answer: for browsers on other sites, and by its own rules.

Cross-origin requests are answered as Jetty's ``CrossOriginHandler`` does for Kafka: the origin is echoed, nothing is
refused, and a preflight goes on to the resource.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.utils import formatdate
from typing import Final

from starlette.datastructures import Headers, MutableHeaders

from connect.core.errors import ConfigError
from connect.core.java_regex import UnsupportedRegex, compile_java
from connect.core.rest_defs import HeaderRule
from rest.settings import RestSettings

_DEFAULT_METHODS: Final = ("HEAD", "POST", "GET")
_PREFLIGHT_MAX_AGE_S: Final = "60"
_RULES_KEY: Final = "response.http.headers.config"
_ORIGIN_KEY: Final = "access.control.allow.origin"


class AnswerHeaders:
    """The headers to add. Raises :class:`ConfigError` for settings that cannot be one."""

    def __init__(self, settings: RestSettings) -> None:
        self._rules = tuple(map(_checked, settings.header_rules))
        self._origins = settings.allowed_origins
        self._patterns = tuple(map(_pattern, settings.allowed_origins))
        self._methods = ",".join(settings.allowed_methods or _DEFAULT_METHODS)

    def add_to(self, answer: MutableHeaders, method: str, request: Headers, now_s: float) -> None:
        """Add to an answer's headers; ``method`` and ``request`` (its headers) are what is answered, ``now_s`` the
        wall clock."""
        for rule in self._rules:
            value = rule.value
            if rule.action.endswith("Date"):
                value = formatdate(now_s + int(value) / 1000, usegmt=True)
            if rule.action.startswith("set"):
                answer[rule.name] = value
            else:
                answer.append(rule.name, value)
        if self._origins:
            # Whether an origin is named or not, a cache must not give one site's answer to another.
            answer.append("Vary", "Origin")
            for name, value in self._cross_origin(method, request):
                answer[name] = value

    def _cross_origin(self, method: str, request: Headers) -> Iterator[tuple[str, str]]:
        origin = request.get("origin")
        if origin is None or not self._allows(origin):
            return
        yield "Access-Control-Allow-Origin", origin
        if method == "OPTIONS" and "access-control-request-method" in request:
            yield "Access-Control-Allow-Methods", self._methods
            yield "Access-Control-Allow-Headers", "Content-Type"
            yield "Access-Control-Max-Age", _PREFLIGHT_MAX_AGE_S

    def _allows(self, origins: str) -> bool:
        if "*" in self._origins:
            return True
        return any(pattern.fullmatch(each) for each in origins.split() for pattern in self._patterns)


def _pattern(origin: str) -> re.Pattern[str]:
    if origin == "*":
        return re.compile(".*")
    try:
        return re.compile(compile_java(origin).pattern, re.IGNORECASE)
    except (UnsupportedRegex, re.error) as error:
        raise ConfigError(f"'{origin}' is no regular expression for origins: {error}", _ORIGIN_KEY) from None


def _checked(rule: HeaderRule) -> HeaderRule:
    if rule.action.endswith("Date") and re.fullmatch(r"-?\d+", rule.value) is None:
        raise ConfigError(
            f"{rule.action} {rule.name}: '{rule.value}' is not how many milliseconds from now the date is", _RULES_KEY
        )
    if not (rule.name.isascii() and rule.value.isprintable() and rule.value.isascii()):
        raise ConfigError(f"the header {rule.name!r} holds characters that a header cannot", _RULES_KEY)
    return rule
