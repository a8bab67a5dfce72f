"""Find the target names of topics: by the policy, and by a query or transforms that send records elsewhere.

A query sees a record with the name of its source topic, and what it makes of that the policy makes a remote name of. A
transform sees the remote name (Kafka ``MirrorSourceTask.convertRecord``), and what it makes of that is the final one.
What a ``RegexRouter`` makes of it without a predicate, or with one that looks at the topic alone, is known without any
record. When it depends on the record, :mod:`connectors.transforms.smt_chain` says which topics there are.

The plan of a chain says to slices which class each transform is, and from where it is imported there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from connect.api.plugins import PluginDescription, PluginKind
from connect.api.policy import ReplicationPolicy
from connect.api.transformations import NamedPlugin, NamedStep, TransformationStep
from connect.core.errors import ConfigError, PermanentError
from connectors.formats.types import Ways
from connectors.transforms.smt_chain import (
    NO_ROUTES,
    OTHERS_KEY,
    TOPIC_KEY,
    Chain,
    ChainPlan,
    ChainStep,
    MadePlugin,
    TopicRoutes,
    TransformUnusable,
    made_step,
    renamed,
)
from connectors.transforms.sql_query import KEY as QUERY_KEY

ROUTER: Final = "org.apache.kafka.connect.transforms.RegexRouter"
_BY_TOPIC: Final = "org.apache.kafka.connect.transforms.predicates.TopicNameMatches"
#: Where they are imported from: what a name means must not depend on which worker asks.
_CLASSES: Final = {
    ROUTER: "connect.plugins.headers_routers_predicates:RegexRouter",
    _BY_TOPIC: "connect.plugins.headers_routers_predicates:TopicNameMatches",
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


#: Finds a plugin of a worker by its kinds, its name and a range of versions.
FindPlugin = Callable[[Sequence[PluginKind], str, str | None], PluginDescription]

_CONVERTER = "org.apache.kafka.connect.converters.ByteArrayConverter"
#: Java's transforms that do nothing but send records to another topic.
_ROUTERS = tuple(f"org.apache.kafka.connect.transforms.{name}" for name in ("RegexRouter", "TimestampRouter"))


def chain_plan(
    steps: Sequence[NamedStep], cluster: str, find: FindPlugin, names: RemoteNames | None = None
) -> ChainPlan | None:
    """None where none looks into records: what only renames topics needs no record to be opened.

    ``names``: which topics records may be sent to; None: one.

    Raises:
        ConfigError: A class is not there, cannot be imported by a slice, or does what mirrored records are not for.
    """
    made = tuple(_step(step, find, names) for step in steps)
    if all(step.renames for step in made):
        return None
    converter = MadePlugin(_reference(find((PluginKind.CONVERTER,), _CONVERTER, None), ""), _CONVERTER)
    return ChainPlan(cluster, converter, made)


def check_chain(plan: ChainPlan) -> None:
    """Make the transforms once and let go of them. Raises ConfigError."""
    try:
        Chain(plan).close()
    except TransformUnusable as error:
        raise ConfigError(str(error), "transforms") from error


def _step(step: NamedStep, find: FindPlugin, names: RemoteNames | None) -> ChainStep:
    resolved, transformation = _made(step.transformation, PluginKind.TRANSFORMATION, find)
    predicate = None if step.predicate is None else _made(step.predicate, PluginKind.PREDICATE, find)[1]
    renames = renames_topics(step)
    if not renames and resolved in _ROUTERS:
        _refuse_router(step, resolved, names)
    return ChainStep(transformation, predicate, step.negate, renames)


def _refuse_router(step: NamedStep, resolved: str, names: RemoteNames | None) -> None:
    """Raise where a router sends records of one partition to several topics that nobody has named."""
    key = f"{step.transformation.prefix}type"
    if resolved != ROUTER:
        raise ConfigError(
            f"{key} {step.transformation.name} is not supported for mirrored records: it would send records of one "
            "partition to ever more topics",
            key,
        )
    if names is None or not names.routes.others:
        raise ConfigError(
            f"{key} {step.transformation.name} looks at more of a record than its topic, so it sends records of one "
            f"partition to several topics: name one in {TOPIC_KEY} and the others, which other connectors fill, in "
            f"{OTHERS_KEY}",
            key,
        )
    if names.by_query:
        raise ConfigError(
            f"{key} {step.transformation.name} sends records to several topics, and so does {QUERY_KEY}: let one do it",
            key,
        )


def _made(plugin: NamedPlugin, kind: PluginKind, find: FindPlugin) -> tuple[str, MadePlugin]:
    """Its class's full name, and how it is made."""
    key = f"{plugin.prefix}type"
    try:
        found = find((kind,), plugin.name, plugin.version)
    except PermanentError as error:
        raise ConfigError(str(error), key) from error
    return found.name, MadePlugin(_reference(found, key), plugin.name, dict(plugin.props))


def _reference(found: PluginDescription, key: str) -> str:
    """Where a slice imports the class from, which is another process, perhaps on another machine."""
    made = found.factory
    module, path = getattr(made, "__module__", ""), getattr(made, "__qualname__", "")
    there: object = sys.modules.get(module)
    for part in path.split("."):
        there = getattr(there, part, None)
    if there is not made:
        raise ConfigError(
            f"{key} {found.name} cannot be used for mirrored records: its factory has to be a class at the top of a "
            "module, which executors import by name",
            key,
        )
    return f"{module}:{path}"
