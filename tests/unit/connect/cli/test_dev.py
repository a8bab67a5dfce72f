from __future__ import annotations

import importlib
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from connect.cli.commands.plan import internal_topics
from connect.cli.dev import dev, properties
from connect.core.errors import ConfigError
from connect.embedded import cluster_config
from connectors.config.mm2_properties import load, mirrored

module = importlib.import_module("connect.cli.dev")


@pytest.mark.parametrize("clusters", ["", ",", "us,us", "us, eu ,us"])
def test_clusters_must_be_named_and_differ(clusters: str) -> None:
    with pytest.raises(ConfigError, match=r"--clusters: .* Use names such as us,eu"):
        dev(clusters)


@pytest.mark.parametrize("alias", ["a/b", "a b", "../up", "a.b"])
def test_an_alias_that_is_no_file_name_is_named(alias: str) -> None:
    with pytest.raises(ConfigError) as raised:
        dev(f"us,{alias}")
    assert str(raised.value).startswith(f"--clusters: {alias} is not an alias")


def test_what_is_printed_is_a_file_that_mirrors_with_the_brokers_replicas(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(properties({"us": "127.0.0.1:19092", "eu": "127.0.0.1:29092"}, "http://127.0.0.1:0"))
    config = load(file)
    (flow,) = mirrored(config.flows_to_run())
    assert str(flow) == "us->eu"
    assert config.notices() == []
    internal = internal_topics(flow, flow.settings())
    made = [*internal.on_target, *internal.on_source, *internal.of_tasks]
    assert {flow.settings().replication_factor, *(one.replication_factor for one in made)} == {-1}


def test_ports_beyond_the_last_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="--port-base 65533 leaves too few ports for 2 clusters of 2 nodes"):
        dev("us,eu", 2, 65_533)


def test_rest_takes_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cluster_config, "is_free", lambda port: port not in (39_098, 20_000))
    monkeypatch.setattr(
        module, "_start", lambda alias, *_: nullcontext(SimpleNamespace(name=alias, bootstrap="localhost:1", nodes=()))
    )
    monkeypatch.setattr(module, "_watch", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    listeners = []
    for port_base in (19_092, 29_092, None, None):
        dev("us,eu", 3, port_base)
        listeners += [line for line in capsys.readouterr().out.splitlines() if line.startswith("listeners")]
    assert listeners[:2] == [f"listeners = http://localhost:{port}" for port in (19_098, 29_098)]
    assert listeners[2] != listeners[3], "two of them run at once"
    dev("us,eu", 3, 39_092)
    said = capsys.readouterr().out
    assert "listeners = http://localhost:39098" in said
    assert "# Port 39098, for REST, is in use: a mirror of this file runs" in said
    with pytest.raises(ConfigError, match="leaves too few ports"):
        dev("us,eu", 1, 65_534)
