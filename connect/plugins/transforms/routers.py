"""RegexRouter and TimestampRouter: other topics for records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from connect.api.connector import Props
from connect.api.convert import DataError, Transformation
from connect.api.source import SourceRecord
from connect.core.config import REQUIRED, ConfigDef, Importance, Setting, Type
from connect.core.errors import ConfigError
from connect.core.java_regex import compile_java
from connect.plugins.java_values import date_of
from connect.plugins.simple_date_format import BadPattern, SimpleDateFormat
from connect.plugins.transforms.fields import JavaRegex

_NAMED: Final = re.compile(r"\$\{([a-zA-Z][a-zA-Z0-9]*)\}")


class RegexRouter(Transformation):
    """``org.apache.kafka.connect.transforms.RegexRouter``: topics renamed where a regular expression matches them."""

    def __init__(self) -> None:
        self._regex = re.compile("")
        self._replacement: Sequence[str | int] = ()

    @classmethod
    def config_def(cls) -> ConfigDef:
        return ConfigDef.of(
            Setting(
                "regex", Type.STRING, REQUIRED, "Java's regular expression for topics.", JavaRegex(), Importance.HIGH
            ),
            Setting(
                "replacement",
                Type.STRING,
                REQUIRED,
                "What the match becomes; $1 is the first group.",
                importance=Importance.HIGH,
            ),
        )

    def configure(self, props: Props) -> None:
        values = self.config_def().parse(props)
        self._regex = compile_java(values.string("regex"))
        self._replacement = replacement_parts(values.string("replacement"), self._regex)

    def apply(self, record: SourceRecord) -> SourceRecord:
        if self._regex.fullmatch(record.topic) is None:
            return record
        # Java then replaces the first match from the left, which may be shorter than the whole.
        topic = self._regex.sub(self._replaced, record.topic, count=1)
        return replace(record, topic=topic)

    def _replaced(self, match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self._replacement)


def replacement_parts(text: str, regex: re.Pattern[str]) -> tuple[str | int, ...]:
    r"""A replacement of ``java.util.regex.Matcher``: text, and the numbers of groups (``$1``, ``${name}``).

    Raises:
        ConfigError: A group is not there, or a ``$`` or backslash stands alone.
    """
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text):
            parts.append(text[at + 1])
            at += 2
        elif (named := _NAMED.match(text, at)) is not None:
            if named[1] not in regex.groupindex:
                raise _bad_replacement(f"No group with name {{{named[1]}}}")
            parts.append(regex.groupindex[named[1]])
            at = named.end()
        elif text[at] == "$":
            digits = re.match("[0-9]+", text[at + 1 :])
            if digits is None:
                raise _bad_replacement("Illegal group reference")
            # As many digits as still name a group.
            length = max((n for n in range(1, len(digits[0]) + 1) if int(digits[0][:n]) <= regex.groups), default=0)
            if not length:
                raise _bad_replacement(f"No group {digits[0][0]}")
            parts.append(int(digits[0][:length]))
            at += 1 + length
        elif text[at] == "\\":
            raise _bad_replacement("character to be escaped is missing")
        else:
            parts.append(text[at])
            at += 1
    return tuple(parts)


def _bad_replacement(why: str) -> ConfigError:
    return ConfigError(f"replacement: {why}; a literal $ or backslash takes a backslash before it", "replacement")


class TimestampRouter(Transformation):
    """``org.apache.kafka.connect.transforms.TimestampRouter``: the topic named after the record's time."""

    def __init__(self) -> None:
        self._topic_format = ""
        self._timestamp_format = SimpleDateFormat("")

    @classmethod
    def config_def(cls) -> ConfigDef:
        return ConfigDef.of(
            Setting(
                "topic.format",
                Type.STRING,
                "${topic}-${timestamp}",
                "The new topic, of ${topic} and ${timestamp}.",
                importance=Importance.HIGH,
            ),
            Setting(
                "timestamp.format",
                Type.STRING,
                "yyyyMMdd",
                "The timestamp's form, as of java.text.SimpleDateFormat.",
                importance=Importance.HIGH,
            ),
        )

    def configure(self, props: Props) -> None:
        values = self.config_def().parse(props)
        self._topic_format = values.string("topic.format")
        pattern = values.string("timestamp.format")
        try:
            self._timestamp_format = SimpleDateFormat(pattern)
        except BadPattern as error:
            raise ConfigError(f"timestamp.format {pattern}: {error}", "timestamp.format") from None

    def apply(self, record: SourceRecord) -> SourceRecord:
        if record.timestamp_ms is None:
            raise DataError(f"Timestamp missing on record for topic {record.topic}")
        timestamp = self._timestamp_format.format(date_of(record.timestamp_ms))
        with_topic = self._topic_format.replace("${topic}", record.topic)
        return replace(record, topic=with_topic.replace("${timestamp}", timestamp))
