"""Kafka's predicates (``org.apache.kafka.connect.transforms.predicates``)."""

from __future__ import annotations

import re

from connect.api.connector import Props
from connect.api.convert import Predicate
from connect.api.source import SourceRecord
from connect.core.checks import NonEmpty
from connect.core.config import REQUIRED, ConfigDef, Importance, Setting, Type
from connect.core.java_regex import compile_java
from connect.plugins.transforms.fields import JavaRegex


class HasHeaderKey(Predicate):
    """``HasHeaderKey``: records with a header of some name."""

    def __init__(self) -> None:
        self._name = ""

    @classmethod
    def config_def(cls) -> ConfigDef:
        return ConfigDef.of(Setting("name", Type.STRING, REQUIRED, "The header's name.", NonEmpty(), Importance.MEDIUM))

    def configure(self, props: Props) -> None:
        self._name = self.config_def().parse(props).string("name")

    def test(self, record: SourceRecord) -> bool:
        return any(header.key == self._name for header in record.headers)


class RecordIsTombstone(Predicate):
    """``RecordIsTombstone``: records without a value."""

    def test(self, record: SourceRecord) -> bool:
        return record.value is None


class TopicNameMatches(Predicate):
    """``TopicNameMatches``: records whose topic a Java regular expression matches as a whole."""

    def __init__(self) -> None:
        self._pattern = re.compile("")

    @classmethod
    def config_def(cls) -> ConfigDef:
        return ConfigDef.of(
            Setting(
                "pattern",
                Type.STRING,
                REQUIRED,
                "Java's regular expression for topics.",
                JavaRegex(required=True),
                Importance.MEDIUM,
            )
        )

    def configure(self, props: Props) -> None:
        self._pattern = compile_java(self.config_def().parse(props).string("pattern"))

    def test(self, record: SourceRecord) -> bool:
        return self._pattern.fullmatch(record.topic) is not None
