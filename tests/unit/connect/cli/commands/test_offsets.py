"""What pages of ``docs`` show of commands is what these print; files of ``heliograph offsets``."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connect.cli.commands.offsets import OffsetsAnswer, OffsetsQuestion, Row, lines, outcome, run_map, run_offsets
from connect.cli.daemons.strimzi_resource import ResourceArguments, run_resource
from connect.core.config.properties import parse_properties
from connect.core.errors import ConfigError
from connectors.config.mm2_properties import MirrorMakerConfig
from connectors.offset_map.view_and_rebuild import MapQuery, Rebuilt

DOCS = Path(__file__).parents[5] / "docs"
TWO_WAYS = """\
clusters = us, eu
us.bootstrap.servers = us:9092
eu.bootstrap.servers = eu:9092
us->eu.enabled = true
eu->us.enabled = true
"""


def test_the_pages_resource_comes_to_what_stands_below_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resource, printed = re.findall(r"^```\w*\n(.*?)^```$", (DOCS / "strimzi.md").read_text("utf-8"), re.M | re.S)
    file = tmp_path / "mirror.yaml"
    file.write_text(resource)
    secret = tmp_path / "secrets" / "us-ca" / "ca.crt"
    secret.parent.mkdir(parents=True)
    secret.touch()
    arguments = ResourceArguments(str(file), secrets=tmp_path / "secrets", prints=True)
    assert run_resource("heliograph mirror", arguments) == 0
    assert capsys.readouterr().out.replace(str(tmp_path / "secrets"), "/run/secrets") == printed


def test_offsets_are_printed_as_the_page_shows_them() -> None:
    rows = (
        Row("billing", "orders", 0, 4711, 4750, "billing-1-6f/10.0.0.7"),
        Row("billing", "orders", 1, 4690, 4690, "billing-1-6f/10.0.0.7"),
        Row("billing", "payments", 0, -1, 120, "none"),
    )
    reported = lines(OffsetsAnswer(rows, (("us", 1, "us-kafka:9092"),)), 240)
    page = (DOCS / "commands.md").read_text("utf-8")
    assert "".join(f"    {line.rstrip()}\n" for line in reported) in page


def test_a_topic_that_is_not_read_is_named() -> None:
    reported = OffsetsAnswer((), unread=("nope",))
    assert list(lines(reported, 240))[1:] == ["no partition of topic nope is read"]


def test_a_narrow_terminal_gets_narrow_columns() -> None:
    row = Row("orders-billing", "orders", 12, 4_711_000, -1, "billing-1-6f/10.0.0.7")
    header, line = lines(OffsetsAnswer((row,)), 80)
    assert header == "Group          Topic  Pid Offset  logSize Lag     Owner"
    assert line == "orders-billing orders 12  4711000 unknown unknown billing-1-6f/10.0.0.7"


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"flow": "us->eu"}, "--flow"),
        ({"command_config": Path("client.properties")}, "--command-config"),
        ({"cluster": "ap"}, "--cluster: ap is not a cluster of the file, which has us, eu"),
    ],
)
def test_an_option_that_is_wrong_or_without_effect_is_refused(tmp_path: Path, named: dict[str, Any], said: str) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(TWO_WAYS)
    question = OffsetsQuestion(file, "us", None, None, ("billing",), None, frozenset(), with_brokers=False)
    with pytest.raises(ConfigError, match=said):
        run_offsets(replace(question, **named), as_json=False, every_s=None)


@pytest.mark.parametrize("question", [MapQuery("orders", is_reverse=True), MapQuery(offset=5)])
def test_an_option_of_the_map_without_the_other_is_refused(tmp_path: Path, question: MapQuery) -> None:
    with pytest.raises(ConfigError, match="needs"):
        run_map(tmp_path / "mm2.properties", question, flow=None, as_json=False)


def test_a_map_from_the_beginning_needs_no_rebuild() -> None:
    assert outcome(Rebuilt("orders", 0, "us.orders", 0, (0, 0))) == (
        "orders-0: the map starts at offset 0, so there is nothing to rebuild"
    )


def test_a_group_that_nobody_knows_is_named() -> None:
    reported = OffsetsAnswer((), nothing=("nobody",))
    assert list(lines(reported, 240))[1:] == ["group nobody has no committed offset and no member"]
    assert reported.to_json()["nothing"] == ["nobody"]


def test_the_flow_of_the_schema_page_keeps_one_name_and_goes_one_way() -> None:
    page = (DOCS / "schema-registry.md").read_text("utf-8")
    settings = "\n".join(line.strip() for line in page.splitlines() if re.match(r" {4}\w+->\w+\.", line))
    there, back = MirrorMakerConfig(parse_properties(TWO_WAYS + settings)).flows_to_run()
    ours, theirs = there.settings(), back.settings()
    assert [ours.remote_topic(topic) for topic in ("_schemas", "orders")] == ["_schemas", "us.orders"]
    assert [ours.should_mirror(topic) for topic in ("_schemas", "__consumer_offsets")] == [True, False]
    assert not theirs.should_mirror("_schemas")


def test_a_clients_file_may_hold_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROTOCOL", "CARRIER_PIGEON")
    file = tmp_path / "client.properties"
    file.write_text("config.providers=env\nconfig.providers.env.class=env\nsecurity.protocol=${env:PROTOCOL}\n")
    question = OffsetsQuestion(None, None, "localhost:1", file, ("g",), None, frozenset(), with_brokers=False)
    with pytest.raises(ConfigError, match=r"security.protocol is 'CARRIER_PIGEON'"):
        run_offsets(question, as_json=True, every_s=None)
