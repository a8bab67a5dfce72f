"""The commands as processes: what a wrong file or argument ends in, and what is loaded on the way."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from connect.cli.console import run_command
from connect.cli.daemons import connect_mirror_maker
from connect.cli.main import app

HELIOGRAPH = "from connect.cli.main import main; main()"
MIRROR_MAKER = "from connect.cli.daemons.connect_mirror_maker import main; main()"
NO_FLOW = "clusters = us, eu\nemit.heartbeats.enabled = false\n"


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("us.bootstrap.servers = a:1\n", ("clusters",)),
        ("clusters = us, eu\nus->xx.enabled = true\n", ("us->xx.enabled", "xx")),
        ("clusters = us, eu\nus->eu.enabled = \\u12\n", ("mm2.properties",)),
        (NO_FLOW, ("enabled",)),
    ],
)
def test_a_wrong_file_is_one_line_and_exit_code_2(
    text: str, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(text)
    assert run_command("x", lambda: connect_mirror_maker.run_with_arguments("x", [str(file)]), 2) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert (out, line[:10]) == ("", "x: error: ")
    assert all(word in line for word in words)


@pytest.mark.parametrize(("code", "before", "codes"), [(MIRROR_MAKER, (), (2, 255)), (HELIOGRAPH, ("mirror",), (1, 1))])
def test_bad_files_and_arguments_have_javas_exit_codes_under_javas_name(
    code: str, before: tuple[str, ...], codes: tuple[int, int], tmp_path: Path
) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(NO_FLOW)
    ended = run(code, *before, str(tmp_path / "none.properties"), "--clusters", "eu", "asia")
    assert (run(code, *before, str(file)).returncode, ended.returncode) == codes
    assert "No such file or directory" in ended.stderr.splitlines()[-1]
    ended = run(code, "--version")
    assert (ended.returncode, ended.stdout) == (0, f"heliograph {version('heliograph')}\n")


def test_every_command_is_listed_and_explains_itself() -> None:
    listed = CliRunner().invoke(app, ["--help"]).output
    for command in ("demo", "dev", "lag"):
        assert command in listed
        assert CliRunner().invoke(app, [command, "--help"]).output.strip().lower().startswith("usage: ")


@pytest.mark.parametrize("words", ["mirrror", "plan", "lag nothing.properties", "connectors list --what"])
def test_every_error_exits_with_1(words: str) -> None:
    assert run(HELIOGRAPH, *words.split()).returncode == 1


@pytest.mark.parametrize("module", ["connect.cli.daemons.connect_mirror_maker", "connect.cli.main"])
def test_a_command_loads_nothing_heavy_before_it_runs(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in run(code).stdout.split()}
    assert "connect" in loaded
    heavy = {"aiokafka", "fastapi", "jgo", "kafka", "numpy", "pandas", "pyarrow", "pyspark", "requests", "uvicorn"}
    assert not loaded & (heavy | ({"connectors"} if module.endswith("main") else set()))


@pytest.mark.parametrize(
    ("modules", "more"),
    [(("connect_mirror_maker", "mirror_process"), {"rich", "typer"}), (("strimzi_resource",), {"aiokafka", "kafka"})],
)
def test_mirroring_loads_neither_pandas_nor_spark_nor_a_web_framework(modules: tuple[str, ...], more: set[str]) -> None:
    ended = run(f"import sys; from connect.cli.daemons import {', '.join(modules)}; print(*sys.modules)")
    assert ended.returncode == 0, ended.stderr
    loaded = {name.partition(".")[0] for name in ended.stdout.split()}
    assert not loaded & {"fastapi", "numpy", "pandas", "pyarrow", "pydantic", "pyspark", "uvicorn", *more}
