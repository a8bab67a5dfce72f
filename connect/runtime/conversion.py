"""From what a task hands over to the bytes that are sent: transforms, then converters (Kafka's
``AbstractWorkerSourceTask.convertTransformedRecord``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from connect.api.convert import Converter, DataError, HeaderConverter
from connect.api.plugins import PluginKind
from connect.api.source import SourceRecord
from connect.core.worker_config import WorkerConfig
from connect.runtime.error_handling import ErrorHandler, Stage
from connect.runtime.plugins import Plugins
from connect.runtime.record_producer import OutgoingRecord
from connect.runtime.transformations import TransformationChain

_NO_TIMESTAMP: Final = -1
Role = Literal["key", "value", "header"]


@dataclass(frozen=True, slots=True)
class Converters:
    """What a task's records are turned into bytes with."""

    key: Converter
    value: Converter
    header: HeaderConverter

    def close(self) -> None:
        for each in (self.key, self.value, self.header):
            each.close()


class Conversion:
    """The way of one task's records into bytes."""

    def __init__(self, chain: TransformationChain, converters: Converters, errors: ErrorHandler) -> None:
        self._chain = chain
        self._converters = converters
        self._errors = errors

    async def outgoing(self, record: SourceRecord) -> OutgoingRecord | None:
        """The record as it is sent; None where a transform drops it.

        Raises:
            LeftOut, ToleranceExceeded, Interrupted: as :meth:`ErrorHandler.attempt`.
            DataError: its timestamp is none.
        """
        to_send = await self._chain.apply(record, self._errors)
        if to_send is None:
            return None
        attempt, converters, topic = self._errors.attempt, self._converters, to_send.topic
        headers = await attempt(Stage.HEADER_CONVERTER, converters.header, record, partial(self._headers, to_send))
        key = await attempt(
            Stage.KEY_CONVERTER,
            converters.key,
            record,
            partial(converters.key.from_connect, topic, to_send.key_schema, to_send.key),
        )
        value = await attempt(
            Stage.VALUE_CONVERTER,
            converters.value,
            record,
            partial(converters.value.from_connect, topic, to_send.value_schema, to_send.value),
        )
        return OutgoingRecord(topic, key, value, to_send.partition, _timestamp_ms(to_send), headers)

    def close(self) -> None:
        self._chain.close()
        self._converters.close()

    def _headers(self, record: SourceRecord) -> tuple[tuple[str, bytes | None], ...]:
        convert = self._converters.header.from_connect_header
        return tuple((each.key, convert(record.topic, each.key, each.schema, each.value)) for each in record.headers)


def make_converters(props: Mapping[str, str], config: WorkerConfig, plugins: Plugins) -> Converters:
    """The converters that a connector names, the worker's where it does not.

    Raises:
        ConfigError: A setting is missing or wrong.
        PluginNotFound: There is no such class, or version.
    """
    key_settings, key_class, key_version = converter_settings("key", props, config)
    key: Converter = plugins.new(PluginKind.CONVERTER, key_class, key_version)
    key.configure(key_settings)
    value_settings, value_class, value_version = converter_settings("value", props, config)
    value: Converter = plugins.new(PluginKind.CONVERTER, value_class, value_version)
    value.configure(value_settings)
    header_settings, header_class, header_version = converter_settings("header", props, config)
    header: HeaderConverter = plugins.new(PluginKind.HEADER_CONVERTER, header_class, header_version)
    header.configure(header_settings)
    return Converters(key, value, header)


def converter_settings(
    role: Role, connector: Mapping[str, str], config: WorkerConfig
) -> tuple[dict[str, str], str, str | None]:
    """Settings, class and version of a converter, all from where its class is named."""
    name = f"{role}.converter"
    props = connector if name in connector else config.props
    own = {key[len(name) + 1 :]: value for key, value in props.items() if key.startswith(f"{name}.")}
    version = own.pop("plugin.version", None)
    return {**own, "converter.type": role}, connector.get(name) or config.values.string(name), version


def _timestamp_ms(record: SourceRecord) -> int | None:
    """Kafka's ``ConnectUtils.checkAndConvertTimestamp``."""
    timestamp_ms = record.timestamp_ms
    if timestamp_ms is None or timestamp_ms == _NO_TIMESTAMP:
        return None
    if timestamp_ms < 0:
        raise DataError(f"Invalid record timestamp {timestamp_ms}")
    return timestamp_ms
