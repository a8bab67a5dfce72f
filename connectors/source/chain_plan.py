"""The transforms of a flow as its slices are told: which class each one is, and from where it is imported there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from connect.api.plugins import PluginDescription, PluginKind
from connect.api.transformations import NamedPlugin, NamedStep
from connect.core.errors import ConfigError, PermanentError
from connectors.remote_names import ROUTER, RemoteNames, renames_topics
from connectors.transforms.smt_chain import Chain, ChainPlan, ChainStep, MadePlugin, TransformUnusable
from connectors.transforms.sql_query import KEY as QUERY_KEY
from connectors.transforms.topic_routes import OTHERS_KEY, TOPIC_KEY

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
