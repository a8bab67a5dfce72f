"""What REST answers about a connector's config before it is stored."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
import pytest

from connect.api.connector import Props
from connect.api.convert import Converter, HeaderConverter, Transformation
from connect.api.plugins import PluginDescription, PluginKind, installed
from connect.api.source import ExactlyOnceSupport, SourceConnector, TransactionBoundaries
from connect.core.config.config_def import REQUIRED, AtLeast, ConfigDef, ConfigValue, Importance, Setting, Type
from connect.core.config.worker_config import WorkerConfig
from connect.core.errors import ConfigError, PermanentError, RetriableError
from connect.core.herder_api import BadRequest, Config, ConfigInfo, ConfigInfos
from connect.runtime.plugins.config_validation import error_message, validate_connector
from connect.runtime.plugins.plugin_registry import Plugins
from tests.unit.connect.core.config.test_worker_config import SMALLEST

CLASS = "x.y.TestSourceConnector"
OWN = ConfigDef.of(
    Setting("speed", Type.INT, REQUIRED, "How fast.", AtLeast(1), Importance.HIGH, "Test", 1),
    Setting("mode", Type.STRING, "slow", "How."),
    Setting("password", Type.PASSWORD, None, "A secret."),
    Setting("tasks.max", Type.INT, 2, "The framework's setting with another bound.", AtLeast(2)),
)


#: What a validation raises, and what is told of it.
RAISED: dict[str, tuple[type[BaseException], type[Exception]]] = {
    "retriable": (RetriableError, RetriableError),
    "permanent": (PermanentError, PermanentError),
    "config": (ConfigError, ConfigError),
    "plain": (ValueError, PermanentError),
    "exit": (SystemExit, PermanentError),
}


class TestSource(SourceConnector):
    """Says of exactly-once what its config says."""

    __test__ = False

    @classmethod
    def config_def(cls) -> ConfigDef:
        return OWN

    async def validate(self, props: Props, values: dict[str, ConfigValue]) -> dict[str, ConfigValue]:
        if props.get("mode") == "fast" and props.get("speed") == "1":
            values["mode"] = values["mode"].with_error("mode is fast and speed is 1")
            values["hint"] = ConfigValue("hint", "x", ("set a hint",))
        if "raises" in props:
            raise RAISED[props["raises"]][0](f"cannot log in with {props['password']}")
        if "tells" in props:
            values["hint"] = ConfigValue("hint", None, (f"cannot log in with {props['password']}",))
        return values

    def ignored(self, props: Props) -> Sequence[str]:
        return [f"{key} has no effect" for key in props if key == "sped"]

    async def start(self, props: Props) -> None: ...

    async def task_configs(self, max_tasks: int) -> Sequence[Props]:
        return []

    def make_task(self):
        raise NotImplementedError

    def exactly_once_support(self, props: Props) -> ExactlyOnceSupport | None:
        return {"yes": ExactlyOnceSupport.SUPPORTED, "no": ExactlyOnceSupport.UNSUPPORTED}.get(props.get("eos", ""))

    def can_define_transaction_boundaries(self, props: Props) -> TransactionBoundaries:
        if "eos" not in props:
            raise ValueError("eos is not set")
        return TransactionBoundaries.SUPPORTED if props["eos"] == "yes" else TransactionBoundaries.UNSUPPORTED


def described(kind: PluginKind, name: str, factory: type, *settings: Setting) -> PluginDescription:
    return PluginDescription(kind, name, factory, ConfigDef.of(*settings), "4.3.1")


PLUGINS = Plugins(
    [
        PluginDescription(PluginKind.SOURCE, CLASS, TestSource, OWN, "4.3.1"),
        described(PluginKind.CONVERTER, "x.y.TestConverter", Converter, Setting("enabled", Type.BOOLEAN, True, "On.")),
        described(
            PluginKind.HEADER_CONVERTER, "org.apache.kafka.connect.storage.SimpleHeaderConverter", HeaderConverter
        ),
        described(
            PluginKind.TRANSFORMATION,
            "x.y.Hoist",
            Transformation,
            Setting("field", Type.STRING, REQUIRED, "A field."),
            Setting("depth", Type.INT, 1, "Depth.", AtLeast(1)),
        ),
        described(PluginKind.PREDICATE, "x.y.Even", Transformation, Setting("pattern", Type.STRING, "x", "A pattern.")),
    ]
)
GOOD = {"name": "a", "connector.class": "TestSource", "speed": "3"}


async def validated(config: Config, **worker: str) -> ConfigInfos:
    props = {key.replace("_", "."): value for key, value in worker.items()}
    found = WorkerConfig.parse({**SMALLEST, "key.converter": "Test", "value.converter": "x.y.TestConverter", **props})
    return await validate_connector(config, PLUGINS, found, found.transformer)


def errors(infos: ConfigInfos) -> dict[str, tuple[str, ...]]:
    return {each.value.name: each.value.errors for each in infos.configs if each.value.errors}


def missing(key: str) -> tuple[str, ...]:
    return (f'Missing required configuration "{key}" which has no default value.',)


def info(infos: ConfigInfos, name: str) -> ConfigInfo:
    (found,) = (each for each in infos.configs if each.value.name == name)
    return found


async def test_mistakes_are_counted_and_told_all_at_once() -> None:
    infos = await validated({"connector.class": CLASS, "tasks.max": "0", "speed": "x", "errors.tolerance": "some"})
    assert errors(infos) == {
        "name": missing("name"),
        "tasks.max": ("Invalid value 0 for configuration tasks.max: Value must be at least 2",),
        "errors.tolerance": (
            "Invalid value some for configuration errors.tolerance: String must be one of: none, all",
        ),
        "speed": (
            "Invalid value x for configuration speed: Not a number of type INT",
            "Invalid value null for configuration speed: Value must be non-null",
        ),
    }
    assert infos.error_count == 5
    lines = error_message(infos).splitlines()
    assert lines[0] == "Connector configuration is invalid and contains the following 5 error(s):"
    assert lines[-1] == (
        "You can also find the above list of errors at the endpoint "
        "`/connector-plugins/{connectorType}/config/validate`"
    )
    assert len(lines) == 7


async def test_keys_without_effect_are_warnings_which_javas_answer_does_not_have() -> None:
    assert orjson.loads(orjson.dumps(await validated({**GOOD, "sped": "4"})))["warnings"] == ["sped has no effect"]
    steps = {"transforms": "up", "transforms.up.type": "Hoist", "transforms.up.field": "x"}
    assert "warnings" not in orjson.loads(orjson.dumps(await validated({**GOOD, **steps})))
    answer = orjson.loads(orjson.dumps(await validated({**GOOD, **steps, "sped": "4", "transforms.up.depht": "2"})))
    own, step = answer["warnings"]
    assert own == "sped has no effect"
    assert step.startswith("transforms.up.depht is not a setting that Hoist declares")
    assert step.endswith("; is transforms.up.depth meant?")
    assert "warnings" not in orjson.loads(orjson.dumps(await validated(GOOD)))


async def test_a_key_that_a_connector_of_kafka_does_not_know_is_a_warning() -> None:
    async def warnings(**more: str) -> object:
        own = {"name": "a", "connector.class": "FileStreamSource", "topic": "t", "file": "/f", "tasks.max": "1"}
        known = {"topic.creation.default.partitions": "3", "producer.override.acks": "all", "errors.tolerance": "all"}
        infos = await validate_connector({**own, **known, **more}, Plugins(installed()), worker, worker.transformer)
        return orjson.loads(orjson.dumps(infos)).get("warnings")

    worker = WorkerConfig.parse(SMALLEST)
    assert await warnings() is None
    assert await warnings(topics="t") == [
        "topics is not known to FileStreamSourceConnector and has no effect; is topic meant?"
    ]
    assert await warnings(**{"producer.override.compression.zstd.level": "3"}) == [
        "producer.override.compression.zstd.level has no effect: only a mirror's copy compresses with a level"
    ]


async def test_what_the_connector_says_of_several_keys() -> None:
    infos = await validated({**GOOD, "speed": "1", "mode": "fast"})
    assert errors(infos) == {"hint": ("set a hint",), "mode": ("mode is fast and speed is 1",)}
    assert info(infos, "hint").definition is None
    assert infos.configs[0].value.name == "hint"


async def test_what_lacks_a_class_is_told_without_its_secrets() -> None:
    with pytest.raises(BadRequest, match=r"^Connector config \{name=x, my.password=\[hidden\]\} contains no connector"):
        await validated({"name": "x", "my.password": "s3cret"})


async def test_a_sink_is_refused_with_a_sentence() -> None:
    infos = await validated({"name": "x", "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector"})
    assert infos.error_count == 1
    assert "runs source connectors only" in errors(infos)["connector.class"][0]


async def test_a_version_that_is_not_there_is_said_of_both_keys() -> None:
    found = errors(await validated({**GOOD, "connector.plugin.version": "1.0"}))
    assert found["connector.class"] == found["connector.plugin.version"]
    with pytest.raises(BadRequest, match=r"Unbounded range: \[bad"):
        await validated({**GOOD, "connector.plugin.version": "[bad"})


async def test_defaults_are_what_is_in_force() -> None:
    infos = await validated(GOOD, key_converter="Test", key_converter_plugin_version="[4,5)")
    shown = {each.value.name: each.value.value for each in infos.configs}
    assert shown["connector.plugin.version"] == "4.3.1"
    assert (shown["key.converter"], shown["key.converter.plugin.version"]) == ("x.y.TestConverter", "[4,5)")
    key = info(infos, "key.converter")
    assert key.definition is not None
    assert (key.definition.default_value, key.value.recommended_values) == ("x.y.TestConverter", ("x.y.TestConverter",))
    assert info(infos, "key.converter.plugin.version").value.recommended_values == ("4.3.1",)
    assert info(await validated({**GOOD, "key.converter": "?"}), "key.converter.plugin.version").value.visible is False
    assert info(infos, "key.converter.plugin.version").value.visible is True
    own = await validated({**GOOD, "key.converter": "Test"}, key_converter="Test", key_converter_plugin_version="[4,5)")
    assert info(own, "key.converter.plugin.version").value.value == "4.3.1"


# transforms and predicates

NEGATED = (
    "Config 'transforms.not.negate' was provided but there is no config 'transforms.not.predicate' defining a "
    "predicate to be negated."
)


async def test_mistakes_in_aliases_versions_and_nulls() -> None:
    of_transforms = {
        "none": {},
        "nope": {"type": "nope"},
        "even": {"type": "x.y.Even"},
        "bare": {"type": "Hoist"},
        "deep": {"type": "Hoist", "field": "f", "depth": "0"},
        "not": {"type": "Hoist", "field": "f", "negate": "true"},
        "old": {"type": "Hoist", "plugin.version": "1.0"},
        "bad": {"type": "Hoist", "plugin.version": "[bad"},
        "good": {"type": "Hoist", "field": "f", "predicate": "p"},
    }
    written = {f"transforms.{alias}.{key}": value for alias, of in of_transforms.items() for key, value in of.items()}
    infos = await validated(
        {
            **GOOD,
            "mode": None,
            "other": None,
            "transforms": ",".join(of_transforms),
            **written,
            "predicates": "p",
            "predicates.p.type": "x.y.Even",
            "key.converter": "Test",
            "key.converter.enabled": "perhaps",
            "value.converter": "x.y.Hoist",
            "connector.plugin.version": "(,9)",
        }
    )
    null = "Null value can not be supplied as the configuration value."
    nope = "Invalid value nope for configuration transforms.nope.type: Class nope could not be found."
    old = "Plugin x.y.Hoist not found that matches the version range [1.0,1.0], available versions: [4.3.1]"
    unbounded = "Unbounded range: [bad"
    assert errors(infos) == {
        "mode": (null,),
        "other": (null,),
        "transforms.none.type": missing("transforms.none.type"),
        "transforms.nope.type": (nope,),
        "transforms.even.type": ("Class class x.y.Even does not implement the Transformation interface",),
        "transforms.bare.field": missing("transforms.bare.field"),
        "transforms.deep.depth": ("Invalid value 0 for configuration depth: Value must be at least 1",),
        "transforms.not.type": (NEGATED,),
        "transforms.old.type": (old,),
        "transforms.old.plugin.version": (old,),
        "transforms.bad.type": (unbounded,),
        "transforms.bad.plugin.version": (unbounded,),
        "key.converter.enabled": (
            "Invalid value perhaps for configuration enabled: Expected value to be either true or false",
        ),
        "value.converter": ("Class class x.y.Hoist does not implement the Converter interface",),
    }
    assert infos.error_count == len(errors(infos))
    assert infos.groups[-3:] == ("Transforms: good", "Predicates: p", "Test")


async def test_a_converters_missing_version_is_left_to_the_task() -> None:
    assert errors(await validated({**GOOD, "key.converter": "Test", "key.converter.plugin.version": "1.0"})) == {}


# exactly-once

REQUIRED_EOS = {**GOOD, "exactly.once.support": "REQUIRED"}


@pytest.mark.parametrize(
    ("worker", "answer", "words"),
    [
        ("enabled", "yes", []),
        ("preparing", "yes", ["This worker does not have exactly-once"]),
        ("disabled", "no", ["This worker does not have exactly-once", "does not support exactly-once semantics"]),
        ("enabled", "?", ["does not implement the API required for preflight validation"]),
    ],
)
async def test_exactly_once_that_is_required(worker: str, answer: str, words: list[str]) -> None:
    infos = await validated({**REQUIRED_EOS, "eos": answer}, exactly_once_source_support=worker)
    found = info(infos, "exactly.once.support").value.errors
    assert len(found) == len(words)
    assert all(word in each for word, each in zip(words, found, strict=True))


@pytest.mark.parametrize(
    ("answer", "words"),
    [("yes", None), ("no", "does not support connector-defined transaction boundaries"), (None, "eos is not set")],
)
async def test_boundaries_of_a_connectors_own(answer: str | None, words: str | None) -> None:
    props = {} if answer is None else {"eos": answer}
    infos = await validated({**GOOD, "transaction.boundary": "connector", **props})
    found = info(infos, "transaction.boundary").value.errors
    assert found == () if words is None else words in found[0]


# overrides


async def test_overrides_by_policy() -> None:
    config = {**GOOD, "producer.override.acks": "1", "producer.override.sasl.mechanism": "PLAIN"}
    assert errors(await validated(config)) == {}
    infos = await validated(config, connector_client_config_override_policy="Principal")
    assert errors(infos) == {
        "producer.override.acks": (
            "The 'Principal' policy does not allow 'acks' to be overridden in the connector configuration.",
        )
    }
    assert infos.error_count == 1


# secrets

PROVIDER = {
    "config_providers": "env",
    "config_providers_env_class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
}


async def test_what_references_stand_for_is_never_in_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTOR_SECRET", "s3cret-word")
    reference = "${env:CONNECTOR_SECRET}"
    secret = {
        **GOOD,
        "mode": reference,
        "password": reference,
        "speed": reference,
        "tasks.max": f"1{reference}",
        "key.converter": f"a.b.{reference}",
        "producer.override.client.id": reference,
        "errors.tolerance": "${env:CONNECTOR_NOTHING}",
    }
    monkeypatch.setenv("CONNECTOR_NOTHING", "")
    infos = await validated(secret, **PROVIDER)
    assert "s3cret-word" not in repr(infos) + error_message(infos)
    assert info(infos, "mode").value.value == reference
    assert info(infos, "password").value.value == "[hidden]"
    assert errors(infos)["speed"][0] == f"Invalid value {reference} for configuration speed: Not a number of type INT"
    reported = await validated({**GOOD, "password": reference, "tells": "x"}, **PROVIDER)
    assert errors(reported) == {"hint": ("cannot log in with [hidden]",)}
    with pytest.raises(ConfigError) as caught:
        await validated({**GOOD, "producer.override.linger.ms": reference}, **PROVIDER)
    assert "s3cret-word" not in str(caught.value)


@pytest.mark.parametrize(("kind", "reported"), [(kind, told) for kind, (_, told) in RAISED.items()])
@pytest.mark.parametrize("refers", [True, False])
async def test_no_secret_is_in_what_a_connectors_own_validation_raises(
    kind: str,
    reported: type[Exception],
    refers: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("CONNECTOR_SECRET", "s3cret-word")
    # What is written down as it is, is known by its type.
    password = "${env:CONNECTOR_SECRET}" if refers else "s3cret-word"
    with pytest.raises(reported, match=r"cannot log in with \[hidden\]") as caught:
        await validated({**GOOD, "password": password, "raises": kind}, **PROVIDER)
    assert "s3cret-word" not in str(caught.value) + caplog.text
    assert caught.value.__cause__ is None
    # The log keeps the place of what is a defect of somebody's.
    assert ("in validate" in caplog.text) == (kind == "plain")


@pytest.mark.parametrize(
    "prefix", ["producer.override.", "admin.override.", "source.cluster.", "transforms.x.", "task.", "key.converter."]
)
async def test_providers_are_not_declared_in_another_place(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTOR_SECRET", "s3cret-word")
    own = {f"{prefix}config.providers": "mine", f"{prefix}config.providers.mine.class": "env"}
    infos = await validated({**GOOD, **own, "speed": "${mine:CONNECTOR_SECRET}"})
    assert "s3cret-word" not in repr(infos)
    assert info(infos, "speed").value.value in (None, "${mine:CONNECTOR_SECRET}")


async def test_a_file_of_the_worker_is_refused_before_anything_opens_it() -> None:
    with pytest.raises(BadRequest, match=r"add it to connector\.allowed\.files in the worker's file"):
        await validated({**GOOD, "producer.override.ssl.truststore.location": "/etc/shadow"})
