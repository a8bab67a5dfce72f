"""``heliograph init``: what it writes can be used, what is there stays, and what is missing is said or asked."""

from __future__ import annotations

import codecs
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from typer.testing import CliRunner

from connect.cli.init import files, init
from connect.cli.main import app
from connect.cli.options_and_help import Answers, ClusterAddress, Policy, RunMode
from connect.core.config.properties import load_properties, parse_properties
from connect.core.errors import ConfigError
from connectors.config.mm2_properties import load, mirrored
from tests.kit.processes import wait_until

US, EU = ClusterAddress("us", "us-kafka:9092"), ClusterAddress("eu", "a:1,b:2")
DEADLINE_S = 60.0
PAGE = Path(__file__).parents[4] / "docs" / "commands.md"
#: How a question ends: with the default, or the example of an address.
PROMPT_END = r"(?:\]|9092): "
FLAGS = ["init", "--source", "us=us-kafka:9092", "--target", "eu=eu-kafka:9092"]


@pytest.mark.parametrize("policy", list(Policy))
def test_the_file_of_a_mirror_says_what_was_answered(policy: Policy) -> None:
    (text,) = files(Answers(US, EU, policy=policy, topics=r"a\.b.*,c", groups="g", moves_groups=True)).values()
    props = parse_properties(text)
    assert props["us->eu.topics"] == r"a\.b.*,c"
    assert props["us->eu.groups"] == "g"
    assert props["eu.bootstrap.servers"] == "a:1,b:2"
    assert props["sync.group.offsets.enabled"] == "true"
    assert ("replication.policy.class" in props) is (policy is Policy.IDENTITY)


def test_both_ways_are_two_flows_and_never_under_the_same_names() -> None:
    (text,) = files(Answers(US, EU, both_ways=True)).values()
    assert parse_properties(text)["eu->us.enabled"] == "true"
    with pytest.raises(ConfigError, match="in circles"):
        files(Answers(US, EU, policy=Policy.IDENTITY, both_ways=True))
    with pytest.raises(ConfigError, match="writes to one cluster"):
        files(Answers(US, EU, mode=RunMode.CONNECT, both_ways=True))


def test_a_connect_group_gets_a_worker_and_three_connectors() -> None:
    found = files(Answers(US, EU, mode=RunMode.CONNECT, topics="orders"))
    connectors = [f"mirror-{each}.properties" for each in ("source", "checkpoint", "heartbeat")]
    assert list(found) == ["worker.properties", *connectors]
    assert parse_properties(found["worker.properties"])["bootstrap.servers"] == EU.servers
    assert parse_properties(found["mirror-source.properties"])["topics"] == "orders"


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (Answers(US, ClusterAddress("us", "x:1")), "same alias us"),
        (Answers(US, EU, topics="a("), "topics"),
        (Answers(US, EU, mode=RunMode.CONNECT, topics="a("), "topics"),
    ],
)
def test_answers_that_cannot_be_used_are_refused_before_anything_is_written(answers: Answers, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        files(answers)


@pytest.mark.parametrize("text", ["us", "us=", "=a:1", "u s=a:1", "us=a", "us=a:b"])
def test_a_cluster_is_an_alias_and_addresses(text: str) -> None:
    with pytest.raises(ConfigError):
        ClusterAddress.parse(text, "--source")


def test_files_that_are_there_stay(tmp_path: Path) -> None:
    run = CliRunner().invoke
    flags = [*FLAGS, "--dir", str(tmp_path)]
    assert run(app, flags).exit_code == 0
    file = tmp_path / "mm2.properties"
    assert [str(flow) for flow in mirrored(load(file).flows_to_run())] == ["us->eu"]
    file.write_text("mine")
    refused = run(app, flags)
    assert isinstance(refused.exception, ConfigError)
    assert "Overwrite it with --force" in str(refused.exception)
    assert file.read_text() == "mine"
    assert run(app, [*flags, "--force"]).exit_code == 0
    assert load_properties(file)["clusters"] == "us, eu"


def test_without_a_terminal_what_is_missing_is_named() -> None:
    refused = CliRunner().invoke(app, ["init", "--source", "us=a:1"])
    assert isinstance(refused.exception, ConfigError)
    assert "--target is missing" in str(refused.exception)


def test_ctrl_c_at_a_question_has_the_exit_code_of_other_commands() -> None:
    ours, theirs = pty.openpty()
    start = "import signal; signal.signal(2, signal.default_int_handler); from connect.cli.main import main; main()"
    command = [sys.executable, "-W", "ignore", "-c", start, "init"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    conversation(ours, [("Source cluster", "us=us-kafka:9092"), ("Target cluster", "no address"), ("is not an", "")])
    # A signal before the read would not interrupt it.
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING, 60, "it waits for a line")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    os.close(ours)


def test_at_a_terminal_it_asks_and_asks_again(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-W", "ignore", "-c", "from connect.cli.main import main; main()", "init"]
    process = subprocess.Popen([*command, "--dir", str(tmp_path)], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    reported = conversation(
        ours,
        [
            ("Source cluster", "us"),
            ("is not an alias with addresses", ""),
            ("Source cluster", "us=us-kafka:9092"),
            ("Target cluster", "eu=eu-kafka:9092"),
            ("Run as", ""),
            ("Name of topic orders", "identity"),
            ("Topics (regular", "orders.*"),
            ("Consumer groups", ""),
            ("Sync group offsets to eu", "y"),
            ("Also mirror eu to us", "n"),
            ("start: heliograph mirror", ""),
        ],
    )
    assert process.wait(60) == 0, reported
    os.close(ours)
    asked = re.findall(f"(?:Source|Target|Run|Name|Topics|Consumer|Sync|Also) .*?{PROMPT_END}", reported)
    assert len(asked) == 9
    assert [prompt for prompt in asked if prompt.rstrip() not in PAGE.read_text("utf-8")] == []
    props = load_properties(tmp_path / "mm2.properties")
    assert props["us->eu.topics"] == "orders.*"
    assert props["replication.policy.class"].endswith("IdentityReplicationPolicy")
    assert props["sync.group.offsets.enabled"] == "true"


def test_at_a_terminal_a_whole_command_asks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that were pasted behind it would be taken as answers."""
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    init("us=a:1", "eu=b:1", directory=tmp_path)
    assert load_properties(tmp_path / "mm2.properties")["us->eu.topics"] == ".*"


def conversation(terminal: int, turns: list[tuple[str, str]]) -> str:
    """Wait for each question, and type the answer; what stood on the terminal."""
    reported, seen = "", 0
    decoder = codecs.getincrementaldecoder("utf-8")()  # a character may come in parts

    def more() -> str:
        assert select.select([terminal], [], [], DEADLINE_S)[0], f"nothing more within {DEADLINE_S:g} s: {reported}"
        return decoder.decode(os.read(terminal, 4096))

    for question, answer in turns:
        while (at := reported.find(question, seen)) < 0:
            reported += more()
        seen = at + len(question)
        if answer or not question.startswith(("is not", "start")):
            # What is typed too early stands in the middle of the question.
            while not re.search(f"{PROMPT_END}$", reported[seen:]):
                reported += more()
            seen = len(reported)
            os.write(terminal, f"{answer}\n".encode())
    return reported
