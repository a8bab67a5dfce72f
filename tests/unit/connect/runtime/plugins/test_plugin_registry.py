"""How plugins are found by name, kind and version, and how they are listed."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from connect.api import plugins as discovery
from connect.api.convert import Plugin
from connect.api.plugins import PluginDescription, PluginKind
from connect.core.config.client_settings import OverridePolicy
from connect.core.config.config_def import ConfigDef, InvalidValue, Setting, Type
from connect.core.config.worker_config import WorkerConfig
from connect.core.errors import ConfigError
from connect.core.herder_api import BadRequest, NotFound
from connect.runtime.plugins import plugin_registry
from tests.unit.connect.core.config.test_worker_config import SMALLEST

OWN = ConfigDef.of(
    Setting("file", Type.STRING, None, "A file."), Setting("tasks.max", Type.INT, 7, "Its own idea of a default.")
)


def described(kind: PluginKind, name: str, version: str = "1.0", config: ConfigDef | None = None) -> PluginDescription:
    return PluginDescription(kind, name, Plugin, ConfigDef() if config is None else config, version)


ALL = [
    described(PluginKind.HEADER_CONVERTER, "a.b.TextConverter"),
    described(PluginKind.CONVERTER, "a.b.TextConverter"),
    described(PluginKind.TRANSFORMATION, "a.b.Cast$Key"),
    described(PluginKind.TRANSFORMATION, "a.b.Other$Key"),
    described(PluginKind.TRANSFORMATION, "a.b.Router", "1.0"),
    described(PluginKind.TRANSFORMATION, "a.b.Router", "1.10"),
    described(PluginKind.TRANSFORMATION, "a.b.Router", "1.9"),
    described(PluginKind.PREDICATE, "a.b.Some"),
    described(PluginKind.PREDICATE, "c.d.Some"),
    described(PluginKind.SOURCE, "a.b.FileSourceConnector", config=OWN),
    described(PluginKind.SINK, "a.b.FileSinkConnector"),
]


@pytest.fixture
def plugins() -> plugin_registry.Plugins:
    return plugin_registry.Plugins(ALL)


NAMES = {
    "a.b.FileSourceConnector": ("a.b.FileSourceConnector", "FileSourceConnector", "FileSource"),
    "a.b.TextConverter": ("TextConverter", "Text"),
    "a.b.Cast$Key": ("a.b.Cast$Key",),
    "c.d.Some": ("c.d.Some",),
    None: ("Key", "Some", "nope"),
}


@pytest.mark.parametrize(("name", "full_name"), [(name, full) for full, names in NAMES.items() for name in names])
def test_names(plugins: plugin_registry.Plugins, name: str, full_name: str | None) -> None:
    assert plugins.full_name(name) == full_name


def test_the_newest_that_fits_is_found(plugins: plugin_registry.Plugins) -> None:
    kinds = (PluginKind.TRANSFORMATION,)
    assert plugins.find(kinds, "Router").version == "1.10"
    assert plugins.find(kinds, "Router", "[1.0,1.10)").version == "1.9"
    assert plugins.find(kinds, "Router", "1.0").version == "1.0"
    with pytest.raises(plugin_registry.VersionNotFound) as caught:
        plugins.find(kinds, "Router", "2.0")
    assert str(caught.value) == (
        "Plugin a.b.Router not found that matches the version range [2.0,2.0], available versions: [1.0, 1.9, 1.10]"
    )


def test_a_plugin_of_another_kind_is_not_found(plugins: plugin_registry.Plugins) -> None:
    with pytest.raises(plugin_registry.PluginNotFound, match="implements Converter and which name matches Router"):
        plugins.find((PluginKind.CONVERTER,), "Router")
    with pytest.raises(InvalidValue, match=r"Class class a\.b\.Router does not implement the Converter interface"):
        plugins.checked(PluginKind.CONVERTER, "a.b.Router", None)


@pytest.mark.parametrize("name", ["a.b.FileSinkConnector", "FileSink", "org.example.JdbcSinkConnector", "HdfsSink"])
def test_sinks_are_refused_with_a_sentence(plugins: plugin_registry.Plugins, name: str) -> None:
    with pytest.raises(plugin_registry.SinkRefused, match="runs source connectors only"):
        plugins.connector(name)
    assert plugins.connector_type(name) == "sink"


def test_the_list_is_in_javas_order(plugins: plugin_registry.Plugins) -> None:
    listed = [(each.cls, each.type, each.version) for each in plugins.plugins(connectors_only=False)]
    types = "sink source" + " transformation" * 5 + " predicate" * 2 + " converter header_converter"
    assert [type_ for _, type_, _ in listed] == types.split()
    assert [version for cls, _, version in listed if cls == "a.b.Router"] == ["1.0", "1.9", "1.10"]
    assert [each.type for each in plugins.plugins(connectors_only=True)] == ["sink", "source"]


def test_definitions_are_the_plugins_own_and_then_the_frameworks(plugins: plugin_registry.Plugins) -> None:
    infos = plugins.plugin_config("FileSource")
    names = [each.name for each in infos]
    assert names[:3] == ["file", "tasks.max", "name"]
    assert len(set(names)) == len(names)
    assert "exactly.once.support" in names
    defaults = {each.name: each.default_value for each in infos}
    assert (defaults["tasks.max"], defaults["connector.plugin.version"], defaults["key.converter"]) == (
        "7",
        "1.0",
        None,
    )
    assert plugins.plugin_config("Router") == []


def test_definitions_of_what_is_not_there(plugins: plugin_registry.Plugins) -> None:
    with pytest.raises(NotFound, match=r"Unknown plugin nope\."):
        plugins.plugin_config("nope")
    with pytest.raises(BadRequest, match=r"matches the version range \[9,9\], available versions: \[1\.0\]"):
        plugins.plugin_config("FileSource", "9")
    with pytest.raises(BadRequest, match=r"Invalid version specification: \[bad"):
        plugins.plugin_config("FileSource", "[bad")
    assert plugins.plugin_config("FileSource", "latest")


def worker(**others: str) -> WorkerConfig:
    return WorkerConfig.parse({**SMALLEST, "key.converter": "Text", "value.converter": "a.b.TextConverter", **others})


def test_a_workers_converters_must_be_there() -> None:
    config = ConfigDef.of(Setting("enabled", Type.BOOLEAN, True, "On."))
    simple = "org.apache.kafka.connect.storage.SimpleHeaderConverter"
    plugins = plugin_registry.Plugins(
        [
            described(PluginKind.CONVERTER, "a.b.TextConverter", config=config),
            described(PluginKind.HEADER_CONVERTER, simple),
        ]
    )
    plugin_registry.check_worker(worker(), plugins)
    for props, named in (
        ({"key.converter": "nope"}, "key.converter"),
        ({"header.converter": "Text"}, "header.converter"),
        ({"value.converter.plugin.version": "2.0"}, "value.converter.plugin.version"),
        ({"key.converter.enabled": "perhaps"}, "key.converter.enabled"),
        ({"connector.client.config.override.policy": "nope"}, "connector.client.config.override.policy"),
    ):
        with pytest.raises(ConfigError) as caught:
            plugin_registry.check_worker(worker(**props), plugins)
        assert caught.value.key == named


def test_a_policy_of_a_package() -> None:
    policy = OverridePolicy("Acme", "acks".__eq__)
    plugins = plugin_registry.Plugins([], {"acme": policy})
    assert plugins.override_policy(worker(**{"connector.client.config.override.policy": "acme"})) is policy


# entry points


def points(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """Entry points of one package in all groups, of plugins in one: name to what it leads to."""
    monkeypatch.setattr(discovery, "GROUPS", ("heliograph.connectors",))
    monkeypatch.setattr(
        discovery, "entry_points", lambda group: [EntryPoint(name, value, group) for name, value in values.items()]
    )


def test_entry_points_lead_to_one_description_or_several(monkeypatch: pytest.MonkeyPatch) -> None:
    points(monkeypatch, one=f"{__name__}:ONE", all=f"{__name__}:ALL")
    assert list(discovery.discovered()) == [ONE, *ALL]


def test_what_is_installed_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    points(monkeypatch, one=f"{__name__}:ONE")
    discovery.installed.cache_clear()
    try:
        assert discovery.installed() == (ONE,)
        points(monkeypatch, all=f"{__name__}:ALL")
        assert plugin_registry.Plugins.discover().find([ONE.kind], ONE.name) == ONE
    finally:
        discovery.installed.cache_clear()


def test_what_cannot_be_loaded_does_not_keep_the_others_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    points(monkeypatch, gone="no.such.module:X", wrong="os:sep", one=f"{__name__}:ONE")
    assert list(discovery.discovered()) == [ONE]
    assert "plugin gone of an unknown package cannot be loaded" in caplog.text
    assert "plugin wrong of an unknown package is ignored: it is not a PluginDescription" in caplog.text


def test_providers_and_policies_of_packages_go_by_two_names(monkeypatch: pytest.MonkeyPatch) -> None:
    points(monkeypatch, vault=f"{__name__}:vault", acme=f"{__name__}:ACME")
    assert set(discovery.config_providers()) == {"vault", f"{__name__}.vault"}
    assert set(discovery.override_policies()) == {"acme", f"{__name__}.ACME"}


def vault(params: object) -> object:
    """A provider's factory."""


ACME = OverridePolicy("Acme", bool)
ONE = described(PluginKind.SOURCE, "x.OneConnector")


def test_the_file_source_is_refused_until_it_is_allowed() -> None:
    full = "org.apache.kafka.connect.file.FileStreamSourceConnector"
    plugins = plugin_registry.Plugins.discover()
    for name in (full, "FileStreamSource", "FileStreamSourceConnector"):
        with pytest.raises(
            plugin_registry.PluginNotFound, match=r"set file\.stream\.source\.enable = true in the worker's file"
        ):
            plugins.connector(name)
    assert full not in {each.cls for each in plugins.plugins(connectors_only=True)}
    allowed = plugin_registry.Plugins.discover(may_read_files=True)
    assert allowed.connector("FileStreamSource").name == full
    assert full in {each.cls for each in allowed.plugins(connectors_only=True)}


# versions and ranges of them

RISING = [
    *("0.9", "1.0-alpha1", "1.0-beta2", "1.0-rc1", "1.0-rc2", "1.0-SNAPSHOT"),
    *("1.0", "1.0.1", "1.9", "1.10", "2.0-1", "10"),
]


def test_order() -> None:
    falling = RISING[::-1]
    assert sorted(falling, key=plugin_registry.version_key) == RISING
    assert (
        plugin_registry.version_key("1")
        == plugin_registry.version_key("1.0.0")
        == plugin_registry.version_key("1.0-final")
    )


@pytest.mark.parametrize(
    ("text", "newest"),
    [
        ("1.0", "1.0"),
        ("1.1", None),
        ("[1.0]", "1.0"),
        ("[1.0,2.0)", "1.10"),
        ("(,1.9]", "1.9"),
        ("(,1.9)", "1.0.1"),
        ("[1.10,)", "10"),
        ("(1.10,)", "10"),
        ("[0.1,0.9],[1.0.1]", "1.0.1"),
        ("[0.1,0.9] , (1.0,1.9]", "1.9"),
    ],
)
def test_the_newest_in_a_range(text: str, newest: str | None) -> None:
    found = plugin_registry.parse_range(text)
    assert found is not None
    assert found.newest(RISING) == newest


def test_a_bare_version_is_a_range_of_itself() -> None:
    assert str(plugin_registry.parse_range(" 1.0 ")) == "[1.0,1.0]"


@pytest.mark.parametrize("text", ["latest", "", " "])
def test_no_wish(text: str) -> None:
    assert plugin_registry.parse_range(text) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[bad", "Unbounded range: [bad"),
        ("(1)", "Single version must be surrounded by []: (1)"),
        ("[2,1]", "Range defies version ordering: [2,1]"),
        ("[1,1)", "Range defies version ordering: [1,1)"),
        ("[1,3],[2,4]", "Ranges overlap: [1,3],[2,4]"),
        ("[1,),[2,4]", "Ranges overlap: [1,),[2,4]"),
        ("[1]x", "Only fully-qualified sets allowed in multiple set scenario: [1]x"),
    ],
)
def test_malformed_ranges_are_refused_in_mavens_words(text: str, sentence: str) -> None:
    with pytest.raises(plugin_registry.InvalidRange) as caught:
        plugin_registry.parse_range(text)
    assert str(caught.value) == sentence
