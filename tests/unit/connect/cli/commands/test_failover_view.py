"""The words of ``heliograph failover``: few options, the source found in the file, and old forms with a warning."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import psutil
import pytest
from typer.testing import CliRunner

from connect.cli.commands import failover
from connect.cli.commands.failover import FailoverArguments, exit_code, find_source, options_of, with_values
from connect.cli.commands.failover_view import show_done
from connect.cli.main import app
from connect.core.errors import ConfigError
from connect.core.wording import parsed_time_ms
from connectors.config.mm2_properties import MirrorMakerConfig, load
from connectors.failover.execute import FailoverResult
from connectors.failover.journal import FailoverRun
from connectors.failover.plan import FailoverOptions, Plan, plan
from connectors.failover.snapshot import GroupFinding, GroupMove, GroupRule, Groups, How, Snapshot
from connectors.failover.words import described
from tests.kit.processes import wait_until


def config(tmp_path: Path, text: str) -> MirrorMakerConfig:
    file = tmp_path / "mm2.properties"
    file.write_text(text)
    return load(file)


@pytest.fixture
def known(tmp_path: Path) -> MirrorMakerConfig:
    """A file with the flow us->eu."""
    return config(tmp_path, "clusters = us, eu\nus->eu.enabled = true\n")


def arguments(known: MirrorMakerConfig, to: str = "eu", **others: Any) -> FailoverArguments:
    return FailoverArguments(Path(str(known.file)), None, to, **others)


def moved(group: str, after: int = 1) -> GroupMove:
    return GroupMove(group, ("t", 0), after, ("us.t", 0), None, "", after, "", How.EXACT)


def planned(names: str, *blocked: str, moves: Sequence[GroupMove] = ()) -> Plan:
    """Of groups with names of a letter, of which some are blocked."""
    findings = tuple(GroupFinding(name, GroupRule.NO_OFFSET, "is not copied") for name in blocked)
    groups = Groups(tuple(names), tuple(moves or map(moved, names)), findings)
    return plan(Snapshot("us", "eu", groups=groups), FailoverOptions())


@pytest.mark.parametrize("command", ["failover", "failback", "undo"])
def test_help_has_at_most_eight_options_and_help_all_the_others(command: str) -> None:
    def options(*words: str) -> set[str]:
        return set(re.findall(r"^  (--[\w-]+)", CliRunner().invoke(app, [command, *words]).output, re.M)) - {"--help"}

    few, all_of_them = options("--help"), options("--help-all")
    assert len(few) <= 8
    assert few < all_of_them or command == "undo"
    assert "--from" not in few and "--from" in all_of_them


@pytest.mark.parametrize(
    ("flows", "target", "source"),
    [
        (["us->eu"], "eu", "us"),
        (["us->eu"], "us", "eu"),
        (["us->eu", "eu->us"], "us", "eu"),
        (["us->eu", "eu->ap"], "eu", "us"),
        (["us->eu", "ap->eu"], "eu", "us or ap"),
        (["us->eu"], "ap", "no flow to"),
        (["us->eu"], "xx", "not a cluster"),
    ],
)
def test_the_source_is_found_in_the_file(tmp_path: Path, flows: list[str], target: str, source: str) -> None:
    known = config(tmp_path, "clusters = us, eu, ap\n" + "".join(f"{one}.enabled = true\n" for one in flows))
    if " " not in source:
        assert find_source(known, target) == source
        return
    with pytest.raises(ConfigError, match=source):
        find_source(known, target)


def test_old_forms_work_with_a_warning(known: MirrorMakerConfig, capsys: pytest.CaptureFixture[str]) -> None:
    file = known.file
    assert with_values(["--source-gone", "us", "--rewind", "g"]) == ["--source-gone", "us", "--rewind", "g"]
    assert capsys.readouterr().err == ""
    assert with_values(["--source-gone", str(file), "--rewind"]) == ["--source-gone", "", str(file), "--rewind", "*"]
    assert capsys.readouterr().err.count("warning:") == 2
    failover_options = options_of(arguments(known, accepts=("ahead=a", "deleted", "checkpoints=g")), known)
    assert failover_options.keeps == frozenset("a")
    ahead, deleted = capsys.readouterr().err.splitlines()
    assert ahead == "heliograph: warning: --accept ahead=a is --keep-offset a now; the next release drops the old name"
    assert deleted.endswith("--accept deleted applies to every group; the next release requires --accept deleted=GROUP")
    assert failover_options.accepts == {GroupRule.DELETED: frozenset("*"), GroupRule.STALE_CHECKPOINT: frozenset("g")}


def test_a_failover_by_a_flow_that_the_file_does_not_enable_is_refused(known: MirrorMakerConfig) -> None:
    with pytest.raises(ConfigError, match=r"enables no flow eu->us\. To move groups back, use heliograph failback"):
        failover.run_failover(arguments(known, "us"))


def test_records_are_not_exported_into_a_file(known: MirrorMakerConfig) -> None:
    file = Path(str(known.file))
    with pytest.raises(ConfigError, match=r"--export: .* is not a folder"):
        failover.run_unreplicated(file, None, "eu", export_to=file, appends=False, as_json=False)


def test_another_cluster_than_the_source_is_not_taken_for_gone(known: MirrorMakerConfig) -> None:
    with pytest.raises(ConfigError, match="the source of the groups is us, not eu"):
        failover.run_failover(arguments(known, gone="eu"))


@pytest.mark.parametrize(
    ("blocked", "code"), [([], 0), (["a"], failover.EXIT_SOME_LEFT), (["a", "b"], failover.EXIT_NO_GO)]
)
def test_the_exit_code_says_what_was_left(blocked: list[str], code: int) -> None:
    found = planned("ab", *blocked)
    assert exit_code(found) == code
    hindered = replace(planned("a").snapshot, obstacles=("ann",))
    assert exit_code(plan(hindered, FailoverOptions())) == 2


@pytest.mark.parametrize(("answer", "goes"), [("yes", True), ("Y", True), ("no", False), ("", False)])
def test_nothing_changes_before_the_answer(monkeypatch: pytest.MonkeyPatch, answer: str, goes: bool) -> None:
    asks = FailoverArguments(Path("f"), None, "eu", asks=True)
    monkeypatch.setattr(failover, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr("builtins.input", lambda _: answer)
    assert failover.confirmed(asks, "Move 2 groups to eu?") == goes


def test_ctrl_c_at_the_question_ends_the_command() -> None:
    text = (
        "import asyncio, sys\nfrom connect.cli import console\nfrom connect.cli.commands.failover import ask\n"
        "async def main():\n    ask('Move 2 groups to eu?')\n"
        "sys.exit(console.run_command('heliograph', lambda: asyncio.run(main())))\n"
    )
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.read(len("Move")) == b"Move"
            # A signal before the read would not interrupt it.
            wait_until(
                lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING, 20, "it waits for a line"
            )
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        finally:
            process.kill()


def test_without_a_terminal_the_question_is_not_answered_by_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    silent: Any = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: False))
    monkeypatch.setattr(failover, "sys", silent)
    with pytest.raises(ConfigError, match="--yes"):
        failover.confirmed(FailoverArguments(Path("f"), None, "eu", asks=True), "Move 2 groups to eu?")
    assert failover.confirmed(FailoverArguments(Path("f"), None, "eu"), "Move 2 groups to eu?")


@pytest.mark.parametrize(
    ("value", "name", "other"),
    [
        ("orders-mail", "orders-mail", "orders-mail2"),
        ("com.acme.mail", "com.acme.mail", "com-acme.mail"),
        (r"orders\.", "orders.", "orders-"),
        (r"a\+b", "a+b", "aab"),
        ("orders-.", None, "orders-12"),
        ("orders.", None, "orders"),
        (".mail", None, "amails"),
        ("orders-.*", None, "order"),
        ("a..b", None, "axxxb"),
    ],
)
def test_a_group_is_given_by_its_name_or_by_a_regular_expression(
    known: MirrorMakerConfig, value: str, name: str | None, other: str
) -> None:
    failover_options = options_of(arguments(known, groups=(value,)), known)
    assert failover_options.named == (frozenset() if name is None else {name})
    matching = re.sub(r"\.\*?", "x", value) if name is None else name
    assert failover_options.takes(matching) and not failover_options.takes(other)


def test_what_was_shown_before_a_move_is_not_shown_behind_it(capsys: pytest.CaptureFixture[str]) -> None:
    moves = [moved(group, at) for at, group in enumerate("abc")]
    looked, now = planned("abc", "c", moves=moves), planned("abc", "c", moves=[moves[0], moved("b", 7), moves[2]])
    now = now.with_blocked([GroupFinding("b", GroupRule.NOT_MOVED, "was not changed: no answer")])
    show_done(FailoverResult(now), looked, Path("mm2.properties"), everything=False)
    said = capsys.readouterr().out
    assert "is not copied" not in said and "blocked: group b: was not changed: no answer" in said
    assert [line.split()[0] for line in said.splitlines() if " us.t-0 " in line] == []
    assert "1 moved, 0 already in place, 2 not moved (b, c)" in said.replace("1 group moved", "1 moved")
    show_done(FailoverResult(plan(now.snapshot, FailoverOptions())), looked, Path("mm2.properties"), everything=False)
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines() if " us.t-0 " in line] == ["b"], "that has changed"


def test_an_undo_is_named_only_if_there_is_something_to_undo(capsys: pytest.CaptureFixture[str]) -> None:
    looked = plan(Snapshot("us", "eu"), FailoverOptions())
    done = FailoverResult(looked, restart="heliograph connectors resume A")
    show_done(done, looked, Path("mm2.properties"), everything=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "To undo" not in said
    assert said.endswith("there is nothing to undo. To start the flow again: heliograph connectors resume A")
    show_done(replace(done, restart=""), looked, Path("mm2.properties"), everything=False)
    assert "To undo: heliograph undo mm2.properties --to eu --execute" in " ".join(capsys.readouterr().out.split())


def test_an_undo_names_the_groups_that_it_would_change() -> None:
    run = FailoverRun("1", "us", "eu", groups={"mail": (), "billing": ()})
    assert described(run).startswith("offsets of 2 groups (billing, mail), 0 starts of flows and ACLs of 0 topics")


class Steps:
    """A failover that would move group a, and would leave b where it is blocked; ``ran`` is whether it did."""

    def __init__(self, *blocked: str) -> None:
        self.ran = False
        self.plan = planned("ab", *blocked)

    async def look(self) -> Plan:
        return self.plan

    async def run(self, *_: object) -> FailoverResult:
        self.ran = True
        return FailoverResult(self.plan)


async def code_of(steps: Steps, **options: Any) -> int:
    site: Any = SimpleNamespace(
        flow=SimpleNamespace(target_alias="eu"), target=SimpleNamespace(settings=SimpleNamespace(bootstrap=[]))
    )
    asked = FailoverArguments(Path("f"), "us", "eu", executes=True, **options)
    made: Any = lambda *_, **__: steps  # noqa: E731
    made.__name__ = "Failover"
    return await failover._failover(site, FailoverOptions(), asked, (None, None), made)


@pytest.mark.parametrize(("answer", "code"), [("no", failover.EXIT_NO_GO), ("yes", 0)])
async def test_a_no_is_told_from_what_was_done(monkeypatch: pytest.MonkeyPatch, answer: str, code: int) -> None:
    monkeypatch.setattr(failover, "can_ask", lambda _: True)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    steps = Steps()
    assert await code_of(steps, asks=True) == code
    assert steps.ran == (answer == "yes")


@pytest.mark.parametrize(
    ("blocked", "command", "code"),
    [
        ([], "exit 0", 0),
        ([], "exit 5", failover.EXIT_FAILED),
        (["b"], "exit 5", failover.EXIT_SOME_LEFT),
        (["b"], "test $HELIOGRAPH_EXIT_CODE = 3", failover.EXIT_SOME_LEFT),
    ],
)
async def test_a_command_that_fails_does_not_hide_what_was_left(
    capsys: pytest.CaptureFixture[str], blocked: list[str], command: str, code: int
) -> None:
    assert await code_of(Steps(*blocked), on_done=command) == code
    assert ("--on-done failed with exit code 5" in capsys.readouterr().err) == (command == "exit 5")


async def test_a_silent_source_is_not_taken_for_lost_if_the_copy_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failover from a lost source verifies nothing, so its groups would move without the proof."""
    steps = Steps()
    steps.plan = plan(replace(steps.plan.snapshot, source_error="silent", obstacles=("silent",)), FailoverOptions())
    monkeypatch.setattr(failover, "can_ask", lambda _: True)
    monkeypatch.setattr("builtins.input", pytest.fail)
    monkeypatch.setattr(failover, "_verifier", lambda _: AsyncMock(begin=lambda: None))
    monkeypatch.setattr("connectors.failover.execute.Failover", lambda *_, **__: steps)
    assert await code_of(steps, verifies=True) == failover.EXIT_NO_GO
    assert not steps.ran


def test_a_rehearsal_executes_nothing(tmp_path: Path) -> None:
    both = FailoverArguments(tmp_path / "none", None, "eu", executes=True, rehearses=True)
    with pytest.raises(ConfigError, match="Use either --rehearse or --execute"):
        failover.run_failover(both)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2026-11-20T11:00Z", 1_795_172_400_000),
        ("2026-11-20T12:00:00.5+01:00", 1_795_172_400_500),
        ("1970-01-01T00:00Z", 0),
    ],
)
def test_a_time_is_in_milliseconds(text: str, at_ms: int) -> None:
    assert parsed_time_ms(text, "--at") == at_ms


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("yesterday", "not a time such as"),
        ("2026-11-20T11:00", "no time zone"),
        *((f"1969-12-31T23:59:59.{fraction}Z", "before 1970") for fraction in ("999", "9999")),
        ("1970-01-01T00:00+01:00", "before 1970"),
    ],
)
def test_what_is_none_is_refused(text: str, why: str) -> None:
    """To Kafka -1 is the end of a log: every group would go there."""
    with pytest.raises(ConfigError, match=why):
        parsed_time_ms(text, "--at")
