"""Each block of code or output in the documentation is tested: here by its kind, or by the test in :data:`TESTS`."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest

from connect.api.message_handler import MirroredRecord
from connect.api.source import SourceTask
from connect.cli.check.check_file import checked
from connect.cli.check.findings import FileKind
from connect.cli.daemons.kafka_mirror_maker import parse_arguments
from connectors import client
from tests.kit.documented import DOCS, ROOT, blocks

_OTHER: Final = "of another program"
_CLI: Final = "tests/unit/connect/cli/"
_TAKEN: Final = f"{_CLI}test_options_and_help.py"
_SHOWN: Final = f"{_CLI}test_documented_output.py"
_STRIMZI: Final = f"{_CLI}commands/test_offsets.py"
_HEARTBEAT: Final = "tests/unit/connectors/test_heartbeat.py"
_RUNBOOKS: Final = "tests/integration/flows/test_runbooks.py"
_OVER_REST: Final = "tests/integration/flows/test_over_rest.py"
#: How blocks begin, by page; the file that tests them, or why none does. The first that fits counts.
TESTS: Final[dict[str, dict[str, str]]] = {
    "../README.md": {"flow ": "tests/integration/test_readme.py"},
    "command-output.md": {"$ heliograph ": _RUNBOOKS},
    "commands.md": {
        "$ heliograph offsets ": f"{_CLI}commands/test_offsets.py",
        "$ heliograph init": f"{_CLI}test_init_files.py",
    },
    "dashboard.md": {"ssh ": _OTHER},
    "deploy.md": {"useradd ": _OTHER, "docker compose ": _OTHER},
    "operations.md": {"$ heliograph ": _SHOWN, "{": _SHOWN, " flow ": _HEARTBEAT},
    "rest.md": {
        "$ heliograph ": _SHOWN,
        "curl -s 'localhost:8083/connectors/": _OVER_REST,
        "curl -s localhost:8083/connectors/us-eu/": _OVER_REST,
        '{"connector":': _OVER_REST,
        '{"at_ms":': _OVER_REST,
        "curl ": "tests/integration/test_rest_server.py",
        "{": "tests/integration/test_rest_server.py",
    },
    "runbooks/failback.md": {"$ heliograph ": _RUNBOOKS},
    "runbooks/failover-cases.md": {"kafka-consumer-groups.sh ": _OTHER},
    "runbooks/migration.md": {"$ heliograph ": _RUNBOOKS},
    "runbooks/planned-failover.md": {"$ heliograph ": _RUNBOOKS},
    "runbooks/stopped-partition.md": {"curl ": _OVER_REST},
    "runbooks/unplanned-failover.md": {"$ heliograph ": _RUNBOOKS},
    "security.md": {"source() ": "tests/integration/test_rights.py"},
    "spark.md": {"spark.authenticate true": _OTHER},
    "strimzi.md": {"apiVersion: ": _STRIMZI, "# us-to-eu: ": _STRIMZI, "kubectl ": _OTHER},
    "verify.md": {
        "$ heliograph verify mm2.properties --flow 'us->eu' --report": _SHOWN,
        "$ heliograph verify ": _SHOWN,
        "Copy of ": _SHOWN,
        "us->eu: equal, 1 undecided": "tests/unit/connectors/verification/test_report_forms.py",
        "jq ": "tests/unit/connectors/verification/test_report_forms.py",
        "17 2 * * *": _TAKEN,
    },
}
#: Pages for contributors draw processes and sequences.
DRAWINGS: Final = ("architecture.md", "decisions/", "mechanisms/")
_MIRROR: Final = """\
clusters = us, eu
us.bootstrap.servers = us:9092
eu.bootstrap.servers = eu:9092
us->eu.enabled = true
dedicated.mode.enable.public.rest = true
rest.auth.admins = User:ann
config.providers = env
config.providers.env.class = org.apache.kafka.common.config.provider.EnvVarConfigProvider
"""


#: What every line of a block of the kind looks like. ``test_options_and_help`` takes the commands.
KINDS: Final = {
    "commands": r"heliograph .*|",
    "make": r"make .*|export .*|\.venv/bin/python -m bench .*",
    "settings": r"[\w.>-]+ ?= ?.*|",
    "kafka-mirror-maker": r"kafka-mirror-maker .*",
}


class Shown(NamedTuple):
    page: str
    text: str

    @property
    def kind(self) -> str | None:
        """One of :data:`KINDS`, or python; None for a block that needs a test of its own."""
        if self.text.startswith(tuple(TESTS.get(self.page, ()))):
            return ""
        lines = self.text.splitlines()
        found = (name for name, one in KINDS.items() if all(re.fullmatch(one, line) for line in lines))
        return next(found, "python" if re.search(r"^(from|class|def) ", self.text, re.MULTILINE) else None)


PAGES: Final = ["../README.md", *(str(file.relative_to(DOCS)) for file in sorted(DOCS.rglob("*.md")))]
BLOCKS: Final = [Shown(page, text) for page in PAGES if not page.startswith(DRAWINGS) for _, text in blocks(page)]


def of_kind(kind: str) -> pytest.MarkDecorator:
    found = [one for one in BLOCKS if one.kind == kind]
    return pytest.mark.parametrize("shown", found, ids=lambda one: f"{one.page}: {one.text.splitlines()[0][:30]}")


def test_each_block_has_a_test() -> None:
    untested = [one for one in BLOCKS if one.kind is None]
    assert untested == [], "test it as others are, and name the test in TESTS"


def test_each_named_test_reads_the_page() -> None:
    for page, named in TESTS.items():
        for beginning, file in named.items():
            assert any(one.text.startswith(beginning) for one in BLOCKS if one.page == page), (page, beginning)
            assert file == _OTHER or page.rpartition("/")[2] in (ROOT / file).read_text("utf-8"), (page, file)


@of_kind("make")
def test_a_target_of_make_is_there(shown: Shown) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"^make (\w+)", shown.text, re.MULTILINE):
        assert f"\n{target}:" in makefile, target


@of_kind("settings")
async def test_settings_are_accepted_and_have_an_effect(
    shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in re.findall(r"\$\{env:(\w+)\}", shown.text):
        monkeypatch.setenv(name, "secret")
    file = tmp_path / "x.properties"
    kind = FileKind.MIRROR
    if shown.page == "mirrormaker-1.md" and "clusters" not in shown.text:
        kind = FileKind.CONSUMER if "group.id" in shown.text else FileKind.PRODUCER
    keys = {line.partition("=")[0].strip() for line in shown.text.splitlines()}
    added = [line for line in _MIRROR.splitlines() if line.partition(" = ")[0] not in keys]
    is_whole = kind is not FileKind.MIRROR or "clusters" in keys
    file.write_text("\n".join([*([] if is_whole else added), shown.text]))
    report = await checked(file, kind, offline=True)
    assert [one.text for one in report.findings if "No such file or directory" not in one.text] == []


@of_kind("kafka-mirror-maker")
def test_options_of_kafka_mirror_maker_are_taken(shown: Shown) -> None:
    for line in shown.text.splitlines():
        parse_arguments(shlex.split(line)[1:])


def test_python_runs() -> None:
    """A block is run with what it takes from elsewhere; of the client only the calls are looked at."""
    calls, task, handler = (one.text for one in BLOCKS if one.kind == "python")
    for node in ast.walk(ast.parse(calls)):
        if isinstance(node, ast.Call):
            function = getattr(client, ast.unparse(node.func).removeprefix("client."))
            inspect.signature(function).bind(*node.args, **{one.arg or "": one.value for one in node.keywords})

    closed: list[bool] = []
    table = SimpleNamespace(rows=lambda timeout_s: [timeout_s], close=lambda: closed.append(True))
    names: dict[str, Any] = {"SourceTask": SourceTask, "connect": lambda _: table, "record_of": str}
    exec(task, names)
    made = names["TableTask"]()
    made.start({"url": "x"})
    assert made.poll() == ["1"]
    made.stop()
    assert closed == [True]

    exec(handler, names)
    record = MirroredRecord("orders", 0, 1, 2, b"key", b"value")
    assert names["Rename"]("us.").handle(record) == [record._replace(topic="us.orders")]
