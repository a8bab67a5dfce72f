"""The commands as processes: what a wrong file or argument ends in, and what is loaded on the way."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

HELIOGRAPH = "from connect.cli.main import main; main()"
MIRROR_MAKER = "from connect.cli.daemons.connect_mirror_maker import main; main()"


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("code", "before"), [(MIRROR_MAKER, ()), (HELIOGRAPH, ("mirror",))])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("us.bootstrap.servers = a:1\n", ("clusters",)),
        ("clusters = us, eu\nus->xx.enabled = true\n", ("us->xx.enabled", "xx")),
        ("clusters = us, eu\nus->eu.enabled = \\u12\n", ("mm2.properties",)),
        ("clusters = us, eu\nemit.heartbeats.enabled = false\n", ("enabled",)),
    ],
)
def test_a_wrong_file_is_one_line_and_an_exit_code(
    code: str, before: tuple[str, ...], text: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(text)
    ended = run(code, *before, str(file))
    assert (ended.returncode, ended.stdout) == (1 if before else 2, "")
    (line,) = ended.stderr.splitlines()
    assert ": error: " in line
    assert all(word in line for word in words)


@pytest.mark.parametrize(("code", "before"), [(MIRROR_MAKER, ()), (HELIOGRAPH, ("mirror",))])
def test_bad_arguments_have_javas_exit_code_under_javas_name(
    code: str, before: tuple[str, ...], tmp_path: Path
) -> None:
    ended = run(code, *before, str(tmp_path / "none.properties"), "--clusters", "eu", "asia")
    assert ended.returncode == (1 if before else 255)
    assert "No such file or directory" in ended.stderr.splitlines()[-1]


def test_every_command_is_listed_and_explains_itself() -> None:
    listed = run(HELIOGRAPH, "--help")
    assert listed.returncode == 0
    for command in ("demo", "dev", "mirror"):
        assert command in listed.stdout
        explained = run(HELIOGRAPH, command, "--help")
        assert explained.returncode == 0
        assert explained.stdout.lower().startswith("usage: ")


@pytest.mark.parametrize(
    "module", ["main", "daemons.connect_mirror_maker", "daemons.kafka_mirror_maker", "daemons.connect_distributed"]
)
def test_the_version_is_printed(module: str) -> None:
    ended = run(f"from connect.cli.{module} import main; main()", "--version")
    assert (ended.returncode, ended.stdout) == (0, f"heliograph {version('heliograph')}\n")


def test_an_unknown_command_is_refused() -> None:
    assert run(HELIOGRAPH, "mirrror").returncode == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("dev", "--nodes", "ten"),
        ("lag", "nothing.properties"),
        ("plan",),
        ("connectors", "list", "--what"),
        ("connectors", "list", "--rest", "http://127.0.0.1:1"),
        ("init", "--policy", "other"),
        ("mirror",),
    ],
)
def test_every_error_of_every_command_exits_with_1(arguments: tuple[str, ...]) -> None:
    assert run(HELIOGRAPH, *arguments).returncode == 1


@pytest.mark.parametrize("module", ["connect.cli.daemons.connect_mirror_maker", "connect.cli.main"])
def test_a_command_loads_nothing_heavy_before_it_runs(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in run(code).stdout.split()}
    assert "connect" in loaded
    heavy = {"aiokafka", "fastapi", "jgo", "kafka", "numpy", "pandas", "pyarrow", "pyspark", "requests", "uvicorn"}
    assert not loaded & (heavy | ({"connectors"} if module.endswith("main") else set()))


def test_mirroring_loads_neither_pandas_nor_spark_nor_a_web_framework_into_the_worker() -> None:
    ended = run(
        "import sys, connect.cli.daemons.connect_mirror_maker, connect.cli.daemons.mirror_process; print(*sys.modules)"
    )
    assert ended.returncode == 0, ended.stderr
    loaded = {name.partition(".")[0] for name in ended.stdout.split()}
    assert not loaded & {"fastapi", "numpy", "pandas", "pyarrow", "pydantic", "pyspark", "rich", "typer", "uvicorn"}
