"""Every command teaches by examples that it takes itself, and shells can complete all of them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from connect.cli import main
from connect.cli.options_and_help import EXAMPLES, GROUPS, Shell, completion, examples, taught, with_current_names
from connect.core.errors import ConfigError

GROUP: Any = taught(typer.main.get_command(main.app))
DOCS = Path(__file__).parents[4] / "docs"
PAGE = DOCS / "commands.md"
#: Of pages that show wrong arguments, other tests run the commands.
PAGES = [page for page in sorted([*DOCS.rglob("*.md"), DOCS.parent / "README.md"]) if page.name != "command-output.md"]


def commands(group: Any = GROUP, above: str = "") -> dict[str, Any]:
    """Every command by the words that call it."""
    found: dict[str, Any] = {}
    for name, each in group.commands.items():
        found |= commands(each, f"{above}{name} ") if hasattr(each, "commands") else {f"{above}{name}": each}
    return {name: each for name, each in found.items() if not each.hidden}


def test_every_command_has_examples_and_every_example_a_command() -> None:
    """A new command gets its examples in ``connect/cli/options_and_help.py``, and its line in ``docs/commands.md``."""
    assert sorted(EXAMPLES) == sorted(commands())


OF_WORKERS = [name for name, each in commands().items() if any("--rest" in one.opts for one in each.params)]


@pytest.mark.parametrize("name", OF_WORKERS)
def test_the_url_of_the_environment_is_the_default_of_the_option(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(OF_WORKERS) > 10

    def url(*words: str) -> Any:
        context = commands()[name].make_context(name, list(words), resilient_parsing=True)
        (option,) = (one for one in context.command.params if "--rest" in one.opts)
        found = context.params[option.name]
        return [found] if isinstance(found, str) else found

    monkeypatch.setenv("HELIOGRAPH_URL", "http://a:1")
    assert url() == ["http://a:1"]
    assert url("--rest", "http://b:2") == ["http://b:2"]


def test_a_file_wins_over_the_url_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_URL", "http://127.0.0.1:1")
    runner, file = CliRunner(), tmp_path / "none.properties"
    assert "none.properties: cannot be read" in runner.invoke(main.app, ["lag", str(file)]).output
    assert "127.0.0.1:1" in runner.invoke(main.app, ["lag"]).output
    both = runner.invoke(main.app, ["lag", str(file), "--rest", "http://b:2"]).output
    assert "give either mm2.properties or --rest" in both


@pytest.mark.parametrize("command", ["status", "lag", "offsets"])
def test_an_interval_without_a_watch_is_refused(command: str) -> None:
    with pytest.raises(ConfigError, match="--every needs --watch"):
        GROUP.main([command, "mm2.properties", "--every", "5"], standalone_mode=False)


def take(line: str) -> Any:
    """Read a line as its command would, up to its start; return the command."""
    words = shlex.split(line.partition(" > ")[0])[1:]
    known = commands()
    length = 1 if words[0] in known else 2
    command = known[" ".join(words[:length])]
    command.make_context(words[0], words[length:])
    return command


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_taken_by_its_command(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mm2.properties").touch()
    for line in examples(name):
        command = take(line)
        assert command is commands()[name]
        assert line in re.sub(r" \\\n +", " ", command.epilog)


@pytest.mark.parametrize("name", EXAMPLES)
def test_help_fits_a_terminal_and_names_no_types_of_python(name: str) -> None:
    command = commands()[name]
    text = command.get_help(command.make_context(f"heliograph {name}", [], resilient_parsing=True))
    assert not [line for line in text.splitlines() if len(line) > 80]
    assert not re.findall(r"<(?:str|path|list\[.*|\w+ range)>", text)


def commands_in(page: Path) -> list[str]:
    """The lines of a page's blocks that call ``heliograph``, as those of cron in ``verify.md`` do."""
    return re.findall(
        r"^ {4}(?:\$ |[\d* ]+heliograph  )?(heliograph .+?)(?: +#.*| > .*| \|\| .*)?$",
        page.read_text("utf-8"),
        re.MULTILINE,
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_command_in_the_documentation_is_taken(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mm2.properties").touch()
    for line in commands_in(page):
        assert "->" not in re.sub("'[^']*'", "", line), f"a shell takes the > of this line: {line}"
        take(line)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_of_commands_has_every_command_and_example(name: str) -> None:
    page = PAGE.read_text("utf-8")
    assert f"`{name}`" in page
    for line in examples(name):
        assert f"    {line}\n" in page


def test_every_command_is_in_one_group_of_the_help() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(name for name, each in GROUP.commands.items() if not each.hidden)
    text = GROUP.get_help(GROUP.make_context("heliograph", [], resilient_parsing=True))
    assert [line.removesuffix(":") for line in text.splitlines() if line.removesuffix(":") in GROUPS] == list(GROUPS)
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        (
            "drift mm2.properties --ignore acl",
            "plan --drift mm2.properties --ignore acl",
            "heliograph plan --drift now",
        ),
        ("stranded mm2.properties --to eu", "unreplicated mm2.properties --to eu", "heliograph unreplicated now"),
        ("takeover mm2.properties --check", "takeover mm2.properties", "has no effect"),
        ("connectors list --url http://a:1", "connectors list --rest http://a:1", "is --rest now"),
        ("connectors list --url=http://a:1", "connectors list --rest=http://a:1", "is --rest now"),
        (
            "failover mm2.properties --to eu --leave-stranded",
            "failover mm2.properties --to eu --leave-unreplicated",
            "is --leave-unreplicated now",
        ),
        ("check mm2.properties --offline", "check mm2.properties --offline", ""),
    ],
)
def test_old_names_give_a_warning(old: str, new: str, warning: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert with_current_names(old.split()) == new.split()
    err = capsys.readouterr().err
    assert warning in err
    assert err.count("\n") == bool(warning)


def test_clusters_takes_several_words_as_in_java() -> None:
    words = ["x.properties", "--clusters", "eu", "ap", "--log-level", "INFO"]
    context = commands()["mirror"].make_context("mirror", words)
    assert context.params["clusters"] == ["eu", "ap"]


def answered(shell: str, **environment: str) -> list[str]:
    asked = {**os.environ, "_HELIOGRAPH_COMPLETE": f"complete_{shell}", **environment}
    code = "from connect.cli.main import main; main()"
    command = [sys.executable, "-W", "ignore", "-c", code]
    ended = subprocess.run(command, env=asked, capture_output=True, text=True, timeout=120, check=False)
    assert ended.stderr == ""
    return ended.stdout.split()


def test_bash_completes_commands_options_and_choices() -> None:
    assert answered("bash", COMP_WORDS="heliograph off", COMP_CWORD="1") == ["offsets"]
    assert "--broker-info" in answered("bash", COMP_WORDS="heliograph offsets --", COMP_CWORD="2")
    assert answered("bash", COMP_WORDS="heliograph connectors re", COMP_CWORD="2") == ["resume", "restart"]
    assert answered("bash", COMP_WORDS="heliograph init --policy i", COMP_CWORD="3") == ["identity"]


@pytest.mark.parametrize("shell", list(Shell))
def test_each_shell_gets_a_script_that_asks_us(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    completion(shell)
    assert f"_HELIOGRAPH_COMPLETE=complete_{shell.value}" in capsys.readouterr().out


def test_bash_takes_the_script_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    completion(Shell.BASH)
    script = tmp_path / "heliograph"
    script.write_text(capsys.readouterr().out)
    ended = subprocess.run(
        ["bash", "--norc", "-c", f"source {script}; complete -p heliograph"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "_heliograph_completion" in ended.stdout
