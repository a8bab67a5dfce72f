"""The commands of the runbooks about failover, run as they stand, page after page, against a mirror both ways."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import pytest
from typer.testing import CliRunner

from connect.cli.commands.rest_client import RestClient, WorkerRefused, WorkerUnreachable
from connect.cli.main import app
from tests.kit.copies import read_all, send
from tests.kit.mirror import SMALL, write_properties
from tests.kit.moving import commit
from tests.kit.processes import wait_until
from tests.kit.shared_mirror import OF_PAGES, SharedMirror, pages_flows
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_PAGES: Final = Path(__file__).parents[3] / "docs" / "runbooks"
_COMMANDS: Final = "../command-output.md"
#: In that page, from here on, one of the clusters is gone.
_GONE: Final = 5
_DEADLINE_S: Final = 240.0
_RECORDS: Final = 20
_NOWHERE: Final = "127.0.0.1:1"
_EXIT_CODE: Final = "    exit code "
#: What only fills a table.
_FILL: Final = re.compile(r"[\s─]+")


class Command(NamedTuple):
    words: str
    output: tuple[str, ...]
    exit_code: int | None


def commands(page: str) -> Iterator[Command]:
    """Each with the lines that are shown behind it, and the exit code where one is named."""
    words, output = "", list[str]()
    for line in [*(_PAGES / page).read_text().splitlines(), ""]:
        if line.startswith("    $ "):
            if words:
                yield _command(words, output)
            words, output = line.removeprefix("    $ "), []
        elif line.startswith("    ") and words:
            output.append(line)
        elif words:
            yield _command(words, output)
            words = ""


def _command(words: str, output: list[str]) -> Command:
    shown = tuple(line for line in output if not line.startswith(_EXIT_CODE))
    codes = [int(line.removeprefix(_EXIT_CODE)) for line in output if line.startswith(_EXIT_CODE)]
    return Command(words, shown, codes[0] if codes else None)


def is_shown(line: str, output: list[str]) -> bool:
    """What ends in dots may go on in any way."""
    wanted = _FILL.sub(" ", line).strip()
    if wanted.endswith(" ..."):
        return any(one.startswith(wanted.removesuffix(" ...")) for one in output)
    return wanted in output


class Stage:
    """Clusters called us and eu in the pages; topic, groups and aliases have the name of these flows behind them."""

    def __init__(self, shared: SharedMirror, directory: Path) -> None:
        self.name = OF_PAGES
        self.us, self.eu = f"us{self.name}", f"eu{self.name}"
        self.bootstrap = {self.us: shared.us.bootstrap, self.eu: shared.eu.bootstrap}
        self.topic = f"orders{self.name}"
        self.url = shared.url
        self.file = directory / "mm2.properties"
        self.lose_us(is_gone=False)

    def lose_us(self, *, is_gone: bool) -> None:
        """In the file that commands read; the mirror has another."""
        flows = pages_flows({**self.bootstrap, self.us: _NOWHERE} if is_gone else self.bootstrap)
        rest = {"listeners": self.url, "dedicated.mode.enable.public.rest": "true"}
        write_properties(self.file, {"clusters": f"{self.us}, {self.eu}", **SMALL, **flows, **rest})

    def write(self, alias: str, count: int) -> None:
        asyncio.run(send(self.bootstrap[alias], self.topic, (b"%d" % number for number in range(count))))

    def place(self, alias: str, topic: str, billing: int, mail: int) -> None:
        for group, offset in (("billing", billing), ("mail", mail)):
            asyncio.run(commit(self.bootstrap[alias], f"orders-{group}{self.name}", {topic: offset}))

    def records(self, alias: str, topic: str) -> int:
        return len(asyncio.run(read_all(self.bootstrap[alias], topic)))

    def report(self, kind: str, **query: str) -> Any:
        path = f"/connectors/MirrorCheckpointConnector/{kind}?{urlencode(query)}"
        with RestClient(f"{self.url}/{self.us}/{self.eu}") as worker:
            return self.named_as_in_pages(worker.ask("GET", path))

    def named_as_in_pages(self, found: Any) -> Any:
        return json.loads(json.dumps(found).replace(self.name, ""))

    def words(self) -> dict[str, str]:
        return {step["name"]: step["word"] for step in self.report("move")["steps"]}

    def resume(self) -> None:
        with RestClient(f"{self.url}/{self.us}/{self.eu}") as worker:
            worker.ask("PUT", "/connectors/MirrorSourceConnector/resume")

    def await_running(self) -> None:
        def running() -> bool:
            found = []
            for one, other in ((self.us, self.eu), (self.eu, self.us)):
                try:
                    with RestClient(f"{self.url}/{one}/{other}") as worker:
                        found.append(
                            worker.ask("GET", "/connectors/MirrorSourceConnector/status")["connector"]["state"]
                        )
                except (WorkerRefused, WorkerUnreachable):
                    return False
            return found == ["RUNNING", "RUNNING"]

        wait_until(running, _DEADLINE_S, "both flows run")

    def play(self, page: str, only: slice = slice(None), codes: Mapping[str, int] | None = None) -> None:
        for one in list(commands(page))[only]:
            words = [self._here_word(word) for word in shlex.split(one.words)]
            ended = CliRunner().invoke(app, words[1:], env={"NO_PROXY": "*"})
            wanted = (codes or {}).get(words[1], 0) if one.exit_code is None else one.exit_code
            assert ended.exit_code == wanted, (one.words, ended.output)
            shown = [self._as_in_the_page(line) for line in ended.output.splitlines()]
            for line in one.output:
                assert is_shown(line, shown), (one.words, line, shown)

    def _here_word(self, word: str) -> str:
        known = {
            "us": self.us,
            "eu": self.eu,
            "us->eu": f"{self.us}->{self.eu}",
            "mm2.properties": str(self.file),
            "orders": self.topic,
            "orders-mail": f"orders-mail{self.name}",
            "orders-.*": f"orders-.*{self.name}",
        }
        return known.get(word, word.replace("http://localhost:8083", self.url))

    def _as_in_the_page(self, line: str) -> str:
        here = {f"{self.file.parent}/": "", self.name: "", _NOWHERE: "us:9092"}
        for word, of_page in here.items():
            line = line.replace(word, of_page)
        return _FILL.sub(" ", line).strip()


def test_the_commands_of_the_pages_do_and_say_what_the_pages_say(
    shared: SharedMirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stage = Stage(shared, tmp_path)
    for address in stage.bootstrap.values():
        asyncio.run(make_topics(address, {stage.topic: 1}))
    stage.write(stage.us, _RECORDS)
    stage.place(stage.us, stage.topic, 10, 16)
    remote = f"{stage.us}.{stage.topic}"
    stage.await_running()
    wait_until(lambda: stage.records(stage.eu, remote) == _RECORDS, _DEADLINE_S, "all is copied")
    checkpoints = f"{stage.us}.checkpoints.internal"
    wait_until(lambda: stage.records(stage.eu, checkpoints) >= 2, _DEADLINE_S, "checkpoints are written")
    wait_until(lambda: lag_of(stage).count("no lag") == 2, _DEADLINE_S, "both positions are stored")
    stage.play(_COMMANDS, slice(0, -_GONE))
    stage.lose_us(is_gone=True)
    stage.play(_COMMANDS, slice(-_GONE, None))
    stage.lose_us(is_gone=False)
    the_dashboard_plans_what_the_command_plans(stage)
    stage.play("planned-failover.md", slice(0, 2))
    wait_until(lambda: stage.words()["Drain and move"] == "moved", _DEADLINE_S, "the report says what moved")
    assert (stage.words()["Undo"], stage.words()["Go or no-go"]) == ("possible", "go")
    stage.play("planned-failover.md", slice(2, None))
    stage.resume()
    stage.await_running()
    stage.lose_us(is_gone=True)
    stage.play("unplanned-failover.md", slice(0, 2))
    stage.lose_us(is_gone=False)
    stage.write(stage.us, 3)
    stage.play("unplanned-failover.md", slice(2, None), {"unreplicated": 2})
    stage.place(stage.eu, remote, 12, 20)
    stage.play("failback.md")
    wait_until(lambda: stage.records(stage.eu, remote) == _RECORDS + 3, _DEADLINE_S, "what stayed is copied")
    stage.play("migration.md", slice(1, None))
    wait_until(lambda: lag_of(stage).count("no lag") == 2, _DEADLINE_S, "the position is stored")
    stage.play("migration.md", slice(0, 1))


def the_dashboard_plans_what_the_command_plans(stage: Stage) -> None:
    """The reports that the pages Groups and Move show, with the offsets of the runbook."""
    file = str(stage.file)
    command = ["failover", file, "--to", stage.eu, "--group", f"orders-.*{stage.name}"]
    planned = stage.named_as_in_pages(json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout))
    found = stage.report("move")
    for key in ("from", "to", "go", "obstacles", "groups", "ready", "blocked", "moves", "left", "not_mirrored"):
        assert found["plan"][key] == planned[key], key
    first = found["steps"][0]
    assert (first["word"], first["lines"][0]["text"]) == ("go", "from us to eu: 2 groups ready, 0 blocked")
    words = [step["word"] for step in found["steps"][1:]]
    assert words == ["not run", "drained now", "by the command", "nothing to undo"]
    rehearsed = stage.report("move", group=f"orders-mail{stage.name}", rehearse="true")["steps"][1]
    assert rehearsed["word"] == "passed" and "RTO" in rehearsed["lines"][1]["text"]

    groups = stage.report("groups", search="orders-")["groups"]
    assert [(one["group"], one["source_lag"], one["exact"], one["by_syncs"]) for one in groups] == [
        ("orders-billing", 10, 1, 0),
        ("orders-mail", 4, 1, 0),
    ]
    assert all(one["checkpoint_ms"] for one in groups)
    assert groups[0]["why_not_synced"] == "off: sync.group.offsets.enabled = false"
    (mail,) = stage.report("groups", group=f"orders-mail{stage.name}")["groups"]
    assert [(one["to_topic"], one["offset"], one["new"], one["old"]) for one in mail["partitions"]] == [
        ("us.orders", 16, 16, None)
    ]


def lag_of(stage: Stage) -> str:
    return CliRunner().invoke(app, ["lag", str(stage.file)]).stdout


def test_every_page_has_commands_and_ends() -> None:
    pages = ("planned-failover.md", "unplanned-failover.md", "failback.md", "migration.md", _COMMANDS)
    assert all(list(commands(page)) for page in pages)
