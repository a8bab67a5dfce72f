"""Which of several topics a connector fills: ``transform.topic`` and ``transform.other.topics``. Pure.

A query or a transform may send records of one topic to several. Each of these is filled by a connector of its own, with
the same query and transforms: it copies what goes to its topic and leaves out what goes to those that others fill. A
record that goes anywhere else stops its partition, so none is lost because nobody thought of its topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from connect.core.config import Values
from connect.core.errors import ConfigError
from connectors.policy import LONGEST_NAME

TOPIC_KEY: Final = "transform.topic"
OTHERS_KEY: Final = "transform.other.topics"
#: Stands for the source topic.
UNCHANGED: Final = "${topic}"
_IN_NAMES: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@dataclass(frozen=True, slots=True)
class TopicRoutes:
    """Names of topics as a query gives them, with ``${topic}`` for the source topic: ``own`` is filled, ``others`` are
    left to others."""

    own: str = UNCHANGED
    others: tuple[str, ...] = ()

    @property
    def fills_the_usual(self) -> bool:
        """Whether we fill the topic that records go to where nothing sends them elsewhere: where Java's would go."""
        return self.own == UNCHANGED

    def asked(self, topic: str) -> tuple[str, ...]:
        """What a query may call the topic of a record of ``topic``; the first is ours."""
        return tuple(one.replace(UNCHANGED, topic) for one in (self.own, *self.others))


NO_ROUTES: Final = TopicRoutes()


def told(topic: object) -> str:
    """A topic that was computed from a record, for people. What is no topic's name may be anything that stands in the
    record, so it is not told."""
    is_name = isinstance(topic, str) and len(topic) <= LONGEST_NAME and _IN_NAMES.issuperset(topic)
    return str(topic) if is_name else "what is no topic's name"


def topic_routes(values: Values) -> TopicRoutes:
    """Raises ConfigError where a name is none, or ours is among the others."""
    routes = TopicRoutes(values.string(TOPIC_KEY).strip(), values.strings(OTHERS_KEY))
    for key, name in ((TOPIC_KEY, routes.own), *((OTHERS_KEY, other) for other in routes.others)):
        if not name or not _IN_NAMES.issuperset(name.replace(UNCHANGED, "")):
            raise ConfigError(f"{key} has '{name}', which is no topic's name; {UNCHANGED} is the source topic", key)
    if routes.own in routes.others:
        raise ConfigError(
            f"{OTHERS_KEY} has {routes.own}, which is {TOPIC_KEY}: either we fill it or others", OTHERS_KEY
        )
    return routes
