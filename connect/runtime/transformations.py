"""The transforms of a connector in their order, each with its predicate (Kafka's ``TransformationChain``, KIP-585)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from connect.api.convert import Predicate, Transformation
from connect.api.plugins import PluginKind
from connect.api.source import SourceRecord
from connect.api.transformations import NamedStep, TransformationStep, named_steps
from connect.runtime.error_handling import ErrorHandler, Stage
from connect.runtime.plugins import Plugins


class TransformationChain:
    """All transforms of a task."""

    def __init__(self, steps: Sequence[TransformationStep] = ()) -> None:
        self._steps = tuple(steps)

    async def apply(self, record: SourceRecord, errors: ErrorHandler) -> SourceRecord | None:
        """The record to send, None where a transform drops it. Raises as :meth:`ErrorHandler.attempt`."""
        current = record
        for step in self._steps:
            after = await errors.attempt(
                Stage.TRANSFORMATION, step.transformation, record, partial(step.apply, current)
            )
            if after is None:
                return None
            current = after
        return current

    def close(self) -> None:
        for step in self._steps:
            step.close()


def make_chain(props: Mapping[str, str], plugins: Plugins) -> TransformationChain:
    """The transforms of a connector with ``props``.

    Raises:
        ConfigError: A setting is missing or wrong.
        PluginNotFound: There is no such class.
    """
    return TransformationChain([_made(step, plugins) for step in named_steps(props)])


def _made(step: NamedStep, plugins: Plugins) -> TransformationStep:
    by_class = step.transformation
    transformation: Transformation = plugins.new(PluginKind.TRANSFORMATION, by_class.name, by_class.version)
    transformation.configure(by_class.props)
    if step.predicate is None:
        return TransformationStep(transformation)
    predicate: Predicate = plugins.new(PluginKind.PREDICATE, step.predicate.name, step.predicate.version)
    predicate.configure(step.predicate.props)
    return TransformationStep(transformation, predicate, step.negate)
