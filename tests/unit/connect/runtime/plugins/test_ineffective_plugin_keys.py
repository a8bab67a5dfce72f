"""Keys of transforms, predicates and converters that nothing reads are named, once, and no others."""

from __future__ import annotations

import pytest

from connect.api.convert import Transformation
from connect.api.plugins import PluginDescription, PluginKind, installed
from connect.core.config.config_def import ConfigDef, Setting, Type
from connect.core.config.worker_config import WorkerConfig
from connect.runtime.plugins.ineffective_plugin_keys import ineffective_overrides, ineffective_plugin_keys, once
from connect.runtime.plugins.plugin_registry import Plugins, check_worker
from tests.unit.connect.core.config.test_worker_config import SMALLEST

MASK = ConfigDef.of(Setting("fields", Type.LIST, (), "What to mask."))
PLUGINS = Plugins(
    [
        PluginDescription(PluginKind.TRANSFORMATION, "com.acme.Mask", Transformation, MASK, "1.0"),
        PluginDescription(PluginKind.TRANSFORMATION, "com.acme.Free", Transformation, ConfigDef(), "1.0"),
        *installed(),
    ]
)
STRINGS = "org.apache.kafka.connect.storage.StringConverter"
STEPS = {
    "transforms": "key, key.of, mask",
    "transforms.key.type": "org.apache.kafka.connect.transforms.ValueToKey",
    "transforms.key.fields": "id",
    "transforms.key.predicate": "old",
    "transforms.key.negate": "true",
    "transforms.key.of.type": "org.apache.kafka.connect.transforms.ExtractField$Key",
    "transforms.key.of.plugin.version": "4.3.1",
    "transforms.key.of.field": "id",
    "transforms.mask.type": "com.acme.Mask",
    "predicates": "old",
    "predicates.old.type": "TopicNameMatches",
    "predicates.old.pattern": "old.*",
    "value.converter": STRINGS,
    "value.converter.converter.encoding": "UTF-16",
    "value.converter.plugin.version": "4.3.1",
}


def test_keys_that_something_reads_are_not_named() -> None:
    assert list(ineffective_plugin_keys(STEPS, PLUGINS)) == []
    # What a class here does not declare at all, it may read; a class that is not here is an error of the validation.
    for name in ("com.acme.Free", "com.acme.Gone"):
        assert not list(
            ineffective_plugin_keys({**STEPS, "transforms.mask.type": name, "transforms.mask.x": "1"}, PLUGINS)
        )
    assert not list(ineffective_plugin_keys({"transforms": "${env:STEPS}", "transforms.a.type": "x"}, PLUGINS))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("transforms.key.feilds", "is not known to ValueToKey and has no effect; is transforms.key.fields meant?"),
        (
            "transforms.key.of.feild",
            "is not known to ExtractField$Key and has no effect; is transforms.key.of.field meant?",
        ),
        ("transforms.key.of.kei", "is not known to ExtractField$Key and has no effect"),
        ("transforms.mask.kei", "is not a setting that Mask declares, so it may have no effect"),
        ("transforms.gone.type", "has no effect: transforms does not name 'gone'"),
        ("predicates.old.negate", "is not known to TopicNameMatches and has no effect"),
        ("value.converter.schemas.enable", "is not known to StringConverter and has no effect"),
        ("key.converter.schemas.enable", "has no effect without key.converter"),
        ("value.converter.schema.content", "has no effect: it is for sinks, which do not run here"),
    ],
)
def test_a_key_that_nothing_reads_is_named(key: str, text: str) -> None:
    assert list(ineffective_plugin_keys({**STEPS, key: "x"}, PLUGINS)) == [f"{key} {text}"]


def test_what_the_file_has_before_the_keys_is_named_too() -> None:
    read = {**STEPS, "transforms.key.feilds": "x", "key.converter.x": "y"}
    step, converter = ineffective_plugin_keys(read, PLUGINS, "us->eu.")
    assert step.startswith("us->eu.transforms.key.feilds is not known")
    assert step.endswith("; is us->eu.transforms.key.fields meant?")
    assert converter == "us->eu.key.converter.x has no effect without us->eu.key.converter"


def test_a_workers_converters_are_read_in_the_same_way() -> None:
    worker = WorkerConfig.parse(
        {**SMALLEST, "key.converter": STRINGS, "value.converter": STRINGS, "key.converter.x": "1"}
    )
    assert check_worker(worker, PLUGINS) == ["key.converter.x is not known to StringConverter and has no effect"]


@pytest.mark.parametrize(
    ("key", "others", "text"),
    [
        ("producer.override.linger.ms", {}, None),
        (
            "producer.override.compression.typ",
            {},
            "is not known and has no effect; is producer.override.compression.type meant?",
        ),
        ("producer.override.buffer.memory", {}, "is not supported yet and has no effect"),
        ("consumer.override.bogus", {}, "is not known and has no effect"),
        ("consumer.override.client.id", {}, "has no effect without offsets.storage.topic"),
        ("consumer.override.client.id", {"offsets.storage.topic": "own"}, None),
        (
            "consumer.override.max.poll.records",
            {"offsets.storage.topic": "own"},
            "has no effect: sinks, which would use it, do not run here",
        ),
        ("admin.override.client.id", {}, "has no effect without offsets.storage.topic or topic.creation.*"),
        ("admin.override.client.id", {"topic.creation.default.partitions": "1"}, None),
        ("admin.override.retries", {"offsets.storage.topic": "own"}, "is not supported yet and has no effect"),
    ],
)
def test_an_override_that_no_client_reads_is_named(key: str, others: dict[str, str], text: str | None) -> None:
    worker = WorkerConfig.parse({**SMALLEST, "key.converter": STRINGS, "value.converter": STRINGS})
    assert list(ineffective_overrides({**others, key: "1"}, worker)) == ([] if text is None else [f"{key} {text}"])


def test_offsets_on_the_cluster_of_the_records_have_a_consumer() -> None:
    props = {**SMALLEST, "key.converter": STRINGS, "value.converter": STRINGS, "exactly.once.source.support": "enabled"}
    worker = WorkerConfig.parse(props)
    here = {"consumer.override.client.id": "x"}
    assert list(ineffective_overrides(here, worker)) == [
        "consumer.override.client.id has no effect without offsets.storage.topic"
    ]
    assert list(ineffective_overrides({**here, "producer.override.bootstrap.servers": "b:1"}, worker)) == []


def test_a_key_has_one_warning() -> None:
    assert once(["a has no effect here", "b is not known", "a is not known"]) == (
        "a has no effect here",
        "b is not known",
    )
