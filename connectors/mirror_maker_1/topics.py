"""Which topics are copied, from the lists of MirrorMaker 1's command line. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from connect.core.errors import ConfigError
from connect.core.java_regex import UnsupportedRegex, compile_java

_QUOTES: Final = "\"'"
_INTERNAL_ENDS: Final = ("-internal", ".internal")


def is_internal(topic: str) -> bool:
    """Whether a topic is Kafka's own, or one that a mirror keeps for itself: copied under its own name it would be
    taken for the target's."""
    return topic.startswith("__") or topic.endswith(_INTERNAL_ENDS)


def pattern_of(raw: str) -> str:
    """The regular expression in a list: commas stand for alternatives, blanks and quotes around it for nothing (Kafka's
    ``TopicFilter``)."""
    text = raw.strip().replace(",", "|").replace(" ", "")
    return text.lstrip(_QUOTES).rstrip(_QUOTES)


@dataclass(frozen=True, slots=True)
class TopicList:
    """Says whether a topic is copied: where its user ``wants`` it and it is not internal."""

    wants: Callable[[str], bool]

    def __call__(self, topic: str) -> bool:
        return not is_internal(topic) and self.wants(topic)

    def left_out(self, topics: Iterable[str]) -> set[str]:
        """Those that are wanted and all the same not copied."""
        return {topic for topic in topics if is_internal(topic) and self.wants(topic)}


def is_lone_asterisk(include: str | None) -> bool:
    """Whether a list is what Kafka's documentation of 0.8 to 2.8 has for all topics, and is no regular expression."""
    return include is not None and pattern_of(include) == "*"


def takes(include: str | None, exclude: str | None, option: str = "") -> TopicList:
    """Which topics are copied, by exactly one of the two lists. ``option`` is the one that its user wrote.

    Raises:
        ConfigError: Both are given, or none, or the expression is none.
    """
    if (include is None) == (exclude is None):
        raise ConfigError("exactly one of --include (--whitelist) and --exclude (--blacklist) is required", "include")
    default, raw = ("--include", include) if include is not None else ("--exclude", exclude)
    written = option or default
    key, expression = written.lstrip("-"), ".*" if is_lone_asterisk(include) else pattern_of(raw or "")
    if not expression:
        raise ConfigError(f"{written} names no topic", key)
    try:
        matches = compile_java(expression).fullmatch
    except UnsupportedRegex as error:
        about = "it is a regular expression of Java's, in which .* stands for any text"
        raise ConfigError(f"{written} {raw}: {error}; {about}", key) from None
    if include is not None:
        return TopicList(lambda topic: matches(topic) is not None)
    return TopicList(lambda topic: matches(topic) is None)
