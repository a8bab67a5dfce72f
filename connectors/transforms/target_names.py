"""Finds the target names of topics, and plans the chain of transforms for slices.

Names come from the policy, and from a query or transforms that change topics. A query sees the source topic, and the
policy derives the remote name from its result. A transform sees the remote name (Kafka
``MirrorSourceTask.convertRecord``), and its result is the final name. The result of a ``RegexRouter`` is known without
records if it has no predicate, or one of the topic only. If the topic depends on the record,
:mod:`connectors.transforms.smt_chain` defines the possible topics.

The plan of a chain names the class of each transform and the module from which slices import it.
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
from connectors.transforms import smt_chain
from connectors.transforms.smt_chain import OTHERS_KEY, TOPIC_KEY, ChainPlan, ChainStep, MadePlugin
from connectors.transforms.sql_query import KEY as QUERY_KEY

ROUTER: Final = "org.apache.kafka.connect.transforms.RegexRouter"
_BY_TOPIC: Final = "org.apache.kafka.connect.transforms.predicates.TopicNameMatches"
#: The modules of these classes are fixed, so that their meaning does not depend on the worker.
_CLASSES: Final = {
    ROUTER: "connect.plugins.headers_routers_predicates:RegexRouter",
    _BY_TOPIC: "connect.plugins.headers_routers_predicates:TopicNameMatches",
}


def renames_topics(step: NamedStep) -> bool:
    """Return whether a step only renames topics, independently of the record."""
    return _is(step.transformation, ROUTER) and (step.predicate is None or _is(step.predicate, _BY_TOPIC))


def renaming_steps(steps: Sequence[NamedStep]) -> tuple[TransformationStep, ...]:
    """Create those of a connector's transforms that rename topics. Raises ConfigError if a setting is invalid."""
    found = []
    for step in filter(renames_topics, steps):
        predicate = None if step.predicate is None else _plugin(step.predicate, _BY_TOPIC)
        try:
            found.append(smt_chain.made_step(ChainStep(_plugin(step.transformation, ROUTER), predicate, step.negate)))
        except smt_chain.TransformUnusable as error:
            raise ConfigError(str(error), f"{step.transformation.prefix}type") from error
    return tuple(found)


@dataclass(frozen=True, slots=True)
class RemoteNames:
    """The target names of source topics. ``renaming``: transforms that rename the policy's remote topics, in order.
    ``routes``: the topics to which a query (``by_query``) or transforms send records."""

    source_alias: str
    policy: ReplicationPolicy
    renaming: tuple[TransformationStep, ...] = field(default=(), repr=False)
    routes: smt_chain.TopicRoutes = smt_chain.NO_ROUTES
    by_query: bool = False

    @property
    def are_the_policys(self) -> bool:
        """Whether only the policy names remote topics, so that it can parse their names."""
        return not self.renaming and self.routes.fills_the_usual

    def of(self, topic: str) -> str:
        """Return the target name of a source topic. Raises PermanentError as :meth:`all_of`."""
        return self.all_of(topic)[0]

    def find(self, topic: str) -> str | None:
        """Return the target name of a source topic; None if it has none: then it is not mirrored."""
        try:
            return self.of(topic)
        except PermanentError:
            return None

    def all_of(self, topic: str) -> tuple[str, ...]:
        """Return all target names for records of a source topic; the first is the one that this connector writes.
        Raises PermanentError if a topic has no valid target name, or the first name is also one of the others."""
        asked = self.routes.asked(topic)
        name, *others = names = tuple(map(self._final, asked))
        if name in others:
            raise PermanentError(
                f"topic {topic} is not mirrored: {TOPIC_KEY} and {OTHERS_KEY} both name its remote topic {name}, so it "
                "would be written twice. Change one of them, or exclude the topic with topics.exclude"
            )
        if (asked[0] != topic or self.renaming) and self.policy.is_internal_topic(name):
            raise PermanentError(
                f"topic {topic} is not mirrored: its query or transforms give it the remote name {name}, which is the "
                "name of an internal topic. Change them, or exclude the topic with topics.exclude"
            )
        return names

    def ways(self, topic: str) -> Ways:
        """Return how slices select this connector's records of a topic. Raises PermanentError as :meth:`all_of`."""
        asked = self.routes.asked(topic)
        if self.by_query:
            return Ways(self._by_policy(asked[0]), asked=asked)
        named = tuple(map(self._final, asked)) if self.routes != smt_chain.NO_ROUTES else ()
        return Ways(self._by_policy(topic), named=named)

    def _by_policy(self, topic: str) -> str:
        return self.policy.format_remote_topic(self.source_alias, topic)

    def _final(self, topic: str) -> str:
        return smt_chain.renamed(self.renaming, self._by_policy(topic))


def _is(plugin: NamedPlugin, java_class: str) -> bool:
    return plugin.name.strip() in (java_class, java_class.rpartition(".")[2])


def _plugin(plugin: NamedPlugin, java_class: str) -> MadePlugin:
    return MadePlugin(_CLASSES[java_class], plugin.name, dict(plugin.props))


#: Finds a worker's plugin by kinds, name and a range of versions.
FindPlugin = Callable[[Sequence[PluginKind], str, str | None], PluginDescription]

_CONVERTER = "org.apache.kafka.connect.converters.ByteArrayConverter"
#: Java's transforms that only change the topic of records.
_ROUTERS = tuple(f"org.apache.kafka.connect.transforms.{name}" for name in ("RegexRouter", "TimestampRouter"))


def chain_plan(
    steps: Sequence[NamedStep], cluster: str, find: FindPlugin, names: RemoteNames | None = None
) -> ChainPlan | None:
    """Return the plan for transforms that need records; None if all steps only rename topics. ``names``: the topics to
    which records may be sent; None: a single topic. Raises ConfigError if a class is missing, cannot be imported by a
    slice, or is not supported for mirrored records."""
    made = tuple(_step(step, find, names) for step in steps)
    if all(step.renames for step in made):
        return None
    converter = MadePlugin(_reference(find((PluginKind.CONVERTER,), _CONVERTER, None), ""), _CONVERTER)
    return ChainPlan(cluster, converter, made)


def check_chain(plan: ChainPlan) -> None:
    """Create the transforms once to check them. Raises ConfigError if one cannot be created."""
    try:
        smt_chain.Chain(plan).close()
    except smt_chain.TransformUnusable as error:
        raise ConfigError(str(error), "transforms") from error


def _step(step: NamedStep, find: FindPlugin, names: RemoteNames | None) -> ChainStep:
    resolved, transformation = _made(step.transformation, PluginKind.TRANSFORMATION, find)
    predicate = None if step.predicate is None else _made(step.predicate, PluginKind.PREDICATE, find)[1]
    renames = renames_topics(step)
    if not renames and resolved in _ROUTERS:
        _refuse_router(step, resolved, names)
    return ChainStep(transformation, predicate, step.negate, renames)


def _refuse_router(step: NamedStep, resolved: str, names: RemoteNames | None) -> None:
    """Reject a router that sends records of a partition to topics that no config names. Raises ConfigError."""
    if resolved != ROUTER:
        why = (
            "is not supported for mirrored records: it would send records of a partition to an unlimited number of "
            "topics"
        )
    elif names is None or not names.routes.others:
        why = (
            "depends on more than a record's topic, so it sends records of a partition to several topics. Set "
            f"{TOPIC_KEY} to the topic that this connector writes, and {OTHERS_KEY} to the topics that other "
            "connectors write"
        )
    elif names.by_query:
        why = f"sends records to several topics, and so does {QUERY_KEY}; use only one"
    else:
        return
    key = f"{step.transformation.prefix}type"
    raise ConfigError(f"{key} {step.transformation.name} {why}", key)


def _made(plugin: NamedPlugin, kind: PluginKind, find: FindPlugin) -> tuple[str, MadePlugin]:
    """Return the full class name of a plugin, and its plan."""
    key = f"{plugin.prefix}type"
    try:
        found = find((kind,), plugin.name, plugin.version)
    except PermanentError as error:
        raise ConfigError(str(error), key) from error
    return found.name, MadePlugin(_reference(found, key), plugin.name, dict(plugin.props))


def _reference(found: PluginDescription, key: str) -> str:
    """Return the reference from which a slice, in another process or on another machine, imports the class."""
    made = found.factory
    module, path = getattr(made, "__module__", ""), getattr(made, "__qualname__", "")
    there: object = sys.modules.get(module)
    for part in path.split("."):
        there = getattr(there, part, None)
    if there is not made:
        raise ConfigError(
            f"{key} {found.name} cannot be used for mirrored records: its factory must be a class that executors can "
            "import by name from a module",
            key,
        )
    return f"{module}:{path}"
