"""MirrorMaker 1's command line: what the old documentation shows, and what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from connect.cli.daemons.kafka_mirror_maker import EXIT_FAILED, _settings, parse_arguments, without_effect
from connect.core.errors import ConfigError

FILES = ("--consumer.config", "c.properties", "--producer.config", "p.properties")


@pytest.mark.parametrize(
    ("line", "include", "exclude", "streams", "aborts"),
    [
        # The wiki of 0.8, the documentation of 0.8.2 to 0.11, of 2.8, and people's own.
        ("--num.streams 2 --whitelist=.*", ".*", None, 2, True),
        ("--whitelist my-topic --num.producers 2 --queue.size 1000", "my-topic", None, 1, True),
        ("--new.consumer --whitelist a|b --offset.commit.interval.ms 5000", "a|b", None, 1, True),
        ("--include A,B --abort.on.send.failure false", "A,B", None, 1, False),
        ("--white-list a --abort.on.send.fail", "a", None, 1, True),
        ("--black-list a --abortOnSendFail FALSE", None, "a", 1, False),
        ("--blacklist a --abortOnSendFailure=true --new.producer", None, "a", 1, True),
        ("--include a --whitelist b", "a", None, 1, True),
        # One dash, as Java's parser takes it.
        ("-whitelist a -num.streams=2 -abort.on.send.failure false", "a", None, 2, False),
        ("-blacklist=a,-b", None, "a,-b", 1, True),
    ],
)
def test_old_command_lines(line: str, include: str | None, exclude: str | None, streams: int, aborts: bool) -> None:
    found = parse_arguments([*FILES, *line.split()])
    topics = [one and one[1] for one in (found.include, found.exclude)]
    assert (*topics, found.num_streams, found.abort_on_send_failure) == (include, exclude, streams, aborts)
    assert (found.consumer_config, found.producer_config) == (["c.properties"], "p.properties")


def test_what_means_nothing_any_more_is_said() -> None:
    old = ("--num.producers", "2", "--queue.size", "9", "--new.consumer", "--include", "a")
    said = without_effect(parse_arguments([*FILES, *old]))
    assert [sentence.partition(":")[0] for sentence in said] == ["--num.producers", "--queue.size", "--new.consumer"]
    assert without_effect(parse_arguments([*FILES, "--include", "a"])) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--consumer.config is required"),
        (("--consumer.config", "c"), "--producer.config is required"),
        (FILES, "exactly one of --include"),
        ((*FILES, "--include", "a", "--exclude", "b"), "not both"),
        ((*FILES, "--include", "a", "--num.streams", "0"), "invalid number of 1 or more value: '0'"),
        ((*FILES, "--include", "a", "--abort.on.send.failure", "maybe"), "invalid true or false value: 'maybe'"),
        ((*FILES, "--include", "a", "--message.handler.args", "x"), "needs --message.handler"),
        ((*FILES, "--include", "a", "--rebalance.listener.args", "x"), "needs --consumer.rebalance.listener"),
        ((*FILES, "--include", "a", "--topics", "x"), "--topics"),
    ],
)
def test_what_is_wrong_is_said(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(arguments)
    assert ended.value.code == EXIT_FAILED
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("version", ["--version", "-version"])
def test_the_version_is_printed_whatever_else_is_missing(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments([version])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("heliograph ")


@pytest.mark.parametrize("option", ["--include", "--whitelist", "--white-list"])
def test_a_lone_asterisk_takes_all_topics_and_is_told_of(
    option: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = tmp_path / "c.properties", tmp_path / "p.properties"
    source.write_text("bootstrap.servers = old:9092\ngroup.id = g\n")
    target.write_text("bootstrap.servers = new:9092\n")
    files = ("--consumer.config", str(source), "--producer.config", str(target))
    assert _settings(parse_arguments([*files, option, "*"])).options.takes("orders")
    assert f"{option} *: taken as .*, all topics" in caplog.text
    caplog.clear()
    assert _settings(parse_arguments([*files, option, ".*"])).options.takes("orders")
    assert "taken as" not in caplog.text
    with pytest.raises(ConfigError, match=rf"^{option} orders\*\*\+\(: .*; it is a Java regular expression"):
        _settings(parse_arguments([*files, option, "orders**+("]))
