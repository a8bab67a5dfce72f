"""What topics are called on the target: by the policy, and by a query or transforms that send records elsewhere. Pure.

A query sees a record with the name of its source topic, and what it makes of that the policy makes a remote name of. A
transform sees the remote name (Kafka ``MirrorSourceTask.convertRecord``), and what it makes of that is the final one.
What a ``RegexRouter`` makes of it without a predicate, or with one that looks at the topic alone, is known without any
record. Where it depends on the record, :mod:`connectors.transforms.topic_routes` says which topics there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from connect.api.policy import ReplicationPolicy
from connect.api.transformations import NamedPlugin, NamedStep, TransformationStep
from connect.core.errors import ConfigError, PermanentError
from connectors.dataplane.plan import Ways
from connectors.transforms.smt_chain import ChainStep, MadePlugin, TransformUnusable, made_step, renamed
from connectors.transforms.topic_routes import NO_ROUTES, OTHERS_KEY, TOPIC_KEY, TopicRoutes

ROUTER: Final = "org.apache.kafka.connect.transforms.RegexRouter"
_BY_TOPIC: Final = "org.apache.kafka.connect.transforms.predicates.TopicNameMatches"
#: Where they are imported from: what a name means must not depend on which worker asks.
_CLASSES: Final = {
    ROUTER: "connect.plugins.transforms.routers:RegexRouter",
    _BY_TOPIC: "connect.plugins.predicates:TopicNameMatches",
}


def renames_topics(step: NamedStep) -> bool:
    """Whether all that a step does is to give topics other names, whatever stands in a record."""
    return _is(step.transformation, ROUTER) and (step.predicate is None or _is(step.predicate, _BY_TOPIC))


def renaming_steps(steps: Sequence[NamedStep]) -> tuple[TransformationStep, ...]:
    """Those of a connector's transforms that rename topics, made. Raises ConfigError where settings are wrong."""
    found = []
    for step in filter(renames_topics, steps):
        predicate = None if step.predicate is None else _plugin(step.predicate, _BY_TOPIC)
        try:
            found.append(made_step(ChainStep(_plugin(step.transformation, ROUTER), predicate, step.negate)))
        except TransformUnusable as error:
            raise ConfigError(str(error), f"{step.transformation.prefix}type") from error
    return tuple(found)


@dataclass(frozen=True, slots=True)
class RemoteNames:
    """``renaming``: transforms that see what the policy gives, in order. ``routes``: of several topics the one that is
    filled; where ``by_query``, a query sends records there, else transforms do."""

    source_alias: str
    policy: ReplicationPolicy
    renaming: tuple[TransformationStep, ...] = field(default=(), repr=False)
    routes: TopicRoutes = NO_ROUTES
    by_query: bool = False

    @property
    def are_the_policys(self) -> bool:
        """Whether the policy alone names remote topics, so that it reads what their names tell."""
        return not self.renaming and self.routes.fills_the_usual

    def of(self, topic: str) -> str:
        """The name on the target of a topic of the source. Raises PermanentError where it has none."""
        return self.all_of(topic)[0]

    def all_of(self, topic: str) -> tuple[str, ...]:
        """Names on the target of all that records of a source topic are sent to; the first is ours. Raises
        PermanentError where one has none, or ours is one of the others' too."""
        asked = self.routes.asked(topic)
        name, *others = names = tuple(map(self._final, asked))
        if name in others:
            raise PermanentError(
                f"topic {topic} is not mirrored: {TOPIC_KEY} and {OTHERS_KEY} both stand for its remote topic {name}, "
                "so it would be filled twice; change one of them, or leave the topic out by topics.exclude"
            )
        if (asked[0] != topic or self.renaming) and self.policy.is_internal_topic(name):
            raise PermanentError(
                f"topic {topic} is not mirrored: its query or transforms give it the remote name {name}, which is that "
                "of an internal topic; change them, or leave the topic out by topics.exclude"
            )
        return names

    def ways(self, topic: str) -> Ways:
        """How records of a source topic are told apart. Raises as :meth:`of`."""
        asked = self.routes.asked(topic)
        if self.by_query:
            return Ways(self._by_policy(asked[0]), asked=asked)
        named = tuple(map(self._final, asked)) if self.routes != NO_ROUTES else ()
        return Ways(self._by_policy(topic), named=named)

    def _by_policy(self, topic: str) -> str:
        return self.policy.format_remote_topic(self.source_alias, topic)

    def _final(self, topic: str) -> str:
        return renamed(self.renaming, self._by_policy(topic))


def _is(plugin: NamedPlugin, java_class: str) -> bool:
    return plugin.name.strip() in (java_class, java_class.rpartition(".")[2])


def _plugin(plugin: NamedPlugin, java_class: str) -> MadePlugin:
    return MadePlugin(_CLASSES[java_class], plugin.name, dict(plugin.props))
